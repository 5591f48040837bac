//! What is known of each block, in one record: a page's death, a merge, an erase and the block's place in a queue change one
//! line of memory.
//!
//! ```text
//! programmed, live: a bit a page │ next │ live │ erases │ neighbours in a queue      32 bytes, two records a line
//! └── the first 64 pages; the others of larger blocks are in a table of their own
//! ```
//!
//! On a drive of 32 GB these lines are far away, so one in place of three or four makes FAST and Superblock a fifth faster.

use crate::geometry::Geometry;
use crate::queue::{Node, ALONE};
use crate::table::{filled, prefetch, prefetch_range};

/// Kinds of blocks that may be queued by their live pages: data, and translation pages.
pub const KINDS: usize = 2;

/// 64 pages of a block, a bit each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bits {
    /// Programmed since the last erase.
    pub programmed: u64,
    /// Holds the newest copy of its owner.
    pub live: u64,
}

/// How far a block is filled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fill {
    /// The lowest page that in-order programming still allows.
    pub next: u16,
    /// Live pages.
    pub live: u16,
}

/// A block.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub struct State {
    bits: Bits,
    pub(super) fill: Fill,
    /// How often it was erased.
    pub(super) erases: u32,
    /// Its neighbours in the queue that it is in: of free blocks, or of candidates for collection.
    links: [u32; 2],
}

// Two records a line of memory.
const _: () = assert!(std::mem::size_of::<State>() == 32);

impl State {
    const NEW: Self = Self {
        bits: Bits { programmed: 0, live: 0 },
        fill: Fill { next: 0, live: 0 },
        erases: 0,
        links: [ALONE; 2],
    };
}

impl Node for State {
    #[inline(always)]
    fn links(&self) -> [u32; 2] {
        self.links
    }

    #[inline(always)]
    fn links_mut(&mut self) -> &mut [u32; 2] {
        &mut self.links
    }
}

/// All blocks.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    /// By block, and behind them records that are heads of queues.
    states: Vec<State>,
    blocks: usize,
    /// Pages from the 64th on, 64 to an element; a block's lie together.
    more: Vec<Bits>,
    words: usize,
}

impl Blocks {
    /// Erased blocks.
    pub fn new(geometry: &Geometry) -> Self {
        let (blocks, pages) = (geometry.blocks as usize, geometry.pages_per_block as usize);
        let (words, heads) = (pages.div_ceil(64), KINDS * (pages + 1));
        Self {
            states: filled(State::NEW, blocks + heads),
            blocks,
            more: filled(Bits::default(), blocks * (words - 1)),
            words,
        }
    }

    /// How often each block was erased.
    pub fn erases(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.states[..self.blocks].iter().map(|state| state.erases)
    }

    /// Whether a block is in a queue.
    #[inline(always)]
    pub fn is_queued(&self, block: usize) -> bool {
        self.states[block].links[0] != ALONE
    }

    /// All records, those of blocks first.
    #[inline(always)]
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn states_mut(&mut self) -> &mut [State] {
        &mut self.states
    }

    /// A block.
    #[inline(always)]
    pub fn state(&self, block: usize) -> &State {
        &self.states[block]
    }

    /// How far a block is filled.
    #[inline(always)]
    pub fn fill(&self, block: usize) -> Fill {
        self.states[block].fill
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn fill_mut(&mut self, block: usize) -> &mut Fill {
        &mut self.states[block].fill
    }

    /// 64 pages of a block.
    #[inline(always)]
    pub fn bits(&self, block: usize, word: usize) -> &Bits {
        match word {
            0 => &self.states[block].bits,
            _ => &self.more[block * (self.words - 1) + word - 1],
        }
    }

    /// 64 pages of a block, and how far it is filled.
    #[inline(always)]
    pub fn bits_mut(&mut self, block: usize, word: usize) -> (&mut Bits, &mut Fill) {
        let State { bits, fill, .. } = &mut self.states[block];
        match word {
            0 => (bits, fill),
            _ => (&mut self.more[block * (self.words - 1) + word - 1], fill),
        }
    }

    /// Forgets what the pages held. Returns how often the block was erased, to be counted on.
    #[inline(always)]
    pub fn erase(&mut self, block: usize) -> &mut u32 {
        let state = &mut self.states[block];
        (state.bits, state.fill) = (Bits::default(), Fill::default());
        let more = self.words - 1;
        if more > 0 {
            self.more[block * more..(block + 1) * more].fill(Bits::default());
        }
        &mut state.erases
    }

    /// The record and one word of pages are asked for.
    #[inline(always)]
    pub fn expect(&self, block: usize, word: usize) {
        prefetch(&self.states, block);
        if word > 0 {
            prefetch(&self.more, block * (self.words - 1) + word - 1);
        }
    }

    /// The record and all pages are asked for.
    #[inline(always)]
    pub fn expect_all(&self, block: usize) {
        prefetch(&self.states, block);
        if self.words > 1 {
            prefetch_range(&self.more, block.saturating_mul(self.words - 1), self.words - 1);
        }
    }

    /// Whether what is counted of each block is what its pages say.
    pub fn check(&self, pages_per_block: u32) -> Result<(), String> {
        for block in 0..self.blocks {
            let words = || (0..self.words).map(|word| self.bits(block, word));
            let fill = self.fill(block);
            let used: u32 = words().map(|w| w.programmed.count_ones()).sum();
            let live: u32 = words().map(|w| w.live.count_ones()).sum();
            if live != u32::from(fill.live) {
                return Err(format!("block {block}: {live} live pages, {} counted", fill.live));
            }
            if words().any(|w| w.live & !w.programmed != 0) {
                return Err(format!("block {block}: a live page was never programmed"));
            }
            if used > u32::from(fill.next).min(pages_per_block) {
                return Err(format!("block {block}: {used} pages are programmed, up to page {}", fill.next));
            }
        }
        Ok(())
    }
}
