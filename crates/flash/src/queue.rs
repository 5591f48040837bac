//! Doubly linked queues over numbered records that keep their neighbours themselves.
//!
//! ```text
//! head ⇄ who came last ⇄ … ⇄ who came first ⇄ head
//! ```
//!
//! Candidates for collection by live pages, and the caches' entries by their last use wait in such queues. A queue's head is
//! a record among the others, so that no end is a special case: nothing has to be asked that a processor would guess
//! wrong. A record is in one queue at a time.

use crate::ids::NONE;
use crate::table::prefetch;

/// In place of a neighbour: the record was taken out of a queue, or was never in one.
pub const ALONE: u32 = NONE - 1;

/// What a queue links: a record that keeps its neighbours, so that both are in one place.
pub trait Node {
    /// The records in front and behind; [`ALONE`] in no queue.
    fn links(&self) -> [u32; 2];
    /// The same, to be changed.
    fn links_mut(&mut self) -> &mut [u32; 2];
}

impl Node for [u32; 2] {
    #[inline(always)]
    fn links(&self) -> [u32; 2] {
        *self
    }

    #[inline(always)]
    fn links_mut(&mut self) -> &mut [u32; 2] {
        self
    }
}

/// A queue, named by its head.
#[derive(Debug, Clone, Copy)]
pub struct Queue(u32);

impl Queue {
    /// An empty queue with this record as its head.
    pub fn new<N: Node>(nodes: &mut [N], head: u32) -> Self {
        *nodes[head as usize].links_mut() = [head; 2];
        Self(head)
    }

    /// Puts a record in front; it must be in no queue.
    #[inline(always)]
    pub fn push_front<N: Node>(self, nodes: &mut [N], slot: u32) {
        let first = std::mem::replace(&mut nodes[self.0 as usize].links_mut()[1], slot);
        nodes[first as usize].links_mut()[0] = slot;
        *nodes[slot as usize].links_mut() = [self.0, first];
    }

    /// The one that came first.
    #[inline(always)]
    pub fn back<N: Node>(self, nodes: &[N]) -> Option<u32> {
        self.before(nodes, self.0)
    }

    /// The one in this queue that came next after another one.
    #[inline(always)]
    pub fn before<N: Node>(self, nodes: &[N], slot: u32) -> Option<u32> {
        let [before, _] = nodes[slot as usize].links();
        (before != self.0).then_some(before)
    }
}

/// The records beside one in its queue, which taking it out changes too, are asked for.
#[inline(always)]
pub fn expect_take_out<N: Node>(nodes: &[N], slot: u32) {
    // In no queue, they are beyond the end and passed over.
    nodes[slot as usize].links().into_iter().for_each(|beside| prefetch(nodes, beside as usize));
}

/// Takes a record out of the queue that it is in.
#[inline(always)]
pub fn take_out<N: Node>(nodes: &mut [N], slot: u32) {
    let [before, behind] = std::mem::replace(nodes[slot as usize].links_mut(), [ALONE; 2]);
    nodes[before as usize].links_mut()[1] = behind;
    nodes[behind as usize].links_mut()[0] = before;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_is_at_the_back() {
        let nodes = &mut [[ALONE; 2]; 6][..];
        let [a, b] = [4, 5].map(|head| Queue::new(nodes, head));
        assert_eq!((a.back(nodes), b.back(nodes)), (None, None));
        (0..4).for_each(|slot| a.push_front(nodes, slot));
        take_out(nodes, 0);
        assert_eq!(nodes[0], [ALONE; 2]);
        b.push_front(nodes, 0);
        take_out(nodes, 2);
        b.push_front(nodes, 2);
        let all = |queue: Queue, nodes: &[[u32; 2]]| {
            std::iter::successors(queue.back(nodes), |slot| queue.before(nodes, *slot)).collect::<Vec<_>>()
        };
        assert_eq!((all(a, nodes), all(b, nodes)), (vec![1, 3], vec![0, 2]));
        [1, 3].into_iter().for_each(|slot| take_out(nodes, slot));
        assert_eq!(a.back(nodes), None);
    }
}
