//! A retained journal's own place on the disk: its superblock there says that it is empty, or the log stands there whole.

use super::known::{set_stamped, Stamp};
use super::layout::superblock::JournalSuperblock;
use super::volume::Volume;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Tid};
use crate::mutation::Mutation;
use crate::versions::arena::Seen;
use crate::versions::Versions;
use afterimage_block::BlockError;

impl Volume {
    /// Makes the journal on the disk say, durably, that it is empty, and whose it is.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn mark_empty(
        &mut self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
        sequence: Tid,
    ) -> Result<(), BlockError> {
        let Some(sector) = self.sector_of(AreaBlock(0)) else { return Ok(()) };
        let mut block = *superblock.with_tail(sequence, None).bytes();
        Stamp::of(&versions.arena, self.id).put(&mut block);
        versions.arena.set_seen(self.id, Seen::Journal, None);
        versions.below.write(sector, &block)?;
        versions.below.sync()?;
        set_stamped(&mut versions.arena, self.id, true);
        if let Some(log) = self.log_mut() {
            log.disk_sequence = sequence;
            log.on_disk = false;
        }
        Ok(())
    }

    /// Writes the journal superblock that a reader of the disk alone is to find, durably: it bears no stamp.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn write_unstamped(
        &self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
    ) -> Result<(), BlockError> {
        let Some(sector) = self.sector_of(AreaBlock(0)) else { return Ok(()) };
        set_stamped(&mut versions.arena, self.id, false);
        versions.below.write(sector, superblock.bytes())?;
        versions.below.sync()?;
        let seen = crc32c::crc32c(superblock.bytes());
        versions.arena.set_seen(self.id, Seen::Journal, Some(seen));
        Ok(())
    }

    /// Makes the superblock on the disk, which says that the journal is empty, younger than every transaction here: blocks of the log
    /// that stand there mean nothing to whoever finds them after a power cut.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn disown(&mut self, versions: &mut Versions) -> Result<(), JournalError> {
        let Some(log) = self.log() else { return Ok(()) };
        let next = log.head.0.next();
        if !log.on_disk && next.is_after(log.disk_sequence) && !versions.mistake.is(Mutation::SkipDisown) {
            let superblock = log.superblock.clone();
            self.mark_empty(versions, &superblock, next)?;
        }
        Ok(())
    }

    /// Every block of an absorbed journal but its superblock goes to its own place on the disk, durably. Until a superblock says that
    /// they are there, the one on the disk has a sequence that none of them can have. `passed`: so do empty transactions, for those that
    /// the guest alone believes in.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn put_in_place(&mut self, versions: &mut Versions, passed: bool) -> Result<(), JournalError> {
        self.disown(versions)?;
        versions.write_places(self.id, |at| at != AreaBlock(0))?;
        if let Some(log) = self.log().filter(|_| passed) {
            log.write_passed(versions, self.id)?;
        }
        Ok(versions.below.sync()?)
    }

    /// The log and the served superblock to the journal's place.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn complete(&mut self, versions: &mut Versions) -> Result<(), JournalError> {
        let Some(log) = self.log() else { return Ok(()) };
        let superblock = log.served(versions.mistake);
        self.put_in_place(versions, true)?;
        self.write_unstamped(versions, &superblock)?;
        if let Some(log) = self.log_mut() {
            log.on_disk = true;
        }
        Ok(())
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
