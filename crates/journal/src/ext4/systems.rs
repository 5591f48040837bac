//! One disk's ext4 file systems: opened, looked at, read.

use std::sync::Arc;

use afterimage_block::{BlockError, Buffers, Disk, Sector, SECTOR_BYTES};
use afterimage_order::HomeWriter;

use super::layout::{Found, Layout};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, BLOCK_SECTORS};
use crate::mutation::Mistake;
use crate::status::{Classes, DiskStatus};
use crate::versions::arena::{Arena, VolumeId, VOLUMES_MAX};
use crate::versions::Versions;

use super::ranges::{Areas, Ranges};
use super::report::file_system;
use super::survey::Survey;
use super::volume::{Phase, Volume};
use super::way::Way;

/// The most memory that one disk takes besides what `--retain-max` holds, in bytes: what is known of versions whose content is
/// not held, and of a transaction while it is read, however large the guest makes it.
pub const DISK_BYTES_MAX: usize = 80 << 20;

/// How a disk's journals are retained.
#[derive(Clone)]
pub struct Options {
    /// Where a transaction's home writes become one atomic part of the disk's history (`power-window`). Without it
    /// versions wait for the guest's own home writes (`guest-crash`, the paper's setting).
    pub home: Option<Arc<dyn HomeWriter>>,
    /// Journal writes are dropped, not retained: what retention is measured against. Loses data when a guest dies.
    pub drop_journal: bool,
    /// What is retained of a file system that somebody else has changed is given up, not a reason to refuse.
    pub accept_loss: bool,
    /// When the guest moves its journal's tail, everything is made durable first (vDrive's vflush at truncation).
    pub vflush_at_truncation: bool,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("home", &self.home.is_some())
            .field("drop_journal", &self.drop_journal)
            .field("accept_loss", &self.accept_loss)
            .field("vflush_at_truncation", &self.vflush_at_truncation)
            .finish()
    }
}

/// Why one that was there is passed through.
const GONE: &str = "it is no longer there";

/// See [`crate::ext4`].
pub struct FileSystems {
    pub(super) volumes: Vec<Volume>,
    /// Where their absorbed journals lie; follows them in [`FileSystems::changed`].
    pub(super) areas: Areas,
    pub(super) versions: Versions,
    /// Versions on their way home as one set, at most one set a disk.
    pub(super) way: Way,
    pub(super) survey: Survey,
    pub(super) options: Options,
    /// That the arena's tmpfs is full was said.
    pub(super) told_no_memory: bool,
    /// Counts changes of which ranges need a look; lanes keep a copy of [`FileSystems::ranges`].
    pub(super) version: u64,
}

/// A part of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// The buffers are filled.
    Done,
    /// To be read from below.
    Below {
        /// First sector.
        sector: Sector,
        /// How many.
        sectors: u64,
    },
}

impl FileSystems {
    /// Looks at the disk, and goes on with what an earlier daemon left in the arena.
    ///
    /// # Errors
    /// The disk below cannot be read or written.
    pub fn open(
        disk: &dyn Disk,
        arena: Arena,
        options: Options,
        mistake: Mistake,
    ) -> Result<Self, JournalError> {
        let mut opened = Self::open_unsettled(disk, arena, options, mistake)?;
        opened.all_home()?;
        for v in 0..opened.volumes.len() {
            opened.settle(v)?;
        }
        Ok(opened)
    }

    /// As [`FileSystems::open`], but nothing goes home yet: for saying what is retained.
    ///
    /// # Errors
    /// The disk below cannot be read.
    pub fn open_unsettled(
        disk: &dyn Disk,
        arena: Arena,
        options: Options,
        mistake: Mistake,
    ) -> Result<Self, JournalError> {
        let mut opened = Self {
            volumes: Vec::new(),
            areas: Areas::default(),
            versions: Versions::new(disk, arena, options.home.clone(), mistake)?,
            way: Way::default(),
            options,
            survey: Survey::new(disk.geometry().sectors),
            told_no_memory: false,
            version: 1,
        };
        opened.look()?;
        opened.take_over()?;
        Ok(opened)
    }

    /// Changes with [`FileSystems::ranges`].
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What cannot simply be handed through now.
    pub fn ranges(&self) -> Ranges {
        let mut writes = self.survey.ranges(&self.volumes);
        for volume in &self.volumes {
            writes.push(volume.superblock_range());
            writes.extend(volume.guarded_superblock().map(|at| (at, BLOCK_SECTORS)));
            // While it waits for a mount, too: what is under way then may land behind what is committed after it.
            writes.extend(volume.layout().map(|l| (volume.start, l.room_blocks * BLOCK_SECTORS)));
        }
        Ranges::new(self.areas.ranges(), writes, self.survey.look_at_flush)
    }

    /// Serves the parts of a read that lie in absorbed journals; says what is left.
    pub fn read(
        &mut self,
        sector: Sector,
        sectors: u64,
        buffers: &Buffers,
        parts: &mut Vec<ReadPart>,
    ) -> Result<(), BlockError> {
        let mut at = sector.0;
        let end = sector.0 + sectors;
        while at < end {
            let Some((v, block, start)) = self.areas.at(Sector(at)) else {
                let next = self.areas.next(Sector(at)).min(end);
                parts.push(ReadPart::Below { sector: Sector(at), sectors: next - at });
                at = next;
                continue;
            };
            let piece_end = (start.0 + 8).min(end);
            let from = ((at - start.0) * SECTOR_BYTES) as usize;
            let len = ((piece_end - at) * SECTOR_BYTES) as usize;
            let offset = ((at - sector.0) * SECTOR_BYTES) as usize;
            if block == AreaBlock(0) {
                self.volumes[v].set_being_read(&mut self.versions, true);
            }
            match self.content(v, block) {
                Some(content) => {
                    buffers.copy_from(offset, &content[from..from + len]);
                    parts.push(ReadPart::Done);
                }
                None => match parts.last_mut() {
                    Some(ReadPart::Below { sector: s, sectors: n }) if s.0 + *n == at => *n += piece_end - at,
                    _ => parts.push(ReadPart::Below { sector: Sector(at), sectors: piece_end - at }),
                },
            }
            at = piece_end;
        }
        Ok(())
    }

    /// A journal block as the guest is shown it, where it is not the disk's own.
    pub(super) fn content(&self, v: usize, at: AreaBlock) -> Option<Block> {
        let volume = &self.volumes[v];
        let log = volume.log()?;
        if at == AreaBlock(0) {
            return Some(*log.served(self.versions.mistake).bytes());
        }
        self.versions.arena.get(volume.id, at).copied()
    }

    /// A snapshot.
    pub fn status(&self) -> DiskStatus {
        DiskStatus {
            file_systems: self.volumes.iter().map(|v| file_system(v, &self.versions)).collect(),
            arena_used_bytes: self.versions.arena.used_bytes(),
            arena_resident_bytes: self.versions.arena.resident_bytes(),
            arena_bytes_max: self.versions.arena.bytes_max(),
        }
    }

    /// Looks at the whole disk and brings what is known in step with it.
    ///
    /// # Errors
    /// The disk cannot be read, or what was retained for a file system that is gone cannot be written through.
    pub(super) fn look(&mut self) -> Result<(), JournalError> {
        let found = self.survey.look(&mut self.versions.below)?;
        let starts: Vec<Sector> = found.iter().map(super::survey::start_of).collect();
        for v in (0..self.volumes.len()).rev() {
            if !starts.contains(&self.volumes[v].start) {
                self.leave(v, GONE, true)?;
                // Its guest may go on with the journal, and its place be found again.
                match self.volumes[v].left_journal(&mut self.versions.below, None)? {
                    Some(left) if self.volumes.len() <= VOLUMES_MAX => {
                        self.volumes[v].pass_through(None, GONE, Some(left))
                    }
                    _ => {
                        let gone = self.volumes.remove(v);
                        self.versions.classes.remove(&gone.id);
                    }
                }
                self.changed();
            }
        }
        for found in found {
            match found {
                Found::FileSystem(layout) => self.found(Arc::new(layout))?,
                Found::Passthrough { start, uuid, why, journal } => {
                    let v = self.volume_at(start);
                    self.leave(v, &why, uuid.is_some())?;
                    // A UUID: it still is an ext4, whose guest may go on with the journal.
                    let below = &mut self.versions.below;
                    let volume = &mut self.volumes[v];
                    let left = if uuid.is_some() { volume.left_journal(below, journal)? } else { None };
                    volume.pass_through(uuid, &why, left);
                }
            }
        }
        self.changed();
        Ok(())
    }

    /// Looks again because of what a guest wrote. A whole mkfs may be under way, its superblock first: where that makes
    /// no sense yet, the flush that ends it is another occasion.
    ///
    /// # Errors
    /// As [`FileSystems::look`].
    pub(super) fn look_after_write(&mut self) -> Result<(), JournalError> {
        self.look()?;
        let unsound = |v: &Volume| matches!(v.phase, Phase::Passthrough { .. }) && v.uuid.is_some();
        self.survey.look_at_flush = self.volumes.iter().any(unsound);
        Ok(())
    }

    /// Nothing may go home until what the layouts rest on was looked at, and nothing is in flight that would be an occasion: an
    /// earlier look failed.
    pub(super) fn is_suspended_in_vain(&self) -> bool {
        let suspended = self.volumes.iter().any(|v| v.log().is_some_and(|log| log.suspended));
        suspended && !self.versions.in_flight.iter().any(|w| w.look_again)
    }

    /// See [`FileSystems::is_suspended_in_vain`].
    ///
    /// # Errors
    /// As [`FileSystems::look`].
    pub(super) fn look_if_suspended_in_vain(&mut self) -> Result<(), JournalError> {
        match self.is_suspended_in_vain() {
            true => self.look_after_write(),
            false => Ok(()),
        }
    }

    /// The guest flushes, and what it wrote before made no sense.
    ///
    /// # Errors
    /// As [`FileSystems::look`].
    pub fn flushes(&mut self) -> Result<(), JournalError> {
        if self.survey.look_at_flush {
            self.look()?;
        }
        Ok(())
    }

    pub(super) fn found(&mut self, layout: Arc<Layout>) -> Result<(), JournalError> {
        let v = self.volume_at(layout.start);
        if let Some(log) = self.volumes[v].log_mut() {
            if log.layout.uuid == layout.uuid && log.layout.journal == layout.journal {
                log.geometry.fs_blocks = layout.room_blocks;
                log.layout = layout;
                log.suspended &= self.versions.in_flight.iter().any(|w| w.look_again);
                let room = log.room();
                self.versions.set_room(self.volumes[v].id, room);
                return Ok(());
            }
            self.leave(v, "it became another file system", false)?;
        }
        Ok(self.volumes[v].wait_for_mount(&mut self.versions.below, layout)?)
    }

    /// The volume that begins there, made where there is none.
    pub(super) fn volume_at(&mut self, start: Sector) -> usize {
        if let Some(v) = self.volumes.iter().position(|v| v.start == start) {
            return v;
        }
        let remembered = self.versions.arena.volumes().into_iter().find(|(_, r)| r.start_sector == start.0);
        let id = remembered.map_or_else(|| self.volume_id_free(), |(id, _)| id);
        self.volumes.push(Volume {
            id,
            start,
            uuid: None,
            phase: Phase::Passthrough { why: String::new() },
            clamp: None,
            left: None,
        });
        self.volumes.len() - 1
    }

    /// What has to be looked at is no longer the same.
    pub(super) fn changed(&mut self) {
        self.areas = Areas::of(&self.volumes);
        self.version += 1;
    }

    /// A volume's counters.
    pub(super) fn count(&mut self, v: usize) -> &mut Classes {
        self.versions.count(self.volumes[v].id)
    }

    pub(super) fn volume_id_free(&self) -> VolumeId {
        // Those of the arena that were not found again yet are taken, too.
        let remembered = self.versions.arena.volumes();
        let used =
            |id: u16| self.volumes.iter().any(|v| v.id.0 == id) || remembered.iter().any(|(r, _)| r.0 == id);
        VolumeId((0..u16::MAX).find(|id| !used(*id)).unwrap_or(u16::MAX))
    }
}
