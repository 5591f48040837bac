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

use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::seeded::{show, Seeded, SeededOptions};
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{mke2fs, BenchError, Result};
use afterimage_lab::process::Workdir;
use clap::Parser;

use crate::plan::{Key, Scale};
use crate::record::Record;
use crate::script::Tools;

const NAME: &str = "joj";
/// Names SQLite's extension; `./x` sets it.
const EXTENSION: &str = "AFTERIMAGE_SQLITE_JOURNALING";
const DISK_BYTES: u64 = 4 << 30;
const JOURNAL_MIB: u32 = 128;

/// SQLite on ext4's journaling modes and on vext4's, in virtual time: Journaling of Journal, Figs. 2 to 4
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
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-joj", run)
}

/// What all cells share.
struct Begun {
    machine: Virtual,
    tools: Tools,
    disks: BTreeMap<bool, PathBuf>,
    _folder: Workdir,
}

fn begin(out: &Path, cells: &Path) -> Result<Begun> {
    let machine = Virtual::find()?;
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
    let folder = Workdir::new_in(Path::new("/dev/shm"), "joj-disks")?;
    Ok(Begun { machine, tools, disks: disks(folder.path())?, _folder: folder })
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
    let cells = seeded.out.join("joj.cells").join(scale.name);
    let bench = Seeded {
        name: NAME,
        scale: scale.name,
        cells: cells.clone(),
        reports: if scale == Scale::FULL { seeded.out.clone() } else { cells.clone() },
        wanted: move |record: &Record| record.records == scale.records(record.key.log, record.key.operations),
        markdown: tables::markdown,
        page: tables::page,
    };
    bench.run(
        seeded,
        || plan::keys(scale, seeded.seeds(), &seeded.only),
        |key: &Key| format!("{} seed {}", key.path(), key.seed),
        || begin(&seeded.out, &cells),
        |begun, key| {
            let image = &begun.disks[&key.arm.is_bare()];
            let record = record::measure(key, scale, image, &begun.tools, &begun.machine)?;
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
