//! The shell: a [`Disk`] whose writes are commands and whose reads are answers, and the thread that flushes.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use afterimage_block::{Bell, BlockError, Disk, Geometry, Health, Lane, Quiesced, SECTOR_BYTES};
use afterimage_format::control_disk::{CONTROL_SERIAL, SLOTS};
use afterimage_order::{Clock, Subscription, SystemClock};

use crate::commands::Commands;
use crate::durability::Durability;
use crate::lane::ControlLane;
use crate::shared::{Promise, Shared, OWED, SLOT_SECTORS};

/// See the module.
pub struct ControlDisk {
    shared: Arc<Shared>,
    health: Health,
    thread: Option<JoinHandle<()>>,
    /// Kept: dropped, no bell would ring.
    _events: Option<Subscription>,
}

impl std::fmt::Debug for ControlDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlDisk").field("commands", self.commands()).finish_non_exhaustive()
    }
}

impl ControlDisk {
    /// A control disk of a group. Starts the thread that flushes.
    ///
    /// # Errors
    /// No thread is left.
    pub fn new(group: Arc<dyn Durability>, promise: Promise) -> io::Result<Self> {
        let ways_in = group.retained_disks().into_iter().map(|disk| disk as Arc<dyn Disk>).collect();
        Self::heard(group, promise, ways_in, Arc::new(SystemClock))
    }

    /// As [`ControlDisk::new`], for somebody who listens to the disks: what is handed over goes through `ways_in`, one for each of
    /// [`Durability::retained_disks`], in that order. A way in leads to its disk, and to nothing else. The time is that of `clock`.
    ///
    /// # Errors
    /// As [`ControlDisk::new`].
    pub fn heard(
        group: Arc<dyn Durability>,
        promise: Promise,
        ways_in: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(group, promise, ways_in, clock));
        let woken = Arc::clone(&shared.bells);
        let events = shared.group.subscribe(Box::new(move || woken.ring()));
        let flusher = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("control-disk".to_owned());
        let thread = Some(thread.spawn(move || flusher.flush_for_ever())?);
        Ok(Self { shared, health: Health::default(), thread, _events: events })
    }

    /// A lane, as itself.
    ///
    /// # Errors
    /// As [`Disk::open_lane`].
    pub fn lane(&self) -> Result<ControlLane, BlockError> {
        let bell =
            Bell::new().map_err(|error| BlockError::io("opening a lane of the control disk", error))?;
        let bell = Arc::new(bell);
        self.shared.bells.add(&bell);
        ControlLane::new(self.geometry(), Arc::clone(&self.shared), bell)
    }

    /// Why a flush now would not cover all that a guest may count on, in one sentence; `None` where it would.
    pub fn owes(&self) -> Option<&'static str> {
        self.shared.owes_until().map(|_| OWED)
    }

    /// What was asked so far.
    pub fn commands(&self) -> &Commands {
        &self.shared.commands
    }
}

impl Drop for ControlDisk {
    fn drop(&mut self) {
        self.shared.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the control disk's thread panicked");
        }
    }
}

impl Disk for ControlDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: u64::from(SLOTS) * SLOT_SECTORS,
            logical_block_bytes: SECTOR_BYTES as u32,
            physical_block_bytes: SECTOR_BYTES as u32,
            discard_granularity_bytes: SECTOR_BYTES as u32,
            read_only: false,
        }
    }

    fn serial(&self) -> &str {
        CONTROL_SERIAL
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(self.lane()?))
    }

    fn quiesced(&self, why: Quiesced) {
        if why == Quiesced::Disconnected {
            self.shared.paid(|_| true);
        }
    }
}
