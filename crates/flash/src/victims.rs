//! Greedy victim selection in constant time: closed blocks in queues by their number of live pages.
//!
//! Among blocks with equally many live pages the one that has had that number longest goes first.

use crate::ids::{Block, NONE};

const ABSENT: u16 = u16::MAX;

/// Closed blocks by live pages.
#[derive(Debug, Clone)]
pub struct Victims {
    ends: Vec<[u32; 2]>,
    /// Neighbours in the queue: before, behind.
    links: Vec<[u32; 2]>,
    at: Vec<u16>,
    lowest: usize,
}

impl Victims {
    /// None closed yet.
    pub fn new(blocks: u32, pages_per_block: u32) -> Self {
        Self {
            ends: vec![[NONE; 2]; pages_per_block as usize + 1],
            links: vec![[NONE; 2]; blocks as usize],
            at: vec![ABSENT; blocks as usize],
            lowest: 0,
        }
    }

    /// A block was closed with this many live pages.
    #[inline]
    pub fn insert(&mut self, block: Block, live: u32) {
        let count = live as usize;
        let last = self.ends[count][1];
        self.links[block.index()] = [last, NONE];
        if last == NONE {
            self.ends[count][0] = block.0;
        } else {
            self.links[last as usize][1] = block.0;
        }
        self.ends[count][1] = block.0;
        self.at[block.index()] = live as u16;
        self.lowest = self.lowest.min(count);
    }

    /// A block is no longer a candidate.
    #[inline]
    pub fn remove(&mut self, block: Block) {
        let count = self.at[block.index()] as usize;
        let [before, behind] = self.links[block.index()];
        if before == NONE {
            self.ends[count][0] = behind;
        } else {
            self.links[before as usize][1] = behind;
        }
        if behind == NONE {
            self.ends[count][1] = before;
        } else {
            self.links[behind as usize][0] = before;
        }
        self.at[block.index()] = ABSENT;
    }

    /// Whether a block is a candidate.
    #[inline]
    pub fn contains(&self, block: Block) -> bool {
        self.at[block.index()] != ABSENT
    }

    /// A page of a block died; blocks that are not candidates are passed over.
    #[inline]
    pub fn died(&mut self, block: Block) {
        let at = self.at[block.index()];
        if at != ABSENT {
            self.remove(block);
            self.insert(block, u32::from(at) - 1);
        }
    }

    /// The block with the fewest live pages, taken out; `None` when no candidate has a dead page (a block with
    /// `full` live pages gains nothing).
    #[inline]
    pub fn take(&mut self, full: u32) -> Option<Block> {
        while self.lowest < full as usize {
            let first = self.ends[self.lowest][0];
            if first != NONE {
                self.remove(Block(first));
                return Some(Block(first));
            }
            self.lowest += 1;
        }
        None
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
                next = self.links[next as usize][1];
            }
        }
        None
    }
}
