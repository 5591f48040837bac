//! Building a merged block, 64 offsets at a time: FAST's merges.

use super::bill::Bill;
use super::blocks::Blocks;
use super::spare::Spare;
use crate::counts::Cause;
use crate::geometry::Geometry;
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

impl Gather<'_> {
    /// Builds 64 offsets of a merged block; every copied page's original dies.
    #[inline(always)]
    pub(super) fn build(&self, blocks: &mut Blocks, spare: &mut Spare, bill: &mut Bill, geometry: &Geometry) {
        let [(_, a), (_, b)] = self.same;
        let copies = a | b | self.log;
        let all = copies | self.incoming;
        if all == 0 {
            return;
        }
        assert!(
            a & b == 0 && (a | b) & self.log == 0 && copies & self.incoming == 0,
            "a merge takes a page from two places"
        );
        let dst = self.dst.index();
        let base = self.word as u32 * 64;
        let (lowest, highest) = (all.trailing_zeros(), 63 - all.leading_zeros());
        blocks.assert_erased(dst, self.word, all, base + lowest);
        let dst_first = geometry.ppn(self.dst, base);
        if spare.has_stamps() {
            self.stamp(spare, dst_first, geometry);
        }
        for (block, mask) in self.same {
            if mask != 0 {
                let (bits, fill) = blocks.bits_mut(block.index(), self.word);
                assert!(bits.live & mask == mask, "a merge copies a dead page");
                bits.live &= !mask;
                fill.live -= mask.count_ones() as u16;
            }
        }
        let mut log = self.log;
        while log != 0 {
            let (block, page) = blocks.split(Ppn(self.log_at[log.trailing_zeros() as usize]));
            blocks.invalidate(block, page);
            log &= log - 1;
        }
        spare.number(dst_first, lowest as usize..=highest as usize, self.first_owner);
        let (bits, fill) = blocks.bits_mut(dst, self.word);
        bits.programmed |= all;
        bits.live |= all;
        fill.live += all.count_ones() as u16;
        fill.next = fill.next.max((base + highest) as u16 + 1);
        bill.copy(self.cause, u64::from(copies.count_ones()));
        if self.incoming != 0 {
            bill.program(Cause::Host, u64::from(self.incoming.count_ones()));
        }
    }
    /// The stamps, while the log's pages are still live.
    #[cold]
    fn stamp(&self, spare: &mut Spare, dst_first: Ppn, geometry: &Geometry) {
        for offset in 0..64 {
            let (bit, to) = (1u64 << offset, Ppn(dst_first.0 + offset));
            if let Some((block, _)) = self.same.iter().find(|(_, mask)| mask & bit != 0) {
                spare.copy_stamp(geometry.ppn(*block, self.word as u32 * 64 + offset), to);
            } else if self.log & bit != 0 {
                spare.copy_stamp(Ppn(self.log_at[offset as usize]), to);
            } else if self.incoming & bit != 0 {
                spare.stamp(to);
            }
        }
    }
}
