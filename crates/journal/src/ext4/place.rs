//! A retained journal's own place on the disk: its superblock there says that it is empty, or the log stands there whole.

use std::sync::Arc;

use afterimage_block::BlockError;

use super::followed::Log;
use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::stamp::{set_stamped, Stamp};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, Tid};
use crate::mutation::Mutation;
use crate::versions::arena::{Seen, VolumeId, VolumeRecord};
use crate::versions::{Places, Room, Versions, BATCH_BLOCKS};

/// What stands there.
#[derive(Debug)]
pub(super) struct Place {
    id: VolumeId,
    pub(super) layout: Arc<Layout>,
    /// `s_sequence` of the superblock on the disk below, whose `s_start` is 0.
    disk_sequence: Tid,
    /// The disk below holds the log as well, as the served superblock has it, and says so: before anything more is
    /// absorbed it must say again that it is empty.
    pub(super) on_disk: bool,
    /// Blocks of the log may stand here instead of in the arena.
    pub(super) spilled: bool,
}

impl Place {
    pub(super) fn new(id: VolumeId, layout: Arc<Layout>, disk_sequence: Tid) -> Self {
        Self { id, layout, disk_sequence, on_disk: false, spilled: false }
    }

    /// What its versions may take of the disk.
    pub(super) fn room(&self) -> Room {
        let (start, blocks) = (self.layout.start, self.layout.room_blocks);
        Room { start, blocks, places: Arc::clone(&self.layout) as Arc<_> }
    }

    /// Makes the journal on the disk say, durably, that it is empty, and whose it is.
    pub(super) fn mark_empty(
        &mut self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
        sequence: Tid,
    ) -> Result<(), BlockError> {
        let stamp = Stamp::of(versions, self.id);
        self.write_stamped(versions, &superblock.with_tail(sequence, None), stamp)?;
        self.disk_sequence = sequence;
        self.on_disk = false;
        Ok(())
    }

    /// As [`Place::write_unstamped`], where nothing is retained and the log may be elsewhere: the stamp tells the next daemon.
    pub(super) fn write_unproven(
        &self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
    ) -> Result<(), BlockError> {
        let stamp = Stamp { durable: true, ..Stamp::of(versions, self.id) };
        self.write_stamped(versions, superblock, stamp)
    }

    fn write_stamped(
        &self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
        stamp: Stamp,
    ) -> Result<(), BlockError> {
        let Some(sector) = self.layout.sector_of(AreaBlock(0)) else { return Ok(()) };
        let mut block = *superblock.bytes();
        stamp.put(&mut block);
        versions.arena.records.set_seen(self.id, Seen::Journal, None);
        versions.below.write(sector, &block)?;
        versions.below.sync()?;
        set_stamped(&mut versions.arena, self.id, true);
        Ok(())
    }

    /// The stamp there says which contract is in force: an earlier daemon's may have been another one.
    pub(super) fn stamp_again(&self, versions: &mut Versions) -> Result<(), BlockError> {
        let Some(sector) = self.layout.sector_of(AreaBlock(0)) else { return Ok(()) };
        let mut block = versions.below.read_block(sector)?;
        let stamp = Stamp::of(versions, self.id);
        if stamp.is_in(&block) && Stamp::read(&block) != Some(stamp) {
            stamp.put(&mut block);
            versions.below.write(sector, &block)?;
            versions.below.sync()?;
        }
        Ok(())
    }

    /// Writes the journal superblock that a reader of the disk alone is to find, durably: it bears no stamp.
    pub(super) fn write_unstamped(
        &self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
    ) -> Result<(), BlockError> {
        let Some(sector) = self.layout.sector_of(AreaBlock(0)) else { return Ok(()) };
        set_stamped(&mut versions.arena, self.id, false);
        versions.below.write(sector, superblock.bytes())?;
        versions.below.sync()?;
        let seen = crc32c::crc32c(superblock.bytes());
        versions.arena.records.set_seen(self.id, Seen::Journal, Some(seen));
        Ok(())
    }

    /// Makes the superblock on the disk, which says that the journal is empty, younger than every transaction here: blocks of the log
    /// that stand there mean nothing to whoever finds them after a power cut.
    fn disown(&mut self, versions: &mut Versions, log: &Log) -> Result<(), JournalError> {
        let next = log.head.0.next();
        if !self.on_disk && next.is_after(self.disk_sequence) && !versions.mistake.is(Mutation::SkipDisown) {
            self.mark_empty(versions, &log.superblock, next)?;
        }
        Ok(())
    }

    /// Every block of an absorbed journal but its superblock goes to its own place on the disk, durably. Until a superblock says that
    /// they are there, the one on the disk has a sequence that none of them can have.
    pub(super) fn put_log(&mut self, versions: &mut Versions, log: &Log) -> Result<(), JournalError> {
        self.disown(versions, log)?;
        versions.evict_served(self.id)?;
        versions.write_places(self.id, |at| at != AreaBlock(0))?;
        Ok(versions.below.sync()?)
    }

    /// The log and the served superblock to the journal's place.
    pub(super) fn complete(&mut self, versions: &mut Versions, log: &Log) -> Result<(), JournalError> {
        let superblock = log.served();
        self.put_log(versions, log)?;
        self.write_unstamped(versions, &superblock)?;
        self.on_disk = true;
        Ok(())
    }

    /// Before blocks are served from home: where they are saved to their own place, that is theirs no more for whoever finds them there.
    pub(super) fn serve_from_home(&mut self, versions: &mut Versions, log: &Log) -> Result<(), JournalError> {
        self.disown(versions, log)?;
        let record = versions.arena.records.get(self.id).unwrap_or_default();
        versions.arena.records.set(self.id, VolumeRecord { from_home: true, ..record });
        Ok(())
    }

    /// Sends blocks to their own place on the disk and forgets them here.
    pub(super) fn evict(
        &mut self,
        versions: &mut Versions,
        log: &Log,
        blocks: &[(AreaBlock, Block)],
    ) -> Result<(), JournalError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.disown(versions, log)?;
        versions.evict(self.id, blocks)?;
        self.spilled = true;
        Ok(())
    }

    /// Sends all that is here but the superblock to its own place on the disk.
    pub(super) fn evict_idle(&mut self, versions: &mut Versions, log: &Log) -> Result<(), JournalError> {
        let mut idle = versions.arena.blocks(self.id);
        idle.retain(|at| *at != AreaBlock(0) && self.layout.sector_of(*at).is_some());
        idle.sort_unstable();
        self.evict_all(versions, log, idle)
    }

    /// As [`Place::evict`], of those blocks that are here.
    pub(super) fn evict_all(
        &mut self,
        versions: &mut Versions,
        log: &Log,
        places: Vec<AreaBlock>,
    ) -> Result<(), JournalError> {
        for places in places.chunks(BATCH_BLOCKS) {
            let blocks: Vec<(AreaBlock, Block)> =
                places.iter().filter_map(|at| Some((*at, *versions.arena.get(self.id, *at)?))).collect();
            self.evict(versions, log, &blocks)?;
        }
        Ok(())
    }
}
