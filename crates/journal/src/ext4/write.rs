//! A guest's change of the disk: split, looked at, and tracked until it has completed.

use afterimage_block::{BlockError, Buffers, Sector, SECTOR_BYTES};

use super::known::superblock_check;
use super::systems::FileSystems;
use super::volume::{area_ranges, Volume};
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_SECTORS};
use crate::versions::arena::Seen;
use crate::versions::{Carried, Track, Tuple};

/// What a guest's request changes.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// New content, which nobody changes meanwhile: not the guest's own memory.
    Write(&'a Buffers),
    /// Zeroes, or anything.
    Clear,
}

/// A part of a change.
#[derive(Debug)]
pub enum Part {
    /// Nothing is left to do.
    Done,
    /// To be handed down, and reported when it has completed.
    Below {
        /// First sector.
        sector: Sector,
        /// How many.
        sectors: u64,
        /// What to hand down instead of what was given.
        copy: Option<Buffers>,
        /// To be given to [`FileSystems::completed`].
        track: Option<Track>,
    },
    /// Everything that has completed is to be made durable before this request completes (vflush at truncation).
    Durable,
}

impl FileSystems {
    /// Takes a write whose content is of no interest, as nothing that is absorbed, compared or watched lies in its range.
    /// `false`, and nothing done, where it is: then [`FileSystems::submit`] takes it, with its content.
    pub fn submit_unread(&mut self, sector: Sector, sectors: u64, parts: &mut Vec<Part>) -> bool {
        let end = sector.0 + sectors;
        let of_interest = self.areas.at(sector).is_some()
            || self.areas.next(sector) < end
            || self.armed_superblock(sector, sectors).is_some()
            || self.survey.watches(&self.volumes, sector, sectors)
            || self.versions.touches(sector, sectors);
        if of_interest {
            return false;
        }
        let look_again = self.survey.rests_on(&mut self.volumes, sector, sectors, None);
        let track = self.track(sector, sectors, Carried::default(), look_again);
        parts.push(Part::Below { sector, sectors, copy: None, track });
        true
    }

    /// Takes a change, says what is left of it, and how many of its sectors were taken. The others are to be submitted again:
    /// what they wait for is in flight, and does not wait for them.
    ///
    /// # Errors
    /// The disk below failed, or there is no memory left for the guest's journal and no way to make some.
    pub fn submit(
        &mut self,
        change: Change<'_>,
        sector: Sector,
        sectors: u64,
        parts: &mut Vec<Part>,
    ) -> Result<u64, BlockError> {
        if !self.way.is_free() && self.is_suspended_in_vain() {
            return Ok(0);
        }
        let result = self.look_if_suspended_in_vain().and_then(|()| match change {
            Change::Clear if self.clear_waits(sector, sectors) => Ok(0),
            Change::Clear => self.clear(sector, sectors, parts).map(|()| sectors),
            Change::Write(buffers) => self.write(buffers, sector, sectors, parts),
        });
        result.map_err(JournalError::into_block)
    }

    /// Whether what is cleared has to wait for a set: blocks that are in it, or its journal.
    fn clear_waits(&self, sector: Sector, sectors: u64) -> bool {
        let of_journal = |volume: &Volume| {
            let mut ranges = volume.log().into_iter().flat_map(|log| area_ranges(&log.layout));
            ranges.any(|(s, n, _)| s.0 < sector.0 + sectors && sector.0 < s.0 + n)
        };
        self.waits_for_set(sector, sectors) || (!self.way.is_free() && self.volumes.iter().any(of_journal))
    }

    fn clear(&mut self, sector: Sector, sectors: u64, parts: &mut Vec<Part>) -> Result<(), JournalError> {
        // A journal that is cleared is nobody's any more: mkfs discards first and asks nobody.
        for v in 0..self.volumes.len() {
            let Some(log) = self.volumes[v].log() else { continue };
            let touched =
                area_ranges(&log.layout).any(|(s, n, _)| s.0 < sector.0 + sectors && sector.0 < s.0 + n);
            if touched {
                self.leave(v, "its journal was cleared by the guest", false)?;
            }
        }
        let look_again = self.survey.rests_on(&mut self.volumes, sector, sectors, None);
        self.versions.overwrite(sector, sectors);
        let track = self.track(sector, sectors, Carried::default(), look_again);
        parts.push(Part::Below { sector, sectors, copy: None, track });
        Ok(())
    }

    fn write(
        &mut self,
        buffers: &Buffers,
        sector: Sector,
        sectors: u64,
        parts: &mut Vec<Part>,
    ) -> Result<u64, JournalError> {
        let end = sector.0 + sectors;
        let mut at = sector.0;
        while at < end {
            let offset = ((at - sector.0) * SECTOR_BYTES) as usize;
            if let Some((v, block, start)) = self.areas.at(Sector(at)) {
                let piece_end = (start.0 + 8).min(end);
                let len = ((piece_end - at) * SECTOR_BYTES) as usize;
                let within = ((at - start.0) * SECTOR_BYTES) as usize;
                let piece = buffers.slice(offset, len);
                if self.must_wait(v, block, within, &piece)? {
                    return Ok(at - sector.0);
                }
                if self.volumes[v].log().is_none() {
                    // It is not absorbed any more.
                    continue;
                }
                if !self.absorb(v, block, within, &piece, parts)? {
                    return Ok(at - sector.0);
                }
                at = piece_end;
                continue;
            }
            let piece_end = self.areas.next(Sector(at)).min(end);
            if self.waits_for_set(Sector(at), piece_end - at) {
                return Ok(at - sector.0);
            }
            let len = ((piece_end - at) * SECTOR_BYTES) as usize;
            self.outside(Sector(at), piece_end - at, buffers.slice(offset, len), parts)?;
            at = piece_end;
        }
        Ok(sectors)
    }

    /// A piece outside every absorbed journal.
    fn outside(
        &mut self,
        sector: Sector,
        sectors: u64,
        buffers: Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        if let Some((v, at)) = self.armed_superblock(sector, sectors) {
            // Around the superblock the write is an ordinary one, and may reach into another file system.
            let (from, to) = (sector.0.max(at.0), (sector.0 + sectors).min(at.0 + 8));
            let pieces = [(sector.0, from), (from, to), (to, sector.0 + sectors)];
            for (low, high) in pieces.into_iter().filter(|(low, high)| low < high) {
                let offset = ((low - sector.0) * SECTOR_BYTES) as usize;
                let piece = buffers.slice(offset, ((high - low) * SECTOR_BYTES) as usize);
                if low == from {
                    self.superblock_while_armed(v, at, Sector(low), high - low, piece, parts)?;
                } else {
                    self.outside(Sector(low), high - low, piece, parts)?;
                }
            }
            return Ok(());
        }
        let look_again = self.survey.rests_on(&mut self.volumes, sector, sectors, Some(&buffers));
        if !self.versions.touches(sector, sectors) {
            let track = self.track(sector, sectors, Carried::default(), look_again);
            parts.push(Part::Below { sector, sectors, copy: None, track });
            return Ok(());
        }
        let carried = self.versions.compare(sector, sectors, &buffers)?;
        if carried.is_home && !look_again {
            self.versions.elided(&carried);
            parts.push(Part::Done);
            return Ok(());
        }
        let track = self.track(sector, sectors, carried, look_again);
        parts.push(Part::Below { sector, sectors, copy: None, track });
        Ok(())
    }

    /// Remembers a write until it completes, where anybody may ask.
    pub(super) fn track(
        &mut self,
        sector: Sector,
        sectors: u64,
        carried: Carried,
        look_again: bool,
    ) -> Option<Track> {
        let known = self.volumes.iter().any(|v| v.layout().is_some());
        // What is written over something that is not known yet may change it again.
        let look_again = look_again || self.versions.in_flight.looks_at(sector, sectors);
        self.forget_superblocks(sector, sectors);
        (known || look_again).then(|| self.versions.track(sector, sectors, carried, look_again))
    }

    /// A part that was handed down has completed.
    ///
    /// # Errors
    /// The disk below failed while it was looked at again.
    pub fn completed(&mut self, track: Track, succeeded: bool) -> Result<(), JournalError> {
        let Some(flying) = self.versions.landed(track) else { return Ok(()) };
        if !succeeded && flying.look_again {
            // What is there now is neither old nor new.
            self.look_after_write()?;
        }
        if !succeeded {
            for volume in &self.volumes {
                let (from, to) = volume.blocks_of(flying.sector, flying.sectors);
                if from < to && volume.start <= flying.sector {
                    self.versions.count(volume.id).write_failures += 1;
                }
            }
            return Ok(());
        }
        self.note_superblocks(flying.sector, flying.sectors)?;
        let clients = self.versions.arrived(&flying);
        for volume in self.volumes.iter_mut().filter(|volume| clients.contains(&volume.id)) {
            volume.release(&mut self.versions, 1);
        }
        if flying.look_again {
            self.look_after_write()?;
        }
        Ok(())
    }

    /// Whether a completion has to wait for a set: somebody looks at the disk then.
    pub fn completion_waits(&self, track: Track) -> bool {
        !self.way.is_free() && self.versions.in_flight.looks_again(track)
    }

    /// Whether a change outside journals has to wait for a set.
    pub(super) fn waits_for_set(&self, sector: Sector, sectors: u64) -> bool {
        !self.way.is_free()
            && (self.goes_over(sector, sectors) || self.survey.watches(&self.volumes, sector, sectors))
    }

    /// Whether a set has a block of a range.
    fn goes_over(&self, sector: Sector, sectors: u64) -> bool {
        self.volumes.iter().any(|volume| {
            let (from, to) = volume.blocks_of(sector, sectors);
            self.way.has(volume.id, from, to)
        })
    }

    /// The journal superblock of a file system that waits for a mount, or is not understood any more, where a write
    /// touches it.
    fn armed_superblock(&self, sector: Sector, sectors: u64) -> Option<(usize, Sector)> {
        self.volumes.iter().enumerate().find_map(|(v, volume)| {
            let start = volume.guarded_superblock()?;
            (start.0 < sector.0 + sectors && sector.0 < start.0 + 8).then_some((v, start))
        })
    }

    /// The superblock of some file systems is about to be written, in part or whole.
    pub(super) fn forget_superblocks(&mut self, sector: Sector, sectors: u64) {
        for volume in self.volumes.iter().filter(|v| v.log().is_some()) {
            if volume.superblock_overlaps(sector, sectors) {
                self.versions.arena.set_seen(volume.id, Seen::FileSystem, None);
            }
        }
    }

    /// What was under way over some superblocks has completed: they are as they will be found.
    ///
    /// # Errors
    /// The disk below cannot be read.
    pub(super) fn note_superblocks(&mut self, sector: Sector, sectors: u64) -> Result<(), BlockError> {
        for volume in self.volumes.iter().filter(|v| v.superblock_overlaps(sector, sectors)) {
            let (at, length) = volume.superblock_range();
            let settled = !self.versions.in_flight.any(at, length) && !self.goes_over(at, length);
            if volume.log().is_some() && settled {
                let seen = superblock_check(&mut self.versions, volume.start)?;
                self.versions.arena.set_seen(volume.id, Seen::FileSystem, Some(seen));
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

    /// See [`FileSystems::home_begins`].
    ///
    /// # Errors
    /// The disk below cannot be read.
    pub(super) fn home_ends(&mut self, v: usize, tuples: &[Tuple]) -> Result<(), BlockError> {
        match tuples.iter().any(|t| t.home == FsBlock(0)) {
            true => self.note_superblocks(self.volumes[v].start, BLOCK_SECTORS),
            false => Ok(()),
        }
    }
}
