//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`; 100 ns since 1601, bytes.

use super::fields::{comma, number};
use super::parser::{Parser, Reason};
use super::{Kind, Request};

pub fn line(parser: &mut Parser, mut rest: &[u8]) -> Result<Option<Request>, Reason> {
    let stamp = number(comma(&mut rest).ok_or(Reason::Missing("timestamp"))?, "timestamp")?;
    // Host and disk together name the address space; they stand side by side.
    let from = rest;
    comma(&mut rest).ok_or(Reason::Missing("host name"))?;
    let disk = comma(&mut rest).ok_or(Reason::Missing("disk number"))?;
    number(disk, "disk number")?;
    let device = &from[..(from.len() - rest.len()).saturating_sub(1)];
    let operation = comma(&mut rest).ok_or(Reason::Missing("type"))?;
    let kind = if operation.eq_ignore_ascii_case(b"read") {
        Kind::Read
    } else if operation.eq_ignore_ascii_case(b"write") {
        Kind::Write
    } else {
        return Err(Reason::Operation);
    };
    let offset = number(comma(&mut rest).ok_or(Reason::Missing("offset"))?, "offset")?;
    let size = number(comma(&mut rest).ok_or(Reason::Missing("size"))?, "size")?;
    let time_ns = stamp.checked_mul(100).ok_or(Reason::NotANumber("timestamp"))?;
    parser.request(Some(time_ns), device, kind, Some(offset), Some(size))
}
