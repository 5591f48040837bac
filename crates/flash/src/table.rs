//! Large tables: in huge pages where the kernel has them, and hints about what will be needed soon.
//!
//! A drive of 32 GB has tables of tens of megabytes that scattered writes touch at random places. What that costs is
//! mostly not the work but the wait: a translation of the address that the processor does not remember, then a cache
//! line. Huge pages avoid the first, hints hide the second. Neither can change a result.

#![allow(unsafe_code)]

/// Tables of at least so many bytes ask for huge pages; below, they would mostly round up.
const HUGE_FROM: usize = 4 << 20;
/// Bytes a cache line.
const LINE: usize = 64;

/// `len` times `value`, in huge pages if that is worth it and the kernel grants it.
pub fn filled<T: Copy>(value: T, len: usize) -> Vec<T> {
    let mut table: Vec<T> = Vec::with_capacity(len);
    advise(&mut table);
    // Pages are chosen when they are first touched, which is here.
    table.resize(len, value);
    table
}

/// Asks for huge pages. A kernel that refuses leaves the table as it is, so the answer is of no interest.
#[cfg(target_os = "linux")]
fn advise<T>(table: &mut Vec<T>) {
    const PAGE: usize = 4096;
    let spare = table.spare_capacity_mut();
    let bytes = std::mem::size_of_val(spare);
    if bytes < HUGE_FROM {
        return;
    }
    let start = spare.as_mut_ptr().cast::<u8>();
    let skip = start.align_offset(PAGE);
    let len = (bytes - skip) / PAGE * PAGE;
    // SAFETY: the range is inside the allocation that `table` owns exclusively (`skip` is below a page, the table is
    // larger), and this advice changes neither contents nor validity of memory, only the size of the pages behind it.
    let _ = unsafe { rustix::mm::madvise(start.add(skip).cast(), len, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn advise<T>(_table: &mut Vec<T>) {}

/// A table whose first element begins a cache line. Large allocations begin 16 bytes into one, so that of records of
/// whole lines each would touch one line more than it has.
#[derive(Debug)]
pub struct Lines<T> {
    table: Vec<T>,
    skip: usize,
}

impl<T: Copy> Lines<T> {
    /// Elements a cache line.
    pub const LINE: usize = LINE / std::mem::size_of::<T>();

    /// `len` times `value`.
    pub fn filled(value: T, len: usize) -> Self {
        let mut table = filled(value, len + Self::LINE);
        // Where that cannot be said, the table is only slower.
        let skip = table.as_ptr().align_offset(LINE).min(Self::LINE);
        table.truncate(skip + len);
        Self { table, skip }
    }
}

impl<T> std::ops::Deref for Lines<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.table[self.skip..]
    }
}

impl<T> std::ops::DerefMut for Lines<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.table[self.skip..]
    }
}

/// Says that an element will be needed soon. Costs an instruction or two; an index out of range is passed over.
#[inline(always)]
pub fn prefetch<T>(table: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = table.get(index) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        let start: *const i8 = std::ptr::from_ref(element).cast();
        for at in (0..std::mem::size_of::<T>()).step_by(LINE) {
            // SAFETY: a prefetch changes nothing that the program can see and never faults; SSE, which has it, is part
            // of every x86-64. The address is inside a live element all the same.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (table, index);
}

/// The same for all of a short stretch.
#[inline(always)]
pub fn prefetch_range<T>(table: &[T], from: usize, len: usize) {
    let line = (LINE / std::mem::size_of::<T>().max(1)).max(1);
    let mut at = from;
    while at < from + len {
        prefetch(table, at);
        at += line;
    }
    prefetch(table, (from + len).saturating_sub(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_holds_what_it_was_filled_with() {
        let table = filled(7_u32, 3 * HUGE_FROM / 4 + 5);
        assert!(table.iter().all(|v| *v == 7));
        prefetch(&table, table.len());
        prefetch_range(&table, table.len() - 3, 100);
        assert!(filled(1_u64, 0).is_empty());
        let lines = Lines::filled(3_u16, 1000);
        assert_eq!((lines.len(), lines.as_ptr().align_offset(LINE)), (1000, 0));
    }
}
