//! fio iolog: a header line, then `file action [offset length]`; version 3 has the time in microseconds in front.
//!
//! Version 2 has `wait` with microseconds since the last wait instead of times. File names may hold blanks, so the
//! line is read from its end.

use super::fields::number;
use super::parser::{Parser, Reason};
use super::{Kind, Request};

/// The first line.
pub const HEADERS: [&[u8]; 2] = [b"fio version 2 iolog", b"fio version 3 iolog"];

fn last<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = rest.trim_ascii_end();
    let from = text.iter().rposition(u8::is_ascii_whitespace).map_or(0, |at| at + 1);
    *rest = &text[..from];
    (from < text.len()).then(|| &text[from..])
}

pub fn line(parser: &mut Parser, line: &[u8], version: u8) -> Result<Option<Request>, Reason> {
    if HEADERS.contains(&line) {
        return Ok(None);
    }
    let mut rest = line;
    let mut time_ns = parser.waited_us.and_then(|us| us.checked_mul(1000));
    if version == 3 {
        let stamp = super::fields::blank(&mut rest).ok_or(Reason::Missing("time"))?;
        let ns = number(stamp, "time")?.checked_mul(1000);
        time_ns = Some(ns.ok_or(Reason::NotANumber("time"))?);
    }
    let end = last(&mut rest).ok_or(Reason::Missing("action"))?;
    if matches!(end, b"add" | b"open" | b"close") {
        return if rest.trim_ascii().is_empty() { Err(Reason::Missing("file")) } else { Ok(None) };
    }
    let Ok(length) = number(end, "length") else { return Err(Reason::Shape) };
    let offset = number(last(&mut rest).ok_or(Reason::Missing("offset"))?, "offset")?;
    let kind = match last(&mut rest).ok_or(Reason::Missing("action"))? {
        b"read" => Kind::Read,
        b"write" => Kind::Write,
        b"trim" => Kind::Discard,
        b"sync" | b"datasync" | b"sync_file_range" | b"syncfs" => return Ok(None),
        b"wait" if version == 2 => {
            match &mut parser.waited_us {
                Some(us) => *us = us.saturating_add(offset),
                None => parser.late += 1,
            }
            return Ok(None);
        }
        _ => return Err(Reason::Operation),
    };
    let file = rest.trim_ascii();
    if file.is_empty() {
        return Err(Reason::Missing("file"));
    }
    parser.request(time_ns, file, kind, Some(offset), Some(length))
}
