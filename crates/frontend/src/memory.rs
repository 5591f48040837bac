//! Guest memory: mapped files, address translation, and the only raw accesses to them.
//!
//! No Rust reference into guest memory is ever made: the guest writes to it at any time. Everything here copies
//! through raw pointers or hands iovecs to the layers below.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use afterimage_block::{guest_copy, Buffers};
use rustix::fs::{fcntl_get_seals, fstat, fstatfs, statx, AtFlags, FileType, StatxFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::sigbus::Registration;

/// `HUGETLBFS_MAGIC` (linux/magic.h).
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

/// A guest-physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GuestAddress(pub u64);

/// An address in the VMM's own address space, which is what vhost-user gives ring addresses in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserAddress(pub u64);

/// A mapped file, guarded against truncation. The file itself is closed once it is mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Ends before the mapping does: see `drop`.
    registration: Option<Registration>,
    /// What the kernel mapped: whole pages of the file's own size.
    pages: *mut u8,
    pages_bytes: usize,
    /// Where the region begins inside.
    skip: usize,
    len: usize,
}

// SAFETY: the pointer is an address of a mapping that this value alone owns and any thread may access; no reference is
// made.
unsafe impl Send for Mapping {}
// SAFETY: as above: all accesses are raw copies or atomics, which tolerate others at the same time.
unsafe impl Sync for Mapping {}

/// What a file can be mapped like.
struct Backing {
    page_bytes: usize,
    /// `None` where it has none that could be known: a device file.
    file_bytes: Option<u64>,
}

/// Looks at a file of the peer's without waiting for anybody. A file system whose server is a process (FUSE) may answer
/// never, and a process that waits for it, in `fstat` or in a page fault, cannot even be killed. So only what needs no
/// server is taken: memory of the kernel's (the only files that have seals), and files on a block device. What
/// STATX_DONT_SYNC says is there already.
fn backing(file: &File) -> io::Result<Backing> {
    let page_bytes = rustix::param::page_size();
    if fcntl_get_seals(file).is_ok() {
        let (status, system) = (fstat(file)?, fstatfs(file)?);
        let huge = system.f_type == HUGETLBFS_MAGIC;
        return Ok(Backing {
            page_bytes: if huge { system.f_bsize as usize } else { page_bytes },
            file_bytes: Some(status.st_size as u64),
        });
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(file, c"", flags, StatxFlags::TYPE | StatxFlags::SIZE)?;
    match FileType::from_raw_mode(status.stx_mode.into()) {
        FileType::CharacterDevice => Ok(Backing { page_bytes, file_bytes: None }),
        FileType::RegularFile if status.stx_dev_major != 0 => {
            Ok(Backing { page_bytes, file_bytes: Some(status.stx_size) })
        }
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "it must be a memfd or a file on a tmpfs, a hugetlbfs or a block device's file system",
        )),
    }
}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset`, shared.
    ///
    /// # Errors
    /// A file that could make its user wait, a regular one that is shorter, or what `mmap` says. (Of a device file's size
    /// nothing is known.)
    pub fn of_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let Backing { page_bytes, file_bytes } = backing(file)?;
        if offset % rustix::param::page_size() as u64 != 0 {
            return Err(invalid("the region does not begin with a page of its file"));
        }
        // Of a hugetlbfs whole huge pages can be mapped, and only whole ones unmapped, whatever the region begins with.
        let skip = (offset % page_bytes as u64) as usize;
        let pages_bytes = skip.checked_add(len).and_then(|n| n.checked_next_multiple_of(page_bytes));
        let end = offset.checked_add(len as u64);
        let (Some(pages_bytes), Some(end)) = (pages_bytes, end) else {
            return Err(invalid("the region wraps around"));
        };
        let room = file_bytes.map(|bytes| bytes.checked_next_multiple_of(page_bytes as u64));
        if room.is_some_and(|room| room.is_none_or(|room| end > room)) {
            return Err(invalid("the file is shorter than the region"));
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice replaces nothing.
        let pages =
            unsafe { mmap(std::ptr::null_mut(), pages_bytes, access, flags, file, offset - skip as u64)? };
        Self::register(pages.cast(), pages_bytes, skip, len)
    }

    /// `len` bytes of private memory, for tests and fuzzing.
    #[cfg(any(test, feature = "testkit"))]
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: as in `of_file`.
        let pages = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, flags)? };
        Self::register(pages.cast(), len, 0, len)
    }

    fn register(pages: *mut u8, pages_bytes: usize, skip: usize, len: usize) -> io::Result<Self> {
        // Unmapped by `drop` where the registration fails.
        let mut mapping = Self { registration: None, pages, pages_bytes, skip, len };
        mapping.registration = Some(Registration::new(pages as usize, pages_bytes)?);
        Ok(mapping)
    }

    /// Whether the file became shorter than the mapping and somebody touched the missing part.
    pub fn poisoned(&self) -> bool {
        self.registration.as_ref().is_some_and(Registration::poisoned)
    }

    fn base(&self) -> *mut u8 {
        self.pages.wrapping_add(self.skip)
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.registration = None;
        // SAFETY: the very pages that were mapped, which nothing points to any more: every window and every request
        // holds this value's owner.
        let unmapped = unsafe { munmap(self.pages.cast(), self.pages_bytes) };
        debug_assert!(unmapped.is_ok(), "whole pages are unmapped: {unmapped:?}");
    }
}

/// A contiguous, mapped range with bounds-checked access. Offsets out of range panic: the callers compute them
/// from sizes that were checked against the window's length.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    base: *mut u8,
    len: usize,
    owner: Arc<Mapping>,
}

// SAFETY: the pointer is an address inside `owner`'s mapping, which any thread may access; no reference is made.
unsafe impl Send for Window {}

impl Window {
    /// `len` bytes of `mapping` from `offset`, where they exist and the start has this alignment.
    pub fn new(mapping: &Arc<Mapping>, offset: u64, len: usize, alignment: usize) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > mapping.len() {
            return None;
        }
        let base = mapping.base().wrapping_add(offset);
        (base as usize % alignment == 0).then(|| Self { base, len, owner: Arc::clone(mapping) })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn poisoned(&self) -> bool {
        self.owner.poisoned()
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "outside the window");
        self.base.wrapping_add(offset)
    }

    fn u16_cell(&self, offset: usize) -> &AtomicU16 {
        let at = self.at(offset, 2);
        assert!(at as usize % 2 == 0, "misaligned");
        // SAFETY: mapped while `self` lives (`owner`), aligned, in bounds; an atomic tolerates the guest's writes.
        unsafe { AtomicU16::from_ptr(at.cast()) }
    }

    pub fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        u16::from_le(self.u16_cell(offset).load(order))
    }

    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        self.u16_cell(offset).store(value.to_le(), order);
    }

    fn u8_cell(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as in `u16_cell`; a byte has no alignment.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    pub fn load_u8(&self, offset: usize) -> u8 {
        self.u8_cell(offset).load(Ordering::Acquire)
    }

    pub fn store_u8(&self, offset: usize, value: u8) {
        self.u8_cell(offset).store(value, Ordering::Release);
    }

    fn u64_cell(&self, offset: usize) -> &AtomicU64 {
        let at = self.at(offset, 8);
        assert!(at as usize % 8 == 0, "misaligned");
        // SAFETY: as in `u16_cell`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    pub fn load_u64(&self, offset: usize) -> u64 {
        u64::from_le(self.u64_cell(offset).load(Ordering::Acquire))
    }

    pub fn store_u64(&self, offset: usize, value: u64) {
        self.u64_cell(offset).store(value.to_le(), Ordering::Release);
    }

    /// Copies `N` bytes out, whatever their alignment.
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: `at` checked the source; the target is ours and cannot overlap a mapping we made no reference to.
        unsafe { guest_copy::copy(self.at(offset, N), bytes.as_mut_ptr(), N) };
        bytes
    }

    /// Copies bytes in, whatever their alignment.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as in `read`, with the directions swapped; every mapping is writable.
        unsafe { guest_copy::copy(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) };
    }
}

/// One region of the peer's memory table.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub guest: GuestAddress,
    pub user: UserAddress,
    pub len: u64,
    pub mapping: Arc<Mapping>,
}

/// The guest's memory as the peer's table describes it. Immutable: a new table is a new value.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMemory {
    regions: Vec<Region>,
}

impl GuestMemory {
    /// The same memory with one more region.
    ///
    /// # Errors
    /// It wraps around the address space, is longer than its mapping, or overlaps another one.
    pub fn with_region(&self, region: Region) -> Result<Self, &'static str> {
        let end = region.guest.0.checked_add(region.len).ok_or("a memory region wraps around")?;
        region.user.0.checked_add(region.len).ok_or("a memory region wraps around")?;
        if region.len == 0 || region.len > region.mapping.len() as u64 {
            return Err("a memory region is empty or longer than its mapping");
        }
        if self.regions.iter().any(|r| region.guest.0 < r.guest.0 + r.len && r.guest.0 < end) {
            return Err("two memory regions overlap");
        }
        let mut regions = self.regions.clone();
        let place = regions.partition_point(|r| r.guest < region.guest);
        regions.insert(place, region);
        Ok(Self { regions })
    }

    /// The same memory without the region that starts at both of these addresses, if there is one.
    pub fn without_region(&self, guest: GuestAddress, user: UserAddress, len: u64) -> Option<Self> {
        let found = self.regions.iter().position(|r| r.guest == guest && r.user == user && r.len == len)?;
        let mut regions = self.regions.clone();
        regions.remove(found);
        Some(Self { regions })
    }

    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Whether any region's file was truncated under us.
    pub fn poisoned(&self) -> bool {
        self.regions.iter().any(|r| r.mapping.poisoned())
    }

    /// The region that holds `address`, and how far inside.
    fn find(&self, address: GuestAddress) -> Option<(&Region, u64)> {
        let place = self.regions.partition_point(|r| r.guest <= address);
        let region = self.regions.get(place.checked_sub(1)?)?;
        let inside = address.0 - region.guest.0;
        (inside < region.len).then_some((region, inside))
    }

    /// `len` bytes from a guest address, where one region holds them all.
    pub fn window(&self, address: GuestAddress, len: usize) -> Option<Window> {
        let (region, inside) = self.find(address)?;
        (len as u64 <= region.len - inside).then(|| Window::new(&region.mapping, inside, len, 1))?
    }

    /// `len` bytes from an address of the VMM's, where one region holds them all and they are aligned.
    pub fn user_window(&self, address: UserAddress, len: usize, alignment: usize) -> Option<Window> {
        self.regions.iter().find_map(|region| {
            let inside = address.0.checked_sub(region.user.0)?;
            if inside >= region.len || len as u64 > region.len - inside {
                return None;
            }
            Window::new(&region.mapping, inside, len, alignment)
        })
    }

    /// Stores one byte; `false` where there is no memory.
    pub fn store_u8(&self, address: GuestAddress, value: u8) -> bool {
        let Some((region, inside)) = self.find(address) else { return false };
        let at = region.mapping.base().wrapping_add(inside as usize);
        // SAFETY: `find` checked that the byte lies inside the mapping, which `self` keeps mapped.
        unsafe { AtomicU8::from_ptr(at) }.store(value, Ordering::Release);
        true
    }
}

/// Guest memory as an ordered list of segments: one direction of a descriptor chain. Reused from chain to chain.
pub(crate) struct SegmentList {
    memory: Arc<GuestMemory>,
    segments: Vec<libc::iovec>,
    len: u64,
}

// SAFETY: the segments are addresses inside `memory`'s mappings (only `push` adds any), which any thread may access.
unsafe impl Send for SegmentList {}

impl SegmentList {
    /// An empty list over `memory`. Each queue should wrap the memory in an `Arc` of its own: the count is touched per
    /// request.
    pub fn new(memory: Arc<GuestMemory>) -> Self {
        Self { memory, segments: Vec::with_capacity(64), len: 0 }
    }

    pub fn clear(&mut self) {
        self.segments.clear();
        self.segments.shrink_to(Self::KEPT);
        self.len = 0;
    }

    /// Segments for which memory is kept.
    const KEPT: usize = 2048;
    /// The most memory of both lists of a chain in bytes: each descriptor split at every region's end.
    pub(crate) const BYTES_MAX: usize = 4 << 20;

    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Number of contiguous pieces.
    pub fn pieces(&self) -> usize {
        self.segments.len()
    }

    /// Appends a guest range, split where regions meet. `false`, and nothing appended, where a part of it is no memory.
    pub fn push(&mut self, address: GuestAddress, len: u32) -> bool {
        let (before, mut at, mut left) = (self.segments.len(), address, u64::from(len));
        while left > 0 {
            let Some((region, inside)) = self.memory.find(at) else {
                self.segments.truncate(before);
                return false;
            };
            let n = left.min(region.len - inside);
            let base = region.mapping.base().wrapping_add(inside as usize);
            self.segments.push(libc::iovec { iov_base: base.cast(), iov_len: n as usize });
            left -= n;
            // A region's end does not wrap (`with_region`).
            at = GuestAddress(at.0 + n);
        }
        self.len += u64::from(len);
        true
    }

    /// The bytes `offset..offset + len` as buffers that keep the memory mapped.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn buffers(&self, offset: u64, len: u64) -> Buffers {
        let parts =
            self.parts(offset, len).map(|(base, n)| libc::iovec { iov_base: base.cast(), iov_len: n });
        let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(&self.memory) as _;
        // SAFETY: every segment lies inside a mapping of `memory`, mapped readable and writable, which the owner keeps
        // mapped; nobody makes references into guest memory.
        unsafe { Buffers::from_raw(parts, Some(owner)) }
    }

    /// Copies out from `offset`, filling `target`.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn copy_to(&self, offset: u64, target: &mut [u8]) {
        let mut done = 0;
        for (base, n) in self.parts(offset, target.len() as u64) {
            // SAFETY: the part is mapped while `self.memory` lives; `parts` yields exactly `target.len()` bytes.
            unsafe { guest_copy::copy(base, target[done..].as_mut_ptr(), n) };
            done += n;
        }
    }

    /// Copies `source` in at `offset`.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn copy_from(&self, offset: u64, source: &[u8]) {
        let mut done = 0;
        for (base, n) in self.parts(offset, source.len() as u64) {
            // SAFETY: as in `copy_to`, with the directions swapped.
            unsafe { guest_copy::copy(source[done..].as_ptr(), base, n) };
            done += n;
        }
    }

    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        assert!(offset <= self.len && len <= self.len - offset, "outside the segments");
        let (mut skip, mut left) = (offset, len);
        self.segments.iter().filter_map(move |segment| {
            let piece = segment.iov_len as u64;
            if skip >= piece || left == 0 {
                skip = skip.saturating_sub(piece);
                return None;
            }
            let n = (piece - skip).min(left);
            let base = segment.iov_base.cast::<u8>().wrapping_add(skip as usize);
            skip = 0;
            left -= n;
            Some((base, n as usize))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{memfd_create, MemfdFlags};
    use std::os::unix::fs::FileExt;

    const HUGE: usize = 2 << 20;
    const OVERCOMMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";

    /// Huge pages for as long as it lives, where root may have them.
    struct HugePages(Option<String>);

    impl HugePages {
        fn get() -> Self {
            let before = std::fs::read_to_string(OVERCOMMIT).ok();
            Self(before.filter(|_| std::fs::write(OVERCOMMIT, "8").is_ok()))
        }
    }

    impl Drop for HugePages {
        fn drop(&mut self) {
            if let Some(before) = &self.0 {
                let _ = std::fs::write(OVERCOMMIT, before.trim());
            }
        }
    }

    fn mappings(name: &str) -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(name)).count()
    }

    #[test]
    fn huge_pages_are_mapped_and_unmapped_whole() {
        let pages = HugePages::get();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let made = memfd_create("afterimage-huge", flags).map_err(io::Error::from).and_then(|fd| {
            let file = File::from(fd);
            file.set_len(2 * HUGE as u64)?;
            Mapping::of_file(&file, 0, 2 * HUGE).map(|_| file)
        });
        let file = match made {
            Ok(file) => file,
            Err(why) => return afterimage_testing::skip(format!("no huge pages of 2 MiB: {why}")),
        };
        assert_eq!(mappings("afterimage-huge"), 0);
        // A region that begins inside one huge page and ends inside the next one.
        let mapping = Arc::new(Mapping::of_file(&file, 8192, HUGE).unwrap());
        assert_eq!((mapping.len(), mappings("afterimage-huge")), (HUGE, 1));
        let window = Window::new(&mapping, 0, HUGE, 1).unwrap();
        window.write(HUGE - 4, b"last");
        let mut found = [0; 4];
        file.read_exact_at(&mut found, (8192 + HUGE - 4) as u64).unwrap();
        assert_eq!(&found, b"last");
        assert!(Mapping::of_file(&file, 8192, 2 * HUGE).is_err(), "longer than the file");
        assert!(Mapping::of_file(&file, 77, HUGE).is_err(), "not a page's begin");
        // Taken away, it reads as zeroes, and all of it is unmapped all the same.
        file.set_len(0).unwrap();
        assert_eq!(window.read::<4>(HUGE - 4), [0; 4]);
        assert!(mapping.poisoned());
        drop((window, mapping));
        assert_eq!(mappings("afterimage-huge"), 0);
        drop(pages);
    }

    #[test]
    fn the_file_is_closed_once_it_is_mapped() {
        let file = File::from(memfd_create("afterimage-once", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(8192).unwrap();
        let mapping = Mapping::of_file(&file, 4096, 4096).unwrap();
        drop(file);
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let open = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        assert_eq!(open.filter(|to| to.to_string_lossy().contains("afterimage-once")).count(), 0);
        assert_eq!(mapping.len(), 4096);
    }
}
