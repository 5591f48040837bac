//! The redo log: records in, records read, their space given up.
//!
//! The append lock is held across the write of the log, so that the log never has a hole before a completed record; the
//! bookkeeping ([`Space`]) never across I/O. Readers take neither, only a shard of the index, and hold it while they read the log: who
//! appends to the same place waits for that, with the append lock and without the bookkeeping.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use afterimage_block::{BlockError, Medium, SequenceNumber};
use afterimage_format::log::{RecordKind, PAGE_BYTES, RECORD_ALIGN};
use parking_lot::{Mutex, MutexGuard};
use zerocopy::IntoBytes as _;

use super::area::Area;
use super::batch::{Batch, Stamp, FULL_BYTES, PAYLOAD_BYTES_MAX};
use super::extents::{Extent, Source};
use super::index::Index;
use super::mutation::{Mistake, Mutation};
use super::prefix::{Placed, Scan};
use super::space::{records_max, Space, Who};
use crate::board::Board;
use crate::home::Joined;
use crate::sequence::{LogPosition, LoggedDisk};

/// What became of records that were to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// In the log.
    In {
        /// The first one's number.
        first: SequenceNumber,
        /// It is time to bring some home.
        crowded: bool,
    },
    /// The log has no room until some have gone home, or a set that waits for room comes first.
    Full,
    /// The group is paused.
    Paused,
}

/// The largest payload of one record in a log with that record area, in bytes: a larger write becomes several records,
/// with a number each, and a crash may leave the first of them only.
pub fn payload_bytes_max(area_bytes: u64) -> u64 {
    (area_bytes / 8).clamp(PAGE_BYTES, PAYLOAD_BYTES_MAX as u64) / 512 * 512
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

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Whose records are appended: one process of many that may work on a log.
pub(super) type Incarnation = u64;

/// The log of one group, and which of its versions are the newest.
pub struct RedoLog {
    pub(super) area: Area,
    group_tag: u64,
    /// By disk.
    newest: Vec<Index>,
    /// Who holds it appends.
    append: Mutex<Incarnation>,
    space: Mutex<Space>,
    board: Arc<Board>,
    pub(super) appended_bytes: AtomicU64,
    /// How often a lane or a set found the log full.
    pub(super) throttled: AtomicU64,
    mistake: Mistake,
}

impl RedoLog {
    /// A log that was read, over disks of so many sectors. Nothing of it is in the index yet.
    pub(super) fn new(
        medium: Arc<dyn Medium>,
        disk_sectors: impl Iterator<Item = u64>,
        scan: &Scan,
        incarnation: Incarnation,
        board: Arc<Board>,
        mistake: Mistake,
    ) -> Self {
        Self {
            area: Area { medium, bytes: scan.header.area_bytes.get() },
            group_tag: scan.header.group_tag(),
            newest: disk_sectors.map(Index::new).collect(),
            append: Mutex::new(incarnation),
            space: Mutex::new(Space::new(scan, mistake)),
            board,
            appended_bytes: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            mistake,
        }
    }

    /// Size of the record area in bytes.
    pub fn area_bytes(&self) -> u64 {
        self.area.bytes
    }

    /// Bytes of the record area in use.
    pub fn bytes_used(&self) -> u64 {
        self.space().bytes()
    }

    /// How often a lane or a set found the log full.
    pub fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    pub(super) fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock()
    }

    /// The log is new, and only so many bytes of its area were written out.
    pub fn written_out(&self, bytes: u64) {
        self.space().written_out(bytes);
    }

    /// Writes a piece of a new log out, ahead of the head, where it is time to. Appends go on meanwhile.
    ///
    /// # Errors
    /// The group has failed, or fails with this.
    pub fn write_ahead(&self) -> Result<(), BlockError> {
        self.board.health.check()?;
        let claim = {
            // Nothing that was admitted is still being written then.
            let _append = self.append.lock();
            self.space().claim()
        };
        let Some(claim) = claim else { return Ok(()) };
        // In small writes: an append waits for the file system's lock of one of them at most.
        let mut at = claim.start;
        while at < claim.end {
            let len = (claim.end - at).min(ZEROES.len() as u64);
            self.area
                .write(at, &ZEROES[..len as usize])
                .map_err(|e| self.board.fail("writing the redo log", e))?;
            at = at + len;
        }
        self.space().claim_is_written();
        self.board.note_change();
        Ok(())
    }

    pub(super) fn newest(&self, disk: LoggedDisk) -> &Index {
        &self.newest[disk.index()]
    }

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
    pub(super) fn append(&self, disk: LoggedDisk, batch: &mut Batch) -> Result<Appended, BlockError> {
        let incarnation = self.append.lock();
        let _whole = self.board.whole();
        if self.is_paused()? {
            return Ok(Appended::Paused);
        }
        let admitted = self.space().admit(batch.len() as u64, batch.entries.len(), Who::Lane);
        let Some(head) = admitted else { return Ok(Appended::Full) };
        let first = self.next();
        if self.mistake.is(Mutation::MergeInPlace) {
            self.merge_in_place(disk, batch)?;
        }
        self.write(*incarnation, disk, first, head, batch)?;
        let crowded = self.place(batch.placed(head, disk, first), head + batch.len() as u64);
        Ok(Appended::In { first, crowded })
    }

    /// Puts a set into the log and the index. `who`: whether lanes wait where it has no room, until it is in.
    pub(super) fn append_set(
        &self,
        disk: LoggedDisk,
        set: &Joined<'_>,
        batch: &mut Batch,
        who: Who,
    ) -> Result<Appended, BlockError> {
        let incarnation = self.append.lock();
        let _whole = self.board.whole();
        if self.is_paused()? {
            return Ok(Appended::Paused);
        }
        let first = self.next();
        if set.runs().is_empty() {
            return Ok(Appended::In { first, crowded: false });
        }
        let record_bytes = set.bytes() + set.runs().len() as u64 * RECORD_ALIGN;
        let head = {
            let mut space = self.space();
            let waited = space.set_waits();
            let Some(head) = space.admit(record_bytes, set.runs().len(), who) else {
                self.throttled.fetch_add(u64::from(space.set_waits() && !waited), Ordering::Relaxed);
                return Ok(Appended::Full);
            };
            head
        };
        batch.clear();
        let mut placed: Vec<Placed> = Vec::with_capacity(set.runs().len());
        let mut position = head;
        for (i, run) in set.runs().iter().enumerate() {
            let last = i + 1 == set.runs().len();
            let more = !last && !self.mistake.is(Mutation::SetUnmarked);
            batch.push_parts(run.sector, run.bytes, set.parts(run), more);
            // In pieces, so that a large set needs no second copy of itself.
            if last || batch.len() >= self.batch_bytes_max() {
                let sequence = SequenceNumber(first.0 + placed.len() as u64);
                let written = self.write(*incarnation, disk, sequence, position, batch);
                placed.extend(batch.placed(position, disk, sequence));
                position = position + batch.len() as u64;
                batch.clear();
                written?;
            }
        }
        let crowded = self.place(placed.iter().copied(), position);
        self.set_is_over();
        Ok(Appended::In { first, crowded })
    }

    /// No set waits for room any more.
    pub(super) fn set_is_over(&self) {
        let waited = self.space().set_is_over();
        if waited {
            self.board.signals.wake_parked();
        }
    }

    /// Whether nothing may be appended now. To be asked by who holds the append lock.
    fn is_paused(&self) -> Result<bool, BlockError> {
        self.board.health.check()?;
        self.board.gate.check()?;
        Ok(self.board.gate.is_paused())
    }

    fn next(&self) -> SequenceNumber {
        self.board.sequence.acknowledged.get().next()
    }

    fn write(
        &self,
        incarnation: Incarnation,
        disk: LoggedDisk,
        sequence: SequenceNumber,
        at: LogPosition,
        batch: &mut Batch,
    ) -> Result<(), BlockError> {
        let durable_sequence = self.board.sequence.durable.get();
        let group_tag = self.group_tag;
        let bytes = batch.seal(at, &Stamp { disk, incarnation, sequence, durable_sequence, group_tag });
        self.area.write(at, bytes).map_err(|e| self.board.fail("writing the redo log", e))
    }

    /// Makes what was written from the head up to `end` the newest that readers see, and acknowledges it.
    fn place(&self, placed: impl Iterator<Item = Placed> + Clone, end: LogPosition) -> bool {
        let mut newest = self.board.sequence.acknowledged.get();
        // Before the bookkeeping is locked, which the end of a sync needs with every flush behind it: a reader may have a shard for as
        // long as the log takes to be read. Nobody seals or brings home what is not in the bookkeeping yet.
        for record in placed.clone() {
            self.index(&record);
            newest = record.sequence;
        }
        let mut space = self.space();
        let begin = space.head();
        let crowded = space.place(placed, end);
        self.appended_bytes.fetch_add(end - begin, Ordering::Relaxed);
        self.board.sequence.acknowledged.raise(newest);
        crowded
    }

    /// Makes a record's content the newest that readers see.
    pub(super) fn index(&self, placed: &Placed) {
        if let Some(source) = placed.source() {
            self.newest(placed.disk).insert(placed.sector, placed.sectors, source, placed.sequence);
        }
    }

    /// What was found in the log on opening can be read.
    pub(super) fn index_all(&self, scan: &Scan) {
        scan.records.iter().for_each(|record| self.index(record));
    }

    /// From here on the records are of the incarnation that the scan ended with.
    pub(super) fn take_incarnation(&self, scan: &Scan) {
        *self.append.lock() = scan.incarnation;
    }

    /// Writes the record that says that from here on the records are this process's, alone on its page.
    pub(super) fn write_incarnation(&self, scan: &Scan) -> Result<(), BlockError> {
        let incarnation = self.append.lock();
        let position = self.space().head();
        let (record, placed) = scan.begin(*incarnation, self.board.sequence.durable.get(), position);
        let mut page = [0; PAGE_BYTES as usize];
        page[..RECORD_ALIGN as usize].copy_from_slice(record.as_bytes());
        self.area.write(position, &page).map_err(|e| self.board.fail("writing the redo log", e))?;
        self.space().place(std::iter::once(placed), placed.end());
        Ok(())
    }

    /// What was found is on storage from here on: after a process's death it may have been in the page cache only, and after a failed sync
    /// it is. Before anything is appended, for that goes where the header in the cache gives space up, and the one on storage may need
    /// what is there.
    pub(super) fn settle(&self) -> Result<(), BlockError> {
        let medium = &self.area.medium;
        let settled = if self.mistake.is(Mutation::TrustCache) { medium.sync() } else { medium.settle() };
        settled.map_err(|e| self.board.fail("making sure that storage holds the redo log", e))
    }

    /// Fixes what the next sync covers: everything appended so far; `None` where all of it is durable.
    pub(super) fn seal(&self) -> Option<(SequenceNumber, LogPosition)> {
        let _append = self.append.lock();
        let mut space = self.space();
        let position = space.seal();
        (space.durable() != position).then(|| (self.board.sequence.acknowledged.get(), position))
    }

    /// The newest number, and where its record ends. Whatever found the gate open before it was closed is counted.
    pub(super) fn appended(&self) -> (SequenceNumber, LogPosition) {
        let _append = self.append.lock();
        (self.board.sequence.acknowledged.get(), self.space().head())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.area.medium.sync()
    }

    /// Readers find the versions of these records, up to a number, at home from now on.
    pub(super) fn forget(&self, records: &[Placed], up_to: SequenceNumber) {
        for record in records.iter().filter(|r| r.kind != RecordKind::Incarnation) {
            self.newest(record.disk).remove_up_to(record.sector, record.sectors, up_to);
        }
    }

    fn merge_in_place(&self, disk: LoggedDisk, batch: &mut Batch) -> Result<(), BlockError> {
        let (zero, none) = (LogPosition::default(), SequenceNumber::default());
        let stamp = Stamp { disk, incarnation: 0, sequence: none, durable_sequence: none, group_tag: 0 };
        let entries: Vec<_> = batch.entries.iter().map(|e| (e.kind, e.sector, e.sectors, e.offset)).collect();
        let bytes = batch.seal(zero, &stamp).to_vec();
        for (kind, sector, sectors, offset) in entries {
            for piece in self.newest(disk).pieces(sector, sectors) {
                let map = self.newest(disk).read(&piece);
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
