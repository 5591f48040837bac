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

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use afterimage_bench_kit::{say, Bench, BenchError, Common, Result};
use afterimage_flash::config::GcPolicy;
use afterimage_flash::FtlKind;
use clap::Parser;

use apart::Apart;
use cell::{Cell, Load};
use report::{Report, Row};

/// Measure the SSD simulator: page writes a second and peak memory, beside other simulators' published figures
#[derive(Parser, Debug)]
struct Args {
    #[command(flatten)]
    common: Common,
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
    afterimage_bench_kit::main("bench flash", |args: &Args| match &args.cell {
        Some(cell) => Ok(apart::serve(cell).map(|()| true)?),
        None => run(args),
    })
}

/// The simulator, its peer and another build, slice by slice in turn.
struct Turns<'a> {
    args: &'a Args,
    slices: usize,
    /// The peer at the size of the last cell: it is kept, because filling it takes longer than its slices.
    peer: Option<(u32, Apart)>,
    report: Report,
}

impl Bench for Turns<'_> {
    type Cell = Cell;
    type Outcome = Row;

    fn name(&self, cell: &Cell) -> String {
        cell.name()
    }

    /// Each in a process of its own.
    fn measure(&mut self, cell: &Cell) -> Result<(Row, String)> {
        if !self.report.rows.is_empty() {
            std::thread::sleep(Duration::from_secs(self.args.rest));
        }
        let this = std::env::current_exe()?;
        let mut ours = Apart::start(&this, cell)?;
        let mut theirs = self.args.beside.as_ref().map(|program| Apart::start(program, cell)).transpose()?;
        // Kept only when all goes well, so that a failure costs no more than its cell.
        let mut peer = match self.peer.take() {
            Some((size_gb, peer)) if size_gb == cell.size_gb => peer,
            _ => Apart::start(&this, &cell.peer())?,
        };
        let mut rates = Vec::with_capacity(self.slices);
        for slice in 0..self.slices {
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
        let row = Row::new(cell, ours.finish()?, rates, theirs.map(Apart::finish).transpose()?)?;
        let words = row.words();
        Ok((row, words))
    }

    /// What is measured stays if the rest is interrupted.
    fn keep(&mut self, row: Row) -> Result<()> {
        self.report.rows.push(row);
        self.report.write(&self.args.raw)
    }
}

fn cells(args: &Args) -> Vec<Cell> {
    let (age_ms, slice_ms) = if args.common.quick { (3_000, 250) } else { (60_000, 1_000) };
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

/// Whether every cell came to a result.
fn run(args: &Args) -> Result<bool> {
    let quick = args.common.quick;
    if let Some(path) = &args.common.tables {
        return say(&afterimage_bench_kit::read::<Report>(path, "flash")?.tables()).map(|()| true);
    }
    let slices = if quick { 3 } else { 7 };
    let mut turns = Turns { args, slices, peer: None, report: Report::new(quick) };
    let failed = afterimage_bench_kit::run(&mut turns, &cells(args), 0, Duration::ZERO)?;
    let (requests, rounds) = if quick { (300_000, 3) } else { (2_000_000, 7) };
    turns.report.parsed = parse::all(requests, rounds).map_err(BenchError::Workload)?;
    say(&turns.report.tables())?;
    turns.report.write(&args.raw)?;
    Ok(failed.is_empty())
}
