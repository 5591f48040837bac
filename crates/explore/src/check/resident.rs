//! A disk image in memory that other programs can open by name, and that goes from state to state without being copied.
//!
//! ```text
//!   base (pages shared with the explorer) ─► file ─► + the state's sectors ─► e2fsck reads and writes
//!        ▲                                                                        │
//!        └──────── restore: allocated pages are compared with the base, the others put back ◄┘
//! ```
//!
//! The file is a memfd: it has no name of its own, so nothing is left behind however this process ends. While this
//! process lives, others open it as `/proc/PID/fd/N`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use afterimage_trace::{Page, Sparse, PAGE_BYTES};
use rustix::fs::{
    fallocate, fcntl_add_seals, memfd_create, seek, FallocateFlags, MemfdFlags, SealFlags, SeekFrom,
};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::state::{Scratch, SECTOR_BYTES};
use crate::{ExploreError, Result};

/// The file and the base that it holds between states.
#[derive(Debug)]
pub(super) struct Resident {
    file: File,
    map: Map,
    bytes: u64,
    base: Arc<Sparse>,
    /// The base's pages that hold anything but zeroes: those that have to be allocated in the file.
    pages: Vec<Option<Arc<Page>>>,
}

impl Resident {
    /// A file with the content of `base`.
    ///
    /// # Errors
    /// The system has no memory or descriptors left.
    pub(super) fn new(base: &Arc<Sparse>) -> Result<Self> {
        let failed = ExploreError::io("make an image in memory");
        let bytes = base.len();
        let made = (|| -> io::Result<(File, Map)> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create("afterimage-state", flags)?);
            file.set_len(bytes)?;
            // A file of fixed size: no access through the mapping can meet its end.
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            let map = Map::new(&file, bytes)?;
            Ok((file, map))
        })();
        let (file, map) = made.map_err(failed)?;
        let count = bytes.div_ceil(PAGE_BYTES as u64) as usize;
        let mut resident =
            Self { file, map, bytes, base: Arc::new(Sparse::new(bytes)), pages: vec![None; count] };
        resident.rebase(base)?;
        Ok(resident)
    }

    /// Where other programs find it, for as long as this lives.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Goes from the base that it holds to another of the same size: only pages that differ are touched.
    ///
    /// # Errors
    /// The file's pages can not be given back.
    ///
    /// # Panics
    /// Where the sizes differ.
    pub(super) fn rebase(&mut self, base: &Arc<Sparse>) -> Result<()> {
        assert_eq!(base.len(), self.bytes, "a base of another size");
        if Arc::ptr_eq(&self.base, base) {
            return Ok(());
        }
        let old = std::mem::replace(&mut self.base, Arc::clone(base));
        let mut gone = Runs::default();
        for index in 0..self.pages.len() as u64 {
            match (old.page(index), base.page(index)) {
                (None, None) => {}
                (Some(before), Some(now)) if Arc::ptr_eq(before, now) => {}
                (_, now) => {
                    let now = now.filter(|page| page.iter().any(|byte| *byte != 0));
                    match now {
                        Some(page) => self.map.page(index).copy_from_slice(&page[..]),
                        None if self.pages[index as usize].is_some() => gone.push(index),
                        None => {}
                    }
                    self.pages[index as usize] = now.cloned();
                }
            }
        }
        self.punch(&gone)
    }

    /// Puts a state on top of the base: its sectors, and what was written to it since.
    pub(super) fn apply(&mut self, state: &Scratch) {
        for (sector, content) in state.image().overlay() {
            let target = self.map.sector(sector);
            match content.bytes() {
                Some(bytes) => target.copy_from_slice(bytes),
                None => target.fill(0),
            }
        }
        state.changed(|index, bytes| self.map.page(index)[..bytes.len()].copy_from_slice(bytes));
    }

    /// Makes the content that of the base again, whoever changed it. Returns how many pages had been changed.
    ///
    /// # Errors
    /// The file can not be searched for data.
    pub(super) fn restore(&mut self) -> Result<usize> {
        let mut changed = 0;
        let mut gone = Runs::default();
        // Up to where the base's pages have been looked at.
        let mut next = 0;
        let mut at = 0;
        while let Some((data, hole)) =
            self.extent(at).map_err(ExploreError::io("search an image for data"))?
        {
            let (first, end) = (data / PAGE_BYTES as u64, hole.div_ceil(PAGE_BYTES as u64));
            changed += self.refill(next, first);
            for index in first..end {
                match &self.pages[index as usize] {
                    Some(page) => {
                        let current = self.map.page(index);
                        if *current != page[..] {
                            current.copy_from_slice(&page[..]);
                            changed += 1;
                        }
                    }
                    None => {
                        gone.push(index);
                        changed += 1;
                    }
                }
            }
            (next, at) = (end, hole);
        }
        changed += self.refill(next, self.pages.len() as u64);
        self.punch(&gone)?;
        Ok(changed)
    }

    /// Writes the base's pages in a range that is a hole in the file.
    fn refill(&mut self, first: u64, end: u64) -> usize {
        let mut count = 0;
        for index in first..end {
            if let Some(page) = &self.pages[index as usize] {
                self.map.page(index).copy_from_slice(&page[..]);
                count += 1;
            }
        }
        count
    }

    /// The next range of the file that is allocated, in bytes.
    fn extent(&self, from: u64) -> io::Result<Option<(u64, u64)>> {
        if from >= self.bytes {
            return Ok(None);
        }
        let data = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((data, seek(&self.file, SeekFrom::Hole(data))?)))
    }

    fn punch(&self, gone: &Runs) -> Result<()> {
        for (first, count) in &gone.0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, first * PAGE_BYTES as u64, count * PAGE_BYTES as u64)
                .map_err(|error| ExploreError::io("give back an image's pages")(error.into()))?;
        }
        Ok(())
    }

    /// Whether the content is exactly the base's.
    #[cfg(test)]
    pub(crate) fn is_base(&self) -> bool {
        use std::os::unix::fs::FileExt as _;
        let mut file = vec![0; self.bytes as usize];
        let mut base = file.clone();
        self.file.read_exact_at(&mut file, 0).unwrap();
        self.base.read_at(&mut base, 0);
        file == base
    }

    /// Stores bytes, as another program would.
    #[cfg(test)]
    pub(crate) fn disturb(&self, bytes: &[u8], offset: u64) {
        use std::os::unix::fs::FileExt as _;
        self.file.write_all_at(bytes, offset).unwrap();
    }

    /// Makes a hole, as another program would.
    #[cfg(test)]
    pub(crate) fn hole(&self, page: u64) {
        self.punch(&Runs(vec![(page, 1)])).unwrap();
    }
}

/// Runs of pages: first, count.
#[derive(Debug, Default)]
struct Runs(Vec<(u64, u64)>);

impl Runs {
    fn push(&mut self, index: u64) {
        match self.0.last_mut() {
            Some((first, count)) if *first + *count == index => *count += 1,
            _ => self.0.push((index, 1)),
        }
    }
}

/// A shared mapping of the whole file.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached only through `&mut self`, from whatever thread.
unsafe impl Send for Map {}

impl Map {
    fn new(file: impl AsFd, bytes: u64) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64).max(PAGE_BYTES as u64) as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { start, bytes })
    }

    fn range(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "outside the image");
        // SAFETY: the range lies in the mapping, which lives as long as `self`; the file is sealed against shrinking, so
        // every page of it can be touched. The exclusive borrow of `self` keeps other users in this process away. Other
        // processes (e2fsck) have the file open only while its owner waits for them and so holds no slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }

    fn page(&mut self, index: u64) -> &mut [u8] {
        self.range(index as usize * PAGE_BYTES, PAGE_BYTES)
    }

    fn sector(&mut self, index: u64) -> &mut [u8] {
        self.range(index as usize * SECTOR_BYTES, SECTOR_BYTES)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and nobody can hold a slice of it any more. A failure leaks it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::state::{Content, Image};
    use afterimage_block::Medium as _;

    /// Random bases, states and disturbances: after each, the file is the base again.
    #[test]
    fn the_base_comes_back() {
        const PAGES: u64 = 300;
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let bytes = PAGES * PAGE_BYTES as u64 + 1536;
        let mut base = Arc::new(Sparse::new(bytes));
        let mut resident = Resident::new(&base).unwrap();
        let mut changed = 0;
        for round in 0..400u64 {
            if round % 5 == 0 {
                let mut next = Sparse::clone(&base);
                for _ in 0..rng.random_range(0..20) {
                    let at = rng.random_range(0..bytes - 6000);
                    match rng.random_range(0..4) {
                        0 => next.zero_at(at, 6000),
                        1 => next.write_at(&[0; 6000], at),
                        _ => next.write_at(&[round as u8 | 1; 6000], at),
                    }
                }
                base = Arc::new(next);
                resident.rebase(&base).unwrap();
                assert!(resident.is_base(), "round {round}");
            }
            let mut image = Image::digested(0, Arc::clone(&base));
            for _ in 0..rng.random_range(0..50) {
                let content = match rng.random_range(0..3) {
                    0 => Content::ZERO,
                    _ => Content::owned(&[rng.random(); SECTOR_BYTES]),
                };
                image.set(rng.random_range(0..bytes / 512), content);
            }
            let scratch = Scratch::new(image);
            scratch.write_at(&[3; 5000], rng.random_range(0..bytes - 5000)).unwrap();
            resident.apply(&scratch);
            let mut file = vec![0; bytes as usize];
            let mut wanted = file.clone();
            resident.file.read_exact_at(&mut file, 0).unwrap();
            scratch.read_at(&mut wanted, 0).unwrap();
            assert!(file == wanted, "round {round}: the file is not the state");
            for _ in 0..rng.random_range(0..9) {
                resident.disturb(&[round as u8; 3000], rng.random_range(0..bytes - 3000));
                resident.hole(rng.random_range(0..PAGES));
            }
            changed += resident.restore().unwrap();
            assert!(resident.is_base(), "round {round}");
            assert_eq!(resident.restore().unwrap(), 0, "round {round}");
        }
        assert!(changed > 1000);
    }

    #[test]
    fn others_can_open_it() {
        let mut base = Sparse::new(8192);
        base.write_at(b"hello", 4096);
        let resident = Resident::new(&Arc::new(base)).unwrap();
        assert_eq!(std::fs::read(resident.path()).unwrap()[4096..4101], *b"hello");
    }
}
