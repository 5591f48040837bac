//! Putting records into the log.

use std::sync::atomic::Ordering;

use afterimage_block::BlockError;
use afterimage_format::log::{RecordKind, PAGE_BYTES};

use super::area::{page_down, page_up};
use super::batch::{Batch, Stamp, FULL_BYTES, PAYLOAD_BYTES_MAX};
use super::core::{lock, Append, Core};
use super::extents::{Extent, Source};
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
    (area_bytes / 8).clamp(PAGE_BYTES, PAYLOAD_BYTES_MAX as u64) / 512 * 512
}

/// Records of a log with that record area, at most: a discard of one sector takes 64 bytes of the log and some hundred bytes
/// of memory, so the log would be no bound for the memory of its index. Writes are never so small that they meet it.
pub fn records_max(area_bytes: u64) -> usize {
    (area_bytes / 512).max(64) as usize
}

/// The most memory that the records of a log with that record area take, in bytes: each of them its place, twice over
/// while the list grows; two entries of the index, since it may cut another one in two; and for the half of them that goes
/// home at once the same again.
pub fn index_bytes_max(area_bytes: u64) -> u64 {
    // A leaf of a B-tree has at least 5 of 11 entries, and so has every node above it.
    const ENTRY_BYTES: usize = (size_of::<(u64, Extent)>() * 11 + 32) / 5 * 6 / 5;
    const RECORD_BYTES: usize = size_of::<Placed>() + 2 * ENTRY_BYTES;
    records_max(area_bytes) as u64 * (RECORD_BYTES + RECORD_BYTES / 2 + size_of::<Placed>()) as u64
}

impl Core {
    pub(super) fn payload_bytes_max(&self) -> usize {
        payload_bytes_max(self.area.bytes) as usize
    }

    /// A lane appends when it has staged this much.
    pub(super) fn batch_bytes_max(&self) -> usize {
        (self.area.bytes / 8).min(FULL_BYTES as u64) as usize
    }

    /// A lane appends when it has staged so many records.
    pub(super) fn batch_records_max(&self) -> usize {
        records_max(self.area.bytes) / 8
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
        if append.set_waits || !self.has_room(end, batch.entries.len()) {
            return Ok(Appended::Full);
        }
        let first = append.sequence + 1;
        let stamp = self.stamp(&append, disk, first);
        if self.mutated(Mutation::MergeInPlace) {
            self.merge_in_place(disk, batch)?;
        }
        let bytes = batch.seal(head, &stamp);
        self.area.write(head, bytes).map_err(|e| self.fail("writing the redo log".to_owned(), e))?;
        let crossed_half = self.place(&mut append, batch.placed(head, disk, first), end);
        drop(append);
        if crossed_half {
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

    /// Counts what was written from the head up to `end` as appended. Whether that took the log over half of what it holds,
    /// in bytes or in records (or any append does beyond).
    pub(super) fn place(&self, append: &mut Append, placed: impl Iterator<Item = Placed>, end: u64) -> bool {
        let (before, after) = {
            let mut records = lock(&self.records);
            let before = records.len();
            for record in placed {
                self.index_record(&record);
                append.sequence = record.sequence;
                records.push_back(record);
            }
            (before as u64, records.len() as u64)
        };
        let tail = self.tail.load(Ordering::SeqCst);
        let crossed =
            crossed_half(append.head.saturating_sub(tail), end.saturating_sub(tail), self.area.bytes)
                || crossed_half(before, after, records_max(self.area.bytes) as u64);
        self.counters.appended_bytes.fetch_add(end - append.head, Ordering::Relaxed);
        append.head = end;
        self.head.store(end, Ordering::SeqCst);
        self.acknowledged.store(append.sequence, Ordering::SeqCst);
        crossed
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

    /// Whether so many more records may reach up to `end`: whole pages are written, and the tail's page still holds live
    /// records.
    pub(super) fn has_room(&self, end: u64, records: usize) -> bool {
        let mut tail = self.tail.load(Ordering::SeqCst);
        if self.mutated(Mutation::OverrunTail) {
            tail += self.area.bytes / 2;
        }
        page_up(end) + RESERVE_BYTES <= page_down(tail) + self.area.bytes
            && lock(&self.records).len() + records <= records_max(self.area.bytes)
    }

    /// Whether the log is more than half full, in bytes or in records.
    pub(super) fn is_half_full(&self) -> bool {
        self.log_bytes() > self.area.bytes / 2 || lock(&self.records).len() > records_max(self.area.bytes) / 2
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

/// Whether something that grew from `before` to `after` crossed half of what it may be, or, beyond that, a sixteenth: in case
/// that the first call found nothing durable.
fn crossed_half(before: u64, after: u64, max: u64) -> bool {
    let step = max / 16;
    after > max / 2 && (before <= max / 2 || before / step != after / step)
}
