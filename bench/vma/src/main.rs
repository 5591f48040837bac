//! `afterimage-bench-vma`: the evaluation of VMA journaling (§ 5) in real guests.
//!
//! ```text
//!   figures × scale ─► plan ─► cell, in virtual time or on the machine's disk ─► outcome ─► cells/NAME.json
//!                                                                                          │
//!                              target/bench/vma/SCALE/{vma.json.zst,vma.md,vma.html} ◄─ summary┘
//! ```
//! A cell that is finished is one file, written at once: Ctrl-C, a crash or a power cut costs the running cell only,
//! and the next run goes on from there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{
    insert, run_at_once, say, write_on_signals, CellIdentity, Common, Earlier, Result, Resume,
};
use afterimage_bench_vma::bench::Bench;
use afterimage_bench_vma::catalog::{Device, Figure, Kind, Mode, Workload};
use afterimage_bench_vma::plan::{self, InRealTime, Run, Selection};
use afterimage_bench_vma::record::{CellKey, Store};
use afterimage_bench_vma::report;
use afterimage_bench_vma::scale::Scale;
use afterimage_bench_vma::source::Sources;
use afterimage_bench_vma::template::Templates;
use afterimage_bench_vma::virtual_cell::World;
use afterimage_lab::locate;
use afterimage_lab::process::Workdir;
use afterimage_report::note;
use clap::Parser;

/// Runs the evaluation of VMA journaling in real guests: journal modes, retention, bounds, recovery
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-vma", version)]
#[command(mut_arg("quick", |a| a.help("Small sizes, one guest, the device hdd15k, one round")))]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    resume: Resume,
    #[command(flatten)]
    earlier: Earlier,
    /// Which parts of the paper's evaluation [default: all; main and table3 with --quick]
    #[arg(long, value_enum, value_delimiter = ',')]
    figures: Vec<Figure>,
    /// Only these cells: WORKLOAD/DEVICE/MODE/xGUESTS/CONTRACT, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Only these workloads [default: all but build]
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Only these modes [default: all; with several guests at once the bounds are left out]
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// How many guests at once, as in 1,2,4,8 [default: 1,2,4,8; 1 with --quick]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32))]
    guests: Vec<u32>,
    /// What holds the images [default: hdd15k, a model of the paper's disk]
    #[arg(long, value_enum, value_delimiter = ',')]
    devices: Vec<Device>,
    /// Contracts, as in guest-crash,power-window=50ms
    #[arg(long, value_delimiter = ',', default_value = "guest-crash")]
    survives: Vec<String>,
    /// How often each cell is run, with another seed each time [default: 5; 1 with --quick]
    #[arg(long)]
    rounds: Option<u32>,
    /// Passed on to `serve --retain-max`, in MiB; results are then "retain-max", and kept apart
    #[arg(long, value_name = "MIB")]
    retain_max: Option<u64>,
    /// In virtual time: what a system call costs a guest; results are then "charged", and kept apart
    #[arg(long, default_value_t = 0, value_name = "NANOSECONDS")]
    syscall_ns: u64,
    /// In virtual time: what a request costs a daemon
    #[arg(long, default_value_t = 0, value_name = "NANOSECONDS")]
    request_ns: u64,
    /// How many cells in virtual time are run at once
    #[arg(long, default_value_t = 2, value_name = "CELLS")]
    at_once: usize,
    /// A guest that takes longer than this many seconds is killed, and its cell fails
    #[arg(long, default_value_t = 10_800, value_name = "SECONDS")]
    limit: u64,
    /// Where results go
    #[arg(long, default_value = "target/bench/vma")]
    out: PathBuf,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-vma", run)
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let (common, resume) = (&options.common, &options.resume);
    if let Some(path) = &common.tables {
        let (scale, store) = report::read(path)?;
        return say(&report::markdown(&scale, &store)).map(|()| true);
    }
    let scale = if common.quick { Scale::quick() } else { Scale::full() };
    let scale = scale.charged(options.syscall_ns, options.request_ns).bounded(options.retain_max);
    let folder = options.out.join(&scale.name);
    let cells_folder = folder.join("cells");
    let mut store = Store::open(&cells_folder, &scale)?;
    if let Some(path) = &options.earlier.from {
        store.adopt(&report::read(path)?.1, &scale, resume)?;
    }
    if resume.report {
        let text = report::write(&folder, &scale, &store)?;
        say(&text)?;
        return resume.into.as_ref().map_or(Ok(true), |path| insert(path, &scale.name, &text).map(|()| true));
    }
    let keys = plan::cells(&selection(options))?;
    let Some(todo) = store.cells.to_run(&keys, resume)? else { return Ok(true) };
    let (of_signal, scale_then) = (folder.clone(), scale.clone());
    write_on_signals(move || {
        let store = Store::open(&cells_folder, &scale_then)?;
        report::write(&of_signal, &scale_then, &store).map(drop)
    })?;

    let sources = Sources::at(&locate::cache_folder(), &scale);
    // In memory: copying a template must not warm or wear the device under test.
    let templates_folder = Workdir::new_in(Path::new("/dev/shm"), "vma-templates")?;
    let bench = Bench {
        scale: &scale,
        sources: &sources,
        scratch: &folder.join("scratch"),
        evidence: &folder.join("evidence"),
        limit: Duration::from_secs(options.limit),
    };
    let templates = Templates::new(templates_folder.path().to_owned(), scale.clone(), sources.clone());
    let (modelled, real): (Vec<CellKey>, Vec<CellKey>) =
        todo.iter().cloned().partition(|key| key.device.is_model());
    let machine = if modelled.is_empty() { None } else { Some(Virtual::find()?) };
    let world = machine.as_ref().map(|machine| World {
        machine,
        scale: &scale,
        sources: &sources,
        traces: None,
        limit: bench.limit,
    });
    let run = Run { bench, world, store: Mutex::new(store), templates: Mutex::new(templates) };
    // Those that are killed want to know how long the work takes.
    let (whole, killed): (Vec<CellKey>, Vec<CellKey>) =
        modelled.into_iter().partition(|key| key.kind == Kind::Run);
    let mut kept = keys.len() - todo.len();
    let mut failures = 0;
    for cells in [whole, killed] {
        let measure = |key: &CellKey| run.measure_and_keep(key);
        failures += run_at_once(&cells, kept, options.at_once, CellKey::name, measure).len();
        kept = 0;
    }
    let patience = Duration::from_secs(resume.calm);
    failures += afterimage_bench_kit::run(&mut InRealTime(&run), &real, kept, patience)?.len();
    say(&report::write(&folder, &scale, &run.store())?)?;
    note(&format!("results: {}\n", folder.join("vma.{json.zst,md,html}").display()));
    Ok(failures == 0)
}

fn selection(options: &Options) -> Selection {
    fn or<T: Clone>(named: &[T], default: &[T]) -> Vec<T> {
        if named.is_empty() { default } else { named }.to_vec()
    }
    let quick = options.common.quick;
    let figures: &[Figure] = if quick { &[Figure::Main, Figure::Table3] } else { &Figure::ALL };
    let guests: &[u32] = if quick { &[1] } else { &[1, 2, 4, 8] };
    Selection {
        figures: or(&options.figures, figures),
        workloads: or(&options.workloads, &Workload::usual()),
        devices: or(&options.devices, &[Device::Hdd15k]),
        modes: options.modes.clone(),
        guests: or(&options.guests, guests),
        contracts: options.survives.clone(),
        rounds: options.rounds.unwrap_or(if quick { 1 } else { 5 }),
        only: options.only.clone(),
    }
}
