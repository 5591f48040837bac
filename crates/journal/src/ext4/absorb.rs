//! Writes to an absorbed journal.

use afterimage_block::{BlockError, Buffers, ErrorKind, SECTOR_BYTES};

use super::log::{self, AreaView, Parsed};
use super::write::Part;
use super::FileSystems;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;
use crate::versions::{Carried, Reader, Track};

impl FileSystems {
    /// A piece of one journal block: `piece` goes to its byte `within`.
    pub(super) fn absorb(
        &mut self,
        v: usize,
        at: AreaBlock,
        within: usize,
        piece: &Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        if at == AreaBlock(0) {
            return self.absorb_superblock(v, within, piece, parts);
        }
        if self.options.drop_journal {
            self.count(v).journal_absorbed_bytes += piece.len() as u64;
            parts.push(Part::Done);
            return Ok(());
        }
        let block = self.composed(v, at, within, piece)?;
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        if log.holds(at) {
            if self.content_or_below(v, at)? == block {
                parts.push(Part::Done);
                return Ok(());
            }
            // Where the guest's own tail has not passed, no sound guest writes.
            self.leave(v, "the guest overwrote a part of its journal that was still needed", true)?;
            return self.through(v, at, &block, parts);
        }
        let expected = log.head.0;
        let commit_seen = log.commit_seen;
        // A reader of the copy of the log on the disk alone would replay what is overtaken from now on.
        if log.on_disk {
            let (superblock, next) = (log.superblock.clone(), log.head.0.next());
            self.volumes[v].mark_empty(&mut self.versions, &superblock, next)?;
        }
        if !self.keep(v, at, &block)? {
            return self.through(v, at, &block, parts);
        }
        self.count(v).journal_absorbed_bytes += piece.len() as u64;
        parts.push(Part::Done);
        let committed = log::commit_tid(&block);
        if committed.is_none() && !commit_seen {
            return Ok(());
        }
        // Of the expected transaction blocks were missing, or, in a log that was taken over in mid-mount, its commit block went
        // to the disk and never came by here.
        if let (Some(tid), Some(log)) = (committed, self.volumes[v].log_mut()) {
            log.came_by = Some((tid, expected));
        }
        self.follow(v)?;
        self.judge_commit(v)
    }

    /// Whether a write to an absorbed journal would say what cannot be true yet. A tail does not pass versions whose homes are
    /// being written: see [`FileSystems::save_passed`].
    ///
    /// Under `power-window` a commit is answered when its blocks are in the disk's history as one. Where a write of one of them
    /// is in flight, that may take its place behind them, and undo a part of the transaction; where what the layout rests on is
    /// in flight, nothing may go home. Either is over soon. The commit block is not in the arena meanwhile: a daemon that dies
    /// leaves a transaction that never happened, and a guest that asks for both again. A set that is under way is waited for: see
    /// [`super::way`]; what is pending when a tail may pass it is due first, as a set.
    pub(super) fn must_wait(
        &mut self,
        v: usize,
        at: AreaBlock,
        within: usize,
        piece: &Buffers,
    ) -> Result<bool, JournalError> {
        if self.goes_home(self.volumes[v].id) {
            return Ok(true);
        }
        if at == AreaBlock(0) && self.versions.applies() && !self.options.drop_journal {
            if self.way.is_none() {
                self.go_home(v, Vec::new())?;
            }
            if self.way.is_some() {
                return Ok(true);
            }
        }
        let Some(log) = self.volumes[v].log() else { return Ok(false) };
        if !log.suspended && self.versions.in_flight.is_empty() && self.way.is_none() {
            return Ok(false);
        }
        let (expected, commit_seen, suspended, waits_for) =
            (log.head.0, log.commit_seen, log.suspended, log.waits_for);
        if at == AreaBlock(0) {
            let block = self.composed(v, at, within, piece)?;
            return Ok(self.volumes[v].passes_flying(&self.versions, &block));
        }
        if !self.versions.applies() || self.options.drop_journal {
            return Ok(false);
        }
        let block = self.composed(v, at, within, piece)?;
        let committed = log::commit_tid(&block);
        if self.way.is_some() {
            return Ok(committed.is_some() || commit_seen);
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
    /// `false`: the file system is not absorbed any more.
    pub(super) fn keep(&mut self, v: usize, at: AreaBlock, block: &Block) -> Result<bool, JournalError> {
        let id = self.volumes[v].id;
        let mut made_room = false;
        loop {
            match self.versions.store(id, at, block) {
                Ok(()) => return Ok(true),
                Err(error) if is_full(&error) && !made_room => {
                    self.tell_no_memory(&error);
                    self.make_room()?;
                    made_room = true;
                    if self.volumes[v].log().is_none() {
                        return Ok(false);
                    }
                }
                Err(error) if is_full(&error) && at == AreaBlock(0) => {
                    // Its own place on the disk says that the journal is empty: it cannot go there alone.
                    self.leave(v, &format!("its journal's superblock cannot be retained: {error}"), true)?;
                    return Ok(false);
                }
                Err(error) if is_full(&error) => {
                    self.evict(v, &[(at, *block)])?;
                    return Ok(true);
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
