//! A map from sectors to where their newest version is.

use std::collections::BTreeMap;

use afterimage_block::SequenceNumber;

use crate::sequence::LogPosition;

/// Where a version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the log, the first sector's bytes at this logical position.
    Log(LogPosition),
    /// Zeroes.
    Zero {
        /// Its space may be given back.
        unmap: bool,
    },
}

impl Source {
    fn skip(self, sectors: u64) -> Self {
        match self {
            Self::Log(position) => Self::Log(position + sectors * 512),
            zero => zero,
        }
    }
}

/// A run of sectors of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) sectors: u64,
    pub(crate) source: Source,
    pub(crate) sequence: SequenceNumber,
}

impl Extent {
    /// Its sectors from one on, so many at most.
    pub(crate) fn part(self, from: u64, sectors_max: u64) -> Self {
        let sectors = sectors_max.min(self.sectors - from);
        Self { sectors, source: self.source.skip(from), sequence: self.sequence }
    }
}

/// Disjoint extents by first sector.
#[derive(Debug, Default)]
pub(crate) struct ExtentMap(BTreeMap<u64, Extent>);

impl ExtentMap {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All extents in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.0.iter().map(|(start, extent)| (*start, *extent))
    }

    /// Puts a newer version over whatever was there.
    pub(crate) fn insert(&mut self, start: u64, extent: Extent) {
        self.carve(start, extent.sectors, |_| true);
        self.0.insert(start, extent);
    }

    /// Forgets versions up to a sequence number in a range.
    pub(crate) fn remove_up_to(&mut self, start: u64, sectors: u64, sequence: SequenceNumber) {
        self.carve(start, sectors, |extent| extent.sequence <= sequence);
    }

    /// Whether any extent overlaps the range.
    pub(crate) fn overlaps(&self, start: u64, sectors: u64) -> bool {
        self.overlapping(start, sectors).next().is_some()
    }

    /// The parts of extents within a range, in order.
    pub(crate) fn overlapping(&self, start: u64, sectors: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let end = start.saturating_add(sectors);
        let before = self.0.range(..start).next_back().filter(|(s, e)| **s + e.sectors > start);
        before.into_iter().chain(self.0.range(start..end)).map(move |(s, e)| {
            let from = (*s).max(start);
            let to = (*s + e.sectors).min(end);
            (from, e.part(from - *s, to - from))
        })
    }

    /// Cuts a range out of the extents for which `victim` holds.
    fn carve(&mut self, start: u64, sectors: u64, victim: impl Fn(&Extent) -> bool) {
        let end = start.saturating_add(sectors);
        if let Some((&s, &e)) = self.0.range(..start).next_back() {
            if s + e.sectors > start && victim(&e) {
                self.cut(s, e, start, end);
            }
        }
        let mut from = start;
        while from < end {
            let Some((&s, &e)) = self.0.range(from..end).next() else { break };
            if victim(&e) {
                self.cut(s, e, start, end);
            }
            from = s + e.sectors;
        }
    }

    fn cut(&mut self, s: u64, e: Extent, start: u64, end: u64) {
        self.0.remove(&s);
        if s < start {
            self.0.insert(s, e.part(0, start - s));
        }
        if s + e.sectors > end {
            self.0.insert(end, e.part(end - s, u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64, bool),
        Remove(u64, u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..64, 1u64..24, any::<bool>()).prop_map(|(a, b, c)| Step::Insert(a, b, c)),
            (0u64..64, 1u64..24, 0u64..40).prop_map(|(a, b, c)| Step::Remove(a, b, c)),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_an_array(steps in proptest::collection::vec(step(), 1..40)) {
            let mut map = ExtentMap::default();
            let mut array: Vec<Option<(Source, SequenceNumber)>> = vec![None; 128];
            for (sequence, step) in steps.into_iter().enumerate() {
                let sequence = SequenceNumber(sequence as u64);
                match step {
                    Step::Insert(start, sectors, zero) => {
                        let source =
                            if zero { Source::Zero { unmap: true } } else { Source::Log(LogPosition(sequence.0 * 100_000)) };
                        map.insert(start, Extent { sectors, source, sequence });
                        for i in 0..sectors {
                            array[(start + i) as usize] = Some((source.skip(i), sequence));
                        }
                    }
                    Step::Remove(start, sectors, up_to) => {
                        let up_to = SequenceNumber(up_to);
                        map.remove_up_to(start, sectors, up_to);
                        for slot in &mut array[start as usize..(start + sectors) as usize] {
                            if slot.is_some_and(|(_, s)| s <= up_to) {
                                *slot = None;
                            }
                        }
                    }
                }
                let mut seen = vec![None; 128];
                for (start, extent) in map.iter() {
                    for i in 0..extent.sectors {
                        let slot: &mut Option<(Source, SequenceNumber)> = &mut seen[(start + i) as usize];
                        prop_assert!(slot.is_none(), "overlap");
                        *slot = Some((extent.source.skip(i), extent.sequence));
                    }
                }
                prop_assert_eq!(&seen, &array);
                for (from, extent) in map.overlapping(10, 30) {
                    prop_assert!(from >= 10 && from + extent.sectors <= 40 && extent.sectors > 0);
                    prop_assert_eq!(array[from as usize], Some((extent.source, extent.sequence)));
                }
                let covered: u64 = map.overlapping(10, 30).map(|(_, e)| e.sectors).sum();
                prop_assert_eq!(covered as usize, array[10..40].iter().filter(|s| s.is_some()).count());
            }
        }
    }
}
