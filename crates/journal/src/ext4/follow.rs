//! Following the log: a commit block completes a transaction, and everything in it becomes the newest committed version.

use super::log::{self, Parsed, Transaction};
use super::side;
use super::volume::Committed;
use super::FileSystems;
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_BYTES};
use crate::mutation::Mutation;
use crate::versions::Tuple;

/// Versions that are known of one disk, if `--retain-max` has not room for more: a gigabyte of content. With what goes with it,
/// each takes some 70 bytes.
const VERSIONS_MAX: usize = 1 << 18;

impl FileSystems {
    /// Takes in every transaction that is complete, up to one whose set has to go home first: then [`FileSystems::set_ended`] goes on.
    /// A log that contradicts itself is handed back to the guest: what its own recovery makes of it is not ours to guess.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn follow(&mut self, v: usize) -> Result<(), JournalError> {
        while self.way.is_none() {
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
                    let has_way = self.make_way(v, transaction.tags.len())?;
                    if self.way.is_some() {
                        return Ok(());
                    }
                    if !has_way {
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
            if !self.may_follow(v) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the next transaction may be there. What is not in the arena has not been written yet, as a rule: no look at the disk for
    /// it, which would cost each commit a read.
    fn may_follow(&self, v: usize) -> bool {
        let volume = &self.volumes[v];
        volume.log().is_some_and(|l| l.spilled || self.versions.arena.get(volume.id, l.head.1).is_some())
    }

    /// Goes on behind a set.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn follow_on(&mut self, v: usize) -> Result<(), JournalError> {
        if self.may_follow(v) {
            self.follow(v)?;
        }
        self.judge_commit(v)
    }

    /// A commit block came by, and whatever is complete with it was taken in: whether that transaction was, or is yet to be.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn judge_commit(&mut self, v: usize) -> Result<(), JournalError> {
        if self.way.is_some() {
            return Ok(());
        }
        let Some(log) = self.volumes[v].log_mut() else { return Ok(()) };
        let Some((tid, expected)) = log.came_by.take() else { return Ok(()) };
        if log.head.0 == tid {
            log.commit_seen = true;
        } else if tid.is_after(log.head.0) || expected.is_after(tid) {
            // A guest commits one transaction after the other: its log is elsewhere than was believed, and whatever it commits
            // from now on would be followed by nobody.
            let why = format!("transaction {tid} was committed where {} was expected", log.head.0);
            tracing::warn!(start_sector = self.volumes[v].start.0, why, "the guest's journal is elsewhere");
            self.leave(v, &why, true)?;
        }
        Ok(())
    }

    /// Whether so many versions more may be known: the oldest ones go where they would be too many. Where they have to go home as a set,
    /// that is due.
    fn make_way(&mut self, v: usize, more: usize) -> Result<bool, JournalError> {
        let slots = usize::try_from(self.versions.arena.bytes_max()).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let room = VERSIONS_MAX.max(slots).saturating_sub(more) as u64;
        // What is read again was known to an earlier daemon.
        let mut now = self.versions.known();
        while now > room && self.volumes[v].log().is_some_and(|log| !log.resuming) {
            self.relieve(v)?;
            if self.way.is_some() {
                return Ok(true);
            }
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
}
