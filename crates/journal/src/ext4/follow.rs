//! Following a log: where it begins, what is committed, and going on where an earlier daemon stopped. A commit block completes a
//! transaction, and everything in it becomes the newest committed version.

use std::collections::VecDeque;
use std::sync::Arc;

use afterimage_block::Sector;

use super::known::{left, Left};
use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::log::{self, LogGeometry, Parsed, Transaction};
use super::side;
use super::systems::FileSystems;
use super::volume::{Committed, Log, Phase, Position};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES};
use crate::mutation::Mutation;
use crate::versions::arena::{Arena, Seen, VolumeId, VolumeRecord, VOLUMES_MAX};
use crate::versions::{Tuple, VersionState};

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
        while self.way.is_free() {
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
                    if !self.way.is_free() {
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
        if !self.way.is_free() {
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
            if !self.way.is_free() {
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

    /// Begins to absorb, where the log is empty from its tail on: then nothing that the guest may need is on the disk
    /// only.
    pub(super) fn begin(
        &mut self,
        v: usize,
        superblock: &JournalSuperblock,
        start: AreaBlock,
    ) -> Result<bool, JournalError> {
        let volume = &self.volumes[v];
        let (id, clamp) = (volume.id, volume.clamp);
        if clamp.is_some_and(|(tid, _)| tid.is_after(superblock.sequence())) {
            return Ok(false);
        }
        let Phase::Armed { layout, .. } = &volume.phase else { return Ok(false) };
        if superblock.maxlen() > layout.journal_blocks() {
            return Ok(false);
        }
        let layout = layout.clone();
        let log = new_log(layout, superblock.clone(), (superblock.sequence(), start));
        let mut scratch = [0; BLOCK_BYTES];
        let mut reader = self.versions.reader(id, &*log.layout);
        if is_of(reader.get(log.head.1, &mut scratch)?, log.head.0 .0) {
            if let Phase::Armed { why, .. } = &mut self.volumes[v].phase {
                *why = "mounted before retention could begin: it begins at the next mount".to_owned();
            }
            return Ok(false);
        }
        if !self.versions.mistake.is(Mutation::SkipMarkEmpty) {
            self.volumes[v].mark_empty(&mut self.versions, superblock, superblock.sequence())?;
        }
        let stamped = !self.versions.mistake.is(Mutation::SkipMarkEmpty);
        let volume = &mut self.volumes[v];
        let record = VolumeRecord {
            start_sector: volume.start.0,
            fs_uuid: log.layout.uuid,
            tail: log.tail,
            absorbing: true,
            being_read: false,
            stamped,
        };
        if usize::from(id.0) >= VOLUMES_MAX {
            return Ok(false);
        }
        self.versions.arena.set_seen(id, Seen::FileSystem, None);
        self.versions.arena.set_seen(id, Seen::Journal, None);
        self.versions.arena.set_volume(id, record);
        self.versions.init(id, log.room())?;
        let remembered = side::store_journal(&mut self.versions.arena, id, &log.layout);
        match remembered.and_then(|()| self.versions.store(id, AreaBlock(0), superblock.bytes())) {
            Ok(()) => {}
            Err(error) => {
                // No memory for even one block, or more file systems than an arena takes.
                self.versions.cleanup(id);
                if let Phase::Armed { why, .. } = &mut self.volumes[v].phase {
                    *why = format!("nothing can be retained: {error}");
                }
                return Ok(false);
            }
        }
        let volume = &mut self.volumes[v];
        tracing::info!(start_sector = volume.start.0, tid = superblock.sequence().0, "retaining a journal");
        volume.clamp = None;
        side::reserve(&mut self.versions.arena, id, log.layout.journal_blocks(), superblock.sequence());
        volume.phase = Phase::Absorbing(Box::new(log));
        let (at, length) = volume.superblock_range();
        self.note_superblocks(at, length)?;
        self.changed();
        Ok(true)
    }

    /// Nothing is retained any more, and nothing needs to be.
    pub(super) fn disarm(&mut self, v: usize, why: &str) {
        let volume = &mut self.volumes[v];
        let Some(layout) = volume.layout().cloned() else { return };
        volume.phase = Phase::Armed { layout, why: why.to_owned() };
        let id = volume.id;
        if let Some(set) = self.way.cancel(id) {
            self.versions.set_ended(set, false);
        }
        self.versions.cleanup(id);
        self.changed();
    }

    /// Goes on with every file system that the arena remembers, or gives its journal back to the guest, or says why
    /// neither is right.
    pub(super) fn take_over(&mut self) -> Result<(), JournalError> {
        let mut unsound = false;
        for (id, record) in self.versions.arena.volumes() {
            // Begun, and killed before the superblock was there: no guest was told.
            let begun = record.absorbing && self.versions.arena.get(id, AreaBlock(0)).is_some();
            let here = self.volumes.iter().find(|v| v.id == id && v.start.0 == record.start_sector);
            let left = match left(&mut self.versions, self.survey.disk_sectors, here, id, &record) {
                _ if !begun => Left::Replaced,
                Ok(Left::Unsound(..)) if self.versions.mistake.is(Mutation::DropUnsound) => Left::Replaced,
                Err(JournalError::Foreign(why)) if self.options.accept_loss => {
                    tracing::warn!(why, "--accept-loss: what was retained is given up");
                    Left::Replaced
                }
                left => left?,
            };
            if let Left::Replaced = left {
                abandon(&mut self.versions.arena, id);
                continue;
            }
            let Some(superblock) = self.versions.arena.get(id, AreaBlock(0)).map(JournalSuperblock::parse)
            else {
                continue;
            };
            let superblock = superblock?;
            let v = self.volume_at(Sector(record.start_sector));
            let doubt = match left {
                Left::Unsound(layout, why) => {
                    self.volumes[v].phase = Phase::Armed { layout, why: why.clone() };
                    Some(why)
                }
                _ => None,
            };
            unsound |= doubt.is_some();
            self.resume(v, superblock, record, doubt)?;
            self.sets_home()?;
        }
        if unsound {
            self.look()?;
        }
        Ok(())
    }

    /// Goes on where an earlier daemon stopped: the arena's log is read again from its tail. `doubt`: why it is handed back to
    /// the guest all the same.
    fn resume(
        &mut self,
        v: usize,
        superblock: JournalSuperblock,
        record: VolumeRecord,
        doubt: Option<String>,
    ) -> Result<(), JournalError> {
        let volume = &mut self.volumes[v];
        let id = volume.id;
        let Phase::Armed { layout, .. } = &volume.phase else { return Ok(()) };
        let mut log = new_log(layout.clone(), superblock, record.tail);
        // What stands on the disk is at most as young as the tail; it is raised before anything is evicted.
        log.on_disk = volume.clamp.take().is_some();
        log.being_read = record.being_read;
        log.resuming = true;
        log.spilled = true;
        let room = log.room();
        volume.phase = Phase::Absorbing(Box::new(log));
        self.versions.init(id, room)?;
        self.follow(v)?;
        if let Some(log) = self.volumes[v].log_mut() {
            log.resuming = false;
        }
        if let Some(log) = self.volumes[v].log() {
            log.forget_passed(&mut self.versions.arena, id);
        }
        if let Some(why) = doubt {
            return self.leave(v, &why, true);
        }
        let (at, length) = self.volumes[v].superblock_range();
        self.note_superblocks(at, length)?;
        if self.versions.applies() {
            self.reapply(v)?;
        }
        self.volumes[v].release(&mut self.versions, 1);
        let volume = &self.volumes[v];
        tracing::info!(
            start_sector = volume.start.0,
            transactions = volume.log().map_or(0, |l| l.transactions.len()),
            "went on with a retained journal"
        );
        self.changed();
        Ok(())
    }

    /// `power-window`: what was read again goes home as one. An earlier daemon under the same contract left one transaction
    /// at most, which nobody was told of: what is not in the arena any more was not overwritten either.
    fn reapply(&mut self, v: usize) -> Result<(), JournalError> {
        let id = self.volumes[v].id;
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        if let (1, Some(only)) = (log.transactions.len(), log.transactions.front()) {
            let gone = |home: &FsBlock| {
                let version = self.versions.area().version(id, *home);
                version.is_some_and(|version| self.versions.arena.get(id, version.at).is_none())
            };
            let gone: Vec<FsBlock> = only.homes.iter().copied().filter(gone).collect();
            for home in gone {
                self.versions.set_state(id, home, VersionState::Pending);
            }
        }
        let tuples = self.versions.recover(id, false);
        self.apply(v, &tuples)
    }
}

/// What was retained belongs to a file system that is no longer there.
fn abandon(arena: &mut Arena, id: VolumeId) {
    if arena.blocks_held(id) > 0 {
        tracing::warn!(
            volume = id.0,
            "what was retained belongs to a file system that is no longer there: dropped"
        );
    }
    arena.clear_volume(id);
}

/// Whether a block is a log block of that transaction, by magic and id.
fn is_of(block: &Block, tid: u32) -> bool {
    /// JBD2_MAGIC_NUMBER
    const MAGIC: u32 = 0xc03b_3998;
    let field = |at: usize| u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    field(0) == MAGIC && field(8) == tid
}

/// A log with nothing in it.
pub(super) fn new_log(layout: Arc<Layout>, superblock: JournalSuperblock, tail: Position) -> Log {
    Log {
        disk_sequence: superblock.sequence(),
        geometry: LogGeometry::new(&superblock, &layout),
        layout,
        superblock,
        tail,
        head: tail,
        transactions: VecDeque::new(),
        held_blocks: 0,
        commit_sec: 0,
        commit_seen: false,
        came_by: None,
        waits_for: None,
        suspended: false,
        on_disk: false,
        being_read: false,
        resuming: false,
        spilled: false,
    }
}
