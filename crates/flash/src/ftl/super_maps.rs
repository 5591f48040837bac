//! Superblock's maps: where each logical page is, and which pieces of the map that the spare areas hold are newest.
//!
//! ```text
//! one superblock: pages' places, slot × pages a block + page each      in one stretch, whole cache lines
//! beside, small enough to stay in the cache: of each PMD the PT, of each PGD the PMD written last
//! ```
//!
//! A compaction touches all of a superblock's places, so they are as short as they can be: two bytes by default, 16 lines
//! a superblock.
//!
//! Where the newest pieces are need not be stored. A program writes its page's whole path, so the newest PMD is where
//! that of its page tables is that was written last, and so up the tree: "the same page holds two neighbouring levels" means
//! "the upper one was written last for the lower one". A look-up only counts the distinct pages on its path.

use super::super_blocks::Cell;
use super::super_owners::WORD;
use super::Split;
use crate::ids::NONE;
use crate::table::{filled, prefetch, prefetch_range, Lines};

/// Pages a page table covers.
pub const PT_PAGES: u32 = 8;
/// Pages a page middle directory covers.
pub const PMD_PAGES: u32 = 64;

/// A PMD of which no page table was written.
const NEVER: u8 = u8::MAX;

/// The maps of all superblocks.
#[derive(Debug)]
pub(super) struct Maps<C> {
    places: Lines<C>,
    /// Cells a superblock.
    each: usize,
    /// Of each PMD, which of its page tables was written last.
    last_pt: Vec<u8>,
    /// Of each superblock, which PMD was written last.
    last_pmd: Vec<u32>,
    pts: u32,
    pmds: u32,
    pages: Split,
}

/// The maps of one superblock.
pub(super) struct Region<'a, C> {
    places: &'a mut [C],
    last_pt: &'a mut [u8],
    last_pmd: &'a mut u32,
}

impl<C: Cell> Region<'_, C> {
    /// A page was programmed, with its path in the spare area.
    #[inline(always)]
    pub fn programmed(&mut self, page: u32, place: u32) {
        self.places[page as usize] = C::from_u32(place);
        let pmd = page / PMD_PAGES;
        self.last_pt[pmd as usize] = (page % PMD_PAGES / PT_PAGES) as u8;
        *self.last_pmd = pmd;
    }

    /// The pages of `live` among 64 are copied to places from `place` on, lowest first, as many as `into` takes; `from`
    /// and `into` are the owners there and here. Returns which of `live` are left.
    ///
    /// Most of the time of a compaction is spent here. It is a function of its own so that everything it needs stays
    /// in registers.
    #[inline(never)]
    pub fn copied(&mut self, from: &[C; WORD], into: &mut [C], live: u64, place: u32) -> u64 {
        let (places, last_pt) = (&mut *self.places, &mut *self.last_pt);
        let (mut left, mut place) = (live, place);
        for owner in into.iter_mut() {
            *owner = from[left.trailing_zeros() as usize % WORD];
            let page = owner.index();
            places[page] = C::from_u32(place);
            last_pt[page / PMD_PAGES as usize] = (page % PMD_PAGES as usize / PT_PAGES as usize) as u8;
            left &= left.wrapping_sub(1);
            place = place.wrapping_add(1);
        }
        if let Some(last) = into.last() {
            *self.last_pmd = last.to_u32() / PMD_PAGES;
        }
        left
    }
}

impl<C: Cell> Maps<C> {
    /// For `supers` superblocks of `pages` logical pages, none of them written.
    pub fn new(supers: u32, pages: u32) -> Self {
        let each = (pages as usize).next_multiple_of(Lines::<C>::LINE);
        let (pts, pmds) = (pages.div_ceil(PT_PAGES), pages.div_ceil(PMD_PAGES));
        Self {
            places: Lines::filled(C::NONE, supers as usize * each),
            each,
            last_pt: filled(NEVER, supers as usize * pmds as usize),
            last_pmd: filled(NONE, supers as usize),
            pts,
            pmds,
            pages: Split::new(pages),
        }
    }

    /// The superblock of a logical page, and which of its pages it is.
    #[inline]
    pub fn split(&self, lpn: u32) -> (u32, u32) {
        self.pages.of(lpn)
    }

    /// Logical pages a superblock.
    #[inline]
    pub fn pages(&self) -> u32 {
        self.pages.pages()
    }

    /// Page tables of all superblocks, for a cache of them.
    pub fn page_tables(supers: u32, pages: u32) -> usize {
        supers as usize * pages.div_ceil(PT_PAGES) as usize
    }

    /// The number of a page's page table among [`Maps::page_tables`].
    #[inline]
    pub fn page_table_of(&self, sb: u32, page: u32) -> u32 {
        sb * self.pts + page / PT_PAGES
    }

    #[inline]
    fn at(&self, sb: u32, page: u32) -> usize {
        sb as usize * self.each + page as usize
    }

    /// Where a page is within its superblock; `NONE`: never written.
    #[inline]
    pub fn place(&self, sb: u32, page: u32) -> u32 {
        self.places[self.at(sb, page)].to_u32()
    }

    /// In how many pages' spare areas the newest PGD, PMD and PT of a page's path are. A level that was never written
    /// ends the walk.
    #[inline]
    pub fn path_pages(&self, sb: u32, page: u32) -> u64 {
        let last_pmd = self.last_pmd[sb as usize];
        if last_pmd == NONE {
            return 0;
        }
        let pmd = page / PMD_PAGES;
        let last_pt = self.last_pt[(sb * self.pmds + pmd) as usize];
        if last_pt == NEVER {
            return 1;
        }
        let apart = 1 + u64::from(last_pmd != pmd);
        if u32::from(last_pt) == page % PMD_PAGES / PT_PAGES {
            apart
        } else {
            apart + u64::from(self.has_pages(sb, page / PT_PAGES))
        }
    }

    /// Whether any page of a page table was ever written.
    #[inline]
    fn has_pages(&self, sb: u32, pt: u32) -> bool {
        let first = pt * PT_PAGES;
        let end = (first + PT_PAGES).min(self.pages.pages());
        self.places[self.at(sb, first)..self.at(sb, end)].iter().any(|place| *place != C::NONE)
    }

    /// One superblock's maps.
    #[inline]
    pub fn region(&mut self, sb: u32) -> Region<'_, C> {
        let (from, pmd) = (self.at(sb, 0), (sb * self.pmds) as usize);
        Region {
            places: &mut self.places[from..][..self.each],
            last_pt: &mut self.last_pt[pmd..][..self.pmds as usize],
            last_pmd: &mut self.last_pmd[sb as usize],
        }
    }

    /// A piece of the map that was written last has a page, and one that has a page was written: with every mapped page
    /// live, the newest PT, PMD and PGD are in live pages then.
    pub fn check(&self) -> Result<(), String> {
        for sb in 0..self.last_pmd.len() as u32 {
            for pmd in 0..self.pmds {
                let pts = (pmd * (PMD_PAGES / PT_PAGES)..self.pts).take((PMD_PAGES / PT_PAGES) as usize);
                let any = pts.into_iter().any(|pt| self.has_pages(sb, pt));
                let last = self.last_pt[(sb * self.pmds + pmd) as usize];
                let fits =
                    last != NEVER && self.has_pages(sb, pmd * (PMD_PAGES / PT_PAGES) + u32::from(last));
                if any != (last != NEVER) || any != fits {
                    return Err(format!(
                        "PMD {pmd} of superblock {sb} was written last for a page table without pages"
                    ));
                }
            }
            let last = self.last_pmd[sb as usize];
            let written = |pmd: u32| self.last_pt[(sb * self.pmds + pmd) as usize] != NEVER;
            if last == NONE && (0..self.pmds).any(written) || last != NONE && !written(last) {
                return Err(format!("the PGD of superblock {sb} was written last for a PMD without pages"));
            }
        }
        Ok(())
    }

    /// A page's place is asked for.
    #[inline]
    pub fn expect(&self, sb: u32, page: u32) {
        prefetch(&self.places, self.at(sb, page));
        prefetch(&self.last_pmd, sb as usize);
        prefetch(&self.last_pt, (sb * self.pmds + page / PMD_PAGES) as usize);
    }

    /// Pages `from..from + len` of a superblock's are asked for.
    #[inline]
    pub fn expect_part(&self, sb: u32, part: usize, parts: usize) {
        prefetch(&self.last_pt, (sb * self.pmds) as usize);
        let len = self.each.div_ceil(parts);
        prefetch_range(&self.places, self.at(sb, 0) + part * len, len);
    }
}
