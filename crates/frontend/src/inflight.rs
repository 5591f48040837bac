//! The in-flight region: which requests were fetched and not yet answered (vhost-user, "Inflight I/O tracking",
//! split virtqueues). Declared here and nowhere else.
//!
//! ```text
//! queue 0 │ queue 1 │ … │ tail          each queue: 16-byte header + 16 bytes per descriptor, rounded up to 64
//!
//! header      0 features u64   0          descriptor  0 inflight u8   fetched, not answered
//!             8 version  u16   1 once used            1 padding  [5]
//!            10 desc_num u16                          6 next     u16  list of the last batch
//!            12 last_batch_head u16                   8 counter  u64  order of fetching
//!            14 used_idx u16   as last published
//! tail (64 bytes, our own; the region is opaque to the peer)
//!             0 magic "AIWCE\0\0\1"    8 write cache: 1 on, 2 off
//! ```
//!
//! Batch: link each answered head (`next`, `last_batch_head`) → publish the ring's used index → clear their
//! `inflight` → store `used_idx`. Outcomes of a crash in between: before the ring's index moved, every answered
//! request is in flight and executed again; after it, the difference between the two indices tells how many heads
//! of the list are answered although still marked. Nothing is lost and nothing is answered twice.
//!
//! The tail holds what else a dead daemon knew and a VMM does not repeat after reconnecting: that the guest had
//! switched the write cache off (without it the cache rule would break silently).

use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::memory::{Mapping, Window};

const HEADER_BYTES: usize = 16;
const DESCRIPTOR_BYTES: usize = 16;
const ALIGNMENT: usize = 64;
const TAIL_BYTES: usize = 64;
const TAIL_MAGIC: u64 = u64::from_le_bytes(*b"AIWCE\0\0\x01");
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_DESC_NUM: usize = 10;
const AT_LAST_BATCH_HEAD: usize = 12;
const AT_USED_IDX: usize = 14;

/// Bytes of one queue's part.
pub(crate) fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + DESCRIPTOR_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

/// Bytes of a whole region.
pub(crate) fn region_bytes(queues: u16, queue_size: u16) -> usize {
    queue_bytes(queue_size) * usize::from(queues) + TAIL_BYTES
}

/// For how large rings a region of `len` bytes is that a peer says is for rings of `said`. Ours are for the largest rings whatever was asked
/// for, and QEMU gives them back with what it had asked for; another's, or one of an earlier daemon, is as it is said to be.
pub(crate) fn ring_size_of(len: u64, queues: u16, said: u16, max: u16) -> u16 {
    let sizes = (0..=max.ilog2()).map(|n| 1 << n).skip_while(|size| *size < said.min(max));
    sizes.into_iter().find(|size| region_bytes(queues, *size) as u64 == len).unwrap_or(said)
}

/// A region for all queues of a device.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    mapping: Arc<Mapping>,
    pub queues: u16,
    pub queue_size: u16,
}

impl Region {
    /// Checks that a mapping is long enough for these numbers, which may come from the peer.
    pub fn new(mapping: Arc<Mapping>, queues: u16, queue_size: u16) -> Result<Self, &'static str> {
        if queues == 0 || queue_size == 0 {
            return Err("an in-flight region for no queue");
        }
        if mapping.len() < queue_bytes(queue_size) * usize::from(queues) {
            return Err("the in-flight region is too short for its queues");
        }
        Ok(Self { mapping, queues, queue_size })
    }

    /// One queue's part; `None` where the region has no such queue or is too small for `ring_size`.
    pub fn queue(&self, index: u16, ring_size: u16) -> Option<Inflight> {
        if index >= self.queues || ring_size > self.queue_size {
            return None;
        }
        let bytes = queue_bytes(self.queue_size);
        let window = Window::new(&self.mapping, (bytes * usize::from(index)) as u64, bytes, 8)?;
        Some(Inflight { window, size: ring_size })
    }

    /// Queues in which a dead daemon had something in flight: one bit each.
    pub fn owed(&self) -> u64 {
        let owes = |index: &u16| self.queue(*index, self.queue_size).is_some_and(|queue| queue.owes());
        (0..self.queues.min(64)).filter(owes).fold(0, |owed, index| owed | 1 << index)
    }

    fn tail(&self) -> Option<Window> {
        let at = queue_bytes(self.queue_size) * usize::from(self.queues);
        Window::new(&self.mapping, at as u64, TAIL_BYTES, 8)
    }

    /// The write cache as a dead daemon left it, if the region says so.
    pub fn write_cache(&self) -> Option<bool> {
        let tail = self.tail()?;
        if tail.load_u64(0) != TAIL_MAGIC {
            return None;
        }
        match tail.load_u8(8) {
            1 => Some(true),
            2 => Some(false),
            _ => None,
        }
    }

    /// Notes the write cache for a later daemon, where the region has room for it.
    pub fn note_write_cache(&self, on: bool) {
        if let Some(tail) = self.tail() {
            tail.store_u8(8, if on { 1 } else { 2 });
            tail.store_u64(0, TAIL_MAGIC);
        }
    }
}

/// What a queue does first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Next entry of the available ring to fetch; `None` where the region says nothing about it.
    pub next_avail: Option<u16>,
    /// Heads to submit again, oldest first.
    pub resubmit: Vec<u16>,
}

/// A region that contradicts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the in-flight region is damaged: {0}")]
pub(crate) struct Damaged(&'static str);

/// One queue's part of a region.
#[derive(Debug)]
pub(crate) struct Inflight {
    window: Window,
    size: u16,
}

impl Inflight {
    fn descriptor(&self, head: u16) -> usize {
        assert!(head < self.size, "head out of range");
        HEADER_BYTES + DESCRIPTOR_BYTES * usize::from(head)
    }

    fn marked(&self, head: u16) -> bool {
        self.window.load_u8(self.descriptor(head)) == 1
    }

    /// Whether anything may be in flight.
    fn owes(&self) -> bool {
        let begun = self.window.load_u16(AT_VERSION, Ordering::Acquire) == VERSION;
        begun && (0..self.size).any(|head| self.marked(head))
    }

    fn clear(&self, head: u16) {
        self.window.store_u8(self.descriptor(head), 0);
    }

    /// Settles an interrupted batch, and says what is to be done again. `ring_used_idx` is the used ring's index.
    /// At most two passes over the descriptors, whatever the region holds.
    pub fn recover(&self, ring_used_idx: u16) -> Result<Recovered, Damaged> {
        let w = &self.window;
        match w.load_u16(AT_VERSION, Ordering::Acquire) {
            0 => {
                w.store_u16(AT_DESC_NUM, self.size, Ordering::Relaxed);
                w.store_u16(AT_LAST_BATCH_HEAD, 0, Ordering::Relaxed);
                w.store_u16(AT_USED_IDX, ring_used_idx, Ordering::Relaxed);
                for head in 0..self.size {
                    self.clear(head);
                }
                w.store_u16(AT_VERSION, VERSION, Ordering::Release);
                return Ok(Recovered { next_avail: None, resubmit: Vec::new() });
            }
            VERSION => {}
            _ => return Err(Damaged("unknown version")),
        }
        if !(0..self.size).any(|head| self.marked(head)) {
            // Quiesced; the ring may be a new one, so the old index means nothing.
            w.store_u16(AT_DESC_NUM, self.size, Ordering::Relaxed);
            w.store_u16(AT_USED_IDX, ring_used_idx, Ordering::Relaxed);
            return Ok(Recovered { next_avail: Some(ring_used_idx), resubmit: Vec::new() });
        }
        if w.load_u16(AT_DESC_NUM, Ordering::Acquire) != self.size {
            return Err(Damaged("requests in flight of a queue of another size"));
        }
        let batch = ring_used_idx.wrapping_sub(w.load_u16(AT_USED_IDX, Ordering::Acquire));
        if batch > self.size {
            return Err(Damaged("the used index is too far away"));
        }
        let mut head = w.load_u16(AT_LAST_BATCH_HEAD, Ordering::Acquire);
        for _ in 0..batch {
            if head >= self.size {
                return Err(Damaged("a link of the last batch leads outside"));
            }
            self.clear(head);
            head = w.load_u16(self.descriptor(head) + 6, Ordering::Acquire);
        }
        w.store_u16(AT_USED_IDX, ring_used_idx, Ordering::Release);
        let mut pending: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.marked(*head))
            .map(|head| (self.window.load_u64(self.descriptor(head) + 8), head))
            .collect();
        pending.sort_unstable();
        let next_avail = ring_used_idx.wrapping_add(pending.len() as u16);
        let resubmit = pending.into_iter().map(|(_, head)| head).collect();
        Ok(Recovered { next_avail: Some(next_avail), resubmit })
    }

    /// Notes a fetched head before anything is done with it.
    pub fn fetched(&self, head: u16, counter: u64) {
        let at = self.descriptor(head);
        self.window.store_u64(at + 8, counter);
        self.window.store_u8(at, 1);
    }

    /// Links an answered head into the batch, before the ring's used index moves.
    pub fn answered(&self, head: u16) {
        let last = self.window.load_u16(AT_LAST_BATCH_HEAD, Ordering::Relaxed);
        self.window.store_u16(self.descriptor(head) + 6, last, Ordering::Release);
        self.window.store_u16(AT_LAST_BATCH_HEAD, head, Ordering::Release);
    }

    /// Ends the batch, after the ring's used index moved to `used_idx`.
    pub fn published(&self, batch: impl IntoIterator<Item = u16>, used_idx: u16) {
        for head in batch {
            self.clear(head);
        }
        self.window.store_u16(AT_USED_IDX, used_idx, Ordering::Release);
    }

    /// Forgets the queue: its next start says where it begins.
    pub fn forget(&self) {
        self.window.store_u16(AT_VERSION, 0, Ordering::Release);
    }

    /// Whether the region's file became shorter under us.
    pub fn poisoned(&self) -> bool {
        self.window.poisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(queues: u16, size: u16) -> Region {
        let mapping = Arc::new(Mapping::anonymous(region_bytes(queues, size)).unwrap());
        Region::new(mapping, queues, size).unwrap()
    }

    #[test]
    fn the_layout_is_the_specifications() {
        assert_eq!(queue_bytes(128), 2112);
        let region = region(2, 4);
        let q = region.queue(1, 4).unwrap();
        q.recover(7).unwrap();
        q.fetched(2, 0x0102_0304_0506_0708);
        q.answered(2);
        assert_eq!(q.window.read::<16>(0), [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 2, 0, 7, 0]);
        assert_eq!(q.window.read::<16>(48), [1, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert!(region.queue(2, 4).is_none());
        assert!(region.queue(0, 8).is_none());
    }

    /// Every prefix of the stores of one batch, with two requests answered and one not.
    #[test]
    fn a_crash_at_any_step_of_a_batch_leaves_each_request_in_flight_or_published() {
        for step in 0..6 {
            let region = region(1, 8);
            let q = region.queue(0, 8).unwrap();
            q.recover(100).unwrap();
            for (counter, head) in [5u16, 1, 3].into_iter().enumerate() {
                q.fetched(head, counter as u64);
            }
            let mut ring_idx = 100;
            let mut steps: Vec<Box<dyn FnMut()>> = vec![
                Box::new(|| q.answered(3)),
                Box::new(|| q.answered(5)),
                Box::new(|| ring_idx = 102),
                Box::new(|| q.clear(3)),
                Box::new(|| q.published([3, 5], 102)),
            ];
            steps.iter_mut().take(step).for_each(|s| s());
            drop(steps);
            let recovered = q.recover(ring_idx).unwrap();
            let expected = if ring_idx == 102 { vec![1] } else { vec![5, 1, 3] };
            assert_eq!(recovered, Recovered { next_avail: Some(103), resubmit: expected }, "step {step}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        let region = region(1, 8);
        let q = region.queue(0, 8).unwrap();
        q.recover(0).unwrap();
        q.fetched(1, 1);
        assert_eq!(q.recover(500), Err(Damaged("the used index is too far away")));
        q.window.store_u16(AT_LAST_BATCH_HEAD, 99, Ordering::Relaxed);
        assert_eq!(q.recover(1), Err(Damaged("a link of the last batch leads outside")));
        q.window.store_u16(AT_VERSION, 7, Ordering::Relaxed);
        assert!(q.recover(0).is_err());
    }

    #[test]
    fn a_region_s_length_says_for_how_large_rings_it_is() {
        for queues in [1, 2, 64] {
            let bytes = |size| region_bytes(queues, size) as u64;
            for said in [1, 100, 128, 1024, 4096] {
                assert_eq!(ring_size_of(bytes(1024), queues, said, 1024), 1024, "ours");
            }
            for said in [16, 100, 128, 512] {
                assert_eq!(ring_size_of(bytes(said), queues, said, 1024), said, "an earlier daemon's");
                assert_eq!(ring_size_of(bytes(said) - 64, queues, said, 1024), said, "another's");
            }
            assert_eq!(ring_size_of(bytes(16), queues, 128, 1024), 128, "too short, as will be found");
        }
    }

    #[test]
    fn the_tail_remembers_the_write_cache() {
        let region = region(1, 8);
        assert_eq!(region.write_cache(), None);
        region.note_write_cache(false);
        assert_eq!(region.write_cache(), Some(false));
        region.note_write_cache(true);
        assert_eq!(region.write_cache(), Some(true));
    }
}
