//! Following the log: a commit block completes a transaction, and everything in it becomes the newest committed version.

use super::inflight::Match;
use afterimage_block::{Sector, SECTOR_BYTES};
use afterimage_order::HomeError;

use super::volume::{Committed, Log, Position};
use super::{Mutation, Retainer, View};
use crate::area::{Tuple, VersionState};
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::layout::superblock::JournalSuperblock;
use crate::log::{self, AreaView, Parsed, Transaction};

/// Versions that are known of one disk, if `--retain-max` has not room for more: a gigabyte of content. With what goes with it,
/// each takes some 70 bytes.
const VERSIONS_MAX: usize = 1 << 18;

/// What of a transaction is copied to make it one set, in bytes: blocks that are not in the arena, first sectors of those that are
/// escaped.
const COPIES_BYTES_MAX: usize = 4 << 20;

/// The number of a version among others, and its copied bytes.
type Copies = Vec<(usize, Box<[u8]>)>;

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
            let log = self.volumes[v].log();
            if log.is_some_and(|l| !l.spilled && self.arena.get(self.volumes[v].id, l.head.1).is_none()) {
                return Ok(());
            }
        }
    }

    /// Whether so many versions more may be known: the oldest ones go where they would be too many.
    fn make_way(&mut self, v: usize, more: usize) -> Result<bool, JournalError> {
        let slots = usize::try_from(self.arena.bytes_max()).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let room = VERSIONS_MAX.max(slots).saturating_sub(more) as u64;
        let known = |this: &Self| this.volumes.iter().map(|v| this.area.query(v.id).versions).sum::<u64>();
        // What is read again was known to an earlier daemon.
        let mut now = known(self);
        while now > room && self.volumes[v].log().is_some_and(|log| !log.resuming) {
            self.relieve(v)?;
            let before = std::mem::replace(&mut now, known(self));
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
        if self.mutated(Mutation::KeepOldest) {
            let id = self.volumes[v].id;
            protect.retain(|tuple| self.area.version(id, tuple.home).is_none());
        }
        if self.mutated(Mutation::IgnoreRevokes) {
            revokes.clear();
        }
        let volume = &mut self.volumes[v];
        let id = volume.id;
        volume.classes.journal_commits += 1;
        volume.classes.journal_commit_blocks += logged;
        volume.classes.revokes += revokes.len() as u64;
        let Some(log) = volume.log_mut() else { return Ok(()) };
        log.push(Committed {
            tid,
            start,
            blocks,
            homes: protect.iter().map(|t| t.home).collect(),
            open: protect.len(),
        });
        log.head = (tid.next(), next);
        log.commit_sec = commit_sec;
        log.commit_seen = false;
        self.area.mprotect(id, &protect, &revokes, &mut |_, version| {
            if version.state != VersionState::Home {
                if let Some(older) = log.transaction_mut(version.tid) {
                    older.open -= 1;
                }
            }
        })?;
        self.unsettle(v, &protect);
        self.reserve(v, tid);
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
        let (bytes, bytes_max) = ((tuples.len() * BLOCK_BYTES) as u64, self.below.atomic_bytes_max());
        if bytes > bytes_max {
            return self.leave(v, &HomeError::TooLarge { bytes, max_bytes: bytes_max }.to_string(), true);
        }
        let Some(copies) = self.copies(v, &tuples)? else {
            return self.leave(v, "of a transaction too little is in memory to become durable at once", true);
        };
        self.home_begins(v, &tuples);
        let start = self.volumes[v].start;
        let mut pieces: Vec<(Sector, &[u8])> = Vec::with_capacity(tuples.len());
        let mut copies = copies.iter().peekable();
        for (n, tuple) in tuples.iter().enumerate() {
            let sector = tuple.home.sector(start);
            let copy = copies.next_if(|(of, _)| *of == n).map_or(&[][..], |(_, copy)| &copy[..]);
            let rest = self
                .arena
                .get(id, tuple.at)
                .map_or(&[][..], |block| block.get(copy.len()..).unwrap_or_default());
            let behind = Sector(sector.0 + copy.len() as u64 / SECTOR_BYTES);
            pieces
                .extend([(sector, copy), (behind, rest)].into_iter().filter(|(_, bytes)| !bytes.is_empty()));
        }
        match self.below.write_home(&pieces) {
            Ok(()) => self.home_ends(v, &tuples)?,
            Err(HomeError::Block(e)) => return Err(e.into()),
            Err(e @ HomeError::TooLarge { .. }) => return self.leave(v, &e.to_string(), true),
        }
        for tuple in &tuples {
            self.set_state(v, tuple.home, VersionState::Home);
        }
        Ok(())
    }

    /// What of these versions cannot be taken from the arena as it is, by their numbers, each a whole number of sectors from its
    /// block's beginning. `None`: it is too much.
    fn copies(&mut self, v: usize, tuples: &[Tuple]) -> Result<Option<Copies>, JournalError> {
        let forgetful = self.mutated(Mutation::ForgetEscape);
        let volume = &self.volumes[v];
        let Some(log) = volume.log() else { return Ok(None) };
        let mut view =
            View { arena: &self.arena, below: &mut self.below, volume: volume.id, layout: &log.layout };
        let (mut copies, mut bytes) = (Vec::new(), 0);
        let mut scratch = [0; BLOCK_BYTES];
        for (n, tuple) in tuples.iter().enumerate() {
            let length = match view.arena.get(volume.id, tuple.at) {
                Some(_) if !tuple.escaped => continue,
                Some(_) => SECTOR_BYTES as usize,
                None => BLOCK_BYTES,
            };
            bytes += length;
            if bytes > COPIES_BYTES_MAX {
                return Ok(None);
            }
            let mut block = *view.block(tuple.at, &mut scratch)?;
            if tuple.escaped && !forgetful {
                log::unescape(&mut block);
            }
            copies.push((n, Box::from(&block[..length])));
        }
        Ok(Some(copies))
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

    /// Moves the served tail past whole transactions in which nothing is needed any more, and gives those up but for the newest: a
    /// guest sends blocks of the transaction that it committed last once more, if the daemon died before it answered.
    /// Under `power-window` what is home is kept while there is memory: the guest will write the same bytes again.
    pub(super) fn release(&mut self, v: usize) {
        self.release_but(v, 1);
    }

    /// As [`Retainer::release`], but for the `held` newest: none where the guest has no request in flight.
    pub(super) fn release_but(&mut self, v: usize, held: usize) {
        if !self.may_release(v) {
            return;
        }
        self.move_tail(v);
        while !self.below.applies() && self.drop_passed(v, held) {}
    }

    /// Gives up the oldest transaction if the served tail has passed it, and more than `held` are there. Whether it was.
    pub(super) fn drop_passed(&mut self, v: usize, held: usize) -> bool {
        let Some(log) = self.volumes[v].log() else { return false };
        let passed = log.transactions.front().is_some_and(|front| log.tail.0.is_after(front.tid));
        let drops = passed && log.transactions.len() > held;
        if drops {
            self.drop_oldest(v);
            self.volumes[v].classes.releases += 1;
        }
        drops
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

    /// The served tail is the oldest transaction of which something is not home, and never goes back; what is written to
    /// one that it has passed is the guest's own affair.
    pub(super) fn move_tail(&mut self, v: usize) {
        let early = self.mutated(Mutation::ReleaseEarly) && !self.below.applies();
        let Some(log) = self.volumes[v].log() else { return };
        let needed = log.not_passed().find(|t| t.open > usize::from(early));
        let tail = needed.map_or(log.head, |t| (t.tid, t.start));
        if tail.0.is_after(log.tail.0) && self.remember(v, tail.0) {
            self.set_tail(v, tail);
        }
    }

    /// The superblock that a reader of an absorbed journal is shown.
    pub(super) fn served(&self, log: &Log) -> JournalSuperblock {
        match self.mutated(Mutation::ServeGuestsTail) {
            true => log.superblock.clone(),
            false => log.served(),
        }
    }

    /// The served tail is there from now on, for the next daemon, too.
    pub(super) fn set_tail(&mut self, v: usize, tail: Position) {
        let id = self.volumes[v].id;
        let Some(log) = self.volumes[v].log_mut() else { return };
        log.tail = tail;
        if self.mutated(Mutation::ServeGuestsTail) {
            return;
        }
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
