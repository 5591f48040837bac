//! DFTL's cached mapping table, a segmented LRU of (logical page, physical page, dirty), over what the translation
//! pages in flash say.
//!
//! ```text
//! miss ─► probationary, most recent      hit ─► protected, most recent
//! protected overflows ─► its least recent goes back to probationary, most recent
//! full ─► the least recent probationary entry leaves (the least recent protected one, if there is no other)
//! ```
//!
//! A page that is not cached has what flash says in its cell, a cached one its slot. A clean entry says what flash says; what
//! flash says of a dirty one's page nobody asks, because the entry is written back when it leaves. Only where entries are
//! lost on purpose is that kept, by slot ([`Cmt::lose_dirty`]), and losing one loses data as it would in a drive. So writing a
//! translation page back only clears dirty bits, which lie in one cache line, and one small cell a page is all that a
//! collection touches.

use super::Split;
use crate::ids::NONE;
use crate::queue::{take_out, Node, Queue, ALONE};
use crate::table::{filled, prefetch};

#[derive(Debug, Clone, Copy)]
struct Entry {
    lpn: u32,
    ppn: u32,
    links: [u32; 2],
}

impl Node for Entry {
    #[inline]
    fn links(&self) -> [u32; 2] {
        self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut [u32; 2] {
        &mut self.links
    }
}

/// A set of numbers, one bit each.
#[derive(Debug, Clone)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(filled(0, len.div_ceil(64)))
    }

    #[inline]
    fn has(&self, at: u32) -> bool {
        self.0[at as usize / 64] >> (at % 64) & 1 != 0
    }

    #[inline]
    fn insert(&mut self, at: u32) {
        self.0[at as usize / 64] |= 1 << (at % 64);
    }

    #[inline]
    fn remove(&mut self, at: u32) {
        self.0[at as usize / 64] &= !(1 << (at % 64));
    }
}

/// The map of all logical pages: what is in flash, and the cache.
#[derive(Debug, Clone)]
pub struct Cmt {
    /// By logical page: see [`Cmt::CACHED`].
    cells: Vec<u32>,
    /// By slot, and behind them the heads of the two queues.
    entries: Vec<Entry>,
    max: u32,
    /// With [`Cmt::lose_dirty`], by slot: what flash says of a dirty entry's page.
    stale: Vec<u32>,
    used: u32,
    free: Option<u32>,
    in_protected: Bits,
    /// By translation page, each from a word of its own on: the cached entries that flash does not have.
    dirty: Vec<u64>,
    /// Words of `dirty` a translation page.
    words: usize,
    probation: Queue,
    protected: Queue,
    protected_len: u32,
    protected_max: u32,
    batch: bool,
    split: Split,
}

impl Cmt {
    /// In a cell: the page is cached, in the slot that the other bits name. Without it: where the page is, as its
    /// translation page in flash says. [`NONE`], which has it, names no slot.
    pub const CACHED: u32 = 1 << 31;

    /// At most `max` entries for `logical_pages`, the share `protected` of them protected; `per_page` entries a
    /// translation page; `batch`: an entry that leaves takes the dirty ones of its translation page along.
    pub fn new(logical_pages: u32, max: u32, protected: f64, per_page: u32, batch: bool) -> Self {
        let max = max.clamp(1, logical_pages.max(1));
        let words = per_page.div_ceil(64) as usize;
        let mut entries = filled(Entry { lpn: NONE, ppn: NONE, links: [ALONE; 2] }, max as usize + 2);
        let [in_probation, in_protected] = [max, max + 1].map(|head| Queue::new(&mut entries, head));
        Self {
            cells: filled(NONE, logical_pages as usize),
            entries,
            max,
            stale: Vec::new(),
            used: 0,
            free: None,
            in_protected: Bits::new(max as usize),
            dirty: filled(0, logical_pages.div_ceil(per_page) as usize * words),
            words,
            probation: in_probation,
            protected: in_protected,
            protected_len: 0,
            protected_max: (f64::from(max) * protected) as u32,
            batch,
            split: Split::new(per_page),
        }
    }

    /// From now on an entry that leaves while it is dirty is lost, as in a drive that forgets to write it back: a fault made on
    /// purpose.
    pub fn lose_dirty(mut self) -> Self {
        self.stale = filled(NONE, self.max());
        self
    }

    /// Logical pages.
    pub fn logical_pages(&self) -> u32 {
        self.cells.len() as u32
    }

    /// The most entries it may hold.
    pub fn max(&self) -> usize {
        self.max as usize
    }

    /// The translation page of a logical page.
    #[inline]
    pub fn page_of(&self, lpn: u32) -> u32 {
        self.split.of(lpn).0
    }

    /// Whether the next fetch needs an eviction first.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_none() && self.used == self.max
    }

    /// The slot that a cell names.
    #[inline]
    fn slot_in(cell: u32) -> Option<u32> {
        (cell & Self::CACHED != 0 && cell != NONE).then_some(cell & !Self::CACHED)
    }

    /// The slot of a cached entry, without using it.
    #[inline]
    pub fn peek(&self, lpn: u32) -> Option<u32> {
        Self::slot_in(self.cells[lpn as usize])
    }

    /// Where a cached entry's page is.
    #[inline]
    pub fn ppn(&self, slot: u32) -> u32 {
        self.entries[slot as usize].ppn
    }

    /// Where a page is: the cache knows better than flash.
    #[inline]
    pub fn newest(&self, lpn: u32) -> u32 {
        let cell = self.cells[lpn as usize];
        Self::slot_in(cell).map_or(cell, |slot| self.ppn(slot))
    }

    /// The entry will be needed soon.
    #[inline]
    pub fn expect(&self, lpn: u32) {
        prefetch(&self.cells, lpn as usize);
    }

    /// As [`Cmt::expect`], when that has come. The page's place, if it is not in the cache.
    #[inline]
    pub fn expect_near(&self, lpn: u32) -> u32 {
        let cell = self.cells[lpn as usize];
        prefetch(&self.dirty, self.dirty_bit(lpn).0);
        let Some(slot) = Self::slot_in(cell) else { return cell };
        prefetch(&self.entries, slot as usize);
        NONE
    }

    /// The page will be moved, and what [`Cmt::expect`] asked for has come.
    #[inline]
    pub fn expect_move(&self, lpn: u32) {
        if let Some(slot) = self.peek(lpn) {
            prefetch(&self.dirty, self.dirty_bit(lpn).0);
            prefetch(&self.entries, slot as usize);
        }
    }

    /// A hit: the entry becomes the most recent protected one.
    #[inline]
    pub fn hit(&mut self, slot: u32) {
        take_out(&mut self.entries, slot);
        self.protected.push_front(&mut self.entries, slot);
        if self.in_protected.has(slot) {
            return;
        }
        self.in_protected.insert(slot);
        self.protected_len += 1;
        if self.protected_len > self.protected_max {
            if let Some(last) = self.protected.back(&self.entries) {
                take_out(&mut self.entries, last);
                self.in_protected.remove(last);
                self.protected_len -= 1;
                self.probation.push_front(&mut self.entries, last);
            }
        }
    }

    /// Caches what flash says, clean, as the most recent probationary entry. The table must not be full.
    #[inline]
    pub fn fetch(&mut self, lpn: u32) -> u32 {
        let slot = self.free.take().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        let cell = &mut self.cells[lpn as usize];
        assert!(slot < self.max, "the cache is full");
        let entry = &mut self.entries[slot as usize];
        (entry.lpn, entry.ppn) = (lpn, *cell);
        *cell = Self::CACHED | slot;
        self.probation.push_front(&mut self.entries, slot);
        slot
    }

    #[inline]
    fn dirty_bit(&self, lpn: u32) -> (usize, u64) {
        let (page, offset) = self.split.of(lpn);
        (page as usize * self.words + offset as usize / 64, 1 << (offset % 64))
    }

    /// Points an entry elsewhere and marks it dirty.
    #[inline]
    pub fn set(&mut self, slot: u32, ppn: u32) {
        let entry = &mut self.entries[slot as usize];
        let (lpn, before) = (entry.lpn, entry.ppn);
        entry.ppn = ppn;
        let (word, bit) = self.dirty_bit(lpn);
        let word = &mut self.dirty[word];
        if let Some(stale) = self.stale.get_mut(slot as usize).filter(|_| *word & bit == 0) {
            *stale = before;
        }
        *word |= bit;
    }

    /// A page was moved: a cached entry becomes dirty; without one, flash must say so, and the translation page that has
    /// to be rewritten for it is returned.
    #[inline]
    pub fn moved(&mut self, lpn: u32, ppn: u32) -> Option<u32> {
        let cell = &mut self.cells[lpn as usize];
        if let Some(slot) = Self::slot_in(*cell) {
            self.set(slot, ppn);
            return None;
        }
        *cell = ppn;
        Some(self.page_of(lpn))
    }

    /// Takes out the entry that has to leave. If it was dirty, it is written back, with batching together with all
    /// dirty entries of its translation page, and that page, which has to be rewritten, is returned.
    #[inline]
    pub fn evict(&mut self) -> Option<u32> {
        let slot = match self.probation.back(&self.entries) {
            Some(slot) => slot,
            None => {
                let slot = self.protected.back(&self.entries)?;
                self.in_protected.remove(slot);
                self.protected_len -= 1;
                slot
            }
        };
        take_out(&mut self.entries, slot);
        let Entry { lpn, ppn, .. } = self.entries[slot as usize];
        let (word, bit) = self.dirty_bit(lpn);
        let dirty = self.dirty[word] & bit != 0;
        let lost = self.stale.get(slot as usize).copied().filter(|_| dirty);
        self.cells[lpn as usize] = lost.unwrap_or(ppn);
        self.free = Some(slot);
        self.expect_eviction();
        let page = (dirty && lost.is_none()).then(|| self.page_of(lpn));
        match page {
            // Flash has all dirty entries of the translation page.
            Some(page) if self.batch => self.dirty[page as usize * self.words..][..self.words].fill(0),
            _ => self.dirty[word] &= !bit,
        }
        page
    }

    /// What the next eviction needs, and the one after it, is asked for.
    #[inline]
    fn expect_eviction(&self) {
        if let Some(last) = self.probation.back(&self.entries) {
            let Entry { lpn, links: [before, _], .. } = self.entries[last as usize];
            prefetch(&self.cells, lpn as usize);
            prefetch(&self.dirty, self.dirty_bit(lpn).0);
            prefetch(&self.entries, before as usize);
        }
    }

    /// Recounts: slots and pages name each other, and only cached entries are dirty.
    ///
    /// # Errors
    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut cached = 0;
        for lpn in 0..self.logical_pages() {
            let (word, bit) = self.dirty_bit(lpn);
            let dirty = self.dirty[word] & bit != 0;
            match self.peek(lpn) {
                Some(slot) => {
                    cached += 1;
                    let theirs = self.entries[slot as usize].lpn;
                    if theirs != lpn {
                        return Err(format!("the slot of logical page {lpn} holds {theirs}"));
                    }
                }
                None if dirty => return Err(format!("logical page {lpn} is dirty but not cached")),
                None => {}
            }
        }
        let queued = |queue: Queue| {
            let next = |slot: &u32| queue.before(&self.entries, *slot);
            std::iter::successors(queue.back(&self.entries), next).count()
        };
        let protected = queued(self.protected);
        if cached != queued(self.probation) + protected
            || cached > self.max()
            || protected != self.protected_len as usize
        {
            return Err(format!("{cached} pages are cached, the queues hold others"));
        }
        Ok(())
    }
}
