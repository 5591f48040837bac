//! The served tail: what of the log is still needed, and what may be given up.

use super::followed::{Committed, Log, Position};
use crate::ids::Tid;
use crate::mutation::{Mistake, Mutation};
use crate::versions::arena::VolumeRecord;
use crate::versions::Versions;

impl Log {
    /// Moves the served tail past whole transactions in which nothing is needed any more, and gives those up but for the `held` newest:
    /// a guest sends blocks of the transaction that it committed last once more, if the daemon died before it answered, so one is held
    /// unless the guest has no request in flight.
    /// Under `power-window` what is home is kept while there is memory: the guest will write the same bytes again.
    pub(super) fn release(&mut self, versions: &mut Versions, held: usize) {
        if !self.may_release(versions.mistake) {
            return;
        }
        self.move_tail(versions);
        while !versions.applies() && self.drop_passed(versions, held) {}
    }

    /// Gives up the oldest transaction if the served tail has passed it, and more than `held` are there. Whether it was.
    fn drop_passed(&mut self, versions: &mut Versions, held: usize) -> bool {
        let passed = self.transactions.front().is_some_and(|front| self.tail.0.is_after(front.tid));
        let drops = passed && self.transactions.len() > held;
        if drops {
            self.drop_oldest(versions);
            versions.count(self.id).releases += 1;
        }
        drops
    }

    /// As [`Log::release`], and gives up that transaction, if it is the oldest and may go, for memory.
    pub(super) fn release_for_room(&mut self, versions: &mut Versions, tid: Tid) {
        self.release(versions, 1);
        let is_front = self.transactions.front().is_some_and(|front| front.tid == tid);
        if is_front && self.may_release(versions.mistake) {
            self.drop_passed(versions, 1);
        }
    }

    /// Whether anything may be given up, and the served tail moved, but by the guest itself.
    fn may_release(&self, mistake: Mistake) -> bool {
        !self.being_read || mistake.is(Mutation::ReleaseInRecovery)
    }

    /// The served superblock is read, or the guest has written one. The next daemon must know, too.
    pub(super) fn set_being_read(&mut self, versions: &mut Versions, being_read: bool) {
        if std::mem::replace(&mut self.being_read, being_read) != being_read {
            let record = versions.arena.records.get(self.id).unwrap_or_default();
            versions.arena.records.set(self.id, VolumeRecord { being_read, ..record });
        }
    }

    /// The next commit waits for a write of one of its blocks, or does no more. The next daemon must know.
    pub(super) fn set_commit_waits(&self, versions: &mut Versions, commit_waits: bool) {
        let record = versions.arena.records.get(self.id).unwrap_or_default();
        versions.arena.records.set(self.id, VolumeRecord { commit_waits, ..record });
    }

    /// Forgets the oldest transaction: its blocks of the arena, and those of its versions that are still the newest. The
    /// served tail passes it first: a daemon that is killed here must not leave a tail whose blocks are gone.
    fn drop_oldest(&mut self, versions: &mut Versions) {
        let next = self.transactions.get(1).map_or(self.head, |t| (t.tid, t.start));
        if next.0.is_after(self.tail.0) {
            self.set_tail(versions, next);
        }
        let Some(oldest) = self.pop() else { return };
        versions.set_listed(self.id, self.listed_bytes());
        let places = (0..oldest.blocks).map(|i| self.after(oldest.start, i));
        versions.forget(self.id, oldest.tid, &oldest.homes, places);
    }

    /// Before empty transactions take the places of those that the served tail has passed: up to the last one that stands, if only in
    /// part, nowhere else, they are given up. Whoever compared with it, or recovered it, would read what came in its place.
    pub(super) fn drop_displaced(&mut self, versions: &mut Versions) {
        let passed = self.transactions.iter().take_while(|t| self.tail.0.is_after(t.tid));
        let displaced = |t: &Committed| {
            (0..t.blocks).any(|i| versions.arena.get(self.id, self.after(t.start, i)).is_none())
        };
        let last = passed.enumerate().filter(|(_, t)| displaced(t)).map(|(n, _)| n + 1).last();
        for _ in 0..last.unwrap_or(0) {
            self.drop_oldest(versions);
        }
    }

    /// The served tail is the oldest transaction of which something is not home, and never goes back; what is written to
    /// one that it has passed is the guest's own affair.
    fn move_tail(&mut self, versions: &mut Versions) {
        let early = versions.mistake.is(Mutation::ReleaseEarly) && !versions.applies();
        let tail = self.tail_beyond(|tid| versions.area().open(self.id, tid), early.into());
        if let Some(tail) = tail.filter(|tail| self.remember(&mut versions.arena, tail.0)) {
            self.set_tail(versions, tail);
        }
    }

    /// The served tail is there from now on, for the next daemon, too.
    fn set_tail(&mut self, versions: &mut Versions, tail: Position) {
        self.tail = tail;
        if versions.mistake.is(Mutation::ServeGuestsTail) {
            return;
        }
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
        let known = |tid| self.start_of(&versions.arena, tid);
        let Some(passed) = self.passes(tail, known)? else { return Ok(false) };
        for _ in 0..passed {
            self.drop_oldest(versions);
        }
        if self.begins_anew(tail) && self.tail.0 == tail.0 {
            self.set_tail(versions, tail);
        }
        self.move_tail(versions);
        Ok(passed > 0)
    }
}
