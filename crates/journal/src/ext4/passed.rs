//! The guest's tail passes transactions of which versions are not home.
//!
//! A journal moves its tail when everything before it is home or not needed any more. Most of what is still pending then was
//! freed: nobody wants it, and it costs no write. But a guest can be wrong: ext4 with `data=journal` in Linux 6.1 moves the
//! tail past a committed block whose home write it has not submitted, and then loses it in a crash, on any disk
//! (`docs/explore-results.md`). Here the daemon still has the block. So what the committed bitmaps have in use is written home
//! before it is let go. A crash a moment earlier would have replayed just that: a live guest cannot mind.

use super::followed::{Committed, Log};
use super::layout::bitmap::Bitmaps;
use super::layout::superblock::JournalSuperblock;
use super::retained::Retained;
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, Tid};
use crate::mutation::Mutation;
use crate::versions::area::JournalArea;
use crate::versions::{Tuple, VersionState, Versions};

/// What has to go home before every transaction older than `tid` is let go, or all of them.
///
/// # Errors
/// A bitmap cannot be read.
pub(super) fn needed(
    retained: &Retained,
    versions: &mut Versions,
    tid: Option<Tid>,
) -> Result<Vec<Tuple>, JournalError> {
    let passed = pending(&retained.log, versions.area(), tid);
    let Some(bitmaps) = retained.place.layout.bitmaps else {
        // Which blocks are in use is not known: all of them go home.
        return Ok(passed);
    };
    let mut needed = Vec::new();
    for group in passed.chunk_by(|one, other| bitmaps.group(one.home) == bitmaps.group(other.home)) {
        let bitmap = bitmap(retained, versions, &bitmaps, group[0].home)?;
        let in_use = |t: &&Tuple| bitmap.as_ref().is_none_or(|bitmap| bitmaps.in_use(t.home, bitmap));
        needed.extend(group.iter().filter(in_use));
    }
    Ok(needed)
}

/// Versions that transactions older than `tid` committed, or all, and that are still the newest and pending; in the order of the disk.
fn pending(log: &Log, area: &JournalArea, tid: Option<Tid>) -> Vec<Tuple> {
    let before = |t: &&Committed| tid.is_none_or(|tid| tid.is_after(t.tid));
    let passed = log.transactions.iter().take_while(before).filter(|t| area.open(log.id, t.tid) > 0);
    let versions = passed.flat_map(|t| t.homes.iter().map(move |home| (t.tid, *home)));
    let mut pending: Vec<Tuple> = versions
        .filter_map(|(tid, home)| {
            let version = area.version(log.id, home)?;
            let pending = version.tid == tid && version.state == VersionState::Pending;
            pending.then_some(version.tuple(home))
        })
        .collect();
    pending.sort_unstable_by_key(|tuple| tuple.home);
    pending
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

#[cfg(test)]
mod tests {
    use super::super::followed::tests::{log, next};
    use super::*;
    use crate::ids::BLOCK_BYTES;

    #[test]
    fn only_what_is_pending_of_transactions_that_are_passed_has_to_go_home() {
        let (mut log, mut area) = (log(7, 1), JournalArea::default());
        let id = log.id;
        area.init(id, BLOCK_BYTES).unwrap();
        for homes in [&[30, 10, 20][..], &[20, 40], &[50]] {
            let transaction = next(&log, 9);
            let homes: Vec<FsBlock> = homes.iter().copied().map(FsBlock).collect();
            let at = transaction.start;
            let tuple = |home: &FsBlock| Tuple { home: *home, at, tid: transaction.tid, escaped: false };
            area.mprotect(id, &homes.iter().map(tuple).collect::<Vec<_>>(), &[]).unwrap();
            log.push(&transaction, homes);
        }
        area.set_state(id, FsBlock(30), VersionState::Home);
        area.set_state(id, FsBlock(40), VersionState::Overwritten);
        let homes = |tid| pending(&log, &area, tid).iter().map(|t| (t.home.0, t.tid.0)).collect::<Vec<_>>();
        assert_eq!(homes(Some(Tid(7))), []);
        assert_eq!(homes(Some(Tid(8))), [(10, 7)], "the newer version of 20 is not passed");
        assert_eq!(homes(Some(Tid(9))), [(10, 7), (20, 8)]);
        assert_eq!(homes(None), [(10, 7), (20, 8), (50, 9)]);
    }
}
