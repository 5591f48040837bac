//! The allocator that all FTLs share: free blocks, the least erased first.
//!
//! Dynamic wear levelling is this order. Blocks of one erase count wait in a queue, first in, first out, so the
//! choice depends on nothing but the history of the same device. Taking and putting cost a few memory accesses and
//! never allocate, except when an erase count is seen for the first time.

use crate::ids::{Block, NONE};
use crate::table::prefetch;

/// Free, erased blocks.
#[derive(Debug, Clone)]
pub struct Pool {
    /// First and last block waiting, by erase count.
    ends: Vec<[u32; 2]>,
    /// The block waiting behind a block.
    behind: Vec<u32>,
    /// A bit an erase count: somebody waits.
    waiting: Vec<u64>,
    /// No word of `waiting` below this one has a bit.
    low_word: usize,
    len: u32,
}

impl Pool {
    /// All `blocks` are free and were never erased.
    pub fn new(blocks: u32) -> Self {
        let mut pool = Self {
            ends: Vec::new(),
            behind: vec![NONE; blocks as usize],
            waiting: Vec::new(),
            low_word: 0,
            len: 0,
        };
        for block in 0..blocks {
            pool.put(Block(block), 0);
        }
        pool
    }

    /// Free blocks.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no block is free.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An erased block comes back.
    #[inline]
    pub fn put(&mut self, block: Block, erases: u32) {
        let count = erases as usize;
        if count >= self.ends.len() {
            self.ends.resize(count + 1, [NONE; 2]);
            self.waiting.resize(count / 64 + 1, 0);
        }
        self.behind[block.index()] = NONE;
        let [first, last] = &mut self.ends[count];
        if *first == NONE {
            *first = block.0;
            self.waiting[count / 64] |= 1 << (count % 64);
            self.low_word = self.low_word.min(count / 64);
        } else {
            self.behind[*last as usize] = block.0;
        }
        *last = block.0;
        self.len += 1;
    }

    /// A block will come back soon: what that changes is asked for.
    #[inline]
    pub fn expect(&self, block: Block) {
        prefetch(&self.behind, block.index());
    }

    /// The least erased block, the one that waited longest.
    #[inline]
    pub fn take(&mut self) -> Option<Block> {
        if self.len == 0 {
            return None;
        }
        while self.waiting[self.low_word] == 0 {
            self.low_word += 1;
        }
        let count = self.low_word * 64 + self.waiting[self.low_word].trailing_zeros() as usize;
        Some(self.take_at(count))
    }

    /// The most erased block: static wear levelling puts cold data there.
    pub fn take_most_worn(&mut self) -> Option<Block> {
        let word = self.waiting.iter().rposition(|w| *w != 0)?;
        let count = word * 64 + 63 - self.waiting[word].leading_zeros() as usize;
        Some(self.take_at(count))
    }

    #[inline]
    fn take_at(&mut self, count: usize) -> Block {
        let first = self.ends[count][0];
        let behind = self.behind[first as usize];
        self.ends[count][0] = behind;
        if behind == NONE {
            self.waiting[count / 64] &= !(1 << (count % 64));
        }
        self.len -= 1;
        Block(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_erased_comes_first_then_the_longest_waiting() {
        let mut pool = Pool::new(3);
        assert_eq!(pool.take(), Some(Block(0)));
        pool.put(Block(0), 1);
        assert_eq!(pool.take(), Some(Block(1)));
        pool.put(Block(1), 200);
        assert_eq!((pool.take(), pool.take()), (Some(Block(2)), Some(Block(0))));
        pool.put(Block(2), 200);
        assert_eq!(pool.len(), 2);
        assert_eq!(pool.take(), Some(Block(1)));
        pool.put(Block(0), 70);
        assert_eq!(pool.take_most_worn(), Some(Block(2)));
        assert_eq!((pool.take(), pool.take()), (Some(Block(0)), None));
    }
}
