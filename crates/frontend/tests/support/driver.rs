//! A driver without a guest: the `virtio-driver` crate on a vhost-user socket, with shared memory for the data.
#![allow(dead_code)]
// The driver's request functions take raw pointers into the shared mapping.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use afterimage_block::wait_readable;
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};
use vm_memory::{FileOffset, MmapRegion};

/// A connected device with its queues and `slots` data buffers of `slot_bytes` each per queue.
pub struct Driver {
    pub transport: Box<VirtioBlkTransport>,
    pub queues: Vec<DriverQueue>,
}

/// One queue with its part of the data memory.
pub struct DriverQueue {
    queue: VirtioBlkQueue<'static, usize>,
    notifier: Box<dyn QueueNotifier>,
    completed: std::sync::Arc<virtio_driver::EventFd>,
    // The mapping stays until the queue is gone.
    memory: std::sync::Arc<MmapRegion>,
    first_byte: usize,
    slot_bytes: usize,
}

// SAFETY: the queue is used from one thread at a time; its raw pointers lead into `memory`.
unsafe impl Send for DriverQueue {}

/// What is asked for one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

pub fn features() -> u64 {
    (VirtioFeatureFlags::VERSION_1
        | VirtioFeatureFlags::RING_INDIRECT_DESC
        | VirtioFeatureFlags::RING_EVENT_IDX)
        .bits()
        | (VirtioBlkFeatureFlags::FLUSH
            | VirtioBlkFeatureFlags::MQ
            | VirtioBlkFeatureFlags::DISCARD
            | VirtioBlkFeatureFlags::WRITE_ZEROES
            | VirtioBlkFeatureFlags::BLK_SIZE)
            .bits()
}

impl Driver {
    pub fn connect(socket: &Path, queues: usize, queue_size: u16, slots: usize, slot_bytes: usize) -> Driver {
        let path = socket.to_str().expect("a UTF-8 path");
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(VhostUser::new(path, features()).expect("connect to the backend"));
        let file: File =
            rustix::fs::memfd_create("data", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd").into();
        let len = queues * slots * slot_bytes;
        file.set_len(len as u64).expect("size the memfd");
        let region = MmapRegion::from_file(FileOffset::new(file.try_clone().expect("dup"), 0), len)
            .expect("map the memfd");
        let memory = std::sync::Arc::new(region);
        let rings = VirtioBlkQueue::setup_queues(&mut *transport, queues, queue_size).expect("queues");
        transport
            .map_mem_region(memory.as_ptr() as usize, len, file.as_raw_fd(), 0)
            .expect("share the data memory");
        let queues = rings
            .into_iter()
            .enumerate()
            .map(|(index, mut queue)| {
                // Off at first.
                queue.set_used_notif_enabled(true);
                DriverQueue {
                    queue,
                    notifier: transport.get_submission_notifier(index),
                    completed: transport.get_completion_fd(index),
                    memory: std::sync::Arc::clone(&memory),
                    first_byte: index * slots * slot_bytes,
                    slot_bytes,
                }
            })
            .collect();
        Driver { transport, queues }
    }
}

impl DriverQueue {
    fn at(&self, slot: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.first_byte + slot * self.slot_bytes)
    }

    /// Copies into a slot's buffer.
    pub fn fill(&mut self, slot: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.slot_bytes);
        // SAFETY: inside the mapping; the device reads it only while a request of this slot is in flight.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(slot), bytes.len()) };
    }

    /// Copies out of a slot's buffer.
    pub fn take(&self, slot: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(self.at(slot), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Enqueues a request whose context is its slot.
    pub fn ask(&mut self, ask: Ask, slot: usize, offset: u64, len: usize) {
        let at = self.at(slot);
        // SAFETY: the slot's memory is mapped and nobody else uses it while the request is in flight.
        let result = unsafe {
            match ask {
                Ask::Read => self.queue.read_raw(offset, at, len, slot),
                Ask::Write => self.queue.write_raw(offset, at, len, slot),
                Ask::Flush => self.queue.flush(slot),
                Ask::Discard => self.queue.discard(offset, len as u64, slot),
                Ask::WriteZeroes => self.queue.write_zeroes(offset, len as u64, false, slot),
            }
        };
        result.expect("room in the queue");
    }

    /// Notifies the device if it wants to be.
    pub fn kick(&mut self) {
        if self.queue.avail_notif_needed() {
            self.notifier.notify().expect("kick");
        }
    }

    /// Waits for at least one completion; (slot, negative errno or 0).
    pub fn wait(&mut self) -> Vec<(usize, i32)> {
        loop {
            let done: Vec<_> = self.queue.completions().map(|c| (c.context, c.ret)).collect();
            if !done.is_empty() {
                return done;
            }
            // Some backends make this descriptor non-blocking, so look before reading.
            wait_readable(&[self.completed.as_fd()], None).expect("poll");
            let _ = self.completed.read();
        }
    }

    /// One request from start to end.
    pub fn once(&mut self, ask: Ask, slot: usize, offset: u64, len: usize) -> i32 {
        self.ask(ask, slot, offset, len);
        self.kick();
        let done = self.wait();
        assert_eq!((done.len(), done[0].0), (1, slot));
        done[0].1
    }
}
