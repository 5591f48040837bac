//! `afterimage-bench-vma-ssd`: the study of VMA journaling on SSDs, with our guests, our retention and our simulator.
//!
//! ```text
//!   guests in virtual time (cells of bench/vma), traced ─► traces/WORKLOAD_MODE ─► simulator: FTLs × ways to age
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
use std::sync::Mutex;
use std::time::Duration;

use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{
    insert, run_at_once, say, write_all, write_on_signals, BenchError, Common, Context, Result, Resume,
};
use afterimage_bench_vma::catalog::{Device, Mode, Workload};
use afterimage_bench_vma::scale::Scale;
use afterimage_bench_vma::source::Sources;
use afterimage_bench_vma::template::Templates;
use afterimage_bench_vma::virtual_cell::World;
use afterimage_flash::control::Control;
use afterimage_flash::{Config, FtlKind};
use afterimage_lab::locate;
use afterimage_lab::process::Workdir;
use afterimage_report::note;
use clap::Parser;
use serde::{Deserialize, Serialize};

use capture::Capture;
use findings::{Findings, Setting};
use record::{Age, Captured, Simulated, Store};
use simulate::Drives;
use study::Variant;

/// Traces guests under four ways of journaling and plays them on FAST, Superblock and DFTL
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-vma-ssd", version)]
#[command(mut_arg("quick", |a| a.help("Small sizes, 4 guests")))]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    resume: Resume,
    /// Only these workloads [default: the study's five, the build's files for the build, and file-delete]
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
    /// The model that holds the images while guests are traced
    #[arg(long, value_enum, default_value = "hdd15k")]
    device: Device,
    /// Of everything random in the guests; results of one seed are kept apart from another's
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// How many workloads are traced at once
    #[arg(long, default_value_t = 2, value_name = "CELLS")]
    at_once: usize,
    /// Guests that take longer than this many seconds of real time are killed, and their traces fail
    #[arg(long, default_value_t = 10_800, value_name = "SECONDS")]
    limit: u64,
    /// Where traces and results go
    #[arg(long, default_value = "target/bench/vma-ssd")]
    out: PathBuf,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-vma-ssd", run)
}

/// What was asked for, complete.
#[derive(Clone, Debug)]
struct Chosen {
    scale: Scale,
    guests: u32,
    device: Device,
    seed: u32,
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
        if !options.device.is_model() {
            let sentence = "--device disk: guests are traced in virtual time, where only models are";
            return Err(BenchError::Usage(sentence.to_owned()));
        }
        Ok(Self {
            scale: if options.common.quick { Scale::quick() } else { Scale::full() },
            guests: options.guests.unwrap_or(if options.common.quick { 4 } else { 8 }),
            device: options.device,
            seed: options.seed,
            workloads: or(&options.workloads, &Workload::usual()),
            modes,
            ftls: or(&options.ftls, &[FtlKind::Fast, FtlKind::Superblock, FtlKind::Dftl]),
            ages: or(&options.ages, &Age::ALL),
        })
    }

    fn store(&self, out: &Path) -> Store {
        Store::new(out, &self.scale, self.guests, self.device, self.seed)
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

    fn setting(&self) -> Setting {
        Setting { scale: self.scale.clone(), guests: self.guests, device: self.device, seed: self.seed }
    }

    fn findings(&self, store: &Store) -> Result<Findings> {
        let drives = self.drives(store)?;
        Findings::read(store, self.setting(), &self.ftls, &drives)
    }
}

/// Whether everything came to a result.
fn run(options: &Options) -> Result<bool> {
    let resume = &options.resume;
    if let Some(path) = &options.common.tables {
        let Results { setting, ftls, simulated, .. } = afterimage_bench_kit::read(path, "vma-ssd")?;
        return say(&tables::all(&Findings::of(setting, &ftls, simulated))).map(|()| true);
    }
    let chosen = Chosen::new(options)?;
    let store = chosen.store(&options.out);
    let cells = chosen.cells();
    let mut todo = Vec::new();
    for (workload, mode) in &cells {
        if store.captured(*workload, *mode)?.is_none() {
            todo.push((*workload, *mode));
        }
    }
    if resume.list {
        let line = |cell: &(Workload, Mode)| {
            let state = if todo.contains(cell) { "to do" } else { "traced" };
            format!("{}/{}/x{}: {state}\n", cell.0.name(), cell.1.name(), chosen.guests)
        };
        return say(&cells.iter().map(line).collect::<String>()).map(|()| true);
    }
    let (chosen_then, out) = (chosen.clone(), options.out.clone());
    write_on_signals(move || {
        let store = chosen_then.store(&out);
        write(&chosen_then.findings(&store)?, &store).map(drop)
    })?;
    let mut failed = Vec::new();
    if !resume.report && (!todo.is_empty() || resume.fresh) {
        if resume.fresh {
            for (workload, mode) in &cells {
                let folder = store.trace_folder(*workload, *mode);
                if folder.exists() {
                    fs::remove_dir_all(&folder).context(|| format!("remove {}", folder.display()))?;
                }
            }
            todo.clone_from(&cells);
        }
        let sources = Sources::at(&locate::cache_folder(), &chosen.scale);
        // In memory: copying a template must not warm or wear the device under test.
        let templates_folder = Workdir::new_in(Path::new("/dev/shm"), "vma-ssd-templates")?;
        let folder = templates_folder.path().to_owned();
        let machine = Virtual::find()?;
        let capture = Capture {
            guests: chosen.guests,
            device: chosen.device,
            seed: chosen.seed,
            world: World {
                machine: &machine,
                scale: &chosen.scale,
                sources: &sources,
                retain_max_bytes: None,
                traces: None,
                limit: Duration::from_secs(options.limit),
            },
            store: &store,
            templates: Mutex::new(Templates::new(folder, chosen.scale.clone(), sources.clone())),
        };
        let kept = cells.len() - todo.len();
        let (name, trace) = (|cell: &_| capture.name(cell), |cell: &_| capture.trace(cell));
        failed = run_at_once(&todo, kept, options.at_once, name, trace);
    }
    let control = Control::default();
    for drives in chosen.drives(&store)? {
        simulate::run(&drives, &store, chosen.guests, &control)?;
    }
    let text = write(&chosen.findings(&store)?, &store)?;
    say(&text)?;
    if let Some(path) = &resume.into {
        insert(path, &chosen.scale.name, &text)?;
    }
    note(&format!("results: {}\n", store.folder().join("vma-ssd.{json.zst,md,html}").display()));
    Ok(failed.is_empty())
}

/// The raw results, as they are committed: what was simulated, and how its traces came about.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    setting: Setting,
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
        setting: findings.setting.clone(),
        ftls: findings.ftls.clone(),
        spare: Config::SPARE,
        captured,
        simulated: findings.results().cloned().collect(),
    };
    let markdown = tables::all(findings);
    write_all(store.folder(), "vma-ssd", &results, &markdown, &html::page(findings))?;
    Ok(markdown)
}
