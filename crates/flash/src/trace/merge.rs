//! Several files played together, as guests beside each other.

use std::path::PathBuf;

use super::reader::{open, Options, Reader, Tally, TraceError};
use super::{Format, Request};

/// One trace out of one or more files: each file's clock starts at zero and each keeps its own address spaces; where
/// all have times they are merged by time, otherwise they follow each other.
pub struct Merged {
    parts: Vec<Part>,
    /// Index of a part's device → device of the whole, in order of appearance.
    devices: u32,
    timed: bool,
}

struct Part {
    reader: Reader,
    ahead: Option<Request>,
    devices: Vec<u32>,
}

impl Merged {
    /// Opens all files.
    ///
    /// # Errors
    /// As [`open`], for the first file that fails.
    pub fn open(files: &[PathBuf], options: &Options) -> Result<Self, TraceError> {
        let mut parts = Vec::with_capacity(files.len());
        for file in files {
            let mut reader = open(file, options)?;
            let ahead = reader.next_request()?;
            parts.push(Part { reader, ahead, devices: Vec::new() });
        }
        let timed = parts.iter().all(|p| p.ahead.is_some_and(|r| r.time_ns.is_some()));
        Ok(Self { parts, devices: 0, timed })
    }

    /// The next request.
    ///
    /// # Errors
    /// As [`Reader::next_request`].
    #[inline]
    pub fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let mut waiting = self.parts.iter_mut().filter(|p| p.ahead.is_some());
        let part =
            if self.timed { waiting.min_by_key(|p| p.ahead.and_then(|r| r.time_ns)) } else { waiting.next() };
        let Some(part) = part else { return Ok(None) };
        let next = part.reader.next_request()?;
        let Some(mut request) = std::mem::replace(&mut part.ahead, next) else { return Ok(None) };
        let own = request.device as usize;
        if own >= part.devices.len() {
            part.devices.resize(own + 1, u32::MAX);
        }
        if part.devices[own] == u32::MAX {
            part.devices[own] = self.devices;
            self.devices += 1;
        }
        request.device = part.devices[own];
        if !self.timed {
            request.time_ns = None;
        }
        Ok(Some(request))
    }

    /// What was read, all files together.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        for tally in self.parts.iter().map(|p| p.reader.tally()) {
            all.lines += tally.lines;
            all.requests += tally.requests;
            all.broken += tally.broken;
            all.broken_first.extend(tally.broken_first.iter().cloned());
        }
        all
    }

    /// The formats of the files.
    pub fn formats(&self) -> Vec<Format> {
        self.parts.iter().map(|p| p.reader.format()).collect()
    }

    /// Bytes taken from the files so far.
    pub fn bytes_read(&self) -> u64 {
        self.parts.iter().map(|p| p.reader.bytes_read()).sum()
    }
}
