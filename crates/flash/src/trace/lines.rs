//! Lines, or records of one size, out of a stream of bytes, with a bounded buffer.

use std::io::{self, Read};

/// What formats are found out from.
pub const BUFFER: usize = 256 << 10;
/// Longer lines are broken.
pub const LINE_MAX: usize = 64 << 10;

/// Lines of a stream.
pub struct Lines {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    eof: bool,
    /// The compressed stream ended too early; what was before that is there.
    pub cut: Option<io::Error>,
    /// Number of the line given last, from 1.
    pub number: u64,
    /// Records of so many bytes, not lines.
    pub record_bytes: Option<usize>,
}

/// A line.
pub enum Line<'a> {
    /// Its bytes, without the end.
    Text(&'a [u8]),
    /// It was too long and has been passed over.
    TooLong,
}

impl Lines {
    pub fn new(source: Box<dyn Read + Send>) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            eof: false,
            cut: None,
            number: 0,
            record_bytes: None,
        }
    }

    /// What the buffer holds before the first line is taken: as much of the beginning as fits.
    pub fn head(&mut self) -> io::Result<&[u8]> {
        while !self.eof && self.end < self.buffer.len() {
            self.fill()?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Passes over the mark by which some programs begin a text in UTF-8.
    pub fn skip_mark(&mut self) {
        if self.buffer[self.start..self.end].starts_with(b"\xef\xbb\xbf") {
            self.start += 3;
        }
    }

    /// The next record; the last one may be cut off.
    fn next_record(&mut self, bytes: usize) -> io::Result<Option<Line<'_>>> {
        while self.end - self.start < bytes && !self.eof {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            self.fill()?;
        }
        let (from, to) = (self.start, self.end.min(self.start + bytes));
        self.start = to;
        self.number += u64::from(from < to);
        Ok((from < to).then(|| Line::Text(&self.buffer[from..to])))
    }

    fn fill(&mut self) -> io::Result<()> {
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.eof = true,
                Ok(bytes) => self.end += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.eof = true;
                    self.cut = Some(e);
                }
                Err(e) => return Err(e),
            }
            return Ok(());
        }
    }

    /// The next line.
    #[inline]
    pub fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        if let Some(bytes) = self.record_bytes {
            return self.next_record(bytes);
        }
        let mut searched = self.start;
        let mut too_long = false;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + at);
                self.start = to + 1;
                self.number += 1;
                let text = &self.buffer[from..to];
                let long = too_long || text.len() > LINE_MAX;
                return Ok(Some(if long { Line::TooLong } else { Line::Text(text) }));
            }
            if self.eof {
                let (from, to) = (self.start, self.end);
                if from == to && !too_long {
                    return Ok(None);
                }
                self.start = to;
                self.number += 1;
                let long = too_long || to - from > LINE_MAX;
                return Ok(Some(if long { Line::TooLong } else { Line::Text(&self.buffer[from..to]) }));
            }
            // No end in sight: what is longer than a line may be is dropped, so the buffer always has room.
            if self.end - self.start > LINE_MAX {
                too_long = true;
                self.start = self.end;
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            searched = self.end;
            self.fill()?;
        }
    }
}
