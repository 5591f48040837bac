//! iJournaling's evaluation (Park and Shin, USENIX ATC 2017, § 6.1) in virtual time: how long an fsync takes beside a stream of other files' data.
//!
//! ```text
//!   devices × streams × journaling × seeds ─► one guest each, in virtual time ─► ijournal.cells/NAME.json
//!                                      target/bench/ijournal.{json.zst,md,html} ◄─ tables ┘
//! ```

mod plan;
mod record;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{
    insert, mke2fs, read, run_at_once, say, write_all, write_on_signals, Common, Earlier, Result, Resume,
};
use afterimage_lab::process::Workdir;
use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::plan::{Arm, Scale};
use crate::record::Record;

type Store = afterimage_bench_kit::Store<Record>;

const NAME: &str = "ijournal";
const DISK_BYTES: u64 = 4 << 30;
/// mke2fs's for a disk of the paper's size.
const JOURNAL_MIB: u32 = 128;

/// How long an fsync takes beside a stream of other files' data, in virtual time: iJournaling, Figs. 6 to 8
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-ijournal", version)]
#[command(mut_arg("quick", |a| a.help("5 seconds, the device ssd, one seed")))]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    resume: Resume,
    #[command(flatten)]
    earlier: Earlier,
    /// Only these cells: model/stream/arm, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Seeds 1 to this, all cells of one before the next [default: 5; 1 with --quick]
    #[arg(long)]
    seeds: Option<u64>,
    /// Cells that run at once
    #[arg(long, default_value_t = 2, value_name = "CELLS")]
    at_once: usize,
    /// Where results go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// The raw results, as they are committed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    records: Vec<Record>,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-ijournal", run)
}

fn write(out: &Path, store: &Store) -> Result<String> {
    let records: Vec<Record> = store.records().cloned().collect();
    let markdown = tables::markdown(&records);
    write_all(out, NAME, &Results { records }, &markdown, &tables::page(&markdown))?;
    Ok(markdown)
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let (common, resume) = (&options.common, &options.resume);
    if let Some(path) = &common.tables {
        let Results { records } = read(path, NAME)?;
        return say(&tables::markdown(&records)).map(|()| true);
    }
    let scale = if common.quick { Scale::QUICK } else { Scale::FULL };
    let out = options.out.join(NAME).join(scale.name);
    let cells = out.join("cells");
    let wanted = move |record: &Record| record.seconds == scale.seconds;
    let mut store = Store::open(&cells, wanted)?;
    if let Some(path) = &options.earlier.from {
        store.adopt(read::<Results>(path, NAME)?.records.into_iter().filter(wanted))?;
    }
    if resume.report {
        let text = write(&out, &store)?;
        say(&text)?;
        return resume.into.as_ref().map_or(Ok(true), |path| insert(path, scale.name, &text).map(|()| true));
    }
    let keys = plan::keys(scale, options.seeds.unwrap_or(if common.quick { 1 } else { 5 }), &options.only)?;
    let name = |key: &plan::Key| format!("{} seed {}", key.path(), key.seed);
    let Some(todo) = store.to_run(&keys, resume, name)? else { return Ok(true) };
    let out_then = out.clone();
    write_on_signals(move || write(&out_then, &Store::open(&cells, wanted)?).map(drop))?;
    let machine = Virtual::find()?;
    // Guests have folders in memory of their own: what they read of the host's lies elsewhere.
    let folder = Workdir::new_in(Path::new("/dev/shm"), "ijournal-disks")?;
    let disks = disks(folder.path())?;
    let kept = keys.len() - todo.len();
    let store = Mutex::new(store);
    let failed = run_at_once(&todo, kept, options.at_once, name, |key| {
        let record = record::measure(key, scale, &disks[&(key.arm == Arm::FastCommit)], &machine)?;
        let words = record.words();
        store.lock().unwrap_or_else(PoisonError::into_inner).add(record)?;
        Ok(words)
    });
    say(&write(&out, &store.into_inner().unwrap_or_else(PoisonError::into_inner))?)?;
    Ok(failed.is_empty())
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
