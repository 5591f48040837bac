//! The log as jbd2 writes it: descriptor, revoke and commit blocks (kernel: `fs/jbd2/recovery.c`, `include/linux/jbd2.h`).

use afterimage_block::BlockError;

use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid};
use crate::layout::superblock::Features;

/// Where the log's blocks are read from.
pub trait AreaView {
    /// The block's content: a reference into memory, or `scratch` filled.
    ///
    /// # Errors
    /// The disk below could not be read.
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError>;
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
    /// Ranges `[from, to)` of file system blocks that can be nobody's home: the journal's own.
    pub forbidden: Vec<(FsBlock, FsBlock)>,
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
    /// came before the others.
    Incomplete,
}

/// Reads the transaction `tid` at `start`.
///
/// # Errors
/// *Corrupt* where a block with the right magic and transaction id contradicts itself (a tag out of range, a home inside
/// the journal, a checksum, a descriptor that runs past the log's length). I/O errors of the view.
pub fn parse(
    _view: &mut dyn AreaView,
    _geometry: &LogGeometry,
    _start: AreaBlock,
    _tid: Tid,
) -> Result<Parsed, JournalError> {
    Ok(Parsed::Incomplete)
}

/// Whether a block is a commit block of that transaction, by magic, type and id alone: cheap, to know when to [`parse`].
pub fn is_commit(_block: &Block, _tid: Tid) -> bool {
    false
}

/// Gives a logged block its own content back: jbd2 zeroed the first four bytes where they were its magic.
pub fn unescape(_block: &mut Block) {}
