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

/// A slab.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

impl Slots {
    pub fn insert(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// # Panics
    /// Where there is no such slot: the kernel answered something that was never asked.
    pub fn get(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].as_mut().expect("a ring answer belongs to a live slot")
    }

    /// # Panics
    /// As [`Slots::get`].
    pub fn remove(&mut self, index: u32) -> Slot {
        self.free.push(index);
        self.slots[index as usize].take().expect("a slot is finished once")
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
