//! Packing live pages into another block, for an FTL that keeps the owners of pages itself: Superblock.

use super::Flash;
use crate::counts::Cause;
use crate::ids::Block;

/// Pages of 64 that were copied, lowest first, to pages that follow each other.
#[derive(Debug, Clone, Copy)]
pub struct Packed {
    /// Which 64 pages of the source.
    pub word: usize,
    /// Which of them.
    pub pages: u64,
    /// Where the first of them went, in the destination.
    pub to: u32,
}

impl Flash {
    /// As [`Flash::move_live`], but the owners are the caller's: `packed` hears which pages went where. Returns how many
    /// pages were copied.
    #[inline]
    pub fn pack(&mut self, src: Block, dst: Block, cause: Cause, mut packed: impl FnMut(Packed)) -> u32 {
        assert_ne!(src, dst, "a block is copied into itself");
        let p = self.geometry.pages_per_block;
        let (s, d) = (src.index(), dst.index());
        let first = u32::from(self.fills[d].next);
        if self.stamps.is_some() {
            self.move_stamps(src, dst);
        }
        let mut to = first;
        for word in 0..self.words {
            let live = &mut self.bits[s * self.words + word].live;
            let room = p - to;
            let mut left = 0;
            if live.count_ones() > room {
                // The lowest pages that there is room for go, the others stay.
                left = *live;
                (0..room).for_each(|_| left &= left - 1);
            }
            let pages = *live ^ left;
            *live = left;
            if pages != 0 {
                packed(Packed { word, pages, to });
            }
            to += pages.count_ones();
            if to == p {
                break;
            }
        }
        let pages = to - first;
        self.fill(d, first, to);
        self.fills[d].next = to as u16;
        self.fills[d].live += pages as u16;
        self.fills[s].live -= pages as u16;
        self.count_copies(cause, u64::from(pages));
        pages
    }
}
