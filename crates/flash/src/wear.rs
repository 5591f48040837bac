//! Wear: the lowest and the highest erase count, and what the counts came to.

/// What is known of the erase counts without going through all of them.
#[derive(Debug, Clone)]
pub struct Wear {
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
    /// `blocks` blocks that were never erased.
    pub fn new(blocks: u32) -> Self {
        Self { base: Vec::new(), histogram: vec![blocks], lowest: 0, highest: 0 }
    }

    /// A block was erased, for the `erases`th time.
    #[inline]
    pub fn erased(&mut self, erases: u32) {
        let now = erases as usize;
        if now == self.histogram.len() {
            self.histogram.push(0);
        }
        self.histogram[now - 1] -= 1;
        self.histogram[now] += 1;
        self.highest = self.highest.max(erases);
        while self.histogram[self.lowest as usize] == 0 {
            self.lowest += 1;
        }
    }

    /// Takes the present counts as zero.
    pub fn reset(&mut self, erases: impl Iterator<Item = u32>) {
        self.base.clear();
        self.base.extend(erases);
    }

    /// The lowest and the highest erase count since the device was new.
    #[inline]
    pub fn range(&self) -> (u32, u32) {
        (self.lowest, self.highest)
    }

    fn since_reset<'a>(&'a self, erases: impl Iterator<Item = u32> + 'a) -> impl Iterator<Item = u32> + 'a {
        let base = |i| self.base.get(i).copied().unwrap_or(0);
        erases.enumerate().map(move |(i, erases)| erases - base(i))
    }

    /// All erases since the last reset, added up block by block.
    pub fn total(&self, erases: impl Iterator<Item = u32>) -> u64 {
        self.since_reset(erases).map(u64::from).sum()
    }

    /// Since the last reset.
    pub fn summary(&self, erases: impl Iterator<Item = u32> + Clone) -> WearSummary {
        let since_reset = || self.since_reset(erases.clone());
        let blocks = since_reset().count() as f64;
        let mean = self.total(erases.clone()) as f64 / blocks;
        let squares: f64 = since_reset().map(|e| (f64::from(e) - mean).powi(2)).sum();
        WearSummary {
            min: since_reset().min().unwrap_or(0),
            max: since_reset().max().unwrap_or(0),
            mean,
            deviation: (squares / blocks).sqrt(),
        }
    }
}
