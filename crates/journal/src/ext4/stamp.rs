//! Who a journal superblock on the disk was written for, and what the arena remembers of it: see [`super::known`].

use crate::ids::{Block, BLOCK_BYTES};
use crate::versions::arena::{Arena, Seen, VolumeId, VolumeRecord};

/// The stamp ends the journal superblock's block, of which the superblock itself takes 1024 bytes: magic, the arena's UUID, the
/// volume's generation in it, CRC-32C of all that stands before.
const STAMP_BYTES: usize = 8 + 16 + 8 + 4;
const STAMP_MAGIC: [u8; 8] = *b"AIstamp\0";

/// Who a journal superblock on the disk was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) arena: [u8; 16],
    pub(super) generation: u64,
}

impl Stamp {
    /// What names a volume's journal superblock on the disk.
    pub(super) fn of(arena: &Arena, id: VolumeId) -> Self {
        Self { arena: arena.identity().uuid, generation: arena.records.generation(id) }
    }

    /// Puts it into a journal superblock's block.
    pub(super) fn put(&self, block: &mut Block) {
        let stamp = &mut block[BLOCK_BYTES - STAMP_BYTES..];
        stamp[..8].copy_from_slice(&STAMP_MAGIC);
        stamp[8..24].copy_from_slice(&self.arena);
        stamp[24..32].copy_from_slice(&self.generation.to_le_bytes());
        let check = crc32c::crc32c(&block[..BLOCK_BYTES - 4]);
        block[BLOCK_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
    }

    /// The stamp of a block that is as it was written with one, whoever wrote it.
    pub(super) fn read(block: &Block) -> Option<Self> {
        let stamp = &block[BLOCK_BYTES - STAMP_BYTES..];
        let (arena, generation) = (stamp[8..24].try_into().ok()?, stamp[24..32].try_into().ok()?);
        let read = Self { arena, generation: u64::from_le_bytes(generation) };
        read.is_in(block).then_some(read)
    }

    /// Takes it off.
    pub(super) fn clear(block: &mut Block) {
        block[BLOCK_BYTES - STAMP_BYTES..].fill(0);
    }

    /// Whether a block is as it was written with this stamp.
    pub(super) fn is_in(&self, block: &Block) -> bool {
        let mut expected = *block;
        self.put(&mut expected);
        expected == *block
    }
}

/// Nothing is known of the superblocks on the disk.
pub(super) fn forget(arena: &mut Arena, id: VolumeId) {
    arena.records.set_seen(id, Seen::FileSystem, None);
    arena.records.set_seen(id, Seen::Journal, None);
}

/// Remembers whether the journal superblock on the disk bears the stamp: after one with it was written, before one without
/// it is.
pub(super) fn set_stamped(arena: &mut Arena, id: VolumeId, stamped: bool) {
    arena.records.set_seen(id, Seen::Journal, None);
    let Some(record) = arena.records.get(id).filter(|record| record.stamped != stamped) else { return };
    arena.records.set(id, VolumeRecord { stamped, ..record });
}
