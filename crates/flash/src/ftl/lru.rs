//! The plain LRU set that Superblock's map cache is.

use crate::ids::NONE;
use crate::queue::{expect_take_out, take_out, Node, Queue, ALONE};
use crate::table::{filled, prefetch};

#[derive(Debug, Clone, Copy)]
struct Cached {
    links: [u32; 2],
    key: u32,
}

impl Node for Cached {
    #[inline]
    fn links(&self) -> [u32; 2] {
        self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut [u32; 2] {
        &mut self.links
    }
}

/// A set of the most recently used keys.
#[derive(Debug, Clone)]
pub struct LruSet {
    /// Key → slot.
    slot_of: Vec<u32>,
    /// The keys in the set, and behind them the head of their queue.
    slots: Vec<Cached>,
    max: u32,
    used: u32,
    queue: Queue,
}

impl LruSet {
    /// At most `max` of the keys `0..keys`; at least one.
    pub fn new(keys: usize, max: u32) -> Self {
        let max = max.clamp(1, keys.max(1) as u32);
        let mut slots = filled(Cached { links: [ALONE; 2], key: NONE }, max as usize + 1);
        let queue = Queue::new(&mut slots, max);
        Self { slot_of: filled(NONE, keys), slots, max, used: 0, queue }
    }

    /// Says that a key will be used soon: its slot is asked for.
    #[inline]
    pub fn expect(&self, key: u32) {
        prefetch(&self.slot_of, key as usize);
    }

    /// As [`LruSet::expect`], when that has come: what its use changes.
    #[inline]
    pub fn expect_near(&self, key: u32) {
        // NONE is beyond the end and passed over.
        prefetch(&self.slots, self.slot_of[key as usize] as usize);
    }

    /// As [`LruSet::expect_near`], when that has come: the slots beside it, which its use changes too.
    #[inline]
    pub fn expect_close(&self, key: u32) {
        let slot = self.slot_of[key as usize];
        if slot != NONE {
            expect_take_out(&self.slots, slot);
        }
    }

    /// Uses a key: whether it was in the set; it is now.
    #[inline]
    pub fn touch(&mut self, key: u32) -> bool {
        let slot = self.slot_of[key as usize];
        if slot != NONE {
            take_out(&mut self.slots, slot);
            self.queue.push_front(&mut self.slots, slot);
            return true;
        }
        let slot = if self.used < self.max {
            self.used += 1;
            self.used - 1
        } else {
            // A full set has a last slot, because it has room for at least one.
            let slot = self.queue.back(&self.slots).unwrap_or(0);
            take_out(&mut self.slots, slot);
            self.slot_of[self.slots[slot as usize].key as usize] = NONE;
            self.expect_next_eviction();
            slot
        };
        self.slots[slot as usize].key = key;
        self.slot_of[key as usize] = slot;
        self.queue.push_front(&mut self.slots, slot);
        false
    }

    /// The key that leaves next, and the slot that leaves after it, are asked for.
    #[inline]
    fn expect_next_eviction(&self) {
        if let Some(last) = self.queue.back(&self.slots) {
            let Cached { links: [before, _], key } = self.slots[last as usize];
            prefetch(&self.slot_of, key as usize);
            prefetch(&self.slots, before as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_key_leaves() {
        let mut set = LruSet::new(5, 2);
        assert_eq!([0, 1, 0, 2, 0, 1].map(|key| set.touch(key)), [false, false, true, false, true, false]);
        assert!(!set.touch(2), "2 left when 1 came back");
        assert!(set.touch(1));
    }
}
