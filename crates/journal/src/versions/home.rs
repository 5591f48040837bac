//! Going home, as a set: where a log decides what is durable all that is pending at once, elsewhere a part of it.

use std::sync::Arc;

use afterimage_block::{BlockError, SECTOR_BYTES};
use afterimage_order::HomeError;

use super::area::{Tuple, VersionState};
use super::arena::VolumeId;
use super::places::{unescape, Reader};
use super::set::HomeSet;
use super::store::Versions;
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mutation;

/// Blocks that are copied in one go.
pub(crate) const BATCH_BLOCKS: usize = 256;

/// Blocks of a set where no log decides: what a set holds up is not held up for long, and all of it may have to be copied.
const SET_BLOCKS: usize = COPIES_BYTES_MAX / BLOCK_BYTES;

/// What of a set is copied, in bytes: blocks that are not in the arena, first sectors of those that are escaped.
const COPIES_BYTES_MAX: usize = 4 << 20;

/// Why versions cannot go home as one.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// More than is ever taken at once.
    #[error(transparent)]
    TooLarge(HomeError),
    /// Too much would have to be copied.
    #[error("of a transaction too little is in memory to become durable at once")]
    TooLittle,
    /// What is not in memory cannot be read.
    #[error(transparent)]
    Below(#[from] BlockError),
}

impl Versions {
    /// Those of some versions that are still the newest and pending, in the order of the disk.
    pub(crate) fn pending_of(&self, client: VolumeId, tuples: &[Tuple]) -> Vec<Tuple> {
        let pending = |t: &&Tuple| {
            let version = self.area.version(client, t.home);
            version.is_some_and(|v| v.tid == t.tid && v.state == VersionState::Pending)
        };
        let mut tuples: Vec<Tuple> = tuples.iter().filter(pending).copied().collect();
        tuples.sort_unstable_by_key(|t| t.home);
        tuples
    }

    /// Makes a set of the pending ones of some versions, `None` where there are none. Nothing is copied of what the arena holds: that is
    /// lent to the set, until [`Versions::set_ended`]. Where no log decides what is durable, it is the first of them whose home nobody is
    /// writing.
    ///
    /// # Errors
    /// See [`SetError`]; nothing has changed but where content is.
    pub fn make_set(&mut self, client: VolumeId, tuples: &[Tuple]) -> Result<Option<HomeSet>, SetError> {
        let mut tuples = self.pending_of(client, tuples);
        let Some(room) = self.rooms.get(&client) else { return Ok(None) };
        if !self.applies() {
            tuples.retain(|t| self.in_flight.over(t.home.sector(room.start), BLOCK_SECTORS).is_none());
            tuples.truncate(SET_BLOCKS);
        }
        if tuples.is_empty() {
            return Ok(None);
        }
        let bytes = (tuples.len() * BLOCK_BYTES) as u64;
        if let Some(max_bytes) = self.writer.atomic_bytes_max().filter(|max_bytes| bytes > *max_bytes) {
            return Err(SetError::TooLarge(HomeError::TooLarge { bytes, max_bytes }));
        }
        for tuple in &tuples {
            self.save(client, tuple.home, FsBlock(tuple.home.0 + 1)).map_err(JournalError::into_block)?;
        }
        let (writer, Some(room)) = (&self.writer, self.rooms.get(&client)) else { return Ok(None) };
        let forgetful = self.mistake.is(Mutation::ForgetEscape);
        let (places, start) = (&*room.places, room.start);
        let mut reader = Reader { arena: &self.arena, below: &mut self.below, client, places, start };
        let (mut copies, mut copied_bytes) = (Vec::new(), 0);
        let mut scratch = [0; BLOCK_BYTES];
        for (n, tuple) in tuples.iter().enumerate() {
            let length = match reader.arena.get(client, tuple.at) {
                Some(_) if !tuple.escaped => continue,
                Some(_) => SECTOR_BYTES as usize,
                None => BLOCK_BYTES,
            };
            copied_bytes += length;
            if copied_bytes > COPIES_BYTES_MAX {
                return Err(SetError::TooLittle);
            }
            let mut block = *reader.get(tuple.at, &mut scratch)?;
            if tuple.escaped && !forgetful {
                unescape(&mut block);
            }
            copies.push((n, Box::from(&block[..length])));
        }
        let writer = Arc::clone(writer);
        let loan = self.arena.lend(client, tuples.iter().map(|t| t.at));
        Ok(Some(HomeSet { client, tuples, start, copies, loan, writer }))
    }

    /// A set of the pending ones of some versions is due, if no other set is due or under way: then they stay pending.
    ///
    /// # Errors
    /// As [`Versions::make_set`].
    pub fn send_home(&mut self, client: VolumeId, tuples: &[Tuple]) -> Result<(), SetError> {
        if self.way.is_free() {
            if let Some(set) = self.make_set(client, tuples)? {
                let homes = set.tuples.iter().map(|tuple| tuple.home).collect();
                self.way.begin(client, homes, Some(set));
            }
        }
        Ok(())
    }

    /// A set was written, or not: then its versions are pending as before. Returns which they were.
    pub fn set_ended(&mut self, set: HomeSet, written: bool) -> Vec<Tuple> {
        self.way.end();
        self.arena.take_back(set.loan);
        if written {
            for tuple in self.pending_of(set.client, &set.tuples) {
                self.set_state(set.client, tuple.home, VersionState::Home);
            }
            if !self.applies() {
                let classes = self.count(set.client);
                classes.checkpoints += 1;
                classes.checkpoint_blocks += set.tuples.len() as u64;
            }
        }
        set.tuples
    }

    /// Writes versions home, whatever was written there since: their guest is dead, or they are pending and no log decides. `mend` has a last look at each block.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn write_home(
        &mut self,
        client: VolumeId,
        tuples: &[Tuple],
        mend: impl Fn(FsBlock, &mut Block),
    ) -> Result<(), JournalError> {
        let Some(start) = self.rooms.get(&client).map(|room| room.start) else { return Ok(()) };
        for batch in tuples.chunks(BATCH_BLOCKS) {
            for tuple in batch {
                self.save(client, tuple.home, FsBlock(tuple.home.0 + 1))?;
            }
            let mut contents = self.contents(client, batch)?;
            batch.iter().zip(&mut contents).for_each(|(tuple, content)| mend(tuple.home, content));
            let placed = batch.iter().zip(&contents).map(|(t, c)| (t.home.sector(start), &c[..]));
            self.below.write_blocks(placed)?;
            for tuple in batch {
                self.set_state(client, tuple.home, VersionState::Home);
            }
        }
        self.count(client).checkpoint_blocks += tuples.len() as u64;
        Ok(())
    }
}
