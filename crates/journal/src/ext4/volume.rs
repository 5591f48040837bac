//! What is known of one file system.

use std::sync::Arc;

use afterimage_block::{Sector, SECTOR_BYTES};

use super::followed::Position;
use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::retained::Retained;
use crate::ids::{AreaBlock, FsBlock, BLOCK_SECTORS};
use crate::versions::arena::VolumeId;
use crate::versions::{blocks_of, Places};

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
    Absorbing(Box<Retained>),
}

impl Volume {
    pub(super) fn layout(&self) -> Option<&Arc<Layout>> {
        match &self.phase {
            Phase::Passthrough { .. } => None,
            Phase::Armed { layout, .. } => Some(layout),
            Phase::Absorbing(retained) => Some(&retained.place.layout),
        }
    }

    pub(super) fn retained(&self) -> Option<&Retained> {
        match &self.phase {
            Phase::Absorbing(retained) => Some(retained),
            _ => None,
        }
    }

    pub(super) fn retained_mut(&mut self) -> Option<&mut Retained> {
        match &mut self.phase {
            Phase::Absorbing(retained) => Some(retained),
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

    /// With a tail that does not fall behind what the disk holds.
    pub(super) fn clamped(&mut self, superblock: JournalSuperblock) -> JournalSuperblock {
        match (self.clamp, superblock.start()) {
            (Some((tid, start)), Some(_))
                if tid.is_after(superblock.sequence())
                    && (superblock.first().0..superblock.maxlen()).contains(&start.0) =>
            {
                superblock.with_tail(tid, Some(start))
            }
            _ => {
                self.clamp = None;
                superblock
            }
        }
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
