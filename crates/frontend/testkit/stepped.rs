//! A guest's memory and queues without a VMM, threads or sockets: for simulations, which step them.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Disk, Lane};
use afterimage_seldom::Lines;

use crate::config::Features;
use crate::device::go_on;
use crate::inflight::{region_bytes, Inflight, Region as InflightRegion};
use crate::memory::{GuestAddress, GuestMemory, Mapping, Region, UserAddress, Window};
use crate::notify::Call;
use crate::queue::{CallSlot, Ended, Queue, Run};
use crate::request::Shape;
use crate::ring::{Ring, RingAddresses};
use crate::QueueStats;
use parking_lot::Mutex;

/// What outlives a daemon of its guest: the memory, from address 0 on, and the in-flight region.
pub struct Guest {
    memory: Arc<GuestMemory>,
    bytes: Window,
    inflight: Window,
    region: InflightRegion,
    call: CallSlot,
}

impl Guest {
    /// # Panics
    /// The machine has no memory or no io_uring.
    pub fn new(bytes: usize, queues: u16, queue_size: u16) -> Self {
        let mapping = Arc::new(Mapping::anonymous(bytes).expect("memory"));
        let tracked = region_bytes(queues, queue_size);
        let inflight = Arc::new(Mapping::anonymous(tracked).expect("memory"));
        let region = Region {
            guest: GuestAddress(0),
            user: UserAddress(0),
            len: bytes as u64,
            mapping: Arc::clone(&mapping),
        };
        Self {
            memory: Arc::new(GuestMemory::default().with_region(region).expect("one region")),
            bytes: Window::new(&mapping, 0, bytes, 1).expect("all of it"),
            inflight: Window::new(&inflight, 0, tracked, 1).expect("all of it"),
            region: InflightRegion::new(inflight, queues, queue_size).expect("as long as it has to be"),
            call: Arc::new(Mutex::new(Call::new().expect("io_uring"))),
        }
    }

    /// The memory of another guest: zeroes.
    pub fn reset(&self) {
        for window in [&self.bytes, &self.inflight] {
            window.write(0, &vec![0; window.len()]);
        }
    }

    /// Stores bytes.
    pub fn write(&self, address: usize, bytes: &[u8]) {
        self.bytes.write(address, bytes);
    }

    /// Reads bytes.
    pub fn read<const N: usize>(&self, address: usize) -> [u8; N] {
        self.bytes.read(address)
    }

    /// Reads an index of a ring.
    pub fn index(&self, address: usize) -> u16 {
        self.bytes.load_u16(address, Ordering::Acquire)
    }
}

/// Where a queue's parts are in its guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number.
    pub index: u16,
    /// How many descriptors it has.
    pub size: u16,
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// What a queue stands on.
pub(crate) struct Setup {
    pub index: u16,
    pub ring: Ring,
    pub base: u16,
    pub memory: Arc<GuestMemory>,
    pub inflight: Option<Inflight>,
    pub call: CallSlot,
    pub features: Features,
    pub flushed: bool,
}

/// One virtqueue that is served by whoever steps it, on a lane and with counters that are lent to it or its own.
pub struct Stepped<L = Box<dyn Lane>, S = Arc<QueueStats>>(Queue<L, S>);

impl<L: DerefMut<Target: Lane>, S: Deref<Target = QueueStats>> Stepped<L, S> {
    /// Begins to serve a queue, or goes on after another daemon's death. `flushed`: the guest has no write cache.
    ///
    /// # Errors
    /// What the region says is in flight contradicts the ring.
    ///
    /// # Panics
    /// The place lies outside the memory.
    pub fn start(
        guest: &Guest,
        place: Place,
        flushed: bool,
        disk: &dyn Disk,
        lane: L,
        stats: S,
    ) -> Result<Self, String> {
        let addresses = RingAddresses {
            descriptors: UserAddress(place.descriptors),
            available: UserAddress(place.available),
            used: UserAddress(place.used),
        };
        let ring = Ring::new(&guest.memory, &addresses, place.size, false).expect("inside the memory");
        let inflight = guest.region.queue(place.index, place.size);
        let geometry = disk.geometry();
        let setup = Setup {
            index: place.index,
            ring,
            base: 0,
            memory: Arc::clone(&guest.memory),
            inflight,
            call: Arc::clone(&guest.call),
            features: Features::offered(&geometry),
            flushed,
        };
        Self::of(setup, disk, lane, stats)
    }

    /// The same, of a queue that a guest has set up.
    pub(crate) fn of(setup: Setup, disk: &dyn Disk, lane: L, stats: S) -> Result<Self, String> {
        let Setup { index, mut ring, base, memory, inflight, call, features, flushed } = setup;
        let resubmit = go_on(&mut ring, inflight.as_ref(), base).map_err(|e| e.to_string())?;
        let run = Run {
            name: format!("queue {index}"),
            ring,
            memory,
            inflight,
            resubmit,
            kick: None,
            call,
            shape: Shape::new(disk.geometry(), features, disk.serial()),
            flushed: Arc::new(AtomicBool::new(flushed)),
            spin: Duration::ZERO,
            lines: Arc::new(Lines::new("a queue that is stepped")),
            over: None,
            owed: None,
        };
        let mut queue = Queue::new(run, lane, stats);
        queue.begin_run().map_err(why)?;
        Ok(Self(queue))
    }

    /// What the driver is told from now on when it asks for the disk's serial number.
    pub fn set_serial(&mut self, serial: &str) {
        let shape = self.0.shape();
        *shape = Shape::new(shape.geometry, shape.features, serial);
    }

    /// What the queue's thread does from one sleep to the next: all there is to do, until it waits for a kick or a completion.
    ///
    /// # Errors
    /// The queue broke.
    pub fn run(&mut self) -> Result<(), String> {
        self.0.woken();
        self.0.reap().map_err(why)?;
        while self.0.turn().map_err(why)? || !self.0.may_sleep().map_err(why)? {}
        Ok(())
    }

    /// What the queue's thread does in one turn behind a sleep: reaps and answers, fetches, submits, reaps and answers. Whether there was
    /// anything to do.
    ///
    /// # Errors
    /// The queue broke.
    pub fn turn(&mut self) -> Result<bool, String> {
        let reaped = self.0.reap().map_err(why)?;
        Ok(self.0.turn().map_err(why)? || reaped)
    }

    /// Takes nothing more, and answers what is in flight.
    ///
    /// # Errors
    /// The queue broke.
    pub fn quiesce(&mut self) -> Result<(), String> {
        match self.0.quiesce() {
            Ended::Stopped => Ok(()),
            ended => Err(why(ended)),
        }
    }
}

fn why(ended: Ended) -> String {
    format!("{ended:?}")
}
