//! What is retained, and the operations of Table I with content.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use afterimage_block::{BlockError, Disk, Sector};
use afterimage_order::{HomeWriter, LaneHome};
use afterimage_seldom::Lines;

use super::area::{JournalArea, Query, Tuple, Version, VersionState};
use super::arena::{Arena, Mark, VolumeId};
use super::below::Below;
use super::inflight::InFlight;
use super::places::Places;
use super::way::Way;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mistake;
use crate::status::Classes;

/// The part of a disk that a client's home blocks lie in, and where its places are.
#[derive(Clone, Debug)]
pub struct Room {
    /// The first sector.
    pub start: Sector,
    /// How many blocks.
    pub blocks: u64,
    /// Its places.
    pub places: Arc<dyn Places>,
}

impl Room {
    pub(crate) fn blocks_of(&self, sector: Sector, sectors: u64) -> (FsBlock, FsBlock) {
        blocks_of(self.start, self.blocks, sector, sectors)
    }
}

/// The blocks `[from, to)` that a range of sectors touches, of so many that begin at `start`.
pub(crate) fn blocks_of(start: Sector, blocks: u64, sector: Sector, sectors: u64) -> (FsBlock, FsBlock) {
    let end = (sector.0 + sectors).saturating_sub(start.0);
    let from = sector.0.saturating_sub(start.0) / BLOCK_SECTORS;
    (FsBlock(from), FsBlock(end.div_ceil(BLOCK_SECTORS).min(blocks)))
}

/// See [`crate::versions`].
pub struct Versions {
    /// Clients keep records and pages of their own there, too.
    pub(crate) arena: Arena,
    pub(crate) below: Below,
    pub(super) area: JournalArea,
    pub(crate) in_flight: InFlight,
    /// Versions on their way home, at most one set a disk.
    pub(crate) way: Way,
    pub(super) writer: Arc<dyn HomeWriter>,
    pub(super) rooms: BTreeMap<VolumeId, Room>,
    /// Of these blocks something older was on its way home when an earlier daemon died: the next write of one is that again.
    pub(super) older: BTreeSet<(VolumeId, FsBlock)>,
    /// Bytes of lists that clients keep of what they committed.
    listed: BTreeMap<VolumeId, u64>,
    /// Of every client that there is or was.
    pub(crate) classes: BTreeMap<VolumeId, Classes>,
    /// What a guest may cause to be said of the disk for ever.
    pub(crate) lines: Lines,
    pub(crate) mistake: Mistake,
}

impl Versions {
    /// Nothing is known yet; the arena may hold content. `name`: the disk's, in log lines. `home`: what brings a transaction's versions home; without it a lane of the
    /// disk.
    ///
    /// # Errors
    /// No lane of the disk can be opened.
    pub fn new(
        name: &str,
        disk: &dyn Disk,
        arena: Arena,
        home: Option<Arc<dyn HomeWriter>>,
        mistake: Mistake,
    ) -> Result<Self, BlockError> {
        let writer = match home {
            Some(home) => home,
            None => Arc::new(LaneHome::new(disk)?),
        };
        Ok(Self {
            arena,
            below: Below::new(disk)?,
            area: JournalArea::default(),
            in_flight: InFlight::default(),
            way: Way::default(),
            writer,
            rooms: BTreeMap::new(),
            older: BTreeSet::new(),
            listed: BTreeMap::new(),
            classes: BTreeMap::new(),
            lines: Lines::new(name),
            mistake,
        })
    }

    /// Whether a log decides what is durable: all that is pending goes home as one set.
    pub fn applies(&self) -> bool {
        self.writer.atomic_bytes_max().is_some()
    }

    /// LOG_OP_INIT: a client begins. What the arena holds of it counts.
    ///
    /// # Errors
    /// As [`JournalArea::init`].
    pub fn init(&mut self, client: VolumeId, room: Room) -> Result<(), JournalError> {
        self.area.init(client, BLOCK_BYTES)?;
        self.rooms.insert(client, room);
        Ok(())
    }

    /// The client's part of the disk, or its places, are others, but for those in use.
    ///
    /// # Errors
    /// What was served from outside of it could not be saved.
    pub fn set_room(&mut self, client: VolumeId, room: Room) -> Result<(), JournalError> {
        self.save(client, FsBlock(room.blocks), FsBlock(u64::MAX))?;
        if let Some(known) = self.rooms.get_mut(&client) {
            *known = room;
        }
        Ok(())
    }

    /// LOG_OP_CLEANUP: forgets a client, its content and what the arena remembers of it. A set of it that is due is not wanted any more.
    pub fn cleanup(&mut self, client: VolumeId) {
        if let Some(set) = self.way.cancel(client) {
            self.set_ended(set, false);
        }
        self.arena.clear_volume(client);
        self.area.cleanup(client);
        self.rooms.remove(&client);
        self.older.retain(|(of, _)| *of != client);
        self.listed.remove(&client);
    }

    /// Puts a place's content into the arena, in place of an older one; see [`Arena::store`].
    ///
    /// # Errors
    /// As there.
    pub fn store(
        &mut self,
        client: VolumeId,
        at: AreaBlock,
        fill: &mut dyn FnMut(&mut Block) -> Option<u32>,
    ) -> Result<(), JournalError> {
        self.arena.store(client, at, fill)
    }

    /// LOG_OP_MPROTECT: a transaction's versions in, others out, all or nothing. Those whose home somebody is writing just now, or
    /// has written with something else as the arena remembers it, are not known to be the newer ones on the disk.
    /// `again`: they are read again after an earlier daemon, whose marks count.
    ///
    /// # Errors
    /// As [`JournalArea::mprotect`].
    pub fn mprotect(
        &mut self,
        client: VolumeId,
        protect: &[Tuple],
        unprotect: &[FsBlock],
        again: bool,
    ) -> Result<(), JournalError> {
        self.area.mprotect(client, protect, unprotect)?;
        let Some(start) = self.rooms.get(&client).map(|room| room.start) else { return Ok(()) };
        let anything_flies = !self.in_flight.all_posted();
        // What comes again is older than these as well, or comes no more: it is not looked for.
        for home in protect.iter().map(|tuple| tuple.home).chain(unprotect.iter().copied()) {
            self.older.remove(&(client, home));
        }
        for tuple in protect {
            let sector = tuple.home.sector(start);
            let flies = anything_flies && self.in_flight.over(sector, BLOCK_SECTORS).is_some();
            // Where there was no room to remember the mark of a block that was evicted, nobody knows. See [`Versions::gone`].
            let unknown = again && !self.arena.knows_mark(client, tuple.at);
            let mark = self.arena.mark(client, tuple.at).filter(|_| again);
            let state = match mark {
                Some(Mark::Home) => VersionState::Home,
                Some(Mark::Rewritten) => VersionState::Rewritten,
                Some(Mark::Overwritten | Mark::Older) => VersionState::Overwritten,
                None if flies || unknown => VersionState::Overwritten,
                None => continue,
            };
            self.set_state(client, tuple.home, state);
            if flies {
                let version = self.area.version(client, tuple.home);
                let generation = version.map_or(0, |version| version.generation);
                self.in_flight.outdated(sector, client, tuple.home, generation);
            }
            if flies || mark == Some(Mark::Older) {
                self.arena.set_mark(client, tuple.at, Some(Mark::Older));
            }
            if mark == Some(Mark::Older) {
                self.older.insert((client, tuple.home));
            }
        }
        Ok(())
    }

    /// How many versions there are of which it is not known whether they are home.
    pub(crate) fn gone(&self, client: VolumeId) -> usize {
        let all = self.area.versions_in(client, FsBlock(0), FsBlock(u64::MAX)).into_iter();
        let gone = |v: &Version| v.state.is_open() && !self.arena.knows_mark(client, v.at);
        all.filter(|(_, version)| gone(version)).count()
    }

    /// A transaction is not needed any more: those of its blocks' versions that are still the newest go, and its places.
    pub fn forget(
        &mut self,
        client: VolumeId,
        tid: Tid,
        homes: &[FsBlock],
        places: impl Iterator<Item = AreaBlock>,
    ) {
        let newest = |home: &FsBlock| self.area.version(client, *home).is_some_and(|v| v.tid == tid);
        let homes: Vec<FsBlock> = homes.iter().copied().filter(newest).collect();
        // It is initialised: it has versions.
        drop(self.area.mprotect(client, &[], &homes));
        for at in places {
            self.arena.remove(client, at);
        }
    }

    /// LOG_OP_QUERY: how much is retained of a client.
    pub fn query(&self, client: VolumeId) -> Query {
        self.area.query(client)
    }

    /// LOG_OP_RECOVER: what has to go home; see [`JournalArea::recover`].
    pub fn recover(&self, client: VolumeId, overwritten: bool) -> Vec<Tuple> {
        self.area.recover(client, overwritten)
    }

    /// What is known: which versions, of which blocks.
    pub fn area(&self) -> &JournalArea {
        &self.area
    }

    /// Whether there is such a client, or the arena remembers one.
    pub(crate) fn has(&self, client: VolumeId) -> bool {
        self.rooms.contains_key(&client) || self.arena.records.get(client).is_some()
    }

    /// Whether a set that is due or under way, of any client, has a block of a range.
    pub(crate) fn goes_over(&self, sector: Sector, sectors: u64) -> bool {
        self.rooms.iter().any(|(client, room)| {
            let (from, to) = room.blocks_of(sector, sectors);
            self.way.has(*client, from, to)
        })
    }

    /// Versions known, of all clients.
    pub(crate) fn known(&self) -> u64 {
        self.rooms.keys().map(|client| self.area.query(*client).versions).sum()
    }

    /// How much memory a client's lists of what it committed take, in bytes.
    pub(crate) fn set_listed(&mut self, client: VolumeId, bytes: u64) {
        self.listed.insert(client, bytes);
    }

    /// The same, of all clients.
    pub(crate) fn listed_bytes(&self) -> u64 {
        self.listed.values().sum()
    }

    /// Gives back what tables hold of versions that are gone, where that is more than so many bytes of all clients.
    pub(crate) fn trim(&mut self, bytes_max: u64) {
        let information = |id| self.area.query(id).information_bytes;
        if self.rooms.keys().map(|id| information(*id)).sum::<u64>() > bytes_max {
            self.area.trim();
        }
    }

    /// Whether the newest version of a block is not home.
    pub(crate) fn is_open(&self, client: VolumeId, home: FsBlock) -> bool {
        self.area.version(client, home).is_some_and(|v| v.state.is_open())
    }

    /// Who there is, and where.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = (&VolumeId, &Room)> {
        self.rooms.iter()
    }

    /// A client's counters.
    pub(crate) fn count(&mut self, client: VolumeId) -> &mut Classes {
        self.classes.entry(client).or_default()
    }

    /// Whether a write over a range is under way, or not posted, that touches a version which is not home, of a transaction that `passed` names.
    pub(crate) fn flies_over(&self, client: VolumeId, passed: impl Fn(Tid) -> bool) -> bool {
        let Some(room) = self.rooms.get(&client) else { return false };
        self.in_flight.open().any(|write| {
            let (from, to) = room.blocks_of(write.sector, write.sectors);
            let mut versions = self.area.versions_in(client, from, to).into_iter();
            versions.any(|(_, version)| version.state.is_open() && passed(version.tid))
        })
    }
}
