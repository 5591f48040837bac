//! CloudPhysics' own traces: binary records of a virtual machine's SCSI commands, little-endian, in one of two versions.
//!
//! | bytes | version 1 | version 2 |
//! |---|---|---|
//! | 0 | sequence number (4) | command (2), version (2) |
//! | 4 | length in bytes (4) | sequence number (4) |
//! | 8 | segments (4) | length in bytes (4) |
//! | 12 | command (2), version (2) | segments (4) |
//! | 16 | block of 512 bytes (8) | the same |
//! | 24 | microseconds (8) | the same |
//! | 32 | | response time (8) |
//!
//! The upper byte of the version is 1 or 2. Layout: `traceReader/include/vscsi.h` of libCacheSim, whose authors had the traces from
//! CloudPhysics. Commands other than reads and writes are passed over.

use std::io::{self, Write};

use super::parser::{Parser, Reason};
use super::{Kind, Request};

/// Bytes of a record of either version.
const RECORDS: [usize; 2] = [32, 40];
/// Records that are looked at to find out the version.
const LOOKED_AT: usize = 64;

fn u16_at(record: &[u8], at: usize) -> u16 {
    record.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from(u16_at(record, at)) | u32::from(u16_at(record, at + 2)) << 16
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from(u32_at(record, at)) | u64::from(u32_at(record, at + 4)) << 32
}

/// READ and WRITE of 6, 10, 12 and 16 bytes, and WRITE AND VERIFY (SBC-4).
fn kind(command: u16) -> Option<Kind> {
    match command {
        0x08 | 0x28 | 0x88 | 0xa8 => Some(Kind::Read),
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae => Some(Kind::Write),
        _ => None,
    }
}

/// Where a record of this size has its command; the version follows.
fn command_at(record_bytes: usize) -> usize {
    if record_bytes == RECORDS[0] {
        12
    } else {
        0
    }
}

fn is_record(record: &[u8]) -> bool {
    let version = u16_at(record, command_at(record.len()) + 2) >> 8;
    RECORDS.iter().position(|bytes| *bytes == record.len()).is_some_and(|at| usize::from(version) == at + 1)
}

/// The size of the records that a trace begins with, if it begins with any.
pub fn record_bytes(head: &[u8]) -> Option<usize> {
    RECORDS.into_iter().find(|bytes| {
        let records = || head.chunks_exact(*bytes).take(LOOKED_AT);
        records().next().is_some()
            && records().all(is_record)
            && records().any(|record| kind(u16_at(record, command_at(*bytes))).is_some())
    })
}

pub fn record(parser: &mut Parser, record: &[u8]) -> Result<Option<Request>, Reason> {
    if !is_record(record) {
        return Err(Reason::Shape);
    }
    let length_at = if record.len() == RECORDS[0] { 4 } else { 8 };
    let Some(kind) = kind(u16_at(record, command_at(record.len()))) else { return Ok(None) };
    let time_ns = u64_at(record, 24).checked_mul(1000).ok_or(Reason::NotANumber("time"))?;
    let bytes = u64::from(u32_at(record, length_at));
    parser.request(Some(time_ns), b"", kind, u64_at(record, 16).checked_mul(512), Some(bytes))
}

/// Writes a record of version 2.
///
/// # Errors
/// The output cannot be written.
pub fn write(out: &mut impl Write, r: &Request, time_ns: u64, sequence: u64) -> io::Result<()> {
    let command: u16 = if r.kind == Kind::Read { 0x28 } else { 0x2a };
    let block = r.offset / 512;
    let bytes = (r.offset % 512 + r.bytes) as u32;
    out.write_all(&command.to_le_bytes())?;
    out.write_all(&0x0200_u16.to_le_bytes())?;
    out.write_all(&(sequence as u32).to_le_bytes())?;
    out.write_all(&bytes.to_le_bytes())?;
    out.write_all(&1_u32.to_le_bytes())?;
    out.write_all(&block.to_le_bytes())?;
    out.write_all(&(time_ns / 1000).to_le_bytes())?;
    out.write_all(&[0; 8])
}
