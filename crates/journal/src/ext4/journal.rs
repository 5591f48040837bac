//! Writes to a journal: its blocks are absorbed, and its superblock says that the guest mounts, moves the tail, changes features, or is
//! done.

use afterimage_block::{BlockError, Buffers, ErrorKind, Sector, SECTOR_BYTES};

use super::layout::superblock::{Features, JournalSuperblock};
use super::log::{self, AreaView, Parsed};
use super::passed::{needed, passes_flying};
use super::systems::FileSystems;
use super::volume::{Phase, Position};
use super::write::Part;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;
use crate::versions::{Carried, Reader, Track};

impl FileSystems {
    /// A piece of one journal block: `piece` goes to its byte `within`. `false`, and nothing done, where a set has to go home first, for
    /// memory.
    pub(super) fn absorb(
        &mut self,
        v: usize,
        at: AreaBlock,
        within: usize,
        piece: &Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<bool, JournalError> {
        if at == AreaBlock(0) {
            return self.absorb_superblock(v, within, piece, parts).map(|()| true);
        }
        if self.options.drop_journal {
            self.count(v).journal_absorbed_bytes += piece.len() as u64;
            parts.push(Part::Done);
            return Ok(true);
        }
        let block = self.composed(v, at, within, piece)?;
        let Some(log) = self.volumes[v].log() else { return Ok(true) };
        if log.holds(at) {
            if self.content_or_below(v, at)? == block {
                parts.push(Part::Done);
                return Ok(true);
            }
            // Where the guest's own tail has not passed, no sound guest writes.
            self.leave(v, "the guest overwrote a part of its journal that was still needed", true)?;
            return self.through(v, at, &block, parts).map(|()| true);
        }
        let expected = log.head.0;
        let commit_seen = log.commit_seen;
        // A reader of the copy of the log on the disk alone would replay what is overtaken from now on.
        if log.on_disk {
            let (superblock, next) = (log.superblock.clone(), log.head.0.next());
            self.volumes[v].mark_empty(&mut self.versions, &superblock, next)?;
        }
        match self.keep(v, at, &block)? {
            Kept::Here => {}
            Kept::Waits => return Ok(false),
            Kept::Left => return self.through(v, at, &block, parts).map(|()| true),
        }
        self.count(v).journal_absorbed_bytes += piece.len() as u64;
        parts.push(Part::Done);
        let committed = log::commit_tid(&block);
        if committed.is_none() && !commit_seen {
            return Ok(true);
        }
        // Of the expected transaction blocks were missing, or, in a log that was taken over in mid-mount, its commit block went
        // to the disk and never came by here.
        if let (Some(tid), Some(log)) = (committed, self.volumes[v].log_mut()) {
            log.came_by = Some((tid, expected));
        }
        self.follow(v)?;
        self.judge_commit(v).map(|()| true)
    }

    /// Whether a write to an absorbed journal would say what cannot be true yet. A tail does not pass versions whose homes are
    /// being written, nor those that are still needed and pending: they are due first, as a set.
    ///
    /// Under `power-window` a commit is answered when its blocks are in the disk's history as one. Where a write of one of them
    /// is in flight, that may take its place behind them, and undo a part of the transaction; where what the layout rests on is
    /// in flight, nothing may go home. Either is over soon. The commit block is not in the arena meanwhile: a daemon that dies
    /// leaves a transaction that never happened, and a guest that asks for both again. A set that is under way is waited for: see
    /// [`super::way`].
    pub(super) fn must_wait(
        &mut self,
        v: usize,
        at: AreaBlock,
        within: usize,
        piece: &Buffers,
    ) -> Result<bool, JournalError> {
        if self.way.is_of(self.volumes[v].id) {
            return Ok(true);
        }
        if at == AreaBlock(0) {
            if !self.way.is_free() {
                return Ok(true);
            }
            let block = self.composed(v, at, within, piece)?;
            if passes_flying(&self.volumes[v], &self.versions, &block) {
                return Ok(true);
            }
            if !self.options.drop_journal {
                self.save_passed(v, &block)?;
            }
            return Ok(!self.way.is_free());
        }
        let Some(log) = self.volumes[v].log() else { return Ok(false) };
        if !log.suspended && self.versions.in_flight.is_empty() && self.way.is_free() {
            return Ok(false);
        }
        let (expected, commit_seen, suspended, waits_for) =
            (log.head.0, log.commit_seen, log.suspended, log.waits_for);
        if self.options.drop_journal {
            return Ok(false);
        }
        let block = self.composed(v, at, within, piece)?;
        let committed = log::commit_tid(&block);
        if !self.way.is_free() {
            return Ok(committed.is_some() || commit_seen);
        }
        if !self.versions.applies() {
            return Ok(false);
        }
        let is_next = committed.is_some_and(|tid| !expected.is_after(tid));
        if (!commit_seen && !is_next) || self.versions.mistake.is(Mutation::CommitOverFlight) {
            return Ok(false);
        }
        if suspended || waits_for.is_some_and(|track| self.versions.in_flight.holds(track)) {
            return Ok(true);
        }
        let waits_for = self.written_over(v, at, &block);
        if let Some(log) = self.volumes[v].log_mut() {
            log.waits_for = waits_for;
        }
        Ok(waits_for.is_some())
    }

    /// A write in flight of a block that some transaction commits which is complete with this block of the log. What cannot be
    /// followed commits nothing.
    fn written_over(&mut self, v: usize, at: AreaBlock, block: &Block) -> Option<Track> {
        let volume = &self.volumes[v];
        let log = volume.log()?;
        let (mut reader, in_flight) = self.versions.reader_and_flights(volume.id, &*log.layout);
        let mut view = With { reader: &mut reader, at, block };
        let (mut tid, mut start) = log.head;
        while let Ok(Parsed::Complete(transaction)) = log::parse(&mut view, &log.geometry, start, tid) {
            let flying = |home: FsBlock| in_flight.over(home.sector(volume.start), BLOCK_SECTORS);
            let found = transaction.tags.iter().find_map(|tag| flying(tag.home));
            if found.is_some() {
                return found;
            }
            (tid, start) = (tid.next(), transaction.next);
        }
        None
    }

    /// A journal block with a piece replaced.
    pub(super) fn composed(
        &mut self,
        v: usize,
        at: AreaBlock,
        within: usize,
        piece: &Buffers,
    ) -> Result<Block, JournalError> {
        let mut block =
            if piece.len() == BLOCK_BYTES { [0; BLOCK_BYTES] } else { self.content_or_below(v, at)? };
        piece.copy_to(0, &mut block[within..within + piece.len()]);
        Ok(block)
    }

    fn content_or_below(&mut self, v: usize, at: AreaBlock) -> Result<Block, JournalError> {
        let volume = &self.volumes[v];
        let Some(layout) = volume.layout() else { return Ok([0; BLOCK_BYTES]) };
        let mut scratch = [0; BLOCK_BYTES];
        Ok(*self.versions.reader(volume.id, &**layout).get(at, &mut scratch)?)
    }

    /// Puts a journal block into the arena, making room where there is none; the last resort is its own place on the disk.
    fn keep(&mut self, v: usize, at: AreaBlock, block: &Block) -> Result<Kept, JournalError> {
        let id = self.volumes[v].id;
        let mut made_room = false;
        loop {
            match self.versions.store(id, at, block) {
                Ok(()) => return Ok(Kept::Here),
                Err(error) if is_full(&error) && !made_room => {
                    self.tell_no_memory(&error);
                    if self.make_room(self.room_goal_bytes())? {
                        if at != AreaBlock(0) {
                            return Ok(Kept::Waits);
                        }
                        // In the middle of what it changes nothing waits.
                        self.evict_all()?;
                    }
                    made_room = true;
                    if self.volumes[v].log().is_none() {
                        return Ok(Kept::Left);
                    }
                }
                Err(error) if is_full(&error) && at == AreaBlock(0) => {
                    // Its own place on the disk says that the journal is empty: it cannot go there alone.
                    self.leave(v, &format!("its journal's superblock cannot be retained: {error}"), true)?;
                    return Ok(Kept::Left);
                }
                Err(error) if is_full(&error) => {
                    self.evict(v, &[(at, *block)])?;
                    return Ok(Kept::Here);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Less memory than `--retain-max` promised: said once, for it costs only speed.
    fn tell_no_memory(&mut self, error: &JournalError) {
        if matches!(error, JournalError::Block(_)) && !std::mem::replace(&mut self.told_no_memory, true) {
            tracing::warn!(
                %error,
                arena = %self.versions.arena.path().display(),
                used_bytes = self.versions.arena.used_bytes(),
                "the arena's tmpfs is full: journals are checkpointed early and what does not fit goes to its own place on \
                 the disk; nothing is lost; free memory there, enlarge the tmpfs, or serve with a smaller --retain-max"
            );
        }
    }

    /// Hands a block of a journal that is not absorbed any more to its own place on the disk.
    fn through(
        &mut self,
        v: usize,
        at: AreaBlock,
        block: &Block,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let Some(sector) = self.volumes[v].sector_of(at) else { return Ok(()) };
        let track = self.track(sector, 8, Carried::default(), false);
        parts.push(Part::Below { sector, sectors: 8, copy: Some(Buffers::from_bytes(block)), track });
        Ok(())
    }

    /// A piece of the superblock of an absorbed journal.
    pub(super) fn absorb_superblock(
        &mut self,
        v: usize,
        within: usize,
        piece: &Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let mut block = *log.superblock.bytes();
        piece.copy_to(0, &mut block[within..within + piece.len()]);
        let Some(sector) = self.volumes[v].sector_of(AreaBlock(0)) else { return Ok(()) };
        let newer = match JournalSuperblock::parse(&block) {
            Ok(newer) if same_journal(&newer, &log.superblock) => newer,
            other => {
                let why = match other {
                    Ok(_) => "its journal became another one".to_owned(),
                    Err(e) => format!("its journal's superblock was overwritten ({e})"),
                };
                // What mkfs or an administrator puts there is not to be mixed with what was committed before.
                self.leave(v, &why, false)?;
                return self.through_superblock(sector, &block, true, parts);
            }
        };
        let Some(start) = newer.start() else {
            // Flushed: at an unmount, a freeze, or by e2fsck. The guest says that everything is home.
            self.count(v).journal_truncations += 1;
            self.disarm(v, "waiting for the next mount");
            return self.through_superblock(sector, &block, false, parts);
        };
        if self.options.drop_journal {
            if let Some(log) = self.volumes[v].log_mut() {
                log.superblock = newer;
            }
            parts.push(Part::Done);
            return Ok(());
        }
        self.volumes[v].set_being_read(&mut self.versions, false);
        let moved = self.guest_tail(v, (newer.sequence(), start));
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let other_format = !same_format(newer.features(), log.geometry.features);
        if moved.is_err() || (other_format && !log.transactions.is_empty()) {
            let why = moved.err().unwrap_or("its journal's features changed while transactions were in it");
            self.leave(v, why, true)?;
            if moved.is_err() {
                // The guest knows where its log begins.
                self.volumes[v].clamp = None;
            }
            return self.through_clamped(v, sector, newer, parts);
        }
        let id = self.volumes[v].id;
        let truncated = moved == Ok(true);
        if let Some(log) = self.volumes[v].log_mut() {
            log.geometry.features = newer.features();
            log.superblock = newer;
        }
        if let Kept::Left = self.keep(v, AreaBlock(0), &block)? {
            let Some(newer) = JournalSuperblock::parse(&block).ok() else { return Ok(()) };
            return self.through_clamped(v, sector, newer, parts);
        }
        debug_assert!(self.versions.arena.volume(id).is_some());
        if let Some(log) = self.volumes[v].log() {
            log.forget_passed(&mut self.versions.arena, id);
        }
        self.count(v).journal_truncations += u64::from(truncated);
        parts.push(if truncated && self.options.vflush_at_truncation { Part::Durable } else { Part::Done });
        Ok(())
    }

    /// Before a superblock of the guest lets transactions go: see [`super::passed`].
    fn save_passed(&mut self, v: usize, block: &Block) -> Result<(), JournalError> {
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let newer = match JournalSuperblock::parse(block) {
            Ok(newer) if same_journal(&newer, &log.superblock) => newer,
            _ => return Ok(()),
        };
        let tid = newer.start().map(|_| newer.sequence());
        let needed = needed(&self.volumes[v], &mut self.versions, tid)?;
        self.go_home(v, Some(needed))
    }

    /// The guest's own tail: what is older is home or of no use to it. Says whether anything was passed.
    fn guest_tail(&mut self, v: usize, tail: Position) -> Result<bool, &'static str> {
        let Some(log) = self.volumes[v].log() else { return Ok(false) };
        let (tid, start) = tail;
        let passed = log.transactions.iter().take_while(|t| tid.is_after(t.tid)).count();
        let oldest = log.transactions.front().map_or(log.head.0, |t| t.tid);
        if oldest.is_after(tid) {
            let went_back = log.superblock.sequence().is_after(tid);
            if went_back
                || log
                    .start_of(&self.versions.arena, self.volumes[v].id, tid)
                    .is_some_and(|known| known != start)
            {
                return Err("its journal begins anew, behind what was committed");
            }
            // It lags behind what was released; the served superblock makes up for that.
            return Ok(false);
        }
        let expected = log.transactions.get(passed).map(|t| (t.tid, t.start));
        if expected.is_some_and(|e| e != tail) {
            return Err("its journal's tail is not where the transaction of that id begins");
        }
        for _ in 0..passed {
            self.volumes[v].drop_oldest(&mut self.versions);
        }
        let Some(log) = self.volumes[v].log_mut() else { return Ok(false) };
        if expected.is_none() && log.head != (tid, start) {
            // Nothing is left: the log begins anew, as after a recovery.
            log.head = (tid, start);
            log.commit_seen = false;
            if log.tail.0 == tid {
                self.volumes[v].set_tail(&mut self.versions, (tid, start));
            }
        }
        self.volumes[v].move_tail(&mut self.versions);
        Ok(passed > 0)
    }

    /// The whole superblock goes to the disk.
    fn through_superblock(
        &mut self,
        sector: Sector,
        block: &[u8; BLOCK_BYTES],
        look_again: bool,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let track = self.track(sector, 8, Carried::default(), look_again);
        parts.push(Part::Below { sector, sectors: 8, copy: Some(Buffers::from_bytes(block)), track });
        Ok(())
    }

    /// As above, with a tail that does not fall behind what the disk holds.
    fn through_clamped(
        &mut self,
        v: usize,
        sector: Sector,
        superblock: JournalSuperblock,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let superblock = self.volumes[v].clamped(superblock);
        self.through_superblock(sector, superblock.bytes(), false, parts)
    }

    /// A write to the journal superblock, or to a part of it, of a file system that waits for a mount. `at` is the
    /// superblock's first sector.
    pub(super) fn superblock_while_armed(
        &mut self,
        v: usize,
        at: Sector,
        sector: Sector,
        sectors: u64,
        buffers: Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let covers = sector <= at && at.0 + 8 <= sector.0 + sectors;
        let mut block = [0; BLOCK_BYTES];
        if covers {
            buffers.copy_to(((at.0 - sector.0) * SECTOR_BYTES) as usize, &mut block);
        }
        let whole = |this: &mut Self, parts: &mut Vec<Part>| {
            this.versions.overwrite(sector, sectors);
            let track = this.track(sector, sectors, Carried::default(), true);
            parts.push(Part::Below { sector, sectors, copy: None, track });
        };
        let superblock = match JournalSuperblock::parse(&block) {
            Ok(superblock) if covers => superblock,
            Err(JournalError::Unsupported(why)) if covers => {
                if let Phase::Armed { why: reason, .. } = &mut self.volumes[v].phase {
                    *reason = format!("its journal uses what is not understood: {why}");
                }
                whole(self, parts);
                return Ok(());
            }
            // mkfs zeroes, or something odd: what it was is learnt again when it has arrived.
            _ => {
                whole(self, parts);
                return Ok(());
            }
        };
        let volume = &mut self.volumes[v];
        if volume.left.is_some_and(|left| left.uuid != superblock.uuid()) {
            // Another file system's journal owes nothing to the older one's tail.
            volume.clamp = None;
        }
        if let Some(start) = superblock.start() {
            if self.begin(v, &superblock, start)? {
                parts.push(Part::Done);
                return Ok(());
            }
        }
        self.through_clamped(v, at, superblock, parts)
    }
}

/// What became of a journal block.
enum Kept {
    /// It is in the arena, or in its own place on the disk.
    Here,
    /// There is room for it when a set has gone home, which is due.
    Waits,
    /// Its file system is not absorbed any more.
    Left,
}

/// A log with one block more.
struct With<'a, 'b> {
    reader: &'a mut Reader<'b>,
    at: AreaBlock,
    block: &'a Block,
}

impl AreaView for With<'_, '_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        if at == self.at {
            return Ok(self.block);
        }
        self.reader.get(at, scratch)
    }
}

/// Whether there is no memory: the bound is reached, or the arena's tmpfs is full.
fn is_full(error: &JournalError) -> bool {
    match error {
        JournalError::Full { .. } => true,
        JournalError::Block(e) => e.kind() == ErrorKind::NoSpace,
        JournalError::Corrupt(_) | JournalError::Unsupported(_) | JournalError::Foreign(_) => false,
    }
}

const _: () = assert!(BLOCK_BYTES as u64 == 8 * SECTOR_BYTES);

/// Whether two superblocks are of one journal.
fn same_journal(a: &JournalSuperblock, b: &JournalSuperblock) -> bool {
    a.uuid() == b.uuid() && a.maxlen() == b.maxlen() && a.first() == b.first()
}

/// Whether blocks written under one set of features read the same under the other. A journal says that it may hold revoke
/// blocks when it writes its first one.
fn same_format(a: Features, b: Features) -> bool {
    Features { revoke: false, ..a } == Features { revoke: false, ..b }
}
