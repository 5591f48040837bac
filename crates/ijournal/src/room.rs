//! Where a file's blocks may lie: inside the file system, and in nothing that is its own (the kernel's `fs/ext4/block_validity.c`).

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{corrupt, Error};

/// Everything but the ranges that were taken.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    blocks: u64,
    /// First block to the one behind the last; none over another.
    own: BTreeMap<u64, u64>,
}

impl Room {
    /// All of a file system of so many blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        Self { blocks, own: BTreeMap::new() }
    }

    /// Whether a file may have these blocks.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        let before = self.own.range(..range.end).next_back();
        range.start < range.end
            && range.end <= self.blocks
            && before.is_none_or(|(_, &end)| end <= range.start)
    }

    /// Takes blocks that are the file system's own.
    ///
    /// # Errors
    /// *Corrupt* where they are taken already, or outside.
    pub(crate) fn take(&mut self, range: Range<u64>, what: &str) -> Result<(), Error> {
        if !self.has(&range) {
            return corrupt(format!("{what} would be in blocks {}..{}", range.start, range.end));
        }
        self.own.insert(range.start, range.end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_in_two_places() {
        let mut room = Room::new(100);
        room.take(0..10, "a").unwrap();
        room.take(20..30, "b").unwrap();
        for (range, has) in [
            (10..20, true),
            (9..10, false),
            (15..21, false),
            (10..40, false),
            (29..31, false),
            (30..100, true),
            (30..101, false),
            (50..50, false),
            (u64::MAX - 1..u64::MAX, false),
        ] {
            assert_eq!(room.has(&range), has, "{range:?}");
        }
        assert!(matches!(room.take(15..25, "c"), Err(Error::Corrupt(_))));
    }
}
