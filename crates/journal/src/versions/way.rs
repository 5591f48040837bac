//! What goes home goes as a set, and whoever writes it may wait: for room in the redo log, for the end of a pause, for the device. So a
//! set is written without the disk's lock. It is due, then under way, then ended:
//!
//! ```text
//! a commit, somebody short of memory, a tail that moves, somebody who wants all of it home
//!   ─► due ─► take ─► (no lock: HomeSet::write) ─► end ─► the next commit
//! ```
//!
//! One set a disk is due or under way. Whoever made it due takes it and ends it, and only then goes on: under `power-window` the commit is
//! answered after its set is in the disk's history. Meanwhile the rest of the disk goes on.
//!
//! **What may overtake a set**: every read; every write of blocks that are not in it, on which no layout rests and which no journal
//! has; what is written to other file systems' journals, but for commits and superblocks; completions.
//!
//! **What waits for it**: what is written to blocks that are in it, for the set could undo that; what is written to its own journal, of
//! which nothing may be given up meanwhile; other commits and journal superblocks of the disk; whatever a layout rests on, and
//! the looks at the disk that some completions lead to: nothing goes home where another file system may just have begun.

use super::arena::VolumeId;
use super::set::HomeSet;
use crate::ids::FsBlock;

/// The set of a disk that is due or under way.
#[derive(Default)]
pub(crate) struct Way(Option<Going>);

struct Going {
    client: VolumeId,
    /// Its blocks, ascending.
    homes: Vec<FsBlock>,
    /// Until somebody takes it.
    due: Option<HomeSet>,
}

impl Way {
    /// No set is due or under way.
    pub(crate) fn is_free(&self) -> bool {
        self.0.is_none()
    }

    /// A set of these blocks is due, `None` where it is under way at once. The way is free.
    pub(super) fn begin(&mut self, client: VolumeId, homes: Vec<FsBlock>, due: Option<HomeSet>) {
        debug_assert!(self.is_free() && homes.is_sorted());
        self.0 = Some(Going { client, homes, due });
    }

    /// Whether a set waits for somebody to take it.
    pub(crate) fn is_due(&self) -> bool {
        self.0.as_ref().is_some_and(|going| going.due.is_some())
    }

    /// The set that is due; it is under way then.
    pub(crate) fn take(&mut self) -> Option<HomeSet> {
        self.0.as_mut()?.due.take()
    }

    /// What was under way has ended.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// A set of this client that is due is not wanted any more. None of its is under way: whatever leads here waits for it.
    pub(super) fn cancel(&mut self, client: VolumeId) -> Option<HomeSet> {
        if !self.is_of(client) {
            return None;
        }
        let due = self.take();
        debug_assert!(due.is_some(), "the blocks of a set that is under way stay");
        self.end();
        due
    }

    /// Whether a set of this client is due or under way.
    pub(crate) fn is_of(&self, client: VolumeId) -> bool {
        self.0.as_ref().is_some_and(|going| going.client == client)
    }

    /// Whether it has one of the client's blocks `[from, to)`.
    pub(crate) fn has(&self, client: VolumeId, from: FsBlock, to: FsBlock) -> bool {
        self.0.as_ref().filter(|going| going.client == client).is_some_and(|going| {
            let first = going.homes.partition_point(|home| *home < from);
            going.homes.get(first).is_some_and(|home| *home < to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_set_at_a_time_and_its_blocks_alone() {
        let (one, other) = (VolumeId(1), VolumeId(2));
        let mut way = Way::default();
        assert!(way.is_free() && !way.is_due() && !way.has(one, FsBlock(0), FsBlock(u64::MAX)));
        way.begin(one, vec![FsBlock(3), FsBlock(4), FsBlock(9)], None);
        assert!(!way.is_free() && way.is_of(one) && !way.is_of(other) && way.take().is_none());
        for from in 0..12 {
            for to in from..12 {
                let naive = [3, 4, 9].iter().any(|home| (from..to).contains(home));
                assert_eq!(way.has(one, FsBlock(from), FsBlock(to)), naive, "{from}..{to}");
                assert!(!way.has(other, FsBlock(from), FsBlock(to)));
            }
        }
        assert!(way.cancel(other).is_none() && !way.is_free(), "another file system's is not touched");
        way.end();
        assert!(way.is_free());
    }
}
