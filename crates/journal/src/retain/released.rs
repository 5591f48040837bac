//! Transactions that the served tail has passed, and that the guest believes to be in its log until its own tail has.
//!
//! Nothing of them is needed: all of it is home, superseded or revoked. But the guest's next superblock may name one of them as
//! its tail, and a server that knows nothing of this layer lets that through. So where each of them begins is remembered, four bytes
//! each, in pages of the arena beside the journal's blocks, before the served tail passes it; and where the log is put into
//! its own place, an empty transaction of the same id and length stands for each: revoke blocks that revoke nothing, and
//! a commit block. A recovery that begins at any of them finds its way to what is needed, and writes nothing on that way.
//!
//! It also tells a tail that lags from one of a log that began anew.

use super::volume::Position;
use super::{Mutation, Retainer};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, Tid, BLOCK_BYTES};
use crate::log::empty;

/// Where the pages are among the arena's blocks: beyond every journal that has them, and what says where it lies.
const PAGES: u32 = 3 << 30;
/// Transactions of a page.
const PAGE_TIDS: u32 = BLOCK_BYTES as u32 / 4;
/// The bytes of an entry that was not made: no journal has that block. (A page of zeroes is a hole in a sparse copy.)
const NOTHING: u8 = 0xff;
/// Blocks of one go.
const BATCH: usize = 256;

fn page_of(tid: Tid) -> AreaBlock {
    AreaBlock(PAGES | (tid.0 / PAGE_TIDS))
}

/// Its place in the page.
fn entry_of(tid: Tid) -> std::ops::Range<usize> {
    let at = (tid.0 % PAGE_TIDS) as usize * 4;
    at..at + 4
}

/// A transaction that was passed.
struct Passed {
    tid: Tid,
    start: AreaBlock,
    blocks: u32,
}

impl Retainer {
    /// Makes room to remember a transaction before memory is short. Whether there is some.
    pub(super) fn reserve(&mut self, v: usize, tid: Tid) -> bool {
        let volume = &self.volumes[v];
        let (id, at) = (volume.id, page_of(tid));
        // A longer journal takes the pages' places: of it nothing is remembered.
        volume.layout().is_none_or(|layout| layout.journal_blocks() > PAGES)
            || self.arena.get(id, at).is_some()
            || self.arena.store(id, at, &mut |page| page.fill(NOTHING)).is_ok()
    }

    /// Before the served tail moves to `to`: where the transactions begin that it passes. `false`: there is no room, and they
    /// have to stay.
    pub(super) fn remember(&mut self, v: usize, to: Tid) -> bool {
        let Some(log) = self.volumes[v].log() else { return false };
        let id = self.volumes[v].id;
        let passed = log.not_passed().take_while(|t| to.is_after(t.tid));
        let passed: Vec<Position> = passed.map(|t| (t.tid, t.start)).collect();
        passed.into_iter().all(|(tid, start)| {
            let room = self.reserve(v, tid);
            // In place: a kill leaves an entry that no tail has passed yet.
            if let Some(page) = self.arena.get_mut(id, page_of(tid)).filter(|_| room) {
                page[entry_of(tid)].copy_from_slice(&start.0.to_ne_bytes());
            }
            room
        })
    }

    /// Where a transaction that was passed begins, as far as that was remembered.
    pub(super) fn start_of(&self, v: usize, tid: Tid) -> Option<AreaBlock> {
        let volume = &self.volumes[v];
        let entry = self.arena.get(volume.id, page_of(tid))?.get(entry_of(tid))?;
        let start = AreaBlock(u32::from_ne_bytes(entry.try_into().ok()?));
        volume.log().filter(|log| log.geometry.contains(start)).map(|_| start)
    }

    /// The guest's own tail has moved, or the log was read again: what is remembered of transactions before it goes.
    pub(super) fn forget_passed(&mut self, v: usize) {
        let Some(log) = self.volumes[v].log() else { return };
        let id = self.volumes[v].id;
        let pages = |from: AreaBlock, to: AreaBlock| to.0.wrapping_sub(from.0) % (u32::MAX / PAGE_TIDS + 1);
        let (first, last) = (page_of(log.superblock.sequence()), page_of(log.head.0));
        let old = |at: &AreaBlock| at.0 >= PAGES && pages(first, *at) > pages(first, last);
        if log.geometry.maxlen <= PAGES {
            for page in self.arena.blocks(id).into_iter().filter(old) {
                self.arena.remove(id, page);
            }
        }
    }

    /// Those that the guest believes to be in its log, oldest first; `None` where not all of them are known: an earlier version did not
    /// remember them.
    fn passed(&self, v: usize) -> Option<Vec<Passed>> {
        let log = self.volumes[v].log()?;
        let (from, start) = (log.superblock.sequence(), log.superblock.start()?);
        if !log.tail.0.is_after(from) {
            return Some(Vec::new());
        }
        let count = log.tail.0 .0.wrapping_sub(from.0);
        let log_blocks = log.geometry.log_blocks();
        if count > log_blocks || self.start_of(v, from) != Some(start) {
            return None;
        }
        let mut passed = Vec::with_capacity(count as usize);
        let mut start = start;
        let mut blocks_left = log_blocks;
        for i in 0..count {
            let tid = Tid(from.0.wrapping_add(i));
            let end = if i + 1 == count { log.tail.1 } else { self.start_of(v, tid.next())? };
            let blocks = log.geometry.distance(start, end);
            // What contradicts itself is as good as not known.
            blocks_left = blocks_left.checked_sub(blocks).filter(|_| blocks > 0)?;
            passed.push(Passed { tid, start, blocks });
            start = end;
        }
        Some(passed)
    }

    /// Whether whatever tail the guest writes next can be made right.
    pub(super) fn knows_passed(&self, v: usize) -> bool {
        self.passed(v).is_some()
    }

    /// Puts empty transactions in the places of those that were passed, where all of them are known.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn write_passed(&mut self, v: usize) -> Result<(), JournalError> {
        if self.mutated(Mutation::LeaveGaps) {
            return Ok(());
        }
        let Some(passed) = self.passed(v) else { return Ok(()) };
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let mut blocks: Vec<(AreaBlock, Block)> = Vec::new();
        for Passed { tid, start, blocks: length } in passed {
            let filler = empty::filler(&log.geometry, tid);
            for i in 0..length {
                let last = i + 1 == length;
                let block = if last { empty::commit(&log.geometry, tid, log.commit_sec) } else { filler };
                blocks.push((log.after(start, i), block));
                if blocks.len() == BATCH {
                    Self::write_log_blocks(&mut self.below, &log.layout, &blocks)?;
                    blocks.clear();
                }
            }
        }
        Self::write_log_blocks(&mut self.below, &log.layout, &blocks)
    }

    fn write_log_blocks(
        below: &mut super::Below,
        layout: &crate::layout::Layout,
        blocks: &[(AreaBlock, Block)],
    ) -> Result<(), JournalError> {
        let place = |at: AreaBlock| Some(layout.home_of(at)?.sector(layout.start));
        Ok(below.write_blocks(blocks.iter().filter_map(|(at, block)| Some((place(*at)?, block))))?)
    }
}
