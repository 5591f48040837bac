//! Pages that the arena holds beside a journal's blocks, and the only place that says where: behind the last block that a journal
//! of that volume has.
//!
//! ```text
//! from 1 << 31   where the journal lies: [home block, 8 bytes][length, 4 bytes]..., little-endian; a length of 0 ends them
//! from 3 << 30   where transactions began, 1024 a page, by id: [block, 4 bytes of the machine's own order]; ff for an unknown one
//! ```

use super::layout::{AreaExtent, Layout, JOURNAL_BLOCKS_MAX};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};
use crate::versions::arena::{Arena, VolumeId};

const EXTENTS_AT: u32 = JOURNAL_BLOCKS_MAX;
const EXTENT_BYTES: usize = 12;
/// Extents of a page.
const EXTENTS: usize = BLOCK_BYTES / EXTENT_BYTES;

const STARTS_AT: u32 = 3 << 30;
/// Transactions of a page.
const PAGE_TIDS: u32 = BLOCK_BYTES as u32 / 4;
/// The bytes of an entry that was not made: no journal has that block. (A page of zeroes is a hole in a sparse copy.)
const NOTHING: u8 = 0xff;

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

fn page_of(tid: Tid) -> AreaBlock {
    AreaBlock(STARTS_AT | (tid.0 / PAGE_TIDS))
}

/// Its place in the page.
fn entry_of(tid: Tid) -> std::ops::Range<usize> {
    let at = (tid.0 % PAGE_TIDS) as usize * 4;
    at..at + 4
}

/// Makes room to remember a transaction before memory is short. Whether there is some.
pub(super) fn reserve(arena: &mut Arena, id: VolumeId, tid: Tid) -> bool {
    let at = page_of(tid);
    arena.get(id, at).is_some()
        || arena
            .store(id, at, &mut |page| {
                page.fill(NOTHING);
                None
            })
            .is_ok()
}

/// Remembers where a transaction begins. `false`: there is no room.
pub(super) fn set_start(arena: &mut Arena, id: VolumeId, tid: Tid, start: AreaBlock) -> bool {
    let room = reserve(arena, id, tid);
    // In place: a kill leaves an entry that no tail has passed yet.
    if let Some(page) = arena.get_mut(id, page_of(tid)).filter(|_| room) {
        page[entry_of(tid)].copy_from_slice(&start.0.to_ne_bytes());
    }
    room
}

/// See [`set_start`]; whatever stands there.
pub(super) fn start(arena: &Arena, id: VolumeId, tid: Tid) -> Option<AreaBlock> {
    let entry = arena.get(id, page_of(tid))?.get(entry_of(tid))?;
    Some(AreaBlock(u32::from_ne_bytes(entry.try_into().ok()?)))
}

/// Gives up the pages of transactions before `first` or after `last`.
pub(super) fn keep_starts(arena: &mut Arena, id: VolumeId, first: Tid, last: Tid) {
    let pages = |from: AreaBlock, to: AreaBlock| to.0.wrapping_sub(from.0) % (u32::MAX / PAGE_TIDS + 1);
    let (first, last) = (page_of(first), page_of(last));
    let old = |at: &AreaBlock| at.0 >= STARTS_AT && pages(first, *at) > pages(first, last);
    for page in arena.blocks(id).into_iter().filter(old) {
        arena.remove(id, page);
    }
}
