//! The plain LRU set that Superblock's map cache is.

use crate::queue::{take_out, Queue, ALONE};
use crate::table::{filled, prefetch};

/// A set of the most recently used keys.
#[derive(Debug, Clone)]
pub struct LruSet {
    /// By key its neighbours in the queue of those in the set, and behind them the queue's head. With a record for every key
    /// nothing has to say which place in the set a key has.
    links: Vec<[u32; 2]>,
    max: u32,
    used: u32,
    queue: Queue,
}

impl LruSet {
    /// At most `max` of the keys `0..keys`; at least one.
    pub fn new(keys: usize, max: u32) -> Self {
        let mut links = filled([ALONE; 2], keys + 1);
        let queue = Queue::new(&mut links, keys as u32);
        Self { links, max: max.max(1), used: 0, queue }
    }

    /// Says that a key will be used soon: its record is asked for.
    #[inline]
    pub fn expect(&self, key: u32) {
        prefetch(&self.links, key as usize);
    }

    /// Uses a key: whether it was in the set; it is now.
    #[inline]
    pub fn touch(&mut self, key: u32) -> bool {
        let held = self.links[key as usize][0] != ALONE;
        if held {
            take_out(&mut self.links, key);
        } else if self.used < self.max {
            self.used += 1;
        } else if let Some(last) = self.queue.back(&self.links) {
            take_out(&mut self.links, last);
        }
        self.queue.push_front(&mut self.links, key);
        held
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
