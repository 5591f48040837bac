//! Writes to an absorbed journal: what has to be waited for, what becomes of a block.

use afterimage_block::{BlockError, Buffers};

use super::log::{self, Walk, Walked};
use super::passed::{needed, passes_flying};
use super::retained::{Following, Retained, Stop};
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;
use crate::versions::{Track, Versions};

/// A write of a part of one journal block.
pub(super) struct Piece {
    pub(super) at: AreaBlock,
    /// Its first byte in the block.
    pub(super) within: usize,
    pub(super) bytes: Buffers,
}

/// A journal block as it is to be kept: a write of all of it is copied once, from where it was lent to its slot.
pub(super) enum Content<'a> {
    Whole(&'a Buffers),
    Composed(Box<Block>),
}

impl Content<'_> {
    /// Puts it there. Says its checksum where it is `signed`: see [`log::AreaView::sum`].
    pub(super) fn store(&self, block: &mut Block, signed: bool) -> Option<u32> {
        self.fill(block);
        signed.then(|| log::sum(block))
    }

    fn fill(&self, block: &mut Block) {
        match self {
            Self::Whole(bytes) => bytes.copy_to(0, block),
            Self::Composed(composed) => *block = **composed,
        }
    }

    pub(super) fn block(&self) -> Block {
        let mut block = [0; BLOCK_BYTES];
        self.fill(&mut block);
        block
    }

    fn header(&self) -> [u8; log::HEADER_BYTES] {
        let mut header = [0; log::HEADER_BYTES];
        match self {
            Self::Whole(bytes) => bytes.copy_to(0, &mut header),
            Self::Composed(composed) => header.copy_from_slice(&composed[..log::HEADER_BYTES]),
        }
        header
    }
}

impl Retained {
    /// A journal block as the guest is shown it, where it is not the disk's own.
    /// What is served from home is read here, as nothing is written there meanwhile.
    pub(super) fn content(
        &self,
        versions: &mut Versions,
        at: AreaBlock,
    ) -> Result<Option<Block>, BlockError> {
        if at == AreaBlock(0) {
            return Ok(Some(*self.log.served().bytes()));
        }
        match versions.arena.home_of(self.log.id, at) {
            Some(_) => self.content_or_below(versions, at).map(Some),
            None => Ok(versions.arena.get(self.log.id, at).copied()),
        }
    }

    fn content_or_below(&self, versions: &mut Versions, at: AreaBlock) -> Result<Block, BlockError> {
        let mut scratch = [0; BLOCK_BYTES];
        Ok(*versions.reader(self.log.id, &*self.place.layout).get(at, &mut scratch)?)
    }

    /// A journal block with a piece replaced.
    pub(super) fn composed<'a>(
        &self,
        versions: &mut Versions,
        piece: &'a Piece,
    ) -> Result<Content<'a>, BlockError> {
        let Piece { at, within, bytes } = piece;
        if bytes.len() == BLOCK_BYTES {
            return Ok(Content::Whole(bytes));
        }
        let mut block = Box::new(self.content_or_below(versions, *at)?);
        bytes.copy_to(0, &mut block[*within..*within + bytes.len()]);
        Ok(Content::Composed(block))
    }

    /// Whether a write to an absorbed journal would say what cannot be true yet. A tail does not pass versions whose homes are
    /// being written, nor those that are still needed and pending: they are due first, as a set.
    ///
    /// Under `power-window` a commit is answered when its blocks are in the disk's history as one. Where a write of one of them
    /// is in flight, or has landed and was not posted, that may take its place behind them, under the next daemon, and undo a part of the
    /// transaction; where what the layout rests on is
    /// in flight, nothing may go home. Either is over soon. The commit block is not in the arena meanwhile: a daemon that dies
    /// leaves a transaction that never happened, and a guest that asks for both again. A set that is under way is waited for: see
    /// [`crate::versions`]. `dropped`: journal writes are not retained.
    pub(super) fn must_wait(
        &mut self,
        versions: &mut Versions,
        piece: &Piece,
        dropped: bool,
    ) -> Result<bool, Stop> {
        if versions.way.is_of(self.log.id) {
            return Ok(true);
        }
        if piece.at == AreaBlock(0) {
            if !versions.way.is_free() {
                return Ok(true);
            }
            let block = self.composed(versions, piece)?.block();
            if passes_flying(self, versions, &block) {
                return Ok(true);
            }
            if !dropped {
                self.save_passed(versions, &block)?;
            }
            return Ok(!versions.way.is_free());
        }
        if self.waits_for.take_if(|track| !versions.in_flight.holds(*track)).is_some() {
            self.log.set_commit_waits(versions, false);
        }
        let nothing_flies = !self.suspended && versions.in_flight.all_posted();
        if dropped || (versions.way.is_free() && (nothing_flies || !versions.applies())) {
            return Ok(false);
        }
        let content = self.composed(versions, piece)?;
        let committed = log::commit_tid(&content.header());
        let commit_seen = self.log.commit_seen;
        if !versions.way.is_free() {
            return Ok(committed.is_some() || commit_seen);
        }
        let is_next = committed.is_some_and(|tid| !self.log.head.0.is_after(tid));
        if (!commit_seen && !is_next) || versions.mistake.is(Mutation::CommitOverFlight) {
            return Ok(false);
        }
        if self.suspended || self.waits_for.is_some() {
            return Ok(true);
        }
        self.waits_for = self.written_over(versions, piece.at, &content.block());
        if self.waits_for.is_some() {
            self.log.set_commit_waits(versions, true);
        }
        Ok(self.waits_for.is_some())
    }

    /// A write that was not posted of a block that some transaction commits which is complete with this block of the log. What cannot be
    /// followed commits nothing.
    fn written_over(&self, versions: &mut Versions, at: AreaBlock, block: &Block) -> Option<Track> {
        let layout = &self.place.layout;
        let geometry = &self.log.geometry;
        let mut walk = self.log.walk_with(at)?;
        let (mut reader, in_flight) = versions.reader_and_flights(self.log.id, &**layout);
        let mut view = Following { reader: &mut reader, with: Some((at, block)), whole: self.is_whole() };
        let mut tid = self.log.head.0;
        while let Ok(Walked::Complete(transaction)) = walk.and_then(|walk| walk.go_on(&mut view, geometry)) {
            let over = |home: FsBlock| in_flight.over(home.sector(layout.start), BLOCK_SECTORS);
            let found = transaction.tags.iter().find_map(|tag| over(tag.home));
            if found.is_some() {
                return found;
            }
            tid = tid.next();
            walk = Walk::new(geometry, transaction.next, tid);
        }
        None
    }

    /// Before a superblock of the guest lets transactions go: see [`super::passed`].
    fn save_passed(&self, versions: &mut Versions, block: &Block) -> Result<(), Stop> {
        let Ok(newer) = self.log.newer(block) else { return Ok(()) };
        let tid = newer.start().map(|_| newer.sequence());
        let needed = needed(self, versions, tid)?;
        self.go_home(versions, Some(needed))
    }

    /// Whether a block is to be kept: it may also be there already.
    pub(super) fn accepts(
        &mut self,
        versions: &mut Versions,
        at: AreaBlock,
        content: &Content<'_>,
    ) -> Result<bool, Stop> {
        if self.log.unproven {
            self.log.prove(log::header_tid(&content.header()))?;
        }
        if self.log.holds(at) {
            if self.content_or_below(versions, at)? == content.block() {
                return Ok(false);
            }
            // Where the guest's own tail has not passed, no sound guest writes.
            return Err(Stop::hand_back("the guest overwrote a part of its journal that was still needed"));
        }
        // A reader of the copy of the log on the disk alone would replay what is overtaken from now on.
        if self.place.on_disk {
            self.place.mark_empty(versions, &self.log.superblock, self.log.head.0.next())?;
        }
        Ok(true)
    }

    /// A block is kept: whatever is complete with it is taken in.
    pub(super) fn kept(
        &mut self,
        versions: &mut Versions,
        at: AreaBlock,
        content: &Content<'_>,
    ) -> Result<(), Stop> {
        let committed = log::commit_tid(&content.header());
        let may_complete = self.log.wrote(at);
        if committed.is_none() && !self.log.commit_seen {
            return Ok(());
        }
        // Of the expected transaction blocks were missing, or, in a log that was taken over in mid-mount, its commit block went
        // to the disk and never came by here.
        if let Some(tid) = committed {
            self.log.came_by = Some((tid, self.log.head.0));
        }
        if may_complete {
            self.follow(versions)?;
        }
        self.judge_commit(versions)
    }
}
