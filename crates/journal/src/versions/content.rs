//! Content by places: read, and put where its places stand on the disk.

use afterimage_block::{BlockError, Sector};

use super::area::{Tuple, Version, VersionState};
use super::arena::VolumeId;
use super::home::BATCH_BLOCKS;
use super::inflight::InFlight;
use super::places::{unescape, Places, Reader};
use super::store::Versions;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;

impl Versions {
    /// Reads a client's places.
    pub fn reader<'a>(&'a mut self, client: VolumeId, places: &'a dyn Places) -> Reader<'a> {
        self.reader_and_flights(client, places).0
    }

    /// As [`Versions::reader`], beside what is in flight.
    pub(crate) fn reader_and_flights<'a>(
        &'a mut self,
        client: VolumeId,
        places: &'a dyn Places,
    ) -> (Reader<'a>, &'a InFlight) {
        let start = self.rooms.get(&client).map_or(Sector(0), |room| room.start);
        (Reader { arena: &self.arena, below: &mut self.below, client, places, start }, &self.in_flight)
    }

    /// The contents that belong home.
    pub(crate) fn contents(
        &mut self,
        client: VolumeId,
        tuples: &[Tuple],
    ) -> Result<Vec<Block>, JournalError> {
        let forgetful = self.mistake.is(Mutation::ForgetEscape);
        let Some(room) = self.rooms.get(&client) else { return Ok(Vec::new()) };
        let (places, start) = (&*room.places, room.start);
        let mut reader = Reader { arena: &self.arena, below: &mut self.below, client, places, start };
        let mut contents = Vec::with_capacity(tuples.len());
        let mut scratch = [0; BLOCK_BYTES];
        for tuple in tuples {
            let mut block = *reader.get(tuple.at, &mut scratch)?;
            if tuple.escaped && !forgetful {
                unescape(&mut block);
            }
            contents.push(block);
        }
        Ok(contents)
    }

    /// Sends what the arena holds of some places where they stand on the disk. It stays in the arena, too.
    pub(crate) fn write_places(
        &mut self,
        client: VolumeId,
        which: impl Fn(AreaBlock) -> bool,
    ) -> Result<(), BlockError> {
        let Some(room) = self.rooms.get(&client) else { return Ok(()) };
        let blocks = self.arena.blocks(client).into_iter().filter(|at| which(*at));
        let mut placed: Vec<(Sector, AreaBlock)> =
            blocks.filter_map(|at| Some((room.places.sector_of(at)?, at))).collect();
        placed.sort_unstable_by_key(|(sector, _)| *sector);
        let arena = &self.arena;
        self.below.write_blocks(placed.iter().filter_map(|(s, at)| Some((*s, &arena.get(client, *at)?[..]))))
    }

    /// Sends contents where their places stand on the disk, and forgets them here.
    ///
    /// # Errors
    /// The disk below failed; nothing is forgotten.
    pub(crate) fn evict(
        &mut self,
        client: VolumeId,
        blocks: &[(AreaBlock, Block)],
    ) -> Result<(), BlockError> {
        let Some(room) = self.rooms.get(&client) else { return Ok(()) };
        let mut placed: Vec<(Sector, AreaBlock, &Block)> =
            blocks.iter().filter_map(|(at, block)| Some((room.places.sector_of(*at)?, *at, block))).collect();
        placed.sort_unstable_by_key(|(sector, _, _)| *sector);
        self.below.write_blocks(placed.iter().map(|(sector, _, block)| (*sector, &block[..])))?;
        for (_, at, _) in &placed {
            self.arena.give_up(client, *at);
        }
        self.count(client).evicted_blocks += placed.len() as u64;
        Ok(())
    }

    /// The newest version of a block, which is home and of that transaction, is served from there: its slot is free.
    pub(crate) fn give_up_home(&mut self, client: VolumeId, home: FsBlock, tid: Tid) {
        let Some(room) = self.rooms.get(&client) else { return };
        let is_home = |v: &Version| v.tid == tid && v.state == VersionState::Home && !v.escaped;
        let Some(version) = self.area.version(client, home).filter(is_home) else { return };
        if self.in_flight.over(home.sector(room.start), BLOCK_SECTORS).is_none() {
            self.arena.give_up_to(client, version.at, home);
        }
    }

    /// Homes `[from, to)` are about to be written: what is served from them is saved, in slots, or in its own place where memory is short.
    ///
    /// # Errors
    /// The disk below failed. What was not saved is served from home as before, which must not be written then.
    pub(crate) fn save(&mut self, client: VolumeId, from: FsBlock, to: FsBlock) -> Result<(), JournalError> {
        let Some(room) = self.rooms.get(&client) else { return Ok(()) };
        if self.mistake.is(Mutation::ForgetSave) {
            return Ok(());
        }
        let served: Vec<(FsBlock, AreaBlock)> = self.arena.served_from(client, from, to).collect();
        let (mut saved_blocks, mut evicted_blocks) = (0, 0);
        for (home, at) in served {
            let content = self.below.read_block(home.sector(room.start))?;
            let stored = self.arena.store(client, at, &mut |slot| {
                *slot = content;
                None
            });
            match (stored, room.places.sector_of(at)) {
                (Err(error), Some(sector)) if error.is_full() => {
                    self.below.write(sector, &content)?;
                    self.arena.leave_home(client, at);
                    evicted_blocks += 1;
                }
                (stored, _) => stored?,
            }
            saved_blocks += 1;
        }
        let classes = self.count(client);
        classes.saved_blocks += saved_blocks;
        classes.evicted_blocks += evicted_blocks;
        Ok(())
    }

    /// Sends what is served from home where its places stand on the disk.
    ///
    /// # Errors
    /// The disk below failed. What was not sent is served from home as before.
    pub(crate) fn evict_served(&mut self, client: VolumeId) -> Result<(), JournalError> {
        let Some(room) = self.rooms.get(&client) else { return Ok(()) };
        let served: Vec<(FsBlock, AreaBlock)> =
            self.arena.served_from(client, FsBlock(0), FsBlock(u64::MAX)).collect();
        for batch in served.chunks(BATCH_BLOCKS) {
            let mut placed: Vec<(Sector, AreaBlock, Block)> = Vec::with_capacity(batch.len());
            for (home, at) in batch {
                let Some(sector) = room.places.sector_of(*at) else { continue };
                placed.push((sector, *at, self.below.read_block(home.sector(room.start))?));
            }
            placed.sort_unstable_by_key(|(sector, ..)| *sector);
            self.below.write_blocks(placed.iter().map(|(sector, _, block)| (*sector, &block[..])))?;
            placed.iter().for_each(|(_, at, _)| self.arena.leave_home(client, *at));
        }
        self.count(client).evicted_blocks += served.len() as u64;
        Ok(())
    }
}
