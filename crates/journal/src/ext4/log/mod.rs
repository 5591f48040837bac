//! The log as jbd2 writes it: descriptor, revoke and commit blocks (kernel: `fs/jbd2/recovery.c`, `include/linux/jbd2.h`).
//!
//! ```text
//! [revoke]* ([descriptor][logged block]*)* [commit]   one transaction, all blocks with its id but the logged ones
//! ```
//!
//! **What a crash may leave.** The commit block is written when everything before it is durable, so a transaction with
//! its commit block is whole, and one without never happened. With `journal_async_commit` the commit block goes out with
//! the others, and checksums tell whether they all arrived. Blocks of an earlier lap, or of an earlier file system in the
//! same place, stand wherever nothing was written yet: a wrong id or a wrong checksum there means "not yet", and only a
//! sound commit block turns a contradiction before it into corruption.

mod block;
mod checksum;
#[cfg(any(test, feature = "testkit"))]
#[path = "../../../testkit/encode.rs"]
pub mod encode;
#[cfg(any(test, feature = "testkit"))]
#[path = "../../../testkit/log_fuzz.rs"]
pub mod fuzz;
#[cfg(any(test, feature = "testkit"))]
#[path = "../../../testkit/oracle.rs"]
pub mod oracle;

use afterimage_block::BlockError;

use crate::error::JournalError;
use crate::ext4::layout::superblock::{Features, JournalSuperblock};
use crate::ext4::layout::Layout;
use crate::ids::{AreaBlock, Block, FsBlock, Tid};
use crate::versions::Reader;
use block::{Kind, RawTag, Shape};

/// Revoked blocks of one transaction, metadata that was freed: half a terabyte's worth of them. What is read at once must not be
/// as large as a guest likes.
const REVOKES_MAX: usize = 1 << 21;

/// Logged blocks of one transaction: twice what jbd2 lets into one of the largest journal that mke2fs makes (1 GiB, of which
/// it takes a quarter).
const TAGS_MAX: usize = 1 << 17;

/// The most memory that one transaction takes while it is read: lists that grow have room for twice as much.
pub const TRANSACTION_BYTES_MAX: usize =
    2 * (REVOKES_MAX * size_of::<FsBlock>() + TAGS_MAX * size_of::<Tag>());

/// Where the log's blocks are read from.
pub trait AreaView {
    /// The block's content: a reference into memory, or `scratch` filled.
    ///
    /// # Errors
    /// The disk below could not be read.
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError>;

    /// The kernel's `crc32c` of the block's content, from zero, where it is known already.
    fn sum(&self, at: AreaBlock) -> Option<u32> {
        let _ = at;
        None
    }

    /// Whether it is known that nothing was written to the block since the log began.
    fn lacks(&self, at: AreaBlock) -> bool {
        let _ = at;
        false
    }
}

impl AreaView for Reader<'_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        self.get(at, scratch)
    }

    fn sum(&self, at: AreaBlock) -> Option<u32> {
        self.note(at)
    }
}

/// A block's part in its tag's checksum: see [`AreaView::sum`].
pub fn sum(block: &Block) -> u32 {
    checksum::crc32c(0, block)
}

/// What a reader of the log must know.
#[derive(Clone, Debug)]
pub struct LogGeometry {
    /// `s_first`.
    pub first: AreaBlock,
    /// `s_maxlen`: the log wraps from here to `first`.
    pub maxlen: u32,
    /// The journal's features.
    pub features: Features,
    /// The journal's UUID, which seeds its checksums.
    pub uuid: [u8; 16],
    /// The file system's size in blocks: a home block lies below it.
    pub fs_blocks: u64,
    /// Ranges `[from, to)` of file system blocks that can be nobody's home: the journal's own. Ascending, none over
    /// another.
    pub forbidden: Vec<(FsBlock, FsBlock)>,
}

impl LogGeometry {
    /// Of a journal whose file system may grow into all of its room.
    pub fn new(superblock: &JournalSuperblock, layout: &Layout) -> Self {
        let mut forbidden: Vec<_> =
            layout.journal.iter().map(|e| (e.home, FsBlock(e.home.0 + u64::from(e.blocks)))).collect();
        forbidden.sort_unstable();
        Self {
            first: superblock.first(),
            maxlen: superblock.maxlen(),
            features: superblock.features(),
            uuid: superblock.uuid(),
            fs_blocks: layout.room_blocks,
            forbidden,
        }
    }

    /// Blocks that the log can hold.
    pub fn log_blocks(&self) -> u32 {
        self.maxlen.saturating_sub(self.first.0)
    }

    /// Whether a block lies in the log.
    pub fn contains(&self, at: AreaBlock) -> bool {
        (self.first.0..self.maxlen).contains(&at.0)
    }

    /// Blocks from one on up to another, with wrap.
    pub fn distance(&self, from: AreaBlock, to: AreaBlock) -> u32 {
        match to.0.checked_sub(from.0) {
            Some(blocks) => blocks,
            None => self.log_blocks() - (from.0 - to.0),
        }
    }

    /// The block after this one, wrapped.
    pub fn after(&self, at: AreaBlock) -> AreaBlock {
        match at.0.checked_add(1).filter(|next| *next < self.maxlen) {
            Some(next) => AreaBlock(next),
            None => self.first,
        }
    }

    /// Whether a block can be logged: inside the file system, outside its journal.
    fn is_home(&self, home: FsBlock) -> bool {
        let before = self.forbidden.partition_point(|(from, _)| *from <= home);
        home.0 < self.fs_blocks && before.checked_sub(1).is_none_or(|i| self.forbidden[i].1 <= home)
    }
}

/// One logged block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its place in the file system.
    pub home: FsBlock,
    /// Where in the log its content is.
    pub at: AreaBlock,
    /// The content began with jbd2's magic, which the log holds as zeroes (JBD2_FLAG_ESCAPE).
    pub escaped: bool,
}

/// A complete transaction: every block of it is in the log and agrees with its checksums.
///
/// A revoke of a block in transaction T means that its versions in T *and in every earlier transaction* do not go home
/// (recovery.c, `jbd2_journal_test_revoke`: skipped unless the tag's transaction is younger than the revoke's). So where
/// one transaction holds a tag and a revoke of the same block, the revoke wins. A stock kernel never writes that: logging
/// a block again cancels its revoke (`jbd2_journal_cancel_revoke`), and revoking one takes it out of the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its id.
    pub tid: Tid,
    /// Its first block.
    pub start: AreaBlock,
    /// The block after its commit block, wrapped.
    pub next: AreaBlock,
    /// Blocks from `start` up to `next`, with wrap.
    pub blocks: u32,
    /// In log order; the last one of a home block counts.
    pub tags: Vec<Tag>,
    /// Blocks whose versions in this and earlier transactions must not go home, unless logged by a later one.
    pub revokes: Vec<FsBlock>,
    /// `h_commit_sec`.
    pub commit_sec: u64,
}

/// What stands in the log at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// All of it.
    Complete(Transaction),
    /// No commit block of that transaction yet: not begun, still being written, or (`journal_async_commit`) its commit block
    /// came before the others. Then it is to be parsed again when any block of the log after `start` was written.
    Incomplete,
}

/// Reads the transaction `tid` at `start`.
///
/// # Errors
/// *Corrupt* where a transaction with its commit block contradicts itself: a home outside the file system or inside the
/// journal, a checksum (with `journal_async_commit`, where blocks may still be missing, that of a logged block is
/// [`Parsed::Incomplete`]), a revoke block's length; and where descriptors run past the log's length. Where commit block
/// and an earlier block both have wrong checksums, or a wrong one stands alone, they are an earlier file system's:
/// *incomplete*. I/O errors of the view.
pub fn parse(
    view: &mut dyn AreaView,
    geometry: &LogGeometry,
    start: AreaBlock,
    tid: Tid,
) -> Result<Parsed, JournalError> {
    Ok(match Walk::new(geometry, start, tid)?.go_on(view, geometry)? {
        Walked::Complete(transaction) => Parsed::Complete(transaction),
        Walked::Stopped(_) | Walked::Incomplete { .. } => Parsed::Incomplete,
    })
}

/// How far a transaction was read.
#[derive(Debug)]
pub(crate) enum Walked {
    /// All of it is there.
    Complete(Transaction),
    /// The block at [`Walk::awaits`] is not there yet. What comes behind it changes nothing, and what came before it was read.
    Stopped(Walk),
    /// Any of the blocks up to this one, or of the log, is not there yet. What comes behind it changes nothing.
    Incomplete { read: Option<AreaBlock> },
}

/// A transaction while it is read.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    shape: Shape,
    next: AreaBlock,
    /// The transaction so far.
    read: Transaction,
    /// The last descriptor's tags whose blocks come next.
    tags: std::vec::IntoIter<RawTag>,
    /// JBD2_FEATURE_COMPAT_CHECKSUM: CRC-32 of descriptors and logged blocks.
    crc: u32,
    /// [`Shape::before_content`].
    before: Option<u32>,
    /// A descriptor or revoke block whose checksum is wrong.
    unsigned: Option<String>,
    /// The first contradiction.
    wrong: Option<String>,
    /// A logged block that its tag's checksum does not fit.
    mismatch: Option<String>,
}

impl Walk {
    /// Of the transaction `tid` at `start`.
    ///
    /// # Errors
    /// *Corrupt*: no log has one there.
    pub(crate) fn new(geometry: &LogGeometry, start: AreaBlock, tid: Tid) -> Result<Self, JournalError> {
        let shape = Shape::new(geometry.features, &geometry.uuid);
        if !geometry.contains(start) {
            return Err(JournalError::Corrupt(format!(
                "transaction {tid} at journal block {start}: the log is blocks {} to {}",
                geometry.first, geometry.maxlen
            )));
        }
        if geometry.features.checksum && shape.is_signed() {
            // The kernel refuses to load such a journal.
            return Err(JournalError::Corrupt("checksum features that exclude each other".to_owned()));
        }
        let read = Transaction {
            tid,
            start,
            next: start,
            blocks: 0,
            tags: Vec::new(),
            revokes: Vec::new(),
            commit_sec: 0,
        };
        Ok(Self {
            shape,
            next: start,
            read,
            tags: Vec::new().into_iter(),
            crc: !0,
            before: shape.before_content(tid),
            unsigned: None,
            wrong: None,
            mismatch: None,
        })
    }

    /// The block that is read next: of one that was stopped, the one that it waits for.
    pub(crate) fn awaits(&self) -> AreaBlock {
        self.next
    }

    /// Blocks that it knows of.
    pub(crate) fn known(&self) -> usize {
        self.read.tags.len() + self.read.revokes.len()
    }

    /// Reads on, in the log of which it has read the beginning.
    ///
    /// # Errors
    /// As [`parse`].
    pub(crate) fn go_on(
        mut self,
        view: &mut dyn AreaView,
        geometry: &LogGeometry,
    ) -> Result<Walked, JournalError> {
        let mut scratch = [0; crate::BLOCK_BYTES];
        loop {
            let Some(at) = self.step(geometry)? else { return Ok(Walked::Incomplete { read: None }) };
            // With `journal_async_commit` what was not written yet is an earlier lap's, and may look like anything.
            if geometry.features.async_commit && view.lacks(at) {
                return Ok(self.stopped(at));
            }
            if let Some(tag) = self.tags.as_slice().first().copied() {
                if !self.logged(view, geometry, at, tag, &mut scratch)? {
                    return Ok(self.stopped(at));
                }
                self.tags.next();
                continue;
            }
            let found = view.block(at, &mut scratch)?;
            match block::kind(found, self.read.tid) {
                None => return Ok(self.stopped(at)),
                Some(Kind::Descriptor) => self.descriptor(geometry, at, found),
                Some(Kind::Revoke) => self.revoke(geometry, at, found),
                Some(Kind::Commit) => return self.commit(geometry, at, found),
            }
        }
    }

    /// The block of the last step is to be read again.
    fn stopped(mut self, at: AreaBlock) -> Walked {
        self.read.blocks -= 1;
        self.next = at;
        Walked::Stopped(self)
    }

    /// The next block of the transaction. `None`: what said that there is one was never this journal's.
    fn step(&mut self, geometry: &LogGeometry) -> Result<Option<AreaBlock>, JournalError> {
        if self.read.blocks == geometry.log_blocks() {
            if self.unsigned.is_some() {
                return Ok(None);
            }
            return Err(self.corrupt("runs past the length of the log"));
        }
        self.read.blocks += 1;
        let at = self.next;
        self.next = geometry.after(at);
        Ok(Some(at))
    }

    fn corrupt(&self, what: &str) -> JournalError {
        JournalError::Corrupt(format!("transaction {}: {what}", self.read.tid))
    }

    fn check_tail(&mut self, at: AreaBlock, block: &Block, what: &str) {
        if !self.shape.tail_agrees(block) {
            self.unsigned.get_or_insert_with(|| format!("the checksum of the {what} block at {at} is wrong"));
        }
    }

    fn descriptor(&mut self, geometry: &LogGeometry, at: AreaBlock, block: &Block) {
        self.check_tail(at, block, "descriptor");
        if geometry.features.checksum {
            self.crc = checksum::crc32_be(self.crc, block);
        }
        self.tags = self.shape.tags(block).collect::<Vec<_>>().into_iter();
    }

    /// Whether a logged block is there, as far as that can be told before all of them are.
    fn logged(
        &mut self,
        view: &mut dyn AreaView,
        geometry: &LogGeometry,
        at: AreaBlock,
        tag: RawTag,
        scratch: &mut Block,
    ) -> Result<bool, JournalError> {
        if self.read.tags.len() == TAGS_MAX {
            self.wrong.get_or_insert_with(|| format!("more than {TAGS_MAX} blocks are logged"));
            return Ok(true);
        }
        let home = FsBlock(tag.home);
        if !geometry.is_home(home) {
            self.wrong.get_or_insert_with(|| format!("block {home} can be nobody's home"));
        }
        if let Some(before) = self.before {
            let sum = match view.sum(at) {
                Some(sum) => sum,
                None => sum(view.block(at, scratch)?),
            };
            if !self.shape.content_agrees(&tag, before ^ sum) {
                if geometry.features.async_commit {
                    return Ok(false);
                }
                self.mismatch.get_or_insert_with(|| format!("the checksum of block {home} at {at} is wrong"));
            }
        }
        if geometry.features.checksum {
            self.crc = checksum::crc32_be(self.crc, view.block(at, scratch)?);
        }
        self.read.tags.push(Tag { home, at, escaped: tag.escaped });
        Ok(true)
    }

    fn revoke(&mut self, geometry: &LogGeometry, at: AreaBlock, block: &Block) {
        self.check_tail(at, block, "revoke");
        let Some(records) = self.shape.revokes(block) else {
            self.wrong.get_or_insert_with(|| format!("the revoke block at {at} has no possible length"));
            return;
        };
        for record in records {
            if self.read.revokes.len() == REVOKES_MAX {
                self.wrong.get_or_insert_with(|| format!("more than {REVOKES_MAX} blocks are revoked"));
                return;
            }
            if record >= geometry.fs_blocks {
                self.wrong.get_or_insert_with(|| format!("revoked block {record} is not in the file system"));
            }
            self.read.revokes.push(FsBlock(record));
        }
    }

    fn commit(
        mut self,
        geometry: &LogGeometry,
        at: AreaBlock,
        block: &Block,
    ) -> Result<Walked, JournalError> {
        let features = geometry.features;
        let agrees = self.shape.commit_agrees(block);
        if let Some(what) = &self.unsigned {
            return if agrees { Err(self.corrupt(what)) } else { Ok(Walked::Incomplete { read: Some(at) }) };
        }
        if !agrees && at == self.read.start {
            // All of a transaction that nothing announced: what an earlier file system left beyond the head.
            return Ok(Walked::Incomplete { read: Some(at) });
        }
        if !agrees {
            return Err(self.corrupt(&format!("the checksum of the commit block at {at} is wrong")));
        }
        if let Some(what) = &self.wrong {
            return Err(self.corrupt(what));
        }
        if features.checksum && !block::transaction_agrees(block, self.crc) {
            self.mismatch.get_or_insert_with(|| format!("the commit block at {at} has another checksum"));
        }
        if let Some(what) = &self.mismatch {
            return if features.async_commit {
                Ok(Walked::Incomplete { read: Some(at) })
            } else {
                Err(self.corrupt(what))
            };
        }
        self.read.next = self.next;
        self.read.commit_sec = block::commit_sec(block);
        Ok(Walked::Complete(self.read))
    }
}

/// Bytes that every block of a log but the logged ones begins with.
pub const HEADER_BYTES: usize = block::HEADER;

/// Whose block of a log a block is, by its first [`HEADER_BYTES`]; `None` of a logged one, which never begins like that.
pub fn header_tid(header: &[u8]) -> Option<Tid> {
    let tid = Tid(u32::from_be_bytes([header[8], header[9], header[10], header[11]]));
    block::kind(header, tid).map(|_| tid)
}

/// Whose commit block a block is, by its first [`HEADER_BYTES`] alone, magic and type: cheap, to know when to [`parse`].
pub fn commit_tid(header: &[u8]) -> Option<Tid> {
    let tid = Tid(u32::from_be_bytes([header[8], header[9], header[10], header[11]]));
    (block::kind(header, tid) == Some(Kind::Commit)).then_some(tid)
}
