//! `afterimage-bench-vma`: the evaluation of VMA journaling (§ 5) in real guests.
//!
//! ```text
//!   figures × scale ─► plan ─► cell: template ─► stage ─► daemons ─► guests ─► outcome ─► cells/NAME.json
//!                                                                                          │
//!                              target/bench/vma/SCALE/{vma.json.zst,vma.md,vma.html} ◄─ summary┘
//! ```
//! A cell that is finished is one file, written at once: Ctrl-C, a crash or a power cut costs the running cell only,
//! and the next run goes on from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use afterimage_bench_vma::catalog::{Device, Figure, Mode, Workload};
use afterimage_bench_vma::cell::Bench;
use afterimage_bench_vma::error::{Context, Result};
use afterimage_bench_vma::plan::{self, Selection};
use afterimage_bench_vma::record::Store;
use afterimage_bench_vma::report;
use afterimage_bench_vma::scale::Scale;
use afterimage_bench_vma::source::Sources;
use afterimage_bench_vma::template::Templates;
use afterimage_lab::locate;
use afterimage_lab::process::Workdir;
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::EnvFilter;

/// Runs the evaluation of VMA journaling in real guests: journal modes, retention, bounds, recovery
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-vma", version)]
struct Options {
    /// Small sizes, one guest, the device hdd15k, one round
    #[arg(long)]
    quick: bool,
    /// Which parts of the paper's evaluation [default: all; main and table3 with --quick]
    #[arg(long, value_enum, value_delimiter = ',')]
    figures: Vec<Figure>,
    /// Only these cells: WORKLOAD/DEVICE/MODE/xGUESTS/CONTRACT, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Only these workloads [default: all; all but build with --quick]
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Only these modes
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// How many guests at once, as in 1,2,4,8 [default: 1,8; 1 with --quick]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32))]
    guests: Vec<u32>,
    /// What holds the images [default: all; hdd15k with --quick]
    #[arg(long, value_enum, value_delimiter = ',')]
    devices: Vec<Device>,
    /// Contracts, as in guest-crash,power-window=50ms
    #[arg(long, value_delimiter = ',', default_value = "guest-crash")]
    survives: Vec<String>,
    /// How often each cell is run [default: 3; 1 with --quick]
    #[arg(long)]
    rounds: Option<u32>,
    /// Passed on to `serve --retain-max`
    #[arg(long, value_name = "SIZE")]
    retain_max: Option<String>,
    /// A guest that takes longer than this many seconds is killed, and its cell fails
    #[arg(long, default_value_t = 10_800, value_name = "SECONDS")]
    limit: u64,
    /// Before each cell, wait for the rest of the machine to be idle, for at most this many seconds
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    calm: u64,
    /// Run these cells again even if they are finished
    #[arg(long)]
    fresh: bool,
    /// Say which cells would be run, and run none
    #[arg(long)]
    list: bool,
    /// Measure nothing: write the reports of the finished cells and print the tables as Markdown
    #[arg(long)]
    report: bool,
    /// With --report: put the tables into this file, between its lines `<!-- results: SCALE -->` (full
    /// or quick) and `<!-- end -->`
    #[arg(long, value_name = "FILE", requires = "report")]
    into: Option<PathBuf>,
    /// Measure nothing: print the tables of these raw results as Markdown
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "report"])]
    tables: Option<PathBuf>,
    /// Where results go
    #[arg(long, default_value = "target/bench/vma")]
    out: PathBuf,
}

/// All but the last, the build: a fork costs User Mode Linux so much that even one folder of a kernel takes minutes.
const QUICK_WORKLOADS: usize = Workload::ALL.len() - 1;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("AFTERIMAGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("afterimage-bench-vma: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    if let Some(path) = &options.tables {
        let (scale, store) = report::read(path)?;
        print!("{}", report::markdown(&scale, &store));
        return Ok(true);
    }
    let scale = if options.quick { Scale::quick() } else { Scale::full() };
    let folder = options.out.join(&scale.name);
    let cells_folder = folder.join("cells");
    let mut store = Store::open(&cells_folder, &scale)?;
    if options.report {
        let text = report::write(&folder, &scale, &store)?;
        print!("{text}");
        return options
            .into
            .as_ref()
            .map_or(Ok(true), |path| report::insert(path, &scale, &text).map(|()| true));
    }
    let keys = plan::cells(&selection(options))?;
    if options.list {
        for key in &keys {
            let state = if store.get(key).is_some() { "finished" } else { "to do" };
            println!("{} round {}: {state}", key.path(), key.round);
        }
        return Ok(true);
    }
    if options.fresh {
        store.forget(&keys)?;
    }
    report_on_signals(&folder, &cells_folder, &scale)?;

    let sources = Sources::at(&locate::cache_folder(), &scale);
    // In memory: copying a template must not warm or wear the device under test.
    let templates_folder = Workdir::new_in(Path::new("/dev/shm"), "vma-templates")?;
    let mut templates = Templates::new(templates_folder.path().to_owned(), scale.clone(), sources.clone());
    let bench = Bench {
        scale: &scale,
        sources: &sources,
        scratch: &folder.join("scratch"),
        evidence: &folder.join("evidence"),
        retain_max: options.retain_max.as_deref(),
        limit: Duration::from_secs(options.limit),
        traces: None,
    };
    let failed = plan::run(&keys, &bench, &mut store, &mut templates, Duration::from_secs(options.calm))?;
    println!("{}", report::write(&folder, &scale, &store)?);
    for (key, error) in &failed {
        eprintln!("{} failed in round {}: {error}", key.path(), key.round);
    }
    eprintln!("results: {}", folder.join("vma.{json.zst,md,html}").display());
    Ok(failed.is_empty())
}

fn selection(options: &Options) -> Selection {
    fn or<T: Clone>(named: &[T], default: &[T]) -> Vec<T> {
        if named.is_empty() { default } else { named }.to_vec()
    }
    let quick = options.quick;
    let figures: &[Figure] = if quick { &[Figure::Main, Figure::Table3] } else { &Figure::ALL };
    let devices: &[Device] = if quick { &[Device::Hdd15k] } else { &Device::ALL };
    let guests: &[u32] = if quick { &[1] } else { &[1, 8] };
    Selection {
        figures: or(&options.figures, figures),
        workloads: or(
            &options.workloads,
            if quick { &Workload::ALL[..QUICK_WORKLOADS] } else { &Workload::ALL },
        ),
        devices: or(&options.devices, devices),
        modes: or(&options.modes, &Mode::ALL),
        guests: or(&options.guests, guests),
        contracts: options.survives.clone(),
        rounds: options.rounds.unwrap_or(if quick { 1 } else { 3 }),
        only: options.only.clone(),
    }
}

/// On Ctrl-C the report is written from what is finished; the guards of the lab's processes see our end and kill,
/// unmount and remove whatever is running.
fn report_on_signals(folder: &Path, cells: &Path, scale: &Scale) -> Result<()> {
    let (folder, cells, scale) = (folder.to_owned(), cells.to_owned(), scale.clone());
    fs::create_dir_all(&folder).context(|| format!("make {}", folder.display()))?;
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context(|| "wait for signals".to_owned())?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let written =
                Store::open(&cells, &scale).and_then(|store| report::write(&folder, &scale, &store));
            match written {
                Ok(_) => eprintln!("\nstopped; finished cells are kept, run again to go on"),
                Err(error) => eprintln!("\nstopped; {error}"),
            }
            // Dies of the signal, as whoever sent it expects.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}
