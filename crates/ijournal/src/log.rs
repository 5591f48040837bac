//! The file system's own journal: replayed, and given one transaction more.

use std::collections::BTreeMap;

use afterimage_block::BlockError;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::{self, AreaView, LogGeometry, Parsed, Transaction};
use afterimage_journal::{AreaBlock, FsBlock, Tid, BLOCK_BYTES};

use crate::bytes::crc32c;
use crate::error::{corrupt, unsupported, Error};
use crate::image::{Block, Image};
use crate::mutation::Mistake;

const MAGIC: u32 = 0xc03b_3998;
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const HEADER: usize = 12;
const COMMIT_SUM: usize = 16;
const ESCAPE: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST_TAG: u32 = 8;

/// Blocks that are replayed at once. A log of more distinct ones is read again for the others, whatever its guest has put into it.
const REPLAYED_MAX: usize = 1 << 19;

/// The most memory that a replay takes: an entry of 16 bytes for each block that is replayed at once, in a tree that may be half empty,
/// and one transaction as it is read.
pub const REPLAY_BYTES_MAX: usize = 3 * 16 * REPLAYED_MAX + log::TRANSACTION_BYTES_MAX;

/// The newest content of the blocks from one on, up to as many as are kept.
struct Newest {
    from: FsBlock,
    /// What is here and behind it is for the next round.
    end: Option<FsBlock>,
    max: usize,
    /// Where in the log it is, and whether it is escaped.
    homes: BTreeMap<FsBlock, (AreaBlock, bool)>,
}

impl Newest {
    fn new(from: FsBlock, max: usize) -> Self {
        Self { from, end: None, max, homes: BTreeMap::new() }
    }

    /// The next transaction, in the order of the log. A revoke holds for its own and all before it: what it names goes, and only a later
    /// one brings it again. So no revoke has to be remembered.
    fn take(&mut self, transaction: &Transaction) {
        for tag in &transaction.tags {
            if tag.home < self.from || self.end.is_some_and(|end| tag.home >= end) {
                continue;
            }
            self.homes.insert(tag.home, (tag.at, tag.escaped));
            if self.homes.len() > self.max {
                self.end = self.homes.pop_last().map(|(home, _)| home);
            }
        }
        for home in &transaction.revokes {
            self.homes.remove(home);
        }
    }
}

/// The journal of one file system.
pub(crate) struct Log {
    layout: Layout,
    geometry: LogGeometry,
    superblock: JournalSuperblock,
}

/// What a replay did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) transactions: u64,
    pub(crate) blocks: u64,
    /// The last transaction that is committed.
    pub(crate) committed: Tid,
}

struct View<'a, 'b> {
    image: &'a mut Image<'b>,
    layout: &'a Layout,
}

impl AreaView for View<'_, '_> {
    fn block<'c>(&'c mut self, at: AreaBlock, scratch: &'c mut Block) -> Result<&'c Block, BlockError> {
        let failed = |why: String| BlockError::io(why.clone(), std::io::Error::other(why));
        let home = self.layout.home_of(at).ok_or_else(|| failed(format!("the journal has no block {at}")))?;
        *scratch = *self.image.get(home.0).map_err(|e| failed(e.to_string()))?;
        Ok(scratch)
    }
}

impl Log {
    pub(crate) fn open(image: &mut Image<'_>, layout: Layout) -> Result<Self, Error> {
        let home = layout.home_of(AreaBlock(0));
        let Some(home) = home else { return corrupt("the journal has no blocks") };
        let superblock = JournalSuperblock::parse(&*image.get(home.0)?)?;
        let geometry = LogGeometry::new(&superblock, &layout);
        Ok(Self { layout, geometry, superblock })
    }

    /// Whether the journal says that there may be valid i-transactions.
    pub(crate) fn has_bit(&self) -> bool {
        self.superblock.has_ijournal()
    }

    /// Whether a newer look found another journal or file system.
    pub(crate) fn is_elsewhere(&self, newer: &Layout) -> bool {
        self.layout.identity_changed(newer)
    }

    fn home(&self, at: AreaBlock) -> Result<u64, Error> {
        match self.layout.home_of(at) {
            Some(FsBlock(home)) => Ok(home),
            None => corrupt(format!("the journal has no block {at}")),
        }
    }

    fn write_superblock(
        &mut self,
        image: &mut Image<'_>,
        tid: Tid,
        start: Option<AreaBlock>,
    ) -> Result<(), Error> {
        self.superblock = self.superblock.with_tail(tid, start);
        let home = self.home(AreaBlock(0))?;
        image.write(home, self.superblock.bytes())?;
        image.sync()
    }

    /// Writes home what is committed, and empties the journal. Outcomes of a cut: the journal as it was, or empty and everything home.
    pub(crate) fn replay(&mut self, image: &mut Image<'_>) -> Result<Replayed, Error> {
        let tid = self.superblock.sequence();
        let mut replayed = Replayed { transactions: 0, blocks: 0, committed: Tid(tid.0.wrapping_sub(1)) };
        let Some(start) = self.superblock.start() else { return Ok(replayed) };
        let mut round = Some(FsBlock(0));
        while let Some(from) = round {
            let mut newest = Newest::new(from, REPLAYED_MAX);
            (replayed.transactions, replayed.committed) = self.read(image, start, tid, &mut newest)?;
            for (home, (at, escaped)) in newest.homes {
                let mut content = image.get(self.home(at)?)?;
                if escaped {
                    content[..4].copy_from_slice(&MAGIC.to_be_bytes());
                }
                image.write(home.0, &content)?;
                replayed.blocks += 1;
            }
            round = newest.end;
        }
        image.sync()?;
        self.write_superblock(image, replayed.committed.next(), None)?;
        Ok(replayed)
    }

    /// Reads the log to its end: how many transactions, and the last one.
    fn read(
        &self,
        image: &mut Image<'_>,
        start: AreaBlock,
        tid: Tid,
        newest: &mut Newest,
    ) -> Result<(u64, Tid), Error> {
        let (mut at, mut tid, mut transactions, mut read) = (start, tid, 0, 0u64);
        loop {
            let mut view = View { image, layout: &self.layout };
            let Parsed::Complete(transaction) = log::parse(&mut view, &self.geometry, at, tid)? else {
                return Ok((transactions, Tid(tid.0.wrapping_sub(1))));
            };
            read += u64::from(transaction.blocks);
            if read > u64::from(self.geometry.log_blocks()) {
                return corrupt("the journal holds more than there is room for");
            }
            newest.take(&transaction);
            (at, tid, transactions) = (transaction.next, tid.next(), transactions + 1);
        }
    }

    /// Commits what is to change as one transaction of an empty journal, and writes it home: see [`crate`] for what a cut leaves.
    pub(crate) fn commit(&mut self, image: &mut Image<'_>, tid: Tid, mistake: Mistake) -> Result<(), Error> {
        let changed = std::mem::take(&mut image.changed);
        if let Some(home) = changed.keys().find(|home| self.layout.area_of(FsBlock(**home)).is_some()) {
            return corrupt(format!("block {home}, which is to be changed, belongs to the journal"));
        }
        let encoded = self.encode(tid, &changed);
        if encoded.len() as u64 > u64::from(self.geometry.log_blocks()) {
            return unsupported(format!(
                "recovery changes {} blocks, more than the journal of {} has room for",
                changed.len(),
                self.geometry.log_blocks()
            ));
        }
        let mut at = self.geometry.first;
        for block in &encoded {
            let home = self.home(at)?;
            image.write(home, block)?;
            at = self.geometry.after(at);
        }
        image.sync()?;
        // One write names the transaction and clears the bit: a recovery that dies behind it has nothing to do but to replay.
        self.superblock = self.superblock.without_ijournal();
        if mistake != Mistake::JournalSkipped {
            self.write_superblock(image, tid, Some(self.geometry.first))?;
        }
        for (home, block) in &changed {
            image.write(*home, block)?;
        }
        image.sync()?;
        self.write_superblock(image, tid.next(), None)
    }

    fn encode(&self, tid: Tid, changed: &BTreeMap<u64, Box<Block>>) -> Vec<Box<Block>> {
        let features = self.geometry.features;
        let seed = features.checksummed().then(|| crc32c(!0, &self.geometry.uuid));
        let tag_bytes = match (features.csum_v3, features.bits64) {
            (true, _) => 16,
            (false, bits64) => 8 + if bits64 { 4 } else { 0 } + if features.csum_v2 { 2 } else { 0 },
        };
        let end = BLOCK_BYTES - if seed.is_some() { 4 } else { 0 };
        let tags = (end - HEADER - 16) / tag_bytes;
        let sign = |block: &mut Block, at: usize| {
            if let Some(seed) = seed {
                let sum = crc32c(seed, block);
                block[at..at + 4].copy_from_slice(&sum.to_be_bytes());
            }
        };
        let homes: Vec<(&u64, &Box<Block>)> = changed.iter().collect();
        let mut encoded = Vec::new();
        for part in homes.chunks(tags) {
            let mut descriptor = header(DESCRIPTOR, tid);
            let (mut at, mut logged) = (HEADER, Vec::new());
            for (i, (&home, content)) in part.iter().enumerate() {
                let mut content = (*content).clone();
                let mut flags = 0;
                if content[..4] == MAGIC.to_be_bytes() {
                    content[..4].fill(0);
                    flags |= ESCAPE;
                }
                flags |= if i > 0 { SAME_UUID } else { 0 };
                flags |= if i + 1 == part.len() { LAST_TAG } else { 0 };
                let sum = seed.map_or(0, |seed| crc32c(crc32c(seed, &tid.0.to_be_bytes()), &content[..]));
                let mut put =
                    |at: usize, bytes: &[u8]| descriptor[at..at + bytes.len()].copy_from_slice(bytes);
                put(at, &(home as u32).to_be_bytes());
                if features.csum_v3 {
                    put(at + 4, &flags.to_be_bytes());
                    put(at + 12, &sum.to_be_bytes());
                } else {
                    put(at + 4, &(sum as u16).to_be_bytes());
                    put(at + 6, &(flags as u16).to_be_bytes());
                }
                if features.bits64 {
                    put(at + 8, &((home >> 32) as u32).to_be_bytes());
                }
                at += tag_bytes;
                if i == 0 {
                    put(at, &self.geometry.uuid);
                    at += 16;
                }
                logged.push(content);
            }
            sign(&mut descriptor, BLOCK_BYTES - 4);
            encoded.push(descriptor);
            encoded.append(&mut logged);
        }
        // No time of a clock: the same recovery is the same bytes.
        let mut commit = header(COMMIT, tid);
        sign(&mut commit, COMMIT_SUM);
        encoded.push(commit);
        encoded
    }
}

fn header(kind: u32, tid: Tid) -> Box<Block> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    for (at, field) in [(0, MAGIC), (4, kind), (8, tid.0)] {
        block[at..at + 4].copy_from_slice(&field.to_be_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use afterimage_journal::log::Tag;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However few blocks are replayed at once, the rounds together are the replay that remembers everything.
        #[test]
        fn rounds_are_the_whole_replay(
            log in proptest::collection::vec(
                (proptest::collection::vec(0u64..12, 0..6), proptest::collection::vec(0u64..12, 0..4)),
                0..8,
            ),
            max in 1usize..13,
        ) {
            let (mut at, mut expected) = (0, BTreeMap::new());
            let mut transactions = Vec::new();
            for (n, (tags, revokes)) in log.into_iter().enumerate() {
                let tag = |home| {
                    at += 1;
                    Tag { home: FsBlock(home), at: AreaBlock(at), escaped: home % 2 == 0 }
                };
                let (tid, start) = (Tid(n as u32), AreaBlock(0));
                let tags: Vec<Tag> = tags.into_iter().map(tag).collect();
                let revokes: Vec<FsBlock> = revokes.into_iter().map(FsBlock).collect();
                for tag in &tags {
                    expected.insert(tag.home, (n, tag.at, tag.escaped));
                }
                expected.retain(|home, (of, ..)| *of > n || !revokes.contains(home));
                let (next, blocks, commit_sec) = (start, 0, 0);
                transactions.push(Transaction { tid, start, next, blocks, tags, revokes, commit_sec });
            }
            let expected: Vec<_> = expected.into_iter().map(|(home, (_, at, escaped))| (home, (at, escaped))).collect();
            let (mut found, mut round) = (Vec::new(), Some(FsBlock(0)));
            while let Some(from) = round {
                let mut newest = Newest::new(from, max);
                transactions.iter().for_each(|transaction| newest.take(transaction));
                prop_assert!(newest.homes.len() <= max);
                found.extend(newest.homes);
                round = newest.end;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
