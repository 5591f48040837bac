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

use std::ops::Range;

use crate::counts::{Cause, Counts};
use crate::geometry::{Geometry, Timing};
use crate::ids::{Block, Ppn};
use crate::table::filled;
use crate::wear::{Wear, WearSummary};

mod bill;
mod blocks;
mod gather;
mod hints;
mod pack;

use bill::Bill;
use blocks::Blocks;
pub use blocks::{State, KINDS};
pub use gather::Gather;
pub use pack::Packed;

/// The simulated flash.
#[derive(Debug, Clone)]
pub struct Flash {
    geometry: Geometry,
    /// log2 of the pages a block, where it is a power of two.
    shift: Option<u32>,
    words: usize,
    in_order: bool,
    blocks: Blocks,
    owner: Vec<u32>,
    wear: Wear,
    bill: Bill,
    /// Which host write a page's data came from; only kept when asked for.
    stamps: Option<Vec<u32>>,
    stamp: u32,
}

impl Flash {
    /// Erased flash. `in_order` enforces ascending programs within a block.
    pub fn new(geometry: Geometry, timing: Timing, in_order: bool) -> Self {
        let flash = Self::without_owners(geometry, timing, in_order);
        Self { owner: filled(0, geometry.pages() as usize), ..flash }
    }

    /// The same for an FTL that keeps the owners of pages itself; nothing that hands out owners may be called.
    pub fn without_owners(geometry: Geometry, timing: Timing, in_order: bool) -> Self {
        let p = geometry.pages_per_block;
        Self {
            geometry,
            shift: p.is_power_of_two().then(|| p.trailing_zeros()),
            words: geometry.pages_per_block.div_ceil(64) as usize,
            in_order,
            blocks: Blocks::new(&geometry),
            owner: Vec::new(),
            wear: Wear::new(geometry.blocks),
            bill: Bill::new(timing),
            stamps: None,
            stamp: 0,
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
        self.stamps = Some(vec![0; self.geometry.pages() as usize]);
    }

    /// Names the host write whose data the next programs carry.
    pub fn set_stamp(&mut self, stamp: u32) {
        self.stamp = stamp;
    }

    /// Which host write this page's data came from; 0 if stamps are not kept.
    pub fn stamp_of(&self, ppn: Ppn) -> u32 {
        self.stamps.as_ref().map_or(0, |stamps| stamps[ppn.index()])
    }

    #[inline]
    fn split(&self, ppn: Ppn) -> (usize, u32) {
        match self.shift {
            Some(shift) => ((ppn.0 >> shift) as usize, ppn.0 & (self.geometry.pages_per_block - 1)),
            None => ((ppn.0 / self.geometry.pages_per_block) as usize, ppn.0 % self.geometry.pages_per_block),
        }
    }

    /// The block a page is in.
    #[inline]
    pub fn block_of(&self, ppn: Ppn) -> Block {
        Block(self.split(ppn).0 as u32)
    }

    #[inline]
    fn bit(&self, ppn: Ppn) -> (&blocks::Bits, u64) {
        let (block, page) = self.split(ppn);
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
        self.owner[ppn.index()]
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
        self.words
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
        (0..self.words).map(|word| self.blocks.bits(block.index(), word).programmed.count_ones()).sum()
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
        self.place(block, page, owner)
    }

    #[inline]
    fn place(&mut self, block: Block, page: u32, owner: u32) -> Ppn {
        let b = block.index();
        assert!(page < self.geometry.pages_per_block, "NAND rule: block {b} has no page {page}");
        let (bits, fill) = self.blocks.bits_mut(b, (page / 64) as usize);
        let bit = 1u64 << (page % 64);
        assert!(bits.programmed & bit == 0, "NAND rule: page {page} of block {b} is not erased");
        let next = u32::from(fill.next);
        assert!(
            page >= next || !self.in_order,
            "NAND rule: page {page} of block {b} comes after page {next} was allowed next"
        );
        bits.programmed |= bit;
        bits.live |= bit;
        fill.live += 1;
        fill.next = next.max(page + 1) as u16;
        let ppn = self.geometry.ppn(block, page);
        // The table is empty if the owners are kept elsewhere.
        if let Some(held) = self.owner.get_mut(ppn.index()) {
            *held = owner;
        }
        if let Some(stamps) = &mut self.stamps {
            stamps[ppn.index()] = self.stamp;
        }
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
        let (b, page) = self.split(ppn);
        let (bits, fill) = self.blocks.bits_mut(b, (page / 64) as usize);
        let bit = 1u64 << (page % 64);
        assert!(bits.live & bit != 0, "page {page} of block {b} dies twice");
        bits.live &= !bit;
        fill.live -= 1;
        Block(b as u32)
    }

    /// Programs the next pages of a block with pages of these owners, which must fit: as [`Flash::program_next`] for each.
    /// Returns the first.
    #[inline]
    pub fn program_run(&mut self, block: Block, owners: &[u32], cause: Cause) -> Ppn {
        let (from, pages) = (self.next_page(block), owners.len() as u32);
        let (b, first) = (block.index(), self.geometry.ppn(block, from));
        assert!(
            from + pages <= self.geometry.pages_per_block,
            "NAND rule: block {b} has no {pages} pages left"
        );
        self.fill(b, from, from + pages);
        self.owner[first.index()..first.index() + owners.len()].copy_from_slice(owners);
        if let Some(stamps) = &mut self.stamps {
            stamps[first.index()..first.index() + owners.len()].fill(self.stamp);
        }
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
        let first = block.0 * self.geometry.pages_per_block;
        let lowest =
            (0..self.geometry.pages_per_block).map(|page| Ppn(first + page)).find(|ppn| self.is_live(*ppn));
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
        let p = self.geometry.pages_per_block;
        let (s, d) = (src.index(), dst.index());
        let first = u32::from(self.blocks.fill(d).next);
        let (src_base, dst_base) = (src.0 * p, dst.0 * p);
        if self.stamps.is_some() {
            self.move_stamps(src, dst);
        }
        let (from_owners, to_owners) =
            apart(&mut self.owner, src_base as usize, dst_base as usize, p as usize);
        let mut to = first;
        for word in 0..self.words {
            let live = &mut self.blocks.bits_mut(s, word).0.live;
            let mut left = *live;
            while left != 0 && to < p {
                let owner = from_owners[word * 64 + left.trailing_zeros() as usize];
                to_owners[to as usize] = owner;
                moved(owner, Ppn(dst_base + to));
                left &= left - 1;
                to += 1;
            }
            *live = left;
            if to == p {
                break;
            }
        }
        self.copied(s, d, first..to, cause);
        self.blocks.fill(s).live == 0
    }

    #[cold]
    fn move_stamps(&mut self, src: Block, dst: Block) {
        let p = self.geometry.pages_per_block;
        let pages = (0..p).map(|page| Ppn(src.0 * p + page)).filter(|ppn| self.is_live(*ppn));
        let room = (self.next_page(dst)..p).map(|page| (dst.0 * p + page) as usize);
        let moves: Vec<_> = pages.zip(room).collect();
        if let Some(stamps) = &mut self.stamps {
            for (from, to) in moves {
                stamps[to] = stamps[from.index()];
            }
        }
    }

    /// Hands out a block's live pages, lowest first, with their owners.
    #[inline]
    pub fn each_live(&self, block: Block, mut each: impl FnMut(Ppn, u32)) {
        let from = block.0 * self.geometry.pages_per_block;
        for word in 0..self.words {
            let mut left = self.live_word(block, word);
            while left != 0 {
                let ppn = from + word as u32 * 64 + left.trailing_zeros();
                each(Ppn(ppn), self.owner[ppn as usize]);
                left &= left - 1;
            }
        }
    }

    /// Live pages of block `s`, which are dead there already, are in pages `to` of block `d` now: how many.
    #[inline]
    fn copied(&mut self, s: usize, d: usize, to: Range<u32>, cause: Cause) -> u32 {
        let pages = to.end - to.start;
        self.fill(d, to.start, to.end);
        self.blocks.fill_mut(s).live -= pages as u16;
        self.bill.copy(cause, u64::from(pages));
        pages
    }

    /// Marks pages `from..to` of block `d`, the next ones, programmed and live.
    #[inline]
    fn fill(&mut self, d: usize, from: u32, to: u32) {
        let fill = self.blocks.fill_mut(d);
        fill.next = to as u16;
        fill.live += (to - from) as u16;
        for word in 0..self.words {
            let base = word as u32 * 64;
            let (low, high) = (from.clamp(base, base + 64) - base, to.clamp(base, base + 64) - base);
            if low < high {
                let mask = (u64::MAX >> (64 - (high - low))) << low;
                let (bits, _) = self.blocks.bits_mut(d, word);
                assert!(bits.programmed & mask == 0, "NAND rule: a page of block {d} is not erased");
                bits.programmed |= mask;
                bits.live |= mask;
            }
        }
    }

    /// Recounts everything and compares: free + live + dead = total in every block, erases by block = by cause =
    /// in all, reads and programs likewise, and the busy time follows from the counts.
    ///
    /// # Errors
    /// What disagrees, in words.
    pub fn check(&self) -> Result<(), String> {
        self.blocks.check(self.geometry.pages_per_block)?;
        self.bill.check(self.wear.total(self.blocks.erases()))
    }
}

/// The owners of two blocks that are not the same.
#[inline]
fn apart(owner: &mut [u32], src: usize, dst: usize, p: usize) -> (&[u32], &mut [u32]) {
    assert_ne!(src, dst, "a block is copied into itself");
    if src < dst {
        let (low, high) = owner.split_at_mut(dst);
        (&low[src..src + p], &mut high[..p])
    } else {
        let (low, high) = owner.split_at_mut(src);
        (&high[..p], &mut low[dst..dst + p])
    }
}
