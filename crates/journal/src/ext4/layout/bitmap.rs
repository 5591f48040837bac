//! Where a file system says whether a block is in use (`Documentation/filesystems/ext4/bitmaps.rst`).

use super::ext4::{incompat, ro_compat, Superblock};
use super::group::{u16_at, u32_at};
use crate::ids::{Block, FsBlock, BLOCK_BYTES};

const BLOCK_BITMAP_LO: usize = 0x0;
const FLAGS: usize = 0x12;
const BLOCK_BITMAP_HI: usize = 0x20;
/// EXT4_BG_BLOCK_UNINIT: the bitmap has not been written yet.
const BLOCK_UNINIT: u16 = 0x2;

/// Locates the allocation bitmaps of a file system whose group descriptors all stand behind the superblock and whose
/// bitmaps count blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bitmaps {
    blocks_per_group: u32,
    descriptor_bytes: usize,
}

impl Bitmaps {
    /// `None` with `meta_bg` or `bigalloc`: then nothing is known of a block.
    pub(super) fn new(superblock: &Superblock) -> Option<Self> {
        let plain =
            !superblock.has_incompat(incompat::META_BG) && !superblock.has_ro_compat(ro_compat::BIGALLOC);
        let blocks_per_group = superblock.s_blocks_per_group.get();
        let descriptor_bytes = superblock.descriptor_bytes();
        let sound = blocks_per_group > 0 && blocks_per_group <= 8 * BLOCK_BYTES as u32;
        (plain && sound && descriptor_bytes >= 32).then_some(Self { blocks_per_group, descriptor_bytes })
    }

    /// The block with the descriptor of the group that a block is in.
    pub fn descriptor_block(&self, block: FsBlock) -> FsBlock {
        let per_block = (BLOCK_BYTES / self.descriptor_bytes) as u64;
        FsBlock(1 + self.group(block) / per_block)
    }

    /// The bitmap that covers a block, as that descriptor has it; `None` where it has none yet.
    pub fn bitmap_block(&self, block: FsBlock, descriptors: &Block) -> Option<FsBlock> {
        let per_block = (BLOCK_BYTES / self.descriptor_bytes) as u64;
        let at = (self.group(block) % per_block) as usize * self.descriptor_bytes;
        let descriptor = &descriptors[at..at + self.descriptor_bytes];
        if u16_at(descriptor, FLAGS) & BLOCK_UNINIT != 0 {
            return None;
        }
        let mut bitmap = u64::from(u32_at(descriptor, BLOCK_BITMAP_LO));
        if self.descriptor_bytes >= BLOCK_BITMAP_HI + 4 {
            bitmap |= u64::from(u32_at(descriptor, BLOCK_BITMAP_HI)) << 32;
        }
        Some(FsBlock(bitmap))
    }

    /// Whether the bitmap has the block in use.
    pub fn in_use(&self, block: FsBlock, bitmap: &Block) -> bool {
        let bit = (block.0 % u64::from(self.blocks_per_group)) as usize;
        bitmap[bit / 8] >> (bit % 8) & 1 != 0
    }

    /// The group that a block is in.
    pub fn group(&self, block: FsBlock) -> u64 {
        block.0 / u64::from(self.blocks_per_group)
    }
}
