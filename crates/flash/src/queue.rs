//! Doubly linked queues over numbered records that keep their neighbours themselves.
//!
//! Free blocks by erase count, candidates for collection by live pages, and the caches' entries by their last use all wait in
//! such queues. A record is in one queue at a time.

use crate::ids::NONE;

/// In place of a neighbour: the record was taken out of a queue, or was never in one.
pub const ALONE: u32 = NONE - 1;

/// What a queue links: a record that keeps its neighbours, so that both are in one place.
pub trait Node {
    /// The records in front and behind; [`NONE`] at an end, [`ALONE`] in no queue.
    fn links(&mut self) -> &mut [u32; 2];
}

impl Node for [u32; 2] {
    #[inline]
    fn links(&mut self) -> &mut [u32; 2] {
        self
    }
}

/// A queue: who came last is in front.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    first: u32,
    last: u32,
    /// Records in it.
    pub len: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl Queue {
    /// Puts a record in front; it must be in no queue.
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

    /// Takes a record out; it must be in this queue.
    #[inline]
    pub fn remove<N: Node>(&mut self, nodes: &mut [N], slot: u32) {
        let [before, behind] = std::mem::replace(nodes[slot as usize].links(), [ALONE; 2]);
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

    /// The one that came first.
    #[inline]
    pub fn back(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }
}
