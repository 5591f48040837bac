//! The three kinds of blocks that make a transaction: what their bytes say, nothing yet checked against a file system.

use super::checksum::crc32c;
use crate::ext4::layout::superblock::Features;
use crate::ids::{Block, Tid, BLOCK_BYTES};

/// JBD2_MAGIC_NUMBER.
pub(super) const MAGIC: u32 = 0xc03b_3998;
/// JBD2_DESCRIPTOR_BLOCK.
const DESCRIPTOR: u32 = 1;
/// JBD2_COMMIT_BLOCK.
pub(super) const COMMIT: u32 = 2;
/// JBD2_REVOKE_BLOCK.
pub(super) const REVOKE: u32 = 5;
/// `sizeof(journal_header_t)`.
pub(super) const HEADER: usize = 12;
/// `sizeof(jbd2_journal_revoke_header_t)`.
pub(super) const REVOKE_HEADER: usize = 16;
/// `sizeof(struct jbd2_journal_block_tail)`.
pub(super) const TAIL: usize = 4;
/// `offsetof(struct commit_header, h_chksum)`.
pub(super) const COMMIT_CHECKSUM: usize = 16;
/// `offsetof(struct commit_header, h_commit_sec)`.
pub(super) const COMMIT_SEC: usize = 48;
/// JBD2_FLAG_ESCAPE.
const ESCAPE: u16 = 1;
/// JBD2_FLAG_SAME_UUID: no UUID of 16 bytes follows the tag.
const SAME_UUID: u16 = 2;
/// JBD2_FLAG_LAST_TAG. (JBD2_FLAG_DELETED, 4, was never written nor read by any kernel.)
const LAST_TAG: u16 = 8;

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// What a block of the log claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Descriptor,
    Commit,
    Revoke,
}

/// The kind of a block with the right magic that belongs to `tid`; `None` for any other block.
pub(super) fn kind(block: &[u8], tid: Tid) -> Option<Kind> {
    if be32(block, 0) != MAGIC || be32(block, 8) != tid.0 {
        return None;
    }
    match be32(block, 4) {
        DESCRIPTOR => Some(Kind::Descriptor),
        COMMIT => Some(Kind::Commit),
        REVOKE => Some(Kind::Revoke),
        _ => None,
    }
}

/// What of the features decides how blocks are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    v3: bool,
    bits64: bool,
    /// With JBD2_FEATURE_INCOMPAT_CSUM_V2 or _V3: what seeds the checksums.
    seed: Option<u32>,
    tag_bytes: usize,
}

/// A tag as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawTag {
    pub(super) home: u64,
    pub(super) escaped: bool,
    /// `t_checksum`: 32 bits of it in v3, 16 in v2.
    pub(super) checksum: u32,
}

impl Shape {
    pub(super) fn new(features: Features, uuid: &[u8; 16]) -> Self {
        let signed = features.checksummed();
        // `journal_tag_bytes`. A v2 tag is two bytes longer than its fields: the kernel's sum counts the checksum twice.
        let tag_bytes = match (features.csum_v3, features.bits64) {
            (true, _) => 16,
            (false, true) => 12 + if features.csum_v2 { 2 } else { 0 },
            (false, false) => 8 + if features.csum_v2 { 2 } else { 0 },
        };
        Self {
            v3: features.csum_v3,
            bits64: features.bits64,
            seed: signed.then(|| super::checksum::uuid_seed(uuid)),
            tag_bytes,
        }
    }

    /// Whether blocks are checksummed one by one.
    pub(super) fn is_signed(&self) -> bool {
        self.seed.is_some()
    }

    /// Bytes before the tail.
    fn end(&self) -> usize {
        BLOCK_BYTES - if self.is_signed() { TAIL } else { 0 }
    }

    /// Whether a descriptor or revoke block agrees with its tail's checksum.
    pub(super) fn tail_agrees(&self, block: &Block) -> bool {
        self.field_agrees(block, BLOCK_BYTES - TAIL)
    }

    /// Whether a commit block agrees with `h_chksum[0]`.
    pub(super) fn commit_agrees(&self, block: &Block) -> bool {
        self.field_agrees(block, COMMIT_CHECKSUM)
    }

    /// Whether the four bytes at `at` are the checksum of the block with zeroes there.
    fn field_agrees(&self, block: &Block, at: usize) -> bool {
        let Some(seed) = self.seed else { return true };
        let crc = crc32c(crc32c(seed, &block[..at]), &[0; 4]);
        crc32c(crc, &block[at + 4..]) == be32(block, at)
    }

    /// What comes before a logged block in its tag's checksum, which is of the journal's UUID, the transaction and the block as it stands in
    /// the log, escaped. A checksum is linear: it is this value, which is as if the block were zeroes, xor the block's own from zero.
    pub(super) fn before_content(&self, tid: Tid) -> Option<u32> {
        self.seed.map(|seed| crc32c(crc32c(seed, &tid.0.to_be_bytes()), &[0; BLOCK_BYTES]))
    }

    /// Whether a logged block of that checksum agrees with its tag.
    pub(super) fn content_agrees(&self, tag: &RawTag, crc: u32) -> bool {
        tag.checksum == if self.v3 { crc } else { crc & 0xffff }
    }

    /// A descriptor's tags.
    pub(super) fn tags<'a>(&self, block: &'a Block) -> Tags<'a> {
        Tags { shape: *self, block, at: HEADER, done: false }
    }

    /// A revoke block's records; `None` where `r_count` is not the length of anything.
    pub(super) fn revokes<'a>(&self, block: &'a Block) -> Option<impl Iterator<Item = u64> + 'a> {
        let bytes = be32(block, HEADER) as usize;
        if !(REVOKE_HEADER..=self.end()).contains(&bytes) {
            return None;
        }
        let (bits64, record) = (self.bits64, if self.bits64 { 8 } else { 4 });
        let records = block[REVOKE_HEADER..bytes].chunks_exact(record);
        Some(records.map(move |r| if bits64 { be64(r, 0) } else { be32(r, 0).into() }))
    }
}

/// A descriptor's tags, in order: up to the last tag's mark or the end of the block, as `count_tags` in recovery.c.
pub(super) struct Tags<'a> {
    shape: Shape,
    block: &'a Block,
    at: usize,
    done: bool,
}

impl Iterator for Tags<'_> {
    type Item = RawTag;

    fn next(&mut self) -> Option<RawTag> {
        let (at, shape, block) = (self.at, &self.shape, self.block);
        if self.done || at + shape.tag_bytes > shape.end() {
            return None;
        }
        // In a v3 tag the flags are 32 bits, of which the high half is not used.
        let flags = be16(block, at + 6);
        let high = if shape.bits64 { be32(block, at + 8) } else { 0 };
        let checksum = if shape.v3 { be32(block, at + 12) } else { be16(block, at + 4).into() };
        let uuid = if flags & SAME_UUID == 0 { 16 } else { 0 };
        self.at = at + shape.tag_bytes + uuid;
        self.done = flags & LAST_TAG != 0;
        let home = u64::from(high) << 32 | u64::from(be32(block, at));
        Some(RawTag { home, escaped: flags & ESCAPE != 0, checksum })
    }
}

/// `h_commit_sec`.
pub(super) fn commit_sec(block: &Block) -> u64 {
    be64(block, COMMIT_SEC)
}

/// Whether a commit block's JBD2_FEATURE_COMPAT_CHECKSUM fields agree with the transaction's CRC-32, or are not used.
pub(super) fn transaction_agrees(commit: &Block, crc: u32) -> bool {
    match (commit[12], commit[13], be32(commit, COMMIT_CHECKSUM)) {
        // JBD2_CRC32_CHKSUM, JBD2_CRC32_CHKSUM_SIZE.
        (1, 4, found) => found == crc,
        (0, 0, 0) => true,
        _ => false,
    }
}
