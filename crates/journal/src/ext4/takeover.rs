//! Going on where an earlier daemon stopped.

use afterimage_block::Sector;

use super::known::{left, Left};
use super::layout::superblock::JournalSuperblock;
use super::superblock_write::new_log;
use super::volume::Phase;
use super::FileSystems;
use crate::error::JournalError;
use crate::ids::{AreaBlock, FsBlock};
use crate::mutation::Mutation;
use crate::versions::arena::{VolumeId, VolumeRecord};
use crate::versions::VersionState;

impl FileSystems {
    /// Goes on with every file system that the arena remembers, or gives its journal back to the guest, or says why
    /// neither is right.
    pub(super) fn take_over(&mut self) -> Result<(), JournalError> {
        let mut unsound = false;
        for (id, record) in self.versions.arena.volumes() {
            // Begun, and killed before the superblock was there: no guest was told.
            let begun = record.absorbing && self.versions.arena.get(id, AreaBlock(0)).is_some();
            let here = self.volumes.iter().find(|v| v.id == id && v.start.0 == record.start_sector);
            let left = match left(&mut self.versions, self.disk_sectors, here, id, &record) {
                _ if !begun => Left::Replaced,
                Ok(Left::Unsound(..)) if self.versions.mistake.is(Mutation::DropUnsound) => Left::Replaced,
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

    fn abandon(&mut self, id: VolumeId) {
        if self.versions.arena.blocks_held(id) > 0 {
            tracing::warn!(
                volume = id.0,
                "what was retained belongs to a file system that is no longer there: dropped"
            );
        }
        self.versions.arena.clear_volume(id);
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
