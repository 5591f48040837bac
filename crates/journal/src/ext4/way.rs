//! `power-window`: what was committed goes home as one set, and whoever writes it may wait: for room in the redo log, for the end of a
//! pause. So a set is written without the disk's lock. It is due, then under way, then ended:
//!
//! ```text
//! a commit, or somebody who wants all of it home ─► due ─► take_set ─► (no lock: HomeSet::write) ─► set_ended ─► the next commit
//! ```
//!
//! One set a disk is due or under way. Whoever made it due takes it and ends it, and only then goes on: the commit is answered after its
//! set is in the disk's history. Meanwhile the rest of the disk goes on.
//!
//! **What may overtake a set**: every read; every write of blocks that are not in it, on which no layout rests and which no journal
//! has; what is written to other file systems' journals, but for commits and superblocks; completions.
//! **What waits for it**: what is written to blocks that are in it, as it could be undone by the set; what is written to its own journal, of which nothing
//! may be given up meanwhile; other commits and journal superblocks of the disk; whatever a layout rests on, and the looks that
//! its completion leads to: nothing goes home where another file system may just have begun.

use afterimage_block::Sector;
use afterimage_order::HomeError;

use super::FileSystems;
use crate::error::JournalError;
use crate::ids::FsBlock;
use crate::versions::arena::VolumeId;
use crate::versions::{HomeSet, SetError, Track, Tuple};

/// How far a set is.
pub(super) enum Way {
    /// It is to be written.
    Due(HomeSet),
    /// Somebody writes it: whose it is, and its blocks, ascending.
    Taken(VolumeId, Vec<FsBlock>),
}

impl FileSystems {
    /// Those of some versions that are pending go home now, as one part of the disk's history: a set is due.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn apply(&mut self, v: usize, tuples: &[Tuple]) -> Result<(), JournalError> {
        if self.way.is_some() {
            // They stay pending.
            return Ok(());
        }
        match self.versions.make_set(self.volumes[v].id, tuples) {
            Ok(Some(set)) => {
                self.home_begins(v, &set.tuples);
                self.way = Some(Way::Due(set));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(SetError::Below(e)) => Err(e.into()),
            Err(e) => self.leave(v, &e.to_string(), true),
        }
    }

    /// Whether a set is due, or under way.
    pub fn is_on_its_way(&self) -> bool {
        self.way.is_some()
    }

    /// Whether a set is due.
    pub fn is_due(&self) -> bool {
        matches!(self.way, Some(Way::Due(_)))
    }

    /// The set that is due, to be written and given to [`FileSystems::set_ended`].
    pub fn take_set(&mut self) -> Option<HomeSet> {
        match self.way.take() {
            Some(Way::Due(set)) => {
                let homes = set.tuples.iter().map(|tuple| tuple.home).collect();
                self.way = Some(Way::Taken(set.client, homes));
                Some(set)
            }
            other => {
                self.way = other;
                None
            }
        }
    }

    /// The set was written, or not. Goes on with what waited for it: another set may be due.
    ///
    /// # Errors
    /// It was not written; its versions are pending as before. Or the disk below failed.
    pub fn set_ended(&mut self, set: HomeSet, written: Result<(), HomeError>) -> Result<(), JournalError> {
        let id = set.client;
        self.way = None;
        let tuples = self.versions.set_ended(set, written.is_ok());
        let Some(v) = self.volumes.iter().position(|volume| volume.id == id) else { return Ok(()) };
        match written {
            Ok(()) => {
                self.home_ends(v, &tuples)?;
                self.volumes[v].release(&mut self.versions, 1);
            }
            Err(HomeError::Block(e)) => return Err(e.into()),
            Err(e @ HomeError::TooLarge { .. }) => self.leave(v, &e.to_string(), true)?,
        }
        // Others wait where the set was made for want of memory, in the middle of their own commit.
        for other in 0..self.volumes.len() {
            let log = self.volumes[other].log();
            let waits = other == v || log.is_some_and(|log| log.came_by.is_some() || log.commit_seen);
            if waits && self.way.is_none() {
                self.follow_on(other)?;
            }
        }
        Ok(())
    }

    /// Looks for what has to go home as sets, for somebody who wants all of it there. Whether a set is due; then it is to be asked again
    /// when that has ended.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn due(&mut self) -> Result<bool, JournalError> {
        if !self.versions.applies() {
            return Ok(false);
        }
        for v in 0..self.volumes.len() {
            if self.way.is_none() {
                self.follow(v)?;
            }
            if self.way.is_none() {
                self.go_home(v, Vec::new())?;
            }
        }
        Ok(self.way.is_some())
    }

    /// Everything that is pending goes home, while nobody else is served.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn all_home(&mut self) -> Result<(), JournalError> {
        while self.due()? {
            self.sets_home()?;
        }
        Ok(())
    }

    /// What is due goes home, while nobody else is served.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn sets_home(&mut self) -> Result<(), JournalError> {
        while let Some(set) = self.take_set() {
            let written = set.write();
            self.set_ended(set, written)?;
        }
        Ok(())
    }

    /// A set that is due is not wanted any more. None is under way: whatever leads here waits for it.
    pub(super) fn drop_due(&mut self, id: VolumeId) {
        debug_assert!(!matches!(&self.way, Some(Way::Taken(client, _)) if *client == id));
        match self.way.take() {
            Some(Way::Due(set)) if set.client == id => drop(self.versions.set_ended(set, false)),
            other => self.way = other,
        }
    }

    /// Whether the set that is due or under way is this volume's.
    pub(super) fn goes_home(&self, id: VolumeId) -> bool {
        match &self.way {
            None => false,
            Some(Way::Due(set)) => set.client == id,
            Some(Way::Taken(client, _)) => *client == id,
        }
    }

    /// Whether a set has a block of a range.
    pub(super) fn goes_over(&self, sector: Sector, sectors: u64) -> bool {
        self.volumes.iter().filter(|volume| self.goes_home(volume.id)).any(|volume| {
            let (from, to) = volume.blocks_of(sector, sectors);
            match &self.way {
                None => false,
                Some(Way::Due(set)) => set.tuples.iter().any(|tuple| (from..to).contains(&tuple.home)),
                Some(Way::Taken(_, homes)) => {
                    homes.get(homes.partition_point(|home| *home < from)).is_some_and(|home| *home < to)
                }
            }
        })
    }

    /// Whether a change outside journals has to wait for a set.
    pub(super) fn waits_for_set(&self, sector: Sector, sectors: u64) -> bool {
        self.way.is_some() && (self.goes_over(sector, sectors) || self.watches(sector, sectors))
    }

    /// Whether a completion has to wait for a set: somebody looks at the disk then.
    pub fn completion_waits(&self, track: Track) -> bool {
        self.way.is_some() && self.versions.in_flight.looks_again(track)
    }
}
