//! Doubly linked queues over numbered slots, and the plain LRU set that Superblock's map cache is.

use crate::ids::NONE;
use crate::table::{filled, prefetch};

/// What a queue links: a slot's record that keeps its neighbours, so that both are in one place.
pub trait Node {
    /// The slots before and behind.
    fn links(&mut self) -> &mut [u32; 2];
}

impl Node for [u32; 2] {
    #[inline]
    fn links(&mut self) -> &mut [u32; 2] {
        self
    }
}

/// A queue: most recently used first. Several queues may share their nodes as long as a slot is in one at a time.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    first: u32,
    last: u32,
    /// Slots in it.
    pub len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl Queue {
    /// Puts a slot in front.
    #[inline]
    pub fn push_front<N: Node>(&mut self, nodes: &mut [N], slot: u32) {
        *nodes[slot as usize].links() = [NONE, self.first];
        match self.first {
            NONE => self.last = slot,
            first => nodes[first as usize].links()[0] = slot,
        }
        self.first = slot;
        self.len += 1;
    }

    /// Takes a slot out; it must be in this queue.
    #[inline]
    pub fn remove<N: Node>(&mut self, nodes: &mut [N], slot: u32) {
        let [before, behind] = *nodes[slot as usize].links();
        match before {
            NONE => self.first = behind,
            slot => nodes[slot as usize].links()[1] = behind,
        }
        match behind {
            NONE => self.last = before,
            slot => nodes[slot as usize].links()[0] = before,
        }
        self.len -= 1;
    }

    /// The least recently used.
    #[inline]
    pub fn back(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }
}

#[derive(Debug, Clone, Copy)]
struct Cached {
    links: [u32; 2],
    key: u32,
}

impl Node for Cached {
    #[inline]
    fn links(&mut self) -> &mut [u32; 2] {
        &mut self.links
    }
}

/// A set of the most recently used keys.
#[derive(Debug, Clone)]
pub struct LruSet {
    /// Key → slot.
    slot_of: Vec<u32>,
    slots: Vec<Cached>,
    used: u32,
    queue: Queue,
}

impl LruSet {
    /// At most `max` of the keys `0..keys`; at least one.
    pub fn new(keys: usize, max: u32) -> Self {
        let max = max.clamp(1, keys.max(1) as u32);
        Self {
            slot_of: filled(NONE, keys),
            slots: filled(Cached { links: [NONE; 2], key: NONE }, max as usize),
            used: 0,
            queue: Queue::default(),
        }
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

    /// Uses a key: whether it was in the set; it is now.
    #[inline]
    pub fn touch(&mut self, key: u32) -> bool {
        let slot = self.slot_of[key as usize];
        if slot != NONE {
            self.queue.remove(&mut self.slots, slot);
            self.queue.push_front(&mut self.slots, slot);
            return true;
        }
        let slot = if (self.used as usize) < self.slots.len() {
            self.used += 1;
            self.used - 1
        } else {
            // A full set has a last slot, because it has room for at least one.
            let slot = self.queue.back().unwrap_or(0);
            self.queue.remove(&mut self.slots, slot);
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
        if let Some(last) = self.queue.back() {
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
