//! The mapped file: where things lie in it, and the only unsafe code of the arena.
//!
//! ```text
//! page 0        header
//! pages 1..=4   volume records, 128 bytes each
//! then groups of 129 pages: [128 tags of 32 bytes][128 slots of 4 KiB]
//! ```
//!
//! A tag page stands beside its slots so that one `fallocate` gives memory to both, and so that the file can grow.
//! Tags and records are only reached as atomic words, slots only as blocks: the two never overlap.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{madvise, mmap, munmap, Advice, MapFlags, ProtFlags};

use crate::ids::{Block, BLOCK_BYTES};

/// Bytes of a page, of a slot, of a group's tags.
pub(super) const PAGE: u64 = BLOCK_BYTES as u64;
/// Pages of volume records.
pub(super) const RECORD_PAGES: u64 = 4;
/// Bytes before the first group.
pub(super) const HEAD: u64 = (1 + RECORD_PAGES) * PAGE;
/// Bytes of a tag.
pub(super) const TAG: u64 = 32;
/// Words of a tag.
pub(super) const TAG_WORDS: usize = 4;
/// Slots of a group.
pub(super) const GROUP_SLOTS: u32 = (PAGE / TAG) as u32;
/// Bytes of a group.
pub(super) const GROUP: u64 = PAGE + GROUP_SLOTS as u64 * PAGE;
/// The most slots that a slot number of 32 bits leaves room for, in whole groups: 16 TiB.
pub(super) const SLOTS_MAX: u32 = u32::MAX / GROUP_SLOTS * GROUP_SLOTS;

/// Where a group's tags begin.
pub(super) fn group_at(slot: u32) -> u64 {
    HEAD + u64::from(slot / GROUP_SLOTS) * GROUP
}

/// Where a slot's content begins.
pub(super) fn slot_at(slot: u32) -> u64 {
    group_at(slot) + PAGE + u64::from(slot % GROUP_SLOTS) * PAGE
}

/// The file's length for so many slots, a multiple of [`GROUP_SLOTS`].
pub(super) fn file_bytes(slots: u32) -> u64 {
    HEAD + u64::from(slots / GROUP_SLOTS) * GROUP
}

/// An arena's file, mapped shared, whole.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    slots: u32,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread. Slots are reached through `slot` and `slot_mut`, whose callers keep readers and the
// one writer of a slot apart, and everything else as atomic words; moving `base` to another thread changes nothing about either.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file that is [`file_bytes`]`(slots)` long.
    pub(super) fn new(file: &File, slots: u32) -> io::Result<Self> {
        assert_eq!(slots % GROUP_SLOTS, 0, "slots come in whole groups");
        let bytes = usize::try_from(file_bytes(slots)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing exists there that it could harm. The
        // file is locked by this process's own description, so no other daemon writes it; accesses beyond its end
        // cannot happen as it only grows (`Arena::set_bytes_max`).
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, slots, bytes })
    }

    /// Slots it has room for.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// A word of a slot's tag.
    pub(super) fn tag(&self, slot: u32, word: usize) -> &AtomicU64 {
        assert!(slot < self.slots && word < TAG_WORDS, "a tag of this arena");
        self.word(group_at(slot) + u64::from(slot % GROUP_SLOTS) * TAG + word as u64 * 8)
    }

    /// A word of the header and the volume records.
    pub(super) fn head(&self, word: usize) -> &AtomicU64 {
        assert!((word as u64) < HEAD / 8, "a word of the head");
        self.word(word as u64 * 8)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: both callers checked that the eight bytes at `at` lie inside the mapping, whose base is page-aligned
        // and `at` a multiple of 8, so the pointer is valid and aligned for as long as `self` lives. Both name places
        // outside all slots, which are the only memory reached other than as atomics.
        unsafe { AtomicU64::from_ptr(self.base.add(at as usize).cast().as_ptr()) }
    }

    /// A slot's content.
    ///
    /// # Safety
    /// Nobody writes to this slot while the reference lives.
    pub(super) unsafe fn slot(&self, slot: u32) -> &Block {
        assert!(slot < self.slots, "a slot of this arena");
        // SAFETY: the 4096 bytes lie inside the mapping, any bytes are a valid `Block`, which needs no alignment. Nobody of this process
        // writes there, by this function's contract. Another process would have to ignore the file's lock to write there; one that
        // can open this file of mode 0600 can also ptrace this process, so no guarantee of the language could hold against it.
        unsafe { self.base.add(slot_at(slot) as usize).cast::<Block>().as_ref() }
    }

    /// A slot's content, to be written.
    ///
    /// # Safety
    /// No other reference into this slot lives as long as this one.
    #[allow(clippy::mut_from_ref)] // The map is shared with loans of other slots; see the contract.
    pub(super) unsafe fn slot_mut(&self, slot: u32) -> &mut Block {
        assert!(slot < self.slots, "a slot of this arena");
        // SAFETY: as in `slot`; by this function's contract this is the only reference.
        unsafe { self.base.add(slot_at(slot) as usize).cast::<Block>().as_mut() }
    }

    /// Faults memory of whole pages in, so that the first writer does not pay for it. The file must hold blocks there
    /// already: where it cannot get memory any more, touching it would be a SIGBUS.
    pub(super) fn populate(&self, at: u64, bytes: u64) -> io::Result<()> {
        assert!(
            at % PAGE == 0 && bytes % PAGE == 0 && at + bytes <= self.bytes as u64,
            "pages of this arena"
        );
        // SAFETY: a range inside the mapping; populating changes no content, it only maps what the file has.
        let result = unsafe {
            madvise(self.base.add(at as usize).as_ptr().cast(), bytes as usize, Advice::LinuxPopulateWrite)
        };
        match result {
            // Before Linux 5.14: the first writer faults it in.
            Err(Errno::INVAL) | Ok(()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range and nothing else unmaps it; every reference into it borrowed `self`.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) } {
            tracing::warn!(%error, "unmapping an arena");
        }
    }
}

/// Everything stored before this line is visible before anything stored after it. A daemon killed between two stores
/// leaves the file with a prefix of them only if neither compiler nor processor may swap them.
pub(super) fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
