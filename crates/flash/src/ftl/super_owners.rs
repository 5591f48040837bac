//! What the spare areas say about whom a page belongs to: which page of its superblock it holds.
//!
//! A block belongs to one superblock, so the page within that says all, in two bytes by default where the whole logical
//! page takes four. Of a block that is collected all owners are read, and those of its destination written.

use super::super_blocks::Cell;
use crate::ids::Block;
use crate::table::{prefetch, prefetch_range, Lines};

/// Owners a stretch: as many as a word of state has bits, so that no look-up within one needs a check.
const WORD: usize = 64;

/// Owners of all pages, block by block.
#[derive(Debug)]
pub(super) struct Owners<C> {
    owners: Lines<C>,
    /// Cells a block.
    each: usize,
}

impl<C: Cell> Owners<C> {
    /// For `blocks` blocks of `p` pages.
    pub fn new(blocks: u32, p: u32) -> Self {
        let each = (p as usize).next_multiple_of(WORD);
        Self { owners: Lines::filled(C::from_u32(0), blocks as usize * each), each }
    }

    #[inline(always)]
    fn at(&self, block: Block) -> usize {
        block.index() * self.each
    }

    /// The page of its superblock that a live page holds; meaningless for others.
    #[inline]
    pub fn of(&self, block: Block, page: u32) -> u32 {
        self.owners[self.at(block) + page as usize].to_u32()
    }

    /// A page is programmed.
    #[inline]
    pub fn set(&mut self, block: Block, page: u32, owner: u32) {
        let at = self.at(block) + page as usize;
        self.owners[at] = C::from_u32(owner);
    }

    /// Pages `pages` of one word of block `src` are copied to the pages of `dst` from `to` on. `copied` hears each owner.
    #[inline(always)]
    pub fn copy(
        &mut self,
        (src, word, pages): (Block, usize, u64),
        (dst, to): (Block, u32),
        mut copied: impl FnMut(C),
    ) {
        let (src, dst) = (self.at(src), self.at(dst));
        let table = &mut *self.owners;
        let (from, into) = if src < dst {
            let (low, high) = table.split_at_mut(dst);
            (&low[src..], high)
        } else {
            let (low, high) = table.split_at_mut(src);
            (&*high, &mut low[dst..])
        };
        let Some(from) = from[word * WORD..].first_chunk::<WORD>() else { return };
        let into = &mut into[to as usize..][..pages.count_ones() as usize];
        let mut left = pages;
        for owner in into {
            *owner = from[left.trailing_zeros() as usize % WORD];
            copied(*owner);
            left &= left.wrapping_sub(1);
        }
    }

    /// The owners of a block's live pages in one word are asked for.
    #[inline]
    pub fn expect_source(&self, block: Block, word: usize, live: u64) {
        let from = self.at(block) + word * WORD;
        let pages = (u64::BITS - live.leading_zeros()) as usize;
        if pages > 0 {
            prefetch_range(&self.owners, from, pages);
        }
    }

    /// The owner of one page is asked for.
    #[inline]
    pub fn expect(&self, block: Block, page: u32) {
        prefetch(&self.owners, self.at(block) + page as usize);
    }
}
