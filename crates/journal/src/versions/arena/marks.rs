//! Where blocks stand on their way home: in the tag of a block that is here; of one that stands on the disk alone, in a page of bytes.
//!
//! The pages are blocks of the same file system, behind those that any journal has. A byte changes in one store, before the slot is given up.

use std::sync::atomic::Ordering;

use super::map::PAGE;
use super::{loan, tags, Arena, VolumeId};
use crate::ids::AreaBlock;

/// Where a block stands on its way home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Its home was written with something else after it was committed.
    Overwritten,
    /// Its home holds it.
    Home,
    /// It was home, and something else was written there since.
    Rewritten,
    /// What its home is written with was under way at the commit: it is older.
    Older,
}

/// The first page.
const PAGES_AT: u32 = 5 << 29;

/// Of the arena, the part that pages may take: they may be of a journal of which little is used.
const PART: u64 = 16;

/// A byte's values. (A page of zeroes is a hole in a sparse copy.)
const NOTHING: u8 = 0xff;
const UNMARKED: u8 = 1;
const MARKS: [(u8, Mark, u64); 4] = [
    (2, Mark::Overwritten, tags::OVERWRITTEN),
    (3, Mark::Home, tags::HOME),
    (4, Mark::Rewritten, tags::HOME | tags::OVERWRITTEN),
    (5, Mark::Older, tags::OLDER | tags::OVERWRITTEN),
];

fn place(at: AreaBlock) -> (AreaBlock, usize) {
    let bytes = PAGE as u32;
    (AreaBlock(PAGES_AT + at.0 / bytes), (at.0 % bytes) as usize)
}

impl Arena {
    /// Makes room for the marks of so many blocks, if there is some; without it they are not known of blocks that are given up.
    pub fn reserve_marks(&mut self, volume: VolumeId, blocks: u32) {
        let pages = u64::from(blocks).div_ceil(PAGE);
        if pages > self.bytes_max() / PAGE / PART {
            return;
        }
        for page in (PAGES_AT..).take(pages as usize) {
            let cleared = self.store(volume, AreaBlock(page), &mut |page| {
                page.fill(NOTHING);
                None
            });
            if cleared.is_err() {
                return;
            }
        }
    }

    fn byte(&self, volume: VolumeId, at: AreaBlock) -> Option<u8> {
        let (page, byte) = place(at);
        self.get(volume, page)?.get(byte).copied()
    }

    fn set_byte(&mut self, volume: VolumeId, at: AreaBlock, value: u8) {
        let (page, byte) = place(at);
        let Some(slot) = self.slot_of(volume, page) else { return };
        // Pages are never lent.
        loan::free_slot_mut(&mut self.map, &self.lent, slot)[byte] = value;
    }

    /// Frees a block's slot, which holds what stands on the disk now. Its mark stays.
    pub fn give_up(&mut self, volume: VolumeId, at: AreaBlock) {
        let mark = self.mark(volume, at).filter(|_| self.slot_of(volume, at).is_some());
        self.set_byte(
            volume,
            at,
            MARKS.iter().find(|(_, m, _)| Some(*m) == mark).map_or(UNMARKED, |(b, ..)| *b),
        );
        super::map::fence();
        self.remove(volume, at);
    }

    /// Whether it is known where the block stands.
    pub fn knows_mark(&self, volume: VolumeId, at: AreaBlock) -> bool {
        self.slot_of(volume, at).is_some() || self.byte(volume, at).is_some_and(|byte| byte != NOTHING)
    }

    /// Remembers where the block stands on its way home, or forgets it.
    pub fn set_mark(&mut self, volume: VolumeId, at: AreaBlock, mark: Option<Mark>) {
        let (byte, bits) = MARKS
            .iter()
            .find(|(_, m, _)| Some(*m) == mark)
            .map_or((UNMARKED, 0), |(byte, _, bits)| (*byte, *bits));
        let Some(slot) = self.slot_of(volume, at) else {
            // Of one of which nothing is known nothing is to be known.
            if self.knows_mark(volume, at) {
                self.set_byte(volume, at, byte);
            }
            return;
        };
        let key = self.map.tag(slot, 1);
        let rest = key.load(Ordering::Relaxed) & !tags::MARKS;
        key.store(rest | bits, Ordering::Release);
    }

    /// See [`Arena::set_mark`].
    pub fn mark(&self, volume: VolumeId, at: AreaBlock) -> Option<Mark> {
        let found = match self.slot_of(volume, at) {
            Some(slot) => {
                let bits = self.map.tag(slot, 1).load(Ordering::Relaxed) & tags::MARKS;
                MARKS.iter().find(|(_, _, b)| *b == bits)
            }
            None => {
                let byte = self.byte(volume, at);
                MARKS.iter().find(|(b, ..)| Some(*b) == byte)
            }
        };
        found.map(|(_, mark, _)| *mark)
    }
}
