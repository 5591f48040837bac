//! What the daemon does by itself: versions go home as sets, room is made, a guest that may be dead is settled, and everything ends.

use std::collections::BTreeSet;

use afterimage_order::HomeError;

use super::retained::{Retained, Stop};
use super::systems::FileSystems;
use super::volume::Volume;
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_SECTORS};
use crate::versions::arena::VolumeId;
use crate::versions::{Flying, HomeSet, Track, Tuple};

/// Blocks, by client and home, of which what was committed is not home.
pub type NotHome = BTreeSet<(VolumeId, FsBlock)>;

/// Whether the ext4 superblock is among them.
fn has_superblock(tuples: &[Tuple]) -> bool {
    tuples.iter().any(|t| t.home == FsBlock(0))
}

impl FileSystems {
    /// Whether a set is due, or under way.
    pub fn is_on_its_way(&self) -> bool {
        !self.versions.way.is_free()
    }

    /// Whether a set is due.
    pub fn is_due(&self) -> bool {
        self.versions.way.is_due()
    }

    /// The set that is due, to be written and given to [`FileSystems::set_ended`].
    pub fn take_set(&mut self) -> Option<HomeSet> {
        let set = self.versions.way.take()?;
        if let Some(volume) = self.volumes.list.iter().find(|v| v.id == set.client) {
            if has_superblock(&set.tuples) {
                self.volumes.forget_superblocks(&mut self.versions, volume.start, BLOCK_SECTORS);
            }
        }
        Some(set)
    }

    /// The set was written, or not. Goes on with what waited for it: another set may be due.
    ///
    /// # Errors
    /// It was not written; its versions are pending as before. Or the disk below failed.
    pub fn set_ended(&mut self, set: HomeSet, written: Result<(), HomeError>) -> Result<(), JournalError> {
        let id = set.client;
        let tuples = self.versions.set_ended(set, written.is_ok());
        let Self { volumes, versions, .. } = self;
        let v = volumes.list.iter().position(|volume| volume.id == id);
        match (v, written) {
            (None, Ok(())) => {}
            (Some(v), Ok(())) => {
                if has_superblock(&tuples) {
                    volumes.note_superblocks(versions, volumes.list[v].start, BLOCK_SECTORS);
                }
                if let Some(retained) = volumes.retained_mut(v) {
                    retained.log.release_early(versions);
                }
            }
            (_, Err(HomeError::Block(e))) => return Err(e.into()),
            (Some(v), Err(e)) => volumes.leave(v, versions, &e.to_string(), true)?,
            (None, Err(e)) => return Err(JournalError::Unsupported(e.to_string())),
        }
        // Others wait where the set was made for want of memory, in the middle of their own commit.
        for other in 0..volumes.list.len() {
            volumes.with(other, versions, |retained, versions| {
                let waits = Some(other) == v || retained.log.came_by.is_some() || retained.log.commit_seen;
                match waits && versions.way.is_free() {
                    true => retained.follow_on(versions),
                    false => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    /// Looks for what has to go home as sets, for somebody who wants all of it there. Whether a set is due; then it is to be asked again
    /// when that has ended.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn due(&mut self) -> Result<bool, JournalError> {
        for v in 0..self.volumes.list.len() {
            self.volumes.with(v, &mut self.versions, |retained, versions| {
                if versions.way.is_free() {
                    retained.follow(versions)?;
                }
                match versions.way.is_free() {
                    true => retained.go_home(versions, None),
                    false => Ok(()),
                }
            })?;
        }
        Ok(self.is_due())
    }

    /// Blocks whose newest version is not home, where no log decides what is durable.
    pub fn not_home(&self) -> NotHome {
        let retained =
            self.volumes.list.iter().filter(|v| v.retained().is_some() && !self.versions.applies());
        let of = |id| self.versions.recover(id, true).into_iter().map(move |t| (id, t.home));
        retained.flat_map(|volume| of(volume.id)).collect()
    }

    /// Drops from such a list what is home by now or not needed any more; what a newer version takes the place of is home with that one.
    /// Writes that are under way, or not posted, over the rest, or over what nothing goes home before.
    pub fn awaited(&self, versions: &mut NotHome) -> Vec<Track> {
        versions.retain(|(id, home)| self.versions.is_open(*id, *home));
        if versions.is_empty() {
            return Vec::new();
        }
        let over = |write: &&Flying| {
            write.look_again
                || self.versions.rooms().any(|(id, room)| {
                    let (from, to) = room.blocks_of(write.sector, write.sectors);
                    from < to && versions.range((*id, from)..(*id, to)).next().is_some()
                })
        };
        self.versions.in_flight.open().filter(over).map(Flying::track).collect()
    }

    /// Whether one of these writes is not posted yet.
    pub fn flies(&self, tracks: &[Track]) -> bool {
        tracks.iter().any(|track| self.versions.in_flight.holds(*track))
    }

    /// The journals of versions that nothing brings home but their guest's recovery are handed back: that finds them, whatever dies.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn hand_back(&mut self, versions: &NotHome) -> Result<(), JournalError> {
        for v in 0..self.volumes.list.len() {
            let id = self.volumes.list[v].id;
            let count = versions.iter().filter(|(of, _)| *of == id).count();
            if count > 0 {
                let why = format!("{count} blocks that only its own recovery writes home are to be durable");
                self.volumes.leave(v, &mut self.versions, &why, true)?;
            }
        }
        Ok(())
    }

    /// Everything that is pending goes home, while nobody else is served.
    pub(super) fn all_home(&mut self) -> Result<(), JournalError> {
        while self.due()? {
            self.sets_home()?;
        }
        Ok(())
    }

    /// What is due goes home, while nobody else is served.
    pub(super) fn sets_home(&mut self) -> Result<(), JournalError> {
        while let Some(set) = self.take_set() {
            let written = set.write();
            self.set_ended(set, written)?;
        }
        Ok(())
    }

    pub(super) fn settle(&mut self, v: usize) -> Result<(), JournalError> {
        self.volumes.with(v, &mut self.versions, Retained::settle).map(drop)
    }

    /// The guest may be dead, or only look so: writes home what is committed and not home, as far as a live guest cannot
    /// notice. Its log is kept.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn settle_all(&mut self) -> Result<(), JournalError> {
        (0..self.volumes.list.len()).try_for_each(|v| self.settle(v))?;
        self.versions.arena.trim(0);
        Ok(())
    }

    /// How much of the arena may be in use when there is room: an eighth less than is in use now.
    pub fn room_goal_bytes(&self) -> u64 {
        self.versions.arena.used_bytes().saturating_sub(self.versions.arena.bytes_max() / 8)
    }

    /// Makes room in the arena: blocks go to their own places on the disk, the oldest of the largest log first.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn make_room(&mut self, goal_bytes: u64) -> Result<(), JournalError> {
        let Self { volumes, versions, .. } = self;
        let mut retained: Vec<&mut Retained> =
            volumes.list.iter_mut().filter_map(Volume::retained_mut).collect();
        retained.sort_by_key(|r| std::cmp::Reverse(versions.arena.blocks_held(r.log.id)));
        retained.iter_mut().try_for_each(|retained| retained.spill(versions, goal_bytes))?;
        match versions.arena.used_bytes() > goal_bytes {
            true => self.evict_all(),
            false => Ok(()),
        }
    }

    /// Journals with versions that are not home are handed back to their guests, whose recovery finds them. What is pending is home.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn hand_back_overwritten(&mut self) -> Result<(), JournalError> {
        for v in 0..self.volumes.list.len() {
            self.volumes.with(v, &mut self.versions, |retained, versions| {
                match versions.query(retained.log.id).pending {
                    0 => Ok(()),
                    count => {
                        let why =
                            format!("under the new contract, {count} blocks that are not home would be lost");
                        Err(Stop::hand_back(why))
                    }
                }
            })?;
        }
        Ok(())
    }

    /// The log goes to its own place on the disk, as far as it can do without memory, also what is served from home: making the image complete
    /// then is short work.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn spill_all(&mut self) -> Result<(), JournalError> {
        self.evict_all()?;
        for Retained { log, place, .. } in self.volumes.list.iter_mut().filter_map(Volume::retained_mut) {
            place.put_log(&mut self.versions, log)?;
        }
        Ok(())
    }

    /// Whatever can do without memory goes to its own place on the disk.
    pub(super) fn evict_all(&mut self) -> Result<(), JournalError> {
        for Retained { log, place, .. } in self.volumes.list.iter_mut().filter_map(Volume::retained_mut) {
            place.evict_idle(&mut self.versions, log)?;
        }
        Ok(())
    }

    /// Makes the image complete without the arena, for a copy, while the guest goes on later: committed versions home,
    /// the rest of the log and the served superblock to the journal's place, durably.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn materialise(&mut self) -> Result<(), JournalError> {
        for v in 0..self.volumes.list.len() {
            self.settle(v)?;
            self.complete(v)?;
        }
        Ok(())
    }

    fn complete(&mut self, v: usize) -> Result<(), JournalError> {
        let Some(Retained { log, place, .. }) = self.volumes.retained_mut(v) else { return Ok(()) };
        place.complete(&mut self.versions, log)
    }

    /// The orderly end. With a guest attached, or one that may still live, its own recovery finds everything in the
    /// journal, whatever tail it writes and whoever serves it; without one the file systems are recovered and their journals
    /// are empty. Whether the arena is needed all the same: the guest believes in transactions that an earlier version gave up.
    ///
    /// # Errors
    /// The disk below failed; the arena stays the truth.
    pub fn finish(&mut self, attached: bool) -> Result<bool, JournalError> {
        let mut stays = false;
        for v in 0..self.volumes.list.len() {
            self.settle(v)?;
            let Self { volumes, versions, .. } = self;
            volumes.list[v].accept_orphan(versions)?;
            let Some(Retained { log, .. }) = volumes.list[v].retained() else { continue };
            if !attached {
                let start = volumes.list[v].start;
                volumes.forget_superblocks(versions, start, BLOCK_SECTORS);
                volumes.list[v].recover(versions)?;
                volumes.changed();
            } else if log.is_complete() {
                volumes.leave(v, versions, "the daemon ended in order", true)?;
            } else {
                self.complete(v)?;
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
        Ok(self.volumes.list.iter().any(|volume| volume.retained().is_some()))
    }
}
