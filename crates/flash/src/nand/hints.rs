//! What will be needed soon, so that it can be on its way into the processor's caches. Nothing here changes anything.

use super::Flash;
use crate::ids::{Block, Ppn};
use crate::queue::expect_take_out;
use crate::table::prefetch_range;

impl Flash {
    /// Everything that copying a block's live pages reads first.
    #[inline]
    pub fn expect_source(&self, block: Block) {
        let p = self.geometry.pages_per_block as usize;
        self.expect_merge(block);
        prefetch_range(&self.owner, block.index() * p, p);
    }

    /// What a page's death changes.
    #[inline]
    pub fn expect_death(&self, ppn: Ppn) {
        let (block, page) = self.split(ppn);
        self.blocks.expect(block, (page / 64) as usize);
    }

    /// As [`Flash::expect_death`], when that has come: the blocks beside the page's in its queue, which the death changes too.
    /// Without this it is stores that wait, and then everything behind them.
    #[inline]
    pub fn expect_requeue(&self, ppn: Ppn) {
        expect_take_out(self.nodes(), self.block_of(ppn).0);
    }

    /// What merging a block away changes.
    #[inline]
    pub fn expect_merge(&self, block: Block) {
        self.blocks.expect_all(block.index());
    }
}
