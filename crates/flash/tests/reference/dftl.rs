//! DFTL with its translation pages written out.

use std::collections::{BTreeSet, HashMap};

use super::flash::Flash;
use super::{Naive, Tally, READ};

type At = (usize, usize);

struct Entry {
    lpn: u32,
    at: Option<At>,
    dirty: bool,
}

pub struct Dftl {
    pub flash: Flash,
    /// Contents of the translation pages in flash.
    table: HashMap<u32, Option<At>>,
    gtd: HashMap<u32, At>,
    /// Most recent first.
    probation: Vec<Entry>,
    protected: Vec<Entry>,
    cached_max: usize,
    protected_max: usize,
    per_page: u32,
    batch: bool,
    pub last_free: usize,
    frontiers: [Option<usize>; 2],
    map_blocks: BTreeSet<usize>,
}

impl Dftl {
    pub fn new(blocks: usize, p: usize, cached: usize, protected: f64, per_page: u32, batch: bool) -> Self {
        Self {
            flash: Flash::new(blocks, p),
            table: HashMap::new(),
            gtd: HashMap::new(),
            probation: Vec::new(),
            protected: Vec::new(),
            cached_max: cached,
            protected_max: (cached as f64 * protected) as usize,
            per_page,
            batch,
            last_free: 1,
            frontiers: [None; 2],
            map_blocks: BTreeSet::new(),
        }
    }

    fn frontier(&mut self, map: bool) -> usize {
        match self.frontiers[usize::from(map)] {
            Some(block) if !self.flash.full(block) => block,
            old => {
                if let Some(old) = old {
                    self.flash.close(old);
                }
                let block = self.flash.take();
                self.frontiers[usize::from(map)] = Some(block);
                if map {
                    self.map_blocks.insert(block);
                } else {
                    self.map_blocks.remove(&block);
                }
                block
            }
        }
    }

    fn entry(&mut self, lpn: u32) -> Option<&mut Entry> {
        self.probation.iter_mut().chain(&mut self.protected).find(|e| e.lpn == lpn)
    }

    fn rewrite(&mut self, page: u32, cause: &'static str) {
        if self.gtd.contains_key(&page) {
            self.flash.count(cause, READ);
        }
        let block = self.frontier(true);
        if let Some(old) = self.gtd.get(&page) {
            self.flash.kill(*old);
        }
        let at = self.flash.program(block, page, 0, cause);
        self.gtd.insert(page, at);
    }

    fn resolve(&mut self, lpn: u32) {
        let cached = self.probation.iter().chain(&self.protected).any(|e| e.lpn == lpn);
        if cached {
            let list = if self.protected.iter().any(|e| e.lpn == lpn) {
                &mut self.protected
            } else {
                &mut self.probation
            };
            let i = list.iter().position(|e| e.lpn == lpn).expect("it is in this list");
            let entry = list.remove(i);
            self.protected.insert(0, entry);
            if self.protected.len() > self.protected_max {
                let last = self.protected.pop().expect("not empty");
                self.probation.insert(0, last);
            }
            return;
        }
        if self.probation.len() + self.protected.len() == self.cached_max {
            let evicted = self.probation.pop().or_else(|| self.protected.pop()).expect("a full cache");
            if evicted.dirty {
                let page = evicted.lpn / self.per_page;
                self.table.insert(evicted.lpn, evicted.at);
                if self.batch {
                    for entry in self.probation.iter_mut().chain(&mut self.protected) {
                        if entry.dirty && entry.lpn / self.per_page == page {
                            entry.dirty = false;
                            self.table.insert(entry.lpn, entry.at);
                        }
                    }
                }
                self.rewrite(page, "map-evict");
            }
        }
        if self.gtd.contains_key(&(lpn / self.per_page)) {
            self.flash.count("map-fetch", READ);
        }
        let at = self.table.get(&lpn).copied().flatten();
        self.probation.insert(0, Entry { lpn, at, dirty: false });
    }

    fn make_room(&mut self) {
        if self.flash.free() <= 3 {
            self.collect();
            while self.flash.free() < 3 {
                self.collect();
            }
        }
    }

    fn collect(&mut self) {
        let among =
            |maps| self.flash.victim(&self.frontiers, |block| self.map_blocks.contains(&block) == maps);
        let victim = match (among(false), among(true)) {
            (Some(_), Some(map)) if self.flash.free() <= self.last_free => map,
            (Some(data), Some(map)) if self.flash.compare(data, map).is_ge() => data,
            (data, map) => map.or(data).expect("a victim"),
        };
        let map = self.map_blocks.contains(&victim);
        let cause = if map { "collect-map" } else { "collect" };
        let mut touched = BTreeSet::new();
        for page in 0..self.flash.p {
            let held = self.flash.blocks[victim].pages[page];
            if !held.live {
                continue;
            }
            let to = self.frontier(map);
            let at = self.flash.copy((victim, page), to, cause);
            if map {
                self.gtd.insert(held.owner, at);
            } else if let Some(entry) = self.entry(held.owner) {
                entry.at = Some(at);
                entry.dirty = true;
            } else {
                self.table.insert(held.owner, Some(at));
                touched.insert(held.owner / self.per_page);
            }
        }
        self.flash.release(victim, cause);
        for page in touched {
            self.rewrite(page, "map-update");
        }
    }
}

impl Naive for Dftl {
    fn write(&mut self, lpn: u32, stamp: u32) {
        self.make_room();
        self.resolve(lpn);
        let block = self.frontier(false);
        if let Some(old) = self.entry(lpn).expect("resolved").at {
            self.flash.kill(old);
        }
        let at = self.flash.program(block, lpn, stamp, "host");
        let entry = self.entry(lpn).expect("resolved");
        entry.at = Some(at);
        entry.dirty = true;
    }

    fn read(&mut self, lpn: u32) -> Option<u32> {
        self.make_room();
        self.resolve(lpn);
        let (block, page) = self.entry(lpn).expect("resolved").at?;
        self.flash.count("host", READ);
        Some(self.flash.blocks[block].pages[page].stamp)
    }

    fn discard(&mut self, lpn: u32) {
        self.make_room();
        self.resolve(lpn);
        if let Some(old) = self.entry(lpn).expect("resolved").at {
            self.flash.kill(old);
            let entry = self.entry(lpn).expect("resolved");
            entry.at = None;
            entry.dirty = true;
        }
    }

    fn tally(&self) -> &Tally {
        &self.flash.tally
    }
}
