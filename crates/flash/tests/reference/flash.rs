//! Blocks as lists of pages.

use std::cmp::Ordering;

use super::{Tally, ERASE, PROGRAM, READ};

#[derive(Debug, Clone, Copy)]
pub struct Page {
    pub owner: u32,
    pub stamp: u32,
    pub live: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Block {
    pub pages: Vec<Page>,
    pub erases: u32,
    /// When it became free, or `None` while in use.
    pub free_since: Option<u64>,
    /// When its number of live pages last changed, or it was closed.
    pub since: u64,
    /// The same in pages programmed.
    pub changed: u64,
}

impl Block {
    pub fn live(&self) -> usize {
        self.pages.iter().filter(|p| p.live).count()
    }
}

#[derive(Debug)]
pub struct Flash {
    pub p: usize,
    pub blocks: Vec<Block>,
    pub tally: Tally,
    /// Victims by age and gain, not by gain alone.
    pub cost_benefit: bool,
    clock: u64,
}

impl Flash {
    pub fn new(blocks: usize, p: usize) -> Self {
        let block = |i| Block { free_since: Some(i as u64), ..Block::default() };
        let blocks_all = (0..blocks).map(block).collect();
        Self { p, blocks: blocks_all, tally: Tally::new(), cost_benefit: false, clock: blocks as u64 }
    }

    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn free(&self) -> usize {
        self.blocks.iter().filter(|b| b.free_since.is_some()).count()
    }

    /// The least erased free block, the one free for longest.
    pub fn take(&mut self) -> usize {
        let free = (0..self.blocks.len()).filter(|b| self.blocks[*b].free_since.is_some());
        let block =
            free.min_by_key(|b| (self.blocks[*b].erases, self.blocks[*b].free_since)).expect("a free block");
        self.blocks[block].free_since = None;
        block
    }

    pub fn count(&mut self, cause: &'static str, what: usize) {
        self.tally.entry(cause).or_default()[what] += 1;
    }

    pub fn program(&mut self, block: usize, owner: u32, stamp: u32, cause: &'static str) -> (usize, usize) {
        assert!(self.blocks[block].pages.len() < self.p);
        self.count(cause, PROGRAM);
        self.blocks[block].pages.push(Page { owner, stamp, live: true });
        (block, self.blocks[block].pages.len() - 1)
    }

    pub fn full(&self, block: usize) -> bool {
        self.blocks[block].pages.len() == self.p
    }

    pub fn kill(&mut self, (block, page): (usize, usize)) {
        let now = self.tick();
        assert!(self.blocks[block].pages[page].live);
        self.blocks[block].pages[page].live = false;
        self.blocks[block].since = now;
        self.blocks[block].changed = self.programs();
    }

    pub fn copy(&mut self, (block, page): (usize, usize), to: usize, cause: &'static str) -> (usize, usize) {
        self.count(cause, READ);
        let Page { owner, stamp, live } = self.blocks[block].pages[page];
        assert!(live);
        self.blocks[block].pages[page].live = false;
        self.program(to, owner, stamp, cause)
    }

    pub fn erase(&mut self, block: usize, cause: &'static str) {
        assert_eq!(self.blocks[block].live(), 0);
        self.count(cause, ERASE);
        self.blocks[block].pages.clear();
        self.blocks[block].erases += 1;
    }

    pub fn release(&mut self, block: usize, cause: &'static str) {
        self.erase(block, cause);
        let now = self.tick();
        self.blocks[block].free_since = Some(now);
    }

    /// Pages programmed so far.
    pub fn programs(&self) -> u64 {
        self.tally.values().map(|ops| ops[PROGRAM]).sum()
    }

    /// A block was closed.
    pub fn close(&mut self, block: usize) {
        self.blocks[block].since = self.tick();
        self.blocks[block].changed = self.programs();
    }

    /// How two blocks compare as victims: the better one is greater.
    pub fn compare(&self, a: usize, b: usize) -> Ordering {
        let live = |block: usize| self.blocks[block].live();
        if !self.cost_benefit {
            let since = |block: usize| self.blocks[block].since;
            return live(b).cmp(&live(a)).then(since(b).cmp(&since(a)));
        }
        let worth = |block: usize| {
            let age = self.programs() - self.blocks[block].changed + 1;
            let live = self.blocks[block].live();
            age as f64 * ((self.p - live) as f64 / live as f64)
        };
        worth(a).total_cmp(&worth(b))
    }

    /// The best victim among the blocks that `fits` accepts, of equals the one with fewer live pages, then the one that has
    /// had that number longest; `None` if nothing can be gained.
    pub fn victim(&self, excluded: &[Option<usize>], fits: impl Fn(usize) -> bool) -> Option<usize> {
        let used = (0..self.blocks.len()).filter(|b| self.blocks[*b].free_since.is_none());
        let closed =
            used.filter(|b| !excluded.contains(&Some(*b)) && self.blocks[*b].live() < self.p && fits(*b));
        let rest = |block: usize| (self.blocks[block].live(), self.blocks[block].since);
        closed.max_by(|a, b| self.compare(*a, *b).then(rest(*b).cmp(&rest(*a))))
    }
}
