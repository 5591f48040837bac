//! The journal's inode (`Documentation/filesystems/ext4/inodes.rst`).

use super::checksum::crc32c;
use super::ext4::{corrupt, unsupported, Reader, Superblock};
use super::group::{u16_at, u32_at, Group};
use super::Watched;
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, BLOCK_BYTES};

const MODE: usize = 0x0;
const SIZE_LO: usize = 0x4;
const LINKS: usize = 0x1A;
const FLAGS: usize = 0x20;
const I_BLOCK: usize = 0x28;
const GENERATION: usize = 0x64;
const SIZE_HIGH: usize = 0x6C;
const CHECKSUM_LO: usize = 0x7C;
/// What revision 0 had; more is counted by `i_extra_isize`.
const GOOD_OLD_BYTES: usize = 0x80;
const EXTRA_ISIZE: usize = 0x80;
const CHECKSUM_HI: usize = 0x82;

const MODE_TYPE: u16 = 0xF000;
const MODE_REGULAR: u16 = 0x8000;
const FLAG_ENCRYPT: u32 = 0x800;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_VERITY: u32 = 0x10_0000;
const FLAG_INLINE_DATA: u32 = 0x1000_0000;

/// `i_block`: the root of the extent tree.
pub const ROOT_BYTES: usize = 60;

/// An inode that was verified to be a regular, unencrypted file with extents.
pub struct Inode {
    /// The file's size in bytes.
    pub size: u64,
    /// The root of its extent tree.
    pub root: [u8; ROOT_BYTES],
    /// Seeds the checksums of the extent tree's blocks.
    pub checksum_seed: u32,
    /// The block of the inode table that it is in.
    pub block: FsBlock,
    /// Mode, size, flags, generation and `i_block`. Times, counts and the checksum change in ordinary use.
    pub watched: Vec<Watched>,
}

impl Inode {
    /// Reads and verifies an inode of a group that [`Group::read`] found.
    ///
    /// # Errors
    /// *Corrupt* and *unsupported* with a sentence; I/O errors.
    pub fn read(
        reader: &mut Reader<'_>,
        superblock: &Superblock,
        group: &Group,
        number: u32,
    ) -> Result<Self, JournalError> {
        let bytes = superblock.inode_bytes();
        let index = u64::from((number - 1) % superblock.s_inodes_per_group.get());
        let per_block = (BLOCK_BYTES / bytes) as u64;
        let what = format!("inode {number}");
        let Some(block) = group.inode_table.0.checked_add(index / per_block).map(FsBlock) else {
            return Err(corrupt(format!("{what} lies past the end of everything")));
        };
        let at = (index % per_block) as usize * bytes;
        let content = reader.block(block, &what)?;
        let raw = &content[at..at + bytes];

        let checksum_seed = {
            let seed = crc32c(superblock.checksum_seed(), &number.to_le_bytes());
            crc32c(seed, &raw[GENERATION..GENERATION + 4])
        };
        if superblock.checksummed() && !agrees(raw, checksum_seed) {
            return Err(corrupt(format!("the journal's {what} does not agree with its checksum")));
        }
        let flags = u32_at(raw, FLAGS);
        if u16_at(raw, MODE) & MODE_TYPE != MODE_REGULAR || u16_at(raw, LINKS) == 0 {
            return Err(corrupt(format!("the journal's {what} is not a regular file in use")));
        }
        if flags & (FLAG_ENCRYPT | FLAG_INLINE_DATA | FLAG_VERITY) != 0 {
            return Err(unsupported(format!("a journal whose inode has the flags {flags:#x}")));
        }
        if flags & FLAG_EXTENTS == 0 {
            return Err(unsupported(
                "a journal mapped block by block, as mkfs -t ext3 makes it; only extents are handled".into(),
            ));
        }
        let mut root = [0; ROOT_BYTES];
        root.copy_from_slice(&raw[I_BLOCK..I_BLOCK + ROOT_BYTES]);
        Ok(Self {
            size: u64::from(u32_at(raw, SIZE_HIGH)) << 32 | u64::from(u32_at(raw, SIZE_LO)),
            root,
            checksum_seed,
            block,
            watched: watched(&content, block, at),
        })
    }
}

fn watched(content: &Block, block: FsBlock, at: usize) -> Vec<Watched> {
    [
        (MODE, 2, "the journal inode's mode"),
        (SIZE_LO, 4, "the journal inode's size"),
        (FLAGS, 4, "the journal inode's flags"),
        (I_BLOCK, ROOT_BYTES, "the journal inode's extents"),
        (GENERATION, 4, "the journal inode's generation"),
        (SIZE_HIGH, 4, "the journal inode's size"),
    ]
    .into_iter()
    .map(|(field, len, what)| Watched::new(block, at + field, &content[at + field..][..len], what))
    .collect()
}

/// `ext4_inode_csum_verify`: the whole inode with its checksum's halves zero; the upper half exists where
/// `i_extra_isize` reaches over it.
fn agrees(raw: &[u8], seed: u32) -> bool {
    let mut sum = crc32c(seed, &raw[..CHECKSUM_LO]);
    sum = crc32c(sum, &[0; 2]);
    sum = crc32c(sum, &raw[CHECKSUM_LO + 2..GOOD_OLD_BYTES]);
    let stored = u32::from(u16_at(raw, CHECKSUM_LO));
    if raw.len() == GOOD_OLD_BYTES {
        return sum & 0xFFFF == stored;
    }
    let extra = usize::from(u16_at(raw, EXTRA_ISIZE));
    sum = crc32c(sum, &raw[GOOD_OLD_BYTES..CHECKSUM_HI]);
    if GOOD_OLD_BYTES + extra >= CHECKSUM_HI + 2 {
        sum = crc32c(crc32c(sum, &[0; 2]), &raw[CHECKSUM_HI + 2..]);
        sum == u32::from(u16_at(raw, CHECKSUM_HI)) << 16 | stored
    } else {
        sum = crc32c(sum, &raw[CHECKSUM_HI..]);
        sum & 0xFFFF == stored
    }
}
