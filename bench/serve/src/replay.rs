//! What a guest's whole work costs the daemon in processor time, with its journal retained and passed through: the requests of a
//! recording (`afterimage explore record`), given to both again, in turns.
//!
//! A request is made as soon as everything is answered that had been answered before it in the recording: no order that the
//! guest relied on is lost, and none is added. Reads are not in a recording.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use afterimage_bench_kit::{say, BenchError, Result};
use afterimage_report::{note, raw, Spread, Table};
use afterimage_trace::Recording;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::driver::Plugged;
use crate::servers::{Kind, Server};
use crate::tape::Tape;
use crate::Scratch;

/// See the module.
#[derive(Args)]
pub struct Options {
    /// The recording: made under `--journal passthrough`, of a guest with `data=journal` for instance.
    recording: PathBuf,
    /// The `afterimage` program [default: the one beside this program].
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// The contract to serve with: guest-crash or power-window=TIME.
    #[arg(long, default_value = "guest-crash")]
    survives: String,
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Where the image lies.
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// Where the raw results go: compressed JSON, as it is committed.
    #[arg(long, default_value = "target/bench/serve-replay.json.zst")]
    raw: PathBuf,
}

/// One replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replayed {
    /// The daemon's processor time, in ms.
    cpu_ms: f64,
    /// From the first request to the last answer, in ms.
    wall_ms: f64,
}

/// A whole run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    /// What was recorded.
    command: String,
    survives: String,
    requests: usize,
    written_bytes: u64,
    passthrough: Vec<Replayed>,
    retain: Vec<Replayed>,
}

impl Report {
    fn text(&self) -> String {
        let mut table = Table::new(["", "passthrough", "retain", "retain / passthrough"]).right(1..);
        type Number = fn(&Replayed) -> f64;
        for (words, number) in [("daemon's CPU, ms", (|r| r.cpu_ms) as Number), ("time, ms", |r| r.wall_ms)] {
            let spread = |runs: &[Replayed]| {
                afterimage_report::or_dash(Spread::of(runs.iter().map(number)), |s| {
                    s.show(|x| format!("{x:.1}"))
                })
            };
            let ratio = Spread::of_pairs(&self.retain, &self.passthrough, |a, b| number(a) / number(b));
            table.row([
                words.to_owned(),
                spread(&self.passthrough),
                spread(&self.retain),
                afterimage_report::or_dash(ratio, |s| s.show(|x| format!("{x:.2}"))),
            ]);
        }
        format!(
            "`{}` under {}: {} requests, {} MiB written; {} rounds in turns\n\n{}",
            self.command,
            self.survives,
            self.requests,
            self.written_bytes >> 20,
            self.retain.len(),
            table.text()
        )
    }
}

/// Replays in turns and says what it cost.
///
/// # Errors
/// The recording is no recording, a daemon does not start, or a request fails.
pub fn run(options: &Options, program: PathBuf) -> Result<()> {
    let recording = Recording::load(&options.recording).map_err(|e| BenchError::Workload(e.to_string()))?;
    let tape = Tape::new(&recording)?;
    let scratch = Scratch::new(&options.memory)?;
    let arm = |retain| Kind::Program { program: program.clone(), survives: options.survives.clone(), retain };
    let mut report = Report {
        command: recording.about_text("command").unwrap_or("a recording").to_owned(),
        survives: options.survives.clone(),
        requests: tape.requests,
        written_bytes: tape.data.len() as u64,
        passthrough: Vec::new(),
        retain: Vec::new(),
    };
    for round in 0..options.rounds {
        note(&format!("round {} of {}\n", round + 1, options.rounds));
        for retain in if round % 2 == 0 { [false, true] } else { [true, false] } {
            let replayed = replay(&arm(retain), &tape, &scratch.0)?;
            if retain { &mut report.retain } else { &mut report.passthrough }.push(replayed);
        }
    }
    raw::write(&options.raw, "serve-replay", &report)?;
    say(&report.text())
}

fn replay(kind: &Kind, tape: &Tape, scratch: &Path) -> Result<Replayed> {
    let image = scratch.join("replay.img");
    tape.image(&image)?;
    let server = Server::start(kind, &image, scratch, "replay", 1)?;
    let mut device = Plugged::new(&server.socket, 1, tape.data.len().max(1))?;
    device.load(tape);
    let (before, begun) = (server.cpu()?, Instant::now());
    device.replay(tape)?;
    let wall = begun.elapsed();
    let cpu = server.cpu()?.saturating_sub(before);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Replayed { cpu_ms: ms(cpu), wall_ms: ms(wall) })
}
