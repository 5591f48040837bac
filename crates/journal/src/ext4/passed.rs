//! The guest's tail passes transactions of which versions are not home.
//!
//! A journal moves its tail when everything before it is home or not needed any more. Most of what is still pending then was
//! freed: nobody wants it, and it costs no write. But a guest can be wrong: ext4 with `data=journal` in Linux 6.1 moves the
//! tail past a committed block whose home write it has not submitted, and then loses it in a crash, on any disk
//! (`docs/explore-results.md`). Here the daemon still has the block. So what the committed bitmaps have in use is written home
//! before it is let go. A crash a moment earlier would have replayed just that: a live guest cannot mind.

use super::layout::bitmap::Bitmaps;
use super::layout::superblock::JournalSuperblock;
use super::retained::Retained;
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, Tid};
use crate::mutation::Mutation;
use crate::versions::{Tuple, VersionState, Versions};

/// What has to go home before every transaction older than `tid` is let go, or all of them.
pub(super) fn needed(
    retained: &Retained,
    versions: &mut Versions,
    tid: Option<Tid>,
) -> Result<Vec<Tuple>, JournalError> {
    let (log, id) = (&retained.log, retained.log.id);
    let before = |other: Tid| tid.is_none_or(|tid| tid.is_after(other));
    let Some(bitmaps) = retained.place.layout.bitmaps else {
        // Which blocks are in use is not known: all of them go home.
        return Ok(versions.recover(id, false).into_iter().filter(|t| before(t.tid)).collect());
    };
    let mut tuples: Vec<Tuple> = Vec::new();
    for transaction in log.transactions.iter().take_while(|t| before(t.tid)) {
        if versions.area().open(id, transaction.tid) == 0 {
            continue;
        }
        tuples.extend(transaction.homes.iter().filter_map(|home| {
            let version = versions.area().version(id, *home)?;
            let wanted = version.tid == transaction.tid && version.state == VersionState::Pending;
            wanted.then_some(version.tuple(*home))
        }));
    }
    tuples.sort_unstable_by_key(|t| t.home);
    let mut needed = Vec::new();
    let mut looked_at: Option<(FsBlock, Option<Block>)> = None;
    for tuple in tuples {
        let group = FsBlock(tuple.home.0 / bitmaps.blocks_per_group());
        if looked_at.as_ref().is_none_or(|(of, _)| *of != group) {
            looked_at = Some((group, bitmap(retained, versions, &bitmaps, tuple.home)?));
        }
        let bitmap = looked_at.as_ref().and_then(|(_, bitmap)| bitmap.as_ref());
        if bitmap.is_none_or(|bitmap| bitmaps.in_use(tuple.home, bitmap)) {
            needed.push(tuple);
        }
    }
    Ok(needed)
}

/// Whether a superblock of the guest moves the tail past a version that cannot be saved just now, because its home, or what the
/// layout rests on, is being written.
pub(super) fn passes_flying(retained: &Retained, versions: &Versions, superblock: &Block) -> bool {
    let (log, id) = (&retained.log, retained.log.id);
    let Ok(superblock) = JournalSuperblock::parse(superblock) else { return false };
    if versions.mistake.is(Mutation::ForgetFlight) {
        return false;
    }
    let tid = superblock.start().map(|_| superblock.sequence());
    let passed = |t: Tid| tid.is_none_or(|tid| tid.is_after(t));
    if retained.suspended {
        return log.transactions.iter().any(|t| versions.area().open(id, t.tid) > 0 && passed(t.tid));
    }
    versions.flies_over(id, passed)
}

/// The committed bitmap that has a block.
fn bitmap(
    retained: &Retained,
    versions: &mut Versions,
    bitmaps: &Bitmaps,
    home: FsBlock,
) -> Result<Option<Block>, JournalError> {
    let descriptors = newest(retained, versions, bitmaps.descriptor_block(home))?;
    let Some(bitmap) = bitmaps.bitmap_block(home, &descriptors) else { return Ok(None) };
    if bitmap.0 >= retained.place.layout.room_blocks {
        return Ok(None);
    }
    newest(retained, versions, bitmap).map(Some)
}

/// A block's committed content: its newest version, or what stands at home.
fn newest(retained: &Retained, versions: &mut Versions, home: FsBlock) -> Result<Block, JournalError> {
    let id = retained.log.id;
    let version = versions.area().version(id, home).map(|version| version.tuple(home));
    let contents = versions.contents(id, version.as_slice())?;
    match contents.first() {
        Some(content) => Ok(*content),
        None => Ok(versions.below.read_block(home.sector(retained.place.layout.start))?),
    }
}
