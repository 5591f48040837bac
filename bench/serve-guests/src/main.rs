//! `afterimage-bench-guests`: vDrive's workloads (§ 3, § 6) in real guests, beside qemu-storage-daemon.
//!
//! ```text
//!   catalogue × scale ─► plan (interleaved) ─► cell: template ─► stage ─► daemon ─► guest ─► outcome
//!                                                │
//!                                                ▼
//!                     serve-guests.cells.jsonl ─► summary (ratios) ─► .json, .md, .html
//! ```
//! A cell that is finished is one line of the cells file, written at once: Ctrl-C, a crash or a power cut costs
//! the running cell only, and the next run goes on from there.

mod catalog;
mod cell;
mod daemon;
mod error;
mod outcome;
mod plan;
mod plot;
mod record;
mod report;
mod scale;
mod script;
mod stage;
mod summary;
mod template;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::EnvFilter;

use catalog::Device;
use error::{Context, Result};
use record::Store;
use scale::Scale;

/// Runs vDrive's workloads in real guests on qemu-storage-daemon and on each contract of afterimage
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-guests", version)]
struct Options {
    /// Small sizes, and only the devices hdd15k and hdd15k-ext4: about a quarter of an hour
    #[arg(long)]
    quick: bool,
    /// Only these cells: workload/device/row, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// These devices [default: hdd15k,hdd15k-ext4 with --quick, else all]
    #[arg(long, value_enum, value_delimiter = ',')]
    device: Vec<Device>,
    /// How often each cell is run [default: 1 with --quick, else 2]
    #[arg(long)]
    rounds: Option<u32>,
    /// Before each cell, wait for the rest of the machine to be idle, for at most this many seconds
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    calm: u64,
    /// Forget finished cells
    #[arg(long)]
    fresh: bool,
    /// Measure nothing: print the tables of the finished cells as Markdown, the paper's figures beside
    #[arg(long)]
    markdown: bool,
    /// Measure nothing: print the tables of these raw results as --markdown does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "fresh"])]
    tables: Option<PathBuf>,
    /// Where results go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("AFTERIMAGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("afterimage-bench-guests: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    if let Some(path) = &options.tables {
        let (scale, records) = report::read(path)?;
        let lines = summary::lines(&records);
        print!("{}", report::markdown(&scale, &lines, &summary::verdicts(&lines)));
        print!("\n### The paper beside\n\n{}", report::paper_table(&lines));
        return Ok(true);
    }
    let scale = if options.quick { Scale::quick() } else { Scale::full() };
    fs::create_dir_all(&options.out).context(|| format!("make {}", options.out.display()))?;
    let cells_path = options.out.join("serve-guests.cells.jsonl");
    let store = Store::open(&cells_path, &scale, options.fresh && !options.markdown)?;
    if options.markdown {
        print!("{}", report::write(&options.out, &scale, store.records())?);
        print!("\n### The paper beside\n\n{}", report::paper_table(&summary::lines(store.records())));
        return Ok(true);
    }
    let devices = match (&options.device[..], options.quick) {
        ([], true) => vec![Device::Hdd15k, Device::Hdd15kExt4],
        ([], false) => Device::ALL.to_vec(),
        (named, _) => named.to_vec(),
    };
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 2 });
    let keys = plan::cells(&devices, rounds, &options.only)?;

    // On Ctrl-C the report is written from what is finished; the guards of the lab's processes see our end and
    // kill, unmount and remove whatever is running.
    let (out, cells, for_signal) = (options.out.clone(), cells_path, scale.clone());
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context(|| "wait for signals".to_owned())?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let written = Store::open(&cells, &for_signal, false)
                .and_then(|store| report::write(&out, &for_signal, store.records()));
            match written {
                Ok(_) => eprintln!("\nstopped; finished cells are kept, run again to go on"),
                Err(error) => eprintln!("\nstopped; {error}"),
            }
            // Dies of the signal, as whoever sent it expects.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    let failed = plan::run(&keys, &scale, store, &options.out, Duration::from_secs(options.calm))?;
    let store = Store::open(&options.out.join("serve-guests.cells.jsonl"), &scale, false)?;
    println!("{}", report::write(&options.out, &scale, store.records())?);
    for (key, error) in &failed {
        eprintln!("{} failed in round {}: {error}", key.path(), key.round);
    }
    eprintln!("results: {}", options.out.join("serve-guests.{json.zst,md,html}").display());
    Ok(failed.is_empty())
}
