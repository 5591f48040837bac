//! The guest's own tail moves: what it passes is given up. Nothing else gives anything up.

use super::followed::{Log, Position};
use crate::mutation::Mutation;
use crate::versions::arena::VolumeRecord;
use crate::versions::Versions;

impl Log {
    /// The next commit waits for a write of one of its blocks, or does no more. The next daemon must know.
    pub(super) fn set_commit_waits(&self, versions: &mut Versions, commit_waits: bool) {
        let record = versions.arena.records.get(self.id).unwrap_or_default();
        versions.arena.records.set(self.id, VolumeRecord { commit_waits, ..record });
    }

    /// The superblock is read, or the guest has written one. The next daemon must know, too.
    pub(super) fn set_superblock_read(&mut self, versions: &mut Versions, superblock_read: bool) {
        if std::mem::replace(&mut self.superblock_read, superblock_read) != superblock_read {
            let record = versions.arena.records.get(self.id).unwrap_or_default();
            versions.arena.records.set(self.id, VolumeRecord { superblock_read, ..record });
        }
    }

    /// Forgets the oldest transaction: its blocks of the arena, and those of its versions that are still the newest. The
    /// tail passes it first: a daemon that is killed here must not leave a tail whose blocks are gone.
    fn drop_oldest(&mut self, versions: &mut Versions) {
        let next = self.transactions.get(1).map_or(self.head, |t| (t.tid, t.start));
        if next.0.is_after(self.tail.0) {
            self.set_tail(versions, next);
        }
        let Some(oldest) = self.pop() else { return };
        versions.set_listed(self.id, self.listed_bytes());
        let places = (0..oldest.blocks).map(|i| self.after(oldest.start, i));
        versions.forget(self.id, oldest.tid, &oldest.homes, places);
        versions.count(self.id).releases += 1;
    }

    /// A mistake: whole transactions are given up when they are home, or all but one block of them, whatever the guest believes.
    pub(super) fn release_early(&mut self, versions: &mut Versions) {
        let spared = match versions.mistake {
            mistake if mistake.is(Mutation::ReleaseHome) => 0,
            mistake if mistake.is(Mutation::ReleaseEarly) && !versions.applies() => 1,
            _ => return,
        };
        while self.transactions.len() > spared as usize
            && versions.area().open(self.id, self.transactions[0].tid) <= spared
        {
            self.drop_oldest(versions);
        }
    }

    /// The log begins there from now on, for the next daemon, too.
    fn set_tail(&mut self, versions: &mut Versions, tail: Position) {
        self.tail = tail;
        let record = versions.arena.records.get(self.id).unwrap_or_default();
        versions.arena.records.set(self.id, VolumeRecord { tail, ..record });
    }

    /// The guest's own tail: what is older is home or of no use to it. Says whether anything was passed.
    ///
    /// # Errors
    /// As [`Log::passes`].
    pub(super) fn guest_tail(
        &mut self,
        versions: &mut Versions,
        tail: Position,
    ) -> Result<bool, &'static str> {
        let Some(passed) = self.passes(tail)? else { return Ok(false) };
        for _ in 0..passed {
            self.drop_oldest(versions);
        }
        if self.transactions.is_empty() && tail != self.head {
            self.begin_anew(tail);
            self.set_tail(versions, tail);
        }
        Ok(passed > 0)
    }
}
