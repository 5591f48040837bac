//! filebench's file set: a fixed number of entries, each of which exists or does not.
//!
//! An entry that a thread is opening, creating or deleting is in neither list, so that no other thread can
//! choose it (filebench's FSE_BUSY); an entry that is only open can be chosen.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution as _;

/// What a set is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Entries.
    pub files: u32,
    /// Files per directory.
    pub directory_width: u32,
    /// Mean of the sizes, in bytes.
    pub size_mean_bytes: u64,
    /// Percentage of the entries that exist at the start.
    pub prealloc_percent: u32,
}

struct Lists {
    present: Vec<u32>,
    absent: Vec<u32>,
}

/// The set.
pub struct FileSet {
    root: PathBuf,
    shape: Shape,
    sizes: Vec<u32>,
    lists: Mutex<Lists>,
}

impl FileSet {
    /// The set as it is on the disk below `root`: what exists is found, not remembered.
    pub fn open(root: &Path, shape: Shape, seed: u64) -> io::Result<FileSet> {
        // Sizes have a sequence of their own: they are the same for every run with this seed.
        let random = ChaCha8Rng::seed_from_u64(seed);
        let sizes = super::sizes(shape.size_mean_bytes as f64)?.sample_iter(random);
        let sizes = sizes.take(shape.files as usize).map(|bytes| bytes.max(1.0) as u32).collect();
        let set = FileSet {
            root: root.to_owned(),
            shape,
            sizes,
            lists: Mutex::new(Lists { present: Vec::new(), absent: Vec::new() }),
        };
        let (present, absent) = (0..shape.files).partition(|entry| set.path(*entry).exists());
        *set.lock() = Lists { present, absent };
        Ok(set)
    }

    /// Makes the directories, and the files that exist at the start.
    pub fn prepare(&self, fill: &[u8]) -> io::Result<()> {
        for first in (0..self.shape.files).step_by(self.shape.directory_width.max(1) as usize) {
            if let Some(folder) = self.path(first).parent() {
                fs::create_dir_all(folder)?;
            }
        }
        for entry in 0..self.shape.files {
            if (entry * 37) % 100 < self.shape.prealloc_percent && !self.path(entry).exists() {
                let size = self.size_bytes(entry);
                let bytes: Vec<u8> = fill.iter().copied().cycle().take(size).collect();
                fs::write(self.path(entry), bytes)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where an entry is or would be.
    pub fn path(&self, entry: u32) -> PathBuf {
        self.root.join(format!("d{}", entry / self.shape.directory_width.max(1))).join(format!("f{entry}"))
    }

    /// The size that an entry has when it is written whole.
    pub fn size_bytes(&self, entry: u32) -> usize {
        self.sizes[entry as usize] as usize
    }

    /// How many entries exist.
    pub fn present(&self) -> usize {
        self.lock().present.len()
    }

    /// Chooses an entry that exists; it is busy until [`FileSet::now_present`] or [`FileSet::now_absent`].
    /// Waits while there is none: another thread is about to give one back.
    pub fn choose_present(&self, random: &mut ChaCha8Rng) -> u32 {
        self.choose(random, |lists| &mut lists.present)
    }

    /// Chooses an entry that does not exist; as above.
    pub fn choose_absent(&self, random: &mut ChaCha8Rng) -> u32 {
        self.choose(random, |lists| &mut lists.absent)
    }

    fn choose(&self, random: &mut ChaCha8Rng, which: impl Fn(&mut Lists) -> &mut Vec<u32>) -> u32 {
        loop {
            let mut lists = self.lock();
            let list = which(&mut lists);
            if !list.is_empty() {
                let at = random.random_range(0..list.len());
                return list.swap_remove(at);
            }
            drop(lists);
            std::thread::yield_now();
        }
    }

    /// Gives an entry back as one that exists.
    pub fn now_present(&self, entry: u32) {
        self.lock().present.push(entry);
    }

    /// Gives an entry back as one that does not exist.
    pub fn now_absent(&self, entry: u32) {
        self.lock().absent.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape =
        Shape { files: 200, directory_width: 20, size_mean_bytes: 1000, prealloc_percent: 80 };

    #[test]
    fn what_is_prepared_is_found_again() {
        let folder = std::env::temp_dir().join(format!("aimg-fileset-{}", std::process::id()));
        FileSet::open(&folder, SHAPE, 3).unwrap().prepare(b"abc").unwrap();
        let set = FileSet::open(&folder, SHAPE, 3).unwrap();
        assert_eq!(set.present(), 160);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let entry = set.choose_present(&mut random);
        assert_eq!(fs::metadata(set.path(entry)).unwrap().len() as usize, set.size_bytes(entry));
        assert_eq!(set.present(), 159);
        assert!(!set.path(set.choose_absent(&mut random)).exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
