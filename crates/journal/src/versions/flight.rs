//! Home writes of guests: compared with what was committed, and remembered until they have completed.

use afterimage_block::{Buffers, Sector, SECTOR_BYTES};

use super::area::VersionState;
use super::arena::{Mark, VolumeId};
use super::inflight::{Flying, Match, Track};
use super::places::{unescape, Reader};
use super::store::{Room, Versions};
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;

/// What a write carries.
#[derive(Debug, Default)]
pub struct Carried {
    pub(super) matches: Vec<Match>,
    /// Nothing but versions that are home, and nothing else is on its way there: it changes nothing.
    pub is_home: bool,
}

impl Versions {
    /// Whether any block of a range has a version, or something is served from it.
    pub fn touches(&self, sector: Sector, sectors: u64) -> bool {
        self.rooms.iter().any(|(client, room)| {
            let (from, to) = room.blocks_of(sector, sectors);
            self.area.any(*client, from, to) || self.arena.served_from(*client, from, to).next().is_some()
        })
    }

    /// Compares a write with the versions of the blocks that it covers. Blocks that get other content are marked at once:
    /// from now on the disk may hold either. What was served from them is saved before.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn compare(
        &mut self,
        sector: Sector,
        sectors: u64,
        content: &Buffers,
    ) -> Result<Carried, JournalError> {
        let lenient = self.mistake.is(Mutation::MatchAnything);
        let mut matches = Vec::new();
        let mut home_blocks = 0;
        let (mut written, mut scratch) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        let (mut others, mut unsaved) = (Vec::new(), Vec::new());
        for (client, room) in &self.rooms {
            let client = *client;
            let (from, to) = room.blocks_of(sector, sectors);
            let classes = self.classes.entry(client).or_default();
            for home in (from.0..to.0).map(FsBlock) {
                let served = self.arena.served_from(client, home, FsBlock(home.0 + 1)).next();
                let Some(version) = self.area.version(client, home) else {
                    unsaved.extend(served.map(|_| (client, home)));
                    continue;
                };
                classes.page_writebacks += 1;
                let start = home.sector(room.start);
                let covered = start >= sector && start.0 + BLOCK_SECTORS <= sector.0 + sectors;
                let mut same = covered && !self.in_flight.any(start, BLOCK_SECTORS);
                if same {
                    content.copy_to(((start.0 - sector.0) * SECTOR_BYTES) as usize, &mut written);
                    let below = &mut self.below;
                    let (places, start) = (&*room.places, room.start);
                    let mut reader = Reader { arena: &self.arena, below, client, places, start };
                    let block = reader.get(version.at, &mut scratch)?;
                    same = if version.escaped {
                        let mut block = *block;
                        unescape(&mut block);
                        block == written
                    } else {
                        *block == written
                    };
                    same |= lenient;
                }
                if same {
                    classes.page_writebacks_matching += 1;
                    home_blocks += u64::from(version.state == VersionState::Home);
                    matches.push(Match { volume: client, home, generation: version.generation });
                } else {
                    others.push((client, home));
                }
                // What the newest version has is served from there as well after a write of the same.
                let goes = served.is_some_and(|(_, at)| !same || at != version.at);
                unsaved.extend(goes.then_some((client, home)));
            }
        }
        for (client, home) in unsaved {
            self.save(client, home, FsBlock(home.0 + 1))?;
        }
        others.into_iter().for_each(|(client, home)| self.written_over(client, home));
        // Rooms do not overlap, and where something else is on its way nothing matches.
        Ok(Carried { matches, is_home: home_blocks * BLOCK_SECTORS == sectors })
    }

    /// A write of what is home already is not handed down: it has landed.
    pub(crate) fn elided(&mut self, sector: Sector, sectors: u64, carried: Carried) -> Track {
        for matched in &carried.matches {
            let classes = self.classes.entry(matched.volume).or_default();
            classes.page_writeback_elided_bytes += BLOCK_BYTES as u64;
        }
        let track = self.track(sector, sectors, carried, false);
        self.landed(track);
        track
    }

    /// A range gets content that is no version's.
    ///
    /// # Errors
    /// What was served from it could not be saved.
    pub fn overwrite(&mut self, sector: Sector, sectors: u64) -> Result<(), JournalError> {
        let blocks = |(client, room): (&VolumeId, &Room)| (*client, room.blocks_of(sector, sectors));
        let ranges: Vec<(VolumeId, (FsBlock, FsBlock))> = self.rooms.iter().map(blocks).collect();
        for (client, (from, to)) in ranges {
            self.save(client, from, to)?;
        }
        let found: Vec<(VolumeId, FsBlock)> = self
            .rooms
            .iter()
            .flat_map(|(client, room)| {
                let (from, to) = room.blocks_of(sector, sectors);
                self.area.versions_in(*client, from, to).into_iter().map(|(home, _)| (*client, home))
            })
            .collect();
        found.into_iter().for_each(|(client, home)| self.written_over(client, home));
        Ok(())
    }

    /// Something else is written to a version's home.
    fn written_over(&mut self, client: VolumeId, home: FsBlock) {
        let version = self.area.version(client, home);
        if let Some(version) = version {
            self.set_state(client, home, version.state.written_over());
        }
    }

    /// Remembers a write until it completes. `look_again`: something changes with it that somebody wants to look at then.
    pub fn track(&mut self, sector: Sector, sectors: u64, carried: Carried, look_again: bool) -> Track {
        let track = self.in_flight.add(sector, sectors, carried.matches, look_again);
        if !self.older.is_empty() {
            self.comes_again(sector, sectors);
        }
        track
    }

    /// Queues ask again for what was in flight before they ask for anything else: it carries something older than what was committed
    /// meanwhile, as an earlier daemon knew.
    fn comes_again(&mut self, sector: Sector, sectors: u64) {
        let mut again = Vec::new();
        for (client, room) in &self.rooms {
            let (from, to) = room.blocks_of(sector, sectors);
            if from < to {
                again.extend(self.older.range((*client, from)..(*client, to)).copied());
            }
        }
        for (client, home) in again {
            self.older.remove(&(client, home));
            let version = self.area.version(client, home).filter(|v| v.state == VersionState::Overwritten);
            if let (Some(version), Some(room)) = (version, self.rooms.get(&client)) {
                self.in_flight.outdated(home.sector(room.start), client, home, version.generation);
                self.arena.set_mark(client, version.at, Some(Mark::Older));
            }
        }
    }

    /// A write has ended, well or not. Whether its guest knows is another matter: see [`Versions::posted`].
    pub fn landed(&mut self, track: Track) -> Option<Flying> {
        self.in_flight.land(track)
    }

    /// A write that has landed is not asked for again, whoever dies. Versions of its blocks that were committed before, and where nothing was
    /// written since, wait to go home like any other: what the disk holds there is older, whatever it is.
    pub fn posted(&mut self, track: Track) {
        let Some(posted) = self.in_flight.post(track) else { return };
        if self.mistake.is(Mutation::ForgetFlight) {
            return;
        }
        for version in &posted.older_than {
            let Some(room) = self.rooms.get(&version.volume) else { continue };
            let current = self.area.version(version.volume, version.home);
            if current.is_some_and(|c| c.generation == version.generation)
                && self.in_flight.over(version.home.sector(room.start), BLOCK_SECTORS).is_none()
            {
                self.set_state(version.volume, version.home, VersionState::Pending);
            }
        }
    }

    /// It has ended well: the versions that it carried are home, unless something came between. Whose they were.
    pub fn arrived(&mut self, flying: &Flying) -> Vec<VolumeId> {
        for matched in &flying.matches {
            let current = self.area.version(matched.volume, matched.home);
            // Whatever else was sent there meanwhile has changed the generation.
            if current.is_some_and(|c| c.generation == matched.generation) {
                self.set_state(matched.volume, matched.home, VersionState::Home);
            }
        }
        let mut clients: Vec<VolumeId> = flying.matches.iter().map(|m| m.volume).collect();
        clients.dedup();
        clients
    }

    /// Moves a version, and what the arena remembers of it for the next daemon.
    pub(crate) fn set_state(&mut self, client: VolumeId, home: FsBlock, state: VersionState) {
        let before = self.area.set_state(client, home, state);
        let Some(before) = before else { return };
        let mark = match state {
            VersionState::Overwritten => Some(Mark::Overwritten),
            VersionState::Home => Some(Mark::Home),
            VersionState::Rewritten => Some(Mark::Rewritten),
            VersionState::Pending => None,
        };
        // Also where it stays what it was: what is written over it now is not older any more.
        self.arena.set_mark(client, before.at, mark);
    }
}
