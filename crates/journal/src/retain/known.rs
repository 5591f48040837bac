//! Whether the disk is still as an earlier daemon left it: what is retained belongs to no other.
//!
//! ```text
//! journal superblock  stamped by the daemon while the journal is absorbed; guests' writes of it do not get to the disk
//! ext4 superblock     its checksum in the arena; none while a write of it is under way
//! ```
//!
//! Neither is compared with a time or with anything else that moves by itself, and at every instant at which a daemon
//! can be killed the disk agrees with the arena. So what disagrees was changed by somebody else while nobody served
//! it: a backup that was put back, e2fsck or a mount on the host. A change that touches neither of the two is not noticed.

use afterimage_block::{BlockError, Sector};

use super::volume::{Phase, Volume};
use super::{Mutation, Retainer};
use crate::area::Tuple;
use crate::arena::{Seen, VolumeId, VolumeRecord};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::layout::superblock::JournalSuperblock;
use crate::layout::{self, AreaExtent, Layout};

/// The stamp ends the journal superblock's block, of which the superblock itself takes 1024 bytes: magic, the arena's UUID, the
/// volume's generation in it, CRC-32C of all that stands before.
const STAMP_BYTES: usize = 8 + 16 + 8 + 4;
const STAMP_MAGIC: [u8; 8] = *b"AIstamp\0";

/// Where in the arena it is remembered where a journal lies: behind the last block that one can have.
const EXTENTS_AT: AreaBlock = AreaBlock(1 << 31);
/// Bytes of an extent there, the home block and the length; a length of 0 ends them.
const EXTENT_BYTES: usize = 12;
/// Extents of a block.
const EXTENTS: usize = BLOCK_BYTES / EXTENT_BYTES;

/// Where the ext4 superblock stands in block 0.
const SUPERBLOCK: std::ops::Range<usize> = 1024..2048;

/// Who a journal superblock on the disk was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    arena: [u8; 16],
    generation: u64,
}

impl Stamp {
    /// Puts it into a journal superblock's block.
    pub(super) fn put(&self, block: &mut Block) {
        let stamp = &mut block[BLOCK_BYTES - STAMP_BYTES..];
        stamp[..8].copy_from_slice(&STAMP_MAGIC);
        stamp[8..24].copy_from_slice(&self.arena);
        stamp[24..32].copy_from_slice(&self.generation.to_le_bytes());
        let check = crc32c::crc32c(&block[..BLOCK_BYTES - 4]);
        block[BLOCK_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
    }

    /// Whether a block is as it was written with this stamp.
    pub(super) fn is_in(&self, block: &Block) -> bool {
        let mut expected = *block;
        self.put(&mut expected);
        expected == *block
    }
}

/// What is found where a journal was absorbed.
pub(super) enum Left {
    /// The file system that is remembered.
    Sound,
    /// The same, but not as it can be retained: where its journal lies, what is not in order.
    Unsound(Box<Layout>, String),
    /// Another file system, which the guest made itself.
    Replaced,
}

impl Retainer {
    /// What names a volume's journal superblock on the disk.
    pub(super) fn stamp(&self, id: VolumeId) -> Stamp {
        Stamp { arena: self.arena.identity().uuid, generation: self.arena.generation(id) }
    }

    /// Remembers whether the journal superblock on the disk bears the stamp: after one with it was written, before one without
    /// it is.
    pub(super) fn set_stamped(&mut self, v: usize, stamped: bool) {
        let id = self.volumes[v].id;
        self.arena.set_seen(id, Seen::Journal, None);
        let Some(record) = self.arena.volume(id).filter(|record| record.stamped != stamped) else { return };
        self.arena.set_volume(id, VolumeRecord { stamped, ..record });
    }

    /// Writes the journal superblock that a reader of the disk alone is to find, durably: it bears no stamp.
    pub(super) fn write_unstamped(
        &mut self,
        v: usize,
        superblock: &JournalSuperblock,
    ) -> Result<(), BlockError> {
        let Some(sector) = self.area_sector(v, AreaBlock(0)) else { return Ok(()) };
        self.set_stamped(v, false);
        self.below.write(sector, superblock.bytes())?;
        self.below.sync()?;
        let seen = crc32c::crc32c(superblock.bytes());
        self.arena.set_seen(self.volumes[v].id, Seen::Journal, Some(seen));
        Ok(())
    }

    /// The superblock of some file systems is about to be written, in part or whole.
    pub(super) fn forget_superblocks(&mut self, sector: Sector, sectors: u64) {
        for volume in self.volumes.iter().filter(|v| v.log().is_some()) {
            if volume.superblock_overlaps(sector, sectors) {
                self.arena.set_seen(volume.id, Seen::FileSystem, None);
            }
        }
    }

    /// What was under way over some superblocks has completed: they are as they will be found.
    pub(super) fn note_superblocks(&mut self, sector: Sector, sectors: u64) -> Result<(), BlockError> {
        for v in 0..self.volumes.len() {
            let volume = &self.volumes[v];
            let (at, length) = volume.superblock_range();
            let settled = volume.log().is_some() && !self.in_flight.any(at, length);
            if settled && volume.superblock_overlaps(sector, sectors) {
                let (id, start) = (volume.id, volume.start);
                let seen = self.superblock_check(start)?;
                self.arena.set_seen(id, Seen::FileSystem, Some(seen));
            }
        }
        Ok(())
    }

    /// The daemon is about to write versions home, and has done so.
    pub(super) fn home_begins(&mut self, v: usize, tuples: &[Tuple]) {
        if tuples.iter().any(|t| t.home == FsBlock(0)) {
            self.forget_superblocks(self.volumes[v].start, BLOCK_SECTORS);
        }
    }

    /// See [`Retainer::home_begins`].
    pub(super) fn home_ends(&mut self, v: usize, tuples: &[Tuple]) -> Result<(), BlockError> {
        match tuples.iter().any(|t| t.home == FsBlock(0)) {
            true => self.note_superblocks(self.volumes[v].start, BLOCK_SECTORS),
            false => Ok(()),
        }
    }

    fn superblock_check(&mut self, start: Sector) -> Result<u32, BlockError> {
        Ok(crc32c::crc32c(&self.below.read_block(start)?[SUPERBLOCK]))
    }

    /// Compares the disk with what the arena remembers of one file system.
    ///
    /// # Errors
    /// *Foreign*: it is another disk, or was changed by somebody else. The disk cannot be read.
    pub(super) fn left(&mut self, id: VolumeId, record: &VolumeRecord) -> Result<Left, JournalError> {
        let start = Sector(record.start_sector);
        let foreign = |what: &str| {
            let uuid = uuid::Uuid::from_bytes(record.fs_uuid);
            Err(JournalError::Foreign(format!("of the file system {uuid} at sector {} {what}", start.0)))
        };
        let room = self.disk_sectors.saturating_sub(start.0);
        if room < BLOCK_SECTORS {
            return foreign("nothing is there");
        }
        let seen = self.arena.seen(id, Seen::FileSystem);
        if seen.is_some() && seen != Some(self.superblock_check(start)?) {
            return foreign("the superblock is not the one that was written last");
        }
        let replaced =
            layout::ext4_uuid(&self.below.read_block(start)?).is_some_and(|uuid| uuid != record.fs_uuid);
        let here = self.volumes.iter().find(|v| v.id == id && v.start == start);
        let sound = here.and_then(Volume::layout).filter(|layout| layout.uuid == record.fs_uuid);
        let journal = self.remembered_journal(id).or_else(|| Some(sound?.journal.clone()));
        let blocks = room / BLOCK_SECTORS;
        let fits = |journal: &Vec<AreaExtent>| {
            journal.iter().all(|e| e.home.0.checked_add(e.blocks.into()).is_some_and(|end| end <= blocks))
        };
        let Some(journal) = journal.filter(fits) else {
            return if replaced { Ok(Left::Replaced) } else { foreign("no journal is found") };
        };
        let layout = Layout {
            start,
            uuid: record.fs_uuid,
            blocks,
            room_blocks: blocks,
            bitmaps: None,
            journal,
            watched: Vec::new(),
        };
        let is_sound = sound.is_some_and(|sound| sound.journal == layout.journal);
        let why = match here.map(|v| &v.phase) {
            Some(Phase::Passthrough { why }) => why.clone(),
            _ => "it is not where it was".to_owned(),
        };
        let block = match layout.home_of(AreaBlock(0)) {
            Some(home) => self.below.read_block(home.sector(start))?,
            None => [0; BLOCK_BYTES],
        };
        let own = match (record.stamped, JournalSuperblock::parse(&block)) {
            (true, _) => self.stamp(id).is_in(&block),
            (false, Ok(journal)) => {
                let seen = self.arena.seen(id, Seen::Journal);
                (journal.uuid() == record.fs_uuid || journal.is_v1())
                    && seen.is_none_or(|seen| seen == crc32c::crc32c(&block))
            }
            (false, Err(_)) => false,
        };
        match own {
            true if is_sound => Ok(Left::Sound),
            true => Ok(Left::Unsound(Box::new(layout), why)),
            // In the middle of making another file system.
            false if replaced => Ok(Left::Replaced),
            false => foreign("the journal's superblock is not the one that was written last"),
        }
    }

    /// Remembers where a journal lies, for a daemon that finds nothing there that says it. There must be memory for it, as for
    /// its superblock.
    ///
    /// # Errors
    /// As [`crate::arena::Arena::store`].
    pub(super) fn remember_journal(&mut self, id: VolumeId, layout: &Layout) -> Result<(), JournalError> {
        let mut blocks: Vec<Block> = Vec::new();
        for extents in layout.journal.chunks(EXTENTS) {
            let mut block = [0; BLOCK_BYTES];
            for (extent, bytes) in extents.iter().zip(block.chunks_exact_mut(EXTENT_BYTES)) {
                bytes[..8].copy_from_slice(&extent.home.0.to_le_bytes());
                bytes[8..12].copy_from_slice(&extent.blocks.to_le_bytes());
            }
            blocks.push(block);
        }
        // The last one last: only all of them say anything.
        for (n, block) in (0..).zip(&blocks) {
            self.arena.store(id, AreaBlock(EXTENTS_AT.0 + n), &mut |slot| slot.copy_from_slice(block))?;
        }
        Ok(())
    }

    /// See [`Retainer::remember_journal`]. `None`: an earlier version did not.
    fn remembered_journal(&self, id: VolumeId) -> Option<Vec<AreaExtent>> {
        let mut extents = Vec::new();
        let mut at = AreaBlock(0);
        let blocks = (EXTENTS_AT.0..u32::MAX).map_while(|n| self.arena.get(id, AreaBlock(n)));
        for bytes in blocks.flat_map(|block| block.chunks_exact(EXTENT_BYTES)) {
            let (home, blocks) = bytes.split_at(8);
            let home = FsBlock(u64::from_le_bytes(home.try_into().ok()?));
            let blocks = u32::from_le_bytes(blocks.try_into().ok()?);
            if blocks == 0 {
                break;
            }
            extents.push(AreaExtent { at, home, blocks });
            at = AreaBlock(at.0.checked_add(blocks)?);
        }
        (!extents.is_empty()).then_some(extents)
    }

    /// Goes on with every file system that the arena remembers, or gives its journal back to the guest, or says why
    /// neither is right.
    pub(super) fn take_over(&mut self) -> Result<(), JournalError> {
        let mut unsound = false;
        for (id, record) in self.arena.volumes() {
            // Begun, and killed before the superblock was there: no guest was told.
            let begun = record.absorbing && self.arena.get(id, AreaBlock(0)).is_some();
            let left = match self.left(id, &record) {
                _ if !begun => Left::Replaced,
                Ok(Left::Unsound(..)) if self.mutated(Mutation::DropUnsound) => Left::Replaced,
                Err(JournalError::Foreign(why)) if self.options.accept_loss => {
                    tracing::warn!(why, "--accept-loss: what was retained is given up");
                    Left::Replaced
                }
                left => left?,
            };
            if let Left::Replaced = left {
                self.abandon(id);
                continue;
            }
            let Some(superblock) = self.arena.get(id, AreaBlock(0)).map(JournalSuperblock::parse) else {
                continue;
            };
            let superblock = superblock?;
            let v = self.volume_at(Sector(record.start_sector));
            let doubt = match left {
                Left::Unsound(layout, why) => {
                    self.volumes[v].phase = Phase::Armed { layout: *layout, why: why.clone() };
                    Some(why)
                }
                _ => None,
            };
            unsound |= doubt.is_some();
            self.resume(v, superblock, record, doubt)?;
        }
        if unsound {
            self.look()?;
        }
        Ok(())
    }

    fn abandon(&mut self, id: VolumeId) {
        if self.arena.blocks_held(id) > 0 {
            tracing::warn!(
                volume = id.0,
                "what was retained belongs to a file system that is no longer there: dropped"
            );
        }
        self.arena.clear_volume(id);
    }
}
