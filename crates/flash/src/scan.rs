//! The first pass over a trace: what it holds and which part of the address spaces it touches.
//!
//! Memory grows with the touched part of the disks, not with the length of the trace: 1 bit a page and some 30 bytes
//! a touched block.

use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::control::{Control, RunError};
use crate::geometry::Geometry;
use crate::trace::{Kind, Prefetch, Request, Tally};

/// Requests and bytes by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Discard requests.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
}

impl Traffic {
    /// Counts a request. A trace may claim any number of bytes: a sum is at most what a number holds.
    #[inline]
    pub fn add(&mut self, request: &Request) {
        let (requests, bytes) = match request.kind {
            Kind::Read => (&mut self.reads, &mut self.read_bytes),
            Kind::Write => (&mut self.writes, &mut self.write_bytes),
            Kind::Discard => (&mut self.discards, &mut self.discard_bytes),
        };
        *requests += 1;
        *bytes = bytes.saturating_add(request.bytes);
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.discards
    }

    /// Bytes read and written: the study's traffic.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }
}

/// What a trace touches, in pages and blocks of a geometry.
#[derive(Debug, Clone)]
pub struct Scan {
    pages_per_block: u64,
    page_bytes: u64,
    words: usize,
    /// (device, block of that device) → index into `touched`.
    blocks: FxHashMap<(u32, u64), u32>,
    /// A bit a page that is read or written, `words` words a block.
    touched: Vec<u64>,
    /// End of each device's touched part, bytes.
    extents: Vec<u64>,
    /// Requests and bytes.
    pub traffic: Traffic,
    /// Time of the last request, if the trace has times.
    pub span_ns: Option<u64>,
    /// What reading found.
    pub tally: Tally,
    last: Option<((u32, u64), u32)>,
}

/// A drive cannot name more blocks than this.
const BLOCKS_MAX: usize = 1 << 28;

impl Scan {
    /// Nothing scanned yet.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            pages_per_block: u64::from(geometry.pages_per_block),
            page_bytes: u64::from(geometry.page_bytes),
            words: geometry.pages_per_block.div_ceil(64) as usize,
            blocks: FxHashMap::default(),
            touched: Vec::new(),
            extents: Vec::new(),
            traffic: Traffic::default(),
            span_ns: None,
            tally: Tally::default(),
            last: None,
        }
    }

    /// Scans a whole trace. `control.stop` ends it early, as an error.
    ///
    /// # Errors
    /// The trace cannot be read, touches more than a drive can name, or `control.stop` was set.
    pub fn trace(geometry: Geometry, mut trace: Prefetch, control: &Control) -> Result<Self, RunError> {
        let mut scan = Self::new(geometry);
        while let Some(batch) = trace.next_batch()? {
            for request in &batch {
                scan.add(request)?;
            }
            control.scanned.fetch_add(batch.len() as u64, Ordering::Relaxed);
            if control.stop.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
        }
        scan.tally = trace.tally().cloned().unwrap_or_default();
        Ok(scan)
    }

    /// Scans a request.
    ///
    /// # Errors
    /// The trace touches more than a drive can name.
    pub fn add(&mut self, request: &Request) -> Result<(), RunError> {
        self.traffic.add(request);
        if let Some(time) = request.time_ns {
            self.span_ns = Some(self.span_ns.map_or(time, |span| span.max(time)));
        }
        let device = request.device as usize;
        if device >= self.extents.len() {
            self.extents.resize(device + 1, 0);
        }
        if request.kind == Kind::Discard {
            return Ok(());
        }
        self.extents[device] = self.extents[device].max(request.offset + request.bytes);
        let first = request.offset / self.page_bytes;
        let last = (request.offset + request.bytes - 1) / self.page_bytes;
        for page in first..=last {
            let (key, offset) = ((request.device, page / self.pages_per_block), page % self.pages_per_block);
            let index = match self.last {
                Some((last, index)) if last == key => index,
                _ => self.block(key)?,
            };
            self.touched[index as usize * self.words + (offset / 64) as usize] |= 1 << (offset % 64);
        }
        Ok(())
    }

    fn block(&mut self, key: (u32, u64)) -> Result<u32, RunError> {
        let next = self.blocks.len();
        if next >= BLOCKS_MAX {
            return Err(RunError::TooLarge("the trace touches more blocks than a drive can have".to_owned()));
        }
        let index = *self.blocks.entry(key).or_insert(next as u32);
        if index as usize == next {
            self.touched.resize((next + 1) * self.words, 0);
        }
        self.last = Some((key, index));
        Ok(index)
    }

    /// Touched blocks in order of device and address, each with its bits.
    pub fn blocks(&self) -> Vec<((u32, u64), &[u64])> {
        let bits = |index: u32| &self.touched[index as usize * self.words..][..self.words];
        let mut blocks: Vec<_> = self.blocks.iter().map(|(key, index)| (*key, bits(*index))).collect();
        blocks.sort_unstable_by_key(|(key, _)| *key);
        blocks
    }

    /// Pages read or written at least once.
    pub fn pages(&self) -> u64 {
        self.touched.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Devices, with the end of the touched part of each, bytes.
    pub fn extents(&self) -> &[u64] {
        &self.extents
    }
}
