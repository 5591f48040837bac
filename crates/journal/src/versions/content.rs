//! Content by places: read, and put where its places stand on the disk.

use afterimage_block::{BlockError, Sector};

use super::area::Tuple;
use super::arena::VolumeId;
use super::inflight::InFlight;
use super::places::{unescape, Places, Reader};
use super::store::Versions;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, BLOCK_BYTES};
use crate::mutation::Mutation;

impl Versions {
    /// Reads a client's places.
    pub fn reader<'a>(&'a mut self, client: VolumeId, places: &'a dyn Places) -> Reader<'a> {
        Reader { arena: &self.arena, below: &mut self.below, client, places }
    }

    /// As [`Versions::reader`], beside what is in flight.
    pub(crate) fn reader_and_flights<'a>(
        &'a mut self,
        client: VolumeId,
        places: &'a dyn Places,
    ) -> (Reader<'a>, &'a InFlight) {
        (Reader { arena: &self.arena, below: &mut self.below, client, places }, &self.in_flight)
    }

    /// The contents that belong home.
    pub(crate) fn contents(
        &mut self,
        client: VolumeId,
        tuples: &[Tuple],
    ) -> Result<Vec<Block>, JournalError> {
        let forgetful = self.mistake.is(Mutation::ForgetEscape);
        let Some(room) = self.rooms.get(&client) else { return Ok(Vec::new()) };
        let mut reader = Reader { arena: &self.arena, below: &mut self.below, client, places: &*room.places };
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
}
