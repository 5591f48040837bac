//! SPC: `ASU,LBA,Size,Opcode,Timestamp`; blocks of 512 bytes, bytes, r or w, seconds. Each ASU is an address space.

use super::fields::{comma, number, time};
use super::parser::{Parser, Reason};
use super::{Kind, Request};

pub fn line(parser: &mut Parser, mut rest: &[u8]) -> Result<Option<Request>, Reason> {
    let asu = comma(&mut rest).ok_or(Reason::Missing("ASU"))?;
    number(asu, "ASU")?;
    let lba = number(comma(&mut rest).ok_or(Reason::Missing("LBA"))?, "LBA")?;
    let size = number(comma(&mut rest).ok_or(Reason::Missing("size"))?, "size")?;
    let kind = match comma(&mut rest).ok_or(Reason::Missing("opcode"))? {
        b"r" | b"R" => Kind::Read,
        b"w" | b"W" => Kind::Write,
        _ => return Err(Reason::Operation),
    };
    let at = time(comma(&mut rest).ok_or(Reason::Missing("time"))?, 1_000_000_000)?;
    parser.request(Some(at), asu, kind, lba.checked_mul(512), Some(size))
}
