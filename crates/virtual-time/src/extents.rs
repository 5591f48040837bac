//! Ranges of a file, apart and in order.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    /// Start to end.
    runs: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Extents {
    /// Bytes in all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Where the last one ends; 0 where there is none.
    pub fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// The runs, upwards.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range; what it touches becomes one with it.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((from, to)) = self.runs.range(..=end).next_back().map(|(from, to)| (*from, *to)) {
            if to < start {
                break;
            }
            self.runs.remove(&from);
            self.bytes -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
        self.bytes += end - start;
    }

    /// The parts of a range that are in none.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        if range.is_empty() {
            return found;
        }
        let mut at = range.start;
        let before = self.runs.range(..=range.start).next_back();
        for (from, to) in before.into_iter().chain(self.runs.range(range.start + 1..range.end)) {
            if *from > at {
                found.push(at..*from);
            }
            at = at.max(*to);
        }
        if at < range.end {
            found.push(at..range.end);
        }
        found
    }

    /// Leaves nothing, and returns what there was.
    pub fn take(&mut self) -> Extents {
        std::mem::take(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut extents = Extents::default();
        for range in [10..20, 30..40, 50..60, 20..30, 45..46, 5..5] {
            extents.insert(range);
        }
        assert_eq!(extents.iter().collect::<Vec<_>>(), [10..40, 45..46, 50..60]);
        assert_eq!(extents.bytes(), 41);
        extents.insert(0..100);
        assert_eq!((extents.bytes(), extents.iter().count()), (100, 1));
        assert_eq!(extents.take().bytes(), 100);
        assert_eq!(extents.bytes(), 0);
    }

    #[test]
    fn what_is_missing_is_what_no_range_holds() {
        let mut extents = Extents::default();
        let one = |range: Range<u64>| vec![range];
        assert_eq!(extents.missing(3..7), one(3..7));
        extents.insert(10..20);
        extents.insert(30..40);
        assert_eq!(extents.missing(0..50), [0..10, 20..30, 40..50]);
        assert_eq!(extents.missing(12..18), []);
        assert_eq!(extents.missing(15..35), one(20..30));
        assert_eq!(extents.missing(20..30), one(20..30));
        assert_eq!(extents.missing(25..25), []);
    }
}
