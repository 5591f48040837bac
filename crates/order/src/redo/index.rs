//! Which sectors of a disk have a version in the log that is newer than home: sharded by region, so that readers of
//! different places share no lock. A reader holds its shard while it reads the log, a step of [`super::reads`] at a time: who appends to the
//! same place waits that long.

use std::sync::atomic::{AtomicUsize, Ordering};

use afterimage_block::SequenceNumber;
use parking_lot::{RwLock, RwLockReadGuard};

use super::extents::{Extent, ExtentMap, Source};

const SHARDS: usize = 64;
/// The smallest region: 16 MiB.
const REGION_SHIFT_MIN: u32 = 15;
/// No disk has more regions than 2 to this: a discard of everything makes one entry a region.
const REGIONS_LOG2_MAX: u32 = 16;

/// The most regions of a disk: the log's records say how many more entries there are.
pub const REGIONS_MAX: usize = 1 << REGIONS_LOG2_MAX;

/// One disk's index.
pub(crate) struct Index {
    shards: Vec<RwLock<ExtentMap>>,
    region_shift: u32,
    extents: AtomicUsize,
}

impl Index {
    pub(crate) fn new(disk_sectors: u64) -> Self {
        let bits = u64::BITS - disk_sectors.leading_zeros();
        let region_shift = bits.saturating_sub(REGIONS_LOG2_MAX).max(REGION_SHIFT_MIN);
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, region_shift, extents: AtomicUsize::new(0) }
    }

    /// Whether all sectors are newest at home. A write that completed before the call is seen: its entry was counted
    /// before its completion was posted.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.load(Ordering::SeqCst) == 0
    }

    /// The pieces of a range that one shard each holds.
    pub(crate) fn pieces(&self, start: u64, sectors: u64) -> impl Iterator<Item = Piece> {
        let shift = self.region_shift;
        let end = start + sectors;
        let mut from = start;
        std::iter::from_fn(move || {
            if from >= end {
                return None;
            }
            let region = from >> shift;
            let to = ((region + 1) << shift).min(end);
            let piece = Piece { shard: (region % SHARDS as u64) as usize, start: from, sectors: to - from };
            from = to;
            Some(piece)
        })
    }

    /// Holds the shard of a piece: while the guard lives, the log space of what it shows is not reused.
    pub(crate) fn read(&self, piece: &Piece) -> RwLockReadGuard<'_, ExtentMap> {
        self.shards[piece.shard].read()
    }

    pub(crate) fn insert(&self, start: u64, sectors: u64, source: Source, sequence: SequenceNumber) {
        for piece in self.pieces(start, sectors) {
            let source = match source {
                Source::Log(position) => Source::Log(position + (piece.start - start) * 512),
                zero => zero,
            };
            self.change(&piece, |map| {
                map.insert(piece.start, Extent { sectors: piece.sectors, source, sequence })
            });
        }
    }

    pub(crate) fn remove_up_to(&self, start: u64, sectors: u64, sequence: SequenceNumber) {
        for piece in self.pieces(start, sectors) {
            self.change(&piece, |map| map.remove_up_to(piece.start, piece.sectors, sequence));
        }
    }

    fn change(&self, piece: &Piece, change: impl FnOnce(&mut ExtentMap)) {
        let mut map = self.shards[piece.shard].write();
        let before = map.len();
        change(&mut map);
        let after = map.len();
        // Under the shard's lock, so that the sum never misses an entry that a later change has already removed.
        if after >= before {
            self.extents.fetch_add(after - before, Ordering::SeqCst);
        } else {
            self.extents.fetch_sub(before - after, Ordering::SeqCst);
        }
    }
}

/// A part of a range that lies in one region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    shard: usize,
    pub(crate) start: u64,
    pub(crate) sectors: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::LogPosition;

    #[test]
    fn ranges_are_cut_at_regions_and_counted() {
        let index = Index::new(1 << 20);
        index.insert((1 << 15) - 4, 8, Source::Log(LogPosition(640)), SequenceNumber(1));
        assert!(!index.is_empty());
        let pieces: Vec<_> = index.pieces((1 << 15) - 4, 8).collect();
        assert_eq!(pieces.len(), 2);
        let right = index.read(&pieces[1]).iter().next().expect("an entry");
        assert_eq!(right.1.source, Source::Log(LogPosition(640 + 4 * 512)));
        index.remove_up_to(0, 1 << 20, SequenceNumber(0));
        assert!(!index.is_empty());
        index.remove_up_to(0, 1 << 20, SequenceNumber(1));
        assert!(index.is_empty());
    }

    #[test]
    fn a_discard_of_an_enormous_disk_stays_small() {
        let sectors = u64::MAX / 512;
        let index = Index::new(sectors);
        index.insert(0, sectors, Source::Zero { unmap: true }, SequenceNumber(1));
        assert!(index.extents.load(Ordering::SeqCst) <= 1 << REGIONS_LOG2_MAX);
    }
}
