//! Sets of home writes: records that a crash leaves together or not at all.
//!
//! ```text
//! runs ─► header announces sets (once a log, synced) ─► append lock: record+ … record+ record ─► index ─► done
//!             a full log: sleeps until some has gone home, and lanes let the set pass ◄┘
//! ```
//!
//! Each record but the last carries [`KIND_MORE`](afterimage_format::log::KIND_MORE). The append lock is held from the
//! first to the last: no other lane's record and no sync falls in between, so a durable point never lies within a set.
//!
//! | cut or death | leaves |
//! |---|---|
//! | before the last record is complete | nothing of the set: recovery ends the prefix before its first record |
//! | after it | there or not, as a whole, like any record |
//! | on the way home | the whole set in the log: whole sets go |

use std::sync::Arc;

use afterimage_block::{BlockError, Sector, SequenceNumber, SECTOR_BYTES};
use afterimage_format::log::{PAGE_BYTES, RECORD_ALIGN};

use super::batch::Batch;
use super::engine::Redo;
use super::log::Appended;
use super::space::{Who, RESERVE_BYTES};
use crate::home::{HomeError, HomeWriter, Joined};
use crate::sequence::LoggedDisk;

/// The largest set in a log with that record area, in bytes of its blocks, however they lie: it fits whenever no more
/// than half of the area is in use, and going home gets it there.
pub fn set_bytes_max(area_bytes: u64) -> u64 {
    // The tail's page and the head's are lost in part.
    let records = (area_bytes / 2).saturating_sub(2 * PAGE_BYTES + RESERVE_BYTES);
    // Every sector a record of its own. Of those the log takes as many in one half: see `records_max`.
    records / (RECORD_ALIGN + SECTOR_BYTES) * SECTOR_BYTES
}

impl Redo {
    /// See [`set_bytes_max`].
    pub fn set_bytes_max(&self) -> u64 {
        set_bytes_max(self.log.area_bytes())
    }

    /// Writes a set, and waits for room and for the end of a pause; see [`crate::HomeWriter::write_home`]. Returns its
    /// last number. Somebody else has to bring records home meanwhile.
    ///
    /// # Errors
    /// As [`crate::HomeWriter::write_home`].
    pub fn write_set(
        &self,
        disk: LoggedDisk,
        blocks: &[(Sector, &[u8])],
    ) -> Result<SequenceNumber, HomeError> {
        let set = self.prepare(disk, blocks)?;
        let mut batch = self.set_batch.lock();
        let written = self.append_or_wait(disk, &set, &mut batch);
        if written.is_err() {
            self.log.set_is_over();
        }
        Ok(written?)
    }

    /// As [`Redo::write_set`], but gives `None` where it would have to wait.
    ///
    /// # Errors
    /// As [`crate::HomeWriter::write_home`].
    pub fn try_write_set(
        &self,
        disk: LoggedDisk,
        blocks: &[(Sector, &[u8])],
    ) -> Result<Option<SequenceNumber>, HomeError> {
        let set = self.prepare(disk, blocks)?;
        let mut batch = self.set_batch.lock();
        self.going_home.announce_sets()?;
        match self.append_set(disk, &set, &mut batch, Who::SetAtOnce)? {
            Appended::In { first, .. } => Ok(Some(last(first, &set))),
            Appended::Full | Appended::Paused => Ok(None),
        }
    }

    fn prepare<'a>(&self, disk: LoggedDisk, blocks: &[(Sector, &'a [u8])]) -> Result<Joined<'a>, HomeError> {
        let set = Joined::new(blocks, self.log.payload_bytes_max())?;
        set.check_range(self.going_home.home(disk))?;
        let (bytes, max_bytes) = (set.bytes(), self.set_bytes_max());
        if bytes > max_bytes {
            return Err(HomeError::TooLarge { bytes, max_bytes });
        }
        Ok(set)
    }

    fn append_or_wait(
        &self,
        disk: LoggedDisk,
        set: &Joined<'_>,
        batch: &mut Batch,
    ) -> Result<SequenceNumber, BlockError> {
        self.going_home.announce_sets()?;
        loop {
            // Looked at before the attempt: what changes after it ends the wait.
            let seen = self.board.changes();
            match self.append_set(disk, set, batch, Who::Set)? {
                Appended::In { first, .. } => return Ok(last(first, set)),
                Appended::Full => self.going_home.request(),
                Appended::Paused => {}
            }
            if !self.board.wait_until(None, || self.board.changes() != seen)? {
                return Err(BlockError::Failed { reason: "the group is closing".into() });
            }
        }
    }

    fn append_set(
        &self,
        disk: LoggedDisk,
        set: &Joined<'_>,
        batch: &mut Batch,
        who: Who,
    ) -> Result<Appended, BlockError> {
        let appended = self.log.append_set(disk, set, batch, who)?;
        if let Appended::In { crowded: true, .. } = appended {
            self.going_home.request();
        }
        Ok(appended)
    }
}

/// The way of a disk's sets into the log.
pub(super) struct RedoHome {
    pub(super) redo: Arc<Redo>,
    pub(super) disk: LoggedDisk,
}

impl HomeWriter for RedoHome {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        self.redo.write_set(self.disk, blocks).map(|_| ())
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(self.redo.set_bytes_max())
    }
}

fn last(first: SequenceNumber, set: &Joined<'_>) -> SequenceNumber {
    SequenceNumber(first.0 + set.runs().len() as u64 - 1)
}
