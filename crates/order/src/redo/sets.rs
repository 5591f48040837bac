//! Sets of home writes: records that a crash leaves together or not at all.
//!
//! ```text
//! runs ─► header announces sets (once a log, synced) ─► append lock: record+ … record+ record ─► index ─► done
//!             a full log: sleeps until a checkpoint has made room, and lanes let the set pass ◄┘
//! ```
//!
//! Each record but the last carries [`KIND_MORE`](afterimage_format::log::KIND_MORE). The append lock is held from the
//! first to the last: no other lane's record and no sync falls in between, so a durable point never lies within a set.
//!
//! | cut or death | leaves |
//! |---|---|
//! | before the last record is complete | nothing of the set: recovery ends the prefix before its first record |
//! | after it | there or not, as a whole, like any record |
//! | on the way home | the whole set in the log: a checkpoint takes whole sets |

use std::sync::atomic::Ordering;

use afterimage_block::{BlockError, Sector, SequenceNumber, SECTOR_BYTES};
use afterimage_format::log::{FEATURE_SETS, PAGE_BYTES, RECORD_ALIGN};

use super::append::{Appended, RESERVE_BYTES};
use super::batch::Batch;
use super::core::{lock, Core};
use super::mutation::Mutation;
use super::scan::Placed;
use crate::home::{HomeError, Joined};

/// The largest set in a log with that record area, in bytes of its blocks, however they lie: it fits whenever no more
/// than half of the area is in use, and a checkpoint gets it there.
pub fn set_bytes_max(area_bytes: u64) -> u64 {
    // The tail's page and the head's are lost in part.
    let records = (area_bytes / 2).saturating_sub(2 * PAGE_BYTES + RESERVE_BYTES);
    // Every sector a record of its own. Of those the log takes as many in one half: see `records_max`.
    records / (RECORD_ALIGN + SECTOR_BYTES) * SECTOR_BYTES
}

impl Core {
    /// See [`set_bytes_max`].
    pub fn set_bytes_max(&self) -> u64 {
        set_bytes_max(self.area.bytes)
    }

    /// Writes a set, and waits for room and for the end of a pause; see [`crate::HomeWriter::write_home`]. Returns its
    /// last number. Somebody else has to bring records home meanwhile.
    pub fn write_set(&self, disk: usize, blocks: &[(Sector, &[u8])]) -> Result<SequenceNumber, HomeError> {
        let set = self.prepare(disk, blocks)?;
        // One set at a time: a small one does not overtake a large one for ever.
        let mut batch = lock(&self.set_batch);
        let written = self.append_or_wait(disk, &set, &mut batch);
        if written.is_err() {
            lock(&self.append).set_waits = false;
            self.signals.wake_parked();
        }
        Ok(written?)
    }

    /// As [`Core::write_set`], but gives `None` where it would have to wait.
    pub fn try_write_set(
        &self,
        disk: usize,
        blocks: &[(Sector, &[u8])],
    ) -> Result<Option<SequenceNumber>, HomeError> {
        let set = self.prepare(disk, blocks)?;
        let mut batch = lock(&self.set_batch);
        self.announce_sets()?;
        match self.append_set(disk, &set, &mut batch, false)? {
            Appended::From(first) => Ok(Some(last(first, &set))),
            Appended::Full | Appended::Paused => Ok(None),
        }
    }

    fn prepare<'a>(&self, disk: usize, blocks: &[(Sector, &'a [u8])]) -> Result<Joined<'a>, HomeError> {
        let set = Joined::new(blocks, self.payload_bytes_max())?;
        set.check_range(self.homes[disk].as_ref())?;
        let (bytes, max_bytes) = (set.bytes(), self.set_bytes_max());
        if bytes > max_bytes {
            return Err(HomeError::TooLarge { bytes, max_bytes });
        }
        Ok(set)
    }

    fn append_or_wait(
        &self,
        disk: usize,
        set: &Joined<'_>,
        batch: &mut Batch,
    ) -> Result<SequenceNumber, BlockError> {
        self.announce_sets()?;
        loop {
            // Looked at before the attempt: what changes after it ends the wait.
            let seen = lock(&self.progress).changes;
            match self.append_set(disk, set, batch, true)? {
                Appended::From(first) => return Ok(last(first, set)),
                Appended::Full => self.request_checkpoint(),
                Appended::Paused => {}
            }
            if !self.wait_until(None, |progress| progress.changes != seen)? {
                return Err(BlockError::Failed { reason: "the group is closing".into() });
            }
        }
    }

    /// Says in the header, durably, that records may form sets, before there is one: a program that does not know them
    /// refuses the log.
    fn announce_sets(&self) -> Result<(), BlockError> {
        if self.sets_announced.load(Ordering::SeqCst) || self.mutated(Mutation::SetUnannounced) {
            return Ok(());
        }
        let mut checkpointing = lock(&self.checkpointing);
        self.health.check()?;
        if !checkpointing.header.has_sets() {
            let mut next = checkpointing.header;
            next.generation = (next.generation.get() + 1).into();
            next.features_incompat = (next.features_incompat.get() | FEATURE_SETS).into();
            self.write_header(&next)?;
            checkpointing.header = next;
        }
        self.sets_announced.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Puts a set into the log and the index. `wait`: where it is full, later appends of lanes find it full, too, until
    /// the set is in.
    fn append_set(
        &self,
        disk: usize,
        set: &Joined<'_>,
        batch: &mut Batch,
        wait: bool,
    ) -> Result<Appended, BlockError> {
        let mut append = lock(&self.append);
        if let Some(no) = self.closed_or_paused(&append)? {
            return Ok(no);
        }
        let first = append.sequence + 1;
        if set.runs().is_empty() {
            return Ok(Appended::From(first));
        }
        let head = append.head;
        let record_bytes = set.bytes() + set.runs().len() as u64 * RECORD_ALIGN;
        if !self.has_room(head + record_bytes, set.runs().len()) {
            if wait && !append.set_waits {
                append.set_waits = true;
                self.counters.throttled.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(Appended::Full);
        }
        batch.clear();
        let mut placed: Vec<Placed> = Vec::with_capacity(set.runs().len());
        let mut position = head;
        for (i, run) in set.runs().iter().enumerate() {
            let last = i + 1 == set.runs().len();
            let more = !last && !self.mutated(Mutation::SetUnmarked);
            batch.push_parts(run.sector, run.bytes, set.parts(run), more);
            // In pieces, so that a large set needs no second copy of itself.
            if last || batch.len() >= self.batch_bytes_max() {
                let sequence = first + placed.len() as u64;
                let stamp = self.stamp(&append, disk, sequence);
                let bytes = batch.seal(position, &stamp);
                let written = self.area.write(position, bytes);
                written.map_err(|e| {
                    batch.clear();
                    self.fail("writing the redo log".to_owned(), e)
                })?;
                placed.extend(batch.placed(position, disk, sequence));
                position += batch.len() as u64;
                batch.clear();
            }
        }
        let crossed_half = self.place(&mut append, placed.iter().copied(), position);
        let waited = std::mem::take(&mut append.set_waits);
        drop(append);
        if waited {
            self.signals.wake_parked();
        }
        if crossed_half {
            self.request_checkpoint();
        }
        Ok(Appended::From(first))
    }
}

fn last(first: u64, set: &Joined<'_>) -> SequenceNumber {
    SequenceNumber(first + set.runs().len() as u64 - 1)
}
