//! What the spare areas say about whom a page belongs to: which page of its superblock it holds.
//!
//! A block belongs to one superblock, so the page within that says all, in two bytes by default where the whole logical
//! page takes four. Of a block that is collected all owners are read, and those of its destination written.

use super::super_blocks::Cell;
use crate::ids::Block;
use crate::table::{prefetch_range, Lines};

/// Owners a stretch: as many as a word of state has bits, so that no look-up within one needs a check.
pub(super) const WORD: usize = 64;

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

    /// The owners of one word of block `src`, and those of `pages` pages of block `dst` from `to` on; `None`: there are no
    /// such pages.
    #[inline]
    pub fn pair(
        &mut self,
        (src, word): (Block, usize),
        (dst, to, pages): (Block, u32, u32),
    ) -> Option<(&[C; WORD], &mut [C])> {
        let (src, dst) = (self.at(src), self.at(dst));
        let (from, into) = if src < dst {
            let (low, high) = self.owners.split_at_mut(dst);
            (&low[src..], high)
        } else {
            let (low, high) = self.owners.split_at_mut(src);
            (&*high, &mut low[dst..])
        };
        Some((from[word * WORD..].first_chunk()?, into.get_mut(to as usize..)?.get_mut(..pages as usize)?))
    }

    /// All owners of a block are asked for.
    #[inline]
    pub fn expect(&self, block: Block) {
        prefetch_range(&self.owners, self.at(block), self.each);
    }
}
