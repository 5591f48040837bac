//! Greedy victim selection in constant time: closed blocks in queues by their number of live pages.
//!
//! Among blocks with equally many live pages the one that has had that number longest goes first.

use crate::ids::{Block, NONE};
use crate::table::{filled, prefetch};

const ABSENT: u16 = u16::MAX;

/// A block's place in its queue: one record, because a death needs all of it.
#[derive(Debug, Clone, Copy)]
struct Place {
    before: u32,
    behind: u32,
    /// Which queue: its live pages; `ABSENT`: no candidate.
    at: u16,
}

/// Closed blocks by live pages.
#[derive(Debug, Clone)]
pub struct Victims {
    /// First and last block by number of live pages.
    ends: Vec<[u32; 2]>,
    places: Vec<Place>,
    lowest: usize,
}

impl Victims {
    /// None closed yet.
    pub fn new(blocks: u32, pages_per_block: u32) -> Self {
        Self {
            ends: vec![[NONE; 2]; pages_per_block as usize + 1],
            places: filled(Place { before: NONE, behind: NONE, at: ABSENT }, blocks as usize),
            lowest: 0,
        }
    }

    /// A block was closed with this many live pages.
    #[inline]
    pub fn insert(&mut self, block: Block, live: u32) {
        let count = live as usize;
        let last = self.ends[count][1];
        self.places[block.index()] = Place { before: last, behind: NONE, at: live as u16 };
        if last == NONE {
            self.ends[count][0] = block.0;
        } else {
            self.places[last as usize].behind = block.0;
        }
        self.ends[count][1] = block.0;
        self.lowest = self.lowest.min(count);
    }

    /// A block is no longer a candidate.
    #[inline]
    pub fn remove(&mut self, block: Block) {
        let Place { before, behind, at } = self.places[block.index()];
        let count = at as usize;
        if before == NONE {
            self.ends[count][0] = behind;
        } else {
            self.places[before as usize].behind = behind;
        }
        if behind == NONE {
            self.ends[count][1] = before;
        } else {
            self.places[behind as usize].before = before;
        }
        self.places[block.index()].at = ABSENT;
    }

    /// Whether a block is a candidate.
    #[inline]
    pub fn contains(&self, block: Block) -> bool {
        self.places[block.index()].at != ABSENT
    }

    /// A page of a block died; blocks that are not candidates are passed over.
    #[inline]
    pub fn died(&mut self, block: Block) {
        let at = self.places[block.index()].at;
        if at != ABSENT {
            self.remove(block);
            self.insert(block, u32::from(at) - 1);
        }
    }

    /// What [`Victims::died`] changes first is asked for.
    #[inline]
    pub fn expect_death(&self, block: Block) {
        prefetch(&self.places, block.index());
    }

    /// The block with the fewest live pages; `None` when no candidate has a dead page (a block with `full` live pages
    /// gains nothing).
    #[inline]
    pub fn peek(&mut self, full: u32) -> Option<Block> {
        while self.lowest < full as usize {
            let first = self.ends[self.lowest][0];
            if first != NONE {
                return Some(Block(first));
            }
            self.lowest += 1;
        }
        None
    }

    /// As [`Victims::peek`], taken out.
    #[inline]
    pub fn take(&mut self, full: u32) -> Option<Block> {
        let block = self.peek(full)?;
        self.remove(block);
        Some(block)
    }

    /// The second best by the rule of [`Victims::take`], which is broken so on purpose.
    #[cold]
    pub(crate) fn take_second(&mut self, full: u32) -> Option<Block> {
        let best = self.peek(full)?;
        self.take_where(full, |block| block != best).or_else(|| self.take(full))
    }

    /// As [`Victims::take`], among the blocks that `fits` accepts. Looks at one after the other.
    pub fn take_where(&mut self, full: u32, fits: impl Fn(Block) -> bool) -> Option<Block> {
        for ends in &self.ends[self.lowest..full as usize] {
            let mut next = ends[0];
            while next != NONE {
                if fits(Block(next)) {
                    self.remove(Block(next));
                    return Some(Block(next));
                }
                next = self.places[next as usize].behind;
            }
        }
        None
    }
}
