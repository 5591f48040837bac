//! blkparse text: `maj,min cpu seq sec.nsec pid action RWBS sector + count [process]`.
//!
//! One kind of event is kept; D in RWBS is a discard; flushes without data and the summary at the end are passed over.

use super::fields::{blank, number, time};
use super::parser::{Parser, Reason};
use super::{Kind, Request};

/// Whether a field is `major,minor`.
pub fn is_device(field: &[u8]) -> bool {
    let Some(comma) = field.iter().position(|b| *b == b',') else { return false };
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    digits(&field[..comma]) && digits(&field[comma + 1..])
}

/// The action of a line, if it is an event; for choosing which kind to keep.
pub fn action_of(mut line: &[u8]) -> Option<u8> {
    let rest = &mut line;
    if !is_device(blank(rest)?) {
        return None;
    }
    for _ in 0..4 {
        blank(rest)?;
    }
    match blank(rest)? {
        [action] => Some(*action),
        _ => None,
    }
}

pub fn line(parser: &mut Parser, mut rest: &[u8]) -> Result<Option<Request>, Reason> {
    let rest = &mut rest;
    let device = blank(rest).ok_or(Reason::Missing("device"))?;
    if !is_device(device) {
        parser.in_summary |= device.starts_with(b"CPU") || device == b"Total";
        return if parser.in_summary { Ok(None) } else { Err(Reason::Shape) };
    }
    parser.in_summary = false;
    blank(rest).ok_or(Reason::Missing("CPU"))?;
    blank(rest).ok_or(Reason::Missing("sequence number"))?;
    let stamp = blank(rest).ok_or(Reason::Missing("time"))?;
    blank(rest).ok_or(Reason::Missing("process"))?;
    let action = blank(rest).ok_or(Reason::Missing("action"))?;
    if *action != [parser.action] {
        parser.late += u64::from(matches!(action, [event] if parser.preferred.contains(event)));
        return Ok(None);
    }
    let at = time(stamp, 1_000_000_000)?;
    let rwbs = blank(rest).ok_or(Reason::Missing("RWBS"))?;
    let kind = if rwbs.contains(&b'D') {
        Kind::Discard
    } else if rwbs.contains(&b'R') {
        Kind::Read
    } else if rwbs.contains(&b'W') {
        Kind::Write
    } else {
        // F and N: a flush or nothing at all.
        return if rwbs.iter().all(u8::is_ascii_alphabetic) { Ok(None) } else { Err(Reason::Operation) };
    };
    let sector = blank(rest).ok_or(Reason::Missing("sector"))?;
    if sector.first() == Some(&b'[') {
        // A flush carried by an empty write has neither sector nor count.
        return Ok(None);
    }
    let sector = number(sector, "sector")?;
    if blank(rest) != Some(b"+") {
        return Err(Reason::Missing("count"));
    }
    let count = number(blank(rest).ok_or(Reason::Missing("count"))?, "count")?;
    parser.request(Some(at), device, kind, sector.checked_mul(512), count.checked_mul(512))
}
