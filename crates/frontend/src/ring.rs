//! A split virtqueue (virtio 1.2 § 2.7) seen from the device.
//!
//! Used elements are written as requests complete; [`Ring::publish`] makes them visible with one store of the index
//! and says whether the driver wants an interrupt. `needs_notification` of the usual crate ignores
//! VIRTQ_AVAIL_F_NO_INTERRUPT without EVENT_IDX (SeaBIOS relies on the flag); this one does not.

use std::sync::atomic::{fence, Ordering};

use crate::memory::{GuestMemory, UserAddress, Window};

const F_NO_INTERRUPT: u16 = 1;
const F_NO_NOTIFY: u16 = 1;

/// Where the three parts of a ring are, in the VMM's address space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingAddresses {
    pub descriptors: UserAddress,
    pub available: UserAddress,
    pub used: UserAddress,
}

/// A ring that breaks its own rules; the queue stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingFault {
    #[error("the available index is {ahead} ahead, and the queue holds {size}")]
    IndexJump { ahead: u16, size: u16 },
    #[error("the available ring names descriptor {head}, and the queue holds {size}")]
    HeadOutOfRange { head: u16, size: u16 },
    #[error("descriptor {head} was made available again before it was used")]
    HeadBusy { head: u16 },
}

/// One queue's ring.
#[derive(Debug)]
pub(crate) struct Ring {
    descriptors: Window,
    available: Window,
    used: Window,
    size: u16,
    event_idx: bool,
    next_avail: u16,
    /// The driver's index as last read.
    known_avail: u16,
    next_used: u16,
    /// Elements written and not published.
    unpublished: u16,
    /// Whether the next publication must interrupt: after a start nobody knows what the driver has seen.
    must_interrupt: bool,
}

impl Ring {
    /// Translates the addresses; `None` where a part is not wholly inside one memory region or not aligned.
    pub fn new(memory: &GuestMemory, at: &RingAddresses, size: u16, event_idx: bool) -> Option<Self> {
        let n = usize::from(size);
        let event = if event_idx { 2 } else { 0 };
        let descriptors = memory.user_window(at.descriptors, 16 * n, 16)?;
        let available = memory.user_window(at.available, 4 + 2 * n + event, 2)?;
        let used = memory.user_window(at.used, 4 + 8 * n + event, 4)?;
        let next_used = used.load_u16(2, Ordering::Acquire);
        Some(Self {
            descriptors,
            available,
            used,
            size,
            event_idx,
            next_avail: 0,
            known_avail: 0,
            next_used,
            unpublished: 0,
            must_interrupt: true,
        })
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    pub fn descriptors(&self) -> &Window {
        &self.descriptors
    }

    /// The index of the used ring as published.
    pub fn used_idx(&self) -> u16 {
        self.next_used
    }

    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    pub fn set_next_avail(&mut self, index: u16) {
        self.next_avail = index;
        self.known_avail = index;
    }

    /// The next available head, if there is one.
    pub fn fetch(&mut self) -> Result<Option<u16>, RingFault> {
        if self.next_avail == self.known_avail {
            self.known_avail = self.available.load_u16(2, Ordering::Acquire);
            let ahead = self.known_avail.wrapping_sub(self.next_avail);
            if ahead == 0 {
                return Ok(None);
            }
            if ahead > self.size {
                self.known_avail = self.next_avail;
                return Err(RingFault::IndexJump { ahead, size: self.size });
            }
        }
        let slot = 4 + 2 * usize::from(self.next_avail % self.size);
        let head = self.available.load_u16(slot, Ordering::Relaxed);
        if head >= self.size {
            return Err(RingFault::HeadOutOfRange { head, size: self.size });
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(head))
    }

    /// Whether the driver has made something available that was not fetched yet.
    pub fn has_available(&self) -> bool {
        self.available.load_u16(2, Ordering::Acquire) != self.next_avail
    }

    /// Writes a used element behind the unpublished ones. At most the queue's size can be unpublished, since each head
    /// is answered once.
    pub fn push_used(&mut self, head: u16, written: u32) {
        let index = self.next_used.wrapping_add(self.unpublished);
        let mut element = [0; 8];
        element[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        self.used.write(4 + 8 * usize::from(index % self.size), &element);
        self.unpublished += 1;
    }

    /// Moves the used index over everything pushed. Returns the new index.
    pub fn publish(&mut self) -> u16 {
        let new = self.next_used.wrapping_add(self.unpublished);
        self.used.store_u16(2, new, Ordering::Release);
        self.next_used = new;
        new
    }

    /// Whether the driver wants an interrupt for what was published since the last call (virtio 1.2 § 2.7.7, 2.7.10).
    pub fn wants_interrupt(&mut self) -> bool {
        let (new, n) = (self.next_used, std::mem::take(&mut self.unpublished));
        if std::mem::take(&mut self.must_interrupt) {
            return true;
        }
        // The index must be visible before the driver's wish is read: the driver does it the other way round.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.available.load_u16(4 + 2 * usize::from(self.size), Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < n
        } else {
            self.available.load_u16(0, Ordering::Relaxed) & F_NO_INTERRUPT == 0
        }
    }

    /// Asks the driver to notify, then says whether something became available meanwhile: if so, do not sleep.
    pub fn enable_kicks(&mut self) -> bool {
        if self.event_idx {
            let at = 4 + 8 * usize::from(self.size);
            self.used.store_u16(at, self.next_avail, Ordering::Relaxed);
        } else {
            self.used.store_u16(0, 0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// Tells the driver that nobody needs a notification. With EVENT_IDX the old event index says that already.
    pub fn disable_kicks(&mut self) {
        if !self.event_idx {
            self.used.store_u16(0, F_NO_NOTIFY, Ordering::Relaxed);
        }
    }
}
