//! The records that were written to the redo log of a recording's storage layer.

use afterimage_format::log::{RecordHeader, RecordKind, RECORDS_OFFSET, RECORD_ALIGN};
use afterimage_trace::{EventKind, Op, Recording, TargetId};

use crate::state::SECTOR_BYTES;

/// A record that was appended.
pub(crate) struct Logged {
    pub disk: usize,
    pub offset: u64,
    pub len: u64,
    /// Its payload; `None`: zeroes.
    pub data: Option<Vec<u8>>,
    pub sequence: u64,
    /// It counts only together with the next one.
    pub more: bool,
    /// The event of the log's write with which it is complete.
    pub event: usize,
}

/// Every record that was written to the log, in that order.
pub(crate) fn records(recording: &Recording, log: TargetId) -> Vec<Logged> {
    let mut found: Vec<Logged> = Vec::new();
    // Bytes of the last record's payload that go on at the begin of the area.
    let mut rest = 0;
    for (event, entry) in recording.events.iter().enumerate() {
        let EventKind::Submit { target, op: Op::Write { offset, data, .. }, .. } = &entry.kind else {
            continue;
        };
        if *target != log || *offset < RECORDS_OFFSET {
            continue;
        }
        let mut at = 0;
        if *offset == RECORDS_OFFSET && rest > 0 {
            at = data.len().min(rest);
            rest -= at;
            if let Some(last) = found.last_mut() {
                last.data.iter_mut().for_each(|payload| payload.extend_from_slice(&data[..at]));
                last.event = event;
            }
        }
        while let Some(header) = data.get(at..).and_then(RecordHeader::parse) {
            let payload = header.payload_bytes().unwrap_or(0) as usize;
            let start = at + RECORD_ALIGN as usize;
            at = start + payload;
            let kind = header.kind();
            if let Some(RecordKind::Write | RecordKind::Discard | RecordKind::Zero) = kind {
                let here = &data[start.min(data.len())..at.min(data.len())];
                rest = payload - here.len();
                found.push(Logged {
                    disk: usize::from(header.disk.get()),
                    offset: header.sector.get() * SECTOR_BYTES as u64,
                    len: header.sectors.get() * SECTOR_BYTES as u64,
                    data: (kind == Some(RecordKind::Write)).then(|| here.to_vec()),
                    sequence: header.sequence.get(),
                    more: header.more(),
                    event,
                });
            }
        }
    }
    found
}
