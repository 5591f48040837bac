//! Erase counts: each block's, the lowest, the highest.

use crate::ids::Block;
use crate::table::prefetch;

/// Erase counts of all blocks.
#[derive(Debug, Clone)]
pub struct Wear {
    erases: Vec<u32>,
    /// Erase counts at the last reset; empty: all zero.
    base: Vec<u32>,
    /// Blocks by erase count.
    histogram: Vec<u32>,
    lowest: u32,
    highest: u32,
}

/// What wear came to since the last reset.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct WearSummary {
    /// Erases of the least erased block.
    pub min: u32,
    /// Erases of the most erased block.
    pub max: u32,
    /// Erases a block on average.
    pub mean: f64,
    /// Standard deviation of erases a block.
    pub deviation: f64,
}

impl Wear {
    pub(crate) fn new(blocks: u32) -> Self {
        Self {
            erases: vec![0; blocks as usize],
            base: Vec::new(),
            histogram: vec![blocks],
            lowest: 0,
            highest: 0,
        }
    }

    #[inline]
    pub(crate) fn erased(&mut self, block: Block) {
        let erases = &mut self.erases[block.index()];
        self.histogram[*erases as usize] -= 1;
        *erases += 1;
        let now = *erases;
        if now as usize == self.histogram.len() {
            self.histogram.push(0);
        }
        self.histogram[now as usize] += 1;
        self.highest = self.highest.max(now);
        while self.histogram[self.lowest as usize] == 0 {
            self.lowest += 1;
        }
    }

    /// A block will be erased soon: its count is asked for.
    #[inline]
    pub(crate) fn expect(&self, block: Block) {
        prefetch(&self.erases, block.index());
    }

    pub(crate) fn reset(&mut self) {
        self.base.clone_from(&self.erases);
    }

    /// How often a block was erased since the device was new.
    #[inline]
    pub fn of(&self, block: Block) -> u32 {
        self.erases[block.index()]
    }

    /// Highest minus lowest erase count since the device was new.
    #[inline]
    pub fn spread(&self) -> u32 {
        self.highest - self.lowest
    }

    /// The lowest erase count since the device was new.
    pub fn lowest(&self) -> u32 {
        self.lowest
    }

    fn since_reset(&self) -> impl Iterator<Item = u32> + '_ {
        let base = |i| self.base.get(i).copied().unwrap_or(0);
        self.erases.iter().enumerate().map(move |(i, erases)| erases - base(i))
    }

    /// All erases since the last reset, added up block by block.
    pub fn total(&self) -> u64 {
        self.since_reset().map(u64::from).sum()
    }

    /// Since the last reset.
    pub fn summary(&self) -> WearSummary {
        let blocks = self.erases.len() as f64;
        let mean = self.total() as f64 / blocks;
        let squares: f64 = self.since_reset().map(|e| (f64::from(e) - mean).powi(2)).sum();
        WearSummary {
            min: self.since_reset().min().unwrap_or(0),
            max: self.since_reset().max().unwrap_or(0),
            mean,
            deviation: (squares / blocks).sqrt(),
        }
    }
}
