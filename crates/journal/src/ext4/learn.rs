//! Learning what is on the disk, at the beginning and whenever the guest changes what that rests on.

use std::sync::Arc;

use afterimage_block::{BlockError, Buffers, Sector, SECTOR_BYTES};

use super::layout::superblock::JournalSuperblock;
use super::layout::{self, Found, Layout, Source};
use super::volume::{byte_of, LeftJournal, Phase, Position, Volume};
use super::FileSystems;
use crate::error::JournalError;
use crate::ids::{AreaBlock, BLOCK_SECTORS};
use crate::versions::arena::VOLUMES_MAX;
use crate::versions::{Below, Places};

/// Sectors in which the first partition table stands: the MBR, GPT's header and its entries.
pub(super) const TABLE_SECTORS: u64 = 34;

/// Why a file system that could be retained is not yet.
const WAITING: &str = "waiting for the next mount";
/// Why one that was there is passed through.
const GONE: &str = "it is no longer there";

impl FileSystems {
    /// Looks at the whole disk and brings what is known in step with it.
    ///
    /// # Errors
    /// The disk cannot be read, or what was retained for a file system that is gone cannot be written through.
    pub(super) fn look(&mut self) -> Result<(), JournalError> {
        let mut found = layout::find(&mut self.versions.below, self.disk_sectors)?;
        bound_rooms(&mut found);
        self.places = layout::places(&mut self.versions.below, self.disk_sectors)?;
        self.look_at_flush = false;
        let mut table = vec![0; (TABLE_SECTORS.min(self.disk_sectors) * SECTOR_BYTES) as usize];
        self.versions.below.read(Sector(0), &mut table)?;
        self.table = table;
        let starts: Vec<Sector> = found
            .iter()
            .map(|f| match f {
                Found::FileSystem(layout) => layout.start,
                Found::Passthrough { start, .. } => *start,
            })
            .collect();
        for v in (0..self.volumes.len()).rev() {
            if !starts.contains(&self.volumes[v].start) {
                self.leave(v, GONE, true)?;
                // Its guest may go on with the journal, and its place be found again.
                match self.left_journal(v, None)? {
                    Some(left) if self.volumes.len() <= VOLUMES_MAX => {
                        self.pass_through(v, None, GONE, Some(left))
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
                    let left = if uuid.is_some() { self.left_journal(v, journal)? } else { None };
                    self.pass_through(v, uuid, &why, left);
                }
            }
        }
        self.changed();
        Ok(())
    }

    /// Nothing is retained at that place. `left`: the journal that its guest may go on with, and the tail there.
    fn pass_through(
        &mut self,
        v: usize,
        uuid: Option<[u8; 16]>,
        why: &str,
        left: Option<(LeftJournal, Position)>,
    ) {
        let volume = &mut self.volumes[v];
        if !matches!(&volume.phase, Phase::Passthrough { why: before } if before == why) {
            tracing::info!(start_sector = volume.start.0, why, "a file system's journal is passed through");
        }
        volume.clamp = left.map(|(_, tail)| tail);
        volume.left = left.map(|(left, _)| left);
        volume.uuid = uuid;
        volume.phase = Phase::Passthrough { why: why.to_owned() };
    }

    /// Looks again because of what a guest wrote. A whole mkfs may be under way, its superblock first: where that makes
    /// no sense yet, the flush that ends it is another occasion.
    ///
    /// # Errors
    /// As [`FileSystems::look`].
    pub(super) fn look_after_write(&mut self) -> Result<(), JournalError> {
        self.look()?;
        let unsound = |v: &Volume| matches!(v.phase, Phase::Passthrough { .. }) && v.uuid.is_some();
        self.look_at_flush = self.volumes.iter().any(unsound);
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
        if self.look_at_flush {
            self.look()?;
        }
        Ok(())
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

    fn found(&mut self, layout: Arc<Layout>) -> Result<(), JournalError> {
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
        // While nothing was understood here, the journal may have become another one.
        let known = matches!(self.volumes[v].phase, Phase::Armed { .. });
        let clamp = match known && self.volumes[v].uuid == Some(layout.uuid) {
            true => self.volumes[v].clamp,
            false => self.tail_on_disk(&layout)?,
        };
        let volume = &mut self.volumes[v];
        let why = match (&volume.phase, clamp) {
            (Phase::Armed { why, .. }, _) if volume.uuid == Some(layout.uuid) => why.clone(),
            (_, Some(_)) => "its journal is not empty: retention begins at the next mount".to_owned(),
            _ => WAITING.to_owned(),
        };
        volume.uuid = Some(layout.uuid);
        volume.clamp = clamp;
        volume.left = None;
        volume.phase = Phase::Armed { layout, why };
        Ok(())
    }

    /// The journal that was known here, or is found, and still stands on the disk with a log in it, though nothing else may be understood
    /// any more, and the tail there: what came before that is gone. Its guest may go on with it.
    fn left_journal(
        &mut self,
        v: usize,
        found: Option<Sector>,
    ) -> Result<Option<(LeftJournal, Position)>, JournalError> {
        let volume = &self.volumes[v];
        let known = volume.sector_of(AreaBlock(0)).map(|at| (at, None));
        let left = volume.left.map(|left| (left.at, Some(left.uuid)));
        // After a daemon's death only the disk tells.
        let Some((at, uuid)) = known.or(left).or(found.map(|at| (at, None))) else { return Ok(None) };
        let Ok(superblock) = JournalSuperblock::parse(&self.versions.below.read_block(at)?) else {
            return Ok(None);
        };
        let same = uuid.is_none_or(|uuid| uuid == superblock.uuid());
        let left = LeftJournal { at, uuid: superblock.uuid() };
        Ok(superblock.start().filter(|_| same).map(|start| (left, (superblock.sequence(), start))))
    }

    /// The tail that the superblock on the disk names: an earlier daemon may have released what came before it.
    fn tail_on_disk(&mut self, layout: &Layout) -> Result<Option<Position>, JournalError> {
        let Some(sector) = layout.sector_of(AreaBlock(0)) else { return Ok(None) };
        let block = self.versions.below.read_block(sector)?;
        let superblock = JournalSuperblock::parse(&block).ok();
        Ok(superblock.and_then(|s| Some((s.sequence(), s.start()?))))
    }

    /// Whether a range holds anything that [`FileSystems::rests_on`] compares.
    pub(super) fn watches(&self, sector: Sector, sectors: u64) -> bool {
        let (from, to) = (sector.0 * SECTOR_BYTES, (sector.0 + sectors) * SECTOR_BYTES);
        let overlaps = |at: u64, len: usize| at < to && from < at + len as u64;
        let layouts = || self.volumes.iter().filter_map(|v| v.layout());
        overlaps(0, self.table.len())
            || layouts().any(|layout| {
                let start = layout.start;
                layout.watched.iter().any(|w| overlaps(byte_of(start, w.block, w.offset), w.bytes.len()))
            })
    }

    /// Whether something that the layouts rest on changes with a write (`None`: with zeroes). Where an absorbed file
    /// system is touched, nothing of it goes home until the write has completed and was looked at.
    pub(super) fn rests_on(&mut self, sector: Sector, sectors: u64, buffers: Option<&Buffers>) -> bool {
        let (from, to) = (sector.0 * SECTOR_BYTES, (sector.0 + sectors) * SECTOR_BYTES);
        let changes = |at: u64, known: &[u8], mask: Option<&[u8]>| {
            let (low, high) = (at.max(from), (at + known.len() as u64).min(to));
            if low >= high {
                return false;
            }
            let Some(buffers) = buffers else { return true };
            let part = (low - at) as usize..(high - at) as usize;
            let mut written = vec![0; part.len()];
            buffers.copy_to((low - from) as usize, &mut written);
            let bits = |i: usize| mask.map_or(0xff, |m| m[i]);
            part.zip(written).any(|(i, byte)| (byte ^ known[i]) & bits(i) != 0)
        };
        // A file system without partitions keeps its superblock and first descriptors there: those are watched apart.
        let whole_disk = self.volumes.iter().any(|v| v.start == Sector(0) && v.layout().is_some());
        let table = if whole_disk { &self.table[..self.table.len().min(1024)] } else { &self.table[..] };
        let mut look_again = changes(0, table, None);
        for volume in &mut self.volumes {
            let start = volume.start.0 * SECTOR_BYTES;
            let changed = match volume.layout() {
                Some(layout) => layout
                    .watched
                    .iter()
                    .any(|w| changes(byte_of(layout.start, w.block, w.offset), &w.bytes, Some(&w.mask))),
                // What is there is not known: whatever is written over its superblock may be a file system.
                None => from < start + 2048 && start + 1024 < to,
            };
            if changed {
                look_again = true;
                if let Some(log) = volume.log_mut() {
                    log.suspended = true;
                }
            }
        }
        // Where nothing was recognised yet, somebody may make a file system.
        let blank = |place: &&Sector| !self.volumes.iter().any(|v| v.start == **place);
        let superblock = |place: &Sector| {
            let start = place.0 * SECTOR_BYTES;
            from < start + 2048 && start + 1024 < to
        };
        look_again || self.places.iter().filter(blank).any(superblock)
    }
}

/// A file system may grow as far as the next place where something was found: what lies there is not its own.
fn bound_rooms(found: &mut [Found]) {
    let start = |f: &Found| match f {
        Found::FileSystem(layout) => layout.start,
        Found::Passthrough { start, .. } => *start,
    };
    let mut starts: Vec<Sector> = found.iter().map(start).collect();
    starts.sort_unstable();
    for found in found {
        let Found::FileSystem(layout) = found else { continue };
        let next = starts.partition_point(|s| *s < layout.end());
        if let Some(next) = starts.get(next) {
            layout.room_blocks = layout.room_blocks.min((next.0 - layout.start.0) / BLOCK_SECTORS);
        }
    }
}

impl Source for Below {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        Below::read(self, sector, buf)
    }
}
