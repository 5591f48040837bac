//! One consistency group: what `serve` opens, asks and closes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{BlockError, Disk, DiskIndex, SequenceNumber};
use afterimage_store::Image;

use crate::backend::{too_late, Backend, Opened};
use crate::board::Board;
use crate::{direct, redo};
use crate::{
    Closing, Contract, Event, GroupOptions, GroupStatus, HomeWriter, Host, OpenError, Replayed, Sequence,
    Subscription,
};

/// A pause brings this part of the log home at once, and an end with a time limit that: so they notice that it is over.
const PAUSE_PARTS: u64 = 4;
/// So does a hold, which is short.
const HOLD_PARTS: u64 = 64;
const CLOSE_PARTS: u64 = 16;

/// The disks of one guest under one contract. Dropping a group does what a process's death does: nothing is lost, and
/// a redo log stays for the next opening; [`Group::close`] is the orderly end.
pub struct Group {
    backend: Box<dyn Backend>,
    board: Arc<Board>,
    contract: Contract,
    replayed: Option<Replayed>,
    host: Arc<dyn Host>,
}

impl Group {
    /// Opens a group over images that were opened (and locked) before. A live log beside an image is taken over under
    /// `power-window` with the same images, and brought home first otherwise.
    ///
    /// Under `power-window` and `guest-crash` open the images buffered ([`afterimage_store::DirectMode::Off`]):
    /// their data has to reach the page cache, not the device.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was touched then, unless it says otherwise.
    pub fn open<I: Image + 'static>(
        images: Vec<Arc<I>>,
        options: GroupOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let images: Vec<Arc<dyn Image>> = images.into_iter().map(|image| image as Arc<dyn Image>).collect();
        let contract = options.contract;
        let writable = images.iter().any(|image| !image.geometry().read_only);
        let Opened { backend, board, replayed } = match contract {
            // Nothing is ever written to read-only images, so there is nothing to log.
            Contract::PowerWindow { window } if writable => redo::backend::open(images, window, &options)?,
            _ => direct::open(images, &options)?,
        };
        Ok(Arc::new(Self { backend, board, contract, replayed, host: options.host }))
    }

    /// The disks to serve, in the order of the images.
    pub fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.backend.disks()
    }

    /// Whether its host does what is done in the background: see [`Host::is_stepped`].
    pub fn is_stepped(&self) -> bool {
        self.host.is_stepped()
    }

    /// A way to write whole sets of blocks of a disk of [`Group::disks`]; for the layer that retains a guest's journal. It may
    /// be used from any thread; one set of the disk is written at a time (under `power-window` one of the group). Ask before
    /// the process is sandboxed, and drop it before the images are to be unlocked.
    ///
    /// # Errors
    /// The disk is read-only, or there is none of that index, or it opens no lane.
    pub fn home_writer(&self, disk: DiskIndex) -> Result<Arc<dyn HomeWriter>, BlockError> {
        self.backend.home_writer(disk)
    }

    /// The promise in force and its loss bound, in one sentence.
    pub fn promise(&self) -> String {
        self.contract.promise()
    }

    /// A snapshot.
    pub fn status(&self) -> GroupStatus {
        let sequence = &self.board.sequence;
        let mut status = GroupStatus {
            contract: self.contract,
            acknowledged: sequence.acknowledged.get(),
            durable: sequence.durable.get(),
            home: sequence.home.get(),
            oldest_not_durable_age: None,
            oldest_not_durable_age_max: Duration::ZERO,
            held_flushes: 0,
            log_deleted: None,
            throttled: 0,
            log_bytes: 0,
            log_max_bytes: 0,
            log_appended_bytes: 0,
            log_syncs: 0,
            home_written_bytes: 0,
            failure: self.board.health.failure(),
            paused: self.board.gate.is_paused(),
            replayed: self.replayed,
        };
        self.backend.describe(&mut status);
        status
    }

    /// How far it has got, without a lock.
    pub fn sequence(&self) -> &Sequence {
        &self.board.sequence
    }

    /// Whether the window rule would hold a flush of everything that has completed: whoever acknowledges without asking must not now.
    pub fn holds_flushes(&self) -> bool {
        self.backend.holds_flushes()
    }

    /// Makes everything that has completed durable, on all disks (vDrive's *vflush*, § 4.1.1), and returns what is
    /// covered.
    ///
    /// # Errors
    /// The group or a disk has failed, or fails with this.
    pub fn flush(&self) -> Result<SequenceNumber, BlockError> {
        self.backend.sync(None)
    }

    /// Waits until `sequence` is durable; `false` when the time is over. Under `power-window` this forces nothing
    /// (vDrive's *aio-notify*, § 4.1.2): writes become durable within a second, or one window where that is longer, even where nobody
    /// flushes. Under the other contracts nothing happens in the background, so the disks are synced.
    ///
    /// # Errors
    /// The group or a disk has failed, or fails with this.
    pub fn wait_durable(
        &self,
        sequence: SequenceNumber,
        timeout: Option<Duration>,
    ) -> Result<bool, BlockError> {
        if self.backend.syncs_by_itself() {
            return self.board.wait_durable(sequence, timeout.map(|limit| self.board.after(limit)));
        }
        Ok(self.board.sequence.durable.get() >= sequence || self.flush()? >= sequence)
    }

    /// Durability and failure events from now on. `wake` is called after each, from any thread, and must not wait.
    pub fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Subscription {
        self.board.events.subscribe(wake)
    }

    /// Holds new writes back, brings everything before them home and syncs it. When this returns, the image files are
    /// a complete prefix of the guest's history and may be copied. Reads go on, flushes have nothing left to do. On an
    /// error or when the time is over, writes go on as before.
    ///
    /// # Errors
    /// The group or a disk has failed, or fails with this; the time is over.
    pub fn pause(&self, timeout: Option<Duration>) -> Result<SequenceNumber, BlockError> {
        let until = timeout.map(|limit| self.board.after(limit));
        self.pause_until(|| {
            let covers = self.backend.sync(until)?;
            self.bring_home(covers, until, PAUSE_PARTS)
        })
    }

    /// As [`Group::pause`], but what is in the images need not be durable: for the end of a copy, after [`Group::approach`].
    ///
    /// # Errors
    /// As [`Group::pause`].
    pub fn hold(&self, timeout: Duration) -> Result<SequenceNumber, BlockError> {
        let until = Some(self.board.after(timeout));
        self.pause_until(|| {
            let covers = self.backend.pass(until)?;
            self.bring_home(covers, until, HOLD_PARTS)
        })
    }

    /// Brings into the images what has completed until now while writes go on, so that a pause that follows is short.
    ///
    /// # Errors
    /// The group or a disk has failed, or fails with this.
    pub fn approach(&self) -> Result<(), BlockError> {
        let covers = self.backend.pass(None)?;
        self.bring_home(covers, None, PAUSE_PARTS).map(drop)
    }

    /// From here on the parts of each image that change are noted for [`Group::changed`], until [`Group::forget_changes`].
    pub fn note_changes(&self) {
        self.all_changes().for_each(|changes| changes.set(true));
    }

    /// What has changed in the image of a disk since it was noted or last asked about, in bytes: so many ranges at most. Whether there
    /// are more. A change that is under way comes when it has ended.
    pub fn changed(&self, disk: usize, ranges_max: usize) -> (Vec<Range<u64>>, bool) {
        self.backend.changes(disk).map_or((Vec::new(), false), |changes| changes.take(ranges_max))
    }

    /// Nobody asks for changes any more.
    pub fn forget_changes(&self) {
        self.all_changes().for_each(|changes| changes.set(false));
    }

    fn all_changes(&self) -> impl Iterator<Item = &crate::changes::Changes> {
        (0..self.backend.disks().len()).filter_map(|disk| self.backend.changes(disk))
    }

    fn pause_until(
        &self,
        complete: impl FnOnce() -> Result<SequenceNumber, BlockError>,
    ) -> Result<SequenceNumber, BlockError> {
        self.board.pause();
        let paused = complete();
        match &paused {
            // Somebody may have let writes go on meanwhile.
            Ok(sequence) if self.board.gate.is_paused() => {
                self.board.events.publish(&Event::Paused { sequence: sequence.0 });
            }
            Ok(_) => {}
            Err(_) => {
                // Nobody was told of a pause.
                self.board.let_go();
            }
        }
        paused
    }

    /// Until everything up to that is in the images, or nothing is elsewhere.
    fn bring_home(
        &self,
        covers: SequenceNumber,
        until: Option<Duration>,
        parts: u64,
    ) -> Result<SequenceNumber, BlockError> {
        while self.board.sequence.home.get() < covers && self.backend.release(parts)? {
            let late = until.is_some_and(|until| until <= self.board.now());
            if late && self.board.sequence.home.get() < covers {
                return Err(too_late("bringing the redo log home for a pause"));
            }
        }
        Ok(covers)
    }

    /// Lets writes go on after [`Group::pause`]; where there was none, nothing changes and nobody is told.
    pub fn resume(&self) {
        if self.board.let_go() {
            self.board.events.publish(&Event::Resumed);
        }
    }

    /// The orderly end: everything home and synced, the log and the images' marks removed. Stop the frontends first: a
    /// write that comes later fails. After an error the log stays, and the next opening takes it over.
    ///
    /// # Errors
    /// The group or a disk has failed, or fails with this.
    pub fn close(&self) -> Result<(), BlockError> {
        self.close_within(Duration::MAX).map(|_| ())
    }

    /// As [`Group::close`], but brings blocks home for no longer than about `limit`. What is not home then is
    /// durable in the log, which stays: the next opening, or `recover`, goes on.
    ///
    /// # Errors
    /// As [`Group::close`].
    pub fn close_within(&self, limit: Duration) -> Result<Closing, BlockError> {
        self.board.close();
        let sequence = self.backend.sync(None)?;
        let until = self.board.after(limit);
        // In pieces, so that the limit is noticed; without one there is no reason to coalesce less.
        let parts = if limit == Duration::MAX { 1 } else { CLOSE_PARTS };
        while self.backend.release(parts)? {
            let log_bytes = self.status().log_bytes;
            if until <= self.board.now() && log_bytes > 0 {
                self.backend.stop();
                return Ok(Closing::LogKept { log_bytes });
            }
        }
        self.backend.end()?;
        self.board.events.publish(&Event::Closed { sequence: sequence.0 });
        Ok(Closing::Clean)
    }
}
