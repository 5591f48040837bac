//! The Superblock FTL.

use std::collections::HashMap;

use super::flash::Flash;
use super::{Naive, Tally, READ};

type At = (usize, usize);

#[derive(Default)]
struct Super {
    blocks: Vec<usize>,
    open: Option<usize>,
    cold: Option<usize>,
    written: u64,
    /// The open block was full after the last write.
    filled: bool,
}

pub struct Superblock {
    flash: Flash,
    n: u32,
    limit: usize,
    reserve: usize,
    hot_cold: bool,
    pub local_first: bool,
    pub full_first: bool,
    map: HashMap<u32, At>,
    /// Newest PGD, PMD and PT: level, superblock, number.
    path: HashMap<(u8, u32, u32), At>,
    supers: Vec<Super>,
    /// Cached page tables, most recent first.
    cache: Vec<(u32, u32)>,
    cached_max: usize,
    spare_reads: u64,
}

impl Superblock {
    pub fn new(blocks: usize, p: usize, logical: u32, n: u32, m: u32, cached: usize, hot_cold: bool) -> Self {
        Self {
            flash: Flash::new(blocks, p),
            n,
            limit: (n + m) as usize,
            reserve: 2,
            hot_cold,
            local_first: false,
            full_first: false,
            map: HashMap::new(),
            path: HashMap::new(),
            supers: (0..logical.div_ceil(n)).map(|_| Super::default()).collect(),
            cache: Vec::new(),
            cached_max: cached,
            spare_reads: 0,
        }
    }

    fn keys(&self, lpn: u32) -> [(u8, u32, u32); 3] {
        let pages = self.n * self.flash.p as u32;
        let (sb, page) = (lpn / pages, lpn % pages);
        [(0, sb, 0), (1, sb, page / 64), (2, sb, page / 8)]
    }

    fn programmed(&mut self, lpn: u32, at: At) {
        self.map.insert(lpn, at);
        for key in self.keys(lpn) {
            self.path.insert(key, at);
        }
    }

    fn look_up(&mut self, lpn: u32) {
        let [_, _, (_, sb, pt)] = self.keys(lpn);
        if let Some(i) = self.cache.iter().position(|key| *key == (sb, pt)) {
            self.cache.remove(i);
        } else {
            let path = self.keys(lpn).map(|key| self.path.get(&key).copied());
            let known: Vec<At> = path.into_iter().map_while(|at| at).collect();
            let mut pages = known.clone();
            pages.sort_unstable();
            pages.dedup();
            self.spare_reads += pages.len() as u64;
        }
        self.cache.insert(0, (sb, pt));
        self.cache.truncate(self.cached_max);
    }

    fn extra(&self, s: usize) -> bool {
        let live: usize = self.supers[s].blocks.iter().map(|b| self.flash.blocks[*b].live()).sum();
        self.supers[s].blocks.len() > live.div_ceil(self.flash.p)
    }

    fn forget(&mut self, s: usize, block: usize) {
        let sb = &mut self.supers[s];
        sb.blocks.retain(|b| *b != block);
        sb.open = sb.open.filter(|b| *b != block);
        sb.cold = sb.cold.filter(|b| *b != block);
    }

    /// Empties `victim` into `to` and then into fresh blocks; gives the last destination and whether one was drawn.
    fn empty(
        &mut self,
        s: usize,
        victim: usize,
        mut to: Option<usize>,
        cause: &'static str,
    ) -> (Option<usize>, bool) {
        let mut drawn = false;
        for page in 0..self.flash.blocks[victim].pages.len() {
            let held = self.flash.blocks[victim].pages[page];
            if !held.live {
                continue;
            }
            if to.is_none_or(|b| self.flash.full(b)) {
                let block = self.flash.take();
                self.supers[s].blocks.push(block);
                to = Some(block);
                drawn = true;
            }
            let at = self.flash.copy((victim, page), to.expect("a destination"), cause);
            self.programmed(held.owner, at);
        }
        (to, drawn)
    }

    fn open(&mut self, s: usize) -> usize {
        if let Some(open) = self.supers[s].open.filter(|b| !self.flash.full(*b)) {
            return open;
        }
        self.supers[s].open = None;
        while self.supers[s].open.is_none() {
            let blocks = self.supers[s].blocks.clone();
            if let Some(block) = blocks.iter().copied().find(|b| self.flash.blocks[*b].live() == 0) {
                self.flash.erase(block, "exchange");
                self.supers[s].cold = self.supers[s].cold.filter(|b| *b != block);
                self.supers[s].open = Some(block);
            } else if blocks.len() >= self.limit
                || self.local_first && self.flash.free() <= self.reserve && self.extra(s)
            {
                self.local(s);
            } else if self.flash.free() > self.reserve {
                let block = self.flash.take();
                self.supers[s].blocks.push(block);
                self.supers[s].open = Some(block);
            } else {
                let extra = (0..self.supers.len()).filter(|s| self.extra(*s));
                let later = |s: &usize| self.full_first && !self.supers[*s].filled;
                let victim = extra.min_by_key(|s| (later(s), self.supers[*s].written));
                let victim = victim.expect("an extra block");
                self.compact(victim);
            }
        }
        self.supers[s].open.expect("just found")
    }

    fn local(&mut self, s: usize) {
        let cold = self.supers[s].cold.filter(|b| !self.flash.full(*b));
        self.supers[s].cold = cold;
        let others = self.supers[s].blocks.iter().copied().filter(|b| Some(*b) != cold);
        let victim = others.min_by_key(|b| self.flash.blocks[*b].live()).expect("a block");
        if self.flash.blocks[victim].live() == self.flash.p {
            self.supers[s].open = self.supers[s].cold.take();
            return;
        }
        let (to, drawn) = self.empty(s, victim, cold, "local-collect");
        if self.hot_cold {
            self.supers[s].cold = to.filter(|b| !self.flash.full(*b));
        } else if drawn {
            self.supers[s].open = to;
        }
        if drawn {
            self.forget(s, victim);
            self.flash.release(victim, "local-collect");
        } else {
            self.flash.erase(victim, "local-collect");
            self.supers[s].open = Some(victim);
        }
    }

    fn compact(&mut self, s: usize) {
        let p = self.flash.p;
        let mut blocks = self.supers[s].blocks.clone();
        blocks.sort_by_key(|b| self.flash.blocks[*b].live());
        let gains = |k: usize| {
            k > blocks[..k].iter().map(|b| self.flash.blocks[*b].live()).sum::<usize>().div_ceil(p)
        };
        let k = (1..=blocks.len()).find(|k| gains(*k)).unwrap_or(blocks.len());
        let mut to = None;
        for victim in blocks[..k].iter().copied() {
            (to, _) = self.empty(s, victim, to, "compact");
            self.forget(s, victim);
            self.flash.release(victim, "compact");
        }
        if let Some(to) = to.filter(|b| !self.flash.full(*b)) {
            let sb = &mut self.supers[s];
            let held = if self.hot_cold { &mut sb.cold } else { &mut sb.open };
            let pages = |b: usize| self.flash.blocks[b].pages.len();
            if held.is_none_or(|held| pages(to) < pages(held)) {
                *held = Some(to);
            }
        }
    }
}

impl Naive for Superblock {
    fn write(&mut self, lpn: u32, stamp: u32) {
        self.look_up(lpn);
        let s = self.keys(lpn)[0].1 as usize;
        let block = self.open(s);
        if let Some(old) = self.map.get(&lpn) {
            self.flash.kill(*old);
        }
        let at = self.flash.program(block, lpn, stamp, "host");
        self.programmed(lpn, at);
        self.supers[s].written = self.flash.tick();
        self.supers[s].filled = self.supers[s].open.is_none_or(|b| self.flash.full(b));
    }

    fn read(&mut self, lpn: u32) -> Option<u32> {
        self.look_up(lpn);
        let (block, page) = *self.map.get(&lpn)?;
        self.flash.count("host", READ);
        Some(self.flash.blocks[block].pages[page].stamp)
    }

    fn discard(&mut self, _lpn: u32) {}

    fn tally(&self) -> &Tally {
        &self.flash.tally
    }

    fn spare_reads(&self) -> u64 {
        self.spare_reads
    }
}
