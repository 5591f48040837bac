//! Descriptor chains (virtio 1.2 § 2.7.5), walked with everything in them distrusted.
//!
//! The walk visits at most [`DESCRIPTORS_MAX`] descriptors, so a loop ends. A chain whose end was found tells where
//! its status byte is, whatever else is wrong with it (a buffer outside memory, directions mixed): such a request is
//! answered with VIRTIO_BLK_S_IOERR. A chain without an end, or without a writable byte in memory, has nowhere to
//! put a status and is returned with length 0.

use std::sync::Arc;

use crate::memory::{GuestAddress, GuestMemory, SegmentList, Window};

/// Most descriptors of one chain, indirect ones included.
pub(crate) const DESCRIPTORS_MAX: usize = 1024;

const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
const F_INDIRECT: u16 = 4;

/// What is wrong with a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainFault {
    #[error("the chain has more descriptors than the queue or the table, or loops")]
    TooManyDescriptors,
    #[error("a descriptor's next field leads outside its table")]
    NextOutOfRange,
    #[error("an indirect descriptor inside an indirect table")]
    IndirectNested,
    #[error("an indirect descriptor that is not the last of its chain")]
    IndirectWithNext,
    #[error("an indirect table whose length is not a positive multiple of 16")]
    IndirectLength,
    #[error("an indirect table outside guest memory")]
    IndirectOutsideMemory,
    #[error("a device-readable buffer behind a device-writable one")]
    ReadableAfterWritable,
    #[error("a buffer outside the memory that the guest's VMM shares (what is added to a guest needs share=on, too)")]
    OutsideMemory,
    #[error("buffers of 4 GiB or more")]
    TooLong,
}

/// One request's buffers. Reused from chain to chain.
pub(crate) struct Chain {
    /// What the device reads.
    pub readable: SegmentList,
    /// What the device writes, the status byte included.
    pub writable: SegmentList,
    /// The last writable byte, where the chain has an end and that byte is memory.
    pub status: Option<GuestAddress>,
    /// The first thing found wrong.
    pub fault: Option<ChainFault>,
}

#[derive(Clone, Copy)]
struct Descriptor {
    address: GuestAddress,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn load(table: &Window, index: u16) -> Self {
        let bytes: [u8; 16] = table.read(16 * usize::from(index));
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            address: GuestAddress(u64::from_le_bytes(*bytes.first_chunk().expect("16 bytes hold 8"))),
            len: u32::from(half(8)) | u32::from(half(10)) << 16,
            flags: half(12),
            next: half(14),
        }
    }
}

impl Chain {
    pub fn new(memory: &Arc<GuestMemory>) -> Self {
        Self {
            readable: SegmentList::new(Arc::clone(memory)),
            writable: SegmentList::new(Arc::clone(memory)),
            status: None,
            fault: None,
        }
    }

    /// Walks the chain that starts at `head` of `table`, a ring's descriptor table.
    pub fn walk(&mut self, memory: &GuestMemory, table: &Window, head: u16) {
        self.readable.clear();
        self.writable.clear();
        self.status = None;
        self.fault = None;
        let mut last_writable = None;
        match self.follow(memory, table, head, &mut last_writable) {
            Ok(()) => self.status = last_writable.filter(|at| memory.window(*at, 1).is_some()),
            Err(fault) => self.fault = Some(fault),
        }
    }

    /// Visits every descriptor; an error means that the chain's end was not found.
    fn follow(
        &mut self,
        memory: &GuestMemory,
        table: &Window,
        head: u16,
        last_writable: &mut Option<GuestAddress>,
    ) -> Result<(), ChainFault> {
        let mut indirect_table: Option<Window> = None;
        let mut entries = (table.len() / 16).min(DESCRIPTORS_MAX);
        let mut limit = entries;
        let mut index = head;
        let mut visited = 0;
        loop {
            if visited >= limit {
                return Err(ChainFault::TooManyDescriptors);
            }
            if usize::from(index) >= entries {
                return Err(ChainFault::NextOutOfRange);
            }
            visited += 1;
            let descriptor = Descriptor::load(indirect_table.as_ref().unwrap_or(table), index);
            if descriptor.flags & F_INDIRECT != 0 {
                if indirect_table.is_some() {
                    return Err(ChainFault::IndirectNested);
                }
                if descriptor.flags & F_NEXT != 0 {
                    return Err(ChainFault::IndirectWithNext);
                }
                if descriptor.len == 0 || descriptor.len % 16 != 0 {
                    return Err(ChainFault::IndirectLength);
                }
                let window = memory
                    .window(descriptor.address, descriptor.len as usize)
                    .ok_or(ChainFault::IndirectOutsideMemory)?;
                // A `next` field reaches no further than 65535, a walk no further than the limit.
                entries = (descriptor.len as usize / 16).min(1 << 16);
                limit = visited + entries.min(DESCRIPTORS_MAX);
                indirect_table = Some(window);
                index = 0;
                continue;
            }
            self.take(descriptor, last_writable);
            if descriptor.flags & F_NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    /// Adds one buffer. Faults here leave the chain walkable.
    fn take(&mut self, descriptor: Descriptor, last_writable: &mut Option<GuestAddress>) {
        let Descriptor { address, len, flags, .. } = descriptor;
        let writable = flags & F_WRITE != 0;
        if writable {
            if len > 0 {
                *last_writable = address.0.checked_add(u64::from(len) - 1).map(GuestAddress);
            }
        } else if last_writable.is_some() || self.writable.len() > 0 {
            self.blame(ChainFault::ReadableAfterWritable);
        }
        let list = if writable { &mut self.writable } else { &mut self.readable };
        if list.len() + u64::from(len) > u64::from(u32::MAX) {
            self.blame(ChainFault::TooLong);
        } else if !list.push(address, len) {
            self.blame(ChainFault::OutsideMemory);
        }
    }

    fn blame(&mut self, fault: ChainFault) {
        self.fault.get_or_insert(fault);
    }
}
