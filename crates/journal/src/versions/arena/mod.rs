//! The retained-journal arena: memory that outlives the daemon (a file on tmpfs, mapped shared).
//!
//! ```text
//! store ─► a free slot, hot ─► fill ─► its tag says volume, block, sequence ─► the older content's slot is freed
//! open  ─► header, records, tags ─► index (volume, block) ─► slot
//! ```
//!
//! **What a kill leaves.** A slot's content, and all of its tag but the sequence, are stored before the sequence, which
//! makes the tag valid in one store; only then is the tag of the block's older content cleared. So a daemon killed at
//! any instant leaves, for every journal block, its old content or its new one, whole: never a mixture, never neither.
//! Both may be there; the higher sequence counts. A volume's record has two copies of which one word names the valid
//! one, so a record changes whole, and [`Arena::clear_volume`] forgets a volume and all its blocks in one store: the
//! record's generation goes up, and tags of a lower one count for nothing. Nothing here survives a power cut: it is
//! memory.
//!
//! **No SIGBUS.** Every page is allocated in the file before it is touched in the mapping, so a tmpfs that is full is an
//! error of [`Arena::store`]. The file only ever grows. Other processes are kept out by a lock that dies with its holder.

mod budget;
mod file;
mod loan;
mod map;
mod open;
mod pool;
mod space;
mod tags;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, Tid};
use map::{fence, Map, GROUP_SLOTS, PAGE};
use pool::Pool;
use tags::SlotTag;

pub use budget::Budget;
pub use file::own_folder;
pub(crate) use file::{place, remove};
pub use loan::Loan;

/// Which of the arena's file systems, below [`VOLUMES_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// File systems of one arena: as many as a GUID partition table usually has entries.
pub const VOLUMES_MAX: usize = tags::RECORDS;

/// Slots that are given memory at once: 2 MiB.
const WARM_SLOTS: u32 = 4 * GROUP_SLOTS;

/// What identifies the image that an arena belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaIdentity {
    /// Random, repeated in `FILE.state`.
    pub uuid: [u8; 16],
    /// The image's inode.
    pub inode: u64,
    /// The image's size in bytes.
    pub size_bytes: u64,
}

/// What is remembered of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeRecord {
    /// First sector on the disk.
    pub start_sector: u64,
    /// File system UUID.
    pub fs_uuid: [u8; 16],
    /// The served tail: transaction id and block. Published in one store.
    pub tail: (Tid, AreaBlock),
    /// Journal-area writes are absorbed.
    pub absorbing: bool,
    /// The served superblock was read since the guest last wrote one: it may be in its own recovery.
    pub being_read: bool,
    /// The journal's superblock on the disk bears this arena's stamp.
    pub stamped: bool,
}

/// What is remembered of the disk itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// ext4's superblock.
    FileSystem,
    /// The journal's superblock, where it bears no stamp.
    Journal,
}

impl Seen {
    fn word(self) -> usize {
        tags::SEEN_WORD + self as usize
    }
}

/// A file system as this process sees it.
#[derive(Debug, Default)]
struct Volume {
    record: Option<VolumeRecord>,
    /// Tags of a lower one were forgotten.
    generation: u64,
    /// Which copy of the record is valid.
    copy: usize,
    /// Hashed with a key: a guest chooses the blocks.
    slots: HashMap<AreaBlock, u32>,
}

/// The arena of one disk.
#[derive(Debug)]
pub struct Arena {
    pool: Arc<Pool>,
    map: Arc<Map>,
    identity: ArenaIdentity,
    salt: u32,
    bytes_max: u64,
    budget: Option<Budget>,
    /// The next store's.
    sequence: u64,
    volumes: Vec<Volume>,
    /// With those that were given up while they were lent.
    used_slots: u32,
    lent: loan::Lent,
}

/// Bytes taken from a budget, given back unless the store is carried through.
struct Taken<'a>(Option<&'a Budget>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(budget) = self.0 {
            budget.give(PAGE);
        }
    }
}

impl Arena {
    /// Its file.
    pub fn path(&self) -> &Path {
        self.pool.path()
    }

    /// The image that it belongs to.
    pub fn identity(&self) -> ArenaIdentity {
        self.identity
    }

    /// Removes its name: the memory goes with this value. For an image that was closed in order.
    ///
    /// # Errors
    /// The name cannot be removed.
    pub fn remove_file(self) -> Result<(), JournalError> {
        remove(self.path()).map_err(file::io_error(self.path(), "removing"))
    }

    /// Counts its content in a budget that other arenas share, from now on and with what it holds.
    pub fn set_budget(&mut self, budget: Budget) {
        let (used_bytes, slots) = (self.used_bytes(), self.used_slots + self.pool.space().hot_slots());
        if let Some(old) = self.budget.take() {
            old.part(&self.pool, used_bytes, slots);
        }
        budget.join(&self.pool, used_bytes, slots);
        self.budget = Some(budget);
    }

    /// Puts a block's content into a free slot (`fill` gets memory that is faulted in, with any content), publishes it
    /// and frees the slot of its older content. The overwritten mark is not carried over. Replacing a block never fails
    /// for want of room, unless the tmpfs is full.
    ///
    /// # Errors
    /// [`JournalError::Full`] where [`Arena::bytes_max`] or the shared budget is reached: nothing has changed. An I/O
    /// error of kind *no space* where the tmpfs has no memory left. *Unsupported* for a volume that is none.
    pub fn store(
        &mut self,
        volume: VolumeId,
        at: AreaBlock,
        fill: &mut dyn FnMut(&mut Block),
    ) -> Result<(), JournalError> {
        let Some(of) = self.volumes.get(usize::from(volume.0)) else {
            return Err(JournalError::Unsupported(format!(
                "file system {} of a disk: an arena holds {VOLUMES_MAX}",
                volume.0
            )));
        };
        let (old, generation) = (of.slots.get(&at).copied(), of.generation);
        if old.is_none() && self.used_bytes() + PAGE > self.bytes_max {
            return Err(JournalError::Full { bytes_max: self.bytes_max });
        }
        let budget = self.budget.clone();
        let mut taken = Taken(None);
        if let (None, Some(budget)) = (old, &budget) {
            if !budget.take(PAGE) {
                return Err(JournalError::Full { bytes_max: budget.bytes_max() });
            }
            taken.0 = Some(budget);
        }
        let slot = self.free_slot()?;
        // The slot's tag was cleared before anything is stored into the slot.
        fence();
        fill(loan::free_slot_mut(&mut self.map, &self.lent, slot));
        taken.0 = None;
        drop(taken);
        let tag = SlotTag {
            sequence: self.sequence,
            volume: volume.0,
            block: at.0,
            generation,
            overwritten: false,
            home: false,
        };
        self.sequence += 1;
        let words = tag.words(slot, self.salt);
        for (i, word) in words.iter().enumerate().skip(1) {
            self.map.tag(slot, i).store(*word, Ordering::Relaxed);
        }
        self.map.tag(slot, 0).store(words[0], Ordering::Release);
        self.used_slots += 1;
        self.volumes[usize::from(volume.0)].slots.insert(at, slot);
        if let Some(old) = old {
            self.clear_slot(old);
        }
        Ok(())
    }

    /// A block's content, if it is here.
    pub fn get(&self, volume: VolumeId, at: AreaBlock) -> Option<&Block> {
        Some(loan::slot(self, self.slot_of(volume, at)?))
    }

    /// A block's content, to be changed in place: a kill leaves any part of the change.
    ///
    /// # Panics
    /// The block is lent.
    pub(crate) fn get_mut(&mut self, volume: VolumeId, at: AreaBlock) -> Option<&mut Block> {
        let slot = self.slot_of(volume, at)?;
        Some(loan::free_slot_mut(&mut self.map, &self.lent, slot))
    }

    /// Frees a block's slot. Returns whether it was there.
    pub fn remove(&mut self, volume: VolumeId, at: AreaBlock) -> bool {
        let Some(of) = self.volumes.get_mut(usize::from(volume.0)) else { return false };
        let Some(slot) = of.slots.remove(&at) else { return false };
        self.clear_slot(slot);
        self.give(1);
        true
    }

    /// Remembers that the block's home was written with something else after it was committed, so that it is not home; goes
    /// with the slot.
    pub fn set_overwritten(&mut self, volume: VolumeId, at: AreaBlock, overwritten: bool) {
        let Some(slot) = self.slot_of(volume, at) else { return };
        let key = self.map.tag(slot, 1);
        let value = key.load(Ordering::Relaxed);
        let value = value & !tags::HOME;
        let value = if overwritten { value | tags::OVERWRITTEN } else { value & !tags::OVERWRITTEN };
        key.store(value, Ordering::Release);
    }

    /// Remembers that the block is home, or is not any more, and takes the overwritten mark away; goes with the slot.
    pub fn set_home(&mut self, volume: VolumeId, at: AreaBlock, home: bool) {
        let Some(slot) = self.slot_of(volume, at) else { return };
        let key = self.map.tag(slot, 1);
        let value = key.load(Ordering::Relaxed) & !(tags::HOME | tags::OVERWRITTEN);
        key.store(if home { value | tags::HOME } else { value }, Ordering::Release);
    }

    /// See [`Arena::set_home`].
    pub fn is_home(&self, volume: VolumeId, at: AreaBlock) -> bool {
        self.slot_of(volume, at)
            .is_some_and(|slot| self.map.tag(slot, 1).load(Ordering::Relaxed) & tags::HOME != 0)
    }

    /// See [`Arena::set_overwritten`].
    pub fn is_overwritten(&self, volume: VolumeId, at: AreaBlock) -> bool {
        self.slot_of(volume, at)
            .is_some_and(|slot| self.map.tag(slot, 1).load(Ordering::Relaxed) & tags::OVERWRITTEN != 0)
    }

    /// The blocks of a file system that are here, in no order.
    pub fn blocks(&self, volume: VolumeId) -> Vec<AreaBlock> {
        self.volumes.get(usize::from(volume.0)).map_or_else(Vec::new, |v| v.slots.keys().copied().collect())
    }

    /// How many blocks of a file system are here.
    pub fn blocks_held(&self, volume: VolumeId) -> usize {
        self.volumes.get(usize::from(volume.0)).map_or(0, |v| v.slots.len())
    }

    /// What is remembered of a file system.
    pub fn volume(&self, volume: VolumeId) -> Option<VolumeRecord> {
        self.volumes.get(usize::from(volume.0))?.record
    }

    /// All file systems that are remembered.
    pub fn volumes(&self) -> Vec<(VolumeId, VolumeRecord)> {
        (0..).zip(&self.volumes).filter_map(|(i, v)| Some((VolumeId(i), v.record?))).collect()
    }

    /// Remembers a file system. A changed tail is published in one 8-byte store; whatever else changes, a kill leaves
    /// the whole old record or the whole new one. Blocks that are here stay.
    ///
    /// # Panics
    /// The volume is not below [`VOLUMES_MAX`].
    pub fn set_volume(&mut self, volume: VolumeId, record: VolumeRecord) {
        let index = usize::from(volume.0);
        let of = &mut self.volumes[index];
        let old = of.record.replace(record);
        if old == Some(record) {
            return;
        }
        if old.is_some_and(|old| VolumeRecord { tail: record.tail, ..old } == record) {
            let word = tags::record_word(index, 1 + of.copy * tags::COPY_WORDS);
            self.map.head(word).store(tags::tail_word(record.tail), Ordering::Release);
            return;
        }
        of.copy = 1 - of.copy;
        // The copy that is written was given up by an earlier state, whose store must not come after.
        fence();
        tags::put_copy(&self.map, index, of.copy, &tags::copy_words(&record, of.generation, self.salt));
        let state = tags::state_word(of.generation, of.copy, true, self.salt);
        self.map.head(tags::record_word(index, 0)).store(state, Ordering::Release);
    }

    /// How often what was remembered under this number was forgotten: with the arena's UUID, which absorbing it is.
    pub fn generation(&self, volume: VolumeId) -> u64 {
        self.volumes.get(usize::from(volume.0)).map_or(0, |v| v.generation)
    }

    /// The checksum of one of the file system's superblocks as it is on the disk; `None` where that is not known, as while a
    /// write of it may be under way.
    pub fn seen(&self, volume: VolumeId, what: Seen) -> Option<u32> {
        self.volumes.get(usize::from(volume.0))?;
        let word = self.map.head(tags::record_word(volume.0.into(), what.word())).load(Ordering::Acquire);
        (word & tags::SEEN != 0).then_some(word as u32)
    }

    /// See [`Arena::seen`]. `None` is stored before such a write begins.
    pub fn set_seen(&mut self, volume: VolumeId, what: Seen, seen: Option<u32>) {
        if usize::from(volume.0) >= VOLUMES_MAX {
            return;
        }
        let word = seen.map_or(0, |check| tags::SEEN | u64::from(check));
        self.map.head(tags::record_word(volume.0.into(), what.word())).store(word, Ordering::Release);
        fence();
    }

    /// Forgets a file system and its blocks, in one store, and frees their slots.
    pub fn clear_volume(&mut self, volume: VolumeId) {
        let index = usize::from(volume.0);
        let Some(of) = self.volumes.get_mut(index) else { return };
        of.record = None;
        of.generation += 1;
        let state = tags::state_word(of.generation, of.copy, false, self.salt);
        self.map.head(tags::record_word(index, 0)).store(state, Ordering::Release);
        let slots = std::mem::take(&mut of.slots);
        self.give(slots.len() as u64);
        for slot in slots.into_values() {
            self.clear_slot(slot);
        }
    }

    /// Bytes of content held.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.used_slots) * PAGE
    }

    /// Memory that the file takes, content, spare slots and tags together. Asks the operating system.
    pub fn resident_bytes(&self) -> u64 {
        file::resident_bytes(self.pool.file())
    }

    /// The most content it takes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Changes the bound. Below what is held nothing is lost: stores of further blocks fail until enough was freed.
    ///
    /// # Errors
    /// The file cannot grow to it: the old bound stays.
    pub fn set_bytes_max(&mut self, bytes_max: u64) -> Result<(), JournalError> {
        let (old, slots) = (self.map.slots(), file::slots_for(self.path(), bytes_max)?);
        if slots > old {
            let failed = file::io_error(self.path(), "enlarging");
            self.pool.file().set_len(map::file_bytes(slots)).map_err(&failed)?;
            self.map = Arc::new(Map::new(self.pool.file(), slots).map_err(&failed)?);
            self.pool.space().grow(old, slots - old);
        }
        self.bytes_max = bytes_max;
        self.map.head(tags::BYTES_MAX_WORD).store(bytes_max, Ordering::Release);
        Ok(())
    }

    /// Gives memory of free slots back but for `spare_bytes`.
    pub fn trim(&mut self, spare_bytes: u64) {
        let keep = u32::try_from(spare_bytes / PAGE).unwrap_or(u32::MAX);
        let slots = self.pool.cool(keep);
        if let Some(budget) = &self.budget {
            budget.give_memory(slots);
        }
    }

    fn slot_of(&self, volume: VolumeId, at: AreaBlock) -> Option<u32> {
        self.volumes.get(usize::from(volume.0))?.slots.get(&at).copied()
    }

    /// Clears a slot's tag. What made that right was stored before.
    fn clear_slot(&mut self, slot: u32) {
        self.map.tag(slot, 0).store(0, Ordering::Release);
        if !self.lent.park(slot) {
            self.free(slot);
        }
    }

    fn free(&mut self, slot: u32) {
        self.pool.space().push(slot);
        self.used_slots -= 1;
    }

    fn give(&self, slots: u64) {
        if let Some(budget) = &self.budget {
            budget.give(slots * PAGE);
        }
    }

    /// Takes a free slot that has memory.
    fn free_slot(&mut self) -> Result<u32, JournalError> {
        loop {
            // In a statement of its own: the lock ends with it.
            let slot = self.pool.space().pop();
            match slot {
                Some(slot) => return Ok(slot),
                // Another arena may take what is warmed here before it is popped; it needs each slot but once.
                None => self.warm()?,
            }
        }
    }

    /// Gives cold slots memory, as many as there is memory for, up to [`WARM_SLOTS`], within the bounds.
    fn warm(&mut self) -> Result<(), JournalError> {
        let slots_max = self.bytes_max / PAGE + 1;
        // At least one, to replace a block while the bound is at or below what is held.
        let room = slots_max.saturating_sub(self.used_slots.into()).clamp(1, WARM_SLOTS.into()) as u32;
        let Some(budget) = &self.budget else { return self.warm_up_to(room).map(|_| ()) };
        let granted = match budget.take_memory(room) {
            0 => {
                budget.take_memory_anyway(1);
                1
            }
            granted => granted,
        };
        let warmed = self.warm_up_to(granted);
        budget.give_memory(granted - *warmed.as_ref().unwrap_or(&0));
        warmed.map(|_| ())
    }

    /// Gives at most `want` cold slots memory. Says how many.
    fn warm_up_to(&self, mut want: u32) -> Result<u32, JournalError> {
        // Held until they are free slots like others, and while the memory comes: see `Pool`.
        let mut space = self.pool.space();
        while let Some((first, slots)) = space.coldest_run(want).filter(|run| run.1 > 0) {
            match self.back(first, slots) {
                Ok(()) => {
                    space.warm(slots);
                    return Ok(slots);
                }
                Err(e) if e.kind() == ErrorKind::StorageFull && slots > 1 => want = slots / 2,
                Err(e) => return Err(file::io_error(self.path(), "getting memory for")(e)),
            }
        }
        Err(JournalError::Full { bytes_max: self.bytes_max })
    }

    /// Puts memory behind a run of slots and their tags.
    fn back(&self, first: u32, slots: u32) -> std::io::Result<()> {
        let tags_at = map::group_at(first);
        let end = map::slot_at(first + slots - 1) + PAGE;
        let at = if first % GROUP_SLOTS == 0 { tags_at } else { map::slot_at(first) };
        if at != tags_at {
            file::allocate(self.pool.file(), tags_at, PAGE)?;
        }
        file::allocate(self.pool.file(), at, end - at)?;
        self.map.populate(at, end - at)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let slots = self.used_slots + self.pool.retire();
        let content = self.used_slots - self.lent.parked();
        if let Some(budget) = &self.budget {
            budget.part(&self.pool, u64::from(content) * PAGE, slots);
        }
    }
}
