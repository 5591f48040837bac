//! What was recorded, for people and for programs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use afterimage_trace::{Finished, LayerTally};
use serde::{Deserialize, Serialize};

use super::RecordOptions;

/// A recording in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The file.
    pub out: PathBuf,
    /// What an acknowledged flush survives.
    pub contract: String,
    /// It was ended early, on request: there may be no mark `end`.
    pub interrupted: bool,
    /// How long it took, boot included, in seconds.
    pub seconds: f64,
    /// Submissions, completions, publications and marks.
    pub events: u64,
    /// Above the daemon's ordering layer.
    pub guest: LayerTally,
    /// Below it.
    pub storage: LayerTally,
    /// Lines that the guest reported: acknowledgements, states, begin and end.
    pub marks: u64,
    /// Commits that the guest published.
    #[serde(default)]
    pub published: u64,
    /// The application's states that were named, in order.
    pub states: Vec<String>,
    /// Bytes before compression.
    pub raw_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// How many times smaller the file is.
    pub ratio: f64,
}

impl Summary {
    pub(super) fn new(
        options: &RecordOptions,
        finished: &Finished,
        states: Vec<String>,
        took: Duration,
        interrupted: bool,
    ) -> Self {
        let (tally, written) = (finished.tally, finished.written);
        Self {
            out: options.out.clone(),
            contract: options.contract.to_string(),
            interrupted,
            seconds: took.as_secs_f64(),
            events: tally.events,
            guest: tally.guest,
            storage: tally.storage,
            marks: tally.marks,
            published: tally.published,
            states,
            raw_bytes: written.raw_bytes,
            file_bytes: written.file_bytes,
            ratio: written.raw_bytes as f64 / written.file_bytes.max(1) as f64,
        }
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let early = if self.interrupted { ", interrupted" } else { "" };
        writeln!(
            f,
            "{}: {} events under {} in {:.1} s{early}",
            self.out.display(),
            self.events,
            self.contract,
            self.seconds
        )?;
        for (name, layer) in [("guest", &self.guest), ("storage", &self.storage)] {
            writeln!(
                f,
                "  {name:8} {:6} writes ({:.1} MiB), {} discards and zeroings, {} {}",
                layer.writes,
                mib(layer.write_bytes),
                layer.zeroes,
                layer.flushes,
                if name == "guest" { "flushes" } else { "syncs" }
            )?;
        }
        writeln!(f, "  marks    {:6}, {} of them name a state", self.marks, self.states.len())?;
        if self.published > 0 {
            writeln!(f, "  published {:5} commits", self.published)?;
        }
        write!(
            f,
            "  file     {:.2} MiB for {:.1} MiB: {:.1} times smaller",
            mib(self.file_bytes),
            mib(self.raw_bytes),
            self.ratio
        )
    }
}
