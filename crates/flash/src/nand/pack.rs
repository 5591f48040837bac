//! Packing live pages into another block, for an FTL that keeps the owners of pages itself: Superblock.

use super::Flash;
use crate::counts::Cause;
use crate::ids::Block;

/// Pages of 64 that are copied, lowest first, to pages that follow each other.
#[derive(Debug, Clone, Copy)]
pub struct Packed {
    /// Which 64 pages of the source.
    pub word: usize,
    /// Which of them are live.
    pub live: u64,
    /// How many of these are copied.
    pub pages: u32,
    /// Where the first of them goes, in the destination.
    pub to: u32,
}

impl Flash {
    /// As [`Flash::move_live`], but the owners are the caller's: `packed` hears which pages go where, and says which of
    /// the live ones were not copied. Returns how many pages were copied.
    #[inline]
    pub fn pack(
        &mut self,
        src: Block,
        dst: Block,
        cause: Cause,
        mut packed: impl FnMut(Packed) -> u64,
    ) -> u32 {
        assert_ne!(src, dst, "a block is copied into itself");
        let p = self.geometry.pages_per_block;
        let (s, d) = (src.index(), dst.index());
        let first = u32::from(self.blocks.fill(d).next);
        if self.stamps.is_some() {
            self.move_stamps(src, dst);
        }
        let mut to = first;
        for word in 0..self.words {
            let live = self.blocks.bits(s, word).live;
            // Counting bits takes a dozen instructions where the processor may not be asked to.
            let count = if self.words == 1 { u32::from(self.blocks.fill(s).live) } else { live.count_ones() };
            let pages = count.min(p - to);
            if pages == 0 {
                continue;
            }
            let left = packed(Packed { word, live, pages, to });
            let stay = if pages == count { left == 0 } else { left.count_ones() == count - pages };
            assert!(stay && left & live == left, "other pages stay than were not copied");
            self.blocks.bits_mut(s, word).0.live = left;
            to += pages;
        }
        self.copied(s, d, first..to, cause)
    }
}
