//! One consistency group: what `serve` opens, asks and closes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, Disk, SequenceNumber, Tap};
use afterimage_store::ImageStore;

use crate::direct_group::DirectGroup;
use crate::redo::group::RedoGroup;
use crate::{Closing, Contract, GroupStatus, HomeWriter, OpenError, Subscription};

/// How a group is opened.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The promise.
    pub contract: Contract,
    /// Size of the redo log file in bytes (`power-window` only); at least [`GroupOptions::LOG_MIN_BYTES`].
    pub log_max_bytes: u64,
    /// Where the redo log is; `<first image>.aflog` where `None`.
    pub log_path: Option<PathBuf>,
    /// Who listens to what reaches the images and the log, from the opened log on: what opening itself brings home
    /// from an earlier log is not heard. Nobody, usually.
    pub tap: Option<Arc<dyn Tap>>,
}

impl GroupOptions {
    /// The smallest redo log.
    pub const LOG_MIN_BYTES: u64 = 16 << 20;
    /// A redo log that suits most guests.
    pub const LOG_DEFAULT_BYTES: u64 = 256 << 20;

    /// The usual log beside the first image.
    pub fn new(contract: Contract) -> Self {
        Self { contract, log_max_bytes: Self::LOG_DEFAULT_BYTES, log_path: None, tap: None }
    }
}

/// The disks of one guest under one contract. Dropping a group does what a process's death does: nothing is lost, and
/// a redo log stays for the next opening; [`Group::close`] is the orderly end.
pub struct Group {
    inner: Inner,
    contract: Contract,
}

enum Inner {
    Direct(DirectGroup),
    Redo(RedoGroup),
}

impl Group {
    /// Opens a group over images that were opened (and locked) before. A live log beside an image is taken over under
    /// `power-window` with the same images, and brought home first otherwise.
    ///
    /// Under `power-window` and `guest-crash` open the images buffered ([`afterimage_store::DirectMode::Off`]):
    /// their data has to reach the page cache, not the device.
    pub fn open(images: Vec<Arc<ImageStore>>, options: GroupOptions) -> Result<Arc<Self>, OpenError> {
        let contract = options.contract;
        let writable = images.iter().any(|image| !image.geometry().read_only);
        let inner = match contract {
            // Nothing is ever written to read-only images, so there is nothing to log.
            Contract::PowerWindow { window } if writable => {
                Inner::Redo(RedoGroup::open(images, window, &options)?)
            }
            _ => Inner::Direct(DirectGroup::open(images, &options)?),
        };
        Ok(Arc::new(Self { inner, contract }))
    }

    /// The disks to serve, in the order of the images.
    pub fn disks(&self) -> Vec<Arc<dyn Disk>> {
        match &self.inner {
            Inner::Direct(group) => group.disks(),
            Inner::Redo(group) => group.disks(),
        }
    }

    /// A way to write whole sets of blocks of a disk, by its index in [`Group::disks`]; for the layer that retains a
    /// guest's journal. It may be used from any thread; one set of the disk is written at a time (under `power-window` one
    /// of the group). Ask before the process is sandboxed, and drop it before the images are to be unlocked.
    ///
    /// # Errors
    /// The disk is read-only, or there is none of that index, or it opens no lane.
    pub fn home_writer(&self, disk: usize) -> Result<Arc<dyn HomeWriter>, BlockError> {
        match &self.inner {
            Inner::Direct(group) => group.home_writer(disk),
            Inner::Redo(group) => group.home_writer(disk),
        }
    }

    /// The promise in force and its loss bound, in one sentence.
    pub fn promise(&self) -> String {
        self.contract.promise()
    }

    /// A snapshot.
    pub fn status(&self) -> GroupStatus {
        match &self.inner {
            Inner::Direct(group) => group.status(),
            Inner::Redo(group) => group.status(),
        }
    }

    /// Makes everything that has completed durable, on all disks (vDrive's *vflush*, § 4.1.1), and returns what is
    /// covered.
    pub fn flush(&self) -> Result<SequenceNumber, BlockError> {
        match &self.inner {
            Inner::Direct(group) => group.flush(),
            Inner::Redo(group) => group.flush(),
        }
    }

    /// Waits until `sequence` is durable; `false` when the time is over. Under `power-window` this forces nothing
    /// (vDrive's *aio-notify*, § 4.1.2): writes become durable within a second even where nobody flushes. Under the
    /// other contracts nothing happens in the background, so the disks are synced.
    pub fn wait_durable(
        &self,
        sequence: SequenceNumber,
        timeout: Option<Duration>,
    ) -> Result<bool, BlockError> {
        match &self.inner {
            Inner::Direct(group) => group.wait_durable(sequence),
            Inner::Redo(group) => group.wait_durable(sequence, timeout),
        }
    }

    /// Durability and failure events from now on. `wake` is called after each, from any thread, and must not wait.
    pub fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Subscription {
        match &self.inner {
            Inner::Direct(group) => group.subscribe(wake),
            Inner::Redo(group) => group.subscribe(wake),
        }
    }

    /// Holds new writes back, brings everything before them home and syncs it. When this returns, the image files are
    /// a complete prefix of the guest's history and may be copied. Reads go on, flushes have nothing left to do. On an
    /// error or when the time is over, writes go on as before.
    pub fn pause(&self, timeout: Option<Duration>) -> Result<SequenceNumber, BlockError> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        match &self.inner {
            Inner::Direct(group) => group.pause(deadline),
            Inner::Redo(group) => group.pause(deadline),
        }
    }

    /// Lets writes go on after [`Group::pause`].
    pub fn resume(&self) {
        match &self.inner {
            Inner::Direct(group) => group.resume(),
            Inner::Redo(group) => group.resume(),
        }
    }

    /// The orderly end: everything home and synced, the log and the images' marks removed. Stop the frontends first: a
    /// write that comes later fails. After an error the log stays, and the next opening takes it over.
    pub fn close(&self) -> Result<(), BlockError> {
        self.close_within(Duration::MAX).map(|_| ())
    }

    /// As [`Group::close`], but brings blocks home for no longer than about `limit`. What is not home then is
    /// durable in the log, which stays: the next opening, or `recover`, goes on.
    pub fn close_within(&self, limit: Duration) -> Result<Closing, BlockError> {
        match &self.inner {
            Inner::Direct(group) => group.close().map(|()| Closing::Clean),
            Inner::Redo(group) => group.close_within(limit),
        }
    }
}
