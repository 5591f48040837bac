//! The journal superblock (jbd2's `journal_superblock_t`, big-endian; kernel: `include/linux/jbd2.h`,
//! `Documentation/filesystems/ext4/journal.rst`).
//!
//! Ranges are those that `jbd2_journal_load` insists on, so that what is accepted here is what the guest would mount.
//! The fields that the guest alone owns (`s_errno`, `s_head`, `s_nr_users` and the rest) pass through untouched.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::crc32c;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Tid, BLOCK_BYTES};

/// `JBD2_MAGIC_NUMBER`.
const MAGIC: u32 = 0xC03B_3998;
/// `JBD2_SUPERBLOCK_V1` and `JBD2_SUPERBLOCK_V2`, the block types.
const V1: u32 = 3;
const V2: u32 = 4;
/// `JBD2_CRC32C_CHKSUM`.
const CRC32C: u8 = 4;
/// `JBD2_MIN_JOURNAL_BLOCKS`: fewer usable blocks are refused by the kernel.
const BLOCKS_MIN: u32 = 1024;

const COMPAT_CHECKSUM: u32 = 0x1;
const INCOMPAT_REVOKE: u32 = 0x1;
const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
const INCOMPAT_CSUM_V2: u32 = 0x8;
const INCOMPAT_CSUM_V3: u32 = 0x10;
const INCOMPAT_FAST_COMMIT: u32 = 0x20;
/// iJournaling's (docs/ijournaling.md), no jbd2's.
const INCOMPAT_IJOURNAL: u32 = 0x4000_0000;
const INCOMPAT_KNOWN: u32 = INCOMPAT_REVOKE
    | INCOMPAT_64BIT
    | INCOMPAT_ASYNC_COMMIT
    | INCOMPAT_CSUM_V2
    | INCOMPAT_CSUM_V3
    | INCOMPAT_IJOURNAL;

/// The superblock's own bytes; the rest of its block is nobody's.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    h_magic: U32,
    h_blocktype: U32,
    h_sequence: U32,
    s_blocksize: U32,
    s_maxlen: U32,
    s_first: U32,
    s_sequence: U32,
    s_start: U32,
    s_errno: U32,
    s_feature_compat: U32,
    s_feature_incompat: U32,
    s_feature_ro_compat: U32,
    s_uuid: [u8; 16],
    s_nr_users: U32,
    s_dynsuper: U32,
    s_max_transaction: U32,
    s_max_trans_data: U32,
    s_checksum_type: u8,
    s_padding2: [u8; 3],
    s_num_fc_blks: U32,
    s_head: U32,
    s_padding: [u8; 160],
    s_checksum: U32,
    s_users: [u8; 768],
}

const _: () = assert!(size_of::<Raw>() == 1024 && core::mem::offset_of!(Raw, s_checksum) == 0xFC);

/// A journal superblock whose magic, block type, block size, ranges and checksum were verified.
#[derive(Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    bytes: Box<[u8; BLOCK_BYTES]>,
}

impl std::fmt::Debug for JournalSuperblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalSuperblock")
            .field("sequence", &self.sequence())
            .field("start", &self.start())
            .field("first", &self.first())
            .field("maxlen", &self.maxlen())
            .field("errno", &self.errno())
            .field("features", &self.features())
            .finish_non_exhaustive()
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

impl Features {
    /// Whether descriptor, revoke and commit blocks and the superblock carry a CRC-32C.
    pub fn checksummed(self) -> bool {
        self.csum_v2 || self.csum_v3
    }
}

impl JournalSuperblock {
    /// Whether a kernel that has read `before` writes this one: it begins a log behind the one that it has replayed, or goes on from an empty
    /// one, with its id or, at a mount, the next.
    pub(crate) fn goes_on_from(&self, before: &Self) -> bool {
        let (now, then) = (self.sequence(), before.sequence());
        let follows = match before.start() {
            Some(_) => now.is_after(then),
            None => now == then || now == then.next(),
        };
        follows && self.uuid() == before.uuid()
    }

    /// Reads a superblock from the journal's first block.
    ///
    /// # Errors
    /// *Corrupt* where magic, type, sizes or the checksum are wrong; *unsupported* for block sizes other than 4 KiB,
    /// unknown features, and `fast_commit`. Version 1 superblocks, which have no features, are fine.
    pub fn parse(block: &[u8; BLOCK_BYTES]) -> Result<Self, JournalError> {
        let corrupt = |why: String| JournalError::Corrupt(format!("the journal's superblock {why}"));
        let unsupported = |why: String| JournalError::Unsupported(format!("the journal {why}"));
        let parsed = Self { bytes: Box::new(*block) };
        let raw = parsed.raw();
        if raw.h_magic != MAGIC {
            return Err(corrupt(format!("has the magic number {:#x}, not {MAGIC:#x}", raw.h_magic.get())));
        }
        match raw.h_blocktype.get() {
            V1 => {}
            V2 => {
                let incompat = raw.s_feature_incompat.get();
                if incompat & INCOMPAT_FAST_COMMIT != 0 {
                    return Err(unsupported("uses fast commits".into()));
                }
                if incompat & !INCOMPAT_KNOWN != 0 {
                    return Err(unsupported(format!("has unknown features (incompat {incompat:#x})")));
                }
                if raw.s_feature_ro_compat != 0 {
                    let bits = raw.s_feature_ro_compat.get();
                    return Err(unsupported(format!("has unknown features (ro_compat {bits:#x})")));
                }
            }
            other => return Err(corrupt(format!("has block type {other}, not {V1} or {V2}"))),
        }
        let features = parsed.features();
        if features.csum_v2 && features.csum_v3 || features.checksummed() && features.checksum {
            return Err(corrupt("names several kinds of checksums at once".into()));
        }
        if features.checksummed() {
            if raw.s_checksum_type != CRC32C {
                return Err(corrupt(format!("has checksum type {}, not {CRC32C}", raw.s_checksum_type)));
            }
            if raw.s_checksum != parsed.checksum() {
                return Err(corrupt("does not agree with its checksum".into()));
            }
        }
        match raw.s_blocksize.get() {
            4096 => {}
            size @ (1024 | 2048 | 8192 | 16384 | 32768 | 65536) => {
                return Err(unsupported(format!("has blocks of {size} bytes; only 4096 are handled")));
            }
            size => return Err(corrupt(format!("has a block size of {size} bytes"))),
        }
        let (maxlen, first, start) = (raw.s_maxlen.get(), raw.s_first.get(), raw.s_start.get());
        if first == 0 || first >= maxlen {
            return Err(corrupt(format!("lets the log begin at block {first} of {maxlen}")));
        }
        if maxlen - first + 1 < BLOCKS_MIN {
            return Err(corrupt(format!(
                "gives the log blocks {first} to {maxlen}, fewer than {BLOCKS_MIN}"
            )));
        }
        if start != 0 && !(first..maxlen).contains(&start) {
            return Err(corrupt(format!("puts the tail at block {start}, outside {first} to {maxlen}")));
        }
        Ok(parsed)
    }

    fn raw(&self) -> &Raw {
        let Ok((raw, _)) = Raw::ref_from_prefix(self.bytes.as_slice()) else {
            unreachable!("a block is longer than a superblock")
        };
        raw
    }

    fn raw_mut(&mut self) -> &mut Raw {
        let Ok((raw, _)) = Raw::mut_from_prefix(self.bytes.as_mut_slice()) else {
            unreachable!("a block is longer than a superblock")
        };
        raw
    }

    /// CRC-32C of the superblock with `s_checksum` zero (`jbd2_superblock_csum`).
    fn checksum(&self) -> u32 {
        let at = core::mem::offset_of!(Raw, s_checksum);
        let bytes = &self.bytes[..size_of::<Raw>()];
        crc32c(crc32c(crc32c(!0, &bytes[..at]), &[0; 4]), &bytes[at + 4..])
    }

    /// The block as it stands.
    pub fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        &self.bytes
    }

    /// `s_sequence`: the first transaction id expected in the log.
    pub fn sequence(&self) -> Tid {
        Tid(self.raw().s_sequence.get())
    }

    /// `s_start`: where the log begins; `None` for 0, an empty log.
    pub fn start(&self) -> Option<AreaBlock> {
        match self.raw().s_start.get() {
            0 => None,
            start => Some(AreaBlock(start)),
        }
    }

    /// `s_first`: the log's first usable block.
    pub fn first(&self) -> AreaBlock {
        AreaBlock(self.raw().s_first.get())
    }

    /// `s_maxlen`: the log wraps to [`JournalSuperblock::first`] here.
    pub fn maxlen(&self) -> u32 {
        self.raw().s_maxlen.get()
    }

    /// `s_uuid`: in an internal journal the file system's UUID when the journal was made.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw().s_uuid
    }

    /// The seed of the checksums of the log's blocks: CRC-32C of the UUID (`journal->j_csum_seed`).
    pub fn checksum_seed(&self) -> u32 {
        crc32c(!0, &self.raw().s_uuid)
    }

    /// `s_errno`: negative once the guest has aborted the journal.
    pub fn errno(&self) -> i32 {
        self.raw().s_errno.get() as i32
    }

    /// Whether this is a version 1 superblock: no features, no UUID of its own.
    pub fn is_v1(&self) -> bool {
        self.raw().h_blocktype == V1
    }

    /// The features that matter for reading the log.
    pub fn features(&self) -> Features {
        if self.is_v1() {
            return Features::default();
        }
        let incompat = self.raw().s_feature_incompat.get();
        Features {
            checksum: self.raw().s_feature_compat.get() & COMPAT_CHECKSUM != 0,
            revoke: incompat & INCOMPAT_REVOKE != 0,
            bits64: incompat & INCOMPAT_64BIT != 0,
            async_commit: incompat & INCOMPAT_ASYNC_COMMIT != 0,
            csum_v2: incompat & INCOMPAT_CSUM_V2 != 0,
            csum_v3: incompat & INCOMPAT_CSUM_V3 != 0,
        }
    }

    /// Whether its file system may have i-transactions.
    pub fn has_ijournal(&self) -> bool {
        !self.is_v1() && self.raw().s_feature_incompat.get() & INCOMPAT_IJOURNAL != 0
    }

    /// The same superblock of a file system that has none, checksummed anew.
    #[must_use]
    pub fn without_ijournal(&self) -> Self {
        let mut changed = self.clone();
        if self.has_ijournal() {
            let incompat = self.raw().s_feature_incompat.get() & !INCOMPAT_IJOURNAL;
            changed.raw_mut().s_feature_incompat.set(incompat);
        }
        changed.signed()
    }

    /// The same superblock with another tail, checksummed anew. `None` marks the log empty. A `start` outside
    /// `first..maxlen` is a bug of the caller and makes a superblock that [`JournalSuperblock::parse`] refuses.
    #[must_use]
    pub fn with_tail(&self, sequence: Tid, start: Option<AreaBlock>) -> Self {
        debug_assert!(start.is_none_or(|at| (self.first().0..self.maxlen()).contains(&at.0)));
        let mut changed = self.clone();
        let raw = changed.raw_mut();
        raw.s_sequence.set(sequence.0);
        raw.s_start.set(start.map_or(0, |at| at.0));
        changed.signed()
    }

    fn signed(mut self) -> Self {
        if self.features().checksummed() {
            let checksum = self.checksum();
            self.raw_mut().s_checksum.set(checksum);
        }
        self
    }
}
