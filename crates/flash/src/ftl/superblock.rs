//! Superblock FTL: N adjacent logical blocks share up to N + M physical blocks, with a free page map inside
//! (Kang et al., EMSOFT 2006; ftl.md § 2; no public implementation was found).
//!
//! ```text
//! write ─► map look-up ─► open block of the superblock ─► next page; spare area: the updated PT, PMD, PGD
//!            │ miss: up to three spare reads        └ full: 1 exchange │ 2 allocate │ 3 local GC │ 4 compact another
//! ```
//!
//! The fine map is a tree in spare areas: a page table (PT) has 8 entries, a page middle directory (PMD) 8 page tables,
//! the page global directory (PGD) of a superblock the rest. Every program, host or collection, writes the updated
//! path of its page in the same program. So the newest PT, PMD and PGD always sit in live pages, which the tests check.
//!
//! Choices [C]: RAM knows where the newest PGD of a superblock is and caches page tables in plain LRU; a miss reads the
//! distinct pages among PGD, PMD and PT; discards are ignored, because the map in the spare area of a discarded page
//! would be lost with it; `LocalCollect` may draw one block from the pool's reserve while it copies.

use smallvec::SmallVec;

use super::lru::{LruSet, Queue};
use super::super_maps::{Maps, LEVELS};
use super::superblock_gc::Upcoming;
use super::{check_mapping, read_located, Ahead, Ftl, FtlError, Split};
use crate::config::{Config, MergeFault};
use crate::counts::Cause;
use crate::device::Device;
use crate::ids::{Block, Lpn, Ppn, NONE};
use crate::nand::Flash;
use crate::table::prefetch;

/// Whether the block that takes a superblock's host writes has no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    No,
    Yes,
}

/// One superblock's blocks; two cache lines with the default N and M.
#[derive(Debug, Clone, Default)]
#[repr(align(64))]
pub(super) struct Super {
    /// All its physical blocks; in place up to the default N + M.
    pub blocks: SmallVec<[Block; 16]>,
    /// Takes host writes.
    pub open: Option<Block>,
    /// Takes collected pages (hot/cold separation).
    pub cold: Option<Block>,
    /// Live pages.
    pub live: u32,
    /// The queue it is in: it holds a block more than its live pages need.
    pub listed: Option<Filled>,
}

/// The Superblock FTL.
#[derive(Debug)]
pub struct Superblock {
    pub(super) dev: Device,
    pub(super) p: u32,
    blocks: Split,
    logical_pages: u32,
    pub(super) limit: u32,
    pub(super) reserve: u32,
    pub(super) hot_cold: bool,
    pub(super) local_first: bool,
    full_first: bool,
    pub(super) fault: MergeFault,
    pub(super) maps: Maps,
    pub(super) supers: Vec<Super>,
    cache: LruSet,
    cache_bytes: u64,
    /// Superblocks that hold extra blocks, most recently written first. With `full_first` those whose open block had no
    /// room after their last write are apart.
    extra: [Queue; 2],
    pub(super) links: Vec<[u32; 2]>,
    hits: u64,
    misses: u64,
    pub(super) allocations: u64,
    /// Scratch for compaction: blocks with their live pages and positions.
    pub(super) order: Vec<u64>,
    /// Scratch for compaction: its destinations.
    pub(super) drawn: Vec<Block>,
    /// The superblocks that will be compacted next, as it looks now.
    pub(super) upcoming: Upcoming,
}

impl Superblock {
    /// A new drive of `logical_blocks` with `cached` page tables in RAM.
    pub fn new(config: &Config, logical_blocks: u32, cached: u32) -> Self {
        let (p, n, m) = (config.geometry.pages_per_block, config.superblock.n, config.superblock.m);
        let supers = logical_blocks.div_ceil(n);
        Self {
            dev: config.device(),
            p,
            blocks: Split::new(p),
            logical_pages: logical_blocks * p,
            limit: n + m,
            reserve: config.superblock.reserve_blocks,
            hot_cold: config.superblock.hot_cold,
            local_first: config.superblock.local_first,
            full_first: config.superblock.full_first,
            fault: config.merge_fault,
            maps: Maps::new(supers, n * p),
            supers: vec![Super::default(); supers as usize],
            cache: LruSet::new(Maps::page_tables(supers, n * p), cached),
            cache_bytes: u64::from(cached) * config.superblock.cache_entry_bytes,
            extra: [Queue::default(); 2],
            links: vec![[NONE; 2]; supers as usize],
            hits: 0,
            misses: 0,
            allocations: 0,
            order: Vec::new(),
            drawn: Vec::new(),
            upcoming: Upcoming::default(),
        }
    }

    /// What finding a page's place costs.
    #[inline]
    fn look_up(&mut self, lpn: u32) {
        if self.cache.touch(self.maps.page_table_of(lpn)) {
            self.hits += 1;
            return;
        }
        self.misses += 1;
        let path = self.maps.path(lpn);
        // A level that was never written ends the walk. Neighbouring levels are often in the same spare area.
        let mut reads = 0;
        for (level, page) in path.iter().enumerate() {
            if *page == NONE {
                break;
            }
            if !path[..level].contains(page) {
                reads += 1;
            }
        }
        self.dev.flash.read_spare(reads);
    }

    /// Blocks that so many live pages need.
    #[inline]
    pub(super) fn needed(&self, live: u32) -> u32 {
        self.blocks.of(live + self.p - 1).0
    }

    /// Puts the superblock where it belongs in the queue of those that hold extra blocks. `written`: it moves to the
    /// front.
    #[inline]
    pub(super) fn relist(&mut self, sb: u32, written: bool) {
        let s = &self.supers[sb as usize];
        let extra = s.blocks.len() as u32 > self.needed(s.live);
        let filled = self.full_first && s.open.is_none_or(|open| self.dev.flash.is_full(open));
        let belongs = extra.then_some(if filled { Filled::Yes } else { Filled::No });
        let listed = s.listed;
        if let Some(queue) = listed.filter(|_| written || !extra) {
            self.extra[queue as usize].remove(&mut self.links, sb);
            self.supers[sb as usize].listed = None;
        }
        if let Some(queue) = belongs.filter(|_| self.supers[sb as usize].listed.is_none()) {
            self.extra[queue as usize].push_front(&mut self.links, sb);
            self.supers[sb as usize].listed = belongs;
        }
    }

    /// The superblock that gives an extra block back.
    pub(super) fn victim(&self) -> Option<u32> {
        self.extra[Filled::Yes as usize].back().or_else(|| self.extra[Filled::No as usize].back())
    }

    fn level(&mut self, block: Block) -> Result<(), FtlError> {
        let first = (0..self.p).map(|page| Ppn(block.0 * self.p + page));
        let Some(page) = first.into_iter().find(|ppn| self.dev.flash.is_live(*ppn)) else { return Ok(()) };
        let sb = self.maps.super_of(self.dev.flash.owner_of(page));
        let dst = self.dev.take_most_worn()?;
        self.move_into(sb, block, dst, Cause::WearLevel);
        self.dev.release(block, Cause::WearLevel);
        let s = &mut self.supers[sb as usize];
        let renamed = |held: Option<Block>| if held == Some(block) { Some(dst) } else { held };
        s.open = renamed(s.open);
        s.cold = renamed(s.cold);
        if let Some(slot) = s.blocks.iter_mut().find(|held| **held == block) {
            *slot = dst;
        }
        Ok(())
    }
}

impl Ftl for Superblock {
    fn name(&self) -> &'static str {
        "superblock"
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

    fn read(&mut self, lpn: Lpn, cause: Cause) -> Result<Option<Ppn>, FtlError> {
        self.look_up(lpn.0);
        Ok(read_located(self, lpn, cause))
    }

    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.expect_victims();
        self.look_up(lpn.0);
        let sb = self.maps.super_of(lpn.0);
        let block = self.host_block(sb)?;
        match self.maps.place(lpn.0) {
            NONE => self.supers[sb as usize].live += 1,
            old => {
                self.dev.flash.invalidate(Ppn(old));
            }
        }
        let ppn = self.dev.flash.program_next(block, lpn.0, Cause::Host);
        self.maps.region(sb).programmed(lpn.0, ppn);
        self.relist(sb, true);
        if let Some(cold) = self.dev.block_to_level(|_, _| true) {
            self.level(cold)?;
        }
        Ok(())
    }

    #[inline]
    fn expect(&self, lpn: Lpn, ahead: Ahead) {
        let sb = self.maps.super_of(lpn.0);
        match ahead {
            Ahead::Far => {
                prefetch(&self.supers, sb as usize);
                prefetch(&self.links, sb as usize);
                self.cache.expect(self.maps.page_table_of(lpn.0));
                self.maps.expect(lpn.0);
            }
            Ahead::Near => {
                self.cache.expect_near(self.maps.page_table_of(lpn.0));
                let old = self.maps.place(lpn.0);
                if old != NONE {
                    self.dev.flash.expect_death(Ppn(old));
                }
                let s = &self.supers[sb as usize];
                match s.open {
                    Some(open) if !self.dev.flash.is_full(open) => self.dev.flash.expect_program(open),
                    _ => s.blocks.iter().for_each(|b| self.dev.flash.expect_fill(*b)),
                }
            }
        }
    }

    fn discard(&mut self, _lpn: Lpn) -> Result<(), FtlError> {
        Ok(())
    }

    fn locate(&self, lpn: Lpn) -> Option<Ppn> {
        let ppn = self.maps.place(lpn.0);
        (ppn != NONE).then_some(Ppn(ppn))
    }

    fn check(&self) -> Result<(), String> {
        check_mapping(self, 0)?;
        for (level, piece, ppn) in self.maps.pieces() {
            let owner = self.dev.flash.owner_of(Ppn(ppn));
            if !self.dev.flash.is_live(Ppn(ppn)) || self.maps.piece_of(level, owner) != piece {
                let level = LEVELS[level];
                return Err(format!("the newest {level} {piece:?} is in page {ppn}, which is not live"));
            }
        }
        let mut held = self.dev.pool.len() as usize;
        for (i, s) in self.supers.iter().enumerate() {
            held += s.blocks.len();
            let live: u32 = s.blocks.iter().map(|b| self.dev.flash.live_in(*b)).sum();
            if live != s.live || s.blocks.len() as u32 > self.limit {
                return Err(format!("superblock {i} has {} blocks with {live} live pages", s.blocks.len()));
            }
        }
        if held != self.dev.flash.geometry().blocks as usize {
            return Err(format!("{held} blocks are in use or free, the flash has others"));
        }
        Ok(())
    }

    fn table_bytes(&self) -> u64 {
        // Block pointers and the place of the newest PGD, 4 bytes each, and the map cache.
        self.supers.len() as u64 * u64::from(self.limit + 1) * 4 + self.cache_bytes
    }

    fn details(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("map cache hits", self.hits),
            ("map cache misses", self.misses),
            ("blocks allocated from the pool", self.allocations),
        ]
    }
}
