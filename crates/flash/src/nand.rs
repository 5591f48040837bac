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
//! State is in compact arrays: two bits, one owner (4 bytes, the spare area's logical page) a page, and ten bytes a
//! block. Erasing a block touches two words a block of 64 pages.

use crate::counts::{Cause, Counts};
use crate::geometry::{Geometry, Timing};
use crate::ids::{Block, Ppn};
use crate::wear::Wear;

/// The simulated flash.
#[derive(Debug, Clone)]
pub struct Flash {
    geometry: Geometry,
    timing: Timing,
    /// log2 of the pages a block, where it is a power of two.
    shift: Option<u32>,
    words: usize,
    in_order: bool,
    /// A bit a page: programmed since the last erase.
    programmed: Vec<u64>,
    /// A bit a page: holds the newest copy of its owner.
    live: Vec<u64>,
    /// The lowest page that in-order programming still allows.
    next: Vec<u16>,
    live_count: Vec<u16>,
    owner: Vec<u32>,
    wear: Wear,
    counts: Counts,
    busy_ns: u64,
    /// Which host write a page's data came from; only kept when asked for.
    stamps: Option<Vec<u32>>,
    stamp: u32,
}

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
    /// Erased flash. `in_order` enforces ascending programs within a block.
    pub fn new(geometry: Geometry, timing: Timing, in_order: bool) -> Self {
        let blocks = geometry.blocks as usize;
        let words = geometry.pages_per_block.div_ceil(64) as usize;
        let p = geometry.pages_per_block;
        Self {
            geometry,
            timing,
            shift: p.is_power_of_two().then(|| p.trailing_zeros()),
            words,
            in_order,
            programmed: vec![0; blocks * words],
            live: vec![0; blocks * words],
            next: vec![0; blocks],
            live_count: vec![0; blocks],
            owner: vec![0; geometry.pages() as usize],
            wear: Wear::new(geometry.blocks),
            counts: Counts::default(),
            busy_ns: 0,
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
        self.timing
    }

    /// What was done.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Erase counts.
    pub fn wear(&self) -> &Wear {
        &self.wear
    }

    /// How long it has worked, nanoseconds; one operation at a time, as the study has it.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Forgets counts and time, and takes the present erase counts as zero; the contents stay. Used after ageing.
    pub fn reset_counters(&mut self) {
        self.counts = Counts::default();
        self.busy_ns = 0;
        self.wear.reset();
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
    fn bit(&self, ppn: Ppn) -> (usize, u64) {
        let (block, page) = self.split(ppn);
        (block * self.words + (page / 64) as usize, 1 << (page % 64))
    }

    /// Whether the page holds the newest copy of its owner.
    #[inline]
    pub fn is_live(&self, ppn: Ppn) -> bool {
        let (word, bit) = self.bit(ppn);
        self.live[word] & bit != 0
    }

    /// Whether the page was programmed since its block was erased.
    #[inline]
    pub fn is_programmed(&self, ppn: Ppn) -> bool {
        let (word, bit) = self.bit(ppn);
        self.programmed[word] & bit != 0
    }

    /// The logical page that a live page belongs to; meaningless for others.
    #[inline]
    pub fn owner_of(&self, ppn: Ppn) -> u32 {
        self.owner[ppn.index()]
    }

    /// Live pages in a block.
    #[inline]
    pub fn live_in(&self, block: Block) -> u32 {
        u32::from(self.live_count[block.index()])
    }

    /// Live pages in a block, as bits of one word of 64 offsets.
    #[inline]
    pub fn live_word(&self, block: Block, word: usize) -> u64 {
        self.live[block.index() * self.words + word]
    }

    /// Words of 64 offsets a block.
    #[inline]
    pub fn words(&self) -> usize {
        self.words
    }

    /// The lowest page that may be programmed next; pages a block when the block is full.
    #[inline]
    pub fn next_page(&self, block: Block) -> u32 {
        u32::from(self.next[block.index()])
    }

    /// Whether no page may follow in ascending order.
    #[inline]
    pub fn is_full(&self, block: Block) -> bool {
        self.next_page(block) == self.geometry.pages_per_block
    }

    /// Pages of a block programmed since its erase (live + dead).
    pub fn programmed_in(&self, block: Block) -> u32 {
        let from = block.index() * self.words;
        self.programmed[from..from + self.words].iter().map(|w| w.count_ones()).sum()
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
        self.place(block, page, owner);
        self.counts.program(cause, 1);
        self.busy_ns += self.timing.program_ns;
        let ppn = self.geometry.ppn(block, page);
        if let Some(stamps) = &mut self.stamps {
            stamps[ppn.index()] = self.stamp;
        }
        ppn
    }

    #[inline]
    fn place(&mut self, block: Block, page: u32, owner: u32) {
        let b = block.index();
        assert!(page < self.geometry.pages_per_block, "NAND rule: block {b} has no page {page}");
        let (word, bit) = (b * self.words + (page / 64) as usize, 1u64 << (page % 64));
        assert!(self.programmed[word] & bit == 0, "NAND rule: page {page} of block {b} is not erased");
        let next = u32::from(self.next[b]);
        assert!(
            page >= next || !self.in_order,
            "NAND rule: page {page} of block {b} comes after page {next} was allowed next"
        );
        self.programmed[word] |= bit;
        self.live[word] |= bit;
        self.live_count[b] += 1;
        self.next[b] = next.max(page + 1) as u16;
        self.owner[(block.0 * self.geometry.pages_per_block + page) as usize] = owner;
    }

    /// Reads a live page.
    #[inline]
    pub fn read(&mut self, ppn: Ppn, cause: Cause) {
        assert!(self.is_live(ppn), "page {} is read but holds no data", ppn.0);
        self.counts.read(cause, 1);
        self.busy_ns += self.timing.read_ns;
    }

    /// Reads spare areas only (Superblock's map); counted apart from page reads.
    #[inline]
    pub fn read_spare(&mut self, pages: u64) {
        self.counts.spare_reads += pages;
        self.busy_ns += pages * self.timing.spare_read_ns;
    }

    /// The page's data is no longer the newest: a live page dies. Returns its block.
    #[inline]
    pub fn invalidate(&mut self, ppn: Ppn) -> Block {
        let (b, page) = self.split(ppn);
        let (word, bit) = (b * self.words + (page / 64) as usize, 1u64 << (page % 64));
        assert!(self.live[word] & bit != 0, "page {page} of block {b} dies twice");
        self.live[word] &= !bit;
        self.live_count[b] -= 1;
        Block(b as u32)
    }

    /// Erases a block without live pages.
    #[inline]
    pub fn erase(&mut self, block: Block, cause: Cause) {
        let b = block.index();
        assert!(self.live_count[b] == 0, "block {b} is erased with {} live pages", self.live_count[b]);
        self.programmed[b * self.words..(b + 1) * self.words].fill(0);
        self.next[b] = 0;
        self.wear.erased(block);
        self.counts.erase(cause);
        self.busy_ns += self.timing.erase_ns;
    }

    /// Copies live pages of `src`, lowest first, to the next pages of `dst` until `src` has none or `dst` is full;
    /// the originals die. `moved` hears each owner, old and new place. Returns whether `src` has no live page left.
    #[inline]
    pub fn move_live(
        &mut self,
        src: Block,
        dst: Block,
        cause: Cause,
        mut moved: impl FnMut(u32, Ppn, Ppn),
    ) -> bool {
        debug_assert_ne!(src, dst);
        let p = self.geometry.pages_per_block;
        let (s, d) = (src.index(), dst.index());
        let first = u32::from(self.next[d]);
        let (src_base, dst_base) = (src.0 * p, dst.0 * p);
        let mut to = first;
        for word in 0..self.words {
            let mut left = self.live[s * self.words + word];
            while left != 0 && to < p {
                let from = src_base + word as u32 * 64 + left.trailing_zeros();
                let new = dst_base + to;
                let owner = self.owner[from as usize];
                self.owner[new as usize] = owner;
                if let Some(stamps) = &mut self.stamps {
                    stamps[new as usize] = stamps[from as usize];
                }
                moved(owner, Ppn(from), Ppn(new));
                left &= left - 1;
                to += 1;
            }
            self.live[s * self.words + word] = left;
            if to == p {
                break;
            }
        }
        let pages = to - first;
        self.fill(d, first, to);
        self.next[d] = to as u16;
        self.live_count[d] += pages as u16;
        self.live_count[s] -= pages as u16;
        self.count_copies(cause, u64::from(pages));
        self.live_count[s] == 0
    }

    /// Marks pages `from..to` of block `d` programmed and live.
    #[inline]
    fn fill(&mut self, d: usize, from: u32, to: u32) {
        for word in 0..self.words {
            let base = word as u32 * 64;
            let (low, high) = (from.clamp(base, base + 64) - base, to.clamp(base, base + 64) - base);
            if low < high {
                let mask = (u64::MAX >> (64 - (high - low))) << low;
                let at = d * self.words + word;
                assert!(self.programmed[at] & mask == 0, "NAND rule: a page of block {d} is not erased");
                self.programmed[at] |= mask;
                self.live[at] |= mask;
            }
        }
    }

    #[inline]
    fn count_copies(&mut self, cause: Cause, pages: u64) {
        self.counts.read(cause, pages);
        self.counts.program(cause, pages);
        self.busy_ns += pages * (self.timing.read_ns + self.timing.program_ns);
    }

    /// Builds 64 offsets of a merged block; every copied page's original dies. Call it for ascending words.
    #[inline]
    pub fn gather(&mut self, g: &Gather<'_>) {
        let [(_, a), (_, b)] = g.same;
        let copies = a | b | g.log;
        let all = copies | g.incoming;
        if all == 0 {
            return;
        }
        let pages = copies.count_ones();
        assert!(
            a.count_ones() + b.count_ones() + g.log.count_ones() == pages && copies & g.incoming == 0,
            "a merge takes a page from two places"
        );
        let d = g.dst.index();
        let at = d * self.words + g.word;
        let base = g.word as u32 * 64;
        let (lowest, highest) = (base + all.trailing_zeros(), base + 63 - all.leading_zeros());
        assert!(self.programmed[at] & all == 0, "NAND rule: a page of block {d} is not erased");
        assert!(
            lowest >= u32::from(self.next[d]) || !self.in_order,
            "NAND rule: page {lowest} of block {d} is programmed out of order"
        );
        let dst_first = (g.dst.0 * self.geometry.pages_per_block + base) as usize;
        if self.stamps.is_some() {
            self.gather_stamps(g, dst_first);
        }
        for (block, mask) in g.same {
            let from = block.index() * self.words + g.word;
            assert!(mask == 0 || self.live[from] & mask == mask, "a merge copies a dead page");
            if mask != 0 {
                self.live[from] &= !mask;
                self.live_count[block.index()] -= mask.count_ones() as u16;
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
        self.programmed[at] |= all;
        self.live[at] |= all;
        self.live_count[d] += all.count_ones() as u16;
        self.next[d] = self.next[d].max(highest as u16 + 1);
        self.count_copies(g.cause, u64::from(pages));
        if g.incoming != 0 {
            let host = u64::from(g.incoming.count_ones());
            self.counts.program(Cause::Host, host);
            self.busy_ns += host * self.timing.program_ns;
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

    /// Recounts everything and compares: free + live + dead = total in every block, erases by block = by cause =
    /// in all, reads and programs likewise, and the busy time follows from the counts.
    pub fn check(&self) -> Result<(), String> {
        let p = self.geometry.pages_per_block;
        for b in 0..self.geometry.blocks as usize {
            let range = b * self.words..(b + 1) * self.words;
            let ones = |bits: &[u64]| bits.iter().map(|w| w.count_ones()).sum::<u32>();
            let (used, live) = (ones(&self.programmed[range.clone()]), ones(&self.live[range.clone()]));
            if live != u32::from(self.live_count[b]) {
                return Err(format!("block {b}: {live} live pages, {} counted", self.live_count[b]));
            }
            if range.clone().any(|w| self.live[w] & !self.programmed[w] != 0) {
                return Err(format!("block {b}: a live page was never programmed"));
            }
            let dead = used - live;
            let free = p - used;
            if free + live + dead != p || used > u32::from(self.next[b]) {
                return Err(format!("block {b}: free {free} + live {live} + dead {dead} is not {p}"));
            }
        }
        if self.counts.sum() != self.counts.total() {
            return Err(format!("causes add up to {:?}, total {:?}", self.counts.sum(), self.counts.total()));
        }
        let total = self.counts.total();
        if self.wear.total() != total.erases {
            return Err(format!("blocks were erased {} times, counted {}", self.wear.total(), total.erases));
        }
        let t = &self.timing;
        let ns = total.reads * t.read_ns
            + total.programs * t.program_ns
            + total.erases * t.erase_ns
            + self.counts.spare_reads * t.spare_read_ns;
        if ns != self.busy_ns {
            return Err(format!("busy {} ns, the counts make {ns}", self.busy_ns));
        }
        Ok(())
    }
}
