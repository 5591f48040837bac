//! Reading a log for the rule that says which [prefix](super::prefix) it holds. Memory stays below what the file's size allows.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_format::log::RECORD_ALIGN;
use afterimage_format::{payload_hash, PayloadHasher};
use afterimage_store::{read_header, LogReadError};

use super::area::Area;
use super::mutation::Mistake;
use super::prefix::{Prefix, Scan};
use crate::sequence::LogPosition;

/// Reads the whole log: a pure function of its bytes.
///
/// # Errors
/// It cannot be read, is no log, or contradicts itself.
pub fn scan(log: &Arc<dyn Medium>) -> Result<Scan, LogReadError> {
    scan_with(log, Mistake::default())
}

pub(super) fn scan_with(log: &Arc<dyn Medium>, mistake: Mistake) -> Result<Scan, LogReadError> {
    let header = read_header(log.as_ref())?;
    let area = Area { medium: Arc::clone(log), bytes: header.area_bytes.get() };
    let mut window = Window::new(&area);
    let mut prefix = Prefix::new(header, mistake);
    while let Some(at) = prefix.next_at() {
        let mut next = prefix.candidate(at, &window.header_at(at)?);
        if let Some((bytes, hash)) = next.as_ref().and_then(|next| next.payload) {
            if !window.hashes_to(at + RECORD_ALIGN, bytes, hash)? {
                next = None;
            }
        }
        prefix.take(next);
    }
    let (mut at, end) = prefix.rest();
    while at + RECORD_ALIGN <= end {
        let zeroes = area.zeroes_from(at) / RECORD_ALIGN * RECORD_ALIGN;
        if zeroes > 0 {
            at = at + zeroes;
            continue;
        }
        let headers = window.bytes_at(at, end)?.chunks_exact(RECORD_ALIGN as usize);
        at = at + headers.len() as u64 * RECORD_ALIGN;
        headers.for_each(|header| prefix.behind(header));
    }
    prefix.end()
}

/// Reads the area forward in pieces.
struct Window<'a> {
    area: &'a Area,
    start: LogPosition,
    bytes: Vec<u8>,
}

/// A multiple of [`RECORD_ALIGN`]. Small enough to stay in a core's cache between the copy and the checksum.
const WINDOW_BYTES: u64 = 64 << 10;

impl<'a> Window<'a> {
    fn new(area: &'a Area) -> Self {
        Self { area, start: LogPosition(0), bytes: Vec::new() }
    }

    /// Some bytes from `at` on, at least one and none at or after `end`.
    fn bytes_at(&mut self, at: LogPosition, end: LogPosition) -> io::Result<&[u8]> {
        if at < self.start || at >= self.start + self.bytes.len() as u64 {
            // Never a whole lap, and never beyond what the area holds.
            let len = WINDOW_BYTES.min(self.area.bytes).min(self.area.bytes - at.0 % self.area.bytes);
            self.bytes.resize(len as usize, 0);
            self.start = at;
            self.area.read(at, &mut self.bytes)?;
        }
        let from = (at - self.start) as usize;
        let to = self.bytes.len().min((end - self.start) as usize);
        Ok(&self.bytes[from..to])
    }

    fn header_at(&mut self, at: LogPosition) -> io::Result<[u8; RECORD_ALIGN as usize]> {
        let mut header = [0; RECORD_ALIGN as usize];
        let found = self.bytes_at(at, at + RECORD_ALIGN)?;
        // Windows start at multiples of the record alignment and hold multiples of it.
        header[..found.len()].copy_from_slice(found);
        Ok(header)
    }

    /// Whether a payload is what its record says.
    fn hashes_to(&mut self, from: LogPosition, len: u64, hash: u32) -> io::Result<bool> {
        let (mut at, end) = (from, from + len);
        if len == 0 {
            return Ok(hash == 0);
        }
        // Most payloads lie in one window.
        let bytes = self.bytes_at(at, end)?;
        if bytes.len() as u64 == len {
            return Ok(payload_hash(bytes) == hash);
        }
        let mut hasher = PayloadHasher::default();
        while at < end {
            let bytes = self.bytes_at(at, end)?;
            hasher.update(bytes);
            at = at + bytes.len() as u64;
        }
        Ok(hasher.finish() == hash)
    }
}
