//! Victim selection in constant time: closed blocks in queues by their kind and number of live pages.
//!
//! Among blocks of a kind with equally many live pages the one that has had that number longest goes first. *Greedy* takes
//! the first block of the lowest queue. *Cost-benefit* (Kawaguchi et al., USENIX 1995) takes the block with the largest
//! age × (1 − u) / u, u being its live share and age how long none of its pages has died (the paper has 2u, which changes no
//! order); of a queue that is the first block, so that one look at each queue finds it.

use std::ops::Range;

use crate::config::GcPolicy;
use crate::geometry::Geometry;
use crate::ids::Block;
use crate::nand::{Flash, KINDS};
use crate::queue::{take_out, Queue};
use crate::table::filled;

/// Closed blocks by kind and live pages. The flash's records of the blocks say how many pages are live and who is beside
/// whom, so that a death changes one record and its neighbours'. A free block is none of these, though it waits in a queue too.
#[derive(Debug, Clone)]
pub struct Victims {
    /// A kind's queues lie together, by number of live pages. Their heads are the records behind those of the flash's blocks.
    queues: Vec<Queue>,
    /// Pages a block.
    full: u32,
    /// With several kinds, when a block got into its queue, by a count that comes round: it decides between the first blocks
    /// of two kinds.
    since: Vec<u32>,
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
    pub fn new(flash: &mut Flash, kinds: usize, policy: GcPolicy) -> Self {
        let Geometry { blocks, pages_per_block, .. } = flash.geometry();
        let aged = if policy == GcPolicy::CostBenefit { blocks as usize } else { 0 };
        let dated = if kinds > 1 { blocks as usize } else { 0 };
        let queues = kinds as u32 * (pages_per_block + 1);
        Self {
            changed: filled(0, aged),
            first_changed: vec![0; queues as usize],
            gain: (0..=pages_per_block).map(|live| gain(live, pages_per_block)).collect(),
            queues: (blocks..blocks + queues).map(|head| Queue::new(flash.nodes_mut(), head)).collect(),
            full: pages_per_block,
            since: filled(0, dated),
            appended: 0,
            lowest: [pages_per_block; KINDS],
        }
    }

    /// The number of a kind's first queue.
    #[inline]
    fn queues_of(&self, kind: usize) -> u32 {
        kind as u32 * (self.full + 1)
    }

    /// A block was closed. `now`: a clock, the flash's programs so far.
    #[inline]
    pub fn insert(&mut self, flash: &mut Flash, block: Block, kind: usize, now: u64) {
        self.touch(block, now);
        let live = flash.live_in(block);
        self.lowest[kind] = self.lowest[kind].min(live);
        self.append(flash, block, self.queues_of(kind) + live);
    }

    #[inline]
    fn touch(&mut self, block: Block, now: u64) {
        if let Some(changed) = self.changed.get_mut(block.index()) {
            *changed = now;
        }
    }

    #[inline(always)]
    fn append(&mut self, flash: &mut Flash, block: Block, at: u32) {
        self.queues[at as usize].push_front(flash.nodes_mut(), block.0);
        if let Some(since) = self.since.get_mut(block.index()) {
            *since = self.appended;
            self.appended = self.appended.wrapping_add(1);
        }
        self.changes(flash, at);
    }

    /// A queue may have another first block.
    #[inline(always)]
    fn changes(&mut self, flash: &Flash, at: u32) {
        if !self.changed.is_empty() {
            if let Some(first) = self.first(flash, at) {
                self.first_changed[at as usize] = self.changed[first.index()];
            }
        }
    }

    /// A block of a kind is no longer a candidate; none of its pages may have died since it last was heard of.
    #[inline]
    pub fn remove(&mut self, flash: &mut Flash, block: Block, kind: usize) {
        take_out(flash.nodes_mut(), block.0);
        self.changes(flash, self.queues_of(kind) + flash.live_in(block));
    }

    /// A page of a block of this kind died; blocks that are not candidates are passed over.
    #[inline(always)]
    pub fn died(&mut self, flash: &mut Flash, block: Block, kind: usize, now: u64) {
        if !flash.is_queued(block) {
            return;
        }
        self.touch(block, now);
        let live = flash.live_in(block);
        let at = self.queues_of(kind) + live;
        take_out(flash.nodes_mut(), block.0);
        self.changes(flash, at + 1);
        self.append(flash, block, at);
        self.lowest[kind] = self.lowest[kind].min(live);
    }

    /// The live pages of the block of a kind that has the fewest; `None` when no candidate has a dead page (a full block
    /// gains nothing).
    #[inline]
    pub fn fewest(&mut self, flash: &Flash, kind: usize) -> Option<u32> {
        let first = self.queues_of(kind);
        while self.lowest[kind] < self.full {
            let live = self.lowest[kind];
            if self.first(flash, first + live).is_some() {
                return Some(live);
            }
            self.lowest[kind] += 1;
        }
        None
    }

    /// The block of a kind with the fewest live pages; `None` as in [`Victims::fewest`].
    #[inline]
    pub fn peek(&mut self, flash: &Flash, kind: usize) -> Option<Block> {
        let live = self.fewest(flash, kind)?;
        self.first(flash, self.queues_of(kind) + live)
    }

    #[inline]
    fn first(&self, flash: &Flash, at: u32) -> Option<Block> {
        self.queues[at as usize].back(flash.nodes()).map(Block)
    }

    /// The best block to collect among some kinds, taken out, and its kind; of equals the one that
    /// has been so longest. `None`: no candidate has a dead page.
    #[inline]
    pub fn take(&mut self, flash: &mut Flash, kinds: Range<usize>, now: u64) -> Option<(Block, usize)> {
        let (at, kind) = if self.changed.is_empty() {
            self.emptiest(flash, kinds)?
        } else {
            self.most_worthwhile(flash, kinds, now)?
        };
        let block = self.first(flash, at)?;
        take_out(flash.nodes_mut(), block.0);
        self.changes(flash, at);
        Some((block, kind))
    }

    /// The queue of the block with the fewest live pages, and its kind.
    #[inline]
    fn emptiest(&mut self, flash: &Flash, kinds: Range<usize>) -> Option<(u32, usize)> {
        let mut best: Option<(u32, Block, usize)> = None;
        for kind in kinds {
            let Some(live) = self.fewest(flash, kind) else { continue };
            let Some(first) = self.first(flash, self.queues_of(kind) + live) else { continue };
            let since = |block: Block| self.since.get(block.index()).copied().unwrap_or(0);
            let earlier = |than: Block| (since(first).wrapping_sub(since(than)) as i32) < 0;
            if best.is_none_or(|(fewest, block, _)| live < fewest || live == fewest && earlier(block)) {
                best = Some((live, first, kind));
            }
        }
        best.map(|(live, _, kind)| (self.queues_of(kind) + live, kind))
    }

    /// The queue of the block with the largest age × (1 − u) / u, and its kind.
    fn most_worthwhile(&self, flash: &Flash, kinds: Range<usize>, now: u64) -> Option<(u32, usize)> {
        let mut best: Option<(f64, u32, usize)> = None;
        for kind in kinds {
            let (from, to) = (self.lowest[kind], self.full);
            for (at, gain) in (self.queues_of(kind) + from..).zip(&self.gain[from as usize..to as usize]) {
                if self.first(flash, at).is_some() {
                    let age = now - self.first_changed[at as usize] + 1;
                    let worth = age as f64 * gain;
                    if best.is_none_or(|(most, ..)| worth > most) {
                        best = Some((worth, at, kind));
                    }
                }
            }
        }
        best.map(|(_, at, kind)| (at, kind))
    }

    /// The second best by the rule of [`Victims::take`], which is broken so on purpose.
    #[cold]
    pub(crate) fn take_second(
        &mut self,
        flash: &mut Flash,
        kinds: Range<usize>,
        now: u64,
    ) -> Option<(Block, usize)> {
        let (best, kind) = self.take(flash, kinds.clone(), now)?;
        match self.take(flash, kinds, now) {
            Some(second) => {
                self.insert(flash, best, kind, now);
                Some(second)
            }
            None => Some((best, kind)),
        }
    }
}
