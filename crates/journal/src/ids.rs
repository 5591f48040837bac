//! Newtypes for the numbers that must not be mixed up.

use std::fmt;

use afterimage_block::{Sector, SECTOR_BYTES};

/// Bytes of a file system block. The only size that is retained: the paper's restriction too (VMA § 4.1, LOG_OP_INIT).
pub const BLOCK_BYTES: usize = 4096;
/// Sectors of a file system block.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;

/// One file system block's content.
pub type Block = [u8; BLOCK_BYTES];

/// A block of a file system, counted from its own beginning (which, in a partition, is not the disk's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsBlock(pub u64);

/// A block of a journal, counted from the journal's own beginning; 0 is its superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AreaBlock(pub u32);

/// A jbd2 transaction id. They wrap: compare with [`Tid::is_after`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tid(pub u32);

impl FsBlock {
    /// Where the block lies on a disk whose file system begins at `start`.
    pub fn sector(self, start: Sector) -> Sector {
        Sector(start.0 + self.0 * BLOCK_SECTORS)
    }
}

impl Tid {
    /// Whether this id is younger than the other (jbd2's `tid_gt`: the signed difference of two 32-bit numbers).
    pub fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }

    /// The id after this one.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for FsBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AreaBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
