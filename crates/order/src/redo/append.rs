//! Putting records into the log.

use std::sync::atomic::Ordering;

use afterimage_block::BlockError;
use afterimage_format::log::{RecordKind, PAGE_BYTES};

use super::area::{page_down, page_up};
use super::batch::{Batch, Stamp};
use super::core::{lock, Append, Core};
use super::extents::Source;
use super::mutation::Mutation;
use super::scan::Placed;

/// Always left free: the page of the incarnation record that the next process writes.
pub(super) const RESERVE_BYTES: u64 = PAGE_BYTES;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// In the log, numbered from this sequence number on.
    From(u64),
    /// The log has no room until a checkpoint has made some, or a set that waits for room comes first.
    Full,
    /// The group is paused.
    Paused,
}

/// The largest payload of one record in a log with that record area, in bytes: a larger write becomes several records,
/// with a number each, and a crash may leave the first of them only.
pub fn payload_bytes_max(area_bytes: u64) -> u64 {
    (area_bytes / 8).clamp(PAGE_BYTES, 4 << 20) / 512 * 512
}

impl Core {
    pub(super) fn payload_bytes_max(&self) -> usize {
        payload_bytes_max(self.area.bytes) as usize
    }

    /// A lane appends when it has staged this much.
    pub(super) fn batch_bytes_max(&self) -> usize {
        (self.area.bytes / 8).min(1 << 20) as usize
    }

    /// Numbers a batch's records and puts them into the log and the index. When this returns, they are in the page
    /// cache and every later read finds them.
    pub(super) fn append(&self, disk: usize, batch: &mut Batch) -> Result<Appended, BlockError> {
        let mut append = lock(&self.append);
        if let Some(no) = self.closed_or_paused(&append)? {
            return Ok(no);
        }
        let head = append.head;
        let end = head + batch.len() as u64;
        if append.set_waits || !self.has_room(end) {
            return Ok(Appended::Full);
        }
        let first = append.sequence + 1;
        let stamp = self.stamp(&append, disk, first);
        if self.mutated(Mutation::MergeInPlace) {
            self.merge_in_place(disk, batch)?;
        }
        let bytes = batch.seal(head, &stamp);
        self.area.write(head, bytes).map_err(|e| self.fail("writing the redo log".to_owned(), e))?;
        self.place(&mut append, batch.placed(head, disk, first), end);
        drop(append);
        if self.crossed_half(head, end) {
            self.request_checkpoint();
        }
        Ok(Appended::From(first))
    }

    /// Whether nothing may be appended now, or ever.
    pub(super) fn closed_or_paused(&self, append: &Append) -> Result<Option<Appended>, BlockError> {
        self.health.check()?;
        if append.closed {
            return Err(BlockError::Failed { reason: "the group is closed".into() });
        }
        Ok(append.paused.then_some(Appended::Paused))
    }

    pub(super) fn stamp(&self, append: &Append, disk: usize, sequence: u64) -> Stamp {
        Stamp {
            disk: disk as u16,
            incarnation: append.incarnation,
            sequence,
            durable_sequence: self.durable.load(Ordering::SeqCst),
            group_tag: self.group_tag,
        }
    }

    /// Counts what was written from the head up to `end` as appended.
    pub(super) fn place(&self, append: &mut Append, placed: impl Iterator<Item = Placed>, end: u64) {
        {
            let mut records = lock(&self.records);
            for record in placed {
                self.index_record(&record);
                append.sequence = record.sequence;
                records.push_back(record);
            }
        }
        self.counters.appended_bytes.fetch_add(end - append.head, Ordering::Relaxed);
        append.head = end;
        self.head.store(end, Ordering::SeqCst);
        self.acknowledged.store(append.sequence, Ordering::SeqCst);
    }

    /// Makes a record's content the newest that readers see.
    pub(super) fn index_record(&self, placed: &Placed) {
        let source = match placed.kind {
            RecordKind::Write => Source::Log(placed.payload()),
            RecordKind::Discard => Source::Zero { unmap: true },
            RecordKind::Zero => Source::Zero { unmap: false },
            RecordKind::Incarnation => return,
        };
        let index = &self.index[usize::from(placed.disk)];
        index.insert(placed.sector, placed.sectors, source, placed.sequence);
        if placed.kind == RecordKind::Discard && self.mutated(Mutation::DiscardEarly) {
            let home = &self.homes[usize::from(placed.disk)];
            let _ = home.zero_at(placed.sector * 512, placed.sectors * 512, true);
        }
    }

    /// Whether records may reach up to `end`: whole pages are written, and the tail's page still holds live records.
    pub(super) fn has_room(&self, end: u64) -> bool {
        let mut tail = self.tail.load(Ordering::SeqCst);
        if self.mutated(Mutation::OverrunTail) {
            tail += self.area.bytes / 2;
        }
        page_up(end) + RESERVE_BYTES <= page_down(tail) + self.area.bytes
    }

    /// Whether an append took the log over half of what it holds (or any append does beyond).
    pub(super) fn crossed_half(&self, before: u64, after: u64) -> bool {
        let tail = self.tail.load(Ordering::SeqCst);
        let half = tail + self.area.bytes / 2;
        // Once more at every sixteenth, in case that the first call found nothing durable.
        let step = self.area.bytes / 16;
        after > half && (before <= half || before / step != after / step)
    }

    fn merge_in_place(&self, disk: usize, batch: &mut Batch) -> Result<(), BlockError> {
        let stamp = Stamp { disk: 0, incarnation: 0, sequence: 0, durable_sequence: 0, group_tag: 0 };
        let entries: Vec<_> = batch.entries.iter().map(|e| (e.kind, e.sector, e.sectors, e.offset)).collect();
        let bytes = batch.seal(0, &stamp).to_vec();
        for (kind, sector, sectors, offset) in entries {
            for piece in self.index[disk].pieces(sector, sectors) {
                let map = self.index[disk].read(&piece);
                let same = map.overlapping(piece.start, piece.sectors).next();
                if let (RecordKind::Write, Some((start, extent))) = (kind, same) {
                    if let Source::Log(position) = extent.source {
                        let from = offset + 64 + (start - sector) as usize * 512;
                        let part = &bytes[from..from + extent.sectors as usize * 512];
                        self.area.write(position, part).map_err(|e| BlockError::io("merging", e))?;
                    }
                }
            }
        }
        Ok(())
    }
}
