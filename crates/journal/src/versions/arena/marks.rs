//! Where blocks stand on their way home, and where those stand that are not here.
//!
//! ```text
//! here            the tag of its slot has the mark
//! in its place    an entry has the mark: the block stands in its own place on the disk
//! at home         an entry has the mark and a home block, which holds the same bytes
//! ```
//!
//! Entries are eight bytes of pages of the same file system, behind the blocks that any journal has. A slot counts more than an entry, and an
//! entry changes in one store. So a block that is given up gets its entry first, and then loses its slot; one that comes back
//! gets its slot first, and then its entry is cleared. Between the two stores both say the same.
//!
//! What is served from home is also known by its home, to be saved before that is written ([`Arena::served_from`]).

use std::sync::atomic::Ordering;

use super::map::{fence, PAGE};
use super::{loan, tags, Arena, VolumeId};
use crate::ids::{AreaBlock, FsBlock};

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

/// The pages: `[PAGES_AT, PAGES_END)`.
const PAGES_AT: u32 = 11 << 28;
const PAGES_END: u32 = 12 << 28;
/// Entries of a page.
const ENTRIES: u32 = (PAGE / 8) as u32;

/// Of the arena, the part that pages may take: they may be of a journal of which little is used.
const PART: u64 = 8;

/// Blocks that are served from home, of all file systems: at most twelve megabytes of memory.
const AT_HOME_MAX: usize = 1 << 18;

/// An entry: `[home, 48 bits][at home, 8 bits][mark, 8 bits]`. (A page of zeroes is a hole in a sparse copy.)
const NOTHING: u64 = u64::MAX;
const UNMARKED: u64 = 1;
const MARKS: [(u64, Mark, u64); 4] = [
    (2, Mark::Overwritten, tags::OVERWRITTEN),
    (3, Mark::Home, tags::HOME),
    (4, Mark::Rewritten, tags::HOME | tags::OVERWRITTEN),
    (5, Mark::Older, tags::OLDER | tags::OVERWRITTEN),
];
const MARK_BITS: u64 = 0xff;
const AT_HOME: u64 = 1 << 8;
const HOME_SHIFT: u32 = 16;
const HOME_MAX: u64 = u64::MAX >> HOME_SHIFT;

/// The home in an entry.
fn home_in(entry: u64) -> Option<FsBlock> {
    (entry != NOTHING && entry & AT_HOME != 0).then_some(FsBlock(entry >> HOME_SHIFT))
}

fn code(mark: Option<Mark>) -> u64 {
    MARKS.iter().find(|(_, m, _)| Some(*m) == mark).map_or(UNMARKED, |(code, ..)| *code)
}

fn bits(mark: Option<Mark>) -> u64 {
    MARKS.iter().find(|(_, m, _)| Some(*m) == mark).map_or(0, |(.., bits)| *bits)
}

/// The page of a block's entry, and which of its entries.
fn place(at: AreaBlock) -> (AreaBlock, usize) {
    (AreaBlock(PAGES_AT + at.0 / ENTRIES), (at.0 % ENTRIES) as usize)
}

/// Whether a block is one of the pages.
pub(crate) fn is_page(at: AreaBlock) -> bool {
    (PAGES_AT..PAGES_END).contains(&at.0)
}

impl Arena {
    /// Makes room for the entries of so many blocks, if there is some; without it nothing is known of blocks that are given up.
    pub fn reserve_marks(&mut self, volume: VolumeId, blocks: u32) {
        let pages = u64::from(blocks).div_ceil(ENTRIES.into());
        if pages > self.bytes_max() / PAGE / PART {
            return;
        }
        for page in (PAGES_AT..).take(pages as usize) {
            let cleared = self.store(volume, AreaBlock(page), &mut |page| {
                page.fill(NOTHING as u8);
                None
            });
            if cleared.is_err() {
                return;
            }
        }
    }

    fn entry(&self, volume: VolumeId, at: AreaBlock) -> Option<u64> {
        let (page, n) = place(at);
        let entry = self.get(volume, page)?[n * 8..].first_chunk()?;
        Some(u64::from_ne_bytes(*entry))
    }

    /// Whether there is an entry of it to store into.
    fn set_entry(&mut self, volume: VolumeId, at: AreaBlock, entry: u64) -> bool {
        let (page, n) = place(at);
        let Some(slot) = self.slot_of(volume, page) else { return false };
        // Pages are never lent.
        loan::store_word(&mut self.map, &self.lent, slot, n, entry);
        true
    }

    /// Frees a block's slot, which holds what stands in its own place on the disk now. Its mark stays.
    pub fn give_up(&mut self, volume: VolumeId, at: AreaBlock) {
        let mark = self.mark(volume, at).filter(|_| self.slot_of(volume, at).is_some());
        self.set_entry(volume, at, code(mark));
        fence();
        self.remove(volume, at);
    }

    /// Frees the slot of a block that is home: it is served from there. Whether it was here, and there was room to remember that.
    pub fn give_up_to(&mut self, volume: VolumeId, at: AreaBlock, home: FsBlock) -> bool {
        if self.at_home.len() >= AT_HOME_MAX
            || home.0 > HOME_MAX
            || self.at_home.contains_key(&(volume, home))
        {
            return false;
        }
        let entry = code(Some(Mark::Home)) | AT_HOME | home.0 << HOME_SHIFT;
        if self.slot_of(volume, at).is_none() || !self.set_entry(volume, at, entry) {
            return false;
        }
        fence();
        self.free_block(volume, at);
        self.at_home.insert((volume, home), at);
        true
    }

    /// The home block that a block is served from.
    pub fn home_of(&self, volume: VolumeId, at: AreaBlock) -> Option<FsBlock> {
        if self.at_home.is_empty() || self.slot_of(volume, at).is_some() {
            return None;
        }
        self.entry(volume, at).and_then(home_in)
    }

    /// Blocks that are served from homes of `[from, to)`, by these.
    pub fn served_from(
        &self,
        volume: VolumeId,
        from: FsBlock,
        to: FsBlock,
    ) -> impl Iterator<Item = (FsBlock, AreaBlock)> + '_ {
        let range = (volume, from)..(volume, to.max(from));
        self.at_home.range(range).map(|((_, home), at)| (*home, *at))
    }

    /// How many blocks of a file system are served from home.
    pub fn at_home(&self, volume: VolumeId) -> usize {
        self.served_from(volume, FsBlock(0), FsBlock(u64::MAX)).count()
    }

    /// What is served from home is in its slot or its own place now, or not wanted any more.
    pub fn leave_home(&mut self, volume: VolumeId, at: AreaBlock) {
        if self.at_home.is_empty() {
            return;
        }
        let Some(entry) = self.entry(volume, at) else { return };
        let Some(home) = home_in(entry) else { return };
        fence();
        self.set_entry(volume, at, entry & MARK_BITS);
        if self.at_home.get(&(volume, home)) == Some(&at) {
            self.at_home.remove(&(volume, home));
        }
        fence();
    }

    /// What an earlier daemon gave up to homes. Where a slot has the block, that counts.
    pub(super) fn find_at_home(&mut self) {
        for volume in (0..super::VOLUMES_MAX as u16).map(VolumeId) {
            let pages: Vec<AreaBlock> = self.blocks(volume).into_iter().filter(|at| is_page(*at)).collect();
            for page in pages {
                for n in 0..ENTRIES {
                    let at = AreaBlock((page.0 - PAGES_AT) * ENTRIES + n);
                    let Some(home) = self.entry(volume, at).and_then(home_in) else { continue };
                    match self.slot_of(volume, at) {
                        Some(_) => drop(self.set_entry(volume, at, UNMARKED)),
                        None => drop(self.at_home.insert((volume, home), at)),
                    }
                }
            }
        }
    }

    /// Whether it is known where the block stands.
    pub fn knows_mark(&self, volume: VolumeId, at: AreaBlock) -> bool {
        self.slot_of(volume, at).is_some() || self.entry(volume, at).is_some_and(|entry| entry != NOTHING)
    }

    /// Remembers where the block stands on its way home, or forgets it. One that is served from home stays so.
    pub fn set_mark(&mut self, volume: VolumeId, at: AreaBlock, mark: Option<Mark>) {
        let Some(slot) = self.slot_of(volume, at) else {
            // Of one of which nothing is known nothing is to be known.
            if let Some(entry) = self.entry(volume, at).filter(|entry| *entry != NOTHING) {
                self.set_entry(volume, at, entry & !MARK_BITS | code(mark));
            }
            return;
        };
        let key = self.map.tag(slot, 1);
        let rest = key.load(Ordering::Relaxed) & !tags::MARKS;
        key.store(rest | bits(mark), Ordering::Release);
    }

    /// See [`Arena::set_mark`].
    pub fn mark(&self, volume: VolumeId, at: AreaBlock) -> Option<Mark> {
        let found = match self.slot_of(volume, at) {
            Some(slot) => {
                let bits = self.map.tag(slot, 1).load(Ordering::Relaxed) & tags::MARKS;
                MARKS.iter().find(|(_, _, b)| *b == bits)
            }
            None => {
                let code = self.entry(volume, at).map(|entry| entry & MARK_BITS);
                MARKS.iter().find(|(c, ..)| Some(*c) == code)
            }
        };
        found.map(|(_, mark, _)| *mark)
    }

    /// The flags of the slot that a block gets which is served from home: its mark moves there.
    pub(super) fn flags_from_home(&self, volume: VolumeId, at: AreaBlock) -> u64 {
        let mark = self.home_of(volume, at).and_then(|_| self.mark(volume, at));
        bits(mark)
    }
}
