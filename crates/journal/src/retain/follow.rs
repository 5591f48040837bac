//! Following the log: a commit block completes a transaction, and everything in it becomes the newest committed version.

use std::collections::{HashMap, HashSet};

use super::inflight::Match;
use super::volume::{Committed, Log, Position};
use super::{HomeError, Mutation, Retainer, View};
use crate::area::{Tuple, VersionState};
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::log::{self, AreaView, Parsed, Transaction};

impl Retainer {
    /// Takes in every transaction that is complete. A log that contradicts itself is handed back to the guest: what its
    /// own recovery makes of it is not ours to guess.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn follow(&mut self, v: usize) -> Result<(), JournalError> {
        loop {
            let volume = &self.volumes[v];
            let Some(log) = volume.log() else { return Ok(()) };
            let mut view =
                View { arena: &self.arena, below: &mut self.below, volume: volume.id, layout: &log.layout };
            let parsed = log::parse(&mut view, &log.geometry, log.head.1, log.head.0);
            match parsed {
                Ok(Parsed::Complete(transaction)) if !log.has_room(transaction.blocks) => {
                    // Where its blocks go round the log to older ones, giving those up would take them from it.
                    let why = format!("its journal runs over itself in transaction {}", transaction.tid);
                    return self.leave(v, &why, true);
                }
                Ok(Parsed::Complete(transaction)) => self.commit(v, transaction)?,
                Ok(Parsed::Incomplete) => return Ok(()),
                Err(JournalError::Block(e)) => return Err(e.into()),
                Err(e) => return self.leave(v, &format!("its journal could not be followed: {e}"), true),
            }
            // What is not in the arena has not been written yet, as a rule: no look at the disk for it, which would cost each
            // commit a read.
            let log = self.volumes[v].log();
            if log.is_some_and(|l| !l.spilled && self.arena.get(self.volumes[v].id, l.head.1).is_none()) {
                return Ok(());
            }
        }
    }

    /// One complete transaction.
    fn commit(&mut self, v: usize, transaction: Transaction) -> Result<(), JournalError> {
        let revoked: HashSet<FsBlock> = transaction.revokes.iter().copied().collect();
        let mut last: HashMap<FsBlock, Tuple> = HashMap::default();
        for tag in transaction.tags.iter().filter(|t| !revoked.contains(&t.home)) {
            let tuple = Tuple { home: tag.home, at: tag.at, tid: transaction.tid, escaped: tag.escaped };
            last.insert(tag.home, tuple);
        }
        let mut protect: Vec<Tuple> = last.into_values().collect();
        // The map's order is another one each time, and what is seeded must be reproducible.
        protect.sort_unstable_by_key(|tuple| tuple.home);
        if self.mutated(Mutation::KeepOldest) {
            let id = self.volumes[v].id;
            protect.retain(|tuple| self.area.version(id, tuple.home).is_none());
        }
        let revokes: &[FsBlock] =
            if self.mutated(Mutation::IgnoreRevokes) { &[] } else { &transaction.revokes };
        let volume = &mut self.volumes[v];
        let id = volume.id;
        volume.classes.journal_commits += 1;
        volume.classes.journal_commit_blocks += transaction.tags.len() as u64;
        volume.classes.revokes += transaction.revokes.len() as u64;
        let Some(log) = volume.log_mut() else { return Ok(()) };
        log.push(Committed {
            tid: transaction.tid,
            start: transaction.start,
            blocks: transaction.blocks,
            homes: protect.iter().map(|t| t.home).collect(),
            open: protect.len(),
        });
        log.head = (transaction.tid.next(), transaction.next);
        log.commit_seen = false;
        self.area.mprotect(id, &protect, revokes, &mut |_, version| {
            if version.state != VersionState::Home {
                if let Some(older) = log.transaction_mut(version.tid) {
                    older.open -= 1;
                }
            }
        })?;
        self.unsettle(v, &protect);
        let log = self.volumes[v].log();
        // What is read again is judged as a whole: a later transaction may have revoked what an earlier one committed.
        if log.is_some_and(|log| log.resuming) {
            return Ok(());
        }
        if self.below.applies() && log.is_some_and(|log| !log.suspended) {
            self.apply(v, &protect)?;
        }
        self.release(v);
        Ok(())
    }

    /// New versions whose home is being written by the guest just now (see [`Retainer::landed`]), or was written after the commit as an earlier
    /// daemon saw it: what the disk holds is not known to be older.
    fn unsettle(&mut self, v: usize, protect: &[Tuple]) {
        let (id, start) = (self.volumes[v].id, self.volumes[v].start);
        let anything_flies = self.in_flight.iter().next().is_some();
        // The mark goes with the slot: of a block that was evicted nobody knows. Under `power-window` what is read again was
        // never home, and its commit not yet answered: no guest can have overwritten it (see `resume`).
        let resuming = self.volumes[v].log().is_some_and(|l| l.resuming);
        for tuple in protect {
            let flies = anything_flies && self.in_flight.any(tuple.home.sector(start), BLOCK_SECTORS);
            let unknown = resuming && self.arena.get(id, tuple.at).is_none();
            if flies || unknown || self.arena.is_overwritten(id, tuple.at) {
                self.set_state(v, tuple.home, VersionState::Overwritten);
                self.arena.set_overwritten(id, tuple.at, true);
                if let Some(version) = self.area.version(id, tuple.home).filter(|_| flies) {
                    let older = Match { volume: id, home: tuple.home, generation: version.generation };
                    self.in_flight.outdated(tuple.home.sector(start), BLOCK_SECTORS, older);
                }
            } else if resuming && self.arena.is_home(id, tuple.at) {
                self.set_state(v, tuple.home, VersionState::Home);
            }
        }
    }

    /// `power-window`: what was committed goes home now, as one part of the disk's history.
    pub(super) fn apply(&mut self, v: usize, protect: &[Tuple]) -> Result<(), JournalError> {
        let id = self.volumes[v].id;
        let pending = |t: &&Tuple| {
            self.area.version(id, t.home).is_some_and(|v| v.tid == t.tid && v.state == VersionState::Pending)
        };
        let mut tuples: Vec<Tuple> = protect.iter().filter(pending).copied().collect();
        tuples.sort_unstable_by_key(|t| t.home);
        let contents = self.contents(v, &tuples)?;
        let start = self.volumes[v].start;
        let blocks: Vec<_> = tuples.iter().zip(&contents).map(|(t, c)| (t.home.sector(start), c)).collect();
        self.home_begins(v, &tuples);
        match self.below.write_home(&blocks) {
            Ok(()) => self.home_ends(v, &tuples)?,
            Err(HomeError::Block(e)) => return Err(e.into()),
            Err(e @ HomeError::TooLarge { .. }) => return self.leave(v, &e.to_string(), true),
        }
        for tuple in &tuples {
            self.set_state(v, tuple.home, VersionState::Home);
        }
        Ok(())
    }

    /// The contents that belong home.
    pub(super) fn contents(&mut self, v: usize, tuples: &[Tuple]) -> Result<Vec<Block>, JournalError> {
        let forgetful = self.mutated(Mutation::ForgetEscape);
        let volume = &self.volumes[v];
        let Some(log) = volume.log() else { return Ok(Vec::new()) };
        let mut view =
            View { arena: &self.arena, below: &mut self.below, volume: volume.id, layout: &log.layout };
        let mut contents = Vec::with_capacity(tuples.len());
        let mut scratch = [0; BLOCK_BYTES];
        for tuple in tuples {
            let mut block = *view.block(tuple.at, &mut scratch)?;
            if tuple.escaped && !forgetful {
                log::unescape(&mut block);
            }
            contents.push(block);
        }
        Ok(contents)
    }

    /// Gives up whole transactions from the tail in which nothing is needed any more, and moves the served tail. Under
    /// `power-window` what is home is kept while there is memory: the guest will write the same bytes again.
    pub(super) fn release(&mut self, v: usize) {
        if !self.may_release(v) {
            return;
        }
        let keep = self.below.applies();
        let open_max = usize::from(self.mutated(Mutation::ReleaseEarly));
        if !keep {
            while self.volumes[v]
                .log()
                .and_then(|l| l.transactions.front())
                .is_some_and(|t| t.open <= open_max)
            {
                self.drop_oldest(v);
                self.volumes[v].classes.releases += 1;
            }
        }
        self.move_tail(v);
    }

    /// Whether anything may be given up, and the served tail moved, but by the guest itself.
    pub(super) fn may_release(&self, v: usize) -> bool {
        let being_read = self.volumes[v].log().is_some_and(|log| log.being_read);
        !being_read || self.mutated(Mutation::ReleaseInRecovery)
    }

    /// The served superblock is read, or the guest has written one. The next daemon must know, too.
    pub(super) fn set_being_read(&mut self, v: usize, being_read: bool) {
        let id = self.volumes[v].id;
        let Some(log) = self.volumes[v].log_mut().filter(|log| log.being_read != being_read) else { return };
        log.being_read = being_read;
        let record = self.arena.volume(id).unwrap_or_default();
        self.arena.set_volume(id, crate::arena::VolumeRecord { being_read, ..record });
    }

    /// Forgets the oldest transaction: its blocks of the arena, and those of its versions that are still the newest. The
    /// served tail passes it first: a daemon that is killed here must not leave a tail whose blocks are gone.
    pub(super) fn drop_oldest(&mut self, v: usize) {
        let id = self.volumes[v].id;
        let Some(log) = self.volumes[v].log() else { return };
        let next = log.transactions.get(1).map_or(log.head, |t| (t.tid, t.start));
        if next.0.is_after(log.tail.0) {
            self.set_tail(v, next);
        }
        let Some(log) = self.volumes[v].log_mut() else { return };
        let Some(oldest) = log.pop() else { return };
        let newest = |home: &FsBlock| self.area.version(id, *home).is_some_and(|v| v.tid == oldest.tid);
        let homes: Vec<FsBlock> = oldest.homes.iter().copied().filter(newest).collect();
        // It is initialised: it has versions.
        drop(self.area.mprotect(id, &[], &homes, &mut |_, _| {}));
        for i in 0..oldest.blocks {
            self.arena.remove(id, log.after(oldest.start, i));
        }
    }

    /// The served tail is the oldest transaction that is still needed, and never goes back. Under `power-window` that is
    /// one of which something is not home at all; what is written there later is the guest's own affair.
    pub(super) fn move_tail(&mut self, v: usize) {
        let applies = self.below.applies();
        let Some(log) = self.volumes[v].log() else { return };
        let front = log.transactions.front().filter(|front| log.tail.0.is_after(front.tid));
        let passed = front.map_or(0, |front| log.tail.0 .0.wrapping_sub(front.tid.0));
        let needed = match applies {
            true => log.transactions.iter().skip(passed as usize).find(|t| t.open > 0),
            false => log.transactions.front(),
        };
        let tail = needed.map_or(log.head, |t| (t.tid, t.start));
        if tail.0.is_after(log.tail.0) {
            self.set_tail(v, tail);
        }
    }

    /// The served tail is there from now on, for the next daemon, too.
    pub(super) fn set_tail(&mut self, v: usize, tail: Position) {
        if self.mutated(Mutation::ServeGuestsTail) {
            return;
        }
        let id = self.volumes[v].id;
        let Some(log) = self.volumes[v].log_mut() else { return };
        log.tail = tail;
        let record = self.arena.volume(id).unwrap_or_default();
        self.arena.set_volume(id, crate::arena::VolumeRecord { tail, ..record });
    }
}

/// Whether the log's head is a transaction that the guest has begun: its first block is there.
pub(super) fn begins(view: &mut View<'_>, log: &Log) -> Result<bool, JournalError> {
    let mut scratch = [0; BLOCK_BYTES];
    let block = view.block(log.head.1, &mut scratch)?;
    Ok(is_of(block, log.head.0 .0))
}

/// Whether a block is a log block of that transaction, by magic and id.
pub(super) fn is_of(block: &Block, tid: u32) -> bool {
    /// JBD2_MAGIC_NUMBER
    const MAGIC: u32 = 0xc03b_3998;
    let field = |at: usize| u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    field(0) == MAGIC && field(8) == tid
}
