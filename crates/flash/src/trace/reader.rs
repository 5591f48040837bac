//! A trace file as a stream of requests.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::gzip::Gzip;
use super::lines::{Line, Lines};
use super::parser::{Action, Parser, Reason};
use super::{capture, detect, foreign, vscsi, ByClass, Classes, Format, Request};

/// How to read a trace.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// `None`: found out from the first lines.
    pub format: Option<Format>,
    /// blkparse: which events count.
    pub action: Action,
    /// Stop at the first broken line.
    pub strict: bool,
    /// afterimage: which classes of requests count.
    pub classes: Classes,
}

impl Default for Options {
    fn default() -> Self {
        Self { format: None, action: Action::Auto, strict: false, classes: Classes::default() }
    }
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read, or its compression is damaged.
    #[error("cannot read the trace {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No known format fits.
    #[error(
        "{}: the format of this trace is not recognised (known: {}; name one with --format)",
        .0.display(),
        Format::names()
    )]
    Unrecognised(PathBuf),
    /// An archive, another compression, another program's data.
    #[error("{}: this is no trace, but {what}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// Nothing in it.
    #[error("{}: the trace is empty", .0.display())]
    Empty(PathBuf),
    /// Lines, but no request among them.
    #[error("{}: the trace has no request in format {format}{}", file.display(), first_reason(broken))]
    NoRequests {
        /// The file.
        file: PathBuf,
        /// How it was read.
        format: Format,
        /// The first broken line.
        broken: Option<Broken>,
    },
    /// Requests, but none of those that [`Options::classes`] names.
    #[error("{}: the trace has no request of the chosen classes", .0.display())]
    NoneChosen(PathBuf),
    /// A broken line in strict reading.
    #[error("{}:{}: {} (--strict)", .0.file.display(), .0.line, .0.reason)]
    Strict(Broken),
}

fn first_reason(broken: &Option<Broken>) -> String {
    broken
        .as_ref()
        .map_or_else(String::new, |b| format!("; the first broken line is {}: {}", b.line, b.reason))
}

/// A line that does not fit its format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The file.
    pub file: PathBuf,
    /// From 1.
    pub line: u64,
    /// Why.
    pub reason: String,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Lines.
    pub lines: u64,
    /// Requests.
    pub requests: u64,
    /// Lines that do not fit the format.
    pub broken: u64,
    /// The first of them.
    pub broken_first: Vec<Broken>,
    /// afterimage: what there is of each class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<ByClass>,
    /// afterimage: requests that the daemon dropped.
    #[serde(skip_serializing_if = "is_default")]
    pub dropped: u64,
    /// afterimage: the end is missing.
    #[serde(skip_serializing_if = "is_default")]
    pub cut: bool,
    /// What was taken otherwise than the trace may mean it, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Broken lines kept with their reasons.
const KEPT: usize = 20;

/// A trace being read.
pub struct Reader {
    file: PathBuf,
    lines: Lines,
    parser: Parser,
    strict: bool,
    tally: Tally,
    /// What was guessed of the format.
    guess: Option<&'static str>,
    done: bool,
}

/// Opens a trace: compression and format are found out from its beginning.
///
/// # Errors
/// It cannot be read, is empty, or has no known format.
pub fn open(file: &Path, options: &Options) -> Result<Reader, TraceError> {
    let io = |source| TraceError::Io { file: file.to_owned(), source };
    let raw = File::open(file).map_err(io)?;
    if raw.metadata().map_err(io)?.is_dir() {
        return Err(io(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")));
    }
    Reader::new(file, Box::new(raw), options)
}

impl Reader {
    /// Reads a trace from a stream; `file` names it in messages.
    ///
    /// # Errors
    /// As [`open`].
    pub fn new(file: &Path, mut raw: Box<dyn Read + Send>, options: &Options) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { file: file.to_owned(), source };
        let mut magic = [0_u8; 4];
        let mut have = 0;
        while have < magic.len() {
            match raw.read(&mut magic[have..]) {
                Ok(0) => break,
                Ok(bytes) => have += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io(e)),
            }
        }
        let whole = io::Cursor::new(magic[..have].to_vec()).chain(raw);
        let text: Box<dyn Read + Send> = match magic[..have] {
            [0x1f, 0x8b, ..] => Box::new(Gzip::new(Box::new(whole))),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::new(whole).map_err(io)?),
            _ => Box::new(whole),
        };
        let mut lines = Lines::new(text);
        lines.head().map_err(io)?;
        lines.skip_mark();
        let head = lines.head().map_err(io)?;
        let own = options.format.is_none_or(|f| f == Format::Afterimage) && head.starts_with(capture::MAGIC);
        let head_len = head.len();
        if let Some(error) = lines.cut.take_if(|_| !own) {
            return Err(io(error));
        }
        let head = lines.head().map_err(io)?;
        debug_assert_eq!(head.len(), head_len, "what was read ahead stays");
        if head.trim_ascii().is_empty() && head.len() < super::lines::LINE_MAX {
            return Err(TraceError::Empty(file.to_owned()));
        }
        let record_bytes = match options.format {
            None | Some(Format::Vscsi) => vscsi::record_bytes(head),
            Some(_) => None,
        };
        if let Some(what) = foreign::what(head).filter(|_| record_bytes.is_none()) {
            return Err(TraceError::Foreign { file: file.to_owned(), what });
        }
        lines.record_bytes = record_bytes;
        let head = lines.head().map_err(io)?;
        let (format, guess) = match (options.format, record_bytes) {
            (Some(format), _) => (format, None),
            (None, Some(_)) => (Format::Vscsi, None),
            (None, None) => detect::format(head).ok_or_else(|| TraceError::Unrecognised(file.to_owned()))?,
        };
        let mut parser = Parser::new(format, detect::action(head, format, options.action));
        parser.preferred = detect::preferred(parser.action, format, options.action);
        if format == Format::Fio2 && head.windows(6).any(|w| w == b" wait ") {
            parser.waited_us = Some(0);
        }
        parser.capture.classes = options.classes;
        Ok(Self {
            file: file.to_owned(),
            lines,
            parser,
            strict: options.strict,
            tally: Tally::default(),
            guess,
            done: false,
        })
    }

    /// The format it is read as.
    pub fn format(&self) -> Format {
        self.parser.format
    }

    /// Address spaces that the trace's header names, in the order of the drive; 0 where it has none.
    pub fn declared(&self) -> u32 {
        self.parser.capture.declared
    }

    /// When the first request was made, nanoseconds since 1970, where the trace says when it begins.
    pub fn first_absolute_ns(&self) -> Option<u64> {
        self.parser.first_absolute_ns()
    }

    /// Requests that the capture has said so far to be missing.
    pub fn dropped(&self) -> u64 {
        self.tally.dropped
    }

    /// What was read so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The next request; `None` at the end of a trace that had at least one.
    ///
    /// # Errors
    /// The file cannot be read on; a broken line in strict reading; the end of a trace without a request.
    #[inline]
    pub fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        while !self.done {
            let request = self.line()?;
            if request.is_some() {
                return Ok(request);
            }
        }
        Ok(None)
    }

    /// Reads on until there are `most` requests in `requests`, or the trace ends: then `false`.
    ///
    /// # Errors
    /// As [`Reader::next_request`]; what was read before that is in `requests`.
    pub fn read_into(&mut self, requests: &mut Vec<Request>, most: usize) -> Result<bool, TraceError> {
        while !self.done {
            if requests.len() >= most {
                return Ok(true);
            }
            requests.extend(self.line()?);
        }
        Ok(false)
    }

    /// The next line, whatever it is; the end of the trace.
    fn line(&mut self) -> Result<Option<Request>, TraceError> {
        let line = match self.lines.next() {
            Ok(line) => line,
            Err(source) => {
                self.done = true;
                return Err(TraceError::Io { file: self.file.clone(), source });
            }
        };
        self.tally.lines += u64::from(line.is_some());
        let parsed = match line {
            Some(Line::Text(text)) => self.parser.line(text),
            Some(Line::TooLong) => Err(Reason::TooLong),
            None => {
                self.done = true;
                self.end()?;
                if self.tally.requests == 0 {
                    return Err(self.no_requests());
                }
                return Ok(None);
            }
        };
        match parsed {
            Ok(request) => {
                self.tally.requests += u64::from(request.is_some());
                Ok(request)
            }
            Err(reason) => self.broken(reason).map(|()| None),
        }
    }

    /// The end of the file: is it the end of the trace?
    fn end(&mut self) -> Result<(), TraceError> {
        let cut = self.lines.cut.take();
        self.tally.notes.extend(self.guess.map(|guess| format!("{}: {guess}", self.file.display())));
        self.tally.notes.extend(self.untyped());
        self.tally.notes.extend(self.early());
        self.tally.notes.extend(self.late());
        if self.parser.format != Format::Afterimage {
            return match cut {
                Some(source) => Err(TraceError::Io { file: self.file.clone(), source }),
                None => Ok(()),
            };
        }
        let capture = &self.parser.capture;
        self.tally.classes = Some(capture.tally);
        self.tally.cut = cut.is_some() || (capture.begun && !capture.ended);
        if self.tally.cut {
            self.broken(Reason::Cut)?;
        }
        Ok(())
    }

    fn untyped(&self) -> Option<String> {
        let (file, untyped) = (self.file.display(), self.parser.untyped);
        (untyped > 0)
            .then(|| format!("{file}: {untyped} requests are neither read nor write; they are passed over"))
    }

    fn early(&self) -> Option<String> {
        let (file, early) = (self.file.display(), self.parser.early);
        (early > 0).then(|| {
            format!(
                "{file}: {early} requests are earlier than the first one; they are played as if at its time (sort the trace by \
                 time)"
            )
        })
    }

    /// What the beginning said, and what followed did not.
    fn late(&self) -> Option<String> {
        let Parser { late, action, preferred, .. } = self.parser;
        let (file, head) = (self.file.display(), super::lines::BUFFER >> 10);
        let events = || preferred.iter().map(|e| char::from(*e).to_string()).collect::<Vec<_>>().join(" or ");
        match self.parser.format {
            _ if late == 0 => None,
            Format::Blkparse => Some(format!(
                "{file}: the first {head} KiB have no event {}, so that {} events were taken, but there are {late} later; name \
                 the event with --action",
                events(),
                char::from(action)
            )),
            _ => Some(format!(
                "{file}: the first {head} KiB have no wait, so that the trace was taken for one without times, but there are \
                 {late} later"
            )),
        }
    }

    #[cold]
    fn broken(&mut self, reason: Reason) -> Result<(), TraceError> {
        if let Reason::Dropped(requests) = reason {
            self.tally.dropped = self.tally.dropped.saturating_add(requests);
        }
        let broken = Broken { file: self.file.clone(), line: self.lines.number, reason: reason.to_string() };
        if self.strict {
            self.done = true;
            return Err(TraceError::Strict(broken));
        }
        self.tally.broken += 1;
        if self.tally.broken_first.len() < KEPT {
            self.tally.broken_first.push(broken);
        }
        Ok(())
    }

    #[cold]
    fn no_requests(&self) -> TraceError {
        if self.parser.capture.tally.has_requests() {
            return TraceError::NoneChosen(self.file.clone());
        }
        TraceError::NoRequests {
            file: self.file.clone(),
            format: self.parser.format,
            broken: self.tally.broken_first.first().cloned(),
        }
    }
}
