//! The two traits of the data path.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::{Admitted, BlockError, Completion, Operation, Request, Sector, SECTOR_BYTES};

/// What a disk looks like to its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in 512-byte sectors.
    pub sectors: u64,
    /// Logical block size in bytes: requests are multiples of it. 512 or 4096.
    pub logical_block_bytes: u32,
    /// Physical block size in bytes: writes of this size need no read-modify-write.
    pub physical_block_bytes: u32,
    /// Alignment at which discards give space back, in bytes.
    pub discard_granularity_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
}

impl Geometry {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    /// Checks that a range lies on the disk, without overflow.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`].
    pub fn check_range(&self, sector: Sector, sectors: u64) -> Result<(), BlockError> {
        match sector.0.checked_add(sectors) {
            Some(end) if end <= self.sectors => Ok(()),
            _ => Err(BlockError::OutOfRange { sector, sectors, disk_sectors: self.sectors }),
        }
    }
}

/// The first failure of a disk, kept for ever: a failed write or sync is never retried and forgotten.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<OnceLock<Arc<str>>>);

impl Health {
    /// Records a failure. The first one stays; returns whether this was it.
    pub fn fail(&self, reason: impl Into<Arc<str>>) -> bool {
        self.0.set(reason.into()).is_ok()
    }

    /// The first failure, if there was one.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.0.get().cloned()
    }

    /// `Err` with the first failure, for requests that may not go on after it.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&self) -> Result<(), BlockError> {
        match self.0.get() {
            None => Ok(()),
            Some(reason) => Err(BlockError::Failed { reason: Arc::clone(reason) }),
        }
    }

    /// Whether a request of that kind may go on: reads do after a failure.
    ///
    /// # Errors
    /// The first failure.
    pub fn admit(&self, operation: Operation) -> Result<(), BlockError> {
        match operation {
            Operation::Read => Ok(()),
            _ => self.check(),
        }
    }
}

/// Why no request of a guest is in flight on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiesced {
    /// The last running queue was stopped or disabled, or the device was reset; the connection stays.
    Stopped,
    /// The connection is over: the peer closed it, broke the protocol, or took its memory away.
    Disconnected,
}

/// One layer of the data path, shared by all queues of a disk.
pub trait Disk: Send + Sync {
    /// Size, block sizes, read-only.
    fn geometry(&self) -> Geometry;

    /// What GET_ID answers: at most 20 bytes (virtio 1.2 § 5.2.6, VIRTIO_BLK_T_GET_ID).
    fn serial(&self) -> &str;

    /// The state after the first failure.
    fn health(&self) -> &Health;

    /// Opens the way in for one queue. It is driven from one thread at a time.
    ///
    /// # Errors
    /// The disk has failed, or what a lane needs (a ring, a thread) is not to be had.
    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError>;

    /// No request of a guest is in flight on any lane of this disk, and none will come until its queues are started
    /// again: the guest may be dead, or may only look so (paused, suspended, its driver unbound). Every completion has
    /// been posted where there was a guest's memory to post it to.
    ///
    /// Called by the frontend, from the thread that owns the connection, which answers the peer only afterwards: a stop of
    /// a VMM waits for it. Once for all queues of a device, never while one runs: [`Quiesced::Stopped`] when the last
    /// one has stopped, [`Quiesced::Disconnected`] at the end of every connection, also of one that had stopped its queues
    /// before. Not called for what the peer does not notice (another memory table, say), nor when this process itself
    /// stops serving: who orders that knows it.
    ///
    /// A layer that only looks on passes this to the layer below it ([`Front`](crate::Front)); one that acts on it does not.
    fn quiesced(&self, _why: Quiesced) {}
}

/// One queue's way into a disk.
///
/// Every submitted request is answered by exactly one completion, on this lane, also after a failure.
/// Dropping a lane with requests in flight waits until none can touch its buffers any more.
pub trait Lane: Send {
    /// What it admits requests by: its disk's geometry.
    fn geometry(&self) -> Geometry;

    /// Takes a request from outside. Ranges and permissions are checked here, and nowhere below: a bad request completes with an
    /// error.
    fn submit(&mut self, request: Request) {
        match Admitted::new(request, &self.geometry()) {
            Ok(request) => self.take(request),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Takes a request. May complete it at once (the completion waits in [`Lane::reap`]) or hold it back until
    /// [`Lane::dispatch`].
    fn take(&mut self, request: Admitted);

    /// Answers a request that was not taken.
    fn refuse(&mut self, refusal: Completion);

    /// Hands everything that was held back to the layer below, as one batch.
    fn dispatch(&mut self);

    /// Appends what has completed to `completions`, without blocking. Whoever calls a lane again, whatever for, has posted what it handed
    /// out before; whoever is done with it for a while calls this once more.
    fn reap(&mut self, completions: &mut Vec<Completion>);

    /// How many requests were submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Blocks until something may be there to reap, one of `also` is readable, or the time is over.
    /// Spurious returns are allowed. Implies [`Lane::dispatch`].
    ///
    /// # Errors
    /// The system refuses to wait. What is in flight stays so.
    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()>;
}

/// Whether reading from `fd` would find something at once: data, the other side's end, or an error.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// `poll(2)` for reading on all of `fds`: the building block of [`Lane::wait`] for lanes that have no ring.
///
/// # Errors
/// What `poll(2)` says; an interruption by a signal is none.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
