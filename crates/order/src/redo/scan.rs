//! Reading a log: which prefix it holds, and whether what is missing after it may be missing.
//!
//! The bytes are hostile here: nothing panics, and memory stays below what the file's size allows.

use std::io;
use std::sync::Arc;

use afterimage_block::{Medium, SequenceNumber};
use afterimage_format::log::{LogHeader, RecordHeader, RecordKind, PAGE_BYTES, RECORD_ALIGN, RECORD_MAGIC};
use afterimage_format::{payload_hash, PayloadHasher};
use afterimage_store::{read_header, LogReadError};

use super::area::Area;
use super::mutation::{Mistake, Mutation};
use crate::sequence::{LogPosition, LoggedDisk};

/// A complete record's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Logical position of its header.
    pub position: LogPosition,
    /// Its sequence number.
    pub sequence: SequenceNumber,
    /// What it does.
    pub kind: RecordKind,
    /// It belongs to a set that goes on with the next record.
    pub more: bool,
    /// Disk index.
    pub disk: LoggedDisk,
    /// First sector; in an incarnation record the incarnation that begins.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
}

impl Placed {
    /// Logical position of its payload.
    pub fn payload(&self) -> LogPosition {
        self.position + RECORD_ALIGN
    }

    /// Logical position of what follows it.
    pub fn end(&self) -> LogPosition {
        match self.kind {
            RecordKind::Write => self.payload() + self.sectors * 512,
            RecordKind::Discard | RecordKind::Zero => self.payload(),
            // Has its page to itself.
            RecordKind::Incarnation => self.payload().page_up(),
        }
    }
}

/// What a log holds.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The header in force.
    pub header: LogHeader,
    /// The records from the tail on, complete and consecutive, sets whole.
    pub records: Vec<Placed>,
    /// Logical position after the last of them.
    pub end: LogPosition,
    /// The last one's sequence number: the prefix.
    pub sequence: SequenceNumber,
    /// The incarnation in force at the end.
    pub incarnation: u64,
    /// The newest number that some record or the header proves to have been durable.
    pub durable_sequence: SequenceNumber,
    /// Something incomplete follows and is left out.
    pub torn_tail: bool,
}

/// Reads the whole log: a pure function of its bytes.
pub fn scan(log: &Arc<dyn Medium>) -> Result<Scan, LogReadError> {
    scan_with(log, Mistake::default())
}

/// A set of which the end has not been found yet, and what the scan knew before it.
struct OpenSet {
    records: usize,
    end: LogPosition,
    expected: SequenceNumber,
}

pub(crate) fn scan_with(log: &Arc<dyn Medium>, mistake: Mistake) -> Result<Scan, LogReadError> {
    let header = read_header(log.as_ref())?;
    let tail = LogPosition(header.tail_position.get());
    let area = Area { medium: Arc::clone(log), bytes: header.area_bytes.get() };
    let mut scanner = Scanner {
        limit: tail.page_down() + area.bytes,
        window: Window::new(&area),
        header: &header,
        expected: SequenceNumber(header.tail_sequence.get()).next(),
        incarnation: header.tail_incarnation.get(),
        durable: SequenceNumber(header.durable_sequence.get()),
        verify_payloads: !mistake.is(Mutation::SkipPayloadChecksum),
    };
    let mut records: Vec<Placed> = Vec::new();
    let mut end = tail;
    let mut open: Option<OpenSet> = None;
    loop {
        // A sync seals a page and the next record starts on a new one; so does an incarnation after a torn tail. The
        // record on the next page has to be the very next one, so nothing is skipped that way.
        let mut next = scanner.record_at(end)?;
        if next.is_none() && end != end.page_up() {
            next = scanner.record_at(end.page_up())?;
        }
        if open.is_some() && next.is_some_and(|r| r.kind == RecordKind::Incarnation) {
            next = None;
        }
        if let (None, Some(set), true) = (&next, &open, !mistake.is(Mutation::KeepBrokenSet)) {
            // The set is not all there: nothing of it counts, and a process that has found it so has begun its own
            // records behind what was before the set, while the set's first ones may still be there, sound.
            records.truncate(set.records);
            (end, scanner.expected) = (set.end, set.expected);
            open = None;
            if !mistake.is(Mutation::ForgetBehindSet) {
                next = scanner.record_at(end.page_up())?.filter(|r| r.kind == RecordKind::Incarnation);
            }
        }
        let Some(record) = next else { break };
        match record.kind {
            RecordKind::Incarnation => scanner.incarnation = record.sector,
            _ if record.more => {
                open.get_or_insert(OpenSet { records: records.len(), end, expected: record.sequence });
                scanner.expected = record.sequence.next();
            }
            _ => {
                open = None;
                scanner.expected = record.sequence.next();
            }
        }
        end = record.end();
        records.push(record);
    }
    let torn_tail = scanner.check_rest(end)?;
    let (expected, incarnation, durable) = (scanner.expected, scanner.incarnation, scanner.durable);
    if durable >= expected {
        return Err(LogReadError::Corrupt(format!(
            "record {} is damaged or missing, and everything up to {} had been durable",
            expected.0, durable.0
        )));
    }
    Ok(Scan {
        header,
        records,
        end,
        sequence: SequenceNumber(expected.0 - 1),
        incarnation,
        durable_sequence: durable,
        torn_tail,
    })
}

struct Scanner<'a> {
    header: &'a LogHeader,
    window: Window<'a>,
    /// No record ends after this position.
    limit: LogPosition,
    expected: SequenceNumber,
    incarnation: u64,
    durable: SequenceNumber,
    verify_payloads: bool,
}

impl Scanner<'_> {
    /// The record at a position, where it is complete and the next one in the history.
    fn record_at(&mut self, position: LogPosition) -> io::Result<Option<Placed>> {
        if position + RECORD_ALIGN > self.limit {
            return Ok(None);
        }
        let Some(found) = RecordHeader::parse(&self.window.header_at(position)?) else { return Ok(None) };
        if found.group_tag.get() != self.header.group_tag() {
            return Ok(None);
        }
        let (Some(kind), Some(payload)) = (found.kind(), found.payload_bytes()) else { return Ok(None) };
        if payload > self.limit - (position + RECORD_ALIGN) || found.more() && !self.header.has_sets() {
            return Ok(None);
        }
        let mut placed = Placed {
            position,
            sequence: SequenceNumber(found.sequence.get()),
            kind,
            more: found.more(),
            disk: LoggedDisk(found.disk.get()),
            sector: found.sector.get(),
            sectors: found.sectors.get(),
        };
        if kind == RecordKind::Incarnation {
            let follows =
                found.sector.get() == self.incarnation && found.sequence.get() == self.expected.0 - 1;
            if !follows || position.0 % PAGE_BYTES != 0 || found.more() {
                return Ok(None);
            }
            placed.sector = found.incarnation.get();
            placed.sectors = 0;
        } else {
            let images = self.header.images();
            let fits = images.get(placed.disk.index()).is_some_and(|image| {
                let end = placed.sector.checked_add(placed.sectors);
                end.is_some_and(|end| end <= image.size_bytes.get() / 512)
            });
            if found.incarnation.get() != self.incarnation || placed.sequence != self.expected || !fits {
                return Ok(None);
            }
            if self.verify_payloads && !self.payload_is(position, payload, found.payload_hash.get())? {
                return Ok(None);
            }
        }
        self.durable = self.durable.max(SequenceNumber(found.durable_sequence.get()));
        Ok(Some(placed))
    }

    fn payload_is(&mut self, position: LogPosition, len: u64, expected: u32) -> io::Result<bool> {
        let mut at = position + RECORD_ALIGN;
        let end = at + len;
        if len == 0 {
            return Ok(expected == 0);
        }
        // Most payloads lie in one window.
        let bytes = self.window.bytes_at(at, end)?;
        if bytes.len() as u64 == len {
            return Ok(payload_hash(bytes) == expected);
        }
        let mut hasher = PayloadHasher::default();
        while at < end {
            let bytes = self.window.bytes_at(at, end)?;
            hasher.update(bytes);
            at = at + bytes.len() as u64;
        }
        Ok(hasher.finish() == expected)
    }

    /// Looks through the rest of the area for records that prove more to have been durable than was found. A number
    /// that was once durable is never given again, so it does not matter which incarnation says so; and records of
    /// an earlier lap or a lost incarnation cannot say so. Returns whether something incomplete follows.
    fn check_rest(&mut self, end: LogPosition) -> io::Result<bool> {
        let mut torn = false;
        let mut at = end;
        while at + RECORD_ALIGN <= self.limit {
            let zeroes = self.window.area.zeroes_from(at) / RECORD_ALIGN * RECORD_ALIGN;
            if zeroes > 0 {
                at = at + zeroes;
                continue;
            }
            let bytes = self.window.bytes_at(at, self.limit)?;
            let whole = bytes.len() / RECORD_ALIGN as usize * RECORD_ALIGN as usize;
            for candidate in bytes[..whole].chunks_exact(RECORD_ALIGN as usize) {
                if candidate[..4] != RECORD_MAGIC.to_le_bytes() {
                    continue;
                }
                let Some(found) = RecordHeader::parse(candidate) else { continue };
                if found.group_tag.get() != self.header.group_tag() {
                    continue;
                }
                torn |=
                    found.incarnation.get() == self.incarnation && found.sequence.get() >= self.expected.0;
                self.durable = self.durable.max(SequenceNumber(found.durable_sequence.get()));
            }
            at = at + whole as u64;
        }
        Ok(torn)
    }
}

/// Reads the area forward in pieces.
struct Window<'a> {
    area: &'a Area,
    start: LogPosition,
    bytes: Vec<u8>,
}

/// A multiple of [`RECORD_ALIGN`]. Small enough to stay in a core's cache between the copy and the checksum.
const WINDOW_BYTES: u64 = 64 << 10;

impl<'a> Window<'a> {
    fn new(area: &'a Area) -> Self {
        Self { area, start: LogPosition(0), bytes: Vec::new() }
    }

    /// Some bytes from `at` on, at least one and none at or after `end`.
    fn bytes_at(&mut self, at: LogPosition, end: LogPosition) -> io::Result<&[u8]> {
        if at < self.start || at >= self.start + self.bytes.len() as u64 {
            // Never a whole lap, and never beyond what the area holds.
            let len = WINDOW_BYTES.min(self.area.bytes).min(self.area.bytes - at.0 % self.area.bytes);
            self.bytes.resize(len as usize, 0);
            self.start = at;
            self.area.read(at, &mut self.bytes)?;
        }
        let from = (at - self.start) as usize;
        let to = self.bytes.len().min((end - self.start) as usize);
        Ok(&self.bytes[from..to])
    }

    fn header_at(&mut self, at: LogPosition) -> io::Result<[u8; RECORD_ALIGN as usize]> {
        let mut header = [0; RECORD_ALIGN as usize];
        let found = self.bytes_at(at, at + RECORD_ALIGN)?;
        // Windows start at multiples of the record alignment and hold multiples of it.
        header[..found.len()].copy_from_slice(found);
        Ok(header)
    }
}
