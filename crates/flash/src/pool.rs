//! The allocator that all FTLs share: free blocks, the least erased first.
//!
//! Dynamic wear levelling is this order. Blocks of one erase count wait in a queue, first in, first out, so the
//! choice depends on nothing but the history of the same device. Taking and putting cost a few memory accesses and
//! never allocate, except when an erase count is seen for the first time. The blocks' records keep who waits behind whom.

use crate::ids::{Block, NONE};
use crate::queue::{Node, ALONE};

/// Free, erased blocks.
#[derive(Debug, Clone)]
pub struct Pool {
    /// First and last block waiting, by erase count.
    ends: Vec<[u32; 2]>,
    /// A bit an erase count: somebody waits.
    waiting: Vec<u64>,
    /// No word of `waiting` below this one has a bit.
    low_word: usize,
    len: u32,
}

impl Pool {
    /// All `blocks` are free and were never erased; `nodes` are their records.
    pub fn new<N: Node>(nodes: &mut [N], blocks: u32) -> Self {
        let mut pool = Self { ends: Vec::new(), waiting: Vec::new(), low_word: 0, len: 0 };
        for block in 0..blocks {
            pool.put(nodes, Block(block), 0);
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
    pub fn put<N: Node>(&mut self, nodes: &mut [N], block: Block, erases: u32) {
        let count = erases as usize;
        if count >= self.ends.len() {
            self.ends.resize(count + 1, [NONE; 2]);
            self.waiting.resize(count / 64 + 1, 0);
        }
        *nodes[block.index()].links_mut() = [NONE; 2];
        let [first, last] = &mut self.ends[count];
        if *first == NONE {
            *first = block.0;
            self.waiting[count / 64] |= 1 << (count % 64);
            self.low_word = self.low_word.min(count / 64);
        } else {
            nodes[*last as usize].links_mut()[1] = block.0;
        }
        *last = block.0;
        self.len += 1;
    }

    /// The least erased block, the one that waited longest.
    #[inline]
    pub fn take<N: Node>(&mut self, nodes: &mut [N]) -> Option<Block> {
        if self.len == 0 {
            return None;
        }
        while self.waiting[self.low_word] == 0 {
            self.low_word += 1;
        }
        let count = self.low_word * 64 + self.waiting[self.low_word].trailing_zeros() as usize;
        Some(self.take_at(nodes, count))
    }

    /// The most erased block: static wear levelling puts cold data there.
    pub fn take_most_worn<N: Node>(&mut self, nodes: &mut [N]) -> Option<Block> {
        let word = self.waiting.iter().rposition(|w| *w != 0)?;
        let count = word * 64 + 63 - self.waiting[word].leading_zeros() as usize;
        Some(self.take_at(nodes, count))
    }

    #[inline]
    fn take_at<N: Node>(&mut self, nodes: &mut [N], count: usize) -> Block {
        let first = self.ends[count][0];
        let [_, behind] = std::mem::replace(nodes[first as usize].links_mut(), [ALONE; 2]);
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
        let nodes = &mut [[NONE; 2]; 3][..];
        let mut pool = Pool::new(nodes, 3);
        assert_eq!(pool.take(nodes), Some(Block(0)));
        pool.put(nodes, Block(0), 1);
        assert_eq!(pool.take(nodes), Some(Block(1)));
        pool.put(nodes, Block(1), 200);
        assert_eq!((pool.take(nodes), pool.take(nodes)), (Some(Block(2)), Some(Block(0))));
        pool.put(nodes, Block(2), 200);
        assert_eq!(pool.len(), 2);
        assert_eq!(pool.take(nodes), Some(Block(1)));
        pool.put(nodes, Block(0), 70);
        assert_eq!(pool.take_most_worn(nodes), Some(Block(2)));
        assert_eq!((pool.take(nodes), pool.take(nodes)), (Some(Block(0)), None));
    }
}
