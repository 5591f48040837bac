//! How fast the SSD simulator is, and how much memory it takes: every FTL at 1 GB and 32 GB under four loads, and the
//! trace readers, beside what is published of other simulators.
//!
//! ```text
//! main ─► a process of its own for each cell (its peak memory is the cell's) ─► table, JSON
//!      └► trace readers, from memory
//! ```
//!
//! Rates are by processor time, on one thread: other work on the machine slows them through caches and clock only.

mod apart;
mod bare;
mod cell;
mod parse;
mod published;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use afterimage_flash::config::GcPolicy;
use afterimage_flash::FtlKind;
use clap::Parser;

use apart::Apart;
use cell::{Cell, Load};
use report::{Report, Row};

/// Measure the SSD simulator: page writes a second and peak memory, beside other simulators' published figures
#[derive(Parser, Debug)]
struct Args {
    /// Shorter slices and less ageing
    #[arg(long)]
    quick: bool,
    /// Only this FTL (repeatable)
    #[arg(long, value_enum, value_name = "FTL")]
    ftl: Vec<FtlKind>,
    /// Only this size, GB (repeatable)
    #[arg(long, value_name = "GB", value_parser = clap::value_parser!(u32).range(1..=128))]
    size: Vec<u32>,
    /// Only this load (repeatable)
    #[arg(long, value_enum, value_name = "LOAD")]
    load: Vec<Load>,
    /// Seconds without work between two cells, for a machine that others use
    #[arg(long, value_name = "S", default_value_t = 0)]
    rest: u64,
    /// Where the raw results go: compressed JSON, as it is committed
    #[arg(long, value_name = "FILE", default_value = "target/bench/flash.json.zst")]
    raw: PathBuf,
    /// Measure nothing: print the tables of these raw results
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Which block page map and DFTL collect
    #[arg(long, value_enum, default_value = "greedy")]
    gc_policy: GcPolicy,
    /// Another build of this program: it measures each cell too, slice by slice in turn, and the ratio is shown
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
    /// One cell, as the parent process describes it
    #[arg(long, hide = true)]
    cell: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.cell {
        Some(cell) => apart::serve(cell),
        None => run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench flash: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A line, or several, on stdout, at once. A reader that went away ends the run with a sentence; what was measured is in the
/// file.
fn say(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| format!("cannot write to stdout: {e}"))
}

/// What a cell is measured beside.
struct Beside<'a> {
    /// The peer at the size of the last cell: it is kept, because filling it takes longer than its slices.
    peer: Option<(u32, Apart)>,
    /// Another build.
    build: Option<&'a Path>,
}

impl Beside<'_> {
    /// Measures a cell in a process of its own, and in turn with each of its slices the peer, and another build if there is one.
    fn measure(&mut self, cell: &Cell, slices: usize) -> Result<Row, String> {
        let this = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut ours = Apart::start(&this, cell)?;
        let mut theirs = self.build.map(|program| Apart::start(program, cell)).transpose()?;
        // Kept only when all goes well, so that a failure costs no more than its cell.
        let mut peer = match self.peer.take() {
            Some((size_gb, peer)) if size_gb == cell.size_gb => peer,
            _ => Apart::start(&this, &cell.peer())?,
        };
        let mut rates = Vec::with_capacity(slices);
        for slice in 0..slices {
            // Who goes first changes, so that none always follows the same other.
            if slice % 2 == 0 {
                ours.turn()?;
            }
            rates.extend(peer.turn()?);
            if let Some(theirs) = &mut theirs {
                theirs.turn()?;
            }
            if slice % 2 == 1 {
                ours.turn()?;
            }
        }
        self.peer = Some((cell.size_gb, peer));
        Ok(Row::new(cell, ours.finish()?, rates, theirs.map(Apart::finish).transpose()?))
    }
}

fn cells(args: &Args) -> Vec<Cell> {
    let (age_ms, slice_ms) = if args.quick { (3_000, 250) } else { (60_000, 1_000) };
    let sizes = if args.size.is_empty() { vec![1, 32] } else { args.size.clone() };
    let mut cells = Vec::new();
    for size_gb in sizes {
        for (ftl, kind) in FtlKind::ALL.into_iter().enumerate() {
            for load in Load::ALL {
                let wanted = (args.ftl.is_empty() || args.ftl.contains(&kind))
                    && (args.load.is_empty() || args.load.contains(&load));
                if wanted {
                    cells.push(Cell {
                        ftl,
                        size_gb,
                        load,
                        gc_policy: args.gc_policy,
                        age_ms,
                        slice_ms,
                        bare: false,
                    });
                }
            }
        }
    }
    cells
}

fn tables(path: &Path) -> Result<(), String> {
    let report = afterimage_results::read::<Report>(path, "flash").map_err(|e| e.to_string())?.results;
    let beside = report.rows.iter().any(|row| row.beside.is_some());
    say(&format!("{}\n\n{}", report.machine, report::header(beside)))?;
    report.rows.iter().try_for_each(|row| say(&row.line()))?;
    say(&format!("\n{}", report::parse_table(&report.parsed)))?;
    say(&format!("\n{}", published::table(&report.rows)))
}

fn run(args: &Args) -> Result<(), String> {
    if let Some(path) = &args.tables {
        return tables(path);
    }
    let mut report = Report::new(args.quick);
    say(&report.machine)?;
    if let Some(program) = &args.beside {
        say(&format!("beside {}, each slice in turn", program.display()))?;
    }
    say(&format!("\n{}", report::header(args.beside.is_some())))?;
    let slices = if args.quick { 3 } else { 7 };
    let mut failed = 0;
    let cells = cells(args);
    let mut beside = Beside { peer: None, build: args.beside.as_deref() };
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            std::thread::sleep(Duration::from_secs(args.rest));
        }
        eprintln!("bench flash: {} of {}: {}", i + 1, cells.len(), cell.name());
        // The others are worth having when one fails.
        match beside.measure(cell, slices) {
            Ok(row) => {
                let line = row.line();
                report.rows.push(row);
                // What is measured stays if the rest is interrupted.
                report.write(&args.raw)?;
                say(&line)?;
            }
            Err(error) => {
                eprintln!("bench flash: {error}");
                failed += 1;
            }
        }
    }
    let (requests, rounds) = if args.quick { (300_000, 3) } else { (2_000_000, 7) };
    report.parsed = parse::all(requests, rounds)?;
    say(&format!("\n{}", report::parse_table(&report.parsed)))?;
    say(&format!("\n{}", published::table(&report.rows)))?;
    report.write(&args.raw)?;
    match failed {
        0 => Ok(()),
        n => Err(format!("{n} cells have no result")),
    }
}
