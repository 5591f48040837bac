//! A block group's descriptor: where the inode table is (`Documentation/filesystems/ext4/group_descr.rst`).

use super::checksum::{crc16, crc32c};
use super::ext4::{compat, corrupt, incompat, ro_compat, Reader, Superblock};
use super::Watched;
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_BYTES};

const INODE_TABLE_LO: usize = 0x8;
const CHECKSUM: usize = 0x1E;
const INODE_TABLE_HI: usize = 0x28;

/// What a descriptor said.
pub struct Group {
    /// The inode table's first block.
    pub inode_table: FsBlock,
    /// The block that the descriptor is in.
    pub block: FsBlock,
    /// The descriptor's fields that locate the inode table. Its counts and checksum change in ordinary use.
    pub watched: Vec<Watched>,
}

impl Group {
    /// Reads and verifies the descriptor of a group.
    ///
    /// # Errors
    /// *Corrupt* where it does not agree with its checksum; I/O errors.
    pub fn read(reader: &mut Reader<'_>, superblock: &Superblock, group: u64) -> Result<Self, JournalError> {
        let bytes = superblock.descriptor_bytes();
        let per_block = (BLOCK_BYTES / bytes) as u64;
        let block = descriptor_block(superblock, group / per_block, per_block);
        let at = (group % per_block) as usize * bytes;
        let content = reader.block(block, "a group descriptor")?;
        let descriptor = &content[at..at + bytes];
        // The kernel hashes the number as 32 bits; groups cannot be more.
        let number = (group as u32).to_le_bytes();
        let stored = u16::from_le_bytes([descriptor[CHECKSUM], descriptor[CHECKSUM + 1]]);
        let rest = &descriptor[CHECKSUM + 2..];
        let expected = if superblock.checksummed() {
            let sum = crc32c(crc32c(superblock.checksum_seed(), &number), &descriptor[..CHECKSUM]);
            crc32c(crc32c(sum, &[0; 2]), rest) as u16
        } else if superblock.has_ro_compat(ro_compat::GDT_CSUM) {
            let sum = crc16(crc16(crc16(!0, &superblock.s_uuid), &number), &descriptor[..CHECKSUM]);
            crc16(sum, rest)
        } else {
            stored
        };
        if stored != expected {
            return Err(corrupt(format!("group {group}'s descriptor does not agree with its checksum")));
        }
        let half = |at: usize| u64::from(u32_at(descriptor, at));
        let mut watched = vec![Watched::new(
            block,
            at + INODE_TABLE_LO,
            &descriptor[INODE_TABLE_LO..][..4],
            "the inode table's place",
        )];
        let mut inode_table = half(INODE_TABLE_LO);
        if bytes >= INODE_TABLE_HI + 4 {
            inode_table |= half(INODE_TABLE_HI) << 32;
            let field = &descriptor[INODE_TABLE_HI..][..4];
            watched.push(Watched::new(block, at + INODE_TABLE_HI, field, "the inode table's place"));
        }
        Ok(Self { inode_table: FsBlock(inode_table), block, watched })
    }
}

/// Where the `index`th block of descriptors stands (`descriptor_loc`): all of them behind the superblock, or, from
/// `s_first_meta_bg` on, each in the first group that it describes, behind that group's backup superblock.
fn descriptor_block(superblock: &Superblock, index: u64, per_block: u64) -> FsBlock {
    let first_meta = u64::from(superblock.s_first_meta_bg.get());
    if !superblock.has_incompat(incompat::META_BG) || index < first_meta {
        return FsBlock(1 + index);
    }
    let group = index * per_block;
    let behind = u64::from(has_backup(superblock, group));
    FsBlock(group * u64::from(superblock.s_blocks_per_group.get()) + behind)
}

/// Whether a group begins with the superblock or a copy of it (`ext4_bg_has_super`).
fn has_backup(superblock: &Superblock, group: u64) -> bool {
    if group == 0 {
        return true;
    }
    if superblock.has_compat(compat::SPARSE_SUPER2) {
        return superblock.s_backup_bgs.iter().any(|at| u64::from(at.get()) == group);
    }
    if group == 1 || !superblock.has_ro_compat(ro_compat::SPARSE_SUPER) {
        return true;
    }
    let power_of =
        |base: u64| (1..).map(|exponent| base.pow(exponent)).find(|&power| power >= group) == Some(group);
    power_of(3) || power_of(5) || power_of(7)
}

/// A little-endian number in bytes that are long enough.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// As [`u32_at`], 16 bits.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
