//! What is known of each block, and the rules of NAND. One record a block: a page's death, a merge, an erase and the block's
//! place in a queue change one line of memory.
//!
//! ```text
//! programmed, live: a bit a page │ next │ live │ erases │ neighbours in a queue      32 bytes, two records a line
//! └── the first 64 pages; the others of larger blocks are in a table of their own
//! ```
//!
//! On a drive of 32 GB these lines are far away, so one in place of three or four makes FAST and Superblock a fifth faster.

use crate::geometry::Geometry;
use crate::ids::{Block, Ppn};
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

/// Pages of 64 that are copied, lowest first, to pages that follow each other.
#[derive(Debug, Clone, Copy)]
pub struct Packed {
    /// Which 64 pages of the source.
    pub word: usize,
    /// Which of them are live.
    pub live: u64,
    /// How many of these are copied.
    pub pages: u32,
    /// Where the first of them goes, in the destination.
    pub to: u32,
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
    pages_per_block: u32,
    /// log2 of it, where it is a power of two.
    shift: Option<u32>,
    in_order: bool,
}

impl Blocks {
    /// Erased blocks. `in_order` enforces ascending programs within a block.
    pub fn new(geometry: &Geometry, in_order: bool) -> Self {
        let (blocks, pages) = (geometry.blocks as usize, geometry.pages_per_block as usize);
        let (words, heads) = (pages.div_ceil(64), KINDS * (pages + 1));
        Self {
            states: filled(State::NEW, blocks + heads),
            blocks,
            more: filled(Bits::default(), blocks * (words - 1)),
            words,
            pages_per_block: geometry.pages_per_block,
            shift: geometry
                .pages_per_block
                .is_power_of_two()
                .then(|| geometry.pages_per_block.trailing_zeros()),
            in_order,
        }
    }

    /// Words of 64 pages a block.
    #[inline(always)]
    pub fn words(&self) -> usize {
        self.words
    }

    /// The block a page is in, and which of its pages it is.
    #[inline(always)]
    pub fn split(&self, ppn: Ppn) -> (usize, u32) {
        let p = self.pages_per_block;
        match self.shift {
            Some(shift) => ((ppn.0 >> shift) as usize, ppn.0 & (p - 1)),
            None => ((ppn.0 / p) as usize, ppn.0 % p),
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

    /// Pages of a word, the lowest of which has this number in the block, are to be programmed: whether they may be.
    #[inline(always)]
    pub fn assert_erased(&self, block: usize, word: usize, mask: u64, lowest: u32) {
        let next = u32::from(self.fill(block).next);
        assert!(
            self.bits(block, word).programmed & mask == 0,
            "NAND rule: a page of block {block} is not erased"
        );
        assert!(
            lowest >= next || !self.in_order,
            "NAND rule: page {lowest} of block {block} comes after page {next} was allowed next"
        );
    }

    /// Programs a page, which is live then.
    #[inline(always)]
    pub fn program(&mut self, block: usize, page: u32) {
        let (word, bit) = ((page / 64) as usize, 1u64 << (page % 64));
        assert!(page < self.pages_per_block, "NAND rule: block {block} has no page {page}");
        self.assert_erased(block, word, bit, page);
        let (bits, fill) = self.bits_mut(block, word);
        bits.programmed |= bit;
        bits.live |= bit;
        fill.live += 1;
        fill.next = fill.next.max(page as u16 + 1);
    }

    /// Programs the next pages of a block, which must have so many; they are live then. Returns the number of the first.
    #[inline(always)]
    pub fn program_next(&mut self, block: usize, pages: u32) -> u32 {
        let from = u32::from(self.fill(block).next);
        let to = from + pages;
        assert!(to <= self.pages_per_block, "NAND rule: block {block} has no {pages} pages left");
        let fill = self.fill_mut(block);
        fill.next = to as u16;
        fill.live += pages as u16;
        for word in 0..self.words {
            let base = word as u32 * 64;
            let (low, high) = (from.clamp(base, base + 64) - base, to.clamp(base, base + 64) - base);
            if low < high {
                let mask = (u64::MAX >> (64 - (high - low))) << low;
                let (bits, _) = self.bits_mut(block, word);
                assert!(bits.programmed & mask == 0, "NAND rule: a page of block {block} is not erased");
                bits.programmed |= mask;
                bits.live |= mask;
            }
        }
        from
    }

    /// A live page dies.
    #[inline(always)]
    pub fn invalidate(&mut self, block: usize, page: u32) {
        let (bits, fill) = self.bits_mut(block, (page / 64) as usize);
        let bit = 1u64 << (page % 64);
        assert!(bits.live & bit != 0, "page {page} of block {block} dies twice");
        bits.live &= !bit;
        fill.live -= 1;
    }

    /// Copies live pages of `src`, lowest first, to the next pages of `dst` until `src` has none or `dst` is full; the
    /// originals die. `packed` hears which go where, and says which of the live ones were not copied. Returns how many were.
    #[inline(always)]
    pub fn pack(&mut self, src: Block, dst: Block, mut packed: impl FnMut(Packed) -> u64) -> u32 {
        assert_ne!(src, dst, "a block is copied into itself");
        let (s, d) = (src.index(), dst.index());
        let first = u32::from(self.fill(d).next);
        let mut to = first;
        for word in 0..self.words {
            let live = self.bits(s, word).live;
            // Counting bits takes a dozen instructions where the processor may not be asked to.
            let count = if self.words == 1 { u32::from(self.fill(s).live) } else { live.count_ones() };
            let pages = count.min(self.pages_per_block - to);
            if pages == 0 {
                continue;
            }
            let left = packed(Packed { word, live, pages, to });
            let stay = if pages == count { left == 0 } else { left.count_ones() == count - pages };
            assert!(stay && left & live == left, "other pages stay than were not copied");
            self.bits_mut(s, word).0.live = left;
            to += pages;
        }
        let pages = to - first;
        self.fill_mut(s).live -= pages as u16;
        self.program_next(d, pages);
        pages
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
    pub fn check(&self) -> Result<(), String> {
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
            if used > u32::from(fill.next).min(self.pages_per_block) {
                return Err(format!("block {block}: {used} pages are programmed, up to page {}", fill.next));
            }
        }
        Ok(())
    }
}
