//! Records that one lane has staged: copied out of guest memory, checksummed, and not yet in the log.

use afterimage_block::{Buffers, Token};
use afterimage_format::checksum;
use afterimage_format::log::{RecordHeader, RecordKind, PAGE_BYTES, RECORD_ALIGN, RECORD_MAGIC};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// What is still missing of a record's header is known under the append lock only.
pub(crate) struct Entry {
    /// Offset of the record in the batch.
    pub(crate) offset: usize,
    pub(crate) kind: RecordKind,
    pub(crate) sector: u64,
    pub(crate) sectors: u64,
    payload_crc: u32,
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

/// See the module. The memory is kept, so that it is faulted in once.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    used: usize,
    pub(crate) entries: Vec<Entry>,
}

/// What the append lock's holder fills in.
pub(crate) struct Stamp {
    pub(crate) disk: u16,
    pub(crate) incarnation: u64,
    /// Of the first record.
    pub(crate) sequence: u64,
    pub(crate) durable_sequence: u64,
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
    }

    /// Adds a record. The payload is copied before it is checksummed: a guest may go on writing to it, and what
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
        let offset = self.used;
        let start = offset + RECORD_ALIGN as usize;
        let end = start + range.len();
        // Room for the rest of the last page, too.
        let room = end + PAGE_BYTES as usize;
        if self.bytes.len() < room {
            self.bytes.resize(room.next_power_of_two(), 0);
        }
        let mut payload_crc = 0;
        if !range.is_empty() {
            payload.copy_to(range.start, &mut self.bytes[start..end]);
            payload_crc = checksum(&self.bytes[start..end]);
        }
        self.used = end;
        self.entries.push(Entry { offset, kind, sector, sectors, payload_crc, answers });
    }

    /// Fills the headers in and returns the bytes to write at `position`: the records, and zeroes up to the page's end,
    /// so that no later write of a part of that page has to read it first.
    pub(crate) fn seal(&mut self, position: u64, stamp: &Stamp) -> &[u8] {
        for (i, entry) in self.entries.iter().enumerate() {
            let mut header = RecordHeader::new_zeroed();
            header.magic = RECORD_MAGIC.into();
            header.payload_crc = entry.payload_crc.into();
            header.disk = stamp.disk.into();
            header.kind = entry.kind.code().into();
            header.incarnation = stamp.incarnation.into();
            header.sequence = (stamp.sequence + i as u64).into();
            header.sector = entry.sector.into();
            header.sectors = entry.sectors.into();
            header.durable_sequence = stamp.durable_sequence.into();
            header.group_tag = stamp.group_tag.into();
            header.seal();
            self.bytes[entry.offset..entry.offset + RECORD_ALIGN as usize].copy_from_slice(header.as_bytes());
        }
        let end = position + self.used as u64;
        let padded = self.used + (end.next_multiple_of(PAGE_BYTES) - end) as usize;
        self.bytes[self.used..padded].fill(0);
        &self.bytes[..padded]
    }
}
