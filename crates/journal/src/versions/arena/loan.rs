//! Content that somebody reads without the arena: while a loan lasts its slots keep what they hold, whatever becomes of the blocks.
//!
//! A slot that is given up meanwhile is parked: it becomes free when the loan ends. The process's memory holds what it held; a daemon
//! killed meanwhile leaves an arena in which parked slots are free.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::map::Map;
use super::{Arena, VolumeId};
use crate::ids::{AreaBlock, Block};

/// What is lent of an arena, at most one loan at a time.
#[derive(Debug, Default)]
pub(super) struct Lent {
    /// Ascending.
    slots: Arc<[u32]>,
    parked: Vec<u32>,
}

impl Lent {
    fn holds(&self, slot: u32) -> bool {
        self.slots.binary_search(&slot).is_ok()
    }

    /// Keeps a slot that was given up from being used again, if it is lent. Whether it is.
    pub(super) fn park(&mut self, slot: u32) -> bool {
        let lent = self.holds(slot);
        if lent {
            self.parked.push(slot);
        }
        lent
    }

    /// Slots that are no block's any more and not free yet.
    pub(super) fn parked(&self) -> u32 {
        self.parked.len() as u32
    }
}

/// Blocks to be read without the arena. To be given back: see [`Arena::take_back`]. One that is dropped costs its slots until the arena
/// is opened again.
#[derive(Debug)]
pub struct Loan {
    map: Arc<Map>,
    slots: Arc<[u32]>,
    /// In the order in which they were asked for.
    order: Vec<u32>,
}

impl Loan {
    /// The content of the block that was asked for as the `n`th of those that were there.
    ///
    /// # Panics
    /// There were fewer.
    pub fn block(&self, n: usize) -> &Block {
        // SAFETY: the slot is in `slots`, which the arena remembers from `lend` until it was given this very loan back. Until then
        // `free_slot_mut`, through which alone slots are written, refuses it, and it is not given out as free.
        unsafe { self.map.slot(self.order[n]) }
    }
}

impl Arena {
    /// Lends blocks: those that are here, in the order given, each once.
    ///
    /// # Panics
    /// Something is lent already.
    pub fn lend(&mut self, volume: VolumeId, blocks: impl Iterator<Item = AreaBlock>) -> Loan {
        assert!(self.lent.slots.is_empty(), "one loan at a time");
        let order: Vec<u32> = blocks.filter_map(|at| self.slot_of(volume, at)).collect();
        let mut slots = order.clone();
        slots.sort_unstable();
        let slots: Arc<[u32]> = slots.into();
        self.lent.slots = Arc::clone(&slots);
        Loan { map: Arc::clone(&self.map), slots, order }
    }

    /// Ends a loan: what was given up meanwhile is free.
    ///
    /// # Panics
    /// It is not this arena's.
    pub fn take_back(&mut self, loan: Loan) {
        assert!(Arc::ptr_eq(&loan.slots, &self.lent.slots), "another arena's loan");
        drop(loan);
        let Lent { parked, .. } = std::mem::take(&mut self.lent);
        parked.into_iter().for_each(|slot| self.free(slot));
    }
}

/// A slot's content.
pub(super) fn slot(arena: &Arena, slot: u32) -> &Block {
    // SAFETY: slots are written through `free_slot_mut` alone, with the exclusive borrow of the arena's own handle of the map, which
    // cannot coexist with this one of the arena.
    unsafe { arena.map.slot(slot) }
}

/// A slot's content, to be written.
///
/// # Panics
/// It is lent.
pub(super) fn free_slot_mut<'a>(map: &'a mut Arc<Map>, lent: &Lent, slot: u32) -> &'a mut Block {
    assert!(!lent.holds(slot), "nobody writes to what is lent");
    // SAFETY: references into slots are made here, with the exclusive borrow of the arena's handle, by `slot`, with a shared one of it, and
    // by `Loan::block`, of slots that are lent: this one is not, and becomes lent only through an exclusive borrow of the arena.
    unsafe { map.slot_mut(slot) }
}

/// Stores a word of a slot's content, in one store.
///
/// # Panics
/// It is lent, or has no such word.
pub(super) fn store_word(map: &mut Arc<Map>, lent: &Lent, slot: u32, word: usize, value: u64) {
    let content = &mut free_slot_mut(map, lent, slot)[word * 8..word * 8 + 8];
    // SAFETY: the eight bytes are borrowed exclusively, and lie at a multiple of eight from a slot's beginning, which is a page's: the
    // pointer is valid and aligned.
    let word = unsafe { AtomicU64::from_ptr(content.as_mut_ptr().cast()) };
    word.store(value, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::super::ArenaIdentity;
    use super::*;

    #[test]
    fn what_is_lent_keeps_its_content_whatever_becomes_of_the_blocks() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let path = folder.path().join("a.arena");
        let mut arena = Arena::create(&path, ArenaIdentity::default(), 64 << 12).expect("an arena");
        let id = VolumeId(0);
        let store = |arena: &mut Arena, at: u32, byte: u8| {
            arena
                .store(id, AreaBlock(at), &mut |block| {
                    block.fill(byte);
                    None
                })
                .expect("room");
        };
        (0..8).for_each(|at| store(&mut arena, at, at as u8));
        let loan = arena.lend(id, [5, 99, 2, 3].map(AreaBlock).into_iter());
        // Replaced, removed, and all that is free written to.
        store(&mut arena, 5, 77);
        arena.remove(id, AreaBlock(2));
        (8..60).for_each(|at| store(&mut arena, at, 0xee));
        for (n, byte) in [5, 2, 3].into_iter().enumerate() {
            assert!(loan.block(n).iter().all(|b| *b == byte), "the {n}th");
        }
        assert_eq!(arena.get(id, AreaBlock(5)).map(|b| b[0]), Some(77));
        let used_bytes = arena.used_bytes();
        arena.take_back(loan);
        assert_eq!(arena.used_bytes(), used_bytes - 2 * 4096, "both are free");
        store(&mut arena, 60, 1);
    }
}
