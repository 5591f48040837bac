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

use super::lru::{Links, LruSet, Queue};
use super::{check_mapping, Ftl, FtlError, Split};
use crate::config::Config;
use crate::counts::Cause;
use crate::device::Device;
use crate::ids::{Block, Lpn, Ppn, NONE};
use crate::nand::Flash;

/// Pages a page table covers.
pub const PT_PAGES: u32 = 8;
/// Pages a page middle directory covers.
pub const PMD_PAGES: u32 = 64;

/// Whether the block that takes a superblock's host writes has no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    No,
    Yes,
}

/// One superblock's blocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Super {
    /// All its physical blocks.
    pub blocks: Vec<Block>,
    /// Takes host writes.
    pub open: Option<Block>,
    /// Takes collected pages (hot/cold separation).
    pub cold: Option<Block>,
    /// Live pages.
    pub live: u32,
    /// The queue it is in: it holds a block more than its live pages need.
    pub listed: Option<Filled>,
}

/// Where the newest maps are.
#[derive(Debug)]
pub(super) struct Maps {
    pub map: Vec<u32>,
    pub pt: Vec<u32>,
    pub pmd: Vec<u32>,
    pub pgd: Vec<u32>,
    super_pages: Split,
    /// Page tables and page middle directories a superblock.
    pt_each: u32,
    pmd_each: u32,
}

/// The map path of a logical page: its superblock and the numbers of its PMD and PT.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub sb: u32,
    pub pmd: u32,
    pub pt: u32,
}

impl Maps {
    #[inline]
    pub fn path(&self, lpn: u32) -> Path {
        let (sb, page) = self.super_pages.of(lpn);
        Path { sb, pmd: sb * self.pmd_each + page / PMD_PAGES, pt: sb * self.pt_each + page / PT_PAGES }
    }

    /// A page of `lpn` was programmed at `ppn`, with its path in the spare area.
    #[inline]
    pub fn programmed(&mut self, lpn: u32, ppn: Ppn) {
        self.map[lpn as usize] = ppn.0;
        let path = self.path(lpn);
        self.pt[path.pt as usize] = ppn.0;
        self.pmd[path.pmd as usize] = ppn.0;
        self.pgd[path.sb as usize] = ppn.0;
    }
}

/// A level of the maps for checking: its name, where its newest pieces are, and the number of a path's piece.
type Level<'a> = (&'static str, &'a [u32], fn(Path) -> u32);

/// The Superblock FTL.
#[derive(Debug)]
pub struct Superblock {
    pub(super) dev: Device,
    pub(super) p: u32,
    pub(super) limit: u32,
    pub(super) reserve: u32,
    pub(super) hot_cold: bool,
    pub(super) local_first: bool,
    full_first: bool,
    pub(super) maps: Maps,
    pub(super) supers: Vec<Super>,
    cache: LruSet,
    cache_bytes: u64,
    /// Superblocks that hold extra blocks, most recently written first. With `full_first` those whose open block had no
    /// room after their last write are apart.
    extra: [Queue; 2],
    links: Links,
    hits: u64,
    misses: u64,
    pub(super) allocations: u64,
    /// Scratch for compaction.
    pub(super) order: Vec<Block>,
}

impl Superblock {
    /// A new drive of `logical_blocks` with `cached` page tables in RAM.
    pub fn new(config: &Config, logical_blocks: u32, cached: u32) -> Self {
        let (p, n, m) = (config.geometry.pages_per_block, config.superblock.n, config.superblock.m);
        let pages = logical_blocks * p;
        let supers = logical_blocks.div_ceil(n) as usize;
        let (pt_each, pmd_each) = ((n * p).div_ceil(PT_PAGES), (n * p).div_ceil(PMD_PAGES));
        Self {
            dev: config.device(),
            p,
            limit: n + m,
            reserve: config.superblock.reserve_blocks,
            hot_cold: config.superblock.hot_cold,
            local_first: config.superblock.local_first,
            full_first: config.superblock.full_first,
            maps: Maps {
                map: vec![NONE; pages as usize],
                pt: vec![NONE; supers * pt_each as usize],
                pmd: vec![NONE; supers * pmd_each as usize],
                pgd: vec![NONE; supers],
                super_pages: Split::new(n * p),
                pt_each,
                pmd_each,
            },
            supers: vec![Super::default(); supers],
            cache: LruSet::new(supers * pt_each as usize, cached),
            cache_bytes: u64::from(cached) * config.superblock.cache_entry_bytes,
            extra: [Queue::default(); 2],
            links: Links::new(supers),
            hits: 0,
            misses: 0,
            allocations: 0,
            order: Vec::new(),
        }
    }

    /// What finding a page's place costs.
    #[inline]
    fn look_up(&mut self, lpn: u32) {
        let path = self.maps.path(lpn);
        if self.cache.touch(path.pt) {
            self.hits += 1;
            return;
        }
        self.misses += 1;
        let path = [
            self.maps.pgd[path.sb as usize],
            self.maps.pmd[path.pmd as usize],
            self.maps.pt[path.pt as usize],
        ];
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

    /// Puts the superblock where it belongs in the queue of those that hold extra blocks. `written`: it moves to the
    /// front.
    #[inline]
    pub(super) fn relist(&mut self, sb: u32, written: bool) {
        let s = &self.supers[sb as usize];
        let extra = s.blocks.len() as u32 > s.live.div_ceil(self.p);
        let filled = self.full_first && s.open.is_none_or(|open| self.dev.flash.is_full(open));
        let belongs = extra.then_some(if filled { Filled::Yes } else { Filled::No });
        let listed = s.listed;
        if let Some(queue) = listed.filter(|_| written || !extra) {
            self.links.remove(&mut self.extra[queue as usize], sb);
            self.supers[sb as usize].listed = None;
        }
        if let Some(queue) = belongs.filter(|_| self.supers[sb as usize].listed.is_none()) {
            self.links.push_front(&mut self.extra[queue as usize], sb);
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
        let sb = self.maps.path(self.dev.flash.owner_of(page)).sb;
        let dst = self.dev.take_most_worn()?;
        let maps = &mut self.maps;
        self.dev.flash.move_live(block, dst, Cause::WearLevel, |lpn, new| maps.programmed(lpn, new));
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
        self.maps.map.len() as u32
    }

    fn flash(&self) -> &Flash {
        &self.dev.flash
    }

    fn flash_mut(&mut self) -> &mut Flash {
        &mut self.dev.flash
    }

    fn read(&mut self, lpn: Lpn, cause: Cause) -> Result<Option<Ppn>, FtlError> {
        self.look_up(lpn.0);
        let found = self.locate(lpn);
        if let Some(ppn) = found {
            self.dev.flash.read(ppn, cause);
        }
        Ok(found)
    }

    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.look_up(lpn.0);
        let sb = self.maps.path(lpn.0).sb;
        let block = self.host_block(sb)?;
        match self.maps.map[lpn.index()] {
            NONE => self.supers[sb as usize].live += 1,
            old => {
                self.dev.flash.invalidate(Ppn(old));
            }
        }
        let ppn = self.dev.flash.program_next(block, lpn.0, Cause::Host);
        self.maps.programmed(lpn.0, ppn);
        self.relist(sb, true);
        if let Some(cold) = self.dev.block_to_level(|_, _| true) {
            self.level(cold)?;
        }
        Ok(())
    }

    fn discard(&mut self, _lpn: Lpn) -> Result<(), FtlError> {
        Ok(())
    }

    fn locate(&self, lpn: Lpn) -> Option<Ppn> {
        let ppn = self.maps.map[lpn.index()];
        (ppn != NONE).then_some(Ppn(ppn))
    }

    fn check(&self) -> Result<(), String> {
        check_mapping(self, 0)?;
        let maps = &self.maps;
        let levels: [Level<'_>; 3] = [
            ("PT", &maps.pt, |path| path.pt),
            ("PMD", &maps.pmd, |path| path.pmd),
            ("PGD", &maps.pgd, |path| path.sb),
        ];
        for (level, table, number) in levels {
            for (i, ppn) in table.iter().enumerate().filter(|(_, ppn)| **ppn != NONE) {
                let owner = self.dev.flash.owner_of(Ppn(*ppn));
                if !self.dev.flash.is_live(Ppn(*ppn)) || number(maps.path(owner)) as usize != i {
                    return Err(format!("the newest {level} {i} is in page {ppn}, which is not live"));
                }
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
