//! The requests that a ring lane has in hand, by index: a ring entry carries the index as its user data.

use afterimage_block::{Buffers, Token};

use crate::zero::Method;

/// What a slot's next step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Read,
    Write,
    /// Zero a range by the method last tried.
    Zero {
        unmap: bool,
        method: Method,
    },
    /// Waits for a sync, or rides on one.
    Flush,
}

/// One request and how far it is.
pub(crate) struct Slot {
    pub token: Token,
    pub work: Work,
    /// Its first byte on the disk.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes done.
    pub done: u64,
    /// Complete only after a sync.
    pub flushed: bool,
    /// The kernel could not do it without waiting: let it use a worker thread.
    pub offload: bool,
    pub buffers: Buffers,
    /// The rest of the buffers after a short transfer, or an aligned copy of the part in flight.
    pub part: Option<Part>,
}

/// Memory of the part in flight, where it is not simply the request's.
pub(crate) enum Part {
    Rest(Buffers),
    Copy(Buffers),
}

/// Slots of one allocation.
const CHUNK: usize = 64;

/// A slab whose slots never move while they are taken: the kernel may still have to read an iovec array inside one
/// when the next request is inserted.
#[derive(Default)]
pub(crate) struct Slots {
    chunks: Vec<Box<[Option<Slot>]>>,
    free: Vec<u32>,
}

impl Slots {
    pub fn insert(&mut self, slot: Slot) -> u32 {
        if self.free.is_empty() {
            let first = self.chunks.len() * CHUNK;
            self.chunks.push((0..CHUNK).map(|_| None).collect());
            // The lowest index comes out first.
            self.free.extend((first..first + CHUNK).rev().map(|index| index as u32));
        }
        let index = self.free.pop().expect("a chunk was just added");
        *self.place(index) = Some(slot);
        index
    }

    /// # Panics
    /// Where there is no such slot: the kernel answered something that was never asked.
    pub fn get(&mut self, index: u32) -> &mut Slot {
        self.place(index).as_mut().expect("a ring answer belongs to a live slot")
    }

    /// # Panics
    /// As [`Slots::get`].
    pub fn remove(&mut self, index: u32) -> Slot {
        self.free.push(index);
        self.place(index).take().expect("a slot is finished once")
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.chunks.len() * CHUNK - self.free.len()
    }

    fn place(&mut self, index: u32) -> &mut Option<Slot> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}
