//! Scatter-gather memory that may belong to a guest.
//!
//! A guest can write to its memory while we read it, so no Rust reference to it is ever made: bytes are copied
//! in and out through raw pointers ([`crate::guest_copy`]), or the kernel is given the iovecs. A layer that checksums or parses
//! data copies it first and looks only at the copy.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::guest_copy;

/// A list of memory segments and what keeps them mapped.
pub struct Buffers {
    segments: SmallVec<[libc::iovec; 4]>,
    len: usize,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the segments are plain addresses; `from_raw` requires that the memory stays mapped while the owner
// lives and that access from any thread is allowed, and no reference into the memory is ever handed out.
unsafe impl Send for Buffers {}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers").field("segments", &self.segments.len()).field("len", &self.len).finish()
    }
}

impl Buffers {
    /// No memory: flushes, discards, write-zeroes.
    pub fn empty() -> Self {
        Self { segments: SmallVec::new(), len: 0, owner: None }
    }

    /// Describes memory that somebody else owns.
    ///
    /// # Safety
    /// Each segment is mapped, readable, and writable where the request is a read, for as long as `owner` (or,
    /// without one, the request) lives. Others may change the bytes meanwhile. Nobody holds a Rust reference to them.
    pub unsafe fn from_raw(
        segments: impl IntoIterator<Item = libc::iovec>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        let segments: SmallVec<[libc::iovec; 4]> = segments.into_iter().filter(|s| s.iov_len > 0).collect();
        let len = segments.iter().map(|s| s.iov_len).sum();
        Self { segments, len, owner }
    }

    /// One owned, page-aligned segment of `len` zero bytes, for tools and tests; read it back with
    /// [`Buffers::copy_to`].
    pub fn allocate(len: usize) -> Self {
        let memory = Arc::new(OwnedMemory::new(len));
        let segment = libc::iovec { iov_base: memory.base.cast(), iov_len: len };
        // SAFETY: the allocation lives as long as `memory`, which the buffers own, and is only reached through them.
        unsafe { Self::from_raw([segment], Some(memory)) }
    }

    /// An owned copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let buffers = Self::allocate(bytes.len());
        buffers.copy_from(0, bytes);
        buffers
    }

    /// Another handle to the same memory.
    pub fn share(&self) -> Self {
        Self { segments: self.segments.clone(), len: self.len, owner: self.owner.clone() }
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The segments, for system calls that read or fill them.
    pub fn segments(&self) -> &[libc::iovec] {
        &self.segments
    }

    /// The part of the memory from `offset` for `len` bytes, sharing the owner.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let segments =
            self.ranges(offset, len).map(|(p, n)| libc::iovec { iov_base: p.cast(), iov_len: n }).collect();
        Self { segments, len, owner: self.owner.clone() }
    }

    /// Copies from `offset` into `target`, filling it.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        let mut done = 0;
        for (source, n) in self.ranges(offset, target.len()) {
            // SAFETY: `from_raw` promises that the source is mapped; the target slice has at least `n` bytes left
            // because `ranges` yields exactly `target.len()` bytes; the two cannot overlap, since nobody holds a Rust
            // reference to the source. A guest changing the bytes meanwhile makes them unspecified, not the copy.
            unsafe { guest_copy::copy(source, target[done..].as_mut_ptr(), n) };
            done += n;
        }
    }

    /// Copies `source` into the memory at `offset`.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn copy_from(&self, offset: usize, source: &[u8]) {
        let mut done = 0;
        for (target, n) in self.ranges(offset, source.len()) {
            // SAFETY: as in `copy_to`, with the directions swapped; the memory of a read request is writable.
            unsafe { guest_copy::copy(source[done..].as_ptr(), target, n) };
            done += n;
        }
    }

    /// Copies `len` bytes from `offset` to `target`'s bytes at `target_offset`. The two share no memory.
    ///
    /// # Panics
    /// Where a range lies outside.
    pub fn copy_between(&self, offset: usize, target: &Self, target_offset: usize, len: usize) {
        let mut done = 0;
        for (source, n) in self.ranges(offset, len) {
            let mut from = 0;
            for (target, part) in target.ranges(target_offset + done, n) {
                // SAFETY: `ranges` yields parts of both sides that are as long together, mapped as `from_raw` promises; the
                // caller says that they do not overlap.
                unsafe { guest_copy::copy(source.wrapping_add(from), target, part) };
                from += part;
            }
            done += n;
        }
    }

    /// Fills a range with zero bytes.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn fill_zero(&self, offset: usize, len: usize) {
        for (target, n) in self.ranges(offset, len) {
            // SAFETY: as in `copy_from`.
            unsafe { guest_copy::zero(target, n) };
        }
    }

    /// A word (little-endian) that whoever shares the memory changes: read at once, and before whatever is read after it. `None` where it does
    /// not lie aligned in one segment.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn load_u32(&self, offset: usize) -> Option<u32> {
        // SAFETY: `word` says that it is mapped and aligned, and nobody makes a reference to the memory.
        self.word(offset).map(|at| u32::from_le(unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire)))
    }

    /// Changes such a word, at once and after whatever was written before it. Whether it could be.
    ///
    /// # Panics
    /// Where the range lies outside.
    pub fn store_u32(&self, offset: usize, value: u32) -> bool {
        let Some(at) = self.word(offset) else { return false };
        // SAFETY: as in `load_u32`; the memory of a read request is writable.
        unsafe { AtomicU32::from_ptr(at) }.store(value.to_le(), Ordering::Release);
        true
    }

    fn word(&self, offset: usize) -> Option<*mut u32> {
        const BYTES: usize = size_of::<u32>();
        let (at, len) = self.ranges(offset, BYTES).next()?;
        let at = at.cast::<u32>();
        (len == BYTES && at.is_aligned()).then_some(at)
    }

    /// The whole content as a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(0, &mut bytes);
        bytes
    }

    fn ranges(&self, offset: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "range outside the buffers");
        let mut skip = offset;
        let mut left = len;
        self.segments.iter().filter_map(move |segment| {
            if skip >= segment.iov_len {
                skip -= segment.iov_len;
                return None;
            }
            let n = (segment.iov_len - skip).min(left);
            let start = segment.iov_base.cast::<u8>().wrapping_add(skip);
            skip = 0;
            left -= n;
            (n > 0).then_some((start, n))
        })
    }
}

/// An allocation of zeroes, page-aligned by hand: of memory that is asked for aligned, the allocator would write every byte.
struct OwnedMemory {
    base: *mut u8,
    start: *mut u8,
    layout: std::alloc::Layout,
}

// SAFETY: the pointer is the unique handle to an allocation that only raw copies touch.
unsafe impl Send for OwnedMemory {}
// SAFETY: as above; there is no method that makes a reference to the bytes.
unsafe impl Sync for OwnedMemory {}

impl OwnedMemory {
    fn new(len: usize) -> Self {
        const PAGE: usize = 4096;
        let layout = std::alloc::Layout::array::<u8>(len + PAGE).expect("a buffer fits in memory");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: at most a page further, which was asked for besides.
        let base = unsafe { start.add(start.align_offset(PAGE)) };
        Self { base, start, layout }
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { std::alloc::dealloc(self.start, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_copies_cross_segments() {
        let a = Buffers::from_bytes(b"abcdef");
        let b = Buffers::from_bytes(b"ghij");
        let segments: Vec<_> = a.segments().iter().chain(b.segments()).copied().collect();
        // SAFETY: `a` and `b` outlive the joined view.
        let joined = unsafe { Buffers::from_raw(segments, None) };
        assert_eq!(joined.len(), 10);
        let mut out = [0; 4];
        joined.copy_to(4, &mut out);
        assert_eq!(&out, b"efgh");
        joined.slice(5, 3).copy_from(1, b"XY");
        assert_eq!(joined.to_vec(), b"abcdefXYij");
        joined.fill_zero(9, 1);
        assert_eq!(b.to_vec(), b"XYi\0");
        let (c, d) = (Buffers::from_bytes(b"....."), Buffers::from_bytes(b"....."));
        let segments: Vec<_> = c.segments().iter().chain(d.segments()).copied().collect();
        // SAFETY: `c` and `d` outlive the joined view.
        let other = unsafe { Buffers::from_raw(segments, None) };
        joined.copy_between(2, &other, 1, 8);
        assert_eq!(other.to_vec(), b".cdefXYi\0.");
    }

    #[test]
    fn words_are_aligned_and_in_one_piece() {
        let (a, b) = (Buffers::allocate(8), Buffers::allocate(8));
        // SAFETY: `a` and `b` outlive the joined view.
        let joined = unsafe { Buffers::from_raw(a.segments().iter().chain(b.segments()).copied(), None) };
        assert!(joined.store_u32(8, 0x0102_0304) && joined.store_u32(4, 7));
        assert_eq!(b.to_vec(), [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(
            (joined.load_u32(8), joined.load_u32(4), joined.load_u32(0)),
            (Some(0x0102_0304), Some(7), Some(0))
        );
        assert_eq!((joined.load_u32(6), joined.load_u32(9)), (None, None), "in two pieces, and not aligned");
        assert!(!joined.store_u32(10, 1));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_range_outside_panics() {
        Buffers::allocate(8).copy_to(4, &mut [0; 5]);
    }
}
