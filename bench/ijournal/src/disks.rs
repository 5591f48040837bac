//! The disks that cells begin with, each made when the first cell asks for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use afterimage_bench_kit::process::run;
use afterimage_bench_kit::{mke2fs, Result};
use afterimage_lab::process::Workdir;

use crate::plan::{Arm, Key};
use crate::scale::Scale;
use crate::task::Task;
use crate::tpcc;

/// Room for two of a stream's files, and for a database.
const DISK_BYTES: u64 = 4 << 30;
/// mke2fs's for a disk of the paper's size.
const JOURNAL_MIB: u32 = 128;

/// What is on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    fast_commit: bool,
    database: bool,
}

/// The disks, in a folder in memory.
#[derive(Debug)]
pub struct Disks {
    folder: Workdir,
    warehouses: u32,
    tpcc: PathBuf,
    made: Mutex<BTreeMap<Kind, PathBuf>>,
}

impl Disks {
    /// None yet; `tpcc` is `tpcc.lua`.
    pub fn new(folder: Workdir, scale: Scale, tpcc: &Path) -> Self {
        Self { folder, warehouses: scale.warehouses, tpcc: tpcc.to_owned(), made: Mutex::default() }
    }

    /// The image that a cell begins with.
    ///
    /// # Errors
    /// A program that makes it is missing or failed.
    pub fn get(&self, key: &Key) -> Result<PathBuf> {
        let kind = Kind { fast_commit: key.arm == Arm::FastCommit, database: key.task == Task::Tpcc };
        // Whoever wants the same one waits for it.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = made.get(&kind) {
            return Ok(path.clone());
        }
        let journal = if kind.fast_commit { "fast" } else { "normal" };
        let holds = if kind.database { "database" } else { "nothing" };
        let path = self.folder.path().join(format!("{journal}-{holds}.img"));
        self.make(kind, &path)?;
        made.insert(kind, path.clone());
        Ok(path)
    }

    fn make(&self, kind: Kind, path: &Path) -> Result<()> {
        let mut mke2fs = mke2fs(None);
        mke2fs.args(["-J", &format!("size={JOURNAL_MIB}")]);
        if kind.fast_commit {
            mke2fs.args(["-O", "fast_commit"]);
        }
        if kind.database {
            let tree = self.folder.path().join("tree");
            if !tree.exists() {
                fs::create_dir(&tree)?;
                tpcc::prepare(&tree, &self.tpcc, self.warehouses)?;
            }
            mke2fs.arg("-d").arg(tree);
        }
        run(mke2fs.arg(path).arg(format!("{}k", DISK_BYTES >> 10)))
    }
}
