//! What is known of one file system, and the log that is being followed.

use std::collections::VecDeque;
use std::sync::Arc;

use afterimage_block::{Sector, SECTOR_BYTES};

use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::log::LogGeometry;
use crate::ids::{AreaBlock, FsBlock, Tid, BLOCK_SECTORS};
use crate::versions::arena::VolumeId;
use crate::versions::{blocks_of, Places, Room, Track};

/// A place in a log: a transaction's id and its first block.
pub(super) type Position = (Tid, AreaBlock);

/// A file system, or a place where one may come to be.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) id: VolumeId,
    pub(super) start: Sector,
    pub(super) uuid: Option<[u8; 16]>,
    pub(super) phase: Phase,
    /// The tail that superblocks on the disk must not fall behind: older blocks of the log are gone. Lives until the
    /// guest's own tail has passed it.
    pub(super) clamp: Option<Position>,
    /// While nothing is understood of this place any more: the journal superblock that the clamp is for.
    pub(super) left: Option<LeftJournal>,
}

/// A journal of a file system that is no longer understood, though its guest may go on with it: one whose UUID was
/// changed while it was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftJournal {
    /// Where its superblock is.
    pub(super) at: Sector,
    pub(super) uuid: [u8; 16],
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing that could be retained is here.
    Passthrough { why: String },
    /// The journal is found; it is passed through until a mount begins an empty log.
    Armed { layout: Arc<Layout>, why: String },
    /// Journal writes are absorbed.
    Absorbing(Box<Log>),
}

/// A log being followed.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) layout: Arc<Layout>,
    pub(super) geometry: LogGeometry,
    /// The guest's newest superblock.
    pub(super) superblock: JournalSuperblock,
    /// The served tail: nothing older is needed.
    pub(super) tail: Position,
    /// Where the next transaction is expected.
    pub(super) head: Position,
    /// Committed transactions, oldest first, with consecutive ids. Some may be older than the served tail: kept
    /// so that the guest's writes of what is home already can be recognised.
    pub(super) transactions: VecDeque<Committed>,
    /// Blocks of the log that they take.
    pub(super) held_blocks: u64,
    /// When the newest was committed, by the guest's clock: `h_commit_sec`.
    pub(super) commit_sec: u64,
    /// The next transaction's commit block is there, but not yet all its other blocks (`journal_async_commit`).
    pub(super) commit_seen: bool,
    /// A commit block that came by, and the transaction that was expected then: see [`super::systems::FileSystems::judge_commit`].
    pub(super) came_by: Option<(Tid, Tid)>,
    /// A write in flight that the next commit waits for; see [`super::systems::FileSystems::must_wait`].
    pub(super) waits_for: Option<Track>,
    /// `s_sequence` of the superblock on the disk below, whose `s_start` is 0.
    pub(super) disk_sequence: Tid,
    /// A write changed what the layout rests on; until it has completed nothing may go home.
    pub(super) suspended: bool,
    /// The disk below holds the log as well, as the served superblock has it, and says so: before anything more is
    /// absorbed it must say again that it is empty.
    pub(super) on_disk: bool,
    /// Blocks of the log may stand in their own places on the disk instead of in the arena.
    pub(super) spilled: bool,
    /// The served superblock was read since the guest last wrote one. It may be in its own recovery, which reads the log from
    /// that tail on in as many requests as it likes: nothing of it is given up until the guest begins its journal anew
    /// or moves its tail.
    pub(super) being_read: bool,
    /// The log is being read again after an earlier daemon's death.
    pub(super) resuming: bool,
}

/// A committed transaction.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) tid: Tid,
    pub(super) start: AreaBlock,
    pub(super) blocks: u32,
    /// Home blocks that it logged, each once.
    pub(super) homes: Vec<FsBlock>,
}

impl Volume {
    pub(super) fn layout(&self) -> Option<&Arc<Layout>> {
        match &self.phase {
            Phase::Passthrough { .. } => None,
            Phase::Armed { layout, .. } => Some(layout),
            Phase::Absorbing(log) => Some(&log.layout),
        }
    }

    pub(super) fn log(&self) -> Option<&Log> {
        match &self.phase {
            Phase::Absorbing(log) => Some(log),
            _ => None,
        }
    }

    pub(super) fn log_mut(&mut self) -> Option<&mut Log> {
        match &mut self.phase {
            Phase::Absorbing(log) => Some(log),
            _ => None,
        }
    }

    /// The sector of a journal block.
    pub(super) fn sector_of(&self, at: AreaBlock) -> Option<Sector> {
        self.layout()?.sector_of(at)
    }

    /// Where its superblock is: bytes 1024 to 2048.
    pub(super) fn superblock_range(&self) -> (Sector, u64) {
        (Sector(self.start.0 + 2), 2)
    }

    /// Whether a range touches its superblock.
    pub(super) fn superblock_overlaps(&self, sector: Sector, sectors: u64) -> bool {
        let (at, length) = self.superblock_range();
        sector.0 < at.0 + length && at.0 < sector.0 + sectors
    }

    /// The first sector of the journal superblock that is not to be written as it comes, where nothing is absorbed.
    pub(super) fn guarded_superblock(&self) -> Option<Sector> {
        match &self.phase {
            Phase::Passthrough { .. } => self.clamp.and(self.left).map(|left| left.at),
            Phase::Armed { layout, .. } => layout.sector_of(AreaBlock(0)),
            Phase::Absorbing(_) => None,
        }
    }

    /// The file system blocks that a range of sectors touches, `[from, to)`.
    pub(super) fn blocks_of(&self, sector: Sector, sectors: u64) -> (FsBlock, FsBlock) {
        blocks_of(self.start, self.layout().map_or(0, |l| l.room_blocks), sector, sectors)
    }
}

impl Log {
    /// The wrapped block `n` blocks after `at`.
    pub(super) fn after(&self, at: AreaBlock, n: u32) -> AreaBlock {
        let usable = u64::from(self.geometry.maxlen - self.geometry.first.0);
        let offset = (u64::from(at.0 - self.geometry.first.0) + u64::from(n)) % usable;
        AreaBlock(self.geometry.first.0 + offset as u32)
    }

    /// Blocks from the guest's own tail up to the oldest transaction that is held: given up, which the guest does not know.
    fn passed_blocks(&self) -> u64 {
        let (tid, at) = self.transactions.front().map_or(self.head, |t| (t.tid, t.start));
        match self.superblock.start() {
            Some(start) if tid.is_after(self.superblock.sequence()) => {
                self.geometry.distance(start, at).into()
            }
            _ => 0,
        }
    }

    /// Whether a block belongs to a committed transaction that the guest's own tail has not passed, held or not.
    pub(super) fn holds(&self, at: AreaBlock) -> bool {
        let passed_blocks = self.passed_blocks();
        let from = match (self.superblock.start(), self.transactions.front()) {
            (Some(start), _) if passed_blocks > 0 => start,
            (_, Some(front)) => front.start,
            _ => return false,
        };
        let distance = |at| u64::from(self.geometry.distance(from, at));
        self.geometry.contains(at) && distance(at) < passed_blocks + self.held_blocks
    }

    /// Whether another transaction of so many blocks fits beside those that the guest has in its log: where it does not, the log
    /// runs over itself.
    pub(super) fn has_room(&self, blocks: u32) -> bool {
        self.passed_blocks() + self.held_blocks + u64::from(blocks) <= u64::from(self.geometry.log_blocks())
    }

    /// A transaction was committed.
    pub(super) fn push(&mut self, transaction: Committed) {
        self.held_blocks += u64::from(transaction.blocks);
        self.transactions.push_back(transaction);
    }

    /// Gives up the oldest transaction.
    pub(super) fn pop(&mut self) -> Option<Committed> {
        let oldest = self.transactions.pop_front()?;
        self.held_blocks -= u64::from(oldest.blocks);
        Some(oldest)
    }

    /// Transactions that the served tail has not passed, oldest first.
    pub(super) fn not_passed(&self) -> impl Iterator<Item = &Committed> {
        let front = self.transactions.front().filter(|front| self.tail.0.is_after(front.tid));
        let passed = front.map_or(0, |front| self.tail.0 .0.wrapping_sub(front.tid.0));
        self.transactions.iter().skip(passed as usize)
    }

    /// What its versions may take of the disk.
    pub(super) fn room(&self) -> Room {
        let (start, blocks) = (self.layout.start, self.layout.room_blocks);
        Room { start, blocks, places: Arc::clone(&self.layout) as Arc<_> }
    }
}

/// A range of sectors that a part of the journal occupies.
pub(super) fn area_ranges(layout: &Layout) -> impl Iterator<Item = (Sector, u64, AreaBlock)> + '_ {
    layout.journal.iter().map(|e| (e.home.sector(layout.start), u64::from(e.blocks) * BLOCK_SECTORS, e.at))
}

/// Bytes on the disk, of something that lies `offset` bytes into a block.
pub(super) fn byte_of(start: Sector, block: FsBlock, offset: usize) -> u64 {
    block.sector(start).0 * SECTOR_BYTES + offset as u64
}
