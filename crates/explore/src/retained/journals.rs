//! Where a recorded guest has its journals.

use std::collections::HashSet;
use std::ops::Range;

use afterimage_format::payload_hash;
use afterimage_trace::{Op, Recording, TargetId};

use super::side::{journal_ranges, Side};

/// Those of one disk, in bytes.
pub(crate) struct Journals {
    superblocks: Vec<Range<u64>>,
    logs: Vec<Range<u64>>,
    /// The journal that was written to last is in use. Programs that make or mend a file system wait for all their writes.
    mounted: bool,
    /// What has been written into the logs: hashes of blocks, but for empty ones.
    logged: HashSet<u32>,
}

/// Whether two ranges have anything in common.
pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Journals {
    /// As they are in the end: some guests make their file systems first.
    pub fn of(recording: &Recording, disks: &[TargetId]) -> Vec<Self> {
        let of_disk = |disk: &TargetId| {
            let side = Side::new(recording.content_before(*disk, recording.events.len()));
            let bytes = |(from, to): (u64, u64)| from * 4096..to * 4096;
            let superblock = |from: u64| from..from + 4096;
            let logs: Vec<_> = side.layouts.iter().flat_map(journal_ranges).map(bytes).collect();
            let superblocks = side.layouts.iter().filter_map(|layout| journal_ranges(layout).next());
            Self {
                superblocks: superblocks.map(|(from, _)| superblock(from * 4096)).collect(),
                logs,
                mounted: false,
                logged: HashSet::new(),
            }
        };
        disks.iter().map(of_disk).collect()
    }

    /// The guest asks for that.
    pub fn see(&mut self, op: &Op) {
        let Op::Write { offset, data, .. } = op else { return };
        for superblock in &self.superblocks {
            // `s_start`, big-endian.
            let at = (superblock.start + 28).checked_sub(*offset).map(|at| at as usize);
            if let Some(start) = at.and_then(|at| data.get(at..at + 4)) {
                self.mounted = start != [0; 4];
            }
        }
        if self.in_log(&(*offset..offset + data.len() as u64)) {
            self.logged.extend(data.chunks(4096).filter_map(name));
        }
    }

    pub fn in_log(&self, bytes: &Range<u64>) -> bool {
        self.logs.iter().any(|log| overlap(log, bytes))
    }

    /// Whether a write brings home what was logged: nobody waits for it but who moves the journal's tail. For other data outside the
    /// journal an fsync waits, or the commit before which it is ordered.
    pub fn is_checkpoint(&self, op: &Op) -> bool {
        let Op::Write { offset, data, flushed: false } = op else { return false };
        self.mounted
            && !self.in_log(&(*offset..offset + data.len() as u64))
            && data.chunks(4096).all(|block| name(block).is_some_and(|name| self.logged.contains(&name)))
    }

    pub fn in_superblock(&self, bytes: &Range<u64>) -> bool {
        self.superblocks.iter().any(|superblock| overlap(superblock, bytes))
    }
}

/// A block by its content; `None` for one that says nothing.
fn name(block: &[u8]) -> Option<u32> {
    (block.len() == 4096 && block.iter().any(|byte| *byte != 0)).then(|| payload_hash(block))
}
