//! Results: JSON for programs, tables for people.

use std::path::Path;

use afterimage_bench_kit::{BenchError, Result};
use afterimage_flash::FtlKind;
use afterimage_report::number::scaled;
use afterimage_report::{or_dash, raw, Spread, Table, NONE};
use serde::{Deserialize, Serialize};

use crate::cell::{Cell, Load, Outcome};
use crate::parse::Parsed;
use crate::published;

/// Memory that a 32 GB drive may take, bytes.
const MEMORY_TARGET: u64 = 600_000_000;

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
    ///
    /// # Errors
    /// There was no slice.
    pub fn new(
        cell: &Cell,
        outcome: Outcome,
        greedy_map_per_s: Vec<f64>,
        beside: Option<Outcome>,
    ) -> Result<Self> {
        let some = |spread: Option<Spread>| {
            spread.ok_or_else(|| BenchError::Workload(format!("{}: nothing was measured", cell.name())))
        };
        let ratio = |theirs: &[f64]| {
            some(Spread::of_pairs(&outcome.writes_per_s, theirs, |ours, theirs| ours / theirs))
        };
        let greedy_map_ratio = ratio(&greedy_map_per_s)?;
        let ratio = beside.as_ref().map(|beside| ratio(&beside.writes_per_s)).transpose()?;
        let writes_per_s = some(Spread::of(outcome.writes_per_s.iter().copied()))?;
        let target_per_s = match cell.kind() {
            FtlKind::Page | FtlKind::Fast if cell.size_gb == 1 => 12e6,
            _ => 3e6,
        };
        Ok(Self {
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
        })
    }

    /// Its cells in the table.
    fn cells(&self, beside: bool) -> Vec<String> {
        let met = |met| if met { "met" } else { "**missed**" }.to_owned();
        let mut cells = vec![
            self.ftl.clone(),
            format!("{} GB", self.cell.size_gb),
            self.cell.load.name().to_owned(),
            self.writes_per_s.show(millions),
            format!("{:.0}", self.target_per_s / 1e6),
            met(self.rate_met),
            median(&self.greedy_map_per_s),
            self.greedy_map_ratio.show(two),
            or_dash(self.scaled_per_s, millions),
            or_dash(self.scaled_per_s, |scaled| met(scaled >= self.target_per_s)),
            two(self.outcome.write_amplification),
            format!("{:.1}", self.programs_per_s / 1e6),
            two(self.outcome.aged),
            format!("{:.0}", self.outcome.peak_bytes as f64 / 1e6),
            if self.cell.size_gb == 32 { met(self.memory_met) } else { NONE.to_owned() },
        ];
        if beside {
            cells.push(or_dash(self.beside.as_ref(), |beside| median(&beside.writes_per_s)));
            cells.push(or_dash(self.ratio, |ratio| ratio.show(two)));
        }
        cells
    }

    /// What came out, in a few words.
    pub fn words(&self) -> String {
        let beside = self.ratio.map_or(String::new(), |r| format!(", {} of the build beside", r.show(two)));
        let (rate, ratio) = (self.writes_per_s.show(millions), self.greedy_map_ratio.show(two));
        format!("{rate} M page writes/s, {ratio} of the greedy map{beside}")
    }
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn millions(per_s: f64) -> String {
    two(per_s / 1e6)
}

fn median(rates: &[f64]) -> String {
    or_dash(Spread::of(rates.iter().copied()), |rates| millions(rates.median))
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
    /// The file cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        Ok(raw::write(file, "flash", self)?)
    }

    /// Everything that was measured.
    pub fn tables(&self) -> String {
        let parts = [self.machine.clone(), self.simulator(), self.readers(), published_table(&self.rows)];
        parts.join("\n\n")
    }

    /// With another build beside this one, two columns more.
    fn simulator(&self) -> String {
        let mut heads = vec![
            "FTL",
            "flash",
            "load",
            "M page writes/s (spread)",
            "target",
            "",
            "greedy map beside",
            "ratio (spread)",
            "scaled",
            "",
            "write amplification",
            "M programs/s",
            "aged",
            "peak MB",
            "≤ 600 MB",
        ];
        let beside = self.rows.iter().any(|row| row.beside.is_some());
        if beside {
            heads.extend(["build beside", "ratio (spread)"]);
        }
        Table::new(heads).with(self.rows.iter().map(|row| row.cells(beside))).markdown()
    }

    fn readers(&self) -> String {
        let heads = ["trace format", "M requests/s read (spread)", "M page writes/s at 4 KiB", "text, MB/s"];
        let mut table = Table::new(heads);
        for (read, rate) in
            self.parsed.iter().filter_map(|p| Some((p, Spread::of(p.requests_per_s.iter().copied())?)))
        {
            table.row([
                read.format.clone(),
                rate.show(millions),
                format!("{:.1}", 2.0 * rate.median / 1e6),
                format!("{:.0}", rate.median * read.bytes_per_request / 1e6),
            ]);
        }
        table.markdown()
    }
}

/// Quoted figures beside ours, in page writes a second: 4 KiB random writes where the same load was run here.
fn published_table(rows: &[Row]) -> String {
    let mut table = Table::new(
        "simulator (quoted, not run here)|quoted|flash|page writes/s|ours, run here: 1 GB|32 GB".split('|'),
    );
    let ours = |ftl: &str, size_gb: u32| {
        let row =
            rows.iter().find(|r| r.ftl == ftl && r.cell.size_gb == size_gb && r.cell.load == Load::Pairs);
        or_dash(row, |r| scaled(r.writes_per_s.median))
    };
    for p in published::ALL {
        table.row([
            p.simulator.to_owned(),
            p.quoted.to_owned(),
            p.size_gb.map_or("not said".to_owned(), |gb| format!("{gb} GB")),
            if p.low < p.high { format!("{}–{}", scaled(p.low), scaled(p.high)) } else { scaled(p.low) },
            ours(p.ftl, 1),
            ours(p.ftl, 32),
        ]);
    }
    let mut here = |what: String, small: String, large: String| {
        table.row([what, NONE.to_owned(), NONE.to_owned(), NONE.to_owned(), small, large]);
    };
    let superblock = FtlKind::Superblock.name();
    here(
        "no public implementation of Superblock is known".to_owned(),
        ours(superblock, 1),
        ours(superblock, 32),
    );
    let peer = |size_gb: u32| {
        let cells = rows.iter().filter(|r| r.cell.size_gb == size_gb);
        or_dash(Spread::of(cells.flat_map(|r| r.greedy_map_per_s.iter().copied())), |s| s.show(scaled))
    };
    here(format!("run here, not quoted: {}, single pages", published::GREEDY_MAP), peer(1), peer(32));
    table.markdown()
}
