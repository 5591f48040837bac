//! iJournaling's evaluation (Park and Shin, USENIX ATC 2017, § 6.1) in virtual time: how long an fsync takes beside a stream of other files' data.
//!
//! ```text
//!   tasks × devices × streams × journaling × seeds ─► one guest each, in virtual time ─► ijournal.cells/NAME.json
//!                                      target/bench/ijournal.{json.zst,md,html} ◄─ tables ┘
//! ```

mod plan;
mod record;
mod tables;
mod task;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::seeded::{show, Seeded, SeededOptions};
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{mke2fs, Result};
use afterimage_lab::process::Workdir;
use clap::Parser;

use crate::plan::{Arm, Figures, Key, Scale};
use crate::record::Record;
use crate::task::Tools;

const NAME: &str = "ijournal";
const DISK_BYTES: u64 = 4 << 30;
/// mke2fs's for a disk of the paper's size.
const JOURNAL_MIB: u32 = 128;

/// How long an fsync takes beside a stream of other files' data, in virtual time: iJournaling, Figs. 6 to 8, 10 and 11
///
/// Cells are model/stream/journaling (Figs. 6 to 8) or task/model/stream/journaling.
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-ijournal", version)]
#[command(mut_arg("quick", |a| a.help("5 seconds, 100 transactions, the device ssd, one seed")))]
struct Options {
    #[command(flatten)]
    seeded: SeededOptions,
    /// Only these figures [default: all]
    #[arg(long, value_enum)]
    figures: Vec<Figures>,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-ijournal", run)
}

/// What all cells share.
struct Begun {
    machine: Virtual,
    tools: Tools,
    disks: BTreeMap<bool, PathBuf>,
    _folder: Workdir,
}

fn begin(out: &Path) -> Result<Begun> {
    let machine = Virtual::find()?;
    // Guests have folders in memory of their own: what they read of the host's lies elsewhere.
    let tools = Tools::make(&out.canonicalize()?.join("tools"))?;
    let folder = Workdir::new_in(Path::new("/dev/shm"), "ijournal-disks")?;
    Ok(Begun { machine, tools, disks: disks(folder.path())?, _folder: folder })
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let seeded = &options.seeded;
    if let Some(path) = &seeded.common.tables {
        return show(path, NAME, tables::markdown);
    }
    let scale = if seeded.common.quick { Scale::QUICK } else { Scale::FULL };
    let out = seeded.out.join(NAME).join(scale.name);
    let figures = if options.figures.is_empty() { &Figures::ALL[..] } else { &options.figures };
    let bench = Seeded {
        name: NAME,
        scale: scale.name,
        cells: out.join("cells"),
        reports: out.clone(),
        wanted: move |record: &Record| record.seconds == scale.seconds,
        markdown: tables::markdown,
        page: tables::page,
    };
    bench.run(
        seeded,
        || plan::keys(scale, figures, seeded.seeds(), &seeded.only),
        |key: &Key| format!("{} seed {}", key.path(), key.seed),
        || begin(&out),
        |begun, key| {
            let image = &begun.disks[&(key.arm == Arm::FastCommit)];
            let record = record::measure(key, scale, image, &begun.tools, &begun.machine)?;
            let words = record.words();
            Ok((record, words))
        },
    )
}

/// Disks with an empty file system: `true` is the one with `fast_commit`.
fn disks(folder: &Path) -> Result<BTreeMap<bool, PathBuf>> {
    let mut disks = BTreeMap::new();
    for fast in [false, true] {
        let path = folder.join(if fast { "fast.img" } else { "normal.img" });
        let mut mke2fs = mke2fs(None);
        mke2fs.args(["-J", &format!("size={JOURNAL_MIB}")]);
        if fast {
            mke2fs.args(["-O", "fast_commit"]);
        }
        run_program(mke2fs.arg(&path).arg(format!("{}k", DISK_BYTES >> 10)))?;
        disks.insert(fast, path);
    }
    Ok(disks)
}
