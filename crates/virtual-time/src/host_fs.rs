//! **A model** of the journal of the host's file system below images and logs: what an fdatasync of a file costs besides its data.
//! Nested journaling (vDrive § 4.2), without a second kernel. A state machine: it is told what happens to files and says what a commit
//! writes; the page cache has the device.
//!
//! Assumed, after ext4 and jbd2 (fs/ext4/fsync.c, fs/jbd2/commit.c of 6.1; 4 KiB blocks, delayed allocation, metadata checksums):
//! - A write into a hole allocates when it is written out: the file's inode, its group's bitmap and the group's descriptor join the
//!   running transaction, and a leaf of the file's extent tree once it has more than four extents. A write to blocks that are there
//!   changes timestamps only: the inode joins, but no fdatasync waits for that.
//! - An fdatasync writes the file's data. If something of the file's that it needs is in the running transaction, all of that transaction
//!   commits: descriptor blocks and metadata in one piece, a flush when these and the data are there, the commit block, a flush (FUA
//!   on a drive without it). Otherwise it is one flush.
//! - `data=journal`: data joins the transaction, too, and has its blocks at once; it goes home, and is flushed, after the commit. O_DIRECT is not direct there.
//! - A transaction commits by itself 5 s after it began. Committed metadata goes home through the page cache: after 30 s.
//! - `nobarrier`: the same writes, and no flush reaches the device.
//!
//! Checked against a real nested ext4 (Linux 6.18, a loop device's own counts, in the tests): the same requests, bytes and flushes for
//! single writes; for twenty random ones a sync 13 journal blocks, not 20. Left out: a journal without room, commits
//! that overlap, fast commits, the extent tree's upper levels, and everything about where the allocator puts blocks: a file's block
//! lies where its offset says.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::extents::Extents;

/// What lies between images and the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostFs {
    /// Nothing: a sync is its data and a flush.
    #[default]
    Bare,
    /// A model of ext4, `data=ordered`.
    Ordered,
    /// The same, and the device's cache is never flushed (`nobarrier`).
    OrderedNobarrier,
    /// A model of ext4, `data=journal`.
    Journal,
}

impl HostFs {
    /// Whether syncs flush the device's cache.
    pub fn flushes(self) -> bool {
        self != Self::OrderedNobarrier
    }

    /// Whether data goes through the journal.
    pub fn journals_data(self) -> bool {
        self == Self::Journal
    }
}

const BLOCK: u64 = 4096;
/// Blocks of a bitmap's group.
const GROUP_BYTES: u64 = BLOCK * BLOCK * 8;
/// Of 64 bytes, in a block.
const DESCRIPTORS_PER_BLOCK: u64 = 64;
const EXTENTS_IN_INODE: usize = 4;
const EXTENTS_PER_LEAF: usize = 340;
/// Tags of 16 bytes after a header, before a checksum.
const TAGS_PER_DESCRIPTOR: u64 = 254;
const JOURNAL_BYTES: u64 = 128 << 20;
/// `commit=`
const COMMITS: Duration = Duration::from_secs(5);

/// Files of the file system's own, among those of the device.
pub const JOURNAL_FILE: u64 = 1 << 20;
/// Where bitmaps, inodes and leaves are.
pub const METADATA_FILE: u64 = JOURNAL_FILE + 1;

/// A commit, as it reaches the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Descriptor blocks, metadata, journalled data: in [`JOURNAL_FILE`].
    pub body: Range<u64>,
    /// The commit block, behind it.
    pub record: Range<u64>,
    /// What is to go home some time, in [`METADATA_FILE`].
    pub home: Vec<Range<u64>>,
}

#[derive(Debug, Default)]
struct Inode {
    allocated: Extents,
    /// Something of it that an fdatasync needs is in the running transaction.
    is_needed: bool,
}

/// See the module.
#[derive(Debug)]
pub struct HostJournal {
    journals_data: bool,
    files: BTreeMap<u64, Inode>,
    begun: Option<Duration>,
    /// Places in [`METADATA_FILE`].
    metadata: BTreeSet<u64>,
    /// By file.
    data: BTreeMap<u64, Extents>,
    head: u64,
}

impl HostJournal {
    /// Of a file system that has just been mounted; `None` where there is none.
    pub fn new(host: HostFs) -> Option<Self> {
        (host != HostFs::Bare).then(|| Self {
            journals_data: host.journals_data(),
            files: BTreeMap::new(),
            begun: None,
            metadata: BTreeSet::new(),
            data: BTreeMap::new(),
            head: 0,
        })
    }

    /// Blocks of a file that were there before.
    pub fn lay_out(&mut self, file: u64, range: Range<u64>) {
        self.files.entry(file).or_default().allocated.insert(blocks(range));
    }

    /// A program wrote to a file.
    pub fn wrote(&mut self, now: Duration, file: u64, range: Range<u64>) {
        self.join(now, inode_of(file));
        if self.journals_data {
            self.data.entry(file).or_default().insert(blocks(range.clone()));
            self.files.entry(file).or_default().is_needed = true;
            self.writes_out(now, file, range);
        }
    }

    /// A range of a file's data is written out: it needs blocks.
    pub fn writes_out(&mut self, now: Duration, file: u64, range: Range<u64>) {
        let inode = self.files.entry(file).or_default();
        let missing = inode.allocated.missing(blocks(range));
        if missing.is_empty() {
            return;
        }
        inode.is_needed = true;
        for gap in missing {
            inode.allocated.insert(gap.clone());
            // Leaves share the file evenly.
            let (extents, end) = (inode.allocated.len(), inode.allocated.end());
            let leaves =
                if extents > EXTENTS_IN_INODE { extents.div_ceil(EXTENTS_PER_LEAF) as u64 } else { 0 };
            let mut joins = vec![inode_of(file)];
            joins.extend((leaves > 0).then(|| leaf_of(file, gap.start / (end / leaves + 1))));
            for group in gap.start / GROUP_BYTES..gap.end.div_ceil(GROUP_BYTES) {
                joins.extend([bitmap_of(file, group), descriptors_of(file, group)]);
            }
            self.begun.get_or_insert(now);
            self.metadata.extend(joins);
        }
    }

    fn join(&mut self, now: Duration, place: u64) {
        self.begun.get_or_insert(now);
        self.metadata.insert(place);
    }

    /// What an fdatasync of a file commits, after its data was written out (`data=journal`: before).
    pub fn sync(&mut self, file: u64) -> Option<Commit> {
        let is_needed = self.files.get(&file).is_some_and(|inode| inode.is_needed);
        is_needed.then(|| self.commit())
    }

    /// When the running transaction commits by itself.
    pub fn due(&self) -> Option<Duration> {
        Some(self.begun? + COMMITS)
    }

    /// All of the running transaction, if there is something in it.
    pub fn commit_any(&mut self) -> Option<Commit> {
        self.begun.is_some().then(|| self.commit())
    }

    fn commit(&mut self) -> Commit {
        let data: u64 = std::mem::take(&mut self.data).values().map(|extents| extents.bytes() / BLOCK).sum();
        let home: Vec<_> = std::mem::take(&mut self.metadata).into_iter().map(|at| at..at + BLOCK).collect();
        let tags = home.len() as u64 + data;
        let bytes = (tags + tags.div_ceil(TAGS_PER_DESCRIPTOR)) * BLOCK;
        if self.head + bytes + BLOCK > JOURNAL_BYTES {
            self.head = 0;
        }
        let body = self.head..self.head + bytes;
        let record = body.end..body.end + BLOCK;
        self.head = record.end;
        self.begun = None;
        for inode in self.files.values_mut() {
            inode.is_needed = false;
        }
        Commit { body, record, home }
    }
}

fn blocks(range: Range<u64>) -> Range<u64> {
    range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK)
}

/// Each file's groups are its own; sixteen inodes to a block, as of 256 bytes.
fn inode_of(file: u64) -> u64 {
    file / 16 * BLOCK
}

fn place(file: u64, kind: u64, number: u64) -> u64 {
    ((file + 1) << 32) | (kind << 30) | (number * BLOCK)
}

fn leaf_of(file: u64, number: u64) -> u64 {
    place(file, 1, number)
}

fn bitmap_of(file: u64, group: u64) -> u64 {
    place(file, 2, group)
}

fn descriptors_of(file: u64, group: u64) -> u64 {
    place(file, 3, group / DESCRIPTORS_PER_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn ordered() -> HostJournal {
        HostJournal::new(HostFs::Ordered).unwrap()
    }

    /// What a journal writes for an fdatasync after these writes of 4 KiB, in blocks; 0: it commits nothing.
    fn synced(journal: &mut HostJournal, places: &[u64]) -> u64 {
        for at in places {
            journal.wrote(NOW, 1, at * BLOCK..(at + 1) * BLOCK);
        }
        for at in places {
            journal.writes_out(NOW, 1, at * BLOCK..(at + 1) * BLOCK);
        }
        let commit = journal.sync(1);
        commit.map_or(0, |commit| (commit.record.end - commit.body.start) / BLOCK)
    }

    // Real counts: a loop device below ext4 of Linux 6.18, 200 times each, its KiB less the data's.
    #[test]
    fn a_write_into_a_hole_costs_what_a_real_ext4_writes() {
        let mut journal = ordered();
        for at in 0..200 {
            assert_eq!(synced(&mut journal, &[at]), 5, "24 KiB with the data: descriptor, three, commit");
        }
        // Far apart, so that no two are one extent: 27.94 KiB with the data.
        let mut journal = ordered();
        let written: u64 = (0..200).map(|at| synced(&mut journal, &[at * 37 % 200 * 1000])).sum();
        assert!((5 * 200..=6 * 200).contains(&written) && written > 1180, "a leaf, too: {written}");
        // Twenty at a time: 160.3 KiB with 80 of data are 20 blocks; the real allocator spreads a file over more groups.
        let mut journal = ordered();
        let written: u64 = (0..200u64)
            .map(|turn| {
                let places: Vec<u64> = (0..20).map(|n| (turn * 20 + n) * 104_729 % (1 << 18)).collect();
                synced(&mut journal, &places)
            })
            .sum();
        assert!((12..=20).contains(&(written / 200)), "{}", written / 200);
    }

    #[test]
    fn overwriting_commits_nothing_until_five_seconds_are_over() {
        let mut journal = ordered();
        journal.lay_out(1, 0..1 << 30);
        for at in 0..200 {
            assert_eq!(synced(&mut journal, &[at]), 0, "4 KiB and one flush");
        }
        assert_eq!(journal.due(), Some(NOW + COMMITS));
        let commit = journal.commit_any().unwrap();
        assert_eq!((commit.body.end - commit.body.start, commit.home.len()), (2 * BLOCK, 1), "the inode");
        assert_eq!((journal.due(), journal.commit_any()), (None, None));
    }

    #[test]
    fn a_sync_commits_what_is_needed_of_its_own_file_and_all_that_is_with_it() {
        let mut journal = ordered();
        journal.lay_out(2, 0..1 << 20);
        journal.wrote(NOW, 2, 0..BLOCK);
        journal.writes_out(NOW, 1, 0..BLOCK);
        assert_eq!(journal.sync(2), None);
        assert!(journal.sync(1).is_some());
        assert_eq!(journal.sync(1), None, "once");
    }

    #[test]
    fn journalled_data_is_written_twice() {
        let mut journal = HostJournal::new(HostFs::Journal).unwrap();
        journal.lay_out(1, 0..1 << 30);
        // Real: 20 KiB with the home write, where timestamps had changed.
        assert_eq!(synced(&mut journal, &[7]), 4, "descriptor, inode, data, commit");
        assert_eq!(synced(&mut journal, &[7, 8, 7]), 5);
        // Real: 28 KiB.
        assert_eq!(synced(&mut journal, &[1 << 20]), 6);
    }

    #[test]
    fn a_journal_is_a_ring() {
        let mut journal = ordered();
        let mut last = 0;
        let mut wraps = 0;
        for at in 0..20_000 {
            journal.writes_out(NOW, 1, at * BLOCK..(at + 1) * BLOCK);
            let commit = journal.sync(1).unwrap();
            assert!(commit.record.end <= JOURNAL_BYTES);
            wraps += u32::from(commit.body.start < last);
            last = commit.body.start;
        }
        assert_eq!(wraps, 3, "20,000 of 20 KiB in 128 MiB");
    }
}
