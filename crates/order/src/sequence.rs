//! The group's history: its numbers, and how far each of its promises has got.
//!
//! ```text
//! given a number ─► acknowledged ─► durable ─► home
//! ```
//!
//! Invariant: each watermark only grows, whoever raises it in whatever order.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use afterimage_block::SequenceNumber;
use afterimage_format::log::PAGE_BYTES;

/// A byte of a log's record area, counted from the log's creation: it never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// The page boundary at or after it.
    pub fn page_up(self) -> Self {
        Self(self.0.next_multiple_of(PAGE_BYTES))
    }

    /// The page boundary at or before it.
    pub fn page_down(self) -> Self {
        Self(self.0 / PAGE_BYTES * PAGE_BYTES)
    }
}

impl Add<u64> for LogPosition {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl Sub for LogPosition {
    type Output = u64;

    /// Bytes from `earlier` to here.
    fn sub(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}

/// A disk by its place among the images of a log. Read-only disks have none, so it is another number than the
/// [`DiskIndex`](afterimage_block::DiskIndex) that the guest's disks are counted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoggedDisk(pub u16);

impl LoggedDisk {
    /// For tables by disk.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A sequence number up to which something holds.
#[derive(Debug, Default)]
pub struct Watermark(AtomicU64);

impl Watermark {
    fn new(at: SequenceNumber) -> Self {
        Self(AtomicU64::new(at.0))
    }

    /// Where it stands.
    pub fn get(&self) -> SequenceNumber {
        SequenceNumber(self.0.load(Ordering::SeqCst))
    }

    /// Lifts it to `to`, where it is not there yet.
    pub(crate) fn raise(&self, to: SequenceNumber) {
        self.0.fetch_max(to.0, Ordering::SeqCst);
    }

    /// Gives the next number, and counts it in.
    pub(crate) fn step(&self) -> SequenceNumber {
        SequenceNumber(self.0.fetch_add(1, Ordering::SeqCst)).next()
    }
}

/// How far a group's history has got. See the module.
#[derive(Debug, Default)]
pub struct Sequence {
    /// The newest request that has its number: everything up to it may have completed.
    pub acknowledged: Watermark,
    /// Everything up to this survives a power cut.
    pub durable: Watermark,
    /// Everything up to this is in the images, synced.
    pub home: Watermark,
}

impl Sequence {
    /// What a log holds when it is opened: requests up to `acknowledged`, of which those up to `home` are in the images.
    pub(crate) fn found(acknowledged: SequenceNumber, home: SequenceNumber) -> Self {
        Self {
            acknowledged: Watermark::new(acknowledged),
            durable: Watermark::new(home),
            home: Watermark::new(home),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_never_fall() {
        let sequence = Sequence::found(SequenceNumber(7), SequenceNumber(3));
        assert_eq!(sequence.acknowledged.step(), SequenceNumber(8));
        sequence.durable.raise(SequenceNumber(8));
        sequence.durable.raise(SequenceNumber(5));
        assert_eq!((sequence.durable.get().0, sequence.home.get().0), (8, 3));
    }

    #[test]
    fn pages_of_positions() {
        let at = LogPosition(PAGE_BYTES + 1);
        assert_eq!((at.page_down().0, at.page_up().0), (PAGE_BYTES, 2 * PAGE_BYTES));
        assert_eq!(at.page_up().page_up() - at.page_down(), PAGE_BYTES);
    }
}
