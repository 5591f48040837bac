//! afterimage's own capture (`serve --trace`, docs/trace-format.md): `time_ns file operation offset length class`.
//!
//! Lines that begin with # say things: which files there are, in the order of the drive; when the trace begins; where
//! requests are missing; that this is the end.

use serde::Serialize;

use super::fields::{blank, number};
use super::parser::{Parser, Reason};
use super::{Kind, Request};

/// The first line.
pub const MAGIC: &[u8] = b"# afterimage-trace 1";

/// What a request of a capture is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// An image, outside every journal that the daemon knew.
    Home,
    /// The redo log.
    Log,
    /// A journal of a guest's file system.
    Journal,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Home, Self::Log, Self::Journal];

    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"home" => Some(Self::Home),
            b"log" => Some(Self::Log),
            b"journal" => Some(Self::Journal),
            _ => None,
        }
    }
}

/// A choice of classes; all by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes([bool; 3]);

impl Default for Classes {
    fn default() -> Self {
        Self([true; 3])
    }
}

impl Classes {
    /// These.
    pub fn of(classes: &[Class]) -> Self {
        Self(Class::ALL.map(|class| classes.contains(&class)))
    }

    fn has(self, class: Class) -> bool {
        self.0[class as usize]
    }
}

/// Requests and bytes of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ClassTally {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Discards and zeroings.
    pub discards: u64,
    /// Bytes of these.
    pub discard_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl ClassTally {
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.discards += other.discards;
        self.discard_bytes += other.discard_bytes;
        self.flushes += other.flushes;
    }
}

/// What a capture holds by class, before any choice of classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ByClass {
    /// [`Class::Home`]
    pub home: ClassTally,
    /// [`Class::Log`]
    pub log: ClassTally,
    /// [`Class::Journal`]
    pub journal: ClassTally,
}

impl ByClass {
    fn of(&mut self, class: Class) -> &mut ClassTally {
        match class {
            Class::Home => &mut self.home,
            Class::Log => &mut self.log,
            Class::Journal => &mut self.journal,
        }
    }

    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.home.add(&other.home);
        self.log.add(&other.log);
        self.journal.add(&other.journal);
    }
}

/// What the lines with # have said.
#[derive(Debug, Default)]
pub struct State {
    /// The classes that are wanted.
    pub classes: Classes,
    /// Of all classes.
    pub tally: ByClass,
    /// The header was there.
    pub begun: bool,
    /// The last line was there.
    pub ended: bool,
    /// Files named before the first request.
    pub declared: u32,
    /// When the trace begins, nanoseconds since 1970.
    pub begun_ns: Option<u64>,
}

impl State {
    /// Counts a flush.
    #[inline]
    pub fn flushed(&mut self, class: Class) {
        self.tally.of(class).flushes += 1;
    }

    /// Counts a request; whether its class is wanted.
    #[inline(always)]
    pub fn count(&mut self, class: Class, kind: Kind, request_bytes: u64) -> bool {
        let tally = self.tally.of(class);
        let (requests, bytes) = match kind {
            Kind::Read => (&mut tally.reads, &mut tally.read_bytes),
            Kind::Write => (&mut tally.writes, &mut tally.write_bytes),
            Kind::Discard => (&mut tally.discards, &mut tally.discard_bytes),
        };
        *requests += 1;
        *bytes += request_bytes;
        self.classes.has(class)
    }
}

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
    Ok(request.filter(|r| parser.capture.count(class, r.kind, r.bytes)))
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
            parser.device(name);
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
