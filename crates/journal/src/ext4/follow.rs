//! Following the log: a commit block completes a transaction, and everything in it becomes the newest committed version.

use afterimage_order::HomeError;

use super::log::{self, Parsed, Transaction};
use super::side;
use super::volume::Committed;
use super::FileSystems;
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_BYTES};
use crate::mutation::Mutation;
use crate::versions::{SetError, Tuple};

/// Versions that are known of one disk, if `--retain-max` has not room for more: a gigabyte of content. With what goes with it,
/// each takes some 70 bytes.
const VERSIONS_MAX: usize = 1 << 18;

impl FileSystems {
    /// Takes in every transaction that is complete. A log that contradicts itself is handed back to the guest: what its
    /// own recovery makes of it is not ours to guess.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn follow(&mut self, v: usize) -> Result<(), JournalError> {
        loop {
            let volume = &self.volumes[v];
            let Some(log) = volume.log() else { return Ok(()) };
            let mut reader = self.versions.reader(volume.id, &*log.layout);
            let parsed = log::parse(&mut reader, &log.geometry, log.head.1, log.head.0);
            match parsed {
                Ok(Parsed::Complete(transaction)) if !log.has_room(transaction.blocks) => {
                    // Where its blocks go round the log to older ones, giving those up would take them from it.
                    let why = format!("its journal runs over itself in transaction {}", transaction.tid);
                    return self.leave(v, &why, true);
                }
                Ok(Parsed::Complete(transaction)) => {
                    if !self.make_way(v, transaction.tags.len())? {
                        let why =
                            format!("too much would be known of it with transaction {}", transaction.tid);
                        return self.leave(v, &why, true);
                    }
                    self.commit(v, transaction)?;
                }
                Ok(Parsed::Incomplete) => return Ok(()),
                Err(JournalError::Block(e)) => return Err(e.into()),
                Err(e) => return self.leave(v, &format!("its journal could not be followed: {e}"), true),
            }
            // What is not in the arena has not been written yet, as a rule: no look at the disk for it, which would cost each
            // commit a read.
            let (id, log) = (self.volumes[v].id, self.volumes[v].log());
            if log.is_some_and(|l| !l.spilled && self.versions.arena.get(id, l.head.1).is_none()) {
                return Ok(());
            }
        }
    }

    /// Whether so many versions more may be known: the oldest ones go where they would be too many.
    fn make_way(&mut self, v: usize, more: usize) -> Result<bool, JournalError> {
        let slots = usize::try_from(self.versions.arena.bytes_max()).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let room = VERSIONS_MAX.max(slots).saturating_sub(more) as u64;
        // What is read again was known to an earlier daemon.
        let mut now = self.versions.known();
        while now > room && self.volumes[v].log().is_some_and(|log| !log.resuming) {
            self.relieve(v)?;
            let before = std::mem::replace(&mut now, self.versions.known());
            if now == before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One complete transaction.
    fn commit(&mut self, v: usize, transaction: Transaction) -> Result<(), JournalError> {
        let Transaction { tid, start, next, blocks, tags, mut revokes, commit_sec } = transaction;
        let logged = tags.len() as u64;
        revokes.sort_unstable();
        let mut protect: Vec<Tuple> = tags
            .into_iter()
            .filter(|tag| revokes.binary_search(&tag.home).is_err())
            .map(|tag| Tuple { home: tag.home, at: tag.at, tid, escaped: tag.escaped })
            .collect();
        // Of several of one block the last one counts.
        protect.sort_by_key(|tuple| tuple.home);
        protect.reverse();
        protect.dedup_by_key(|tuple| tuple.home);
        protect.reverse();
        let volume = &mut self.volumes[v];
        let id = volume.id;
        if self.versions.mistake.is(Mutation::KeepOldest) {
            protect.retain(|tuple| self.versions.area().version(id, tuple.home).is_none());
        }
        if self.versions.mistake.is(Mutation::IgnoreRevokes) {
            revokes.clear();
        }
        let classes = self.versions.count(id);
        classes.journal_commits += 1;
        classes.journal_commit_blocks += logged;
        classes.revokes += revokes.len() as u64;
        let Some(log) = volume.log_mut() else { return Ok(()) };
        let homes: Vec<FsBlock> = protect.iter().map(|t| t.home).collect();
        log.push(Committed { tid, start, blocks, homes });
        log.head = (tid.next(), next);
        log.commit_sec = commit_sec;
        log.commit_seen = false;
        let (resuming, suspended, journal_blocks) =
            (log.resuming, log.suspended, log.layout.journal_blocks());
        self.versions.mprotect(id, &protect, &revokes, resuming)?;
        side::reserve(&mut self.versions.arena, id, journal_blocks, tid);
        // What is read again is judged as a whole: a later transaction may have revoked what an earlier one committed.
        if resuming {
            return Ok(());
        }
        if self.versions.applies() && !suspended {
            self.apply(v, &protect)?;
        }
        self.volumes[v].release(&mut self.versions, 1);
        Ok(())
    }

    /// `power-window`: what was committed goes home now, as one part of the disk's history.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn apply(&mut self, v: usize, tuples: &[Tuple]) -> Result<(), JournalError> {
        let set = match self.versions.make_set(self.volumes[v].id, tuples) {
            Ok(Some(set)) => set,
            Ok(None) => return Ok(()),
            Err(SetError::Below(e)) => return Err(e.into()),
            Err(e) => return self.leave(v, &e.to_string(), true),
        };
        self.home_begins(v, &set.tuples);
        let written = set.write();
        let tuples = self.versions.set_ended(set, written.is_ok());
        match written {
            Ok(()) => Ok(self.home_ends(v, &tuples)?),
            Err(HomeError::Block(e)) => Err(e.into()),
            Err(e @ HomeError::TooLarge { .. }) => self.leave(v, &e.to_string(), true),
        }
    }
}
