//! The daemon's own writes: home, at a commit, for memory or for a guest that may be dead; to the journal's place, when in doubt.

use afterimage_order::HomeError;

use super::systems::FileSystems;
use super::volume::Phase;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock};
use crate::versions::{HomeSet, SetError, Tuple, BATCH_BLOCKS};

impl FileSystems {
    /// Those of some versions that are pending go home now: a set is due.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn apply(&mut self, v: usize, tuples: &[Tuple]) -> Result<(), JournalError> {
        if !self.way.is_free() {
            // They stay pending.
            return Ok(());
        }
        match self.versions.make_set(self.volumes[v].id, tuples) {
            Ok(Some(set)) => {
                self.home_begins(v, &set.tuples);
                let homes = set.tuples.iter().map(|tuple| tuple.home).collect();
                self.way.begin(set.client, homes, Some(set));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(SetError::Below(e)) => Err(e.into()),
            Err(e) => self.leave(v, &e.to_string(), true),
        }
    }

    /// Whether a set is due, or under way.
    pub fn is_on_its_way(&self) -> bool {
        !self.way.is_free()
    }

    /// Whether a set is due.
    pub fn is_due(&self) -> bool {
        self.way.is_due()
    }

    /// The set that is due, to be written and given to [`FileSystems::set_ended`].
    pub fn take_set(&mut self) -> Option<HomeSet> {
        self.way.take()
    }

    /// The set was written, or not. Goes on with what waited for it: another set may be due.
    ///
    /// # Errors
    /// It was not written; its versions are pending as before. Or the disk below failed.
    pub fn set_ended(&mut self, set: HomeSet, written: Result<(), HomeError>) -> Result<(), JournalError> {
        let id = set.client;
        self.way.end();
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
            if waits && self.way.is_free() {
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
        for v in 0..self.volumes.len() {
            if self.way.is_free() {
                self.follow(v)?;
            }
            if self.way.is_free() {
                self.go_home(v, None)?;
            }
        }
        Ok(self.way.is_due())
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

    /// The guest may be dead, or only look so: writes home what is committed and not home, as far as a live guest cannot
    /// notice, and moves the served tail. The transaction that was being written is kept.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn settle_all(&mut self) -> Result<(), JournalError> {
        for v in 0..self.volumes.len() {
            self.settle(v)?;
        }
        self.versions.arena.trim(0);
        Ok(())
    }

    /// As [`FileSystems::settle_all`], where the guest has no request in flight.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn settle_gone(&mut self) -> Result<(), JournalError> {
        self.settle_all()?;
        for volume in &mut self.volumes {
            volume.release(&mut self.versions, 0);
        }
        self.versions.arena.trim(0);
        Ok(())
    }

    /// What is home of a file system is given up as far as it may be, and what can go home is due.
    pub(super) fn settle(&mut self, v: usize) -> Result<(), JournalError> {
        self.follow(v)?;
        self.go_home(v, None)?;
        self.volumes[v].release(&mut self.versions, 1);
        Ok(())
    }

    /// Versions that are still the newest and pending go home, `some` of them or all: a set is due, if nothing stands against it.
    /// After a power cut under `power-window` the disk holds whole transactions: there all of them do.
    pub(super) fn go_home(&mut self, v: usize, some: Option<Vec<Tuple>>) -> Result<(), JournalError> {
        let volume = &self.volumes[v];
        if volume.log().is_none_or(|log| log.suspended) || self.versions.query(volume.id).pending == 0 {
            return Ok(());
        }
        let some = some.filter(|_| !self.versions.applies());
        let tuples = some.unwrap_or_else(|| self.versions.recover(volume.id, false));
        self.apply(v, &tuples)
    }

    /// How much of the arena may be in use when there is room: an eighth less than is in use now.
    pub fn room_goal_bytes(&self) -> u64 {
        self.versions.arena.used_bytes().saturating_sub(self.versions.arena.bytes_max() / 8)
    }

    /// Makes room in the arena, if that can be had. First what is home, then the oldest transactions go home, last blocks that are no
    /// version's go to their own place on the disk. Whether a set is due first; then it is to be asked again when that has ended.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn make_room(&mut self, goal: u64) -> Result<bool, JournalError> {
        while self.versions.arena.used_bytes() > goal {
            let before = self.versions.arena.used_bytes();
            let held = |v: &usize| self.volumes[*v].log().map_or(0, |l| l.transactions.len());
            let Some(v) = (0..self.volumes.len()).filter(|v| held(v) > 0).max_by_key(held) else { break };
            self.relieve(v)?;
            if self.way.is_due() {
                return Ok(true);
            }
            if self.versions.arena.used_bytes() == before {
                break;
            }
        }
        if self.versions.arena.used_bytes() > goal {
            self.evict_all()?;
        }
        Ok(false)
    }

    /// Whatever can do without memory goes to its own place on the disk.
    pub(super) fn evict_all(&mut self) -> Result<(), JournalError> {
        (0..self.volumes.len()).try_for_each(|v| self.evict_idle(v))
    }

    /// The oldest transaction of a file system goes home and is given up, if nothing stands against it.
    pub(super) fn relieve(&mut self, v: usize) -> Result<(), JournalError> {
        let id = self.volumes[v].id;
        let Some(front) = self.volumes[v].log().and_then(|l| l.transactions.front()) else { return Ok(()) };
        let tid = front.tid;
        let newest = |home: &FsBlock| {
            let version = self.versions.area().version(id, *home).filter(|v| v.tid == tid)?;
            Some(version.tuple(*home))
        };
        let tuples = front.homes.iter().filter_map(newest).collect();
        self.go_home(v, Some(tuples))?;
        self.volumes[v].release(&mut self.versions, 1);
        if self.volumes[v].log().and_then(|l| l.transactions.front()).is_some_and(|front| front.tid == tid)
            && self.volumes[v].may_release(self.versions.mistake)
        {
            self.volumes[v].drop_passed(&mut self.versions, 1);
        }
        Ok(())
    }

    /// Sends blocks that no version waits for to their own place on the disk: those of the transaction that is being
    /// written, and those of committed ones but for versions that must stay marked.
    fn evict_idle(&mut self, v: usize) -> Result<(), JournalError> {
        let id = self.volumes[v].id;
        if self.volumes[v].log().is_none() {
            return Ok(());
        }
        let mut idle: Vec<AreaBlock> = self
            .versions
            .arena
            .blocks(id)
            .into_iter()
            .filter(|at| *at != AreaBlock(0) && !self.versions.arena.is_overwritten(id, *at))
            .collect();
        idle.sort_unstable();
        for idle in idle.chunks(BATCH_BLOCKS) {
            let blocks: Vec<(AreaBlock, Block)> =
                idle.iter().filter_map(|at| Some((*at, *self.versions.arena.get(id, *at)?))).collect();
            self.evict(v, &blocks)?;
        }
        Ok(())
    }

    /// Sends blocks to their own place on the disk and forgets them here.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn evict(&mut self, v: usize, blocks: &[(AreaBlock, Block)]) -> Result<(), JournalError> {
        let volume = &mut self.volumes[v];
        if volume.log().is_none() {
            return Ok(());
        }
        volume.disown(&mut self.versions)?;
        self.versions.evict(volume.id, blocks)?;
        if let Some(log) = volume.log_mut() {
            log.spilled = true;
        }
        Ok(())
    }

    /// Stops absorbing. `keep`: the file system is the same, and its own recovery must find every committed transaction
    /// that is not home on the disk; otherwise nothing that was committed may go home any more. Either
    /// way the disk holds what the guest wrote.
    ///
    /// # Errors
    /// The disk below failed; nothing was forgotten then.
    pub(super) fn leave(&mut self, v: usize, why: &str, keep: bool) -> Result<(), JournalError> {
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        tracing::info!(start_sector = self.volumes[v].start.0, why, "a journal is no longer retained");
        let clamp = keep.then_some(log.tail);
        // As it was shown all the time: nothing that comes before that tail is needed.
        let superblock = log.served(self.versions.mistake);
        self.volumes[v].put_in_place(&mut self.versions, keep)?;
        self.volumes[v].write_unstamped(&mut self.versions, &superblock)?;
        self.disarm(v, why);
        self.volumes[v].clamp = clamp;
        Ok(())
    }

    /// Makes the image complete without the arena, for a copy, while the guest goes on later: committed versions home,
    /// the rest of the log and the served superblock to the journal's place, durably.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn materialise(&mut self) -> Result<(), JournalError> {
        for v in 0..self.volumes.len() {
            self.settle(v)?;
            self.volumes[v].complete(&mut self.versions)?;
        }
        Ok(())
    }

    /// The orderly end. With a guest attached, or one that may still live, its own recovery finds everything in the
    /// journal, whatever tail it writes and whoever serves it; without one the file systems are recovered and their journals
    /// are empty. Whether the arena is needed all the same: the guest believes in transactions of which nothing is known.
    ///
    /// # Errors
    /// The disk below failed; the arena stays the truth.
    pub fn finish(&mut self, attached: bool) -> Result<bool, JournalError> {
        let mut stays = false;
        for v in 0..self.volumes.len() {
            self.settle(v)?;
            let Some(log) = self.volumes[v].log() else { continue };
            if !attached {
                self.recover(v)?;
            } else if log.knows_passed(&self.versions.arena, self.volumes[v].id) {
                self.leave(v, "the daemon ended in order", true)?;
            } else {
                self.volumes[v].complete(&mut self.versions)?;
                stays = true;
            }
        }
        Ok(stays)
    }

    /// The orderly end while a guest may live that an earlier daemon served, and that has not come back: what it committed stays
    /// retained, and the image is complete without the arena all the same, as a copy would be. Whether there is anything.
    ///
    /// # Errors
    /// The disk below failed; the arena stays the truth.
    pub fn stay(&mut self) -> Result<bool, JournalError> {
        self.materialise()?;
        Ok(self.volumes.iter().any(|volume| volume.log().is_some()))
    }

    /// What the guest's own recovery would do, all of it: the guest is dead.
    fn recover(&mut self, v: usize) -> Result<(), JournalError> {
        let (id, start) = (self.volumes[v].id, self.volumes[v].start);
        let tuples = self.versions.recover(id, true);
        self.home_begins(v, &tuples);
        let on_disk = self.versions.below.read_block(start)?;
        self.versions.write_home(id, &tuples, |home, content| {
            if home == FsBlock(0) {
                super::errors::keep_errors(content, &on_disk);
            }
        })?;
        self.home_ends(v, &tuples)?;
        self.versions.below.sync()?;
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let empty = log.superblock.with_tail(log.head.0.next(), None);
        self.volumes[v].write_unstamped(&mut self.versions, &empty)?;
        self.disarm(v, "recovered: waiting for the next mount");
        if let Phase::Armed { .. } = self.volumes[v].phase {
            self.volumes[v].clamp = None;
        }
        Ok(())
    }
}
