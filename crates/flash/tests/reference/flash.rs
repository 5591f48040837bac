//! Blocks as lists of pages.

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
    clock: u64,
}

impl Flash {
    pub fn new(blocks: usize, p: usize) -> Self {
        let block = |i| Block { free_since: Some(i as u64), ..Block::default() };
        Self { p, blocks: (0..blocks).map(block).collect(), tally: Tally::new(), clock: blocks as u64 }
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

    /// Greedy: the fewest live pages, then the longest at that number; `None` if nothing can be gained.
    pub fn greedy(&self, excluded: &[Option<usize>]) -> Option<usize> {
        self.greedy_among(excluded, |_| true)
    }

    /// The same among the blocks that `fits` accepts.
    pub fn greedy_among(&self, excluded: &[Option<usize>], fits: impl Fn(usize) -> bool) -> Option<usize> {
        let used = (0..self.blocks.len()).filter(|b| self.blocks[*b].free_since.is_none());
        let closed =
            used.filter(|b| !excluded.contains(&Some(*b)) && self.blocks[*b].live() < self.p && fits(*b));
        closed.min_by_key(|b| (self.blocks[*b].live(), self.blocks[*b].since))
    }
}
