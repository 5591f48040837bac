//! What was seen and is not written yet: bounded, and never waited for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::line::{CaptureOp, Seen};
use super::FileId;

/// Requests handed over at a time.
const CHUNK: usize = 4096;
/// Chunks that may wait.
const CHUNKS_MAX: usize = 256;
/// Memory that requests may take while they wait for the file, in bytes.
pub const QUEUED_BYTES_MAX: usize = CHUNKS_MAX * CHUNK * size_of::<Item>();

/// One thing to write.
#[derive(Clone, Copy, Debug)]
pub enum Item {
    /// A request.
    Seen(Seen),
    /// So many requests went unseen here.
    Dropped(u64),
}

/// What the writing thread is given.
#[derive(Debug, Default)]
pub struct Taken {
    /// In order.
    pub chunks: VecDeque<Vec<Item>>,
    /// There will be no more.
    pub ended: bool,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<Item>,
    full: VecDeque<Vec<Item>>,
    /// Chunks to be filled again.
    free: Vec<Vec<Item>>,
    /// Since the last request that was taken.
    dropped: u64,
    ended: bool,
}

#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    news: Condvar,
    begin: Instant,
}

impl Queue {
    pub fn new() -> Self {
        Self { state: Mutex::default(), news: Condvar::new(), begin: Instant::now() }
    }

    /// The time is taken under the lock, so that it never decreases.
    #[inline]
    pub fn note(&self, file: FileId, op: CaptureOp, offset: u64, length: u64) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        // Room for this one, and for what says that some were dropped.
        if state.open.len() + 2 > CHUNK && !self.rotate(&mut state) {
            state.dropped += 1;
            return;
        }
        if state.dropped > 0 {
            let dropped = std::mem::take(&mut state.dropped);
            state.open.push(Item::Dropped(dropped));
        }
        let at_ns = self.begin.elapsed().as_nanos() as u64;
        state.open.push(Item::Seen(Seen { at_ns, offset, length, file, op }));
    }

    #[cold]
    fn rotate(&self, state: &mut State) -> bool {
        if state.full.len() >= CHUNKS_MAX - 1 {
            return false;
        }
        let empty = state.free.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
        let full = std::mem::replace(&mut state.open, empty);
        state.full.push_back(full);
        self.news.notify_one();
        true
    }

    /// Waits until a chunk is full, the end, or the time is over, and takes everything. `used`: chunks to fill again.
    pub fn take(&self, used: &mut Vec<Vec<Item>>, patience: Duration) -> Taken {
        let mut state = self.state.lock();
        let idle = |state: &mut State| state.full.is_empty() && !state.ended;
        self.news.wait_while_for(&mut state, idle, patience);
        state.free.append(used);
        let mut chunks = std::mem::take(&mut state.full);
        let empty = state.free.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
        let open = std::mem::replace(&mut state.open, empty);
        if !open.is_empty() {
            chunks.push_back(open);
        }
        if state.ended && state.dropped > 0 {
            chunks.push_back(vec![Item::Dropped(std::mem::take(&mut state.dropped))]);
        }
        Taken { chunks, ended: state.ended }
    }

    /// Nothing is taken from now on.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.news.notify_one();
    }

    /// As [`Queue::end`], and what waits is given up: nobody will take it.
    pub fn close(&self) {
        *self.state.lock() = State { ended: true, ..State::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(queue: &Queue, requests: u64) {
        for at in 0..requests {
            queue.note(FileId(0), CaptureOp::Read, at * 512, 512);
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_where_it_is_missing() {
        let queue = Queue::new();
        let most = (CHUNKS_MAX * CHUNK) as u64;
        note(&queue, most + 1000);
        let mut used: Vec<Vec<Item>> = queue.take(&mut Vec::new(), Duration::ZERO).chunks.into();
        assert!(used.len() * CHUNK * size_of::<Item>() <= QUEUED_BYTES_MAX);
        let kept: u64 = used.iter().map(|chunk| chunk.len() as u64).sum();
        used.iter_mut().for_each(Vec::clear);
        note(&queue, 1);
        let next = queue.take(&mut used, Duration::ZERO).chunks;
        assert!(
            matches!(next[0][..], [Item::Dropped(n), Item::Seen(_)] if n == most + 1000 - kept),
            "{kept}"
        );
    }

    #[test]
    fn the_end_comes_after_everything() {
        let queue = Queue::new();
        note(&queue, 3);
        queue.end();
        note(&queue, 1);
        let taken = queue.take(&mut Vec::new(), Duration::from_secs(60));
        assert!(taken.ended);
        assert_eq!(taken.chunks.iter().map(Vec::len).sum::<usize>(), 3);
    }
}
