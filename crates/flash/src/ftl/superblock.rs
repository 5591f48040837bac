//! Superblock FTL: N adjacent logical blocks share up to N + M physical blocks, with a free page map inside
//! (Kang et al., EMSOFT 2006; no public implementation was found).
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

use super::lru::LruSet;
use super::super_blocks::{Compact, Filled, Form, Super, Wide};
use super::super_maps::Maps;
use super::super_owners::Owners;
use super::upcoming::Upcoming;
use super::{check_mapping_by, read_located, Ahead, Ftl, FtlError, Split};
use crate::config::{Config, MergeFault};
use crate::counts::Cause;
use crate::device::Device;
use crate::ids::{Block, Lpn, Ppn, NONE};
use crate::nand::Flash;
use crate::queue::{take_out, Queue, ALONE};
use crate::table::prefetch;

/// Steps in which a victim is compacted.
const STEPS: usize = 4;

/// The Superblock FTL.
#[derive(Debug)]
pub struct Superblock<F: Form> {
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
    pub(super) maps: Maps<F::Cell>,
    pub(super) supers: Vec<Super<F>>,
    pub(super) owners: Owners<F::Cell>,
    /// The superblock of each block in use, kept for static wear levelling only.
    holders: Vec<u32>,
    cache: LruSet,
    cache_bytes: u64,
    /// Superblocks that hold extra blocks, most recently written first. With `full_first` those whose open block had no
    /// room after their last write are apart.
    pub(super) extra: [Queue; 2],
    /// Their neighbours there, and behind them the heads of the queues. Apart from the superblocks, because a table so small stays in the cache.
    pub(super) links: Vec<[u32; 2]>,
    hits: u64,
    misses: u64,
    pub(super) allocations: u64,
    /// Scratch for compaction: the slots that are compacted.
    pub(super) chosen: Vec<u16>,
    /// The superblocks that will be compacted next, as it looks now.
    pub(super) upcoming: Upcoming,
    /// The slots that will be compacted of the one being asked for.
    pub(super) expected: Vec<u16>,
}

/// A new drive of `logical_blocks` with `cached` page tables in RAM.
pub fn build(config: &Config, logical_blocks: u32, cached: u32) -> Box<dyn Ftl> {
    let limit = config.superblock.n + config.superblock.m;
    if Compact::fits(limit, config.geometry.pages_per_block) {
        Box::new(Superblock::<Compact>::new(config, logical_blocks, cached))
    } else {
        Box::new(Superblock::<Wide>::new(config, logical_blocks, cached))
    }
}

impl<F: Form> Superblock<F> {
    /// As [`build`].
    fn new(config: &Config, logical_blocks: u32, cached: u32) -> Self {
        let (p, n, m) = (config.geometry.pages_per_block, config.superblock.n, config.superblock.m);
        let supers = logical_blocks.div_ceil(n);
        let flash = Flash::without_owners(config.geometry, config.timing, config.in_order);
        let physical = config.geometry.blocks;
        let mut links = vec![[ALONE; 2]; supers as usize + 2];
        let extra = [supers, supers + 1].map(|head| Queue::new(&mut links, head));
        Self {
            dev: Device::new(flash, config.static_wear),
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
            supers: (0..supers).map(|_| Super::new(n + m)).collect(),
            owners: Owners::new(physical, p),
            holders: if config.static_wear.is_some() { vec![NONE; physical as usize] } else { Vec::new() },
            cache: LruSet::new(Maps::<F::Cell>::page_tables(supers, n * p), cached),
            cache_bytes: u64::from(cached) * config.superblock.cache_entry_bytes,
            extra,
            links,
            hits: 0,
            misses: 0,
            allocations: 0,
            chosen: Vec::new(),
            upcoming: Upcoming::new(STEPS),
            expected: Vec::new(),
        }
    }

    /// What finding a page's place costs.
    #[inline]
    fn look_up(&mut self, sb: u32, page: u32) {
        if self.cache.touch(self.maps.page_table_of(sb, page)) {
            self.hits += 1;
            return;
        }
        self.misses += 1;
        self.dev.flash.read_spare(self.maps.path_pages(sb, page));
    }

    /// The physical page at a place within a superblock.
    #[inline]
    fn ppn(&self, sb: u32, place: u32) -> Ppn {
        let (slot, page) = self.blocks.of(place);
        Ppn(self.supers[sb as usize].block(slot as u16).0 * self.p + page)
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
        let extra = s.held() > self.needed(s.live);
        let filled = self.full_first && s.open().is_none_or(|open| self.dev.flash.is_full(s.block(open)));
        let belongs = extra.then_some(if filled { Filled::Yes } else { Filled::No });
        let listed = s.listed;
        if listed.is_some() && (written || !extra) {
            take_out(&mut self.links, sb);
            self.supers[sb as usize].listed = None;
        }
        if let Some(queue) = belongs.filter(|_| self.supers[sb as usize].listed.is_none()) {
            self.extra[queue as usize].push_front(&mut self.links, sb);
            self.supers[sb as usize].listed = belongs;
        }
    }

    /// The superblock that gives an extra block back.
    pub(super) fn victim(&self) -> Option<u32> {
        [Filled::Yes, Filled::No].into_iter().find_map(|queue| self.extra[queue as usize].back(&self.links))
    }

    /// A superblock got a block.
    #[inline]
    pub(super) fn holds(&mut self, sb: u32, block: Block) {
        if let Some(holder) = self.holders.get_mut(block.index()) {
            *holder = sb;
        }
    }

    fn level(&mut self, block: Block) -> Result<(), FtlError> {
        let sb = self.holders[block.index()];
        let s = &self.supers[sb as usize];
        let Some(slot) = s.slots().iter().copied().find(|slot| s.block(*slot) == block) else {
            return Ok(());
        };
        let dst = self.dev.take_most_worn()?;
        // The slot stays: its pages are in the new block, packed.
        self.copy(sb, block, (slot, dst), Cause::WearLevel);
        self.supers[sb as usize].replace(slot, dst);
        self.holds(sb, dst);
        self.dev.release(block, Cause::WearLevel);
        Ok(())
    }

    /// A superblock's counts agree with the flash.
    fn check_super(&self, sb: usize) -> Result<(), String> {
        let s = &self.supers[sb];
        let live: u32 = s.slots().iter().map(|slot| self.dev.flash.live_in(s.block(*slot))).sum();
        if live != s.live || s.held() > self.limit {
            return Err(format!("superblock {sb} has {} blocks with {live} live pages", s.held()));
        }
        for slot in s.slots() {
            let (block, counted) = (s.block(*slot), s.live_in(*slot));
            if self.dev.flash.live_in(block) != counted {
                return Err(format!("superblock {sb} counts {counted} live pages in block {}", block.0));
            }
        }
        Ok(())
    }
}

impl<F: Form> Ftl for Superblock<F> {
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
        let (sb, page) = self.maps.split(lpn.0);
        self.look_up(sb, page);
        Ok(read_located(self, lpn, cause))
    }

    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.expect_victims();
        let (sb, page) = self.maps.split(lpn.0);
        self.look_up(sb, page);
        let slot = self.host_slot(sb)?;
        let old = self.maps.place(sb, page);
        let s = &mut self.supers[sb as usize];
        let block = s.block(slot);
        if old == NONE {
            s.live += 1;
        } else {
            let (slot, page) = self.blocks.of(old);
            s.died(slot as u16, 1);
            self.dev.flash.invalidate(Ppn(s.block(slot as u16).0 * self.p + page));
        }
        s.born(slot, 1);
        let to = self.dev.flash.next_page(block);
        self.dev.flash.program_at(block, to, lpn.0, Cause::Host);
        self.owners.set(block, to, page);
        self.maps.region(sb).programmed(page, u32::from(slot) * self.p + to);
        self.relist(sb, true);
        if let Some(cold) = self.dev.block_to_level(|_, _| true) {
            self.level(cold)?;
        }
        Ok(())
    }

    #[inline]
    fn expect(&self, lpn: Lpn, ahead: Ahead) {
        let (sb, page) = self.maps.split(lpn.0);
        // What a write changes besides has come by its superblock's record as a rule.
        if ahead == Ahead::Far {
            prefetch(&self.supers, sb as usize);
            self.cache.expect(self.maps.page_table_of(sb, page));
            self.maps.expect(sb, page);
        }
    }

    fn discard(&mut self, _lpn: Lpn) -> Result<(), FtlError> {
        Ok(())
    }

    fn locate(&self, lpn: Lpn) -> Option<Ppn> {
        let (sb, page) = self.maps.split(lpn.0);
        let place = self.maps.place(sb, page);
        (place != NONE).then(|| self.ppn(sb, place))
    }

    fn check(&self) -> Result<(), String> {
        let mut holders = vec![NONE; self.dev.flash.geometry().blocks as usize];
        let mut held = self.dev.pool.len();
        for (sb, s) in (0..).zip(&self.supers) {
            held += s.held();
            for block in s.slots().iter().map(|slot| s.block(*slot)) {
                let before = std::mem::replace(&mut holders[block.index()], sb);
                if before != NONE {
                    return Err(format!("superblocks {before} and {sb} both have block {}", block.0));
                }
            }
        }
        check_mapping_by(self, 0, |ppn| {
            let (block, page) = self.blocks.of(ppn.0);
            let owner = self.owners.of(Block(block), page);
            // A block that no superblock has belongs to no page.
            holders[block as usize].checked_mul(self.maps.pages()).map_or(NONE, |first| first + owner)
        })?;
        self.maps.check()?;
        (0..self.supers.len()).try_for_each(|sb| self.check_super(sb))?;
        if held != self.dev.flash.geometry().blocks {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::workload::Random;

    /// The references of `tests/properties.rs` hold the compact form; this holds the other one to it.
    #[test]
    fn both_forms_do_the_same() {
        for (p, n, m, static_wear) in [(8, 3, 5, None), (72, 2, 2, None), (16, 4, 4, Some(4))] {
            let mut config = Config { geometry: Geometry::small(24, p), static_wear, ..Config::default() };
            (config.superblock.n, config.superblock.m) = (n, m);
            let mut compact = Superblock::<Compact>::new(&config, 18, 7);
            let mut wide = Superblock::<Wide>::new(&config, 18, 7);
            let mut random = Random::new(u64::from(p));
            for i in 0..30_000 {
                let lpn = Lpn(random.below(18 * p));
                assert_eq!(compact.write(lpn), wide.write(lpn));
                assert_eq!(compact.read(lpn, Cause::Host), wide.read(lpn, Cause::Host));
                if i % 997 == 0 {
                    assert_eq!((compact.check(), wide.check()), (Ok(()), Ok(())));
                }
            }
            assert_eq!(compact.flash().counts(), wide.flash().counts());
            assert_eq!(compact.flash().wear(), wide.flash().wear());
            assert!(compact.flash().counts().of(Cause::Compact).erases > 100);
        }
    }
}
