//! DFTL: the page map lives in flash, its hot part in RAM (Gupta et al., ASPLOS 2009; docs/flash.md, The FTLs).
//!
//! ```text
//! access ─► cached? ─no─► full? evict (dirty: 1R + 1W of its translation page) ─► fetch the translation page (1R)
//! write  ─► resolve ─► data frontier ─► entry dirty            collect ─► data victim: cached pages become dirty
//!                                                                        entries, the others' translation pages are
//!                                                                        rewritten; translation victim: GTD only
//! ```
//!
//! Where dirty entries are lost on purpose, [`Cmt`] keeps what the translation pages in flash say apart from what the cache
//! says: losing one loses data here as it would in a drive.
//!
//! Choices [C]: a translation page that was never written is not read; the cache is as large as FAST's tables unless
//! told otherwise; collection runs at the start of a request when at most `gc_low` blocks are free until `gc_high` are
//! (3 and 3), so a request itself never collects in its middle. Collecting data may cost more pages than it gains: each
//! page moved may rewrite a translation page. So greed ends at the last free block (`last_free`): then a translation
//! block goes first, which always gains.

use super::cmt::Cmt;
use super::page_set::PageSet;
use super::{check_mapping, Ahead, Ftl, FtlError};
use crate::config::{Config, MergeFault};
use crate::counts::Cause;
use crate::device::Device;
use crate::ids::{Block, Lpn, Ppn, NONE};
use crate::nand::Flash;
use crate::victims::Victims;

/// Kinds of blocks.
const DATA: usize = 0;
const MAP: usize = 1;

/// DFTL.
#[derive(Debug)]
pub struct Dftl {
    dev: Device,
    /// Translation page → physical page.
    gtd: Vec<u32>,
    cmt: Cmt,
    data: Option<Block>,
    maps: Option<Block>,
    is_map: Vec<bool>,
    victims: Victims,
    low: u32,
    high: u32,
    last_free: u32,
    fault: MergeFault,
    entry_bytes: u64,
    hits: u64,
    misses: u64,
    /// Translation pages to rewrite after a collection.
    touched: PageSet,
    /// Scratch: those of them that fit into one block.
    run: Vec<u32>,
}

impl Dftl {
    /// Pages of the flash must be fewer: half of the 32-bit numbers name pages, the other half cached entries.
    pub const MOST_PAGES: u32 = Cmt::CACHED;

    /// A new drive of `logical_pages` with `cached` map entries.
    pub fn new(config: &Config, logical_pages: u32, cached: u32) -> Self {
        let g = config.geometry;
        let per_page = config.dftl.entries_per_page(g.page_bytes);
        let protected = config.dftl.protected_share;
        let mut dev = config.device();
        let victims = Victims::new(&mut dev.flash, 2, config.gc_policy);
        let cmt = Cmt::new(logical_pages, cached, protected, per_page, config.dftl.batch);
        Self {
            dev,
            gtd: vec![NONE; logical_pages.div_ceil(per_page) as usize],
            cmt: if config.merge_fault == MergeFault::DropsDirtyEntries { cmt.lose_dirty() } else { cmt },
            data: None,
            maps: None,
            is_map: vec![false; g.blocks as usize],
            victims,
            low: config.gc_low,
            high: config.gc_high.unwrap_or(3),
            last_free: config.dftl.last_free,
            fault: config.merge_fault,
            entry_bytes: config.dftl.entry_bytes,
            hits: 0,
            misses: 0,
            touched: PageSet::new(logical_pages.div_ceil(per_page) as usize),
            run: Vec::with_capacity(g.pages_per_block as usize),
        }
    }

    /// The frontier of data (`map` false) or translation pages with room for a page.
    #[inline]
    fn frontier(&mut self, map: bool) -> Result<Block, FtlError> {
        let slot = if map { &mut self.maps } else { &mut self.data };
        match *slot {
            Some(block) if !self.dev.flash.is_full(block) => Ok(block),
            full => {
                if let Some(block) = full {
                    let now = self.dev.flash.programs();
                    self.victims.insert(&mut self.dev.flash, block, usize::from(map), now);
                }
                *slot = None;
                let block = self.dev.take()?;
                *slot = Some(block);
                self.is_map[block.index()] = map;
                Ok(block)
            }
        }
    }

    #[inline(always)]
    fn kill(&mut self, ppn: u32) {
        if ppn != NONE {
            let block = self.dev.flash.invalidate(Ppn(ppn));
            let now = self.dev.flash.programs();
            self.victims.died(&mut self.dev.flash, block, DATA, now);
        }
    }

    /// Rewrites translation pages whose new contents [`Cmt`] has, all in one block, which has room for them: 1R if it
    /// exists and 1W each.
    #[inline]
    fn rewrite(&mut self, block: Block, pages: &[u32], cause: Cause) {
        let Self { dev: Device { flash, .. }, gtd, victims, .. } = self;
        let now = flash.programs();
        let new = flash.program_run(block, pages, cause).0;
        let mut read = 0;
        for ((page, new), now) in pages.iter().zip(new..).zip(now..) {
            let old = std::mem::replace(&mut gtd[*page as usize], new);
            if old != NONE {
                let from = flash.invalidate(Ppn(old));
                victims.died(flash, from, MAP, now);
                read += 1;
            }
        }
        flash.read_pages(read, cause);
    }

    /// The cached entry of a logical page, fetched on a miss.
    #[inline]
    fn resolve(&mut self, lpn: Lpn) -> Result<u32, FtlError> {
        if let Some(slot) = self.cmt.peek(lpn.0) {
            self.hits += 1;
            self.cmt.hit(slot);
            return Ok(slot);
        }
        self.misses += 1;
        if self.cmt.is_full() {
            self.evict()?;
        }
        let at = self.gtd[self.cmt.page_of(lpn.0) as usize];
        if at != NONE {
            self.dev.flash.read(Ppn(at), Cause::MapFetch);
        }
        Ok(self.cmt.fetch(lpn.0))
    }

    #[inline]
    fn evict(&mut self) -> Result<(), FtlError> {
        match self.cmt.evict() {
            Some(page) => {
                let block = self.frontier(true)?;
                self.rewrite(block, &[page], Cause::MapEvict);
                Ok(())
            }
            None => Ok(()),
        }
    }

    #[inline]
    fn make_room(&mut self) -> Result<(), FtlError> {
        if self.dev.pool.len() <= self.low {
            loop {
                self.collect()?;
                if self.dev.pool.len() >= self.high {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The block with the most dead pages (or the best by cost and benefit). With no more than `last_free` blocks free, a
    /// translation block if any has dead pages.
    fn victim(&mut self) -> Option<(Block, usize)> {
        let now = self.dev.flash.programs();
        if self.fault == MergeFault::SecondBestVictim {
            return self.victims.take_second(&mut self.dev.flash, DATA..MAP + 1, now);
        }
        if self.dev.pool.len() <= self.last_free {
            let map = self.victims.take(&mut self.dev.flash, MAP..MAP + 1, now);
            if map.is_some() {
                return map;
            }
        }
        self.victims.take(&mut self.dev.flash, DATA..MAP + 1, now)
    }

    fn collect(&mut self) -> Result<(), FtlError> {
        let (victim, kind) = self.victim().ok_or(FtlError::NoSpace)?;
        let map = kind == MAP;
        let cause = if map { Cause::CollectMap } else { Cause::Collect };
        if !map {
            self.dev.flash.each_live(victim, |_, owner| self.cmt.expect_move(owner));
        }
        if self.fault == MergeFault::ForgetsAMove {
            self.dev.flash.lose_a_page(victim);
        }
        while self.dev.flash.live_in(victim) > 0 {
            let dst = self.frontier(map)?;
            self.carry(victim, dst, map, cause);
        }
        self.dev.release(victim, cause);
        self.rewrite_touched()
    }

    /// Moves pages and lets the map follow, as far as RAM knows it.
    #[inline]
    fn carry(&mut self, src: Block, dst: Block, map: bool, cause: Cause) {
        let Self { dev, gtd, cmt, touched, .. } = self;
        if map {
            dev.flash.move_live(src, dst, cause, |page, new| gtd[page as usize] = new.0);
        } else {
            dev.flash.move_live(src, dst, cause, |owner, new| {
                if let Some(page) = cmt.moved(owner, new.0) {
                    touched.insert(page);
                }
            });
        }
    }

    fn rewrite_touched(&mut self) -> Result<(), FtlError> {
        let mut from = 0;
        let mut next = self.touched.take_lowest(&mut from);
        let mut run = std::mem::take(&mut self.run);
        while next.is_some() {
            let block = self.frontier(true)?;
            let room = self.dev.flash.geometry().pages_per_block - self.dev.flash.next_page(block);
            run.clear();
            while let Some(page) = next.filter(|_| run.len() < room as usize) {
                run.push(page);
                next = self.touched.take_lowest(&mut from);
            }
            self.rewrite(block, &run, Cause::MapUpdate);
        }
        self.run = run;
        Ok(())
    }

    fn level(&mut self) -> Result<(), FtlError> {
        let Some(cold) = self.dev.block_to_level(|flash, block| flash.is_queued(block)) else {
            return Ok(());
        };
        let dst = self.dev.take_most_worn()?;
        let map = self.is_map[cold.index()];
        self.victims.remove(&mut self.dev.flash, cold, usize::from(map));
        self.is_map[dst.index()] = map;
        self.carry(cold, dst, map, Cause::WearLevel);
        self.dev.release(cold, Cause::WearLevel);
        let now = self.dev.flash.programs();
        self.victims.insert(&mut self.dev.flash, dst, usize::from(map), now);
        self.rewrite_touched()
    }
}

impl Ftl for Dftl {
    fn name(&self) -> &'static str {
        "dftl"
    }

    fn logical_pages(&self) -> u32 {
        self.cmt.logical_pages()
    }

    fn flash(&self) -> &Flash {
        &self.dev.flash
    }

    fn flash_mut(&mut self) -> &mut Flash {
        &mut self.dev.flash
    }

    fn read(&mut self, lpn: Lpn, cause: Cause) -> Result<Option<Ppn>, FtlError> {
        self.make_room()?;
        let slot = self.resolve(lpn)?;
        let ppn = self.cmt.ppn(slot);
        if ppn == NONE {
            return Ok(None);
        }
        self.dev.flash.read(Ppn(ppn), cause);
        Ok(Some(Ppn(ppn)))
    }

    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.make_room()?;
        let slot = self.resolve(lpn)?;
        let block = self.frontier(false)?;
        self.kill(self.cmt.ppn(slot));
        let ppn = self.dev.flash.program_next(block, lpn.0, Cause::Host);
        self.cmt.set(slot, ppn.0);
        self.level()
    }

    #[inline]
    fn expect(&self, lpn: Lpn, ahead: Ahead) {
        match ahead {
            Ahead::Far => self.cmt.expect(lpn.0),
            Ahead::Near => {
                let old = self.cmt.expect_near(lpn.0);
                if old != NONE {
                    self.dev.flash.expect_death(Ppn(old));
                }
            }
            // Queues of blocks and of the cache are asked for together with their records.
            Ahead::Close => {}
        }
    }

    fn discard(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.make_room()?;
        let slot = self.resolve(lpn)?;
        let old = self.cmt.ppn(slot);
        if old != NONE {
            self.kill(old);
            self.cmt.set(slot, NONE);
        }
        Ok(())
    }

    fn locate(&self, lpn: Lpn) -> Option<Ppn> {
        let ppn = self.cmt.newest(lpn.0);
        (ppn != NONE).then_some(Ppn(ppn))
    }

    fn check(&self) -> Result<(), String> {
        let mut pages = 0;
        for (page, ppn) in self.gtd.iter().enumerate().filter(|(_, ppn)| **ppn != NONE) {
            pages += 1;
            let block = self.dev.flash.block_of(Ppn(*ppn));
            let theirs =
                self.dev.flash.is_live(Ppn(*ppn)) && self.dev.flash.owner_of(Ppn(*ppn)) == page as u32;
            if !theirs || !self.is_map[block.index()] {
                return Err(format!(
                    "the directory has translation page {page} at {ppn}, which is not its copy"
                ));
            }
        }
        self.cmt.check()?;
        check_mapping(self, pages)
    }

    fn table_bytes(&self) -> u64 {
        self.cmt.max() as u64 * self.entry_bytes + self.gtd.len() as u64 * 4
    }

    fn details(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("cached map entries", self.cmt.max() as u64),
            ("map cache hits", self.hits),
            ("map cache misses", self.misses),
        ]
    }
}
