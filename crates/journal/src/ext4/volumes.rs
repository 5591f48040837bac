//! Which file systems are on a disk, and where their journals lie: looked at, at the beginning and whenever a guest changes what that
//! rests on.

use afterimage_block::{BlockError, Sector};

use super::known::superblock_check;
use super::layout::superblock::JournalSuperblock;
use super::layout::{self, Found};
use super::ranges::{Areas, Ranges};
use super::retained::{Retained, Stop};
use super::survey::{start_of, Survey};
use super::volume::{Next, Orphan, Phase, Volume};
use crate::error::JournalError;
use crate::ids::{AreaBlock, BLOCK_SECTORS};
use crate::versions::arena::{Seen, VolumeId, VOLUMES_MAX};
use crate::versions::{Below, Carried, Places, Track, Versions};

/// Why one that was there is passed through.
const GONE: &str = "it is no longer there";

/// See the module.
pub(super) struct Volumes {
    pub(super) list: Vec<Volume>,
    /// Where their absorbed journals lie; follows them in [`Volumes::changed`].
    pub(super) areas: Areas,
    pub(super) survey: Survey,
    /// Counts changes of which ranges need a look; lanes keep a copy of [`Volumes::ranges`].
    pub(super) version: u64,
}

impl Volumes {
    pub(super) fn new(disk_sectors: u64) -> Self {
        let survey = Survey::new(disk_sectors);
        Self { list: Vec::new(), areas: Areas::default(), survey, version: 1 }
    }

    /// What cannot simply be handed through now.
    pub(super) fn ranges(&self) -> Ranges {
        let mut writes = self.survey.ranges(&self.list);
        for volume in &self.list {
            writes.push(volume.superblock_range());
            writes.extend(volume.guarded_superblock().map(|at| (at, BLOCK_SECTORS)));
            // While it waits for a mount, too: what is under way then may land behind what is committed after it.
            writes.extend(volume.layout().map(|l| (volume.start, l.room_blocks * BLOCK_SECTORS)));
        }
        let superblocks = self.list.iter().filter_map(Volume::guarded_superblock);
        let superblocks = superblocks.map(|at| (at, BLOCK_SECTORS)).collect();
        Ranges::new(self.areas.ranges(), writes, superblocks, self.survey.look_at_flush)
    }

    /// What has to be looked at is no longer the same.
    pub(super) fn changed(&mut self) {
        self.areas = Areas::of(&self.list);
        self.version += 1;
    }

    /// A journal that is absorbed.
    pub(super) fn retained_mut(&mut self, v: usize) -> Option<&mut Retained> {
        self.list[v].retained_mut()
    }

    /// Leaves a journal where something went no further for that reason: then there is nothing.
    pub(super) fn stopped<T>(
        &mut self,
        v: usize,
        versions: &mut Versions,
        result: Result<T, Stop>,
    ) -> Result<Option<T>, JournalError> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(Stop::Leave { why, keep }) => self.leave(v, versions, &why, keep).map(|()| None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Does something with a journal, if it is absorbed; see [`Volumes::stopped`].
    pub(super) fn with<T>(
        &mut self,
        v: usize,
        versions: &mut Versions,
        act: impl FnOnce(&mut Retained, &mut Versions) -> Result<T, Stop>,
    ) -> Result<Option<T>, JournalError> {
        let Some(retained) = self.list[v].retained_mut() else { return Ok(None) };
        let result = act(retained, versions);
        self.stopped(v, versions, result)
    }

    /// See [`Volume::leave`].
    ///
    /// # Errors
    /// The disk below failed; nothing was forgotten then.
    pub(super) fn leave(
        &mut self,
        v: usize,
        versions: &mut Versions,
        why: &str,
        keep: bool,
    ) -> Result<(), JournalError> {
        if self.list[v].retained().is_some() {
            self.list[v].leave(versions, why, keep)?;
            self.changed();
        }
        Ok(())
    }

    /// Looks at the whole disk and brings what is known in step with it.
    ///
    /// # Errors
    /// The disk cannot be read, or what was retained for a file system that is gone cannot be written through.
    pub(super) fn look(&mut self, versions: &mut Versions) -> Result<(), JournalError> {
        let looked = self.look_at_all(versions);
        // Also where it failed half way: those behind one that went are elsewhere in the list.
        self.changed();
        looked
    }

    fn look_at_all(&mut self, versions: &mut Versions) -> Result<(), JournalError> {
        let found = self.survey.look(&mut versions.below)?;
        let starts: Vec<Sector> = found.iter().map(start_of).collect();
        for v in (0..self.list.len()).rev() {
            if !starts.contains(&self.list[v].start) {
                // Its guest may go on with the journal, and its place be found again.
                let journal = self.list[v].journal_superblock();
                self.leave(v, versions, GONE, true)?;
                self.pass_through(v, versions, None, GONE, journal)?;
                if self.list[v].left.is_none() || self.list.len() > VOLUMES_MAX {
                    let gone = self.list.remove(v);
                    versions.classes.remove(&gone.id);
                }
            }
        }
        for found in found {
            let v = self.at(versions, start_of(&found));
            let found = self.named(v, versions, found)?;
            let next = self.list[v].next(found);
            self.apply(v, versions, next)?;
        }
        Ok(())
    }

    /// A finding that names no file system says nothing of one that begins there all the same, and whose guest goes on with it: a layer is
    /// recognised by bytes that a file may have, too, and of too many file systems some are not looked at. Where the disk ends before a
    /// block does, none begins.
    fn named(&self, v: usize, versions: &mut Versions, found: Found) -> Result<Found, BlockError> {
        let fits = |start: Sector| start.0 + BLOCK_SECTORS <= self.survey.disk_sectors;
        let known = self.list[v].uuid.filter(|_| fits(self.list[v].start));
        let (Some(known), Found::Passthrough { start, uuid: None, why, journal }) = (known, &found) else {
            return Ok(found);
        };
        let uuid = layout::ext4_uuid(&versions.below.read_block(*start)?).filter(|uuid| *uuid == known);
        Ok(Found::Passthrough { start: *start, uuid, why: why.clone(), journal: *journal })
    }

    /// Looks again because of what a guest wrote. A whole mkfs may be under way, its superblock first: where that makes
    /// no sense yet, the flush that ends it is another occasion.
    ///
    /// # Errors
    /// As [`Volumes::look`].
    pub(super) fn look_after_write(&mut self, versions: &mut Versions) -> Result<(), JournalError> {
        self.look(versions)?;
        let unsound = |v: &Volume| matches!(v.phase, Phase::Passthrough { .. }) && v.uuid.is_some();
        self.survey.look_at_flush = self.list.iter().any(unsound);
        Ok(())
    }

    /// Nothing may go home until what the layouts rest on was looked at, and nothing is in flight that would be an occasion: an
    /// earlier look failed.
    pub(super) fn is_suspended_in_vain(&self, versions: &Versions) -> bool {
        let suspended = self.list.iter().any(|v| v.retained().is_some_and(|retained| retained.suspended));
        suspended && !versions.in_flight.iter().any(|w| w.look_again)
    }

    /// Brings what is known of a place in step with what was found there.
    fn apply(&mut self, v: usize, versions: &mut Versions, next: Next) -> Result<(), JournalError> {
        match next {
            Next::Same(layout) => {
                let Some(Retained { log, place, suspended, .. }) = self.retained_mut(v) else {
                    return Ok(());
                };
                log.geometry.fs_blocks = layout.room_blocks;
                log.read = None;
                place.layout = layout;
                *suspended &= versions.in_flight.iter().any(|w| w.look_again);
                versions.set_room(log.id, place.room())
            }
            Next::Waits(layout) => {
                self.leave(v, versions, "it became another file system", false)?;
                let volume = &mut self.list[v];
                let at = layout.sector_of(AreaBlock(0)).filter(|_| !volume.waits_for(&layout));
                let on_disk = read_superblock(&mut versions.below, at)?;
                let orphan = Orphan::find(&mut versions.below, &layout, on_disk.as_ref())?;
                volume.wait_for_mount(layout, on_disk, orphan);
                Ok(())
            }
            Next::Passed { uuid, why, journal } => {
                self.leave(v, versions, &why, uuid.is_some())?;
                self.pass_through(v, versions, uuid, &why, journal)
            }
        }
    }

    fn pass_through(
        &mut self,
        v: usize,
        versions: &mut Versions,
        uuid: Option<[u8; 16]>,
        why: &str,
        journal: Option<Sector>,
    ) -> Result<(), JournalError> {
        let on_disk = journal.zip(read_superblock(&mut versions.below, journal)?);
        let news = self.list[v].pass_through(uuid, why, on_disk);
        if news && versions.lines.may() {
            let (disk, start_sector) = (versions.lines.name(), self.list[v].start.0);
            tracing::info!(disk, start_sector, why, "a file system's journal is passed through");
        }
        Ok(())
    }

    /// The volume that begins there, made where there is none.
    pub(super) fn at(&mut self, versions: &Versions, start: Sector) -> usize {
        if let Some(v) = self.list.iter().position(|v| v.start == start) {
            return v;
        }
        // Those of the arena that were not found again yet are taken, too, and those of other clients.
        let used = |id| self.list.iter().any(|v| v.id == id) || versions.has(id);
        let free = || (0..u16::MAX).map(VolumeId).find(|id| !used(*id)).unwrap_or(VolumeId(u16::MAX));
        let known = versions.arena.records.iter().find(|(_, record)| record.start_sector == start.0);
        self.list.push(Volume {
            id: known.map_or_else(free, |(id, _)| id),
            start,
            uuid: None,
            phase: Phase::Passthrough { why: String::new() },
            clamp: None,
            left: None,
            superblock_read: false,
            orphan: None,
        });
        self.list.len() - 1
    }

    /// Whether a change outside journals has to wait for a set.
    pub(super) fn waits_for_set(&self, versions: &Versions, sector: Sector, sectors: u64) -> bool {
        !versions.way.is_free()
            && (versions.goes_over(sector, sectors) || self.survey.watches(&self.list, sector, sectors))
    }

    /// The journal superblock of a file system that waits for a mount, or is not understood any more, where a write
    /// touches it.
    pub(super) fn armed_superblock(&self, sector: Sector, sectors: u64) -> Option<(usize, Sector)> {
        self.list.iter().enumerate().find_map(|(v, volume)| {
            let start = volume.guarded_superblock()?;
            (start.0 < sector.0 + sectors && sector.0 < start.0 + 8).then_some((v, start))
        })
    }

    /// Remembers a write until it completes, where anybody may ask.
    pub(super) fn track(
        &self,
        versions: &mut Versions,
        sector: Sector,
        sectors: u64,
        carried: Carried,
        look_again: bool,
    ) -> Option<Track> {
        let known = self.list.iter().any(|v| v.layout().is_some());
        // What is written over something that is not known yet may change it again.
        let look_again = look_again || versions.in_flight.looks_at(sector, sectors);
        self.forget_superblocks(versions, sector, sectors);
        (known || look_again).then(|| versions.track(sector, sectors, carried, look_again))
    }

    /// The superblock of some file systems is about to be written, in part or whole.
    pub(super) fn forget_superblocks(&self, versions: &mut Versions, sector: Sector, sectors: u64) {
        for volume in self.list.iter().filter(|v| v.retained().is_some()) {
            if volume.superblock_overlaps(sector, sectors) {
                versions.arena.records.set_seen(volume.id, Seen::FileSystem, None);
            }
        }
    }

    /// What was under way over some superblocks has completed: they are as they will be found. One that cannot be read just now is compared
    /// with nothing: whoever notes it is in the middle of something that no error may interrupt.
    pub(super) fn note_superblocks(&self, versions: &mut Versions, sector: Sector, sectors: u64) {
        for volume in self.list.iter().filter(|v| v.superblock_overlaps(sector, sectors)) {
            let (at, length) = volume.superblock_range();
            let settled = !versions.in_flight.any(at, length) && !versions.goes_over(at, length);
            if volume.retained().is_some() && settled {
                let read = versions.below.read_block(volume.start);
                let seen = read.ok().map(|block| superblock_check(&block));
                versions.arena.records.set_seen(volume.id, Seen::FileSystem, seen);
            }
        }
    }
}

/// The journal superblock that stands there, if one does.
pub(super) fn read_superblock(
    below: &mut Below,
    at: Option<Sector>,
) -> Result<Option<JournalSuperblock>, BlockError> {
    let block = at.map(|at| below.read_block(at)).transpose()?;
    Ok(block.and_then(|block| JournalSuperblock::parse(&block).ok()))
}
