//! The file system's own journal: replayed, and given one transaction more.

use std::collections::{BTreeMap, HashMap};

use afterimage_block::BlockError;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::{self, AreaView, LogGeometry, Parsed};
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
        let mut tid = self.superblock.sequence();
        let mut replayed = Replayed { transactions: 0, blocks: 0, committed: Tid(tid.0.wrapping_sub(1)) };
        let Some(mut at) = self.superblock.start() else { return Ok(replayed) };
        let (mut newest, mut revoked, mut read) = (BTreeMap::new(), HashMap::new(), 0u64);
        loop {
            let mut view = View { image, layout: &self.layout };
            let Parsed::Complete(transaction) = log::parse(&mut view, &self.geometry, at, tid)? else {
                break;
            };
            read += u64::from(transaction.blocks);
            if read > u64::from(self.geometry.log_blocks()) {
                return corrupt("the journal holds more than there is room for");
            }
            let number = replayed.transactions;
            revoked.extend(transaction.revokes.iter().map(|block| (*block, number)));
            newest.extend(transaction.tags.iter().map(|tag| (tag.home, (*tag, number))));
            replayed.transactions += 1;
            replayed.committed = tid;
            (at, tid) = (transaction.next, tid.next());
        }
        for (home, (tag, number)) in newest {
            // A revoke holds for its own transaction and all before it.
            if revoked.get(&home).is_some_and(|&revoke| revoke >= number) {
                continue;
            }
            let mut content = image.get(self.home(tag.at)?)?;
            if tag.escaped {
                content[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            image.write(home.0, &content)?;
            replayed.blocks += 1;
        }
        image.sync()?;
        self.write_superblock(image, tid, None)?;
        Ok(replayed)
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
