//! A guest's change of the disk: split, looked at, and tracked until it has completed.

use afterimage_block::{BlockError, Buffers, Sector, SECTOR_BYTES};

use super::absorb::Piece;
use super::systems::FileSystems;
use super::volume::{area_ranges, Volume};
use crate::error::JournalError;
use crate::versions::{Carried, Track};

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
    /// Nothing is left to do but to say when it is posted: [`FileSystems::posted`].
    Elided(Track),
    /// To be handed down, and reported when it has completed.
    Below {
        /// First sector.
        sector: Sector,
        /// How many.
        sectors: u64,
        /// What to hand down instead of what was given.
        copy: Option<Buffers>,
        /// To be given to [`FileSystems::completed`], and then to [`FileSystems::posted`].
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
        let last_end = std::mem::replace(&mut self.last_end, Sector(end));
        let of_interest = self.volumes.areas.at(sector).is_some()
            || self.volumes.areas.next(sector) < end
            || self.volumes.armed_superblock(sector, sectors).is_some()
            || self.volumes.touches_orphan(sector, sectors)
            || self.volumes.survey.watches(&self.volumes.list, sector, sectors)
            || self.versions.touches(sector, sectors);
        if of_interest {
            self.last_end = last_end;
            return false;
        }
        let look_again = self.volumes.survey.rests_on(&mut self.volumes.list, sector, sectors, None);
        let track = self.volumes.track(&mut self.versions, sector, sectors, Carried::default(), look_again);
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
        if !self.versions.way.is_free() && self.volumes.is_suspended_in_vain(&self.versions) {
            return Ok(0);
        }
        let looked = match self.volumes.is_suspended_in_vain(&self.versions) {
            true => self.volumes.look_after_write(&mut self.versions),
            false => Ok(()),
        };
        let result = looked.and_then(|()| match change {
            Change::Clear if self.clear_waits(sector, sectors) => Ok(0),
            Change::Clear => self.clear(sector, sectors, parts).map(|()| sectors),
            Change::Write(buffers) => self.write(buffers, sector, sectors, parts),
        });
        result.map_err(JournalError::into_block)
    }

    /// Whether what is cleared has to wait for a set: blocks that are in it, or its journal.
    fn clear_waits(&self, sector: Sector, sectors: u64) -> bool {
        let of_journal = |volume: &Volume| {
            let mut ranges = volume.retained().into_iter().flat_map(|r| area_ranges(&r.place.layout));
            ranges.any(|(s, n, _)| s.0 < sector.0 + sectors && sector.0 < s.0 + n)
        };
        self.volumes.waits_for_set(&self.versions, sector, sectors)
            || (!self.versions.way.is_free() && self.volumes.list.iter().any(of_journal))
    }

    fn clear(&mut self, sector: Sector, sectors: u64, parts: &mut Vec<Part>) -> Result<(), JournalError> {
        // A journal that is cleared is nobody's any more: mkfs discards first and asks nobody.
        for v in 0..self.volumes.list.len() {
            let Some(retained) = self.volumes.retained_mut(v) else { continue };
            let touched = area_ranges(&retained.place.layout)
                .any(|(s, n, _)| s.0 < sector.0 + sectors && sector.0 < s.0 + n);
            if touched {
                let why = "its journal was cleared by the guest";
                self.volumes.leave(v, &mut self.versions, why, false)?;
            }
        }
        self.volumes.clear_orphans(sector, sectors);
        for volume in &mut self.volumes.list {
            volume.superblock_read &= !volume.superblock_lies_in(sector, sectors);
        }
        let look_again = self.volumes.survey.rests_on(&mut self.volumes.list, sector, sectors, None);
        self.versions.overwrite(sector, sectors)?;
        let track = self.volumes.track(&mut self.versions, sector, sectors, Carried::default(), look_again);
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
            if let Some((v, block, start)) = self.volumes.areas.at(Sector(at)) {
                let piece_end = (start.0 + 8).min(end);
                let len = ((piece_end - at) * SECTOR_BYTES) as usize;
                let within = ((at - start.0) * SECTOR_BYTES) as usize;
                let piece = Piece { at: block, within, bytes: buffers.slice(offset, len) };
                let dropped = self.options.drop_journal;
                let waits = self.volumes.with(v, &mut self.versions, |retained, versions| {
                    retained.must_wait(versions, &piece, dropped)
                })?;
                // It is not absorbed any more.
                let Some(waits) = waits else { continue };
                if waits {
                    return Ok(at - sector.0);
                }
                self.absorb(v, &piece, parts)?;
                at = piece_end;
                continue;
            }
            let piece_end = self.volumes.areas.next(Sector(at)).min(end);
            if self.volumes.waits_for_set(&self.versions, Sector(at), piece_end - at) {
                return Ok(at - sector.0);
            }
            let len = ((piece_end - at) * SECTOR_BYTES) as usize;
            self.outside(Sector(at), piece_end - at, buffers.slice(offset, len), parts)?;
            at = piece_end;
        }
        self.last_end = Sector(end);
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
        if let Some((v, at)) = self.volumes.armed_superblock(sector, sectors) {
            // Around the superblock the write is an ordinary one, and may reach into another file system.
            let (from, to) = (sector.0.max(at.0), (sector.0 + sectors).min(at.0 + 8));
            // `dd` writes what stands before it first, in the same request or in the one before.
            let alone = (sector, sectors) == (at, 8) && self.last_end != at;
            let pieces = [(sector.0, from), (from, to), (to, sector.0 + sectors)];
            for (low, high) in pieces.into_iter().filter(|(low, high)| low < high) {
                let offset = ((low - sector.0) * SECTOR_BYTES) as usize;
                let piece = buffers.slice(offset, ((high - low) * SECTOR_BYTES) as usize);
                if low == from {
                    self.superblock_while_armed(v, at, (Sector(low), high - low), piece, alone, parts)?;
                } else {
                    self.outside(Sector(low), high - low, piece, parts)?;
                }
            }
            return Ok(());
        }
        self.volumes.adopt(&mut self.versions, sector, sectors, &buffers)?;
        let look_again =
            self.volumes.survey.rests_on(&mut self.volumes.list, sector, sectors, Some(&buffers));
        if !self.versions.touches(sector, sectors) {
            let track =
                self.volumes.track(&mut self.versions, sector, sectors, Carried::default(), look_again);
            parts.push(Part::Below { sector, sectors, copy: None, track });
            return Ok(());
        }
        let carried = self.versions.compare(sector, sectors, &buffers)?;
        if carried.is_home && !look_again {
            parts.push(Part::Elided(self.versions.elided(sector, sectors, carried)));
            return Ok(());
        }
        let track = self.volumes.track(&mut self.versions, sector, sectors, carried, look_again);
        parts.push(Part::Below { sector, sectors, copy: None, track });
        Ok(())
    }

    /// A part that was handed down has completed.
    ///
    /// # Errors
    /// The disk below failed while it was looked at again.
    pub fn completed(&mut self, track: Track, succeeded: bool) -> Result<(), JournalError> {
        let Some(flying) = self.versions.landed(track) else { return Ok(()) };
        if !succeeded && flying.look_again {
            // What is there now is neither old nor new.
            self.volumes.look_after_write(&mut self.versions)?;
        }
        if !succeeded {
            for volume in &self.volumes.list {
                let (from, to) = volume.blocks_of(flying.sector, flying.sectors);
                if from < to && volume.start <= flying.sector {
                    self.versions.count(volume.id).write_failures += 1;
                }
            }
            return Ok(());
        }
        self.volumes.note_superblocks(&mut self.versions, flying.sector, flying.sectors);
        let clients = self.versions.arrived(&flying);
        for volume in self.volumes.list.iter_mut().filter(|volume| clients.contains(&volume.id)) {
            if let Some(retained) = volume.retained_mut() {
                retained.log.release_early(&mut self.versions);
            }
        }
        if flying.look_again {
            self.volumes.look_after_write(&mut self.versions)?;
        }
        Ok(())
    }

    /// Writes that have completed are posted to their guest.
    pub fn posted(&mut self, tracks: impl IntoIterator<Item = Track>) {
        tracks.into_iter().for_each(|track| self.versions.posted(track));
    }

    /// Whether a completion leads to a look at the disk.
    pub fn completion_looks(&self, track: Track) -> bool {
        self.versions.in_flight.looks_again(track)
    }

    /// Whether it has to wait for a set before that.
    pub fn completion_waits(&self, track: Track) -> bool {
        !self.versions.way.is_free() && self.completion_looks(track)
    }
}
