//! Which parts of an image change while somebody copies it.
//!
//! ```text
//! a write has reached the image ─► Changes::note ─► Ranges ─► Changes::take ─► whoever copies reads them again
//! ```
//!
//! A change is noted after it reached the image and before a pause may rely on it. So a copier that takes the ranges and reads
//! them then has each byte as it is, or finds the range noted again: the write was still under way. While nobody copies, a write
//! costs one load.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Ranges that are kept apart; more are made coarser. About 10 MB of memory.
const RANGES_MAX: usize = 1 << 18;
/// The finest grain: a page, which a copy could not take in parts anyway.
const GRAIN_BYTES: u64 = 4096;

/// A set of bytes of a disk, in disjoint ranges that do not touch. Its memory is bounded: where there would be too many ranges they
/// grow, so it may hold more than was put in, and never less.
#[derive(Clone, Debug)]
pub struct Ranges {
    /// Ends by beginnings.
    ends: BTreeMap<u64, u64>,
    grain: u64,
    max: usize,
}

impl Default for Ranges {
    fn default() -> Self {
        Self { ends: BTreeMap::new(), grain: GRAIN_BYTES, max: RANGES_MAX }
    }
}

impl Ranges {
    /// Adds the bytes, and what is missing to whole grains.
    pub fn insert(&mut self, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        self.join(bytes);
        while self.ends.len() > self.max {
            self.grain *= 2;
            for (start, end) in std::mem::take(&mut self.ends) {
                self.join(start..end);
            }
        }
    }

    fn join(&mut self, bytes: Range<u64>) {
        let mut start = bytes.start / self.grain * self.grain;
        let mut end = bytes.end.checked_next_multiple_of(self.grain).unwrap_or(u64::MAX);
        while let Some((s, e)) =
            self.ends.range(..=end).next_back().map(|(s, e)| (*s, *e)).filter(|(_, e)| *e >= start)
        {
            self.ends.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.ends.insert(start, end);
    }

    /// Takes the first range, or as many bytes of it.
    pub fn take(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        let (start, end) = self.ends.pop_first()?;
        let cut = end.min(start.saturating_add(bytes_max));
        if cut < end {
            self.ends.insert(cut, end);
        }
        if self.ends.is_empty() {
            self.grain = GRAIN_BYTES;
        }
        Some(start..cut)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many bytes are in it.
    pub fn bytes(&self) -> u64 {
        self.ends.iter().map(|(start, end)| end - start).sum()
    }
}

/// The changes of one image, while they are asked for.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    on: AtomicBool,
    ranges: Mutex<Ranges>,
}

impl Changes {
    /// These bytes of the image may be other ones than before: the write has ended, well or not.
    pub(crate) fn note(&self, offset: u64, bytes: u64) {
        if self.on.load(Ordering::SeqCst) {
            self.ranges.lock().insert(offset..offset.saturating_add(bytes));
        }
    }

    /// Notes from here on, or forgets and notes nothing any more.
    pub(crate) fn set(&self, on: bool) {
        self.on.swap(on, Ordering::SeqCst);
        *self.ranges.lock() = Ranges::default();
    }

    /// Takes so many ranges at most. Whether there are more.
    pub(crate) fn take(&self, max: usize) -> (Vec<Range<u64>>, bool) {
        let mut ranges = self.ranges.lock();
        let taken = std::iter::from_fn(|| ranges.take(u64::MAX)).take(max).collect();
        (taken, !ranges.is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges are meant.
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(mut ranges: Ranges, bytes_max: u64) -> Vec<Range<u64>> {
        std::iter::from_fn(|| ranges.take(bytes_max)).collect()
    }

    proptest! {
        /// Against a naive set of pages: nothing is missing, whatever the bound; and nothing is added where it is not met.
        #[test]
        fn holds_what_was_put_in(
            put in proptest::collection::vec((0u64..400 << 9, 0u64..20 << 9), 0..60),
            max in 1usize..20,
        ) {
            let (mut free, mut bounded) = (Ranges::default(), Ranges { max, ..Ranges::default() });
            let mut pages = std::collections::BTreeSet::new();
            for (start, bytes) in put {
                free.insert(start..start + bytes);
                bounded.insert(start..start + bytes);
                pages.extend((start..start + bytes).map(|at| at / GRAIN_BYTES));
                prop_assert!(bounded.ends.len() <= max);
            }
            prop_assert_eq!(free.bytes(), pages.len() as u64 * GRAIN_BYTES);
            for (ranges, exact) in [(free, true), (bounded, false)] {
                let taken = all(ranges, 3 * GRAIN_BYTES);
                prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
                let found: std::collections::BTreeSet<u64> =
                    taken.iter().flat_map(|range| range.start / GRAIN_BYTES..range.end / GRAIN_BYTES).collect();
                let right = if exact { found == pages } else { found.is_superset(&pages) };
                prop_assert!(right);
            }
        }
    }

    #[test]
    fn a_whole_disk_of_any_size_is_one_range() {
        let mut ranges = Ranges::default();
        (0..1000).for_each(|n| ranges.insert(n * 8192..n * 8192 + 1));
        ranges.insert(0..7 << 60);
        assert_eq!(all(ranges.clone(), u64::MAX), [0..7 << 60]);
        ranges.insert(u64::MAX - 1..u64::MAX);
        assert!(!ranges.is_empty());
    }

    #[test]
    fn nothing_is_noted_while_nobody_asks() {
        let changes = Changes::default();
        changes.note(0, 512);
        changes.set(true);
        assert_eq!(changes.take(9), (vec![], false));
        changes.note(512, 512);
        changes.note(1 << 20, 512);
        assert_eq!(changes.take(1), (vec![0..4096], true));
        changes.set(false);
        changes.note(0, 512);
        assert_eq!(changes.take(9), (vec![], false));
    }
}
