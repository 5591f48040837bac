//! Prepared disks: made once on the host, so that no cell pays for setting them up.
//!
//! ```text
//!   folder ─► mke2fs, with a file for rnd_write ─► (loop mount: a full and fragmented disk) ─► sparse copy
//! ```
//! What is in the files before the work begins is zeroes, and zeroes are holes in the image: the guest's file system
//! has its blocks allocated and written, and a copy of the 4 GiB costs a few megabytes. A disk that was never mounted is the same, to the
//! byte, whenever it is made, but for times of files in it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use afterimage_lab::locate::own_program;
use afterimage_lab::process::{quote, Cleanup};
use rustix::fs::{fallocate, statvfs, FallocateFlags};

use crate::catalog::{Mode, Setup, Workload, RECORDS_BYTES};
use crate::scale::{Scale, DISK_BYTES};
use crate::source::Sources;
use afterimage_bench_kit::process::{copy_sparse, run};
use afterimage_bench_kit::{large_file, mke2fs, Context, Result};

/// How full § 5.2.6's disks are.
const AGED_FULL: f64 = 0.77;
/// Its layout score: how often a file's next block is its neighbour.
const AGED_LAYOUT: f64 = 0.1;
const BLOCK_BYTES: u64 = 4096;

/// What is on a disk before the work begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Empty,
    /// rnd_write's file.
    Data,
    /// A configured folder to build in.
    Build,
    /// A file of records of so many KiB.
    Records(u32),
}

/// Makes and keeps them, in a folder in memory.
#[derive(Debug)]
pub struct Templates {
    folder: PathBuf,
    scale: Scale,
    sources: Sources,
    made: BTreeMap<String, PathBuf>,
}

impl Templates {
    /// Nothing is made before it is asked for.
    pub fn new(folder: PathBuf, scale: Scale, sources: Sources) -> Templates {
        Templates { folder, scale, sources, made: BTreeMap::new() }
    }

    /// The raw image of a cell's disks.
    ///
    /// # Errors
    /// A program is missing or failed.
    pub fn get(&mut self, workload: Workload, mode: Mode, setup: Setup) -> Result<PathBuf> {
        self.sources.prepare(workload, &self.scale)?;
        let content = match setup {
            Setup::Records(kib) => Content::Records(kib),
            _ if workload == Workload::RndWrite => Content::Data,
            _ if matches!(workload, Workload::Build | Workload::BuildFiles) => Content::Build,
            _ => Content::Empty,
        };
        let journal = match (mode, setup) {
            (Mode::NoJournal, _) | (_, Setup::RamJournal) => None,
            _ => Some(setup.journal_mib(&self.scale)),
        };
        let aged = setup == Setup::Aged;
        let name = format!(
            "{content:?}-{}{}",
            journal.map_or("bare".to_owned(), |mib| format!("j{mib}")),
            if aged { "-aged" } else { "" }
        );
        if let Some(path) = self.made.get(&name) {
            return Ok(path.clone());
        }
        let path = self.make(&name, content, journal, aged)?;
        self.made.insert(name, path.clone());
        Ok(path)
    }

    fn make(&self, name: &str, content: Content, journal: Option<u32>, aged: bool) -> Result<PathBuf> {
        let tree = self.folder.join(format!("tree-{name}"));
        fs::create_dir_all(&tree).context(|| format!("make {}", tree.display()))?;
        match content {
            Content::Build => self.sources.configure(&tree)?,
            Content::Records(kib) => prepare_records(&tree, kib)?,
            Content::Data | Content::Empty => {}
        }
        let rough = self.folder.join(format!("{name}.rough"));
        let mut mke2fs = mke2fs(None);
        match journal {
            Some(mib) => mke2fs.args(["-J", &format!("size={mib}")]),
            None => mke2fs.args(["-O", "^has_journal"]),
        };
        if content == Content::Data {
            large_file(&mut mke2fs, &self.folder.join("mke2fs.conf"), self.scale.rnd_file_mib)?;
        }
        mke2fs.arg("-d").args([&tree, &rough]).arg(format!("{}k", DISK_BYTES >> 10));
        run(&mut mke2fs)?;
        fs::remove_dir_all(&tree).context(|| format!("remove {}", tree.display()))?;
        if aged {
            let mounted = LoopMount::new(&rough, &self.folder.join(format!("mnt-{name}")))?;
            age(&mounted.path)?;
            mounted.unmount()?;
        }
        let image = self.folder.join(format!("{name}.img"));
        copy_sparse(&rough, &image)?;
        fs::remove_file(&rough).context(|| format!("remove {}", rough.display()))?;
        Ok(image)
    }
}

/// Records in their first version.
fn prepare_records(tree: &Path, kib: u32) -> Result<()> {
    let mut agent = Command::new(own_program("afterimage-agent")?);
    agent.args(["integrity", "prepare"]).arg(tree.join("database"));
    agent.args(["--size", &(kib << 10).to_string(), "--bytes", &RECORDS_BYTES.to_string()]);
    // It reports to nobody.
    run(agent.env("AFTERIMAGE_REPORT", "/dev/null"))
}

/// Fills the file system, then frees single blocks and short runs all over it until it is as full as it should be:
/// what is written from then on lies in pieces.
fn age(root: &Path) -> Result<()> {
    let story = || format!("age the file system on {}", root.display());
    let before = statvfs(root).context(story)?;
    // What an extent tree of a few hundred thousand pieces takes, and a little.
    let spare_blocks = before.f_blocks / 200;
    let length = before.f_bavail.saturating_sub(spare_blocks) * BLOCK_BYTES;
    let file = File::create_new(root.join("filler")).context(story)?;
    fallocate(&file, FallocateFlags::empty(), 0, length).context(story)?;
    let full = statvfs(root).context(story)?;
    let blocks = length / BLOCK_BYTES;
    let wanted_free = (full.f_blocks as f64 * (1.0 - AGED_FULL)) as u64;
    let share = wanted_free.saturating_sub(full.f_bfree) as f64 / blocks as f64;
    // A chain of two states: after a free block a free one with the layout score's odds, in all as many as needed.
    let start = (1.0 - AGED_LAYOUT) * share / (1.0 - share);
    let mut dice = Dice(77);
    let mut block = 0;
    while block < blocks {
        if !dice.is_below(start) {
            block += 1;
            continue;
        }
        let first = block;
        block += 1;
        while block < blocks && dice.is_below(AGED_LAYOUT) {
            block += 1;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, first * BLOCK_BYTES, (block - first) * BLOCK_BYTES).context(story)?;
        // The block after a run is taken.
        block += 1;
    }
    file.sync_all().context(story)
}

/// SplitMix64: every disk is aged alike.
struct Dice(u64);

impl Dice {
    fn is_below(&mut self, odds: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / ((1u64 << 53) as f64) < odds
    }
}

/// An image, mounted on the host; unmounted also when this program dies.
struct LoopMount {
    path: PathBuf,
    cleanup: Option<Cleanup>,
}

impl LoopMount {
    fn new(image: &Path, path: &Path) -> Result<LoopMount> {
        fs::create_dir_all(path).context(|| format!("make {}", path.display()))?;
        let cleanup = Cleanup::arm(&format!("umount -l {}", quote(&path.to_string_lossy())))?;
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).args([image, path]))?;
        Ok(LoopMount { path: path.to_owned(), cleanup: Some(cleanup) })
    }

    fn unmount(mut self) -> Result<()> {
        let outcome = run(Command::new("umount").arg(&self.path));
        if outcome.is_ok() {
            if let Some(cleanup) = self.cleanup.take() {
                cleanup.dismiss();
            }
        }
        outcome
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if let Some(cleanup) = self.cleanup.take() {
            let _ = run(Command::new("umount").arg("-l").arg(&self.path));
            cleanup.dismiss();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use afterimage_lab::process::Workdir;

    use super::*;

    #[test]
    fn a_disk_with_a_file_is_the_same_whenever_it_is_made() {
        if Command::new("mke2fs").arg("-V").output().is_err() {
            return afterimage_testing::skip("there is no mke2fs (package e2fsprogs)");
        }
        let made: Vec<Workdir> = (0..2)
            .map(|_| {
                let folder = Workdir::new_in(Path::new("/dev/shm"), "templates").unwrap();
                let sources = Sources::at(folder.path(), &Scale::quick());
                let mut templates = Templates::new(folder.path().to_owned(), Scale::quick(), sources);
                templates.get(Workload::RndWrite, Mode::Journal, Setup::Plain).unwrap();
                // Times in seconds, if there were any of now.
                std::thread::sleep(std::time::Duration::from_millis(1100));
                folder
            })
            .collect();
        let [first, again] = [0, 1].map(|at| made[at].path().join("Data-j64.img"));
        assert!(fs::metadata(&first).unwrap().blocks() * 512 < 16 << 20, "no byte of the file");
        run(Command::new("cmp").args([&first, &again])).unwrap();
        let stat = Command::new("debugfs").args(["-R", "stat data"]).arg(&first).output().unwrap();
        let text = String::from_utf8_lossy(&stat.stdout).into_owned();
        assert!(text.contains("Size: 268435456") && !text.contains("[u]"), "written, not reserved: {text}");
    }
}
