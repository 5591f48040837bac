//! What a start makes of a file that an earlier process has written: it acts on what was said, never on a difference.
//!
//! ```text
//! fsync of the new description ─┬► good, no doubt in the note ───────────────► nothing is looked at
//!   (tells an error that nobody │
//!    was told)                  └► an error: noted ─┐
//!                                  a doubt ─────────┴► of what is marked and in the cache:
//!
//!   the cache is the newest there is ─┬► O_DIRECT reads storage: pages that differ are written again
//!   (ext4, XFS, btrfs, F2FS)          └► it may not: the pages are written again
//!   the cache may be the older one ───┬► O_DIRECT reads storage: nothing differs, or the start is refused
//!   (devices, FUSE, NFS, ...)         └► it may not: refused where a sync failed
//! ```
//!
//! A page that storage holds is not written where that can be seen: a power cut could tear what is durable. Where it cannot, only
//! pages are written that the noted process has written since its last good sync, or lie in one chunk with such pages. Nothing is
//! taken out of the cache, so a start that fails or is killed while it looks leaves everything as it was.
//!
//! Linux does not keep the cache of a block device as new as what direct writes, or other devices over the same storage, put
//! there. So it is never written back, and it is emptied before a device is used.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use afterimage_block::{BlockError, Buffers};
use rustix::fs::{
    fadvise, fcntl_getfl, fcntl_setfl, fstatfs, statfs, statx, Advice, AtFlags, OFlags, StatxFlags,
};
use rustix::io::Errno;

use crate::direct::{self, Backing, CACHING_FILE_SYSTEMS};
use crate::note::{Doubt, Note};
use crate::syncs::Syncs;
use crate::transfer::{Alignment, Target};
use crate::OpenError;

/// As much is looked at at once, in bytes.
const WINDOW: u64 = 2 << 20;
/// Ranges that are looked at as a whole before their parts are.
const STEPS: [u64; 4] = [1 << 40, 1 << 30, 64 << 20, WINDOW];
/// How often, and how long after one another, a device's cache is tried to be emptied: three seconds in all.
const EVICTIONS_MAX: u32 = 300;
const EVICTION_RETRY: Duration = Duration::from_millis(10);

/// `OVERLAYFS_SUPER_MAGIC` (linux/magic.h).
const OVERLAYFS: u64 = 0x794c_7630;
/// File systems where O_DIRECT reads what the server holds: FUSE and virtiofs, NFS, 9p, CephFS, SMB (linux/magic.h).
const SERVED_FILE_SYSTEMS: [u64; 5] = [0x6573_5546, 0x6969, 0x0102_1997, 0x00c3_6400, 0xfe53_4d42];
/// `BLKFLSBUF` (linux/fs.h).
const BLKFLSBUF: libc::c_ulong = 0x1261;

static GIVEN_UP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// When the flag is set (by a signal), a start that looks at an image gives up. Nothing is lost by that. To be called once.
pub fn give_up_looking_when(flag: Arc<AtomicBool>) {
    GIVEN_UP.get_or_init(|| flag);
}

/// Makes what reads of the file show durable, as far as somebody knows that it might not be. Before anybody else uses it.
/// Returns the bytes that had to be written again.
pub(crate) fn settle(
    syncs: &Syncs,
    target: &Target<'_>,
    size: u64,
    buffered: bool,
    path: &Path,
) -> io::Result<u64> {
    if direct::backing(target.file)? == Backing::Memory {
        return syncs.wait(syncs.need()).map(|()| 0).map_err(BlockError::into_io);
    }
    let fsync = || Ok(rustix::fs::fsync(target.file)?);
    let written =
        syncs.settle(&fsync, target.file, size, &|note, doubt| look(target, size, path, note, doubt))?;
    if is_device(target.file)? {
        match buffered {
            true => forget_cache(target.file, size, path)?,
            // It is read and written past the cache: what stays is nobody's but its reader's.
            false => empty(target.file)?,
        }
    }
    if written > 0 {
        let path = path.display();
        tracing::warn!(%path, bytes = written, "storage did not hold what an earlier process had written: written again");
    }
    Ok(written)
}

/// Goes on with what storage holds, where it is in doubt whether that is what the cache shows: the cache is emptied, the doubt forgotten.
/// Whether there was one.
///
/// # Errors
/// The file is in use, or its pages stay in the cache.
pub fn trust_storage(path: &Path) -> Result<bool, OpenError> {
    let file = File::open(path).map_err(OpenError::io("opening", path))?;
    crate::lock_file(&file, path, false)?;
    let size = direct::size(&file).map_err(OpenError::io("finding the size of", path))?;
    let note = Note::found(&file, size).map_err(OpenError::io("looking for the note of", path))?;
    let Some(note) = note.filter(|note| note.doubt().is_some()) else { return Ok(false) };
    // An error that was told before.
    let _ = rustix::fs::fsync(&file);
    forget_cache(&file, size, path).map_err(OpenError::io("emptying the cache of", path))?;
    note.settled();
    note.end();
    Ok(true)
}

fn look(target: &Target<'_>, size: u64, path: &Path, note: &Note, doubt: Doubt) -> io::Result<u64> {
    let newest = is_newest(target.file)?;
    let storage = storage(target.file, newest)?;
    if !newest && storage.is_none() {
        let why = "and its file system does not show what storage holds";
        return match doubt {
            Doubt::Failed => Err(refusal(path, doubt, why)),
            Doubt::Died => {
                tracing::warn!(path = %path.display(), "the last daemon died while it synced this, {why}");
                Ok(0)
            }
        };
    }
    let cached = reopen(target.file, newest)?;
    fadvise(&cached, 0, None, Advice::Random)?;
    let mut look = Look { target, cached, storage, newest, path, doubt, shown: Vec::new(), held: Vec::new() };
    let asks = fstatfs(target.file)?.f_type as u64 != OVERLAYFS;
    let mut written = 0;
    for (from, to) in note.marked(size) {
        let mut at = from;
        'next: while at < to {
            if GIVEN_UP.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(io::Error::new(
                    io::ErrorKind::Interrupted,
                    "told to end while it looked at storage",
                ));
            }
            for step in STEPS.iter().filter(|step| asks && (at == from || at % **step == 0)) {
                let next = ((at / step + 1) * step).min(to);
                if !is_cached(target.file, at, next - at) {
                    at = next;
                    continue 'next;
                }
            }
            let next = ((at / WINDOW + 1) * WINDOW).min(to);
            written += look.window(at, next)?;
            at = next;
        }
    }
    Ok(written)
}

/// A start that may take neither side.
fn refusal(path: &Path, doubt: Doubt, why: &str) -> io::Error {
    let path = path.display();
    let happened = match doubt {
        Doubt::Died => "a daemon died while it synced it",
        Doubt::Failed => "a sync of it failed",
    };
    io::Error::other(format!(
        "{happened}, {why}; the host's cache may be older than storage here, so neither is written over the other: look at both \
         (`dd if={path} iflag=direct` reads storage), or go on with what storage holds by `afterimage recover --accept-loss {path}`"
    ))
}

/// A look at one file past its cache.
struct Look<'a> {
    target: &'a Target<'a>,
    /// Reads and writes through the cache, whatever `target` does: a direct write that fails would have taken the page away.
    cached: File,
    /// Reads storage.
    storage: Option<(File, Alignment)>,
    newest: bool,
    path: &'a Path,
    doubt: Doubt,
    shown: Vec<u8>,
    held: Vec<u8>,
}

impl Look<'_> {
    fn window(&mut self, at: u64, end: u64) -> io::Result<u64> {
        let page = rustix::param::page_size();
        let resident = resident(&self.cached, at, end - at)?;
        let (mut written, mut first) = (0, 0);
        for run in resident.chunk_by(|a, b| a == b) {
            let (from, to) = (at + (first * page) as u64, at + ((first + run.len()) * page) as u64);
            first += run.len();
            if run[0] {
                written += self.run(from, to.min(end), page)?;
            }
        }
        Ok(written)
    }

    /// Of pages that are in the cache.
    fn run(&mut self, at: u64, end: u64, page: usize) -> io::Result<u64> {
        let len = (end - at) as usize;
        let Self { target, cached, storage, shown, held, .. } = self;
        let cache = Target { file: cached, alignment: None, shard: target.shard };
        shown.resize(len, 0);
        cache.read_slice(shown, at)?;
        let Some((file, alignment)) = storage else {
            cache.write_slice(shown, at)?;
            return Ok(len as u64);
        };
        held.resize(len, 0);
        read_direct(file, *alignment, target, at, held)?;
        let pages = shown.chunks(page).zip(held.chunks(page));
        let differs: Vec<bool> = pages.map(|(shown, held)| shown != held).collect();
        let (mut written, mut first) = (0, 0);
        for run in differs.chunk_by(|a, b| a == b) {
            let (from, to) = (first * page, ((first + run.len()) * page).min(len));
            first += run.len();
            if !run[0] {
                continue;
            }
            let at = at + from as u64;
            if !self.newest {
                let why = format!("and the cache shows something else at byte {at} than storage holds");
                return Err(refusal(self.path, self.doubt, &why));
            }
            cache.write_slice(&shown[from..to], at)?;
            written += (to - from) as u64;
        }
        Ok(written)
    }
}

/// Whether nothing newer can be on storage than what the cache shows: everything goes through it, or empties it.
fn is_newest(file: &File) -> io::Result<bool> {
    if is_device(file)? {
        return Ok(false);
    }
    Ok(match fstatfs(file)?.f_type as u64 {
        OVERLAYFS => upper_kind(file)?.is_some_and(|kind| CACHING_FILE_SYSTEMS.contains(&kind)),
        kind => CACHING_FILE_SYSTEMS.contains(&kind),
    })
}

fn is_device(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.file_type().is_block_device())
}

/// What an overlay keeps its changed files on, where its folder can be seen from here.
fn upper_kind(file: &File) -> io::Result<Option<u64>> {
    let Ok(found) = statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) else { return Ok(None) };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let number = found.stx_mnt_id.to_string();
    let mount = mounts.lines().find(|line| line.split(' ').next() == Some(&number));
    let options = mount.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let Some(upper) = options.split(',').find_map(|option| option.strip_prefix("upperdir=")) else {
        return Ok(None);
    };
    let (Ok(upper), here) = (statfs(PathBuf::from(upper).as_path()), fstatfs(file)?) else { return Ok(None) };
    // Of another mount name space the name may lead somewhere else here; the overlay answers with its upper's numbers.
    let same = (upper.f_blocks, upper.f_files, upper.f_bsize) == (here.f_blocks, here.f_files, here.f_bsize);
    Ok(same.then_some(upper.f_type as u64))
}

/// How storage is read past the cache, where the flag is known to do that: others take it and ignore it.
fn storage(file: &File, newest: bool) -> io::Result<Option<(File, Alignment)>> {
    let alignment = match direct::reported(file)? {
        Some(alignment) => alignment,
        None if !newest && SERVED_FILE_SYSTEMS.contains(&(fstatfs(file)?.f_type as u64)) => {
            Some(Alignment { memory: 4096, offset: 4096 })
        }
        None => None,
    };
    let Some(alignment) = alignment else { return Ok(None) };
    let file = reopen(file, false)?;
    // Not as it is opened: FUSE empties the cache then, unless its server says otherwise.
    let flags = fcntl_getfl(&file)?;
    match fcntl_setfl(&file, flags | OFlags::DIRECT) {
        Ok(()) => Ok(Some((file, alignment))),
        Err(Errno::INVAL) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Another description of the same file.
fn reopen(file: &File, write: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(write).open(path)
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

/// Empties the cache of a file. An error where something stays: a page that somebody has mapped. Others are held by the kernel
/// now and then (reclaim, compaction, read-ahead that is under way), but not for long.
fn forget_cache(file: &File, size: u64, path: &Path) -> io::Result<()> {
    for _ in 0..EVICTIONS_MAX {
        empty(file)?;
        if !is_known_to_be_cached(file, size) {
            return Ok(());
        }
        std::thread::sleep(EVICTION_RETRY);
    }
    Err(io::Error::other(format!(
        "pages of {} stay in the host's cache, which may be older than storage: end whoever has it mapped or mounted",
        path.display()
    )))
}

/// Takes pages out of the cache that nobody uses.
fn empty(file: &File) -> io::Result<()> {
    fadvise(file, 0, None, Advice::DontNeed)?;
    if is_device(file)? {
        // Lets go of buffers, too, where we may: the other way is what everybody has.
        // SAFETY: this request has no argument.
        unsafe { libc::ioctl(file.as_raw_fd(), BLKFLSBUF as _, 0) };
    }
    Ok(())
}

/// Whether some page of a range may be in the page cache. Not to be asked of an overlay: its files have no pages of their own.
fn is_cached(file: &File, offset: u64, len: u64) -> bool {
    cached_pages(file, offset, len) != Some(0)
}

fn is_known_to_be_cached(file: &File, len: u64) -> bool {
    cached_pages(file, 0, len).is_some_and(|pages| pages > 0)
}

/// Pages of a range that are in the page cache; `None` on a kernel before 6.5, or behind a filter.
fn cached_pages(file: &File, off: u64, len: u64) -> Option<u64> {
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
    let (range, mut cached) = (Range { off, len }, Cached::default());
    // SAFETY: both structures are the kernel's, and live until the call returns.
    let answer =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut cached, 0) };
    (answer == 0).then_some(cached.cache)
}

/// Which pages of a range, which begins at one, are in the page cache.
fn resident(file: &File, offset: u64, len: u64) -> io::Result<Vec<bool>> {
    let len = len as usize;
    let mut pages = vec![0u8; len.div_ceil(rustix::param::page_size())];
    // SAFETY: a new mapping, at an address of the kernel's choice, of which no byte is touched.
    let base = unsafe {
        let (protection, kind) = (libc::PROT_READ, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), len, protection, kind, file.as_raw_fd(), offset as libc::off_t)
    };
    if base == libc::MAP_FAILED {
        // What cannot be mapped cannot be asked: all of it may be there.
        return Ok(vec![true; pages.len()]);
    }
    // SAFETY: the mapping has this length, and there is a byte for each of its pages.
    let asked = match unsafe { libc::mincore(base, len, pages.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the mapping from above; nothing points into it.
    unsafe { libc::munmap(base, len) };
    asked?;
    Ok(pages.iter().map(|page| page & 1 != 0).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use afterimage_testing::{is_inside, on_a_device, skip, FailingStorage};

    use super::*;
    use crate::Counters;

    #[test]
    fn both_ways_find_what_storage_has_lost() {
        on_a_device("stored::tests::lost_pages");
    }

    #[test]
    #[ignore = "run in a namespace by both_ways_find_what_storage_has_lost"]
    fn lost_pages() {
        if !is_inside() {
            return skip("run by both_ways_find_what_storage_has_lost");
        }
        const SIZE: u64 = (5 << 20) + 512;
        // The last sectors of the file are less than the device's.
        for (blind, sector) in [(false, 512), (false, 4096), (true, 512)] {
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
            let look = || {
                let storage = super::storage(&file, true).unwrap().filter(|_| !blind);
                let (cached, path) = (reopen(&file, true).unwrap(), Path::new("file"));
                let (shown, held, newest, doubt) = (Vec::new(), Vec::new(), true, Doubt::Failed);
                let mut look = Look { target: &target, cached, storage, newest, path, doubt, shown, held };
                look.window(0, WINDOW).unwrap() + look.window(WINDOW, SIZE).unwrap()
            };
            // All of it was taken away below.
            assert_eq!(look(), SIZE, "blind: {blind}");
            rustix::fs::fdatasync(&file).unwrap();
            assert_eq!(look(), if blind { SIZE } else { 0 }, "blind: {blind}");
            rustix::fs::fdatasync(&file).unwrap();
            drop(file);
            storage.remount();
            assert!(std::fs::read(&path).unwrap() == content, "blind: {blind}");
        }
    }

    #[test]
    fn what_a_death_leaves_is_compared_where_storage_can_be_read() {
        on_a_device("stored::tests::ways_of_file_systems");
    }

    #[test]
    #[ignore = "run in a namespace by what_a_death_leaves_is_compared_where_storage_can_be_read"]
    fn ways_of_file_systems() {
        if !is_inside() {
            return skip("run by what_a_death_leaves_is_compared_where_storage_can_be_read");
        }
        // Storage holds it all: only what cannot be compared is written again.
        for (mkfs, arguments, options, written) in [
            ("mkfs.ext4", &["-q", "-F", "-b", "4096"][..], "data=ordered", 0),
            ("mkfs.ext4", &["-q", "-F", "-b", "4096"], "data=journal", WINDOW),
            ("mkfs.xfs", &["-q", "-K"], "defaults", 0),
            ("mkfs.btrfs", &["-q", "-K"], "defaults", WINDOW),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let storage = FailingStorage::other(folder.path(), mkfs, arguments, options);
            let path = storage.folder().join("file");
            std::fs::write(&path, vec![1; 8 << 20]).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            file.sync_all().unwrap();
            let died = Note::of(&file, 8 << 20).unwrap();
            died.mark(4 << 20, 4096);
            died.sync_begins();
            drop(died);
            let counters = Counters::default();
            let target = Target { file: &file, alignment: None, shard: counters.shard(0) };
            let syncs = Syncs::new(&path, Default::default(), || Ok(()));
            syncs.keep(Note::of(&file, 8 << 20).unwrap());
            assert_eq!(settle(&syncs, &target, 8 << 20, true, &path).unwrap(), written, "{mkfs} {options}");
        }
    }

    #[test]
    fn a_death_between_an_error_and_its_note() {
        on_a_device("stored::tests::dies_in_a_sync");
    }

    #[test]
    #[ignore = "run in a namespace by a_death_between_an_error_and_its_note"]
    fn dies_in_a_sync() {
        if !is_inside() {
            return skip("run by a_death_between_an_error_and_its_note");
        }
        const SIZE: u64 = 8 << 20;
        let folder = tempfile::tempdir().unwrap();
        let storage = FailingStorage::new(folder.path(), 24 << 20);
        let path = storage.folder().join("file");
        std::fs::write(&path, vec![1; SIZE as usize]).unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let file = open();
        file.sync_all().unwrap();
        storage.fail_under(&path);
        let syncs = |sync: Box<dyn Fn() -> io::Result<()> + Send + Sync>, file: &File| {
            let syncs = Syncs::new(&path, Default::default(), sync);
            syncs.keep(Note::of(file, SIZE).unwrap());
            syncs
        };
        let told = file.try_clone().unwrap();
        let dying = syncs(
            Box::new(move || {
                rustix::fs::fdatasync(&told).unwrap_err();
                std::panic::resume_unwind(Box::new(()))
            }),
            &file,
        );
        dying.begin_write(4 << 20, 4096);
        file.write_all_at(&[2; 4096], 4 << 20).unwrap();
        dying.note_write(4 << 20, 4096);
        let dies = std::panic::AssertUnwindSafe(|| dying.wait(dying.need()));
        std::panic::catch_unwind(dies).unwrap_err();
        drop((dying, file));
        storage.mend();

        let (file, counters) = (open(), Counters::default());
        let target = Target { file: &file, alignment: None, shard: counters.shard(0) };
        let next = syncs(Box::new(|| Ok(())), &file);
        let settle = || settle(&next, &target, SIZE, true, &path);
        // Who ends it ends it here, too, and loses nothing.
        let told = Arc::new(AtomicBool::new(true));
        give_up_looking_when(Arc::clone(&told));
        assert_eq!(settle().unwrap_err().kind(), io::ErrorKind::Interrupted);
        told.store(false, Ordering::Relaxed);
        // What that process wrote is looked at, and nothing else: all of it was taken away below.
        assert_eq!(settle().unwrap(), WINDOW);
        assert_eq!(settle().unwrap(), 0);
        let read = counters.snapshot().read_bytes;
        settle().unwrap();
        assert_eq!(counters.snapshot().read_bytes, read, "a start without a doubt reads nothing");
        drop((next, file));
        storage.remount();
        assert!(std::fs::read(&path).unwrap()[4 << 20..][..4096] == [2; 4096]);
    }

    #[test]
    fn both_ways_of_asking_know_what_is_cached() {
        // Not on a tmpfs, as the usual folder may be.
        let target = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(target.parent().unwrap()).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1; 4096], 5 << 20).unwrap();
        let by_page = |at, len| resident(&file, at, len).unwrap().contains(&true);
        assert!(
            by_page(0, 8 << 20)
                && by_page(5 << 20, 4096)
                && !by_page(0, 4 << 20)
                && !by_page(6 << 20, 2 << 20)
        );
        assert_eq!(resident(&file, 5 << 20, 8192).unwrap(), [true, false]);
        if cached_pages(&file, 0, 1).is_none() {
            return skip("no cachestat in this kernel");
        }
        assert!(
            is_cached(&file, 5 << 20, 4096) && is_cached(&file, 0, 8 << 20) && !is_cached(&file, 0, 4 << 20)
        );
    }
}
