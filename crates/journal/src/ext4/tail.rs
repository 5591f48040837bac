//! The served tail: what of the log is still needed, and what may be given up.

use super::layout::superblock::JournalSuperblock;
use super::volume::{Log, Position, Volume};
use crate::mutation::{Mistake, Mutation};
use crate::versions::arena::VolumeRecord;
use crate::versions::Versions;

impl Volume {
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
    pub(super) fn drop_passed(&mut self, versions: &mut Versions, held: usize) -> bool {
        let Some(log) = self.log() else { return false };
        let passed = log.transactions.front().is_some_and(|front| log.tail.0.is_after(front.tid));
        let drops = passed && log.transactions.len() > held;
        if drops {
            self.drop_oldest(versions);
            versions.count(self.id).releases += 1;
        }
        drops
    }

    /// Whether anything may be given up, and the served tail moved, but by the guest itself.
    pub(super) fn may_release(&self, mistake: Mistake) -> bool {
        !self.log().is_some_and(|log| log.being_read) || mistake.is(Mutation::ReleaseInRecovery)
    }

    /// The served superblock is read, or the guest has written one. The next daemon must know, too.
    pub(super) fn set_being_read(&mut self, versions: &mut Versions, being_read: bool) {
        let Some(log) = self.log_mut().filter(|log| log.being_read != being_read) else { return };
        log.being_read = being_read;
        let record = versions.arena.volume(self.id).unwrap_or_default();
        versions.arena.set_volume(self.id, VolumeRecord { being_read, ..record });
    }

    /// Forgets the oldest transaction: its blocks of the arena, and those of its versions that are still the newest. The
    /// served tail passes it first: a daemon that is killed here must not leave a tail whose blocks are gone.
    pub(super) fn drop_oldest(&mut self, versions: &mut Versions) {
        let Some(log) = self.log() else { return };
        let next = log.transactions.get(1).map_or(log.head, |t| (t.tid, t.start));
        if next.0.is_after(log.tail.0) {
            self.set_tail(versions, next);
        }
        let id = self.id;
        let Some(log) = self.log_mut() else { return };
        let Some(oldest) = log.pop() else { return };
        let places = (0..oldest.blocks).map(|i| log.after(oldest.start, i));
        versions.forget(id, oldest.tid, &oldest.homes, places);
    }

    /// The served tail is the oldest transaction of which something is not home, and never goes back; what is written to
    /// one that it has passed is the guest's own affair.
    pub(super) fn move_tail(&mut self, versions: &mut Versions) {
        let early = versions.mistake.is(Mutation::ReleaseEarly) && !versions.applies();
        let Some(log) = self.log() else { return };
        let open = |tid| versions.area().open(self.id, tid);
        let needed = log.not_passed().find(|t| open(t.tid) > u64::from(early));
        let tail = needed.map_or(log.head, |t| (t.tid, t.start));
        if tail.0.is_after(log.tail.0) && log.remember(&mut versions.arena, self.id, tail.0) {
            self.set_tail(versions, tail);
        }
    }

    /// The served tail is there from now on, for the next daemon, too.
    pub(super) fn set_tail(&mut self, versions: &mut Versions, tail: Position) {
        let Some(log) = self.log_mut() else { return };
        log.tail = tail;
        if versions.mistake.is(Mutation::ServeGuestsTail) {
            return;
        }
        let record = versions.arena.volume(self.id).unwrap_or_default();
        versions.arena.set_volume(self.id, VolumeRecord { tail, ..record });
    }
}

impl Log {
    /// The superblock that a reader of an absorbed journal is shown.
    pub(super) fn served(&self, mistake: Mistake) -> JournalSuperblock {
        match self.superblock.start() {
            _ if mistake.is(Mutation::ServeGuestsTail) => self.superblock.clone(),
            Some(start) if (self.superblock.sequence(), start) == self.tail => self.superblock.clone(),
            Some(_) if self.superblock.sequence().is_after(self.tail.0) => self.superblock.clone(),
            _ => self.superblock.with_tail(self.tail.0, Some(self.tail.1)),
        }
    }
}
