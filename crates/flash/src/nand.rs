//! The flash itself: erased, live and dead pages, erase counts, time, and the rules of NAND.
//!
//! ```text
//! FTL ─ program_next / program_at / read / invalidate / move_live / gather / erase ─► Flash ─► Counts, busy time
//! ```
//!
//! The rules are checked on every operation and a breach panics, because it is a defect of the FTL and never of the
//! trace: a page is programmed only while erased; the pages of a block are programmed in ascending order (skipping
//! forward is allowed, as large-block NAND allows it); only live pages are read or copied; a block is erased only
//! when none of its pages is live.
//!
//! State is compact: one record of 32 bytes a block, with two bits a page in it, and one owner (4 bytes, the spare area's
//! logical page) a page. An FTL that can say whose a page is in less keeps the owners itself ([`Flash::without_owners`]).

use crate::counts::{Cause, Counts};
use crate::geometry::{Geometry, Timing};
use crate::ids::{Block, Ppn};
use crate::queue::expect_take_out;
use crate::wear::{Wear, WearSummary};

mod bill;
mod blocks;
mod gather;
mod spare;

use bill::Bill;
use blocks::Blocks;
pub use blocks::{Packed, State, KINDS};
pub use gather::Gather;
use spare::Spare;

/// The simulated flash.
#[derive(Debug, Clone)]
pub struct Flash {
    geometry: Geometry,
    blocks: Blocks,
    spare: Spare,
    wear: Wear,
    bill: Bill,
}

impl Flash {
    /// Erased flash. `in_order` enforces ascending programs within a block.
    pub fn new(geometry: Geometry, timing: Timing, in_order: bool) -> Self {
        let flash = Self::without_owners(geometry, timing, in_order);
        Self { spare: Spare::with_owners(geometry.pages() as usize), ..flash }
    }

    /// The same for an FTL that keeps the owners of pages itself; nothing that hands out owners may be called.
    pub fn without_owners(geometry: Geometry, timing: Timing, in_order: bool) -> Self {
        Self {
            geometry,
            blocks: Blocks::new(&geometry, in_order),
            spare: Spare::default(),
            wear: Wear::new(geometry.blocks),
            bill: Bill::new(timing),
        }
    }

    /// Its size.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Its operation times.
    pub fn timing(&self) -> Timing {
        self.bill.timing
    }

    /// What was done.
    pub fn counts(&self) -> &Counts {
        &self.bill.counts
    }

    /// Pages programmed since the flash was new: a clock that [`Flash::reset_counters`] does not turn back.
    #[inline]
    pub fn programs(&self) -> u64 {
        self.bill.programs()
    }

    /// How often a block was erased since the flash was new.
    #[inline]
    pub fn erases_of(&self, block: Block) -> u32 {
        self.blocks.state(block.index()).erases
    }

    /// The lowest and the highest of all erase counts since the flash was new.
    #[inline]
    pub fn erases_range(&self) -> (u32, u32) {
        self.wear.range()
    }

    /// What wear came to since [`Flash::reset_counters`].
    pub fn wear(&self) -> WearSummary {
        self.wear.summary(self.blocks.erases())
    }

    /// Whether a block is in a queue: of free blocks, or of candidates for collection.
    #[inline]
    pub fn is_queued(&self, block: Block) -> bool {
        self.blocks.is_queued(block.index())
    }

    /// Records of all blocks, for queues of them, and behind them those that are heads of queues: for each of [`KINDS`] one
    /// for each number of live pages.
    #[inline(always)]
    pub fn nodes(&self) -> &[State] {
        self.blocks.states()
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn nodes_mut(&mut self) -> &mut [State] {
        self.blocks.states_mut()
    }

    /// How long it has worked, nanoseconds; one operation at a time, as the study has it.
    pub fn busy_ns(&self) -> u64 {
        self.bill.busy_ns
    }

    /// Forgets counts and time, and takes the present erase counts as zero; the contents stay. Used after ageing.
    pub fn reset_counters(&mut self) {
        self.bill.reset();
        self.wear.reset(self.blocks.erases());
    }

    /// Keeps from now on which host write each page's data came from: the proof that reads return the newest data.
    pub fn keep_stamps(&mut self) {
        self.spare.keep_stamps(self.geometry.pages() as usize);
    }

    /// Names the host write whose data the next programs carry.
    pub fn set_stamp(&mut self, stamp: u32) {
        self.spare.set_stamp(stamp);
    }

    /// Which host write this page's data came from; 0 if stamps are not kept.
    pub fn stamp_of(&self, ppn: Ppn) -> u32 {
        self.spare.stamp_of(ppn)
    }

    /// The block a page is in.
    #[inline]
    pub fn block_of(&self, ppn: Ppn) -> Block {
        Block(self.blocks.split(ppn).0 as u32)
    }

    #[inline]
    fn bit(&self, ppn: Ppn) -> (&blocks::Bits, u64) {
        let (block, page) = self.blocks.split(ppn);
        (self.blocks.bits(block, (page / 64) as usize), 1 << (page % 64))
    }

    /// Whether the page holds the newest copy of its owner.
    #[inline]
    pub fn is_live(&self, ppn: Ppn) -> bool {
        let (bits, bit) = self.bit(ppn);
        bits.live & bit != 0
    }

    /// Whether the page was programmed since its block was erased.
    #[inline]
    pub fn is_programmed(&self, ppn: Ppn) -> bool {
        let (bits, bit) = self.bit(ppn);
        bits.programmed & bit != 0
    }

    /// The logical page that a live page belongs to; meaningless for others.
    #[inline]
    pub fn owner_of(&self, ppn: Ppn) -> u32 {
        self.spare.owner_of(ppn)
    }

    /// Live pages in a block.
    #[inline]
    pub fn live_in(&self, block: Block) -> u32 {
        u32::from(self.blocks.fill(block.index()).live)
    }

    /// Live pages in a block, as bits of one word of 64 offsets.
    #[inline]
    pub fn live_word(&self, block: Block, word: usize) -> u64 {
        self.blocks.bits(block.index(), word).live
    }

    /// Words of 64 offsets a block.
    #[inline]
    pub fn words(&self) -> usize {
        self.blocks.words()
    }

    /// The lowest page that may be programmed next; pages a block when the block is full.
    #[inline]
    pub fn next_page(&self, block: Block) -> u32 {
        u32::from(self.blocks.fill(block.index()).next)
    }

    /// Whether no page may follow in ascending order.
    #[inline]
    pub fn is_full(&self, block: Block) -> bool {
        self.next_page(block) == self.geometry.pages_per_block
    }

    /// Pages of a block programmed since its erase (live + dead).
    pub fn programmed_in(&self, block: Block) -> u32 {
        (0..self.words()).map(|word| self.blocks.bits(block.index(), word).programmed.count_ones()).sum()
    }

    /// Programs the next page of a block in ascending order.
    #[inline]
    pub fn program_next(&mut self, block: Block, owner: u32, cause: Cause) -> Ppn {
        let page = self.next_page(block);
        self.program_at(block, page, owner, cause)
    }

    /// Programs a page; it becomes the live copy of `owner`.
    #[inline]
    pub fn program_at(&mut self, block: Block, page: u32, owner: u32, cause: Cause) -> Ppn {
        self.bill.program(cause, 1);
        self.blocks.program(block.index(), page);
        let ppn = self.geometry.ppn(block, page);
        self.spare.program(ppn, owner);
        ppn
    }

    /// Reads a live page.
    #[inline]
    pub fn read(&mut self, ppn: Ppn, cause: Cause) {
        assert!(self.is_live(ppn), "page {} is read but holds no data", ppn.0);
        self.bill.read(cause, 1);
    }

    /// Reads spare areas only (Superblock's map); counted apart from page reads.
    #[inline]
    pub fn read_spare(&mut self, pages: u64) {
        self.bill.read_spare(pages);
    }

    /// The page's data is no longer the newest: a live page dies. Returns its block.
    #[inline(always)]
    pub fn invalidate(&mut self, ppn: Ppn) -> Block {
        let (block, page) = self.blocks.split(ppn);
        self.blocks.invalidate(block, page);
        Block(block as u32)
    }

    /// Programs the next pages of a block with pages of these owners, which must fit: as [`Flash::program_next`] for each.
    /// Returns the first.
    #[inline]
    pub fn program_run(&mut self, block: Block, owners: &[u32], cause: Cause) -> Ppn {
        let pages = owners.len() as u32;
        let from = self.blocks.program_next(block.index(), pages);
        let first = self.geometry.ppn(block, from);
        self.spare.program_run(first, owners);
        self.bill.program(cause, u64::from(pages));
        first
    }

    /// Reads so many live pages; the caller has seen to it that they are.
    #[inline]
    pub fn read_pages(&mut self, pages: u64, cause: Cause) {
        self.bill.read(cause, pages);
    }

    /// A block's lowest live page dies and nobody hears of it: a collection that is broken on purpose.
    #[cold]
    pub(crate) fn lose_a_page(&mut self, block: Block) {
        let first = self.geometry.ppn(block, 0).0;
        let mut pages = (first..first + self.geometry.pages_per_block).map(Ppn);
        let lowest = pages.find(|ppn| self.is_live(*ppn));
        if let Some(ppn) = lowest {
            self.invalidate(ppn);
        }
    }

    /// Erases a block without live pages.
    #[inline]
    pub fn erase(&mut self, block: Block, cause: Cause) {
        let b = block.index();
        let live = self.blocks.fill(b).live;
        assert!(live == 0, "block {b} is erased with {live} live pages");
        let erases = self.blocks.erase(b);
        *erases += 1;
        self.wear.erased(*erases);
        self.bill.erase(cause);
    }

    /// Copies live pages of `src`, lowest first, to the next pages of `dst` until `src` has none or `dst` is full;
    /// the originals die. `moved` hears each owner and its new place. Returns whether `src` has no live page left.
    #[inline]
    pub fn move_live(
        &mut self,
        src: Block,
        dst: Block,
        cause: Cause,
        mut moved: impl FnMut(u32, Ppn),
    ) -> bool {
        let pages_per_block = self.geometry.pages_per_block as usize;
        let (src_first, dst_first) = (self.geometry.ppn(src, 0), self.geometry.ppn(dst, 0));
        self.move_stamps(src, dst);
        let (from_owners, to_owners) = self.spare.owners_of_two(src_first, dst_first, pages_per_block);
        let pages = self.blocks.pack(src, dst, |packed| {
            let mut left = packed.live;
            for to in packed.to..packed.to + packed.pages {
                let owner = from_owners[packed.word * 64 + left.trailing_zeros() as usize];
                to_owners[to as usize] = owner;
                moved(owner, Ppn(dst_first.0 + to));
                left &= left - 1;
            }
            left
        });
        self.bill.copy(cause, u64::from(pages));
        self.live_in(src) == 0
    }

    /// As [`Flash::move_live`], but the owners are the caller's: `packed` hears which pages go where, and says which of
    /// the live ones were not copied. Returns how many pages were copied.
    #[inline]
    pub fn pack(&mut self, src: Block, dst: Block, cause: Cause, packed: impl FnMut(Packed) -> u64) -> u32 {
        self.move_stamps(src, dst);
        let pages = self.blocks.pack(src, dst, packed);
        self.bill.copy(cause, u64::from(pages));
        pages
    }

    /// Builds 64 offsets of a merged block; every copied page's original dies. Call it for ascending words.
    #[inline]
    pub fn gather(&mut self, gather: &Gather<'_>) {
        gather.build(&mut self.blocks, &mut self.spare, &mut self.bill, &self.geometry);
    }

    /// The stamps of what is about to be copied from `src` to the next pages of `dst`.
    #[inline]
    fn move_stamps(&mut self, src: Block, dst: Block) {
        if !self.spare.has_stamps() {
            return;
        }
        let p = self.geometry.pages_per_block;
        let (src, room) = (self.geometry.ppn(src, 0).0, self.next_page(dst)..p);
        let live: Vec<Ppn> = (src..src + p).map(Ppn).filter(|ppn| self.is_live(*ppn)).collect();
        for (from, page) in live.into_iter().zip(room) {
            self.spare.copy_stamp(from, self.geometry.ppn(dst, page));
        }
    }

    /// Hands out a block's live pages, lowest first, with their owners.
    #[inline]
    pub fn each_live(&self, block: Block, mut each: impl FnMut(Ppn, u32)) {
        let from = self.geometry.ppn(block, 0).0;
        for word in 0..self.words() {
            let mut left = self.live_word(block, word);
            while left != 0 {
                let ppn = from + word as u32 * 64 + left.trailing_zeros();
                each(Ppn(ppn), self.spare.owner_of(Ppn(ppn)));
                left &= left - 1;
            }
        }
    }

    // What will be needed soon, so that it can be on its way into the processor's caches. Nothing of this changes anything.

    /// Everything that copying a block's live pages reads first.
    #[inline]
    pub fn expect_source(&self, block: Block) {
        self.expect_merge(block);
        self.spare.expect(self.geometry.ppn(block, 0), self.geometry.pages_per_block as usize);
    }

    /// What a page's death changes.
    #[inline]
    pub fn expect_death(&self, ppn: Ppn) {
        let (block, page) = self.blocks.split(ppn);
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

    /// Recounts everything and compares: free + live + dead = total in every block, erases by block = by cause =
    /// in all, reads and programs likewise, and the busy time follows from the counts.
    ///
    /// # Errors
    /// What disagrees, in words.
    pub fn check(&self) -> Result<(), String> {
        self.blocks.check()?;
        self.bill.check(self.wear.total(self.blocks.erases()))
    }
}
