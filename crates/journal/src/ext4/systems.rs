//! One disk's ext4 file systems: opened, looked at, read.

use std::sync::Arc;

use afterimage_block::{BlockError, Buffers, Disk, Sector, SECTOR_BYTES};
use afterimage_order::HomeWriter;

use super::known::{left, Left};
use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::ranges::Ranges;
use super::report::file_system;
use super::retained::Stop;
use super::volume::{Phase, Volume};
use super::volumes::Volumes;
use crate::error::JournalError;
use crate::ids::{AreaBlock, FsBlock, Tid};
use crate::mutation::{Mistake, Mutation};
use crate::status::DiskStatus;
use crate::versions::arena::{Arena, VolumeId, VolumeRecord};
use crate::versions::Versions;

/// The most memory that one disk takes besides what `--retain-max` holds, in bytes: what is known of versions whose content is
/// not held, of blocks that are served from home, and of a transaction while it is read, however large the guest makes it.
pub const DISK_BYTES_MAX: usize = 92 << 20;

/// How a disk's journals are retained.
#[derive(Clone, Default)]
pub struct Options {
    /// What the disk is called in log lines.
    pub name: String,
    /// Brings versions home. Where it makes a transaction's home writes one atomic part of the disk's history (`power-window`), each
    /// transaction goes home at once; where it does not, versions wait for the guest's own home writes (`guest-crash`, the paper's
    /// setting). `None`: a lane of the disk.
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
            .field("name", &self.name)
            .field("home", &self.home.is_some())
            .field("drop_journal", &self.drop_journal)
            .field("accept_loss", &self.accept_loss)
            .field("vflush_at_truncation", &self.vflush_at_truncation)
            .finish()
    }
}

/// See [`crate::ext4`].
pub struct FileSystems {
    pub(super) volumes: Volumes,
    pub(super) versions: Versions,
    pub(super) options: Options,
    /// That the arena's tmpfs is full was said.
    pub(super) told_no_memory: bool,
    /// Where the last write ended.
    pub(super) last_end: Sector,
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
        for v in 0..opened.volumes.list.len() {
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
            volumes: Volumes::new(disk.geometry().sectors),
            versions: Versions::new(&options.name, disk, arena, options.home.clone(), mistake)?,
            options,
            told_no_memory: false,
            last_end: Sector(0),
        };
        opened.volumes.look(&mut opened.versions)?;
        opened.take_over()?;
        Ok(opened)
    }

    /// Goes on with every file system that the arena remembers, or gives its journal back to the guest, or says why
    /// neither is right.
    fn take_over(&mut self) -> Result<(), JournalError> {
        let mut unsound = false;
        let remembered: Vec<_> = self.versions.arena.records.iter().collect();
        for (id, record) in remembered {
            let Self { volumes, versions, options, .. } = self;
            // Begun, and killed before the superblock was there: no guest was told.
            let begun = record.absorbing && versions.arena.get(id, AreaBlock(0)).is_some();
            let here = volumes.list.iter().find(|v| v.id == id && v.start.0 == record.start_sector);
            let left = match left(versions, volumes.survey.disk_sectors, here, id, &record) {
                _ if !begun => Left::Replaced,
                Ok(Left::Unsound(..)) if versions.mistake.is(Mutation::DropUnsound) => Left::Replaced,
                Err(JournalError::Foreign(why)) if options.accept_loss => {
                    tracing::warn!(why, "--accept-loss: what was retained is given up");
                    Left::Replaced
                }
                left => left?,
            };
            if let Left::Replaced = left {
                abandon(versions, id);
                continue;
            }
            let Some(superblock) = versions.arena.get(id, AreaBlock(0)).map(JournalSuperblock::parse) else {
                continue;
            };
            let superblock = superblock?;
            let v = volumes.at(versions, Sector(record.start_sector));
            let doubt = match left {
                Left::Unsound(layout, why) => {
                    volumes.list[v].phase = Phase::Armed { layout, why: why.clone() };
                    Some(why)
                }
                _ => None,
            };
            unsound |= doubt.is_some();
            self.resume(v, superblock, record, doubt)?;
            self.sets_home()?;
        }
        if unsound {
            self.volumes.look(&mut self.versions)?;
        }
        Ok(())
    }

    /// Goes on where an earlier daemon stopped. `doubt`: why it is handed back to the guest all the same.
    fn resume(
        &mut self,
        v: usize,
        superblock: JournalSuperblock,
        record: VolumeRecord,
        doubt: Option<String>,
    ) -> Result<(), JournalError> {
        let Self { volumes, versions, .. } = self;
        let resumed = volumes.list[v].resume(versions, superblock, record);
        volumes.stopped(v, versions, resumed)?;
        if let Some(why) = doubt {
            return volumes.leave(v, versions, &why, true);
        }
        let (at, length) = volumes.list[v].superblock_range();
        volumes.note_superblocks(versions, at, length);
        let held = volumes.with(v, versions, |retained, versions| {
            if versions.applies() {
                // Both may come again, in the other order.
                if record.commit_waits {
                    return Err(Stop::hand_back(
                        "what is older than its next transaction may be on its way home",
                    ));
                }
                retained.reapply(versions)?;
            }
            retained.log.set_commit_waits(versions, false);
            Ok(retained.log.transactions.len())
        })?;
        // Or it was handed back, which is said there.
        if let Some(transactions) = held {
            let start_sector = record.start_sector;
            let disk = versions.lines.name();
            tracing::info!(disk, start_sector, transactions, "went on with a retained journal");
        }
        volumes.changed();
        Ok(())
    }

    /// Says what failed at a guest's request, who may ask again for ever.
    pub fn tell(&self, error: &JournalError, what: &str) {
        if self.versions.lines.may() {
            tracing::error!(disk = self.versions.lines.name(), %error, "{what}");
        }
    }

    /// What is retained, of other clients too.
    pub fn versions(&mut self) -> &mut Versions {
        &mut self.versions
    }

    /// Changes with [`FileSystems::ranges`].
    pub fn version(&self) -> u64 {
        self.volumes.version
    }

    /// What cannot simply be handed through now.
    pub fn ranges(&self) -> Ranges {
        self.volumes.ranges()
    }

    /// The superblock of a journal that waits for a mount is read, as a mount reads it first.
    pub fn superblock_read(&mut self, sector: Sector, sectors: u64) {
        for volume in &mut self.volumes.list {
            volume.superblock_read |= volume.superblock_lies_in(sector, sectors);
        }
    }

    /// Serves the parts of a read that lie in absorbed journals; says what is left.
    ///
    /// # Errors
    /// What is served from home cannot be read. What is below is read by whoever asks.
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
            let Some((v, block, start)) = self.volumes.areas.at(Sector(at)) else {
                let next = self.volumes.areas.next(Sector(at)).min(end);
                parts.push(ReadPart::Below { sector: Sector(at), sectors: next - at });
                at = next;
                continue;
            };
            let piece_end = (start.0 + 8).min(end);
            let from = ((at - start.0) * SECTOR_BYTES) as usize;
            let len = ((piece_end - at) * SECTOR_BYTES) as usize;
            let offset = ((at - sector.0) * SECTOR_BYTES) as usize;
            let mut content = None;
            if let Some(retained) = self.volumes.retained_mut(v) {
                if block == AreaBlock(0) {
                    retained.log.set_superblock_read(&mut self.versions, true);
                }
                content = retained.content(&mut self.versions, block)?;
            }
            match content {
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

    /// How many file systems have that UUID, and where blocks of one lie on the disk that are all its journal's, and not the journal's
    /// superblock.
    pub fn journal_sector(&self, uuid: [u8; 16], block: FsBlock, blocks: u32) -> (usize, Option<Sector>) {
        let (mut systems, mut sector) = (0, None);
        for volume in self.named(uuid) {
            systems += 1;
            let first = volume.layout().and_then(|layout| layout.area_run(block, blocks));
            sector =
                first.filter(|first| *first > AreaBlock(0)).map(|_| block.sector(volume.start)).or(sector);
        }
        (systems, sector)
    }

    /// How many file systems have that UUID, and where the journal of one lies that is retained, or will be.
    pub fn journal_layout(&self, uuid: [u8; 16]) -> (usize, Option<Arc<Layout>>) {
        (self.named(uuid).count(), self.named(uuid).find_map(|volume| volume.layout()).map(Arc::clone))
    }

    /// How many file systems have that UUID, and which transaction is expected next in the journal of one that is retained: all before it are
    /// committed.
    pub fn expected(&self, uuid: [u8; 16]) -> (usize, Option<Tid>) {
        let retained = self.named(uuid).find_map(|volume| volume.retained());
        (self.named(uuid).count(), retained.map(|retained| retained.log.head.0))
    }

    fn named(&self, uuid: [u8; 16]) -> impl Iterator<Item = &Volume> {
        self.volumes.list.iter().filter(move |volume| volume.uuid == Some(uuid))
    }

    /// A snapshot.
    pub fn status(&self) -> DiskStatus {
        DiskStatus {
            file_systems: self.volumes.list.iter().map(|v| file_system(v, &self.versions)).collect(),
            arena_used_bytes: self.versions.arena.used_bytes(),
            arena_resident_bytes: self.versions.arena.resident_bytes(),
            arena_bytes_max: self.versions.arena.bytes_max(),
        }
    }

    /// The guest flushes, and what it wrote before made no sense.
    ///
    /// # Errors
    /// The disk cannot be read, or what was retained for a file system that is gone cannot be written through.
    pub fn flushes(&mut self) -> Result<(), JournalError> {
        if self.volumes.survey.look_at_flush {
            self.volumes.look(&mut self.versions)?;
        }
        Ok(())
    }
}

/// What was retained belongs to a file system that is no longer there.
fn abandon(versions: &mut Versions, id: VolumeId) {
    if versions.arena.blocks_held(id) > 0 {
        tracing::warn!(
            disk = versions.lines.name(),
            volume = id.0,
            "what was retained belongs to a file system that is no longer there: dropped"
        );
    }
    versions.arena.clear_volume(id);
}
