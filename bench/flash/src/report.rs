//! Results: JSON for programs, tables for people.

use std::fmt::Write as _;
use std::path::Path;

use afterimage_flash::FtlKind;
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Outcome};
use crate::parse::Parsed;
use crate::published;

/// Memory that a 32 GB drive may take, bytes.
const MEMORY_TARGET: u64 = 600_000_000;

/// The middle of several values and their spread.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of a non-empty list.
    pub fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let median = if n % 2 == 1 { values[n / 2] } else { (values[n / 2 - 1] + values[n / 2]) / 2.0 };
        Self { median, min: values[0], max: values[n - 1] }
    }
}

/// A measured cell.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What was measured.
    pub cell: Cell,
    /// The FTL's name.
    pub ftl: String,
    /// Host page writes of 2 KB a second of processor time.
    pub writes_per_s: Spread,
    /// Pages programmed a second, collection's included: what the simulator does.
    pub programs_per_s: f64,
    /// What came out.
    pub outcome: Outcome,
    /// Page writes a second of the greedy map, in turn with the slices here.
    pub greedy_map_per_s: Vec<f64>,
    /// How much faster than that this one was, slice by slice.
    pub greedy_map_ratio: Spread,
    /// That ratio times what the greedy map is quoted with: the rate here, had the machine been as fast as the one where the
    /// targets come from.
    pub scaled_per_s: Option<f64>,
    /// What came out of another build.
    pub beside: Option<Outcome>,
    /// How much faster than that this one was, slice by slice.
    pub ratio: Option<Spread>,
    /// Host page writes a second that the project wants.
    pub target_per_s: f64,
    /// The median reaches it.
    pub rate_met: bool,
    /// Peak memory is within the target for 32 GB.
    pub memory_met: bool,
}

impl Row {
    /// Judges an outcome, and compares it with the greedy map and another build, whose slices came in turn.
    pub fn new(cell: &Cell, outcome: Outcome, greedy_map_per_s: Vec<f64>, beside: Option<Outcome>) -> Self {
        let ratio = |theirs: &[f64]| {
            let slices = outcome.writes_per_s.iter().zip(theirs);
            Spread::of(&slices.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
        };
        let greedy_map_ratio = ratio(&greedy_map_per_s);
        let ratio = beside.as_ref().map(|beside| ratio(&beside.writes_per_s));
        let writes_per_s = Spread::of(&outcome.writes_per_s);
        let target_per_s = match cell.kind() {
            FtlKind::Page | FtlKind::Fast if cell.size_gb == 1 => 12e6,
            _ => 3e6,
        };
        Self {
            cell: *cell,
            ftl: cell.kind().name().to_owned(),
            writes_per_s,
            programs_per_s: writes_per_s.median * outcome.write_amplification,
            target_per_s,
            rate_met: writes_per_s.median >= target_per_s,
            memory_met: outcome.peak_bytes <= MEMORY_TARGET,
            greedy_map_ratio,
            scaled_per_s: published::greedy_map(cell.size_gb).map(|quoted| greedy_map_ratio.median * quoted),
            greedy_map_per_s,
            outcome,
            beside,
            ratio,
        }
    }

    /// Its line in the table.
    pub fn line(&self) -> String {
        let met = |met| if met { "met" } else { "**missed**" };
        let (r, peer) = (&self.writes_per_s, &self.greedy_map_ratio);
        let scaled = self.scaled_per_s.map_or("– | –".to_owned(), |scaled| {
            format!("{:.2} | {}", scaled / 1e6, met(scaled >= self.target_per_s))
        });
        let mut line = format!(
            "| {} | {} GB | {} | {:.2} ({:.2}–{:.2}) | {:.0} | {} | {:.2} | {:.2} ({:.2}–{:.2}) | {scaled} | {:.2} | {:.1} | {:.2} | {:.0} | {} |",
            self.ftl,
            self.cell.size_gb,
            self.cell.load.name(),
            r.median / 1e6,
            r.min / 1e6,
            r.max / 1e6,
            self.target_per_s / 1e6,
            met(self.rate_met),
            Spread::of(&self.greedy_map_per_s).median / 1e6,
            peer.median,
            peer.min,
            peer.max,
            self.outcome.write_amplification,
            self.programs_per_s / 1e6,
            self.outcome.aged,
            self.outcome.peak_bytes as f64 / 1e6,
            if self.cell.size_gb == 32 { met(self.memory_met) } else { "–" },
        );
        if let (Some(beside), Some(ratio)) = (&self.beside, &self.ratio) {
            let other = Spread::of(&beside.writes_per_s).median / 1e6;
            let Spread { median, min, max } = ratio;
            // Writing to a string does not fail.
            let _ = write!(line, " {other:.2} | {median:.2} ({min:.2}–{max:.2}) |");
        }
        line
    }
}

/// The table's head; with another build beside this one, two columns more.
pub fn header(beside: bool) -> String {
    let (names, rules) = if beside { (" build beside | ratio (spread) |", "---|---|") } else { ("", "") };
    format!(
        "| FTL | flash | load | M page writes/s (spread) | target | | greedy map beside | ratio (spread) | scaled | | \
         write amplification | M programs/s | aged | peak MB | ≤ 600 MB |{names}\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|{rules}"
    )
}

/// A whole run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Kernel and processors.
    pub machine: String,
    /// Short slices, short ageing.
    pub quick: bool,
    /// The simulator.
    pub rows: Vec<Row>,
    /// The trace readers.
    pub parsed: Vec<Parsed>,
}

impl Report {
    /// Nothing measured yet.
    pub fn new(quick: bool) -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or("processor unknown", |(_, name)| name);
        let machine = format!("Linux {}, {processors} processors, {model}", release.trim());
        Self { machine, quick, rows: Vec::new(), parsed: Vec::new() }
    }

    /// Writes what there is so far.
    ///
    /// # Errors
    /// One sentence: where it cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        afterimage_results::write(file, "flash", self).map_err(|e| e.to_string())
    }
}

/// The trace readers' table.
pub fn parse_table(parsed: &[Parsed]) -> String {
    let mut text = String::from(
        "| trace format | M requests/s read (spread) | M page writes/s at 4 KiB | text, MB/s |\n|---|---|---|---|",
    );
    for p in parsed {
        let r = Spread::of(&p.requests_per_s);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n| {} | {:.2} ({:.2}–{:.2}) | {:.1} | {:.0} |",
            p.format,
            r.median / 1e6,
            r.min / 1e6,
            r.max / 1e6,
            2.0 * r.median / 1e6,
            r.median * p.bytes_per_request / 1e6
        );
    }
    text
}
