//! The ext4 superblock, as far as finding the journal needs it (kernel: `fs/ext4/ext4.h`,
//! `Documentation/filesystems/ext4/super.rst`).
//!
//! Accepted is what the kernel would mount and what is understood here; features are listed, so that one from the future
//! means passthrough. `bigalloc` is fine: clusters exist in allocation bitmaps only, while extents, log tags and
//! revokes go on counting blocks. So is `mmp`: its block is never logged.

use core::mem::offset_of;

use afterimage_block::{BlockError, Sector};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::crc32c;
use super::{Source, Watched};
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};

/// Where the superblock stands, in bytes from the file system's beginning; with 4 KiB blocks, within block 0.
pub const SUPERBLOCK_AT: usize = 1024;
/// Its size in bytes.
pub const SUPERBLOCK_BYTES: usize = 1024;
const MAGIC: u16 = 0xEF53;
/// `EXT4_CRC32C_CHKSUM`.
const CRC32C: u8 = 1;

pub mod compat {
    pub const HAS_JOURNAL: u32 = 0x4;
    pub const EXT_ATTR: u32 = 0x8;
    pub const SPARSE_SUPER2: u32 = 0x200;
    pub const FAST_COMMIT: u32 = 0x400;
}

pub mod incompat {
    pub const FILETYPE: u32 = 0x2;
    pub const RECOVER: u32 = 0x4;
    pub const JOURNAL_DEV: u32 = 0x8;
    pub const META_BG: u32 = 0x10;
    pub const EXTENTS: u32 = 0x40;
    pub const BITS64: u32 = 0x80;
    pub const MMP: u32 = 0x100;
    pub const FLEX_BG: u32 = 0x200;
    pub const EA_INODE: u32 = 0x400;
    pub const CSUM_SEED: u32 = 0x2000;
    pub const LARGEDIR: u32 = 0x4000;
    pub const INLINE_DATA: u32 = 0x8000;
    pub const ENCRYPT: u32 = 0x1_0000;
    pub const CASEFOLD: u32 = 0x2_0000;
    /// iJournaling's before its bit moved to the journal's superblock (docs/ijournaling.md), no ext4's.
    pub const IJOURNAL: u32 = 0x4000_0000;
    pub const KNOWN: u32 = FILETYPE
        | RECOVER
        | META_BG
        | EXTENTS
        | BITS64
        | MMP
        | FLEX_BG
        | EA_INODE
        | CSUM_SEED
        | LARGEDIR
        | INLINE_DATA
        | ENCRYPT
        | CASEFOLD
        | IJOURNAL;
}

pub mod ro_compat {
    pub const SPARSE_SUPER: u32 = 0x1;
    pub const LARGE_FILE: u32 = 0x2;
    pub const BTREE_DIR: u32 = 0x4;
    pub const HUGE_FILE: u32 = 0x8;
    pub const GDT_CSUM: u32 = 0x10;
    pub const DIR_NLINK: u32 = 0x20;
    pub const EXTRA_ISIZE: u32 = 0x40;
    pub const QUOTA: u32 = 0x100;
    pub const BIGALLOC: u32 = 0x200;
    pub const METADATA_CSUM: u32 = 0x400;
    pub const READONLY: u32 = 0x1000;
    pub const PROJECT: u32 = 0x2000;
    pub const VERITY: u32 = 0x8000;
    pub const ORPHAN_PRESENT: u32 = 0x1_0000;
    pub const KNOWN: u32 = SPARSE_SUPER
        | LARGE_FILE
        | BTREE_DIR
        | HUGE_FILE
        | GDT_CSUM
        | DIR_NLINK
        | EXTRA_ISIZE
        | QUOTA
        | BIGALLOC
        | METADATA_CSUM
        | READONLY
        | PROJECT
        | VERITY
        | ORPHAN_PRESENT;
}

/// `struct ext4_super_block`; `_ordinary` fields change in use or do not matter here.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct Superblock {
    pub s_inodes_count: U32,
    pub s_blocks_count_lo: U32,
    _ordinary_08: [u8; 0xC],
    pub s_first_data_block: U32,
    pub s_log_block_size: U32,
    pub s_log_cluster_size: U32,
    pub s_blocks_per_group: U32,
    pub s_clusters_per_group: U32,
    pub s_inodes_per_group: U32,
    _ordinary_2c: [u8; 0xC],
    pub s_magic: U16,
    _ordinary_3a: [u8; 0x12],
    pub s_rev_level: U32,
    _ordinary_50: [u8; 8],
    pub s_inode_size: U16,
    _s_block_group_nr: U16,
    pub s_feature_compat: U32,
    pub s_feature_incompat: U32,
    pub s_feature_ro_compat: U32,
    pub s_uuid: [u8; 16],
    _ordinary_78: [u8; 0x58],
    pub s_journal_uuid: [u8; 16],
    pub s_journal_inum: U32,
    pub s_journal_dev: U32,
    _ordinary_e8: [u8; 0x16],
    pub s_desc_size: U16,
    _ordinary_100: [u8; 4],
    pub s_first_meta_bg: U32,
    _ordinary_108: [u8; 0x48],
    pub s_blocks_count_hi: U32,
    _ordinary_154: [u8; 0x21],
    pub s_checksum_type: u8,
    _ordinary_176: [u8; 0xD6],
    pub s_backup_bgs: [U32; 2],
    _ordinary_254: [u8; 0x1C],
    pub s_checksum_seed: U32,
    _ordinary_274: [u8; 0x188],
    pub s_checksum: U32,
}

const _: () = {
    assert!(size_of::<Superblock>() == SUPERBLOCK_BYTES);
    assert!(offset_of!(Superblock, s_magic) == 0x38);
    assert!(offset_of!(Superblock, s_feature_compat) == 0x5C);
    assert!(offset_of!(Superblock, s_journal_inum) == 0xE0);
    assert!(offset_of!(Superblock, s_desc_size) == 0xFE);
    assert!(offset_of!(Superblock, s_blocks_count_hi) == 0x150);
    assert!(offset_of!(Superblock, s_checksum_type) == 0x175);
    assert!(offset_of!(Superblock, s_backup_bgs) == 0x24C);
    assert!(offset_of!(Superblock, s_checksum_seed) == 0x270);
    assert!(offset_of!(Superblock, s_checksum) == 0x3FC);
};

impl Superblock {
    /// The superblock in a file system's first bytes, where there is one by its magic number.
    pub fn sniff(head: &[u8]) -> Option<Self> {
        let (raw, _) = Self::read_from_prefix(head.get(SUPERBLOCK_AT..)?).ok()?;
        (raw.s_magic == MAGIC).then_some(raw)
    }

    pub fn has_compat(&self, bit: u32) -> bool {
        self.s_feature_compat.get() & bit != 0
    }

    pub fn has_incompat(&self, bit: u32) -> bool {
        self.s_feature_incompat.get() & bit != 0
    }

    pub fn has_ro_compat(&self, bit: u32) -> bool {
        self.s_feature_ro_compat.get() & bit != 0
    }

    /// The file system's size in blocks.
    pub fn blocks(&self) -> u64 {
        let hi = if self.has_incompat(incompat::BITS64) { self.s_blocks_count_hi.get() } else { 0 };
        u64::from(hi) << 32 | u64::from(self.s_blocks_count_lo.get())
    }

    /// How many block groups there are; needs a checked geometry.
    pub fn groups(&self) -> u64 {
        self.blocks().div_ceil(u64::from(self.s_blocks_per_group.get()))
    }

    /// Bytes of a group descriptor.
    pub fn descriptor_bytes(&self) -> usize {
        if self.has_incompat(incompat::BITS64) {
            usize::from(self.s_desc_size.get())
        } else {
            32
        }
    }

    /// Bytes of an inode.
    pub fn inode_bytes(&self) -> usize {
        usize::from(self.s_inode_size.get())
    }

    /// The seed of all metadata checksums but the superblock's own (`sbi->s_csum_seed`).
    pub fn checksum_seed(&self) -> u32 {
        if self.has_incompat(incompat::CSUM_SEED) {
            self.s_checksum_seed.get()
        } else {
            crc32c(!0, &self.s_uuid)
        }
    }

    /// Whether metadata carries CRC-32C checksums.
    pub fn checksummed(&self) -> bool {
        self.has_ro_compat(ro_compat::METADATA_CSUM)
    }

    /// Refuses what is not understood or cannot be, in the order that explains most.
    ///
    /// # Errors
    /// *Corrupt* and *unsupported*, with a sentence.
    pub fn check(&self, sectors: u64) -> Result<(), JournalError> {
        if self.s_rev_level > 1 || self.s_log_block_size > 6 {
            return Err(corrupt("ext4's magic number is there, but not a superblock".into()));
        }
        if self.checksummed() {
            if self.s_checksum_type != CRC32C {
                return Err(corrupt(format!("ext4's superblock has checksum type {}", self.s_checksum_type)));
            }
            let sum = crc32c(!0, &self.as_bytes()[..offset_of!(Self, s_checksum)]);
            if self.s_checksum != sum {
                return Err(corrupt(
                    "ext4's superblock does not agree with its checksum; e2fsck repairs it".into(),
                ));
            }
        }
        self.check_features()?;
        if self.s_log_block_size != 2 {
            let bytes = 1024 << self.s_log_block_size.get();
            return Err(unsupported(format!("ext4 with blocks of {bytes} bytes; only 4096 are handled")));
        }
        self.check_journal()?;
        self.check_geometry(sectors)
    }

    fn check_features(&self) -> Result<(), JournalError> {
        if self.has_incompat(incompat::JOURNAL_DEV) {
            return Err(unsupported("an external journal device; only internal journals are handled".into()));
        }
        // Revision 0 has no feature words; nothing has written one since 1998, and it could have no journal.
        if self.s_rev_level == 0 {
            return Err(unsupported("an ext2 of revision 0, which has no journal".into()));
        }
        let unknown = self.s_feature_incompat.get() & !incompat::KNOWN;
        if unknown != 0 {
            return Err(unsupported(format!("ext4 with unknown features (incompat {unknown:#x})")));
        }
        let unknown = self.s_feature_ro_compat.get() & !ro_compat::KNOWN;
        if unknown != 0 {
            return Err(unsupported(format!("ext4 with unknown features (ro_compat {unknown:#x})")));
        }
        if self.checksummed() && self.has_ro_compat(ro_compat::GDT_CSUM) {
            return Err(corrupt("ext4 with two kinds of group checksums at once".into()));
        }
        if self.has_compat(compat::FAST_COMMIT) {
            return Err(unsupported("ext4 with fast_commit, whose log is not understood".into()));
        }
        Ok(())
    }

    fn check_journal(&self) -> Result<(), JournalError> {
        if !self.has_compat(compat::HAS_JOURNAL) {
            return Err(unsupported("ext4 without a journal".into()));
        }
        if self.s_journal_dev != 0 || self.s_journal_inum == 0 {
            return Err(unsupported(
                "ext4 with an external journal; only internal journals are handled".into(),
            ));
        }
        Ok(())
    }

    /// `ext4_fill_super`'s conditions, and that the file system lies within its partition.
    fn check_geometry(&self, sectors: u64) -> Result<(), JournalError> {
        let blocks = self.blocks();
        if blocks.checked_mul(BLOCK_SECTORS).is_none_or(|needed| needed > sectors) {
            let room = sectors / BLOCK_SECTORS;
            return Err(corrupt(format!("ext4 of {blocks} blocks where there is room for {room}")));
        }
        let inode = self.inode_bytes();
        if !(128..=BLOCK_BYTES).contains(&inode) || !inode.is_power_of_two() {
            return Err(corrupt(format!("ext4 with inodes of {inode} bytes")));
        }
        let descriptor = self.descriptor_bytes();
        if self.has_incompat(incompat::BITS64)
            && !((64..=1024).contains(&descriptor) && descriptor.is_power_of_two())
        {
            return Err(corrupt(format!("ext4 with group descriptors of {descriptor} bytes")));
        }
        let ratio_log = match self.has_ro_compat(ro_compat::BIGALLOC) {
            true => self.s_log_cluster_size.get().saturating_sub(self.s_log_block_size.get()),
            false => 0,
        };
        let (per_group, inodes) = (self.s_blocks_per_group.get(), self.s_inodes_per_group.get());
        // A group's bitmaps are one block each.
        let bits = BLOCK_BYTES as u64 * 8;
        if ratio_log > 17 || per_group == 0 || u64::from(per_group) > bits << ratio_log {
            return Err(corrupt(format!("ext4 with {per_group} blocks in a group")));
        }
        if (inodes as usize) < BLOCK_BYTES / inode || u64::from(inodes) > bits {
            return Err(corrupt(format!("ext4 with {inodes} inodes in a group")));
        }
        if self.s_first_data_block != 0 {
            return Err(corrupt(format!("ext4 whose groups begin at block {}", self.s_first_data_block)));
        }
        if Some(u64::from(self.s_inodes_count.get())) != self.groups().checked_mul(u64::from(inodes)) {
            return Err(corrupt(format!("ext4 whose groups do not hold its {} inodes", self.s_inodes_count)));
        }
        if self.s_journal_inum > self.s_inodes_count {
            return Err(corrupt(format!(
                "ext4 whose journal is inode {}, past the last",
                self.s_journal_inum
            )));
        }
        Ok(())
    }

    /// What the layout rests on. Left out: counts, times, mount counts, state, errors, orphans, checksums; sizes, which
    /// an online resize2fs changes; and among the features those that a kernel sets in use.
    pub fn watched(&self) -> Vec<Watched> {
        let bytes = self.as_bytes();
        let field = |at: usize, len: usize, what: &'static str| {
            Watched::new(FsBlock(0), SUPERBLOCK_AT + at, &bytes[at..at + len], what)
        };
        let features = |at: usize, of: u32, ordinary: u32, what: &'static str| {
            Watched::masked(
                FsBlock(0),
                SUPERBLOCK_AT + at,
                &of.to_le_bytes(),
                &(!ordinary).to_le_bytes(),
                what,
            )
        };
        vec![
            field(offset_of!(Self, s_first_data_block), 24, "the superblock's block and group sizes"),
            field(offset_of!(Self, s_magic), 2, "the superblock's magic number"),
            field(offset_of!(Self, s_rev_level), 4, "the superblock's revision"),
            field(offset_of!(Self, s_inode_size), 2, "the superblock's inode size"),
            features(
                offset_of!(Self, s_feature_compat),
                self.s_feature_compat.get(),
                compat::EXT_ATTR,
                "the superblock's compatible features",
            ),
            features(
                offset_of!(Self, s_feature_incompat),
                self.s_feature_incompat.get(),
                incompat::RECOVER | incompat::EA_INODE | incompat::LARGEDIR | incompat::ENCRYPT,
                "the superblock's incompatible features",
            ),
            features(
                offset_of!(Self, s_feature_ro_compat),
                self.s_feature_ro_compat.get(),
                ro_compat::ORPHAN_PRESENT
                    | ro_compat::LARGE_FILE
                    | ro_compat::HUGE_FILE
                    | ro_compat::DIR_NLINK
                    | ro_compat::EXTRA_ISIZE
                    | ro_compat::VERITY,
                "the superblock's read-only compatible features",
            ),
            field(offset_of!(Self, s_uuid), 16, "the UUID"),
            field(offset_of!(Self, s_journal_uuid), 24, "the superblock's journal fields"),
            field(offset_of!(Self, s_desc_size), 2, "the superblock's descriptor size"),
            field(offset_of!(Self, s_first_meta_bg), 4, "the superblock's first meta block group"),
            field(offset_of!(Self, s_checksum_type), 1, "the superblock's checksum type"),
            field(offset_of!(Self, s_checksum_seed), 4, "the superblock's checksum seed"),
        ]
    }
}

pub fn corrupt(why: String) -> JournalError {
    JournalError::Corrupt(why)
}

pub fn unsupported(why: String) -> JournalError {
    JournalError::Unsupported(why)
}

/// Reads a file system's blocks, never outside of it.
pub struct Reader<'a> {
    pub source: &'a mut dyn Source,
    pub start: Sector,
    pub blocks: u64,
}

impl Reader<'_> {
    /// One block; `what` it should be stands in the refusal of a number that is out of range.
    ///
    /// # Errors
    /// *Corrupt* outside the file system; I/O errors.
    pub fn block(&mut self, block: FsBlock, what: &str) -> Result<Box<Block>, JournalError> {
        if block.0 >= self.blocks {
            return Err(corrupt(format!("{what} would be at block {block} of {}", self.blocks)));
        }
        let mut content: Box<Block> = Box::new([0; BLOCK_BYTES]);
        let read: Result<(), BlockError> = self.source.read(block.sector(self.start), content.as_mut_slice());
        read?;
        Ok(content)
    }
}
