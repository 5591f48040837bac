//! The record of one superblock: its blocks and how many live pages each holds.
//!
//! ```text
//! live │ open │ cold │ held │ listed │ order of slots │ live pages by slot │ blocks by slot
//! └──────────── with up to twelve blocks all of it is in two cache lines ─────────────────┘
//! ```
//!
//! A block keeps its *slot* for as long as the superblock has it, so a page's place within the superblock is a small
//! number (slot × pages a block + page) that stays true whatever else comes and goes. In which order the superblock
//! got its blocks, which decides between equals, is apart: `order` names the held slots in that order and the free
//! slots behind them. Live pages are counted here as well as in the flash: choosing what to collect then needs no line of
//! memory for each block.

use std::fmt::Debug;

use crate::ids::{Block, NONE};

/// No slot.
const NO_SLOT: u16 = u16::MAX;

/// Whether the block that takes a superblock's host writes has no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    No,
    Yes,
}

/// A page's place within its superblock, or its owner, in as few bytes as the parameters allow.
pub trait Cell: Copy + Debug + PartialEq + Send {
    /// "None".
    const NONE: Self;
    /// The value must fit: [`Form`] is chosen so.
    fn from_u32(value: u32) -> Self;
    /// The value; [`NONE`] for none.
    fn to_u32(self) -> u32;
    /// The value, which is not none.
    fn index(self) -> usize;
}

impl Cell for u16 {
    const NONE: Self = Self::MAX;

    #[inline(always)]
    fn from_u32(value: u32) -> Self {
        value as Self
    }

    #[inline(always)]
    fn to_u32(self) -> u32 {
        if self == Self::NONE {
            NONE
        } else {
            u32::from(self)
        }
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self)
    }
}

impl Cell for u32 {
    const NONE: Self = NONE;

    #[inline(always)]
    fn from_u32(value: u32) -> Self {
        value
    }

    #[inline(always)]
    fn to_u32(self) -> u32 {
        self
    }

    #[inline(always)]
    fn index(self) -> usize {
        self as usize
    }
}

/// How superblocks are laid out: two forms of the same thing.
pub trait Form: Debug + Send + 'static {
    /// Places within a superblock.
    type Cell: Cell;
    /// A block for each slot.
    type Blocks: AsRef<[u32]> + AsMut<[u32]> + Debug + Send;
    /// A small number for each slot.
    type Small: AsRef<[u16]> + AsMut<[u16]> + Debug + Send;
    /// `NONE` for each of `slots` slots.
    fn blocks(slots: usize) -> Self::Blocks;
    /// Zero for each of `slots` slots.
    fn small(slots: usize) -> Self::Small;
}

/// Slots of the compact form: the default N + M, and the one that collection draws before it gives one back.
const SLOTS: usize = 17;

/// Places in 16 bits, up to [`SLOTS`] slots in place.
#[derive(Debug)]
pub struct Compact;

/// Whatever the parameters.
#[derive(Debug)]
pub struct Wide;

impl Compact {
    /// Whether superblocks of at most `limit` blocks of `p` pages fit this form.
    pub fn fits(limit: u32, p: u32) -> bool {
        (limit as usize) < SLOTS && (limit + 1) * p <= u32::from(u16::NONE)
    }
}

impl Form for Compact {
    type Cell = u16;
    type Blocks = [u32; SLOTS];
    type Small = [u16; SLOTS];

    fn blocks(_slots: usize) -> Self::Blocks {
        [NONE; SLOTS]
    }

    fn small(_slots: usize) -> Self::Small {
        [0; SLOTS]
    }
}

impl Form for Wide {
    type Cell = u32;
    type Blocks = Box<[u32]>;
    type Small = Box<[u16]>;

    fn blocks(slots: usize) -> Self::Blocks {
        vec![NONE; slots].into()
    }

    fn small(slots: usize) -> Self::Small {
        vec![0; slots].into()
    }
}

/// One superblock's blocks. Fields that every compaction needs come first.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Super<F: Form> {
    /// Live pages.
    pub live: u32,
    open: u16,
    cold: u16,
    /// How many blocks it has.
    held: u16,
    /// The queue it is in: it holds a block more than its live pages need.
    pub listed: Option<Filled>,
    /// The slots of its blocks in the order it got them, then the free slots.
    order: F::Small,
    /// Live pages by slot.
    lives: F::Small,
    /// Blocks by slot. A free slot keeps the last one, which means nothing.
    blocks: F::Blocks,
}

impl<F: Form> Super<F> {
    /// Without blocks; it will have at most `limit`, and one more while it collects.
    pub fn new(limit: u32) -> Self {
        let slots = limit as usize + 1;
        let mut order = F::small(slots);
        (0..).zip(order.as_mut()).for_each(|(slot, at)| *at = slot);
        Self {
            live: 0,
            open: NO_SLOT,
            cold: NO_SLOT,
            held: 0,
            listed: None,
            order,
            lives: F::small(slots),
            blocks: F::blocks(slots),
        }
    }

    /// How many blocks it has.
    #[inline]
    pub fn held(&self) -> u32 {
        u32::from(self.held)
    }

    /// Its slots with a block, in the order it got them.
    #[inline]
    pub fn slots(&self) -> &[u16] {
        &self.order.as_ref()[..usize::from(self.held)]
    }

    /// The block in a slot.
    #[inline]
    pub fn block(&self, slot: u16) -> Block {
        Block(self.blocks.as_ref()[usize::from(slot)])
    }

    /// Live pages of the block in a slot.
    #[inline]
    pub fn live_in(&self, slot: u16) -> u32 {
        u32::from(self.lives.as_ref()[usize::from(slot)])
    }

    /// So many pages became live in a slot's block.
    #[inline]
    pub fn born(&mut self, slot: u16, pages: u32) {
        self.lives.as_mut()[usize::from(slot)] += pages as u16;
    }

    /// So many pages died in a slot's block.
    #[inline]
    pub fn died(&mut self, slot: u16, pages: u32) {
        self.lives.as_mut()[usize::from(slot)] -= pages as u16;
    }

    /// The slot whose block takes host writes.
    #[inline]
    pub fn open(&self) -> Option<u16> {
        (self.open != NO_SLOT).then_some(self.open)
    }

    /// The slot whose block takes collected pages (hot/cold separation).
    #[inline]
    pub fn cold(&self) -> Option<u16> {
        (self.cold != NO_SLOT).then_some(self.cold)
    }

    /// Another slot takes host writes.
    #[inline]
    pub fn set_open(&mut self, slot: Option<u16>) {
        self.open = slot.unwrap_or(NO_SLOT);
    }

    /// Another slot takes collected pages.
    #[inline]
    pub fn set_cold(&mut self, slot: Option<u16>) {
        self.cold = slot.unwrap_or(NO_SLOT);
    }

    /// Gets a block, the last in order; its slot.
    #[inline]
    pub fn push(&mut self, block: Block) -> u16 {
        let slot = self.order.as_ref()[usize::from(self.held)];
        self.held += 1;
        self.lives.as_mut()[usize::from(slot)] = 0;
        self.blocks.as_mut()[usize::from(slot)] = block.0;
        slot
    }

    /// Another block takes a slot and its place in the order.
    #[inline]
    pub fn replace(&mut self, slot: u16, block: Block) {
        self.blocks.as_mut()[usize::from(slot)] = block.0;
    }

    /// Loses a slot's block, which then takes no writes either.
    #[inline]
    pub fn drop_slot(&mut self, slot: u16) {
        let held = &mut self.order.as_mut()[..usize::from(self.held)];
        let Some(position) = held.iter().position(|at| *at == slot) else { return };
        // What was behind moves up; the slot itself is the first free one now.
        let mut behind = slot;
        held[position..].iter_mut().rev().for_each(|at| std::mem::swap(at, &mut behind));
        self.held -= 1;
        if self.open == slot {
            self.open = NO_SLOT;
        }
        if self.cold == slot {
            self.cold = NO_SLOT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_superblock_takes_three_lines_and_twelve_blocks_two() {
        type Default = Super<Compact>;
        assert_eq!(std::mem::size_of::<Default>(), 192);
        assert!(std::mem::offset_of!(Default, blocks) + 11 * 4 <= 128);
        assert!(Compact::fits(16, 64) && !Compact::fits(17, 64) && !Compact::fits(16, 4096));
    }

    #[test]
    fn blocks_keep_their_slots_and_their_order() {
        let mut s = Super::<Wide>::new(3);
        let slots: Vec<u16> = (10..13).map(|b| s.push(Block(b))).collect();
        s.set_open(Some(slots[0]));
        s.drop_slot(slots[0]);
        assert_eq!((s.slots(), s.open()), (&slots[1..], None));
        assert_eq!(s.push(Block(20)), slots[0]);
        s.replace(slots[1], Block(30));
        let blocks: Vec<Block> = s.slots().iter().map(|slot| s.block(*slot)).collect();
        assert_eq!(blocks, [30, 12, 20].map(Block));
    }
}
