//! Victim selection in constant time: closed blocks in queues by their kind and number of live pages.
//!
//! Among blocks of a kind with equally many live pages the one that has had that number longest goes first. *Greedy* takes
//! the first block of the lowest queue. *Cost-benefit* (Kawaguchi et al., USENIX 1995) takes the block with the largest
//! age × (1 − u) / u, u being its live share and age how long none of its pages has died (the paper has 2u, which changes no
//! order); of a queue that is the first block, so that one look at each queue finds it.

use std::ops::Range;

use crate::config::GcPolicy;
use crate::ids::{Block, NONE};
use crate::table::{filled, prefetch};

/// Kinds of blocks there may be.
pub const KINDS: usize = 2;
const ABSENT: u32 = u32::MAX;

/// A block's place in its queue: one record, because a death needs all of it.
#[derive(Debug, Clone, Copy)]
struct Place {
    before: u32,
    behind: u32,
    /// Which queue: its kind and its live pages; `ABSENT`: no candidate.
    at: u32,
    /// When it got there, by a count that comes round: it decides between the first blocks of two kinds.
    since: u32,
}

/// Closed blocks by kind and live pages.
#[derive(Debug, Clone)]
pub struct Victims {
    /// First and last block of each queue; a kind's queues lie together, by number of live pages.
    ends: Vec<[u32; 2]>,
    /// Pages a block.
    full: u32,
    places: Vec<Place>,
    /// Blocks that were put into a queue.
    appended: u32,
    /// By kind: no block of it has fewer live pages.
    lowest: [u32; KINDS],
    /// When a page of a block died last, or when it was closed. Empty for greedy, which need not know.
    changed: Vec<u64>,
    /// The same of each queue's first block, side by side.
    first_changed: Vec<u64>,
    /// (1 − u) / u by number of live pages.
    gain: Vec<f64>,
}

/// What there is to gain from a block for what it costs: (1 − u) / u; infinite without live pages.
fn gain(live: u32, full: u32) -> f64 {
    f64::from(full - live) / f64::from(live)
}

impl Victims {
    /// None closed yet. Blocks are of kinds `0..kinds`.
    pub fn new(blocks: u32, pages_per_block: u32, kinds: usize, policy: GcPolicy) -> Self {
        let aged = if policy == GcPolicy::CostBenefit { blocks as usize } else { 0 };
        Self {
            changed: filled(0, aged),
            first_changed: vec![0; kinds * (pages_per_block as usize + 1)],
            gain: (0..=pages_per_block).map(|live| gain(live, pages_per_block)).collect(),
            ends: vec![[NONE; 2]; kinds * (pages_per_block as usize + 1)],
            full: pages_per_block,
            places: filled(Place { before: NONE, behind: NONE, at: ABSENT, since: 0 }, blocks as usize),
            appended: 0,
            lowest: [pages_per_block; KINDS],
        }
    }

    /// The number of a kind's first queue.
    #[inline]
    fn queues_of(&self, kind: usize) -> u32 {
        kind as u32 * (self.full + 1)
    }

    /// A block was closed with this many live pages. `now`: a clock, the flash's programs so far.
    #[inline]
    pub fn insert(&mut self, block: Block, kind: usize, live: u32, now: u64) {
        self.touch(block, now);
        self.lowest[kind] = self.lowest[kind].min(live);
        self.append(block, self.queues_of(kind) + live);
    }

    #[inline]
    fn touch(&mut self, block: Block, now: u64) {
        if let Some(changed) = self.changed.get_mut(block.index()) {
            *changed = now;
        }
    }

    #[inline]
    fn append(&mut self, block: Block, at: u32) {
        let last = std::mem::replace(&mut self.ends[at as usize][1], block.0);
        if last == NONE {
            self.ends[at as usize][0] = block.0;
            self.first_is(at, block.0);
        } else {
            self.places[last as usize].behind = block.0;
        }
        self.places[block.index()] = Place { before: last, behind: NONE, at, since: self.appended };
        self.appended = self.appended.wrapping_add(1);
    }

    /// A queue has another first block.
    #[inline]
    fn first_is(&mut self, at: u32, block: u32) {
        if let Some(changed) = self.changed.get(block as usize) {
            self.first_changed[at as usize] = *changed;
        }
    }

    /// A block is no longer a candidate.
    #[inline]
    pub fn remove(&mut self, block: Block) {
        let Place { before, behind, at, .. } = self.places[block.index()];
        if before == NONE {
            self.ends[at as usize][0] = behind;
            self.first_is(at, behind);
        } else {
            self.places[before as usize].behind = behind;
        }
        if behind == NONE {
            self.ends[at as usize][1] = before;
        } else {
            self.places[behind as usize].before = before;
        }
        self.places[block.index()].at = ABSENT;
    }

    /// Whether a block is a candidate.
    #[inline]
    pub fn contains(&self, block: Block) -> bool {
        self.places[block.index()].at != ABSENT
    }

    /// A page of a block of this kind died; blocks that are not candidates are passed over. True: no block of the kind
    /// has fewer live pages now.
    #[inline]
    pub fn died(&mut self, block: Block, kind: usize, now: u64) -> bool {
        let at = self.places[block.index()].at;
        if at == ABSENT {
            return false;
        }
        self.touch(block, now);
        self.remove(block);
        self.append(block, at - 1);
        let live = at - 1 - self.queues_of(kind);
        self.lowest[kind] = self.lowest[kind].min(live);
        live == self.lowest[kind]
    }

    /// What [`Victims::died`] changes first is asked for.
    #[inline]
    pub fn expect_death(&self, block: Block) {
        prefetch(&self.places, block.index());
    }

    /// The live pages of the block of a kind that has the fewest; `None` when no candidate has a dead page (a full block
    /// gains nothing).
    #[inline]
    pub fn fewest(&mut self, kind: usize) -> Option<u32> {
        let first = self.queues_of(kind);
        while self.lowest[kind] < self.full {
            let live = self.lowest[kind];
            if self.ends[(first + live) as usize][0] != NONE {
                return Some(live);
            }
            self.lowest[kind] += 1;
        }
        None
    }

    /// The block of a kind with the fewest live pages; `None` as in [`Victims::fewest`].
    #[inline]
    pub fn peek(&mut self, kind: usize) -> Option<Block> {
        let live = self.fewest(kind)?;
        Some(Block(self.ends[(self.queues_of(kind) + live) as usize][0]))
    }

    /// The blocks of a kind that are taken next, as it looks now; at most `most`.
    #[inline]
    pub fn next(&mut self, kind: usize, most: usize, now: u64, mut each: impl FnMut(Block)) {
        let found = if self.changed.is_empty() {
            self.fewest(kind).map(|live| self.queues_of(kind) + live)
        } else {
            self.most_worthwhile(kind..kind + 1, now).map(|(block, _)| self.places[block.index()].at)
        };
        let Some(mut at) = found else { return };
        let end = self.queues_of(kind) + self.full;
        let mut block = NONE;
        for _ in 0..most {
            while block == NONE {
                if at == end {
                    return;
                }
                block = self.ends[at as usize][0];
                at += 1;
            }
            each(Block(block));
            block = self.places[block as usize].behind;
        }
    }

    /// The best block to collect among some kinds, taken out, and its kind; of equals the one that
    /// has been so longest. `None`: no candidate has a dead page.
    #[inline]
    pub fn take(&mut self, kinds: Range<usize>, now: u64) -> Option<(Block, usize)> {
        let (block, kind) =
            if self.changed.is_empty() { self.emptiest(kinds)? } else { self.most_worthwhile(kinds, now)? };
        self.remove(block);
        Some((block, kind))
    }

    #[inline]
    fn emptiest(&mut self, kinds: Range<usize>) -> Option<(Block, usize)> {
        let mut best: Option<(u32, Block, usize)> = None;
        for kind in kinds {
            let Some(live) = self.fewest(kind) else { continue };
            let first = Block(self.ends[(self.queues_of(kind) + live) as usize][0]);
            let since = |block: Block| self.places[block.index()].since;
            let earlier = |than: Block| (since(first).wrapping_sub(since(than)) as i32) < 0;
            if best.is_none_or(|(fewest, block, _)| live < fewest || live == fewest && earlier(block)) {
                best = Some((live, first, kind));
            }
        }
        best.map(|(_, block, kind)| (block, kind))
    }

    fn most_worthwhile(&self, kinds: Range<usize>, now: u64) -> Option<(Block, usize)> {
        let mut best: Option<(f64, u32, usize)> = None;
        for kind in kinds {
            let (from, to) = (self.lowest[kind], self.full);
            for (at, gain) in (self.queues_of(kind) + from..).zip(&self.gain[from as usize..to as usize]) {
                if self.ends[at as usize][0] != NONE {
                    let age = now - self.first_changed[at as usize] + 1;
                    let worth = age as f64 * gain;
                    if best.is_none_or(|(most, ..)| worth > most) {
                        best = Some((worth, at, kind));
                    }
                }
            }
        }
        best.map(|(_, at, kind)| (Block(self.ends[at as usize][0]), kind))
    }

    /// The second best by the rule of [`Victims::take`], which is broken so on purpose.
    #[cold]
    pub(crate) fn take_second(&mut self, kinds: Range<usize>, now: u64) -> Option<(Block, usize)> {
        let (best, kind) = self.take(kinds.clone(), now)?;
        let live = self.lowest[kind];
        match self.take(kinds, now) {
            Some(second) => {
                self.insert(best, kind, live, now);
                Some(second)
            }
            None => Some((best, kind)),
        }
    }
}
