//! The naive oracle: a history of requests, applied one by one to arrays.

use std::sync::Arc;

pub const SECTOR: usize = 512;

/// What a request does to its range; `None`: zeroes.
#[derive(Clone, Debug)]
pub struct Change {
    pub disk: usize,
    pub sector: usize,
    pub sectors: usize,
    pub data: Option<Arc<[u8]>>,
}

/// Everything that has a sequence number.
#[derive(Clone)]
pub struct History {
    /// Contents at `base_sequence`.
    base: Vec<Vec<u8>>,
    pub base_sequence: u64,
    changes: Vec<Change>,
}

impl History {
    pub fn new(base: Vec<Vec<u8>>, base_sequence: u64) -> Self {
        Self { base, base_sequence, changes: Vec::new() }
    }

    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub fn last(&self) -> u64 {
        self.base_sequence + self.changes.len() as u64
    }

    /// The disks after exactly the requests up to `sequence`.
    pub fn prefix(&self, sequence: u64) -> Vec<Vec<u8>> {
        let mut disks = self.base.clone();
        for change in &self.changes[..(sequence - self.base_sequence) as usize] {
            let range = change.sector * SECTOR..(change.sector + change.sectors) * SECTOR;
            match &change.data {
                Some(data) => disks[change.disk][range].copy_from_slice(data),
                None => disks[change.disk][range].fill(0),
            }
        }
        disks
    }

    /// What is true after a crash that left the prefix.
    pub fn truncated(&self, sequence: u64) -> Self {
        Self::new(self.prefix(sequence), sequence)
    }
}

/// A completed flush (or flushed write).
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// Operations in the trace when it completed.
    pub ops: usize,
    pub covers: u64,
    pub at_us: u64,
}

/// Where two contents differ, for a message.
pub fn difference(found: &[Vec<u8>], expected: &[Vec<u8>]) -> Option<String> {
    for (disk, (f, e)) in found.iter().zip(expected).enumerate() {
        if let Some(at) = f.iter().zip(e).position(|(a, b)| a != b) {
            return Some(format!(
                "disk {disk} sector {}: found {:02x?}, expected {:02x?}",
                at / SECTOR,
                &f[at..(at + 4).min(f.len())],
                &e[at..(at + 4).min(e.len())]
            ));
        }
    }
    None
}
