//! What only the process knew that synced a file: kept in the host's memory, beside the page cache, and as long.
//!
//! The kernel tells a failed write-back once. The pages stay in the cache as if they had been written, so whoever comes after the
//! process that was told takes them for durable. The note is what that process leaves:
//!
//! ```text
//! opened for buffered writing ─► note made, or found
//! write      ─► its chunks are marked, before and after
//! sync       ─► `syncing` set ─► fdatasync ─┬► good: chunks of before it unmarked, `syncing` cleared
//!                                          └► failed: `failed` set, before anybody hears of it
//! good end   ─► removed
//! ```
//!
//! | found | what it says |
//! |---|---|
//! | no note, or neither is set | what an earlier sync was told is known to nobody; the kernel tells what it has told nobody |
//! | `syncing` | the process died in a sync, which may have taken an error with it |
//! | `failed` | a sync failed |
//!
//! It lies on a tmpfs: it goes with the page cache when the host restarts. Where it cannot be kept there, it is this process's alone,
//! and a warning says so.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Once;

use rustix::fs::{
    fallocate, fstat, fstatfs, mkdirat, openat, statx, unlinkat, AtFlags, FallocateFlags, Mode, OFlags,
    StatxFlags, CWD,
};
use rustix::io::Errno;

use crate::direct::MEMORY_FILE_SYSTEMS;

/// Where the host's memory is a folder; retained journals are there, too.
const MEMORY_FOLDER: &str = "/dev/shm";

/// `AINOTE` and a version.
const MAGIC: u64 = u64::from_be_bytes(*b"AINOTE\0\x01");
/// Words of the note.
const MAGIC_WORD: usize = 0;
const SHIFT_WORD: usize = 1;
const SYNCING_WORD: usize = 2;
const FAILED_WORD: usize = 3;
const CURRENT_WORD: usize = 4;
/// The marks: two sets of a page each, of which a sync clears the older one.
const SET_WORDS: usize = 512;
const WORDS: usize = 3 * SET_WORDS;
const BYTES: usize = WORDS * 8;
const CHUNKS: u64 = SET_WORDS as u64 * 64;
/// The smallest chunk, in bytes, as a power of two.
const SHIFT_MIN: u64 = 21;

/// Why what the cache shows of a file may not be on storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// A process died while it synced.
    Died,
    /// A sync failed.
    Failed,
}

impl Doubt {
    fn code(self) -> u64 {
        match self {
            Self::Died => 1,
            Self::Failed => 2,
        }
    }

    fn of(code: u64) -> Option<Self> {
        match code {
            0 => None,
            1 => Some(Self::Died),
            _ => Some(Self::Failed),
        }
    }
}

/// See the module. Who has it has the file locked.
pub(crate) struct Note {
    words: *const AtomicU64,
    /// Of a chunk, as a power of two.
    shift: u64,
    /// The folder, and the name in it, where it outlives this process.
    kept: Option<(OwnedFd, String)>,
}

// SAFETY: the pointer is to a mapping that this value owns until it is dropped; all access is atomic.
unsafe impl Send for Note {}
// SAFETY: as above.
unsafe impl Sync for Note {}

impl Note {
    /// The note of a file of that size that may be written through the cache: found, or made.
    ///
    /// # Errors
    /// No memory can be mapped.
    pub fn of(file: &File, size: u64) -> io::Result<Self> {
        match Self::kept(file, size, true) {
            Ok(Some(note)) => Ok(note),
            Ok(None) => Self::map(None, None, size),
            Err(error) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    let folder = folder_path();
                    tracing::warn!(
                        %error, folder = %folder.display(),
                        "no note of failed syncs can be kept there: a daemon that is killed after one leaves nothing for the next to know it by"
                    );
                });
                Self::map(None, None, size)
            }
        }
    }

    /// The note that an earlier process has left, if there is one.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn found(file: &File, size: u64) -> io::Result<Option<Self>> {
        Self::kept(file, size, false)
    }

    fn kept(file: &File, size: u64, make: bool) -> io::Result<Option<Self>> {
        let name = name_of(file)?;
        let folder = match folder(make) {
            Err(Errno::NOENT) if !make => return Ok(None),
            folder => folder?,
        };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = if make { flags | OFlags::CREATE } else { flags };
        let memory = match openat(&folder, &name, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::NOENT) if !make => return Ok(None),
            memory => memory?,
        };
        let is_new = fstat(&memory)?.st_size == 0;
        // Memory that is missing when it is touched would be a SIGBUS.
        let allocated = fallocate(&memory, FallocateFlags::empty(), 0, BYTES as u64);
        if let Err(error) = allocated {
            if is_new {
                unlinkat(&folder, &name, AtFlags::empty())?;
            }
            return Err(error.into());
        }
        let note = Self::map(Some(memory.as_fd()), Some((folder, name)), size)?;
        if !is_new {
            note.take_over(size);
        }
        Ok(Some(note))
    }

    fn map(memory: Option<BorrowedFd<'_>>, kept: Option<(OwnedFd, String)>, size: u64) -> io::Result<Self> {
        let (access, anonymous) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
        let kind = libc::MAP_SHARED | if memory.is_none() { anonymous } else { 0 };
        let fd = memory.map_or(-1, |memory| memory.as_raw_fd());
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, kind, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let note = Self { words: base.cast(), shift: shift_for(size), kept };
        if note.word(MAGIC_WORD).load(Ordering::Acquire) == 0 {
            note.word(SHIFT_WORD).store(note.shift, Ordering::Relaxed);
            note.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
        }
        Ok(note)
    }

    /// What an earlier process left becomes a doubt, if it says one.
    fn take_over(&self, size: u64) {
        if self.word(MAGIC_WORD).load(Ordering::Acquire) != MAGIC
            || self.word(SHIFT_WORD).load(Ordering::Relaxed) != shift_for(size)
        {
            // Another version's, or of another size: which chunks it means is not known.
            self.word(SHIFT_WORD).store(self.shift, Ordering::Relaxed);
            self.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
            self.suspect_all(Doubt::Died);
        } else if self.word(SYNCING_WORD).load(Ordering::Acquire) != 0 {
            self.word(FAILED_WORD).fetch_max(Doubt::Died.code(), Ordering::AcqRel);
        }
        self.word(SYNCING_WORD).store(0, Ordering::Release);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "a word of the note");
        // SAFETY: within the mapping, which lives as long as `self`, and whose words are only used as atomics. A mapping
        // begins at a page, so they are aligned; its memory is allocated, so touching it does not fail.
        unsafe { &*self.words.add(index) }
    }

    fn set(&self, set: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = SET_WORDS * (1 + (set as usize & 1));
        (first..first + SET_WORDS).map(|index| self.word(index))
    }

    /// A range is written, or was: before the write, and again after it, because a sync that began between the two does not cover it.
    pub fn mark(&self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let set = SET_WORDS * (1 + (self.word(CURRENT_WORD).load(Ordering::Acquire) as usize & 1));
        for chunk in offset >> self.shift..=(offset + (len - 1)) >> self.shift {
            let chunk = chunk.min(CHUNKS - 1);
            let (word, bit) = (self.word(set + chunk as usize / 64), 1 << (chunk % 64));
            // Most are: a line of the cache that all queues share is not written for nothing.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// A sync begins. It covers what has completed.
    pub fn sync_begins(&self) {
        self.word(SYNCING_WORD).store(1, Ordering::Release);
        self.word(CURRENT_WORD).fetch_add(1, Ordering::AcqRel);
    }

    /// It was good.
    pub fn sync_was_good(&self) {
        if self.doubt().is_none() {
            let older = self.word(CURRENT_WORD).load(Ordering::Acquire) + 1;
            self.set(older).filter(|word| word.load(Ordering::Relaxed) != 0).for_each(|word| {
                word.store(0, Ordering::Relaxed);
            });
        }
        self.word(SYNCING_WORD).store(0, Ordering::Release);
    }

    /// A sync failed: to be called before anybody hears of it.
    pub fn sync_failed(&self) {
        self.word(FAILED_WORD).fetch_max(Doubt::Failed.code(), Ordering::AcqRel);
        self.word(SYNCING_WORD).store(0, Ordering::Release);
    }

    /// Whoever wrote what was lost did not mark it.
    pub fn suspect_all(&self, doubt: Doubt) {
        self.set(0).for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        self.word(FAILED_WORD).fetch_max(doubt.code(), Ordering::AcqRel);
    }

    /// What is to be thought of what the cache shows of the marked chunks.
    pub fn doubt(&self) -> Option<Doubt> {
        Doubt::of(self.word(FAILED_WORD).load(Ordering::Acquire))
    }

    /// The marked ranges of a file of that size, in chunks.
    pub fn marked(&self, size: u64) -> Vec<(u64, u64)> {
        let words = self.set(0).zip(self.set(1));
        let words = words.map(|(a, b)| a.load(Ordering::Acquire) | b.load(Ordering::Acquire));
        let chunks = words.enumerate().filter(|(_, word)| *word != 0).flat_map(|(index, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| index as u64 * 64 + bit)
        });
        let ranges = chunks.map(|chunk| (chunk << self.shift, (chunk + 1) << self.shift));
        ranges.take_while(|(from, _)| *from < size).map(|(from, to)| (from, to.min(size))).collect()
    }

    /// Storage holds what the cache shows, or what it does not hold was given up.
    pub fn settled(&self) {
        self.set(0).chain(self.set(1)).for_each(|word| word.store(0, Ordering::Relaxed));
        self.word(FAILED_WORD).store(0, Ordering::Release);
    }

    /// The file is used no more by this process, which still has it locked. A note that says nothing goes.
    pub fn end(&self) {
        let syncing = self.word(SYNCING_WORD).load(Ordering::Acquire) != 0;
        let Some((folder, name)) = self.kept.as_ref().filter(|_| !syncing && self.doubt().is_none()) else {
            return;
        };
        match unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            // It says nothing, so it does no harm.
            Err(error) => tracing::debug!(%error, name, "a note of syncs stays"),
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, of this length; nothing borrows from it any more.
        unsafe { libc::munmap(self.words.cast_mut().cast(), BYTES) };
    }
}

/// So large that the marks reach to the end.
fn shift_for(size: u64) -> u64 {
    let chunk = size.div_ceil(CHUNKS).max(1).next_power_of_two();
    SHIFT_MIN.max(chunk.trailing_zeros().into())
}

/// Where this user's notes are.
pub(crate) fn folder_path() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    Path::new(MEMORY_FOLDER).join(format!("afterimage-syncs-{user}"))
}

/// The folder in which notes of syncs are made, found and removed: for a sandbox. It is there where it can be.
pub fn notes_folder() -> PathBuf {
    // Where it cannot, the first note says so.
    let _ = folder(true);
    folder_path()
}

/// This user's folder, which nobody else can have put there or look into.
fn folder(make: bool) -> rustix::io::Result<OwnedFd> {
    let path = folder_path();
    if make {
        match mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, &path, flags, Mode::empty())?;
    let found = fstat(&folder)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
        return Err(Errno::PERM);
    }
    // On a disk it would outlive the page cache.
    match MEMORY_FILE_SYSTEMS.contains(&(fstatfs(&folder)?.f_type as u64)) {
        true => Ok(folder),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// What no other file has at the same time, and few have after it: where a number is used again, so is its time of birth not.
fn name_of(file: &File) -> io::Result<String> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        return Ok(format!("device-{:x}", metadata.rdev()));
    }
    let birth = statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
    let birth =
        birth.filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0).map(|found| found.stx_btime);
    let (seconds, nanoseconds) = birth.map_or((0, 0), |time| (time.tv_sec, time.tv_nsec));
    Ok(format!("{:x}-{:x}-{seconds:x}-{nanoseconds:x}", metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;

    fn file() -> File {
        // Not on a tmpfs, as the usual folder may be: notes are for what has a cache.
        let target = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(target.parent().unwrap()).unwrap();
        file.set_len(SIZE).unwrap();
        file
    }

    fn found(file: &File) -> Option<(Option<Doubt>, Vec<u64>)> {
        let note = Note::found(file, SIZE).unwrap()?;
        Some((note.doubt(), note.marked(SIZE).iter().map(|(from, _)| from >> 20).collect()))
    }

    #[test]
    fn what_a_process_leaves_says_what_its_syncs_were_told() {
        let file = file();
        assert_eq!(found(&file), None);
        let note = Note::of(&file, SIZE).unwrap();
        note.mark(5 << 20, 1);
        note.sync_begins();
        note.mark(8 << 20, (2 << 20) + 1);
        // It dies within the sync.
        drop(note);
        assert_eq!(found(&file), Some((Some(Doubt::Died), vec![4, 8, 10])));
        let note = Note::of(&file, SIZE).unwrap();
        note.end();
        assert!(found(&file).is_some(), "an end leaves a doubt that nobody has settled");
        note.sync_begins();
        note.sync_was_good();
        assert_eq!(found(&file), Some((Some(Doubt::Died), vec![4, 8, 10])), "nor does a sync settle it");
        note.settled();
        assert_eq!(found(&file), Some((None, vec![])));
        note.mark(0, 1);
        note.sync_begins();
        note.mark(SIZE - 1, 1);
        note.sync_was_good();
        assert_eq!(found(&file), Some((None, vec![62])), "a sync covers what was marked before it");
        note.sync_begins();
        note.sync_failed();
        note.end();
        drop(note);
        assert_eq!(found(&file), Some((Some(Doubt::Failed), vec![62])));
        Note::of(&file, SIZE).unwrap().settled();
        Note::of(&file, SIZE).unwrap().end();
        assert_eq!(found(&file), None, "a good end");
    }

    #[test]
    fn a_note_of_another_size_or_version_means_every_chunk() {
        let file = file();
        drop(Note::of(&file, 1 << 50).unwrap());
        let note = Note::of(&file, SIZE).unwrap();
        assert_eq!((note.doubt(), note.marked(SIZE).len()), (Some(Doubt::Died), 32));
        note.settled();
        note.end();
    }

    #[test]
    fn marks_reach_to_the_end_of_any_file() {
        for (size, shift) in [(512, 21), (64 << 30, 21), ((64 << 30) + 1, 22), (7 << 60, 48)] {
            assert_eq!(shift_for(size), shift);
            let note = Note::map(None, None, size).unwrap();
            note.mark(size - 512, 512);
            assert_eq!(note.marked(size).last().map(|(_, to)| *to), Some(size));
        }
    }
}
