//! Doubly linked queues over numbered slots, and the plain LRU set that Superblock's map cache is.

use crate::ids::NONE;

/// Neighbours of every slot; several queues may share them as long as a slot is in one queue at a time.
#[derive(Debug, Clone, Default)]
pub struct Links {
    links: Vec<[u32; 2]>,
}

/// A queue: most recently used first.
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

impl Links {
    /// For slots `0..slots`.
    pub fn new(slots: usize) -> Self {
        Self { links: vec![[NONE; 2]; slots] }
    }

    /// Puts a slot in front.
    #[inline]
    pub fn push_front(&mut self, queue: &mut Queue, slot: u32) {
        self.links[slot as usize] = [NONE, queue.first];
        match queue.first {
            NONE => queue.last = slot,
            first => self.links[first as usize][0] = slot,
        }
        queue.first = slot;
        queue.len += 1;
    }

    /// Takes a slot out of the queue it is in.
    #[inline]
    pub fn remove(&mut self, queue: &mut Queue, slot: u32) {
        let [before, behind] = self.links[slot as usize];
        match before {
            NONE => queue.first = behind,
            slot => self.links[slot as usize][1] = behind,
        }
        match behind {
            NONE => queue.last = before,
            slot => self.links[slot as usize][0] = before,
        }
        queue.len -= 1;
    }

    /// The slot behind in its queue.
    #[inline]
    pub fn behind(&self, slot: u32) -> Option<u32> {
        let behind = self.links[slot as usize][1];
        (behind != NONE).then_some(behind)
    }
}

impl Queue {
    /// The most recently used.
    #[inline]
    pub fn front(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// The least recently used.
    #[inline]
    pub fn back(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }
}

/// A set of the most recently used keys.
#[derive(Debug, Clone)]
pub struct LruSet {
    /// Key → slot.
    slot_of: Vec<u32>,
    key_of: Vec<u32>,
    links: Links,
    queue: Queue,
    max: u32,
}

impl LruSet {
    /// At most `max` of the keys `0..keys`; at least one.
    pub fn new(keys: usize, max: u32) -> Self {
        let max = max.clamp(1, keys.max(1) as u32);
        Self {
            slot_of: vec![NONE; keys],
            key_of: Vec::with_capacity(max as usize),
            links: Links::new(max as usize),
            queue: Queue::default(),
            max,
        }
    }

    /// Uses a key: whether it was in the set; it is now.
    #[inline]
    pub fn touch(&mut self, key: u32) -> bool {
        let slot = self.slot_of[key as usize];
        if slot != NONE {
            self.links.remove(&mut self.queue, slot);
            self.links.push_front(&mut self.queue, slot);
            return true;
        }
        let slot = if (self.key_of.len() as u32) < self.max {
            self.key_of.push(key);
            self.key_of.len() as u32 - 1
        } else {
            // A full set has a last slot, because `max` is at least one.
            let slot = self.queue.back().unwrap_or(0);
            self.links.remove(&mut self.queue, slot);
            self.slot_of[self.key_of[slot as usize] as usize] = NONE;
            self.key_of[slot as usize] = key;
            slot
        };
        self.slot_of[key as usize] = slot;
        self.links.push_front(&mut self.queue, slot);
        false
    }
}
