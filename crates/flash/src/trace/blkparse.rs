//! blkparse text: `maj,min cpu seq sec.nsec pid action RWBS sector + count [process]`.
//!
//! One kind of event is kept; D in RWBS is a discard. Passed over are flushes without data, commands that are passed through (SCSI
//! commands of a program: bytes and `(command)` instead of sector and count) and the summaries at the end, of programs (`-s`) as well.

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

/// Whether a summary begins so: `CPU0 (8,0):`, `Total (8,0):`, and under `-s` a program, `dd (77)` or `dd (77, ...)`.
fn is_title(line: &[u8]) -> bool {
    let program = || {
        let open = line.iter().rposition(|byte| *byte == b'(')?;
        let number = line[open + 1..].strip_suffix(b")")?;
        let number = number.strip_suffix(b", ...").unwrap_or(number);
        Some(open > 0 && !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    };
    let device = || line.ends_with(b"):") && (line.starts_with(b"CPU") || line.starts_with(b"Total"));
    let file = || line.starts_with(b"Input file ") && line.ends_with(b" added");
    device() || file() || program().unwrap_or(false)
}

pub fn line(parser: &mut Parser, line: &[u8]) -> Result<Option<Request>, Reason> {
    let mut rest = line;
    let rest = &mut rest;
    let device = blank(rest).ok_or(Reason::Missing("device"))?;
    if !is_device(device) {
        parser.in_summary |= is_title(line);
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
    // `[process]` or `(command)` where a sector or its count would be: a flush that an empty write carries, or a command passed through.
    let is_other = |field: &[u8]| matches!(field.first(), Some(b'[' | b'('));
    let sector = blank(rest).ok_or(Reason::Missing("sector"))?;
    if is_other(sector) {
        return Ok(None);
    }
    let sector = number(sector, "sector")?;
    match blank(rest) {
        Some(b"+") => {}
        Some(field) if is_other(field) => return Ok(None),
        _ => return Err(Reason::Missing("count")),
    }
    let count = number(blank(rest).ok_or(Reason::Missing("count"))?, "count")?;
    parser.request(Some(at), device, kind, sector.checked_mul(512), count.checked_mul(512))
}
