//! What storage itself holds, past the page cache.
//!
//! A page whose write-back has failed stays in the cache, readable and clean: no later sync writes it, or says anything.
//! Whoever comes after the process that was told (the next daemon) would take it for durable. So pages that were there
//! before are read past the cache, compared, and written again where storage does not hold them:
//!
//! ```text
//! fdatasync ─► for each range in the cache: cached copy, stored copy ─► same: left alone
//!  (an old error is no answer yet)                                    └► other: written again, to be synced
//! ```
//!
//! A page that storage holds is not written: a power cut could tear what is durable. What is not in the cache is what
//! storage holds. Where the kernel says that the file can be read directly (`STATX_DIOALIGN`: ext4, XFS, F2FS, block
//! devices), the stored copy is read with `O_DIRECT`. Elsewhere the flag may be taken and ignored (compressed btrfs): there
//! the pages are taken out of the cache and read again, which leaves the copy in this process's memory the only one until it
//! is written; where they cannot be taken out, that is an error. On tmpfs the cache is the storage.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use afterimage_block::Buffers;
use rustix::fs::{fadvise, Advice};

use crate::direct::{self, Backing};
use crate::transfer::{Alignment, Target};

/// The unit of comparison, in bytes: a page of the cache, on most machines.
const PAGE: u64 = 4096;
/// As much is compared at once. The kernel's largest pages do not reach over a multiple of it.
const CHUNK: u64 = 2 << 20;
/// Ranges that are looked at as a whole before their parts are.
const STEPS: [u64; 3] = [1 << 30, 64 << 20, CHUNK];

/// How often, and how long after one another, pages are tried to be evicted: three seconds in all.
const EVICTIONS_MAX: u32 = 300;
const EVICTION_RETRY: Duration = Duration::from_millis(10);

/// How the stored copy is read.
enum Past {
    Direct(File, Alignment),
    Evicting,
}

/// Writes again, through `target`, what the page cache shows of a range and storage does not hold. Nobody else may use the
/// file meanwhile. Returns the bytes written; they are durable after a sync.
pub(crate) fn rewrite_lost(target: &Target<'_>, size: u64, offset: u64, len: u64) -> io::Result<u64> {
    if len == 0 || direct::backing(target.file)? == Backing::Memory {
        return Ok(0);
    }
    let past = match direct::reported(target.file)? {
        Some(Some(alignment)) => Past::Direct(reopen(target.file, libc::O_DIRECT)?, alignment),
        _ => Past::Evicting,
    };
    rewrite_by(past, target, size, offset, len)
}

fn rewrite_by(past: Past, target: &Target<'_>, size: u64, offset: u64, len: u64) -> io::Result<u64> {
    // A page of the cache goes as a whole, and may be larger than what was asked for.
    let grain = if matches!(past, Past::Evicting) { CHUNK } else { PAGE };
    let start = offset / grain * grain;
    let end = (offset + len).next_multiple_of(grain).min(size);
    let chunks = cached_chunks(target.file, start, end)?;
    if chunks.is_empty() {
        return Ok(0);
    }
    // An error of before this process, or of now: either way the pages are clean afterwards, and compared.
    // Whether storage works is for the sync that follows to say.
    let _ = rustix::fs::fdatasync(target.file);
    let cached = reopen(target.file, 0)?;
    fadvise(&cached, 0, None, Advice::Random)?;
    let mut lost = Lost { target, cached, past, shown: Vec::new(), held: Vec::new() };
    chunks.into_iter().map(|at| lost.rewrite(at, ((at / CHUNK + 1) * CHUNK).min(end))).sum()
}

/// Where the chunks of a range begin of which some page is cached. Asked before anything is read: pages that were read
/// ahead are marked so, and reading them reads on whatever was advised, which would go on to the end of the file.
fn cached_chunks(file: &File, start: u64, end: u64) -> io::Result<Vec<u64>> {
    let (mut at, mut chunks) = (start, Vec::new());
    'next: while at < end {
        for step in STEPS.iter().filter(|step| at == start || at % **step == 0) {
            let next = ((at / step + 1) * step).min(end);
            if !is_cached(file, at, next - at)? {
                at = next;
                continue 'next;
            }
        }
        chunks.push(at);
        at = (at / CHUNK + 1) * CHUNK;
    }
    Ok(chunks)
}

struct Lost<'a> {
    target: &'a Target<'a>,
    /// Reads through the cache, whatever `target` does.
    cached: File,
    past: Past,
    shown: Vec<u8>,
    held: Vec<u8>,
}

impl Lost<'_> {
    /// Of a range within one chunk.
    fn rewrite(&mut self, at: u64, end: u64) -> io::Result<u64> {
        let len = (end - at) as usize;
        self.shown.resize(len, 0);
        self.held.resize(len, 0);
        let Self { target, cached, past, shown, held } = self;
        let cache = Target { file: cached, alignment: None, shard: target.shard };
        match past {
            Past::Direct(file, alignment) => {
                // First: it brings nothing into the cache.
                read_direct(file, *alignment, target, at, held)?;
                cache.read_slice(shown, at)?;
            }
            Past::Evicting => {
                cache.read_slice(shown, at)?;
                if !evict(cached, at, len as u64)? {
                    return Err(io::Error::other(
                        "its pages stay in the page cache, so it cannot be seen what storage holds: end whoever has the \
                         file mapped, or restart the host",
                    ));
                }
                cache.read_slice(held, at)?;
            }
        }
        let (mut written, mut from) = (0, 0);
        while from < len {
            let same = |at: usize| {
                let page = at..(at + PAGE as usize).min(len);
                shown[page.clone()] == held[page]
            };
            let pages = (from..len).step_by(PAGE as usize);
            let to = pages.clone().find(|page| same(*page) != same(from)).unwrap_or(len);
            if !same(from) {
                target.write_slice(&shown[from..to], at + from as u64)?;
                written += (to - from) as u64;
            }
            from = to;
        }
        Ok(written)
    }
}

/// Takes a range out of the page cache. `false` where it stays: the kernel itself holds a page now and then (reclaim, compaction,
/// read-ahead that is under way), but not for long.
fn evict(file: &File, at: u64, len: u64) -> io::Result<bool> {
    for _ in 0..EVICTIONS_MAX {
        fadvise(file, at, std::num::NonZeroU64::new(len), Advice::DontNeed)?;
        if !is_cached(file, at, len)? {
            return Ok(true);
        }
        std::thread::sleep(EVICTION_RETRY);
    }
    Ok(false)
}

/// Another description of the same file, for reading.
fn reopen(file: &File, flags: i32) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags | libc::O_CLOEXEC).open(path)
}

/// Fills `held` from a file that was opened with O_DIRECT.
fn read_direct(
    file: &File,
    alignment: Alignment,
    target: &Target<'_>,
    at: u64,
    held: &mut [u8],
) -> io::Result<()> {
    let direct = Target { file, alignment: Some(alignment), shard: target.shard };
    let grain = u64::from(alignment.offset);
    let start = at / grain * grain;
    let skipped = (at - start) as usize;
    let needed = skipped + held.len();
    let memory = Buffers::allocate(needed.next_multiple_of(grain as usize));
    direct.read_at_least(&memory, start, needed)?;
    memory.copy_to(skipped, held);
    Ok(())
}

/// Whether some page of a range is in the page cache.
fn is_cached(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    /// `struct cachestat_range`, `struct cachestat` (linux/mman.h, Linux 6.5).
    #[repr(C)]
    struct Range {
        off: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Cached {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    /// The same number on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;
    let (range, mut cached) = (Range { off: offset, len }, Cached::default());
    // SAFETY: both structures are the kernel's, and live until the call returns.
    let answer =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut cached, 0) };
    if answer == 0 {
        return Ok(cached.cache > 0);
    }
    // Older kernels, and filters that do not know the call.
    is_mapped_in(file, offset, len)
}

/// The same, by `mincore`.
fn is_mapped_in(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    let page = rustix::param::page_size() as u64;
    let start = offset / page * page;
    let len = (offset + len - start) as usize;
    let mut pages = vec![0u8; len.div_ceil(page as usize)];
    // SAFETY: a new mapping, at an address of the kernel's choice, of which no byte is touched.
    let base = unsafe {
        let (protection, kind) = (libc::PROT_READ, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), len, protection, kind, file.as_raw_fd(), start as libc::off_t)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has this length, and there is a byte for each of its pages.
    let asked = match unsafe { libc::mincore(base, len, pages.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the mapping from above; nothing points into it.
    unsafe { libc::munmap(base, len) };
    asked?;
    Ok(pages.iter().any(|page| page & 1 != 0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use afterimage_testing::{is_inside, on_a_device, skip, FailingStorage};

    use super::*;
    use crate::Counters;

    #[test]
    fn both_ways_past_the_cache_find_what_storage_has_lost() {
        on_a_device("stored::tests::lost_pages");
    }

    #[test]
    #[ignore = "run in a namespace by both_ways_past_the_cache_find_what_storage_has_lost"]
    fn lost_pages() {
        if !is_inside() {
            return skip("run by both_ways_past_the_cache_find_what_storage_has_lost");
        }
        const SIZE: u64 = (5 << 20) + 512;
        // The last sectors of the file are less than the device's.
        for (evicting, sector) in [(false, 512), (false, 4096), (true, 512)] {
            let folder = tempfile::tempdir().unwrap();
            let storage = FailingStorage::with_sectors(folder.path(), 24 << 20, sector);
            let path = storage.folder().join("file");
            std::fs::write(&path, vec![1; SIZE as usize]).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            file.sync_all().unwrap();
            storage.fail_under(&path);
            let mut content = vec![1; SIZE as usize];
            for (at, len) in [(0, 4096), (3 << 20, 512), (SIZE - 600, 600)] {
                content[at as usize..][..len].fill(2);
                file.write_all_at(&content[at as usize..][..len], at).unwrap();
            }
            rustix::fs::fdatasync(&file).unwrap_err();
            storage.mend();
            rustix::fs::fdatasync(&file).unwrap();
            let counters = Counters::default();
            let target = Target { file: &file, alignment: None, shard: counters.shard(0) };
            let past = || match direct::reported(&file).unwrap() {
                Some(Some(alignment)) if !evicting => {
                    Past::Direct(reopen(&file, libc::O_DIRECT).unwrap(), alignment)
                }
                _ => Past::Evicting,
            };
            // All of it was taken away below.
            assert_eq!(rewrite_by(past(), &target, SIZE, 0, SIZE).unwrap(), SIZE, "evicting: {evicting}");
            rustix::fs::fdatasync(&file).unwrap();
            assert_eq!(rewrite_by(past(), &target, SIZE, 0, SIZE).unwrap(), 0, "evicting: {evicting}");
            drop(file);
            storage.remount();
            assert!(std::fs::read(&path).unwrap() == content, "evicting: {evicting}");
        }
    }

    #[test]
    fn what_is_not_in_the_cache_is_not_read() {
        const SIZE: u64 = 64 << 20;
        // Not on a tmpfs, as the usual folder may be.
        let target = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(target.parent().unwrap()).unwrap();
        for at in (0..SIZE).step_by(CHUNK as usize) {
            file.write_all_at(&vec![1; CHUNK as usize], at).unwrap();
        }
        file.sync_all().unwrap();
        let counters = Counters::default();
        let target = Target { file: &file, alignment: None, shard: counters.shard(0) };
        for evicting in [false, true] {
            assert!(evict(&file, 0, SIZE).unwrap());
            // As whoever opens it does: what is read ahead is marked to be read on from.
            file.read_exact_at(&mut [0; 4096], 0).unwrap();
            file.read_exact_at(&mut [0; 4096], 4096).unwrap();
            let past = match direct::reported(&file).unwrap() {
                Some(Some(alignment)) if !evicting => {
                    Past::Direct(reopen(&file, libc::O_DIRECT).unwrap(), alignment)
                }
                _ => Past::Evicting,
            };
            assert_eq!(rewrite_by(past, &target, SIZE, 0, SIZE).unwrap(), 0);
            assert!(!is_cached(&file, SIZE / 2, SIZE / 2).unwrap(), "evicting: {evicting}");
        }
    }

    #[test]
    fn both_ways_of_asking_know_what_is_cached() {
        // Not on a tmpfs, as the usual folder may be.
        let target = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(target.parent().unwrap()).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1; 4096], 5 << 20).unwrap();
        for ask in [is_cached, is_mapped_in] {
            assert!(ask(&file, 0, 8 << 20).unwrap());
            assert!(ask(&file, 5 << 20, 4096).unwrap());
            assert!(!ask(&file, 0, 4 << 20).unwrap() && !ask(&file, 6 << 20, 2 << 20).unwrap());
        }
    }
}
