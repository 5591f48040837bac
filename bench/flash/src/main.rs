//! How fast the SSD simulator is, and how much memory it takes: every FTL at 1 GB and 32 GB under four loads, and the
//! trace readers, beside what is published of other simulators.
//!
//! ```text
//! main ─► a process of its own for each cell (its peak memory is the cell's) ─► table, JSON
//!      └► trace readers, from memory
//! ```
//!
//! Rates are by processor time, on one thread: other work on the machine slows them through caches and clock only.

mod cell;
mod parse;
mod published;
mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use afterimage_flash::config::GcPolicy;
use afterimage_flash::FtlKind;
use clap::Parser;

use cell::{Cell, Load, Outcome};
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
    /// Where the results go
    #[arg(long, value_name = "FILE", default_value = "target/bench/flash.json")]
    json: PathBuf,
    /// Which block page map and DFTL collect
    #[arg(long, value_enum, default_value = "greedy")]
    gc_policy: GcPolicy,
    /// One cell, as the parent process describes it
    #[arg(long, hide = true)]
    cell: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.cell {
        Some(cell) => child(cell),
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

fn child(text: &str) -> Result<(), String> {
    let cell: Cell = serde_json::from_str(text).map_err(|e| format!("'{text}' is not a cell: {e}"))?;
    let outcome = cell::measure(&cell)?;
    println!("{}", serde_json::to_string(&outcome).map_err(|e| e.to_string())?);
    Ok(())
}

/// Measures a cell in a process of its own.
fn apart(cell: &Cell) -> Result<Outcome, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let text = serde_json::to_string(cell).map_err(|e| e.to_string())?;
    let output = Command::new(program)
        .args(["--cell", &text])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start a process for a cell: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "{} at {} GB, {}: {}",
            cell.kind(),
            cell.size_gb,
            cell.load.name(),
            output.status
        ));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("a cell's result cannot be read: {e}"))
}

fn cells(args: &Args) -> Vec<Cell> {
    let (age_ms, slice_ms, slices) = if args.quick { (3_000, 250, 3) } else { (60_000, 1_000, 7) };
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
                        slices,
                    });
                }
            }
        }
    }
    cells
}

fn run(args: &Args) -> Result<(), String> {
    let mut report = Report::new(args.quick);
    println!("{}", report.machine);
    println!("\n{}", report::header());
    let mut failed = 0;
    let cells = cells(args);
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            std::thread::sleep(Duration::from_secs(args.rest));
        }
        eprintln!(
            "bench flash: {} of {}: {} at {} GB, {}",
            i + 1,
            cells.len(),
            cell.kind(),
            cell.size_gb,
            cell.load.name()
        );
        // The others are worth having when one fails.
        match apart(cell) {
            Ok(outcome) => {
                let row = Row::new(cell, outcome);
                println!("{}", row.line());
                report.rows.push(row);
                // What is measured stays if the rest is interrupted.
                report.write(&args.json)?;
            }
            Err(error) => {
                eprintln!("bench flash: {error}");
                failed += 1;
            }
        }
    }
    let (requests, rounds) = if args.quick { (300_000, 3) } else { (2_000_000, 7) };
    report.parsed = parse::all(requests, rounds)?;
    println!("\n{}", report::parse_table(&report.parsed));
    println!("\n{}", published::table(&report.rows));
    report.write(&args.json)?;
    match failed {
        0 => Ok(()),
        n => Err(format!("{n} cells have no result")),
    }
}
