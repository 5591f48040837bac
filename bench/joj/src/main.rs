//! `afterimage-bench-joj`: the evaluation of *Journaling of Journal Is (Almost) Free* (§ 3), in virtual time (docs/virtual-time.md).
//!
//! ```text
//!   plan ─► script ─► afterimage-virtual, a guest whose kernel has vext4 ─► record ─► joj.cells/SCALE/NAME.json
//!                                          target/bench/joj.{json.zst,md,html} ◄─ tables ┘
//! ```

mod flash;
mod plan;
mod record;
mod script;
mod tables;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{
    insert, mke2fs, read, run_at_once, say, write_all, write_on_signals, BenchError, Common, Earlier, Result,
    Resume,
};
use afterimage_lab::process::Workdir;
use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::plan::Scale;
use crate::record::Record;
use crate::script::Tools;

type Store = afterimage_bench_kit::Store<Record>;

const NAME: &str = "joj";
/// Names SQLite's extension; `./x` sets it.
const EXTENSION: &str = "AFTERIMAGE_SQLITE_JOURNALING";
const DISK_BYTES: u64 = 4 << 30;
const JOURNAL_MIB: u32 = 128;

/// SQLite on ext4's journaling modes and on vext4's, in virtual time: Journaling of Journal, Figs. 2 to 4
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-joj", version)]
#[command(mut_arg("quick", |a| a.help("1000 and 200 records, the device ssd, one round")))]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    resume: Resume,
    #[command(flatten)]
    earlier: Earlier,
    /// 500 records instead of 10 000 where each has a transaction of its own; results are kept apart
    #[arg(long, conflicts_with = "quick")]
    part: bool,
    /// Only these cells: LOG/OPERATIONS/DEVICE/MODE, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Rounds: seeds 1 to this, all cells of one before the next [default: 5; 1 with --quick]
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
    afterimage_bench_kit::main("afterimage-bench-joj", run)
}

fn write(out: &Path, scale: Scale, store: &Store) -> Result<String> {
    let records: Vec<Record> = store.records().cloned().collect();
    let markdown = tables::markdown(&records);
    let folder = if scale == Scale::FULL { out.to_owned() } else { out.join("joj.cells").join(scale.name) };
    write_all(&folder, NAME, &Results { records }, &markdown, &tables::page(&markdown))?;
    Ok(markdown)
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let (common, resume, out) = (&options.common, &options.resume, &options.out);
    if let Some(path) = &common.tables {
        let Results { records } = read(path, NAME)?;
        return say(&tables::markdown(&records)).map(|()| true);
    }
    let scale = match (common.quick, options.part) {
        (true, _) => Scale::QUICK,
        (_, true) => Scale::PART,
        _ => Scale::FULL,
    };
    let cells = out.join("joj.cells").join(scale.name);
    let wanted =
        move |record: &Record| record.records == scale.records(record.key.log, record.key.operations);
    let mut store = Store::open(&cells, wanted)?;
    if let Some(path) = &options.earlier.from {
        store.adopt(read::<Results>(path, NAME)?.records.into_iter().filter(wanted))?;
    }
    if resume.report {
        let text = write(out, scale, &store)?;
        say(&text)?;
        return resume.into.as_ref().map_or(Ok(true), |path| insert(path, scale.name, &text).map(|()| true));
    }
    let keys = plan::keys(scale, options.seeds.unwrap_or(if common.quick { 1 } else { 5 }), &options.only)?;
    let name = |key: &plan::Key| format!("{} seed {}", key.path(), key.seed);
    let Some(todo) = store.to_run(&keys, resume, name)? else { return Ok(true) };
    let (out_then, cells_then) = (out.clone(), cells.clone());
    write_on_signals(move || {
        let store = Store::open(&cells_then, wanted)?;
        write(&out_then, scale, &store).map(drop)
    })?;
    let machine = Virtual::find()?;
    let extension = std::env::var_os(EXTENSION).map(PathBuf::from).filter(|path| path.is_file());
    let extension = extension
        .ok_or_else(|| BenchError::Usage(format!("{EXTENSION} names no file: run ./x bench joj")))?;
    // Guests have folders in memory of their own: what they read of the host's lies elsewhere.
    let flush = out.canonicalize()?.join("joj.flush.so");
    run_program(
        Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&flush, &flush_source(&cells)?]),
    )?;
    let tools = Tools { extension: extension.canonicalize()?, flush };
    let folder = Workdir::new_in(Path::new("/dev/shm"), "joj-disks")?;
    let disks = disks(folder.path())?;
    let kept = keys.len() - todo.len();
    let store = Mutex::new(store);
    let failed = run_at_once(&todo, kept, options.at_once, name, |key| {
        let record = record::measure(key, scale, &disks[&key.arm.is_bare()], &tools, &machine)?;
        let words = record.words();
        store.lock().unwrap_or_else(PoisonError::into_inner).add(record)?;
        Ok(words)
    });
    say(&write(out, scale, &store.into_inner().unwrap_or_else(PoisonError::into_inner))?)?;
    Ok(failed.is_empty())
}

fn flush_source(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("flush.c");
    std::fs::write(&path, include_str!("flush.c"))?;
    Ok(path)
}

/// Where the file system begins, in bytes.
const PARTITION: u64 = 1 << 20;

/// Disks with one partition and an empty file system: `true` is the one without a journal.
fn disks(folder: &Path) -> Result<BTreeMap<bool, PathBuf>> {
    let mut disks = BTreeMap::new();
    for bare in [false, true] {
        let path = folder.join(if bare { "bare.img" } else { "journal.img" });
        File::create(&path)?.set_len(PARTITION + DISK_BYTES)?;
        let mut mke2fs = mke2fs(Some(&format!("offset={PARTITION}")));
        if bare {
            mke2fs.args(["-O", "^has_journal"]);
        } else {
            mke2fs.args(["-J", &format!("size={JOURNAL_MIB}")]);
        }
        run_program(mke2fs.arg(&path).arg(format!("{}k", DISK_BYTES >> 10)))?;
        File::options().write(true).open(&path)?.write_all_at(&partition_table(), 446)?;
        disks.insert(bare, path);
    }
    Ok(disks)
}

/// The end of a master boot record: one partition of Linux's, three unused ones, the signature.
fn partition_table() -> [u8; 66] {
    const SECTOR: u64 = 512;
    let mut table = [0; 66];
    table[4] = 0x83;
    for (at, bytes) in [(8, PARTITION), (12, DISK_BYTES)] {
        let sectors = u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX);
        table[at..at + 4].copy_from_slice(&sectors.to_le_bytes());
    }
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    table
}
