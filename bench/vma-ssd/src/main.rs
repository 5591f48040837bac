//! `afterimage-bench-vma-ssd`: the study of VMA journaling on SSDs, with our guests, our retention and our simulator.
//!
//! ```text
//!   guests (cells of bench/vma), daemons with --trace ─► traces/WORKLOAD_MODE ─► simulator: FTLs × ways to age
//!                                                                                        │
//!                          target/bench/vma-ssd/SCALE/{vma-ssd.json.zst,vma-ssd.md,vma-ssd.html} ◄─ results/NAME.json
//! ```
//! A finished trace is a folder, a finished simulation a file, each put there at once: Ctrl-C costs what is running,
//! and the next run goes on from there.

mod capture;
mod findings;
mod html;
mod record;
mod simulate;
mod study;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use afterimage_bench_vma::catalog::{Device, Mode, Workload};
use afterimage_bench_vma::error::{BenchError, Context, Result};
use afterimage_bench_vma::report;
use afterimage_bench_vma::scale::Scale;
use afterimage_flash::sim::Control;
use afterimage_flash::FtlKind;
use clap::Parser;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::EnvFilter;

use capture::Plan;
use findings::Findings;
use record::{Age, Captured, Simulated, Store};
use simulate::Drives;
use study::Variant;

/// Traces guests under four ways of journaling and plays them on FAST, Superblock and DFTL
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-vma-ssd", version)]
struct Options {
    /// Small sizes, 4 guests, file-delete instead of the build
    #[arg(long)]
    quick: bool,
    /// Only these workloads [default: the study's five and file-delete; with --quick all but build]
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Only these modes: writeback, ordered, journal, journal-retain [default: all four]
    #[arg(long, value_enum, value_delimiter = ',')]
    modes: Vec<Mode>,
    /// FTLs [default: fast,superblock,dftl]
    #[arg(long, value_enum, value_delimiter = ',')]
    ftls: Vec<FtlKind>,
    /// How drives are aged [default: both]
    #[arg(long, value_enum, value_delimiter = ',')]
    ages: Vec<Age>,
    /// How many guests at once [default: 8; 4 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=32))]
    guests: Option<u32>,
    /// What holds the images while guests are traced
    #[arg(long, value_enum, default_value = "hdd15k")]
    device: Device,
    /// A guest that takes longer than this many seconds is killed, and its trace fails
    #[arg(long, default_value_t = 10_800, value_name = "SECONDS")]
    limit: u64,
    /// Before each trace, wait for the rest of the machine to be idle, for at most this many seconds
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    calm: u64,
    /// Make the chosen traces again even if they are there
    #[arg(long)]
    fresh: bool,
    /// Say which traces would be made, and make none
    #[arg(long)]
    list: bool,
    /// Run no guest: simulate the traces that are there, write the reports and print the tables as Markdown
    #[arg(long)]
    report: bool,
    /// With --report: put the tables into this file, between its lines `<!-- results: SCALE -->` (full
    /// or quick) and `<!-- end -->`
    #[arg(long, value_name = "FILE", requires = "report")]
    into: Option<PathBuf>,
    /// Run and simulate nothing: print the tables of these raw results as Markdown
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "report"])]
    tables: Option<PathBuf>,
    /// Where traces and results go
    #[arg(long, default_value = "target/bench/vma-ssd")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("AFTERIMAGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("afterimage-bench-vma-ssd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for, complete.
#[derive(Clone, Debug)]
struct Chosen {
    scale: Scale,
    guests: u32,
    device: Device,
    workloads: Vec<Workload>,
    modes: Vec<Mode>,
    ftls: Vec<FtlKind>,
    ages: Vec<Age>,
}

impl Chosen {
    fn new(options: &Options) -> Result<Self> {
        fn or<T: Clone>(named: &[T], default: &[T]) -> Vec<T> {
            if named.is_empty() { default } else { named }.to_vec()
        }
        let modes = or(&options.modes, &Variant::TRACED.map(Variant::mode));
        if let Some(other) = modes.iter().find(|m| !Variant::TRACED.iter().any(|v| v.mode() == **m)) {
            return Err(BenchError::Usage(format!(
                "--modes {}: the study has writeback, ordered, journal and journal-retain",
                other.name()
            )));
        }
        let quick: Vec<Workload> = Workload::ALL.into_iter().filter(|w| *w != Workload::Build).collect();
        Ok(Self {
            scale: if options.quick { Scale::quick() } else { Scale::full() },
            guests: options.guests.unwrap_or(if options.quick { 4 } else { 8 }),
            device: options.device,
            workloads: or(&options.workloads, if options.quick { &quick } else { &Workload::ALL }),
            modes,
            ftls: or(&options.ftls, &[FtlKind::Fast, FtlKind::Superblock, FtlKind::Dftl]),
            ages: or(&options.ages, &Age::ALL),
        })
    }

    fn store(&self, out: &Path) -> Store {
        Store::new(out, &self.scale, self.guests, self.device)
    }

    fn cells(&self) -> Vec<(Workload, Mode)> {
        self.workloads.iter().flat_map(|w| self.modes.iter().map(|m| (*w, *m))).collect()
    }

    /// What can be simulated of what is there.
    fn drives(&self, store: &Store) -> Result<Vec<Drives>> {
        let mut all = Vec::new();
        for workload in &self.workloads {
            let captured = |variant: &Variant| match self.modes.contains(&variant.mode()) {
                true => store.captured(*workload, variant.mode()),
                false => Ok(None),
            };
            let (mut variants, mut traces) = (Vec::new(), Vec::new());
            for variant in Variant::ALL {
                variants.extend(captured(&variant)?.map(|_| variant));
            }
            for variant in Variant::TRACED {
                traces.extend(captured(&variant)?.map(|found| found.at_ns));
            }
            if !variants.is_empty() {
                let (ftls, ages) = (self.ftls.clone(), self.ages.clone());
                all.push(Drives { workload: *workload, variants, traces, ftls, ages });
            }
        }
        Ok(all)
    }

    fn findings(&self, store: &Store) -> Result<Findings> {
        let drives = self.drives(store)?;
        Findings::read(store, &self.scale, self.guests, self.device, &self.ftls, &drives)
    }
}

/// Whether everything came to a result.
fn run(options: &Options) -> Result<bool> {
    if let Some(path) = &options.tables {
        let Results { scale, guests, device, ftls, simulated, .. } =
            afterimage_results::read(path, "vma-ssd")?.results;
        print!("{}", tables::all(&Findings::of(&scale, guests, device, &ftls, simulated)));
        return Ok(true);
    }
    let chosen = Chosen::new(options)?;
    let store = chosen.store(&options.out);
    let cells = chosen.cells();
    if options.list {
        for (workload, mode) in &cells {
            let state = if store.captured(*workload, *mode)?.is_some() { "traced" } else { "to do" };
            println!("{}/{}/x{}: {state}", workload.name(), mode.name(), chosen.guests);
        }
        return Ok(true);
    }
    report_on_signals(&chosen, &options.out)?;
    let mut failed = Vec::new();
    if !options.report {
        if options.fresh {
            for (workload, mode) in &cells {
                let folder = store.trace_folder(*workload, *mode);
                if folder.exists() {
                    fs::remove_dir_all(&folder).context(|| format!("remove {}", folder.display()))?;
                }
            }
        }
        let plan = Plan {
            scale: &chosen.scale,
            guests: chosen.guests,
            device: chosen.device,
            cells: &cells,
            limit: Duration::from_secs(options.limit),
            patience: Duration::from_secs(options.calm),
        };
        failed = capture::run(&plan, &store)?;
    }
    let control = Control::default();
    for drives in chosen.drives(&store)? {
        simulate::run(&drives, &store, chosen.guests, &control)?;
    }
    let text = write(&chosen.findings(&store)?, &store)?;
    print!("{text}");
    if let Some(path) = &options.into {
        report::insert(path, &chosen.scale, &text)?;
    }
    for (name, error) in &failed {
        eprintln!("{name} failed: {error}");
    }
    eprintln!("results: {}", store.folder().join("vma-ssd.{json.zst,md,html}").display());
    Ok(failed.is_empty())
}

/// The raw results, as they are committed: what was simulated, and how its traces came about.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    scale: Scale,
    guests: u32,
    device: Device,
    ftls: Vec<FtlKind>,
    spare: f64,
    captured: Vec<Captured>,
    simulated: Vec<Simulated>,
}

/// Writes the raw results and the tables, and returns these as Markdown.
fn write(findings: &Findings, store: &Store) -> Result<String> {
    fs::create_dir_all(store.folder()).context(|| format!("make {}", store.folder().display()))?;
    let mut captured = Vec::new();
    for workload in Workload::ALL {
        for variant in Variant::TRACED {
            captured.extend(store.captured(workload, variant.mode())?);
        }
    }
    let results = Results {
        scale: findings.scale.clone(),
        guests: findings.guests,
        device: findings.device,
        ftls: findings.ftls.clone(),
        spare: simulate::SPARE,
        captured,
        simulated: findings.results().cloned().collect(),
    };
    afterimage_results::write(&store.folder().join("vma-ssd.json.zst"), "vma-ssd", &results)?;
    let markdown = tables::all(findings);
    for (name, text) in [("vma-ssd.md", &markdown), ("vma-ssd.html", &html::page(findings))] {
        report::put(&store.folder().join(name), text)?;
    }
    Ok(markdown)
}

/// On Ctrl-C the reports are written from what is finished; the guards of the lab's processes see our end and kill,
/// unmount and remove whatever is running.
fn report_on_signals(chosen: &Chosen, out: &Path) -> Result<()> {
    let (chosen, out) = (chosen.clone(), out.to_owned());
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context(|| "wait for signals".to_owned())?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let store = chosen.store(&out);
            match chosen.findings(&store).and_then(|findings| write(&findings, &store)) {
                Ok(_) => eprintln!("\nstopped; what is finished is kept, run again to go on"),
                Err(error) => eprintln!("\nstopped; {error}"),
            }
            // Dies of the signal, as whoever sent it expects.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}
