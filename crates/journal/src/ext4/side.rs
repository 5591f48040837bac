//! Pages that the arena holds beside a journal's blocks, and the only place that says where: behind the last block that a journal
//! of that volume has.
//!
//! ```text
//! from 1 << 31   where the journal lies: [home block, 8 bytes][length, 4 bytes]..., little-endian; a length of 0 ends them
//! from 11 << 28  where blocks stand that are not here: the arena's own
//! from 5 << 29, from 3 << 30   earlier versions'
//! ```

use super::layout::{AreaExtent, Layout, JOURNAL_BLOCKS_MAX};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES};
use crate::versions::arena::{is_page, Arena, VolumeId};

const EXTENTS_AT: u32 = JOURNAL_BLOCKS_MAX;
const EXTENT_BYTES: usize = 12;
/// Extents of a page.
const EXTENTS: usize = BLOCK_BYTES / EXTENT_BYTES;

const EARLIER_AT: u32 = 5 << 29;

/// Remembers where a journal lies, for a daemon that finds nothing there that says it. There must be memory for it, as for
/// its superblock.
///
/// # Errors
/// As [`Arena::store`].
pub(super) fn store_journal(arena: &mut Arena, id: VolumeId, layout: &Layout) -> Result<(), JournalError> {
    // The last one last: only all of them say anything.
    for (n, extents) in (EXTENTS_AT..).zip(layout.journal.chunks(EXTENTS)) {
        let mut block: Block = [0; BLOCK_BYTES];
        for (extent, bytes) in extents.iter().zip(block.chunks_exact_mut(EXTENT_BYTES)) {
            bytes[..8].copy_from_slice(&extent.home.0.to_le_bytes());
            bytes[8..12].copy_from_slice(&extent.blocks.to_le_bytes());
        }
        arena.store(id, AreaBlock(n), &mut |slot| {
            slot.copy_from_slice(&block);
            None
        })?;
    }
    Ok(())
}

/// See [`store_journal`]. `None`: an earlier version did not.
pub(super) fn journal(arena: &Arena, id: VolumeId) -> Option<Vec<AreaExtent>> {
    let mut extents = Vec::new();
    let mut at = AreaBlock(0);
    let blocks = (EXTENTS_AT..u32::MAX).map_while(|n| arena.get(id, AreaBlock(n)));
    for bytes in blocks.flat_map(|block| block.chunks_exact(EXTENT_BYTES)) {
        let (home, blocks) = bytes.split_at(8);
        let home = FsBlock(u64::from_le_bytes(home.try_into().ok()?));
        let blocks = u32::from_le_bytes(blocks.try_into().ok()?);
        if blocks == 0 {
            break;
        }
        extents.push(AreaExtent { at, home, blocks });
        at = AreaBlock(at.0.checked_add(blocks)?);
    }
    (!extents.is_empty()).then_some(extents)
}

/// Earlier versions remembered there where transactions began that they had given up, and marks.
pub(super) fn forget_earlier(arena: &mut Arena, id: VolumeId) {
    for page in arena.blocks(id).into_iter().filter(|at| at.0 >= EARLIER_AT && !is_page(*at)) {
        arena.remove(id, page);
    }
}
