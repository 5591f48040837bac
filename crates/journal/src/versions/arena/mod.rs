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
mod marks;
mod open;
mod pool;
mod records;
mod space;
mod tags;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock};
use map::{fence, Map, GROUP_SLOTS, PAGE};
use pool::Pool;
use tags::SlotTag;

pub use budget::Budget;
pub use file::own_folder;
pub(crate) use file::{place, remove};
pub use loan::Loan;
pub(crate) use marks::is_page;
pub use marks::Mark;
pub use open::Peeked;
pub use records::{Records, Seen, VolumeRecord};

/// Which of the arena's file systems, below [`VOLUMES_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// File systems of one arena: as many as a GUID partition table usually has entries.
pub const VOLUMES_MAX: usize = tags::RECORDS;

/// The most content that an arena can be made for, in bytes.
pub const BYTES_MAX: u64 = (map::SLOTS_MAX as u64 - 1) * PAGE;

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
    /// What is remembered of file systems beside their blocks.
    pub records: Records,
    /// Of each file system: block → where it is. Hashed with a key: a guest chooses the blocks.
    slots: Vec<HashMap<AreaBlock, Held>>,
    /// With those that were given up while they were lent.
    used_slots: u32,
    lent: loan::Lent,
    /// Blocks that are served from home, by that.
    at_home: BTreeMap<(VolumeId, FsBlock), AreaBlock>,
}

/// A block that is here.
#[derive(Clone, Copy, Debug)]
struct Held {
    slot: u32,
    /// See [`Arena::note`].
    note: Option<u32>,
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

    /// Puts a block's content into a free slot (`fill` gets memory that is faulted in, with any content, and says what is to be
    /// noted of what it puts there: see [`Arena::note`]), publishes it and frees the slot of its older content. Its mark is not carried over, unless it
    /// was served from home: it is not any more then. Replacing a block never fails for want of room, unless the tmpfs is full.
    ///
    /// # Errors
    /// [`JournalError::Full`] where [`Arena::bytes_max`] or the shared budget is reached: nothing has changed. An I/O
    /// error of kind *no space* where the tmpfs has no memory left. *Unsupported* for a volume that is none.
    pub fn store(
        &mut self,
        volume: VolumeId,
        at: AreaBlock,
        fill: &mut dyn FnMut(&mut Block) -> Option<u32>,
    ) -> Result<(), JournalError> {
        let Some(of) = self.slots.get(usize::from(volume.0)) else {
            return Err(JournalError::Unsupported(format!(
                "file system {} of a disk: an arena holds {VOLUMES_MAX}",
                volume.0
            )));
        };
        let (old, generation) = (of.get(&at).map(|held| held.slot), self.records.generation(volume));
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
        let note = fill(loan::free_slot_mut(&mut self.map, &self.lent, slot));
        taken.0 = None;
        drop(taken);
        let flags = self.flags_from_home(volume, at);
        let tag = SlotTag { sequence: self.sequence, volume: volume.0, block: at.0, generation, flags };
        self.sequence += 1;
        let words = tag.words(slot, self.salt);
        for (i, word) in words.iter().enumerate().skip(1) {
            self.map.tag(slot, i).store(*word, Ordering::Relaxed);
        }
        self.map.tag(slot, 0).store(words[0], Ordering::Release);
        self.used_slots += 1;
        self.slots[usize::from(volume.0)].insert(at, Held { slot, note });
        match old {
            Some(old) => self.clear_slot(old),
            None => self.leave_home(volume, at),
        }
        Ok(())
    }

    /// A block's content, if it is here.
    pub fn get(&self, volume: VolumeId, at: AreaBlock) -> Option<&Block> {
        Some(loan::slot(self, self.slot_of(volume, at)?))
    }

    /// When a block was stored: later ones have a higher number.
    pub fn stored(&self, volume: VolumeId, at: AreaBlock) -> Option<u64> {
        Some(self.map.tag(self.slot_of(volume, at)?, 0).load(Ordering::Relaxed))
    }

    /// What was noted of a block's content when it was stored: a checksum, made while the processor's caches held it. Forgotten
    /// when the content changes, and with the daemon.
    pub fn note(&self, volume: VolumeId, at: AreaBlock) -> Option<u32> {
        self.slots.get(usize::from(volume.0))?.get(&at)?.note
    }

    /// Frees a block's slot, and its home if it is served from there. Returns whether it was here.
    pub fn remove(&mut self, volume: VolumeId, at: AreaBlock) -> bool {
        self.leave_home(volume, at);
        self.free_block(volume, at)
    }

    fn free_block(&mut self, volume: VolumeId, at: AreaBlock) -> bool {
        let of = self.slots.get_mut(usize::from(volume.0));
        let Some(held) = of.and_then(|of| of.remove(&at)) else { return false };
        self.clear_slot(held.slot);
        self.give(1);
        true
    }

    /// The blocks of a file system that are here, in no order.
    pub fn blocks(&self, volume: VolumeId) -> Vec<AreaBlock> {
        self.slots.get(usize::from(volume.0)).map_or_else(Vec::new, |slots| slots.keys().copied().collect())
    }

    /// How many blocks of a file system are here.
    pub fn blocks_held(&self, volume: VolumeId) -> usize {
        self.slots.get(usize::from(volume.0)).map_or(0, HashMap::len)
    }

    /// Forgets a file system and its blocks, in one store, and frees their slots.
    pub fn clear_volume(&mut self, volume: VolumeId) {
        self.records.forget(volume);
        self.at_home.retain(|(of, _), _| *of != volume);
        let Some(slots) = self.slots.get_mut(usize::from(volume.0)).map(std::mem::take) else { return };
        self.give(slots.len() as u64);
        for held in slots.into_values() {
            self.clear_slot(held.slot);
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
            self.records.map = Arc::clone(&self.map);
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
        self.slots.get(usize::from(volume.0))?.get(&at).map(|held| held.slot)
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
        let granted = match self.budget.as_ref().map(|budget| (budget, budget.take_memory(room))) {
            None => room,
            Some((budget, 0)) => {
                budget.take_memory_anyway(1);
                1
            }
            Some((_, granted)) => granted,
        };
        let warmed = self.pool.warm(&self.map, granted);
        if let Some(budget) = &self.budget {
            budget.give_memory(granted - *warmed.as_ref().unwrap_or(&0));
        }
        match warmed.map_err(file::io_error(self.path(), "getting memory for"))? {
            0 => Err(JournalError::Full { bytes_max: self.bytes_max }),
            _ => Ok(()),
        }
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
