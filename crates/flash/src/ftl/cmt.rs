//! DFTL's cached mapping table: a segmented LRU of (logical page, physical page, dirty).
//!
//! ```text
//! miss ─► probationary, most recent      hit ─► protected, most recent
//! protected overflows ─► its least recent goes back to probationary, most recent
//! full ─► the least recent probationary entry leaves (the least recent protected one, if there is no other)
//! ```

use super::lru::{Links, Queue};
use crate::ids::NONE;

#[derive(Debug, Clone, Copy)]
struct Entry {
    lpn: u32,
    ppn: u32,
    dirty: bool,
    protected: bool,
}

/// The cached mapping table.
#[derive(Debug, Clone)]
pub struct Cmt {
    entries: Vec<Entry>,
    slot_of: Vec<u32>,
    links: Links,
    probation: Queue,
    protected: Queue,
    protected_max: u32,
    max: usize,
    free: Vec<u32>,
    /// Dirty entries by translation page, only kept when evictions are batched.
    dirty: Vec<Queue>,
    dirty_links: Links,
    per_page: u32,
}

/// An entry that left the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// Its logical page.
    pub lpn: u32,
    /// Where that page is.
    pub ppn: u32,
    /// Whether the translation page in flash says otherwise.
    pub dirty: bool,
}

impl Cmt {
    /// At most `max` entries for `logical_pages`, the share `protected` of them protected; `per_page` entries a
    /// translation page; `batch`: dirty entries are found by translation page.
    pub fn new(logical_pages: u32, max: u32, protected: f64, per_page: u32, batch: bool) -> Self {
        let max = max.clamp(1, logical_pages.max(1));
        let pages = logical_pages.div_ceil(per_page) as usize;
        Self {
            entries: Vec::with_capacity(max as usize),
            slot_of: vec![NONE; logical_pages as usize],
            links: Links::new(max as usize),
            probation: Queue::default(),
            protected: Queue::default(),
            protected_max: (f64::from(max) * protected) as u32,
            max: max as usize,
            free: Vec::new(),
            dirty: if batch { vec![Queue::default(); pages] } else { Vec::new() },
            dirty_links: if batch { Links::new(max as usize) } else { Links::default() },
            per_page,
        }
    }

    /// The most entries it may hold.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether the next insertion needs an eviction first.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() == self.max
    }

    /// The slot of a cached entry, without using it.
    #[inline]
    pub fn peek(&self, lpn: u32) -> Option<u32> {
        let slot = self.slot_of[lpn as usize];
        (slot != NONE).then_some(slot)
    }

    /// Where a cached entry's page is.
    #[inline]
    pub fn ppn(&self, slot: u32) -> u32 {
        self.entries[slot as usize].ppn
    }

    /// Whether an entry differs from the translation page in flash.
    pub fn is_dirty(&self, slot: u32) -> bool {
        self.entries[slot as usize].dirty
    }

    /// A hit: the entry becomes the most recent protected one.
    #[inline]
    pub fn hit(&mut self, slot: u32) {
        if self.entries[slot as usize].protected {
            self.links.remove(&mut self.protected, slot);
        } else {
            self.links.remove(&mut self.probation, slot);
            self.entries[slot as usize].protected = true;
        }
        self.links.push_front(&mut self.protected, slot);
        if self.protected.len > self.protected_max {
            if let Some(last) = self.protected.back() {
                self.links.remove(&mut self.protected, last);
                self.entries[last as usize].protected = false;
                self.links.push_front(&mut self.probation, last);
            }
        }
    }

    /// Inserts a clean entry as the most recent probationary one. The table must not be full.
    #[inline]
    pub fn insert(&mut self, lpn: u32, ppn: u32) -> u32 {
        let entry = Entry { lpn, ppn, dirty: false, protected: false };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                assert!(self.entries.len() < self.max, "an entry is cached in a full table");
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.slot_of[lpn as usize] = slot;
        self.links.push_front(&mut self.probation, slot);
        slot
    }

    /// Points an entry elsewhere and marks it dirty.
    #[inline]
    pub fn set(&mut self, slot: u32, ppn: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.ppn = ppn;
        if !entry.dirty {
            entry.dirty = true;
            let page = entry.lpn / self.per_page;
            if let Some(queue) = self.dirty.get_mut(page as usize) {
                self.dirty_links.push_front(queue, slot);
            }
        }
    }

    #[inline]
    fn clean(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.dirty {
            entry.dirty = false;
            let page = entry.lpn / self.per_page;
            if let Some(queue) = self.dirty.get_mut(page as usize) {
                self.dirty_links.remove(queue, slot);
            }
        }
    }

    /// Takes out the entry that has to leave.
    #[inline]
    pub fn evict(&mut self) -> Option<Evicted> {
        let slot = match self.probation.back() {
            Some(slot) => {
                self.links.remove(&mut self.probation, slot);
                slot
            }
            None => {
                let slot = self.protected.back()?;
                self.links.remove(&mut self.protected, slot);
                slot
            }
        };
        let Entry { lpn, ppn, dirty, .. } = self.entries[slot as usize];
        self.clean(slot);
        self.slot_of[lpn as usize] = NONE;
        self.free.push(slot);
        Some(Evicted { lpn, ppn, dirty })
    }

    /// Marks every dirty entry of a translation page clean and hands it out; nothing without batching.
    #[inline]
    pub fn clean_page(&mut self, page: u32, mut each: impl FnMut(u32, u32)) {
        let Some(queue) = self.dirty.get(page as usize).copied() else { return };
        let mut at = queue.front();
        while let Some(slot) = at {
            at = self.dirty_links.behind(slot);
            let entry = &mut self.entries[slot as usize];
            entry.dirty = false;
            each(entry.lpn, entry.ppn);
        }
        self.dirty[page as usize] = Queue::default();
    }
}
