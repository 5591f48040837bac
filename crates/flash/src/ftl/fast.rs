//! FAST: block-mapped data, one sequential log block, a queue of random log blocks (Lee et al., TECS 2007).
//!
//! ```text
//! write of block b, offset o
//!   1 page o of the data block is erased and in order ─► data block
//!   2 o = 0                    ─► close the sequential log (switch or partial merge), start a new one
//!   3 the sequential log is b's ─► o = n: append │ o > n: partial merge │ o < n: full merge; page o placed directly
//!   4 otherwise                ─► append to the random log; if it is full, merge its oldest block first
//! ```
//!
//! What may be live where: the sequential log holds exactly offsets 0..n−1 of its owner; offset-0 pages are never in
//! the random log; an offset has one newest copy: random log, sequential log or data block. Without discards the
//! sequential log's pages are never superseded in place.
//!
//! Choices [C]: with in-order programming (default) a first write below the block's high-water offset goes to the log
//! and skipping forward is allowed; a write whose room is made by merging its own block is still appended to the log.

use std::collections::VecDeque;

use super::{check_mapping, Ahead, Ftl, FtlError, Split};
use crate::config::{Config, MergeFault};
use crate::counts::Cause;
use crate::device::Device;
use crate::ids::{Block, Lpn, Ppn, NONE};
use crate::nand::{Flash, Gather};
use crate::table::{filled, prefetch};

/// The sequential log block.
#[derive(Debug, Clone, Copy)]
struct Sequential {
    block: Block,
    owner: u32,
    /// Holds offsets 0..n.
    n: u32,
}

/// FAST.
#[derive(Debug)]
pub struct Fast {
    dev: Device,
    split: Split,
    p: u32,
    words: usize,
    in_order: bool,
    logical_pages: u32,
    /// Logical block → data block.
    data: Vec<u32>,
    sw: Option<Sequential>,
    /// Oldest first; the last one takes appends.
    log: VecDeque<Block>,
    log_max: usize,
    /// Logical page → physical page in the random log; meaningful where `in_log` has the bit.
    log_at: Vec<u32>,
    /// A bit a logical page: its newest copy is in the random log.
    in_log: Vec<u64>,
    /// Scratch for merging a log block: its live pages, each with its logical block.
    victim_pages: Vec<(Ppn, u32)>,
    merged_blocks: u64,
    merges: u64,
    fault: MergeFault,
}

impl Fast {
    /// A new drive of `logical_blocks`.
    pub fn new(config: &Config, logical_blocks: u32, log_blocks: u32) -> Self {
        let p = config.geometry.pages_per_block;
        let dev = config.device();
        let words = dev.flash.words();
        let blocks = logical_blocks as usize;
        Self {
            dev,
            split: Split::new(p),
            p,
            words,
            in_order: config.in_order,
            logical_pages: logical_blocks * p,
            data: filled(NONE, blocks),
            sw: None,
            log: VecDeque::with_capacity(log_blocks as usize),
            log_max: log_blocks as usize,
            log_at: filled(NONE, blocks * p as usize),
            in_log: filled(0, blocks * words),
            victim_pages: Vec::new(),
            merged_blocks: 0,
            merges: 0,
            fault: config.merge_fault,
        }
    }

    #[inline]
    fn log_bit(&self, lbn: u32, offset: u32) -> (usize, u64) {
        (lbn as usize * self.words + (offset / 64) as usize, 1 << (offset % 64))
    }

    /// The newest copy dies.
    #[inline]
    fn kill(&mut self, lbn: u32, offset: u32) {
        if let Some(ppn) = self.find(lbn, offset) {
            let (word, bit) = self.log_bit(lbn, offset);
            self.in_log[word] &= !bit;
            self.dev.flash.invalidate(ppn);
        }
    }

    #[inline]
    fn find(&self, lbn: u32, offset: u32) -> Option<Ppn> {
        let (word, bit) = self.log_bit(lbn, offset);
        if self.in_log[word] & bit != 0 {
            return Some(Ppn(self.log_at[(lbn * self.p + offset) as usize]));
        }
        if let Some(sw) = self.sw.filter(|sw| sw.owner == lbn && offset < sw.n) {
            let ppn = Ppn(sw.block.0 * self.p + offset);
            if self.dev.flash.is_live(ppn) {
                return Some(ppn);
            }
        }
        let data = self.data[lbn as usize];
        let ppn = Ppn(data.wrapping_mul(self.p).wrapping_add(offset));
        (data != NONE && self.dev.flash.is_live(ppn)).then_some(ppn)
    }

    /// Gathers offsets `from..` of `lbn` into `dst` from the data block, `sw` and the random log, with the page
    /// `incoming` placed directly.
    fn fold(
        &mut self,
        lbn: u32,
        dst: Block,
        from: u32,
        sw: Option<Block>,
        incoming: Option<u32>,
        cause: Cause,
    ) {
        let data = Block(self.data[lbn as usize]);
        for word in 0..self.words {
            let base = word as u32 * 64;
            let wanted = match from.saturating_sub(base) {
                0 => u64::MAX,
                64.. => continue,
                skip => u64::MAX << skip,
            };
            let at = lbn as usize * self.words + word;
            let log = self.in_log[at] & wanted;
            let first = lbn * self.p + base;
            let last = (first + 64).min((lbn + 1) * self.p);
            self.dev.flash.gather(&Gather {
                dst,
                word,
                same: [
                    (data, self.dev.flash.live_word(data, word) & wanted),
                    sw.map_or((dst, 0), |sw| (sw, self.dev.flash.live_word(sw, word) & wanted)),
                ],
                log: if self.fault == MergeFault::SkipsLogCopies { 0 } else { log },
                log_at: &self.log_at[first as usize..last as usize],
                incoming: incoming.filter(|o| o / 64 == word as u32).map_or(0, |o| 1 << (o % 64)),
                first_owner: first,
                cause,
            });
            if self.fault == MergeFault::SkipsLogCopies {
                let mut lost = log;
                while lost != 0 {
                    self.dev.flash.invalidate(Ppn(self.log_at[(first + lost.trailing_zeros()) as usize]));
                    lost &= lost - 1;
                }
            }
            self.in_log[at] &= !log;
        }
    }

    /// The sequential log becomes its owner's data block.
    fn partial_merge(&mut self, sw: Sequential, incoming: Option<u32>) {
        let from = if self.fault == MergeFault::PartialStartsLate { sw.n + 1 } else { sw.n };
        self.fold(sw.owner, sw.block, from, None, incoming, Cause::PartialMerge);
        self.replace_data(sw.owner, sw.block, Cause::PartialMerge);
        self.sw = None;
    }

    fn replace_data(&mut self, lbn: u32, block: Block, cause: Cause) {
        let old = Block(self.data[lbn as usize]);
        if self.fault != MergeFault::None {
            // A broken merge may leave live pages behind; the proof must notice the loss, not the erase.
            for page in 0..self.p {
                let ppn = Ppn(old.0 * self.p + page);
                if self.dev.flash.is_live(ppn) {
                    self.dev.flash.invalidate(ppn);
                }
            }
        }
        self.dev.release(old, cause);
        self.data[lbn as usize] = block.0;
    }

    fn full_merge(&mut self, sw: Sequential, incoming: u32) -> Result<(), FtlError> {
        let dst = self.dev.take()?;
        self.fold(sw.owner, dst, 0, Some(sw.block), Some(incoming), Cause::FullMerge);
        self.replace_data(sw.owner, dst, Cause::FullMerge);
        self.dev.release(sw.block, Cause::FullMerge);
        self.sw = None;
        Ok(())
    }

    fn close_sequential(&mut self) {
        let Some(sw) = self.sw else { return };
        if sw.n == self.p {
            self.replace_data(sw.owner, sw.block, Cause::SwitchMerge);
            self.sw = None;
        } else {
            self.partial_merge(sw, None);
        }
    }

    fn merge_oldest(&mut self) -> Result<(), FtlError> {
        let Some(victim) = self.log.pop_front() else { return Ok(()) };
        self.merges += 1;
        let mut pages = std::mem::take(&mut self.victim_pages);
        pages.clear();
        self.dev.flash.each_live(victim, |page, owner| pages.push((page, self.split.of(owner).0)));
        for (page, lbn) in pages.iter().copied() {
            // The merge of another page's logical block may have taken this one along.
            if !self.dev.flash.is_live(page) {
                continue;
            }
            self.merged_blocks += 1;
            match self.sw.filter(|sw| sw.owner == lbn) {
                Some(sw) => self.partial_merge(sw, None),
                None => {
                    let dst = self.dev.take()?;
                    self.fold(lbn, dst, 0, None, None, Cause::LogMerge);
                    self.replace_data(lbn, dst, Cause::LogMerge);
                }
            }
        }
        self.victim_pages = pages;
        self.dev.release(victim, Cause::LogMerge);
        Ok(())
    }

    #[inline]
    fn append_to_log(&mut self, lbn: u32, offset: u32) -> Result<(), FtlError> {
        let block = match self.log.back() {
            Some(block) if !self.dev.flash.is_full(*block) => *block,
            _ => {
                if self.log.len() == self.log_max {
                    self.merge_oldest()?;
                }
                let block = self.dev.take()?;
                self.log.push_back(block);
                block
            }
        };
        self.kill(lbn, offset);
        let lpn = lbn * self.p + offset;
        let ppn = self.dev.flash.program_next(block, lpn, Cause::Host);
        self.log_at[lpn as usize] = ppn.0;
        let (word, bit) = self.log_bit(lbn, offset);
        self.in_log[word] |= bit;
        Ok(())
    }

    #[inline]
    fn place(&mut self, lbn: u32, offset: u32) -> Result<(), FtlError> {
        let lpn = lbn * self.p + offset;
        let data = match self.data[lbn as usize] {
            NONE => {
                let block = self.dev.take()?;
                self.data[lbn as usize] = block.0;
                block
            }
            block => Block(block),
        };
        let erased = !self.dev.flash.is_programmed(Ppn(data.0 * self.p + offset));
        if erased && (!self.in_order || offset >= self.dev.flash.next_page(data)) {
            self.kill(lbn, offset);
            self.dev.flash.program_at(data, offset, lpn, Cause::Host);
            return Ok(());
        }
        if offset == 0 {
            self.close_sequential();
            let block = self.dev.take()?;
            self.kill(lbn, 0);
            self.dev.flash.program_at(block, 0, lpn, Cause::Host);
            self.sw = Some(Sequential { block, owner: lbn, n: 1 });
            return Ok(());
        }
        let Some(sw) = self.sw.filter(|sw| sw.owner == lbn) else {
            return self.append_to_log(lbn, offset);
        };
        self.kill(lbn, offset);
        match offset.cmp(&sw.n) {
            std::cmp::Ordering::Equal => {
                self.dev.flash.program_at(sw.block, offset, lpn, Cause::Host);
                self.sw = Some(Sequential { n: sw.n + 1, ..sw });
            }
            std::cmp::Ordering::Greater => self.partial_merge(sw, Some(offset)),
            std::cmp::Ordering::Less => self.full_merge(sw, offset)?,
        }
        Ok(())
    }

    /// Static wear levelling: a cold data block moves, page for page. Not that of the sequential log's owner: in the copy the
    /// pages that the log supersedes are erased, and out of order the next writes of them would go there (rule 1).
    fn level(&mut self, block: Block) -> Result<(), FtlError> {
        let Some(page) = (0..self.p).find(|p| self.dev.flash.is_live(Ppn(block.0 * self.p + p))) else {
            return Ok(());
        };
        let (lbn, _) = self.split.of(self.dev.flash.owner_of(Ppn(block.0 * self.p + page)));
        if self.data[lbn as usize] != block.0 || self.sw.is_some_and(|sw| sw.owner == lbn) {
            return Ok(());
        }
        let dst = self.dev.take_most_worn()?;
        for word in 0..self.words {
            self.dev.flash.gather(&Gather {
                dst,
                word,
                same: [(block, self.dev.flash.live_word(block, word)), (block, 0)],
                log: 0,
                log_at: &[],
                incoming: 0,
                first_owner: lbn * self.p + word as u32 * 64,
                cause: Cause::WearLevel,
            });
        }
        self.replace_data(lbn, dst, Cause::WearLevel);
        Ok(())
    }
}

impl Ftl for Fast {
    fn name(&self) -> &'static str {
        "fast"
    }

    fn logical_pages(&self) -> u32 {
        self.logical_pages
    }

    fn flash(&self) -> &Flash {
        &self.dev.flash
    }

    fn flash_mut(&mut self) -> &mut Flash {
        &mut self.dev.flash
    }

    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        let (lbn, offset) = self.split.of(lpn.0);
        self.place(lbn, offset)?;
        if let Some(cold) = self.dev.block_to_level(|_, _| true) {
            self.level(cold)?;
        }
        Ok(())
    }

    #[inline]
    fn expect(&self, lpn: Lpn, ahead: Ahead) {
        let (lbn, offset) = self.split.of(lpn.0);
        match ahead {
            Ahead::Far => {
                prefetch(&self.data, lbn as usize);
                prefetch(&self.in_log, self.log_bit(lbn, offset).0);
                prefetch(&self.log_at, lpn.index());
            }
            Ahead::Near => {
                let data = self.data[lbn as usize];
                if data != NONE {
                    self.dev.flash.expect_death(Ppn(data * self.p + offset));
                }
            }
            // FAST queues no blocks by their live pages.
            Ahead::Close => {}
        }
    }

    fn discard(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        let (lbn, offset) = self.split.of(lpn.0);
        self.kill(lbn, offset);
        Ok(())
    }

    fn locate(&self, lpn: Lpn) -> Option<Ppn> {
        let (lbn, offset) = self.split.of(lpn.0);
        self.find(lbn, offset)
    }

    fn check(&self) -> Result<(), String> {
        check_mapping(self, 0)?;
        for lbn in 0..self.data.len() as u32 {
            if self.in_log[lbn as usize * self.words] & 1 != 0 {
                return Err(format!("offset 0 of logical block {lbn} is in the random log"));
            }
        }
        if let Some(sw) = self.sw {
            if self.dev.flash.next_page(sw.block) != sw.n || self.dev.flash.programmed_in(sw.block) != sw.n {
                return Err(format!("the sequential log does not hold exactly offsets 0..{}", sw.n));
            }
        }
        let held = self.data.iter().filter(|b| **b != NONE).count() + self.log.len();
        let held = held + usize::from(self.sw.is_some()) + self.dev.pool.len() as usize;
        if held != self.dev.flash.geometry().blocks as usize {
            return Err(format!("{held} blocks are in use or free, the flash has others"));
        }
        Ok(())
    }

    fn table_bytes(&self) -> u64 {
        fast_table_bytes(self.data.len() as u64, self.log_max as u64, self.p)
    }

    fn details(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("random log blocks", self.log_max as u64),
            ("random log merges", self.merges),
            ("blocks rebuilt in random log merges", self.merged_blocks),
        ]
    }
}

/// RAM of FAST's tables: 4 bytes a logical block, 8 bytes (logical page, slot) a log page.
pub fn fast_table_bytes(logical_blocks: u64, log_blocks: u64, pages_per_block: u32) -> u64 {
    logical_blocks * 4 + (log_blocks + 1) * u64::from(pages_per_block) * 8
}
