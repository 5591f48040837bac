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
mod results;
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
    insert, run_at_once, say, write_all, write_on_signals, BenchError, Common, Context, Earlier, Result,
    Resume,
};
use afterimage_bench_vma::catalog::{Device, Mode, Workload};
use afterimage_bench_vma::scale::Scale;
use afterimage_bench_vma::source::Sources;
use afterimage_bench_vma::template::Templates;
use afterimage_bench_vma::virtual_cell::World;
use afterimage_flash::control::Control;
use afterimage_flash::FtlKind;
use afterimage_lab::locate;
use afterimage_lab::process::Workdir;
use afterimage_report::note;
use clap::Parser;

use capture::Capture;
use findings::Setting;
use record::{Age, Cell, Simulated, SimulationKey, Store};
use results::Results;
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
    #[command(flatten)]
    earlier: Earlier,
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
    /// Seeds 1 to this, all cells of one before the next [default: 5; 1 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: Option<u32>,
    /// How many cells are traced at once
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
    seeds: u32,
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
            seeds: options.seeds.unwrap_or(if options.common.quick { 1 } else { 5 }),
            workloads: or(&options.workloads, &Workload::usual()),
            modes,
            ftls: or(&options.ftls, &[FtlKind::Fast, FtlKind::Superblock, FtlKind::Dftl]),
            ages: or(&options.ages, &Age::ALL),
        })
    }

    fn store(&self, out: &Path) -> Store {
        Store::new(out, &self.scale, self.guests, self.device)
    }

    fn setting(&self) -> Setting {
        Setting { scale: self.scale.clone(), guests: self.guests, device: self.device }
    }

    fn earlier(&self, path: &Path) -> Result<Results> {
        let earlier: Results = afterimage_bench_kit::read(path, "vma-ssd")?;
        if earlier.setting != self.setting() {
            let setting = &earlier.setting;
            return Err(BenchError::Usage(format!(
                "--from {}: those are results of {} guests at the {} sizes on {}; ask for the same, or leave it out",
                path.display(),
                setting.guests,
                setting.scale.name,
                setting.device.name()
            )));
        }
        if !Variant::TRACED.iter().all(|variant| self.modes.contains(&variant.mode())) {
            return Err(BenchError::Usage(format!(
                "--from {}: its drives are made of the traces of all modes, and others would be mixed with them; \
                 leave out --modes or --from",
                path.display()
            )));
        }
        Ok(earlier)
    }

    /// The traces of a workload and a seed.
    fn cells(&self, workload: Workload, seed: u32) -> Vec<Cell> {
        self.modes.iter().map(|mode| Cell { workload, mode: *mode, seed }).collect()
    }

    /// Each workload with each seed.
    fn pairs(&self) -> impl Iterator<Item = (Workload, u32)> + '_ {
        (1..=self.seeds).flat_map(|seed| self.workloads.iter().map(move |workload| (*workload, seed)))
    }

    fn wants(&self, key: &SimulationKey) -> bool {
        self.modes.contains(&key.variant.mode())
            && self.ftls.contains(&key.ftl)
            && self.ages.contains(&key.age)
    }

    fn variants(&self) -> impl Iterator<Item = Variant> + '_ {
        Variant::ALL.into_iter().filter(|variant| self.modes.contains(&variant.mode()))
    }

    /// What of a workload and a seed can be simulated of what is traced here.
    fn drives(&self, store: &Store, workload: Workload, seed: u32) -> Result<Drives> {
        let mut traces = Vec::new();
        let mut variants = Vec::new();
        for variant in self.variants() {
            let Some(found) = store.captured(Cell { workload, mode: variant.mode(), seed })? else {
                continue;
            };
            variants.push(variant);
            if variant != Variant::Derived {
                traces.push(found.at_ns);
            }
        }
        Ok(self.drives_of(workload, seed, variants, traces))
    }

    fn drives_of(&self, workload: Workload, seed: u32, variants: Vec<Variant>, traces: Vec<u64>) -> Drives {
        Drives { workload, seed, variants, traces, ftls: self.ftls.clone(), ages: self.ages.clone() }
    }

    /// Whether every drive that was chosen of a workload and a seed is among earlier raw results.
    fn had(&self, earlier: &Results, workload: Workload, seed: u32) -> bool {
        let drives = self.drives_of(workload, seed, self.variants().collect(), Vec::new());
        let is = |key| earlier.simulated.iter().any(|found| (&found.key, found.seed) == (key, seed));
        drives.keys().iter().all(is)
    }

    /// What is finished of what was chosen. A workload and a seed is taken as a whole, from what is here or, where nothing is, from earlier
    /// raw results: its drive is made of all traces.
    fn finished(&self, store: &Store, earlier: Option<&Results>) -> Result<Results> {
        let mut results = Results::none(self.setting(), self.ftls.clone());
        for (workload, seed) in self.pairs() {
            let (cells, drives) = (self.cells(workload, seed), self.drives(store, workload, seed)?);
            if let (true, Some(earlier)) = (drives.variants.is_empty(), earlier) {
                let of = |found: &Simulated| (found.key.workload, found.seed) == (workload, seed);
                let simulated = earlier.simulated.iter().filter(|found| of(found) && self.wants(&found.key));
                results.simulated.extend(simulated.cloned());
                let captured = earlier.captured.iter().filter(|found| cells.contains(&found.cell()));
                results.captured.extend(captured.cloned());
                continue;
            }
            for cell in cells {
                results.captured.extend(store.captured(cell)?);
            }
            for key in drives.keys() {
                results.simulated.extend(store.simulated(&key, seed, &drives.traces)?);
            }
        }
        Ok(results)
    }

    /// Which cells are to be traced: they are not here, nor is all that was chosen of their workload and seed earlier.
    fn to_trace(&self, store: &Store, earlier: Option<&Results>) -> Result<Vec<Cell>> {
        let mut todo = Vec::new();
        for (workload, seed) in self.pairs() {
            let cells = self.cells(workload, seed);
            let mut missing = Vec::new();
            for cell in &cells {
                if store.captured(*cell)?.is_none() {
                    missing.push(*cell);
                }
            }
            if missing != cells || !earlier.is_some_and(|earlier| self.had(earlier, workload, seed)) {
                todo.append(&mut missing);
            }
        }
        Ok(todo)
    }
}

/// Whether everything came to a result.
fn run(options: &Options) -> Result<bool> {
    let resume = &options.resume;
    if let Some(path) = &options.common.tables {
        let results: Results = afterimage_bench_kit::read(path, "vma-ssd")?;
        return say(&tables::all(&results.findings())).map(|()| true);
    }
    let chosen = Chosen::new(options)?;
    let store = chosen.store(&options.out);
    let earlier = options.earlier.from.as_ref().map(|path| chosen.earlier(path)).transpose()?;
    let cells: Vec<Cell> = chosen.pairs().flat_map(|(workload, seed)| chosen.cells(workload, seed)).collect();
    let mut todo = chosen.to_trace(&store, earlier.as_ref())?;
    if resume.list {
        let line = |cell: &Cell| {
            let state = if todo.contains(cell) { "to do" } else { "traced" };
            let Cell { workload, mode, seed } = cell;
            format!("{}/{}/x{}/s{seed}: {state}\n", workload.name(), mode.name(), chosen.guests)
        };
        return say(&cells.iter().map(line).collect::<String>()).map(|()| true);
    }
    let (chosen_then, store_then, earlier_then) = (chosen.clone(), store.clone(), earlier.clone());
    write_on_signals(move || {
        write(&chosen_then.finished(&store_then, earlier_then.as_ref())?, &store_then).map(drop)
    })?;
    if resume.is_run() && resume.fresh {
        for cell in &cells {
            let folder = store.trace_folder(*cell);
            if folder.exists() {
                fs::remove_dir_all(&folder).context(|| format!("remove {}", folder.display()))?;
            }
        }
        todo.clone_from(&cells);
    }
    let mut whole = true;
    if resume.is_run() && !todo.is_empty() {
        let sources = Sources::at(&locate::cache_folder(), &chosen.scale);
        // In memory: copying a template must not warm or wear the device under test.
        let templates_folder = Workdir::new_in(Path::new("/dev/shm"), "vma-ssd-templates")?;
        let folder = templates_folder.path().to_owned();
        let machine = Virtual::find()?;
        let capture = Capture {
            guests: chosen.guests,
            device: chosen.device,
            world: World {
                machine: &machine,
                scale: &chosen.scale,
                sources: &sources,
                traces: None,
                limit: Duration::from_secs(options.limit),
            },
            store: &store,
            templates: Mutex::new(Templates::new(folder, chosen.scale.clone(), sources.clone())),
        };
        let kept = cells.len() - todo.len();
        let (name, trace) = (|cell: &_| capture.name(cell), |cell: &_| capture.trace(cell));
        whole = run_at_once(&todo, kept, options.at_once, name, trace).is_empty();
    }
    let control = Control::default();
    for (workload, seed) in chosen.pairs() {
        simulate::run(&chosen.drives(&store, workload, seed)?, &store, chosen.guests, &control)?;
    }
    let text = write(&chosen.finished(&store, earlier.as_ref())?, &store)?;
    say(&text)?;
    if let Some(path) = &resume.into {
        insert(path, &chosen.scale.name, &text)?;
    }
    note(&format!("results: {}\n", store.folder().join("vma-ssd.{json.zst,md,html}").display()));
    Ok(whole)
}

/// Writes the raw results and the tables, and returns these as Markdown.
fn write(results: &Results, store: &Store) -> Result<String> {
    fs::create_dir_all(store.folder()).context(|| format!("make {}", store.folder().display()))?;
    let findings = results.findings();
    let markdown = tables::all(&findings);
    write_all(store.folder(), "vma-ssd", results, &markdown, &html::page(&findings))?;
    Ok(markdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_results_spare_only_what_they_hold() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/full.json.zst");
        let to_trace = |arguments: &[&str]| {
            let arguments = ["bench"].into_iter().chain(arguments.iter().copied());
            let chosen = Chosen::new(&Options::parse_from(arguments)).unwrap();
            let earlier = chosen.earlier(&path).map_err(|error| error.to_string())?;
            let store = chosen.store(Path::new("/nonexistent"));
            Ok::<_, String>(chosen.to_trace(&store, Some(&earlier)).unwrap().len())
        };
        assert_eq!(to_trace(&[]), Ok(0));
        assert_eq!(to_trace(&["--seeds", "6", "--workloads", "untar"]), Ok(4));
        assert_eq!(to_trace(&["--ftls", "dftl,page", "--workloads", "untar,postmark"]), Ok(2 * 5 * 4));
        assert!(to_trace(&["--modes", "journal,journal-retain"]).unwrap_err().contains("--modes"));
    }
}
