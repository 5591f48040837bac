//! `afterimage-bench-guests`: vDrive's workloads (§ 3, § 6) in real guests, beside qemu-storage-daemon.
//!
//! ```text
//!   catalogue × scale ─► plan (interleaved) ─► cell: template ─► stage ─► daemon ─► guest ─► outcome
//!                                                │
//!                                                ▼
//!                     serve-guests.cells/SCALE ─► summary (ratios) ─► .json, .md, .html
//! ```
//! A cell that is finished is one file, written at once: Ctrl-C, a crash or a power cut costs
//! the running cell only, and the next run goes on from there.

mod catalog;
mod cell;
mod daemon;
mod html;
mod outcome;
mod plan;
mod record;
mod report;
mod scale;
mod script;
mod stage;
mod summary;
mod template;
mod virtual_time;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use afterimage_bench_kit::seeded::SeededOptions;
use afterimage_bench_kit::{insert, say, write_on_signals, Common, Earlier, Result, Resume};
use afterimage_lab::process::Workdir;
use afterimage_report::note;
use clap::Parser;

use catalog::Device;
use plan::Run;
use record::Store;
use scale::Scale;
use template::Templates;
use virtual_time::work::Figure;

/// Runs vDrive's workloads in real guests on qemu-storage-daemon and on each contract of afterimage
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-guests", version)]
#[command(mut_arg("quick", |a| a.help("Small sizes, and only the devices hdd15k and hdd15k-ext4: about a quarter of an hour")))]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    resume: Resume,
    #[command(flatten)]
    earlier: Earlier,
    /// Only these cells: workload/device/row, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// These devices [default: hdd15k,hdd15k-ext4 with --quick, else all]
    #[arg(long, value_enum, value_delimiter = ',')]
    device: Vec<Device>,
    /// How often each cell is run [default: 1 with --quick, else 2]
    #[arg(long)]
    rounds: Option<u32>,
    /// Virtual time instead (docs/virtual-time.md): the paper's Figs. 3, 4 and 6 at its sizes, with models of its peers; hours. --only
    /// takes work/model/arm, as in varmail/hdd10k/window
    #[arg(long = "virtual", conflicts_with_all = ["quick", "device", "rounds"])]
    in_virtual_time: bool,
    /// With --virtual: these figures
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Figure::ALL, requires = "in_virtual_time")]
    figures: Vec<Figure>,
    /// With --virtual: seeds 1 to this, all cells of one before the next
    #[arg(long, default_value_t = 5, requires = "in_virtual_time")]
    seeds: u64,
    /// With --virtual: cells that run at once
    #[arg(long, default_value_t = 2, requires = "in_virtual_time")]
    at_once: usize,
    /// Where results go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-guests", run)
}

/// The tables, and the paper's figures beside.
fn say_with_paper(markdown: &str, store: &Store) -> Result<()> {
    let paper = report::paper_table(&summary::lines(store.records()));
    say(&format!("{markdown}\n### The paper beside\n\n{paper}"))
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let (common, resume, out) = (&options.common, &options.resume, &options.out);
    if options.in_virtual_time {
        let seeded = SeededOptions {
            common: common.clone(),
            resume: resume.clone(),
            earlier: options.earlier.clone(),
            only: options.only.clone(),
            seeds: Some(options.seeds),
            at_once: options.at_once,
            out: out.clone(),
        };
        return virtual_time::run(&seeded, &options.figures);
    }
    if let Some(path) = &common.tables {
        let (scale, store) = report::read(path)?;
        let lines = summary::lines(store.records());
        let markdown = report::markdown(&scale, &lines, &summary::verdicts(&lines));
        return say_with_paper(&markdown, &store).map(|()| true);
    }
    let scale = if common.quick { Scale::quick() } else { Scale::full() };
    let cells = out.join("serve-guests.cells").join(&scale.name);
    let mut store = Store::open(&cells, |record| record.scale == scale)?;
    if let Some(path) = &options.earlier.from {
        let (_, earlier) = report::read(path)?;
        store.adopt(earlier.records().filter(|record| record.scale == scale).cloned(), resume)?;
    }
    if resume.report {
        let text = report::write(out, &scale, &store)?;
        say_with_paper(&text, &store)?;
        return resume.into.as_ref().map_or(Ok(true), |path| insert(path, &scale.name, &text).map(|()| true));
    }
    let devices = match (&options.device[..], common.quick) {
        ([], true) => vec![Device::Hdd15k, Device::Hdd15kExt4],
        ([], false) => Device::ALL.to_vec(),
        (named, _) => named.to_vec(),
    };
    let rounds = options.rounds.unwrap_or(if common.quick { 1 } else { 2 });
    let keys = plan::cells(&devices, rounds, &options.only)?;
    let Some(todo) = store.to_run(&keys, resume)? else { return Ok(true) };
    let (out_then, cells_then, scale_then) = (out.clone(), cells, scale.clone());
    write_on_signals(move || {
        let store = Store::open(&cells_then, |record| record.scale == scale_then)?;
        report::write(&out_then, &scale_then, &store).map(drop)
    })?;
    // In memory: copying a template must not warm or wear the device under test.
    let folder = Workdir::new_in(Path::new("/dev/shm"), "bench-templates")?;
    let templates = Templates::new(folder.path().to_owned(), scale.clone());
    let mut run = Run { scale: &scale, scratch: &out.join("scratch"), store, templates };
    let (kept, patience) = (keys.len() - todo.len(), Duration::from_secs(resume.calm));
    let failed = afterimage_bench_kit::run(&mut run, &todo, kept, patience)?;
    say(&report::write(out, &scale, &run.store)?)?;
    note(&format!("results: {}\n", out.join("serve-guests.{json.zst,md,html}").display()));
    Ok(failed.is_empty())
}
