//! A journal that is absorbed: its log, and what stands in its own place on the disk. Following it, a commit block completes a transaction,
//! and everything in it becomes the newest committed version.

use std::sync::Arc;

use afterimage_block::BlockError;

use super::followed::{list_bytes, versions_of, Committed, Log, Position};
use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::log::{AreaView, Transaction};
use super::place::Place;
use super::side;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;
use crate::versions::{Reader, SetError, Track, Tuple, Version, VersionState, Versions};

/// Versions that are known of one disk, if `--retain-max` has not room for more: a gigabyte of content.
const VERSIONS_MAX: usize = 1 << 18;

/// Memory that a version takes: its entry, with a byte of control, in a table of which up to 7/8 is used, and half of that after
/// it has grown.
const VERSION_BYTES: u64 = (size_of::<(FsBlock, Version)>() as u64 + 1) * 8 / 7 * 2;

/// Why something goes no further.
pub(super) enum Stop {
    /// The journal is to be left: see [`super::volume::Volume::leave`].
    Leave {
        why: String,
        /// The file system is the same.
        keep: bool,
    },
    /// The disk below failed.
    Failed(JournalError),
}

impl Stop {
    /// A journal that contradicts itself, or what is known of it, is handed back to its guest: what the guest's own recovery makes of it is
    /// not ours to guess.
    pub(super) fn hand_back(why: impl Into<String>) -> Self {
        Self::Leave { why: why.into(), keep: true }
    }
}

impl<E: Into<JournalError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Retained {
    pub(super) log: Log,
    pub(super) place: Place,
    /// A write that is not posted, and that the next commit waits for; see [`Retained::must_wait`].
    pub(super) waits_for: Option<Track>,
    /// A write changed what the layout rests on; until it has completed nothing may go home.
    pub(super) suspended: bool,
    /// The log is being read again after an earlier daemon's death.
    resuming: bool,
    /// The journal was in use before: of the next transaction, the first one, some blocks may stand in their own place on the disk.
    pub(super) partly_there: bool,
}

impl Retained {
    /// With nothing in its log.
    pub(super) fn new(
        id: crate::versions::arena::VolumeId,
        layout: Arc<Layout>,
        superblock: JournalSuperblock,
        tail: Position,
    ) -> Self {
        let place = Place::new(id, Arc::clone(&layout), superblock.sequence());
        let log = Log::new(id, &layout, superblock, tail);
        Self { log, place, waits_for: None, suspended: false, resuming: false, partly_there: false }
    }

    /// Takes in every transaction that is complete, up to one whose set has to go home first: then [`Retained::follow_on`] goes on.
    pub(super) fn follow(&mut self, versions: &mut Versions) -> Result<(), Stop> {
        while versions.way.is_free() {
            let whole = self.is_whole();
            let reader = &mut versions.reader(self.log.id, &*self.place.layout);
            let mut view = Following { reader, with: None, whole };
            match self.log.read_next(&mut view) {
                Ok(Some(transaction)) if !self.log.has_room(transaction.blocks) => {
                    // Where its blocks go round the log to older ones, giving those up would take them from it.
                    let why = format!("its journal runs over itself in transaction {}", transaction.tid);
                    return Err(Stop::hand_back(why));
                }
                Ok(Some(transaction)) => {
                    if !self.came_in_order(versions, &transaction) {
                        let tid = transaction.tid;
                        let why = format!(
                            "transaction {tid} of its journal was there before the one in front of it"
                        );
                        return Err(Stop::hand_back(why));
                    }
                    if !self.has_way(versions, transaction.tags.len()) {
                        let tid = transaction.tid;
                        let why = format!("too much would be known of it with transaction {tid}");
                        return Err(Stop::hand_back(why));
                    }
                    self.commit(versions, transaction)?;
                }
                Ok(None) => return Ok(()),
                Err(JournalError::Block(e)) => return Err(e.into()),
                Err(e) => return Err(Stop::hand_back(format!("its journal could not be followed: {e}"))),
            }
            if !self.may_follow(versions) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next transaction's commit block may have come, and nobody who is here saw it (`journal_async_commit`). Without checksums it would
    /// be looked for behind each block, as far away as it could be.
    pub(super) fn expect_commit(&mut self) {
        let features = self.log.geometry.features;
        self.log.commit_seen = features.async_commit && features.checksummed();
    }

    /// Whether all that was written of the next transaction is in the arena.
    pub(super) fn is_whole(&self) -> bool {
        !self.place.spilled && !self.partly_there
    }

    /// Whether the next transaction may be there. What is not in the arena has not been written yet, as a rule: no look at the disk for
    /// it, which would cost each commit a read.
    fn may_follow(&self, versions: &Versions) -> bool {
        self.place.spilled || versions.arena.get(self.log.id, self.log.head.1).is_some()
    }

    /// Goes on behind a set.
    pub(super) fn follow_on(&mut self, versions: &mut Versions) -> Result<(), Stop> {
        if self.may_follow(versions) {
            self.follow(versions)?;
        }
        self.judge_commit(versions)
    }

    /// See [`Log::judge`]; when no set is awaited any more.
    pub(super) fn judge_commit(&mut self, versions: &Versions) -> Result<(), Stop> {
        if !versions.way.is_free() {
            return Ok(());
        }
        self.log.judge().map_err(|why| {
            if versions.lines.may() {
                let (disk, start_sector) = (versions.lines.name(), self.place.layout.start.0);
                tracing::warn!(disk, start_sector, why, "the guest's journal is elsewhere");
            }
            Stop::hand_back(why)
        })
    }

    /// Whether another transaction of so many blocks may be known beside those that the guest has in its log: of versions, and of what is
    /// remembered of transactions, which may have none, there is a bound.
    fn has_way(&self, versions: &mut Versions, logged: usize) -> bool {
        // What is read again was known to an earlier daemon.
        if self.resuming {
            return true;
        }
        let slots = usize::try_from(versions.arena.bytes_max()).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let bytes = |versions, listed| versions * VERSION_BYTES + listed;
        let max = VERSIONS_MAX.max(slots);
        let max = bytes(max as u64, list_bytes(0, max));
        versions.trim(max);
        let known = bytes(versions.known(), versions.listed_bytes());
        known + bytes(logged as u64, list_bytes(1, logged)) <= max
    }

    /// A guest writes no block of a transaction before the one in front of it is committed. What was put in place comes in the order of
    /// places. Of what is not in memory any more nobody knows.
    fn came_in_order(&self, versions: &Versions, transaction: &Transaction) -> bool {
        let Some(before) = self.log.transactions.back() else { return true };
        let stored = |at| versions.arena.stored(self.log.id, at);
        let commit = self.log.after(before.start, before.blocks - 1);
        stored(commit).zip(stored(transaction.start)).is_none_or(|(commit, first)| commit < first)
    }

    /// One complete transaction.
    fn commit(&mut self, versions: &mut Versions, mut transaction: Transaction) -> Result<(), Stop> {
        let id = self.log.id;
        let logged = transaction.tags.len() as u64;
        let (mut protect, mut revokes) = versions_of(&mut transaction);
        if versions.mistake.is(Mutation::KeepOldest) {
            protect.retain(|tuple| versions.area().version(id, tuple.home).is_none());
        }
        if versions.mistake.is(Mutation::IgnoreRevokes) {
            revokes.clear();
        }
        let classes = versions.count(id);
        classes.journal_commits += 1;
        classes.journal_commit_blocks += logged;
        classes.revokes += revokes.len() as u64;
        self.log.push(&transaction, protect.iter().map(|t| t.home).collect());
        self.partly_there = false;
        versions.set_listed(id, self.log.listed_bytes());
        versions.mprotect(id, &protect, &revokes, self.resuming)?;
        // What is read again is judged as a whole: a later transaction may have revoked what an earlier one committed.
        if self.resuming {
            return Ok(());
        }
        if versions.applies() && !self.suspended {
            self.send_home(versions, &protect)?;
        }
        self.log.release_early(versions);
        Ok(())
    }

    /// The arena's log is read again from its tail, after an earlier daemon.
    pub(super) fn resume(&mut self, versions: &mut Versions) -> Result<(), Stop> {
        self.resuming = true;
        self.place.spilled = true;
        self.follow(versions)?;
        self.resuming = false;
        self.expect_commit();
        side::forget_earlier(&mut versions.arena, self.log.id);
        self.forget_passed(versions);
        Ok(())
    }

    /// `power-window`: what was read again goes home as one. An earlier daemon under the same contract left one transaction at most that
    /// was not home, the newest, which nobody was told of. Of blocks that are not in the arena any more nobody knows whether they are
    /// that one's, or home for long and written over since: a set without them might be a part of a transaction, one with them undo what
    /// the guest has written.
    pub(super) fn reapply(&self, versions: &mut Versions) -> Result<(), Stop> {
        let id = self.log.id;
        let count = versions.gone(id);
        if count > 0 {
            let why = format!(
                "of {count} blocks that memory had no room for it is not known whether they are home"
            );
            return Err(Stop::hand_back(why));
        }
        let tuples = versions.recover(id, false);
        self.send_home(versions, &tuples)
    }

    /// A set of those of some versions that are pending is due, if nothing else is on its way.
    fn send_home(&self, versions: &mut Versions, tuples: &[Tuple]) -> Result<(), Stop> {
        versions.send_home(self.log.id, tuples).map_err(|error| match error {
            SetError::Below(e) => BlockError::into(e),
            e => Stop::hand_back(e.to_string()),
        })
    }

    /// Versions that are still the newest and pending go home, `some` of them or all: a set is due, if nothing stands against it.
    /// After a power cut under `power-window` the disk holds whole transactions: there all of them do.
    pub(super) fn go_home(&self, versions: &mut Versions, some: Option<Vec<Tuple>>) -> Result<(), Stop> {
        let id = self.log.id;
        if self.suspended || versions.query(id).pending == 0 {
            return Ok(());
        }
        let some = some.filter(|_| !versions.applies());
        let tuples = some.unwrap_or_else(|| versions.recover(id, false));
        self.send_home(versions, &tuples)
    }

    /// What can go home is due.
    pub(super) fn settle(&mut self, versions: &mut Versions) -> Result<(), Stop> {
        self.follow(versions)?;
        self.go_home(versions, None)
    }

    /// An earlier daemon may have died before it forgot what is served from home of transactions that the guest's tail has passed.
    fn forget_passed(&self, versions: &mut Versions) {
        let id = self.log.id;
        let served: Vec<AreaBlock> =
            versions.arena.served_from(id, FsBlock(0), FsBlock(u64::MAX)).map(|(_, at)| at).collect();
        for at in served.into_iter().filter(|at| !self.log.holds(*at)) {
            versions.arena.leave_home(id, at);
        }
    }

    /// Takes no more than so much memory, if that can be had, at the cost of the oldest transactions: what is home is served from there; what is
    /// pending goes home, where no log decides what is durable; the rest goes to its own place on the disk.
    pub(super) fn spill(&mut self, versions: &mut Versions, goal_bytes: u64) -> Result<(), JournalError> {
        if versions.arena.used_bytes() > goal_bytes && !self.log.transactions.is_empty() {
            self.place.serve_from_home(versions, &self.log)?;
            self.give_up_home(versions, goal_bytes);
            self.checkpoint(versions, goal_bytes)?;
        }
        let Self { log, place, .. } = self;
        while versions.arena.used_bytes() > goal_bytes {
            let Some(oldest) = log.transactions.get(log.spilled) else { break };
            let places: Vec<AreaBlock> = (0..oldest.blocks).map(|i| log.after(oldest.start, i)).collect();
            place.evict_all(versions, log, places)?;
            log.spilled += 1;
        }
        Ok(())
    }

    /// Serves versions from home that are there, the oldest first.
    fn give_up_home(&mut self, versions: &mut Versions, goal_bytes: u64) {
        let id = self.log.id;
        for n in self.log.homed..self.log.transactions.len() {
            if versions.arena.used_bytes() <= goal_bytes {
                break;
            }
            let Committed { tid, homes, .. } = &self.log.transactions[n];
            homes.iter().for_each(|home| versions.give_up_home(id, *home, *tid));
            // Of a transaction that is home nothing comes home later.
            if n == self.log.homed && versions.area().open(id, *tid) == 0 {
                self.log.homed += 1;
            }
        }
    }

    /// Writes pending versions home, the oldest first: what their guest writes there later is the same, and dropped. The ext4 superblock stays.
    fn checkpoint(&mut self, versions: &mut Versions, goal_bytes: u64) -> Result<(), JournalError> {
        let (id, start) = (self.log.id, self.place.layout.start);
        if versions.applies() || self.suspended || versions.way.is_of(id) {
            return Ok(());
        }
        for Committed { tid, homes, .. } in &self.log.transactions {
            if versions.arena.used_bytes() <= goal_bytes {
                break;
            }
            if versions.area().open(id, *tid) == 0 {
                continue;
            }
            let pending = |home: &FsBlock| {
                let version = versions.area().version(id, *home)?;
                let is_due = version.tid == *tid && version.state == VersionState::Pending;
                let flies = versions.in_flight.over(home.sector(start), BLOCK_SECTORS).is_some();
                let is_here = versions.arena.get(id, version.at).is_some();
                (is_due && is_here && !flies && *home != FsBlock(0)).then(|| version.tuple(*home))
            };
            let wanted = (versions.arena.used_bytes() - goal_bytes).div_ceil(BLOCK_BYTES as u64) as usize;
            let tuples: Vec<Tuple> = homes.iter().filter_map(pending).take(wanted).collect();
            if !tuples.is_empty() {
                versions.write_home(id, &tuples, |_, _| {})?;
                versions.count(id).checkpoints += 1;
                tuples.iter().for_each(|tuple| versions.give_up_home(id, tuple.home, *tid));
            }
        }
        Ok(())
    }
}

/// The log of an absorbed journal.
pub(super) struct Following<'a, 'b> {
    pub(super) reader: &'a mut Reader<'b>,
    /// One block more.
    pub(super) with: Option<(AreaBlock, &'a Block)>,
    /// All that was written since it began is in the arena.
    pub(super) whole: bool,
}

impl<'a> Following<'a, '_> {
    fn more(&self, at: AreaBlock) -> Option<&'a Block> {
        self.with.filter(|(with, _)| *with == at).map(|(_, block)| block)
    }
}

impl AreaView for Following<'_, '_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        match self.more(at) {
            Some(block) => Ok(block),
            None => self.reader.get(at, scratch),
        }
    }

    fn sum(&self, at: AreaBlock) -> Option<u32> {
        match self.more(at) {
            Some(_) => None,
            None => self.reader.note(at),
        }
    }

    fn lacks(&self, at: AreaBlock) -> bool {
        self.whole && self.more(at).is_none() && !self.reader.holds(at)
    }
}
