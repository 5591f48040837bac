//! Records that one lane has staged: copied out of guest memory, hashed, and not yet in the log.

use afterimage_block::{Buffers, SequenceNumber, Token};
use afterimage_format::log::{RecordHeader, RecordKind, KIND_MORE, PAGE_BYTES, RECORD_ALIGN, RECORD_MAGIC};
use afterimage_format::payload_hash;
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::prefix::Placed;
use crate::sequence::{LogPosition, LoggedDisk};

/// A batch is appended when it holds this much, in bytes.
pub(crate) const FULL_BYTES: usize = 1 << 20;
/// The largest payload of a record, in bytes.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// The most memory of one batch, in bytes: a record is added as long as it is not full, and the smallest is all header.
pub(crate) const BYTES_MAX: usize = FULL_BYTES
    + PAYLOAD_BYTES_MAX
    + GRAIN_BYTES
    + (FULL_BYTES / RECORD_ALIGN as usize + 1) * size_of::<Entry>();
/// What is kept of it for the next batch: a guest whose requests are of the usual sizes never waits for memory to be
/// faulted in.
const KEPT_BYTES: usize = 2 << 20;
/// It grows by so much.
const GRAIN_BYTES: usize = 64 << 10;

/// What is still missing of a record's header is known under the append lock only.
pub(crate) struct Entry {
    /// Offset of the record in the batch.
    pub(crate) offset: usize,
    pub(crate) kind: RecordKind,
    pub(crate) sector: u64,
    pub(crate) sectors: u64,
    payload_hash: u32,
    /// Counts only together with the next one.
    more: bool,
    /// The request that completes with this record; `None` for the first parts of a large one.
    pub(crate) answers: Option<Answer>,
}

/// A request that waits for a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) token: Token,
    /// Completes as if flushed.
    pub(crate) flushed: bool,
}

/// See the module. The memory is kept, up to a bound, so that it is faulted in once.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    used: usize,
    pub(crate) entries: Vec<Entry>,
}

/// What the append lock's holder fills in.
pub(crate) struct Stamp {
    pub(crate) disk: LoggedDisk,
    pub(crate) incarnation: u64,
    /// Of the first record.
    pub(crate) sequence: SequenceNumber,
    pub(crate) durable_sequence: SequenceNumber,
    pub(crate) group_tag: u64,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the records, without the rest of the last page.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.entries.clear();
        if self.bytes.len() > KEPT_BYTES {
            self.bytes.truncate(KEPT_BYTES);
            self.bytes.shrink_to_fit();
        }
    }

    /// Adds a record. The payload is copied before it is hashed: a guest may go on writing to it, and what
    /// counts is what the copy holds.
    pub(crate) fn push(
        &mut self,
        kind: RecordKind,
        sector: u64,
        sectors: u64,
        payload: &Buffers,
        range: std::ops::Range<usize>,
        answers: Option<Answer>,
    ) {
        let (offset, target) = self.grow(range.len());
        let mut hash = 0;
        if !target.is_empty() {
            payload.copy_to(range.start, target);
            hash = payload_hash(target);
        }
        self.entries.push(Entry { offset, kind, sector, sectors, payload_hash: hash, more: false, answers });
    }

    /// Adds a write of `len` bytes in parts. `more`: it counts only together with the next record.
    pub(crate) fn push_parts<'a>(
        &mut self,
        sector: u64,
        len: usize,
        parts: impl Iterator<Item = &'a [u8]>,
        more: bool,
    ) {
        let (offset, target) = self.grow(len);
        let mut at = 0;
        for part in parts {
            target[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let payload_hash = payload_hash(target);
        let (kind, sectors) = (RecordKind::Write, len as u64 / 512);
        self.entries.push(Entry { offset, kind, sector, sectors, payload_hash, more, answers: None });
    }

    /// Room for a record: its offset, and where its payload goes.
    fn grow(&mut self, payload_len: usize) -> (usize, &mut [u8]) {
        let offset = self.used;
        let start = offset + RECORD_ALIGN as usize;
        let end = start + payload_len;
        // Room for the rest of the last page, too.
        let room = end + PAGE_BYTES as usize;
        if self.bytes.len() < room {
            // Twice as much at a time while it is small, and no more than is needed when it is large.
            let grown =
                if room < FULL_BYTES { room.next_power_of_two() } else { room.next_multiple_of(GRAIN_BYTES) };
            self.bytes.reserve_exact(grown - self.bytes.len());
            self.bytes.resize(grown, 0);
        }
        self.used = end;
        (offset, &mut self.bytes[start..end])
    }

    /// Where the records are in a log that has the batch at `position`.
    pub(crate) fn placed(
        &self,
        position: LogPosition,
        disk: LoggedDisk,
        first: SequenceNumber,
    ) -> impl Iterator<Item = Placed> + Clone + '_ {
        self.entries.iter().zip(first.0..).map(move |(entry, sequence)| Placed {
            position: position + entry.offset as u64,
            sequence: SequenceNumber(sequence),
            kind: entry.kind,
            more: entry.more,
            disk,
            sector: entry.sector,
            sectors: entry.sectors,
        })
    }

    /// Fills the headers in and returns the bytes to write at `position`: the records, and zeroes up to the page's end,
    /// so that no later write of a part of that page has to read it first.
    pub(crate) fn seal(&mut self, position: LogPosition, stamp: &Stamp) -> &[u8] {
        for (i, entry) in self.entries.iter().enumerate() {
            let mut header = RecordHeader::new_zeroed();
            header.magic = RECORD_MAGIC.into();
            header.payload_hash = entry.payload_hash.into();
            header.disk = stamp.disk.0.into();
            header.kind = (entry.kind.code() | if entry.more { KIND_MORE } else { 0 }).into();
            header.incarnation = stamp.incarnation.into();
            header.sequence = (stamp.sequence.0 + i as u64).into();
            header.sector = entry.sector.into();
            header.sectors = entry.sectors.into();
            header.durable_sequence = stamp.durable_sequence.0.into();
            header.group_tag = stamp.group_tag.into();
            header.seal();
            self.bytes[entry.offset..entry.offset + RECORD_ALIGN as usize].copy_from_slice(header.as_bytes());
        }
        let end = position + self.used as u64;
        let padded = self.used + (end.page_up() - end) as usize;
        self.bytes[self.used..padded].fill(0);
        &self.bytes[..padded]
    }
}
