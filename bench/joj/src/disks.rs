//! The disks that rounds begin with: one partition and an empty file system.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use afterimage_bench_kit::mke2fs;
use afterimage_bench_kit::process::run;
use afterimage_bench_kit::Result;

/// Of the file system, in bytes.
const DISK: u64 = 4 << 30;
const JOURNAL_MIB: u32 = 128;
/// Where it begins.
const PARTITION: u64 = 1 << 20;

/// How long a disk is, in bytes.
pub const BYTES: u64 = PARTITION + DISK;

/// Makes them in a folder: `true` is the one without a journal.
///
/// # Errors
/// There is no room, or `mke2fs` fails.
pub fn make(folder: &Path) -> Result<BTreeMap<bool, PathBuf>> {
    let mut disks = BTreeMap::new();
    for bare in [false, true] {
        let path = folder.join(if bare { "bare.img" } else { "journal.img" });
        File::create(&path)?.set_len(BYTES)?;
        format(&path, bare)?;
        disks.insert(bare, path);
    }
    Ok(disks)
}

/// Makes the file system anew on a disk that is there; no block of it is given back.
///
/// # Errors
/// `mke2fs` fails.
pub fn format(path: &Path, bare: bool) -> Result<()> {
    let mut mke2fs = mke2fs(Some(&format!("nodiscard,offset={PARTITION}")));
    if bare {
        mke2fs.args(["-O", "^has_journal"]);
    } else {
        mke2fs.args(["-J", &format!("size={JOURNAL_MIB}")]);
    }
    run(mke2fs.arg(path).arg(format!("{}k", DISK >> 10)))?;
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&partition_table(), 446)?;
    Ok(file.sync_all()?)
}

/// The end of a master boot record: one partition of Linux's, three unused ones, the signature.
fn partition_table() -> [u8; 66] {
    const SECTOR: u64 = 512;
    let mut table = [0; 66];
    table[4] = 0x83;
    for (at, bytes) in [(8, PARTITION), (12, DISK)] {
        let sectors = u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX);
        table[at..at + 4].copy_from_slice(&sectors.to_le_bytes());
    }
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    table
}
