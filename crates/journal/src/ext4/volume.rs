//! What is known of one file system.

use std::sync::Arc;

use afterimage_block::{Sector, SECTOR_BYTES};

use super::followed::Position;
use super::layout::superblock::JournalSuperblock;
use super::layout::{Found, Layout};
use super::retained::Retained;
use crate::ids::{AreaBlock, FsBlock, Tid, BLOCK_SECTORS};
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
    /// While its journal waits for a mount: its superblock was read, or emptied, since anything else was written there.
    pub(super) superblock_read: bool,
    /// While its journal waits for a mount: an earlier daemon's memory is gone, and its guest's log with it.
    pub(super) orphan: Option<Orphan>,
}

/// A journal of a file system that is no longer understood, though its guest may go on with it: one whose UUID was
/// changed while it was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftJournal {
    /// Where its superblock is.
    pub(super) at: Sector,
    pub(super) uuid: [u8; 16],
}

/// A journal whose log was in the memory of an earlier daemon: see [`super::orphan`].
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) superblock: JournalSuperblock,
    /// Where the log begins, as far as has been seen.
    pub(super) adopted: Option<Position>,
}

impl Orphan {
    pub(super) fn new(superblock: JournalSuperblock) -> Self {
        Self { superblock, adopted: None }
    }

    /// Whether a block of the log tells more: it is the first one, or lies before it in the same transaction.
    pub(super) fn tells(&self, tid: Tid, at: AreaBlock) -> bool {
        let (first, maxlen) = (self.superblock.first().0, self.superblock.maxlen());
        let earlier = |known: AreaBlock| {
            let log_blocks = maxlen - first;
            let before = (known.0 + log_blocks - at.0) % log_blocks;
            (1..log_blocks / 2).contains(&before)
        };
        (first..maxlen).contains(&at.0)
            && self.adopted.is_none_or(|(known, begins)| known == tid && earlier(begins))
    }
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

    /// Whether a range touches that superblock.
    pub(super) fn superblock_lies_in(&self, sector: Sector, sectors: u64) -> bool {
        let touches = |at: Sector| at.0 < sector.0 + sectors && sector.0 < at.0 + BLOCK_SECTORS;
        self.guarded_superblock().is_some_and(touches)
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

/// What a look at the disk makes of a place.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// The journal that is absorbed is still there; its file system may have grown.
    Same(Arc<Layout>),
    /// A journal is there that nobody uses, as far as is known.
    Waits(Arc<Layout>),
    /// Nothing that could be retained is there.
    Passed {
        uuid: Option<[u8; 16]>,
        why: String,
        /// Where the superblock of a journal may be that its guest goes on with.
        journal: Option<Sector>,
    },
}

impl Volume {
    /// What a look makes of this place.
    pub(super) fn next(&self, found: Found) -> Next {
        match (found, self.retained()) {
            (Found::FileSystem(layout), Some(r)) if !r.place.layout.identity_changed(&layout) => {
                Next::Same(layout.into())
            }
            (Found::FileSystem(layout), _) => Next::Waits(layout.into()),
            (Found::Passthrough { uuid, why, journal, .. }, _) => {
                // A UUID: it still is an ext4. After a daemon's death only the disk tells where its journal is.
                let journal = uuid.and_then(|_| self.journal_superblock().or(journal));
                Next::Passed { uuid, why, journal }
            }
        }
    }

    /// Where the journal superblock is that was known here.
    pub(super) fn journal_superblock(&self) -> Option<Sector> {
        self.sector_of(AreaBlock(0)).or_else(|| Some(self.left?.at))
    }

    /// Whether that journal is the one whose tail is known here. While nothing was understood, it may have become another one.
    pub(super) fn waits_for(&self, layout: &Layout) -> bool {
        matches!(self.phase, Phase::Armed { .. }) && self.uuid == Some(layout.uuid)
    }

    /// A journal is found that nobody uses, as far as is known. `on_disk`: its superblock there, if it is not the one whose tail is known:
    /// an earlier daemon may have released what came before that tail, or its memory may be gone.
    pub(super) fn wait_for_mount(
        &mut self,
        layout: Arc<Layout>,
        on_disk: Option<JournalSuperblock>,
        orphan: Option<Orphan>,
    ) {
        let known = self.waits_for(&layout);
        let clamp = if known { self.clamp } else { on_disk.and_then(|s| tail_in(&s)) };
        let why = match (&self.phase, clamp) {
            (Phase::Armed { why, .. }, _) if known => why.clone(),
            (_, Some(_)) => "its journal is not empty: retention begins at the next mount".to_owned(),
            _ => "waiting for the next mount".to_owned(),
        };
        self.uuid = Some(layout.uuid);
        self.orphan = if known { self.orphan.take() } else { orphan };
        self.clamp = clamp;
        self.left = None;
        self.phase = Phase::Armed { layout, why };
    }

    /// Nothing is retained at that place. `on_disk`: the journal superblock that its guest may go on with, as it stands where that was known or
    /// is found, though nothing else may be understood any more. If it has a log, what came before its tail is gone.
    /// Returns whether it is news.
    pub(super) fn pass_through(
        &mut self,
        uuid: Option<[u8; 16]>,
        why: &str,
        on_disk: Option<(Sector, JournalSuperblock)>,
    ) -> bool {
        let news = !matches!(&self.phase, Phase::Passthrough { why: before } if before == why);
        let known = self.left.filter(|_| self.layout().is_none());
        let left = on_disk.and_then(|(at, superblock)| {
            let left = LeftJournal { at, uuid: superblock.uuid() };
            let same = known.is_none_or(|known| known.uuid == left.uuid);
            Some((left, tail_in(&superblock).filter(|_| same)?))
        });
        self.clamp = left.map(|(_, tail)| tail);
        self.left = left.map(|(left, _)| left);
        self.uuid = uuid;
        self.orphan = None;
        self.phase = Phase::Passthrough { why: why.to_owned() };
        news
    }
}

/// The tail that a journal superblock names, if there is a log.
fn tail_in(superblock: &JournalSuperblock) -> Option<Position> {
    Some((superblock.sequence(), superblock.start()?))
}

/// A range of sectors that a part of the journal occupies.
pub(super) fn area_ranges(layout: &Layout) -> impl Iterator<Item = (Sector, u64, AreaBlock)> + '_ {
    layout.journal.iter().map(|e| (e.home.sector(layout.start), u64::from(e.blocks) * BLOCK_SECTORS, e.at))
}

/// Bytes on the disk, of something that lies `offset` bytes into a block.
pub(super) fn byte_of(start: Sector, block: FsBlock, offset: usize) -> u64 {
    block.sector(start).0 * SECTOR_BYTES + offset as u64
}

#[cfg(test)]
mod tests {
    use super::super::followed::tests::superblock;
    use super::super::layout::AreaExtent;
    use super::*;

    fn layout(uuid: u8, blocks: u64) -> Layout {
        Layout {
            start: Sector(0),
            uuid: [uuid; 16],
            blocks,
            room_blocks: blocks,
            bitmaps: None,
            journal: vec![AreaExtent { at: AreaBlock(0), home: FsBlock(1000), blocks: 1030 }],
            watched: Vec::new(),
        }
    }

    fn place() -> Volume {
        let phase = Phase::Passthrough { why: String::new() };
        Volume {
            id: VolumeId(0),
            start: Sector(0),
            uuid: None,
            phase,
            clamp: None,
            left: None,
            superblock_read: false,
            orphan: None,
        }
    }

    fn passed(uuid: Option<u8>, journal: Option<Sector>) -> Found {
        let uuid = uuid.map(|uuid| [uuid; 16]);
        Found::Passthrough { start: Sector(0), uuid, why: "odd".to_owned(), journal }
    }

    #[test]
    fn a_journal_is_absorbed_on_as_long_as_it_is_the_same() {
        let mut volume = place();
        let grown = || Found::FileSystem(layout(1, 9000));
        assert!(matches!(volume.next(grown()), Next::Waits(layout) if layout.blocks == 9000));
        let tail = (superblock(7, 1).sequence(), AreaBlock(1));
        let retained = Retained::new(VolumeId(0), layout(1, 5000).into(), superblock(7, 1), tail);
        volume.phase = Phase::Absorbing(Box::new(retained));
        assert!(matches!(volume.next(grown()), Next::Same(layout) if layout.blocks == 9000));
        assert!(matches!(volume.next(Found::FileSystem(layout(2, 5000))), Next::Waits(_)));
        // An ext4 that is not understood: its guest may go on with the journal where that was known to be.
        let known = Some(Sector(8000));
        assert!(
            matches!(volume.next(passed(Some(2), Some(Sector(16)))), Next::Passed { journal, .. } if journal == known)
        );
        assert!(matches!(volume.next(passed(None, Some(Sector(16)))), Next::Passed { journal: None, .. }));
    }

    #[test]
    fn a_tail_on_the_disk_is_not_fallen_behind() {
        let mut volume = place();
        let clamp = |volume: &Volume| volume.clamp.map(|(tid, at)| (tid.0, at.0));
        let on_disk = |start| Some(superblock(7, start));
        volume.wait_for_mount(layout(1, 5000).into(), on_disk(3), None);
        assert_eq!(clamp(&volume), Some((7, 3)));
        // Whatever the disk says now: what is known of the same journal counts.
        assert!(volume.waits_for(&layout(1, 5000)) && !volume.waits_for(&layout(2, 5000)));
        volume.wait_for_mount(layout(1, 6000).into(), None, None);
        assert_eq!(clamp(&volume), Some((7, 3)));
        volume.wait_for_mount(layout(2, 6000).into(), on_disk(0), None);
        assert!(clamp(&volume).is_none(), "another one, which is empty");
        // Passed through: the journal goes on to be known by its place and UUID, as long as it has a log.
        let there = |uuid: u8, start| {
            let mut block = *superblock(7, start).bytes();
            block[0x30..0x40].fill(uuid);
            Some((Sector(8000), JournalSuperblock::parse(&block).unwrap()))
        };
        volume.pass_through(Some([2; 16]), "odd", there(2, 5));
        assert_eq!((clamp(&volume), volume.guarded_superblock()), (Some((7, 5)), Some(Sector(8000))));
        volume.pass_through(None, "odd", there(2, 6));
        assert_eq!(clamp(&volume), Some((7, 6)));
        volume.pass_through(None, "odd", there(3, 6));
        assert_eq!((clamp(&volume), volume.guarded_superblock()), (None, None), "another journal");
    }
}
