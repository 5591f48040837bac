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

/// What one sequence number stands for.
#[derive(Clone, Debug)]
enum Step {
    One(Change),
    /// A record of a set that goes on: no prefix ends here.
    More,
    /// The last record of a set: all of it.
    Set(Vec<Change>),
}

/// Everything that has a sequence number.
#[derive(Clone)]
pub struct History {
    /// Contents at `base_sequence`.
    base: Vec<Vec<u8>>,
    pub base_sequence: u64,
    steps: Vec<Step>,
}

impl History {
    pub fn new(base: Vec<Vec<u8>>, base_sequence: u64) -> Self {
        Self { base, base_sequence, steps: Vec::new() }
    }

    pub fn push(&mut self, change: Change) {
        self.steps.push(Step::One(change));
    }

    /// A set that took the numbers up to `last`.
    pub fn push_set(&mut self, changes: Vec<Change>, last: u64) {
        while self.last() + 1 < last {
            self.steps.push(Step::More);
        }
        self.steps.push(Step::Set(changes));
    }

    /// Whether a crash may leave exactly the requests up to `sequence`: not where that is within a set.
    pub fn may_end_at(&self, sequence: u64) -> bool {
        sequence == self.base_sequence
            || !matches!(self.steps[(sequence - self.base_sequence) as usize - 1], Step::More)
    }

    pub fn last(&self) -> u64 {
        self.base_sequence + self.steps.len() as u64
    }

    /// The disks after exactly the requests up to `sequence`.
    pub fn prefix(&self, sequence: u64) -> Vec<Vec<u8>> {
        let mut disks = self.base.clone();
        let changes = |step: &'_ Step| match step {
            Step::One(change) => vec![change.clone()],
            Step::More => Vec::new(),
            Step::Set(changes) => changes.clone(),
        };
        for change in self.steps[..(sequence - self.base_sequence) as usize].iter().flat_map(changes) {
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
