//! `afterimage-bench-joj`: the evaluation of *Journaling of Journal Is (Almost) Free* (§ 3), in virtual time (docs/virtual-time.md).
//!
//! ```text
//!   plan ─► script ─► afterimage-virtual, a guest whose kernel has vext4 ─► record ─► joj.cells/SCALE/NAME.json
//!              └────► machine: the same guest in real time ───────────────────┘
//!                                          target/bench/joj.{json.zst,md,html} ◄─ tables ┘
//! ```

mod disks;
mod flash;
mod machine;
mod plan;
mod record;
mod script;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::seeded::{show, Seeded, SeededOptions};
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{BenchError, Result};
use afterimage_lab::process::Workdir;
use clap::Parser;

use crate::machine::Machine;
use crate::plan::Scale;
use crate::record::Record;
use crate::script::Tools;

const NAME: &str = "joj";
/// Names SQLite's extension; `./x` sets it.
const EXTENSION: &str = "AFTERIMAGE_SQLITE_JOURNALING";

/// SQLite on ext4's journaling modes and on vext4's, in virtual time or on the machine's disk: Journaling of Journal, Figs. 2 to 4
///
/// Cells are log/operations/model/journaling.
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-joj", version)]
#[command(mut_arg("quick", |a| a.help("1000 and 200 records, the device ssd, one round")))]
struct Options {
    #[command(flatten)]
    seeded: SeededOptions,
    /// 500 records instead of 10 000 where each has a transaction of its own; results are kept apart
    #[arg(long, conflicts_with = "quick")]
    part: bool,
    /// In real time, on the disk that this folder is on, one cell at a time; results are kept apart
    #[arg(long, value_name = "FOLDER")]
    machine: Option<PathBuf>,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-joj", run)
}

/// What all cells share.
struct Begun {
    place: Place,
    tools: Tools,
}

/// Where they run.
enum Place {
    /// In virtual time, on modelled devices.
    Virtual {
        machine: Virtual,
        disks: BTreeMap<bool, PathBuf>,
        _folder: Workdir,
    },
    Machine(Machine),
}

fn begin(out: &Path, cells: &Path, machine: Option<&Path>) -> Result<Begun> {
    let extension = std::env::var_os(EXTENSION).map(PathBuf::from).filter(|path| path.is_file());
    let extension = extension
        .ok_or_else(|| BenchError::Usage(format!("{EXTENSION} names no file: run ./x bench joj")))?;
    // Guests have folders in memory of their own: what they read of the host's lies elsewhere.
    let flush = out.canonicalize()?.join("joj.flush.so");
    run_program(
        Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&flush, &flush_source(cells)?]),
    )?;
    let tools = Tools { extension: extension.canonicalize()?, flush };
    let place = match machine {
        Some(folder) => Place::Machine(Machine::new(folder)?),
        None => {
            let folder = Workdir::new_in(Path::new("/dev/shm"), "joj-disks")?;
            Place::Virtual { machine: Virtual::find()?, disks: disks::make(folder.path())?, _folder: folder }
        }
    };
    Ok(Begun { place, tools })
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let seeded = &options.seeded;
    if let Some(path) = &seeded.common.tables {
        return show(path, NAME, tables::markdown);
    }
    let scale = match (seeded.common.quick, options.part) {
        (true, _) => Scale::QUICK,
        (_, true) => Scale::PART,
        _ => Scale::FULL,
    };
    let machine = options.machine.as_deref();
    let name = if machine.is_some() { scale.machine_name } else { scale.name };
    let cells = seeded.out.join("joj.cells").join(name);
    let bench = Seeded {
        name: NAME,
        scale: name,
        cells: cells.clone(),
        reports: if name == Scale::FULL.name { seeded.out.clone() } else { cells.clone() },
        wanted: move |record: &Record| record.records == scale.records(record.key.log, record.key.operations),
        markdown: tables::markdown,
        page: tables::page,
    };
    // Real time is for one at a time.
    let at_once = if machine.is_some() { 1 } else { seeded.at_once };
    bench.run(
        &SeededOptions { at_once, ..seeded.clone() },
        || plan::keys(scale, machine.is_some(), seeded.seeds(), &seeded.only),
        || begin(&seeded.out, &cells, machine),
        |begun, key| {
            let record = match &begun.place {
                Place::Virtual { machine, disks, .. } => {
                    record::measure(key, scale, &disks[&key.arm.is_bare()], &begun.tools, machine)?
                }
                Place::Machine(machine) => machine.measure(key, scale, &begun.tools)?,
            };
            let words = record.words();
            Ok((record, words))
        },
    )
}

fn flush_source(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("flush.c");
    std::fs::write(&path, include_str!("flush.c"))?;
    Ok(path)
}
