//! Where the data of a group goes.
//!
//! ```text
//!          ┌ append, read ── a queue's: the lanes of Backend::disks, the sets of Backend::home_writer
//! Group ───┤ sync ────────── the group's: everything acknowledged survives a power cut
//!          └ release ─────── the group's: everything durable stands in the images, and takes no other space
//! ```
//!
//! | backend | append | sync | release |
//! |---|---|---|---|
//! | redo log and images (`redo::backend`) | into the log | of the log | what is durable goes home |
//! | pass-through (`direct`) | into the image | of the images | nothing to do |
//!
//! A store of segments, where append *is* the store, releases what no root needs any more; a snapshot is a number that sync has
//! reached and release has to leave alone.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{BlockError, Disk, DiskIndex, SequenceNumber};

use crate::board::Board;
use crate::changes::Changes;
use crate::{GroupStatus, HomeWriter, Replayed};

/// What [`crate::Group`] asks of where its data goes. How far things have got is on the group's [`Board`],
/// and so is the gate that every lane of a backend keeps to.
pub(crate) trait Backend: Send + Sync {
    /// The disks to serve, in the order of the images. Their lanes append and read: a completed write has its number, is found
    /// by every later read, and survives the process.
    fn disks(&self) -> Vec<Arc<dyn Disk>>;

    /// Appends sets: see [`HomeWriter::write_home`].
    ///
    /// # Errors
    /// The disk is read-only, or opens no lane.
    fn home_writer(&self, disk: DiskIndex) -> Result<Arc<dyn HomeWriter>, BlockError>;

    /// Makes everything durable that had passed the gate, and returns what that covers. `until`: of the [`Board`]'s time.
    ///
    /// # Errors
    /// The group or a disk has failed, or fails with this; the time is over.
    fn sync(&self, until: Option<Duration>) -> Result<SequenceNumber, BlockError>;

    /// Hands everything that had passed the gate to where [`Backend::release`] brings it into the images, and returns what that
    /// covers; in the images it need not be durable.
    ///
    /// # Errors
    /// As [`Backend::sync`].
    fn pass(&self, until: Option<Duration>) -> Result<SequenceNumber, BlockError> {
        self.sync(until)
    }

    /// What changes in the image of a disk; `None` where nothing does.
    fn changes(&self, disk: usize) -> Option<&Changes>;

    /// Whether what is acknowledged becomes durable without anybody asking for it.
    fn syncs_by_itself(&self) -> bool;

    /// Whether a flush of what is acknowledged would be held now.
    fn holds_flushes(&self) -> bool {
        false
    }

    /// Brings about one of so many parts of the space home, of what is durable, and gives it up. `false` where nothing was left.
    ///
    /// # Errors
    /// The group has failed, or fails with this.
    fn release(&self, parts: u64) -> Result<bool, BlockError>;

    /// Ends the work in the background where it is: nothing is lost, and what is not home stays for the next opening.
    fn stop(&self);

    /// Leaves plain images: says on storage that everything is home, and removes what said otherwise. Call with a closed gate,
    /// when nothing is left to release.
    ///
    /// # Errors
    /// Storage failed: the next opening finishes this.
    fn end(&self) -> Result<(), BlockError>;

    /// Adds what only the backend knows.
    fn describe(&self, status: &mut GroupStatus);
}

/// A backend, and what opening it has found.
pub(crate) struct Opened {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) board: Arc<Board>,
    pub(crate) replayed: Option<Replayed>,
}

/// The time for what was being done is over.
pub(crate) fn too_late(doing: &'static str) -> BlockError {
    BlockError::io(doing, std::io::ErrorKind::TimedOut.into())
}
