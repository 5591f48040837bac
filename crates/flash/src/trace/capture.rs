//! afterimage's own capture (`serve --trace`, docs/trace-format.md): `time_ns file operation offset length class`.
//!
//! Lines that begin with # say things: which files there are, in the order of the drive; when the trace begins; where
//! requests are missing; that this is the end.

use super::class::Class;
use super::fields::{blank, number};
use super::parser::{Parser, Reason};
use super::{Kind, Request};

/// The first line.
pub const MAGIC: &[u8] = b"# afterimage-trace 1";

pub fn line(parser: &mut Parser, mut rest: &[u8]) -> Result<Option<Request>, Reason> {
    let rest = &mut rest;
    let at = number(blank(rest).ok_or(Reason::Missing("time"))?, "time")?;
    let file = blank(rest).ok_or(Reason::Missing("file"))?;
    let operation = blank(rest).ok_or(Reason::Missing("operation"))?;
    let offset = number(blank(rest).ok_or(Reason::Missing("offset"))?, "offset")?;
    let length = number(blank(rest).ok_or(Reason::Missing("length"))?, "length")?;
    let class = blank(rest).ok_or(Reason::Missing("class"))?;
    let class = Class::parse(class).ok_or(Reason::Class)?;
    if blank(rest).is_some() {
        return Err(Reason::Shape);
    }
    let kind = match operation {
        b"read" => Kind::Read,
        b"write" => Kind::Write,
        // Zeroes are made by giving space back or by a mark in the file system's tables, not by writing.
        b"discard" | b"zero" => Kind::Discard,
        b"flush" => {
            parser.capture.flushed(class);
            return Ok(None);
        }
        _ => return Err(Reason::Operation),
    };
    let request = parser.request(Some(at), file, kind, Some(offset), Some(length))?;
    let wanted = request.filter(|r| parser.capture.count(class, r.kind, r.bytes));
    Ok(wanted.map(|request| Request { class, ..request }))
}

/// A line that begins with #. What is not known is a remark.
pub fn remark(parser: &mut Parser, line: &[u8]) -> Result<(), Reason> {
    if line == MAGIC {
        parser.capture.begun = true;
        return Ok(());
    }
    let mut rest = &line[1..];
    match blank(&mut rest) {
        Some(b"file") => {
            let name = blank(&mut rest).ok_or(Reason::Missing("file"))?;
            parser.device(name)?;
            if !parser.has_time() {
                parser.capture.declared = parser.devices();
            }
        }
        Some(b"begun") => {
            let at = blank(&mut rest).ok_or(Reason::Missing("time"))?;
            parser.capture.begun_ns = Some(number(at, "time")?);
        }
        Some(b"dropped") => {
            let requests = number(blank(&mut rest).ok_or(Reason::Missing("count"))?, "count")?;
            return Err(Reason::Dropped(requests));
        }
        Some(b"end") => parser.capture.ended = true,
        _ => {}
    }
    Ok(())
}
