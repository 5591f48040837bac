//! Building a merged block, 64 offsets at a time: FAST's merges.

use super::Flash;
use crate::counts::Cause;
use crate::ids::{Block, Ppn};

/// One word (64 offsets) of a merge into `dst`: pages keep their offsets.
#[derive(Debug)]
pub struct Gather<'a> {
    /// The block that is being built.
    pub dst: Block,
    /// Which 64 offsets.
    pub word: usize,
    /// Blocks that hold pages at their own offsets, and which of them move.
    pub same: [(Block, u64); 2],
    /// Offsets whose newest copy is in the log, and where, for all offsets of the word.
    pub log: u64,
    /// Physical pages of the log copies.
    pub log_at: &'a [u32],
    /// The offset the host is writing right now, placed directly; its old copy must be dead already.
    pub incoming: u64,
    /// The logical page at offset 0 of the word.
    pub first_owner: u32,
    /// Counted for the copies; the incoming page is the host's.
    pub cause: Cause,
}

impl Flash {
    /// Builds 64 offsets of a merged block; every copied page's original dies. Call it for ascending words.
    #[inline]
    pub fn gather(&mut self, g: &Gather<'_>) {
        let [(_, a), (_, b)] = g.same;
        let copies = a | b | g.log;
        let all = copies | g.incoming;
        if all == 0 {
            return;
        }
        assert!(
            a & b == 0 && (a | b) & g.log == 0 && copies & g.incoming == 0,
            "a merge takes a page from two places"
        );
        let d = g.dst.index();
        let base = g.word as u32 * 64;
        let (lowest, highest) = (base + all.trailing_zeros(), base + 63 - all.leading_zeros());
        assert!(
            self.blocks.bits(d, g.word).programmed & all == 0,
            "NAND rule: a page of block {d} is not erased"
        );
        assert!(
            lowest >= u32::from(self.blocks.fill(d).next) || !self.in_order,
            "NAND rule: page {lowest} of block {d} is programmed out of order"
        );
        let dst_first = (g.dst.0 * self.geometry.pages_per_block + base) as usize;
        if self.stamps.is_some() {
            self.gather_stamps(g, dst_first);
        }
        for (block, mask) in g.same {
            if mask != 0 {
                let (bits, fill) = self.blocks.bits_mut(block.index(), g.word);
                assert!(bits.live & mask == mask, "a merge copies a dead page");
                bits.live &= !mask;
                fill.live -= mask.count_ones() as u16;
            }
        }
        let mut log = g.log;
        while log != 0 {
            self.invalidate(Ppn(g.log_at[log.trailing_zeros() as usize]));
            log &= log - 1;
        }
        // Owners of pages that are not live mean nothing, so the whole stretch is written: it is one vector loop.
        let owners = &mut self.owner[dst_first..=dst_first + (highest - base) as usize];
        for (offset, owner) in owners.iter_mut().enumerate().skip((lowest - base) as usize) {
            *owner = g.first_owner + offset as u32;
        }
        let (bits, fill) = self.blocks.bits_mut(d, g.word);
        bits.programmed |= all;
        bits.live |= all;
        fill.live += all.count_ones() as u16;
        fill.next = fill.next.max(highest as u16 + 1);
        self.bill.copy(g.cause, u64::from(copies.count_ones()));
        if g.incoming != 0 {
            self.bill.program(Cause::Host, u64::from(g.incoming.count_ones()));
        }
    }

    #[cold]
    fn gather_stamps(&mut self, g: &Gather<'_>, dst_first: usize) {
        let p = self.geometry.pages_per_block;
        let Some(stamps) = &mut self.stamps else { return };
        for offset in 0..64 {
            let bit = 1u64 << offset;
            let same = g.same.iter().find(|(_, mask)| mask & bit != 0);
            let stamp = if let Some((block, _)) = same {
                stamps[(block.0 * p) as usize + g.word * 64 + offset]
            } else if g.log & bit != 0 {
                stamps[g.log_at[offset] as usize]
            } else if g.incoming & bit != 0 {
                self.stamp
            } else {
                continue;
            };
            stamps[dst_first + offset] = stamp;
        }
    }
}
