//! Transactions that the served tail has passed, and that the guest believes to be in its log until its own tail has.
//!
//! Nothing of them is needed: all of it is home, superseded or revoked. But the guest's next superblock may name one of them as
//! its tail, and a server that knows nothing of this layer lets that through. So where each of them begins is remembered, four bytes
//! each, in pages of the arena beside the journal's blocks ([`side`]), before the served tail passes it; and where the log is put into
//! its own place, an empty transaction of the same id and length stands for each: revoke blocks that revoke nothing, and
//! a commit block. A recovery that begins at any of them finds its way to what is needed, and writes nothing on that way.
//!
//! It also tells a tail that lags from one of a log that began anew.

use super::followed::{Log, Position};
use super::layout::Layout;
use super::log::empty;
use super::side;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, Tid};
use crate::mutation::Mutation;
use crate::versions::arena::Arena;
use crate::versions::{Places, Versions};

/// Blocks of one go.
const BATCH: usize = 256;

/// A transaction that was passed.
struct Passed {
    tid: Tid,
    start: AreaBlock,
    blocks: u32,
}

impl Log {
    /// Before the served tail moves to `to`: where the transactions begin that it passes. `false`: there is no room, and they
    /// have to stay.
    pub(super) fn remember(&self, arena: &mut Arena, to: Tid) -> bool {
        let passed: Vec<Position> =
            self.not_passed().take_while(|t| to.is_after(t.tid)).map(|t| (t.tid, t.start)).collect();
        passed.into_iter().all(|(tid, start)| side::set_start(arena, self.id, tid, start))
    }

    /// Where a transaction that was passed begins, as far as that was remembered.
    pub(super) fn start_of(&self, arena: &Arena, tid: Tid) -> Option<AreaBlock> {
        side::start(arena, self.id, tid).filter(|start| self.geometry.contains(*start))
    }

    /// The guest's own tail has moved, or the log was read again: what is remembered of transactions before it goes.
    pub(super) fn forget_passed(&self, arena: &mut Arena) {
        side::keep_starts(arena, self.id, self.superblock.sequence(), self.head.0);
    }

    /// Those that the guest believes to be in its log, oldest first; `None` where not all of them are known: an earlier version did not
    /// remember them.
    fn passed(&self, arena: &Arena) -> Option<Vec<Passed>> {
        let (from, start) = (self.superblock.sequence(), self.superblock.start()?);
        if !self.tail.0.is_after(from) {
            return Some(Vec::new());
        }
        let count = self.tail.0 .0.wrapping_sub(from.0);
        let log_blocks = self.geometry.log_blocks();
        if count > log_blocks || self.start_of(arena, from) != Some(start) {
            return None;
        }
        let mut passed = Vec::with_capacity(count as usize);
        let mut start = start;
        let mut blocks_left = log_blocks;
        for i in 0..count {
            let tid = Tid(from.0.wrapping_add(i));
            let end = if i + 1 == count { self.tail.1 } else { self.start_of(arena, tid.next())? };
            let blocks = self.geometry.distance(start, end);
            // What contradicts itself is as good as not known.
            blocks_left = blocks_left.checked_sub(blocks).filter(|_| blocks > 0)?;
            passed.push(Passed { tid, start, blocks });
            start = end;
        }
        Some(passed)
    }

    /// Whether whatever tail the guest writes next can be made right.
    pub(super) fn knows_passed(&self, arena: &Arena) -> bool {
        self.passed(arena).is_some()
    }

    /// Puts empty transactions in the places of those that were passed, where all of them are known.
    pub(super) fn write_passed(&self, versions: &mut Versions, layout: &Layout) -> Result<(), JournalError> {
        if versions.mistake.is(Mutation::LeaveGaps) {
            return Ok(());
        }
        let passed = self.passed(&versions.arena).unwrap_or_default();
        let blocks = passed.into_iter().flat_map(|Passed { tid, start, blocks }| {
            let filler = empty::filler(&self.geometry, tid);
            (0..blocks).map(move |i| {
                let last = i + 1 == blocks;
                let commit = || empty::commit(&self.geometry, tid, self.commit_sec);
                (self.after(start, i), if last { commit() } else { filler })
            })
        });
        let mut batch: Vec<(AreaBlock, Block)> = Vec::new();
        let mut write = |batch: &mut Vec<(AreaBlock, Block)>| {
            let placed = batch.iter().filter_map(|(at, block)| Some((layout.sector_of(*at)?, &block[..])));
            versions.below.write_blocks(placed)?;
            batch.clear();
            Ok::<_, JournalError>(())
        };
        for block in blocks {
            batch.push(block);
            if batch.len() == BATCH {
                write(&mut batch)?;
            }
        }
        write(&mut batch)
    }
}
