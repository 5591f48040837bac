//! Who a journal superblock on the disk was written for, and what the arena remembers of it: see [`super::known`].

use afterimage_block::{BlockError, Sector};

use super::layout::superblock::JournalSuperblock;
use super::layout::{self, Found, Source};
use crate::ids::{AreaBlock, Block, BLOCK_BYTES};
use crate::versions::arena::{Arena, Seen, VolumeId, VolumeRecord};
use crate::versions::{Below, Places, Versions};

/// The stamp ends the journal superblock's block, of which the superblock itself takes 1024 bytes: magic, a byte that says whether what
/// is committed is durable without the arena (earlier versions wrote 0), the arena's UUID, the volume's generation in it, CRC-32C
/// of all that stands before.
const STAMP_BYTES: usize = 7 + 1 + 16 + 8 + 4;
const STAMP_MAGIC: [u8; 7] = *b"AIstamp";

/// Who a journal superblock on the disk was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) arena: [u8; 16],
    pub(super) generation: u64,
    /// Under `power-window` what is committed is durable, whatever becomes of the arena.
    pub(super) durable: bool,
}

impl Stamp {
    /// What names a volume's journal superblock on the disk.
    pub(super) fn of(versions: &Versions, id: VolumeId) -> Self {
        let arena = &versions.arena;
        let (generation, durable) = (arena.records.generation(id), versions.applies());
        Self { arena: arena.identity().uuid, generation, durable }
    }

    /// Puts it into a journal superblock's block.
    pub(super) fn put(&self, block: &mut Block) {
        let stamp = &mut block[BLOCK_BYTES - STAMP_BYTES..];
        stamp[..7].copy_from_slice(&STAMP_MAGIC);
        stamp[7] = self.durable.into();
        stamp[8..24].copy_from_slice(&self.arena);
        stamp[24..32].copy_from_slice(&self.generation.to_le_bytes());
        let check = crc32c::crc32c(&block[..BLOCK_BYTES - 4]);
        block[BLOCK_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
    }

    /// The stamp of a block that is as it was written with one, whoever wrote it.
    pub(super) fn read(block: &Block) -> Option<Self> {
        let stamp = &block[BLOCK_BYTES - STAMP_BYTES..];
        let (arena, generation) = (stamp[8..24].try_into().ok()?, stamp[24..32].try_into().ok()?);
        let read = Self { arena, generation: u64::from_le_bytes(generation), durable: stamp[7] == 1 };
        let mut expected = *block;
        read.put(&mut expected);
        (expected == *block).then_some(read)
    }

    /// Takes it off.
    pub(super) fn clear(block: &mut Block) {
        block[BLOCK_BYTES - STAMP_BYTES..].fill(0);
    }

    /// Whether a block is as it was written with this stamp, under whatever contract.
    pub(super) fn is_in(&self, block: &Block) -> bool {
        Self::read(block).is_some_and(|read| Self { durable: self.durable, ..read } == *self)
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

/// Journal superblocks of a disk that bear a stamp and say that the journal is empty: where, and with what.
fn stamped(source: &mut dyn Source, disk_sectors: u64) -> Result<Vec<(Sector, Stamp, Block)>, BlockError> {
    let mut stamped = Vec::new();
    for found in layout::find(source, disk_sectors)? {
        let at = match found {
            Found::FileSystem(layout) => layout.sector_of(AreaBlock(0)),
            Found::Passthrough { journal, .. } => journal,
        };
        let Some(at) = at.filter(|at| at.0.saturating_add(8) <= disk_sectors) else { continue };
        let mut block = [0; BLOCK_BYTES];
        source.read(at, &mut block)?;
        let empty = || JournalSuperblock::parse(&block).is_ok_and(|superblock| superblock.start().is_none());
        stamped.extend(Stamp::read(&block).filter(|_| empty()).map(|stamp| (at, stamp, block)));
    }
    Ok(stamped)
}

/// The arena in which what was committed on this disk is still retained, and was not durable otherwise, as its journals say.
///
/// # Errors
/// The disk cannot be read.
pub(crate) fn awaited(source: &mut dyn Source, disk_sectors: u64) -> Result<Option<[u8; 16]>, BlockError> {
    let stamped = stamped(source, disk_sectors)?;
    Ok(stamped.iter().find(|(_, stamp, _)| !stamp.durable).map(|(_, stamp, _)| stamp.arena))
}

/// Whether a journal of this disk says that it is retained in that arena.
///
/// # Errors
/// The disk cannot be read.
pub(crate) fn bears(source: &mut dyn Source, disk_sectors: u64, arena: [u8; 16]) -> Result<bool, BlockError> {
    Ok(stamped(source, disk_sectors)?.iter().any(|(_, stamp, _)| stamp.arena == arena))
}

/// What was retained of this disk is given up: its journals say so, durably.
///
/// # Errors
/// The disk cannot be read or written.
pub(crate) fn give_up(below: &mut Below, disk_sectors: u64) -> Result<(), BlockError> {
    for (at, _, mut block) in stamped(below, disk_sectors)? {
        Stamp::clear(&mut block);
        below.write(at, &block)?;
    }
    below.sync()
}
