//! Superblock's maps: where each logical page is, and where the newest pieces of the map that the spare areas hold are.
//!
//! ```text
//! one superblock: pages' places │ PT │ PMD │ PGD │ padding      in one stretch, a multiple of a cache line
//! ```
//!
//! A compaction touches all of a superblock's maps and nothing else's, so they lie together.

use super::Split;
use crate::ids::{Ppn, NONE};
use crate::table::{filled, prefetch, prefetch_range};

/// Pages a page table covers.
pub const PT_PAGES: u32 = 8;
/// Pages a page middle directory covers.
pub const PMD_PAGES: u32 = 64;

/// Cells a cache line.
const LINE: u32 = 16;

/// The maps of all superblocks.
#[derive(Debug)]
pub(super) struct Maps {
    cells: Vec<u32>,
    /// Cells a superblock.
    each: u32,
    /// Where a superblock's PTs, PMDs and PGD begin; its pages begin at 0.
    pt: u32,
    pmd: u32,
    pgd: u32,
    pages: Split,
}

/// The levels of the map that spare areas hold, as [`Maps::pieces`] lists them.
pub(super) const LEVELS: [&str; 3] = ["PGD", "PMD", "PT"];

/// The maps of one superblock.
pub(super) struct Region<'a> {
    first: u32,
    pages: &'a mut [u32],
    pt: &'a mut [u32],
    pmd: &'a mut [u32],
    pgd: &'a mut u32,
}

impl Region<'_> {
    /// A page was programmed, with its path in the spare area.
    #[inline]
    pub fn programmed(&mut self, lpn: u32, ppn: Ppn) {
        let page = lpn - self.first;
        self.pages[page as usize] = ppn.0;
        self.pt[(page / PT_PAGES) as usize] = ppn.0;
        self.pmd[(page / PMD_PAGES) as usize] = ppn.0;
        *self.pgd = ppn.0;
    }
}

impl Maps {
    /// For `supers` superblocks of `pages` logical pages, none of them written.
    pub fn new(supers: u32, pages: u32) -> Self {
        let pt = pages;
        let pmd = pt + pages.div_ceil(PT_PAGES);
        let pgd = pmd + pages.div_ceil(PMD_PAGES);
        let each = (pgd + 1).next_multiple_of(LINE);
        let cells = filled(NONE, supers as usize * each as usize);
        Self { cells, each, pt, pmd, pgd, pages: Split::new(pages) }
    }

    /// The superblock of a logical page.
    #[inline]
    pub fn super_of(&self, lpn: u32) -> u32 {
        self.pages.of(lpn).0
    }

    /// Page tables of all superblocks, for a cache of them.
    pub fn page_tables(supers: u32, pages: u32) -> usize {
        supers as usize * pages.div_ceil(PT_PAGES) as usize
    }

    /// The number of a logical page's page table among [`Maps::page_tables`].
    #[inline]
    pub fn page_table_of(&self, lpn: u32) -> u32 {
        let (sb, page) = self.pages.of(lpn);
        sb * (self.pmd - self.pt) + page / PT_PAGES
    }

    #[inline]
    fn base(&self, sb: u32) -> usize {
        sb as usize * self.each as usize
    }

    /// Where a logical page is; `NONE`: never written.
    #[inline]
    pub fn place(&self, lpn: u32) -> u32 {
        let (sb, page) = self.pages.of(lpn);
        self.cells[self.base(sb) + page as usize]
    }

    /// The pages in whose spare areas the newest PGD, PMD and PT of a logical page's path are; `NONE`: never written.
    #[inline]
    pub fn path(&self, lpn: u32) -> [u32; 3] {
        let (sb, page) = self.pages.of(lpn);
        let cells = &self.cells[self.base(sb)..][..self.each as usize];
        [self.pgd, self.pmd + page / PMD_PAGES, self.pt + page / PT_PAGES].map(|cell| cells[cell as usize])
    }

    /// One superblock's maps.
    #[inline]
    pub fn region(&mut self, sb: u32) -> Region<'_> {
        let base = self.base(sb);
        let cells = &mut self.cells[base..][..self.each as usize];
        let (pages, rest) = cells.split_at_mut(self.pt as usize);
        let (pt, rest) = rest.split_at_mut((self.pmd - self.pt) as usize);
        let (pmd, rest) = rest.split_at_mut((self.pgd - self.pmd) as usize);
        Region { first: sb * self.pages.pages(), pages, pt, pmd, pgd: &mut rest[0] }
    }

    /// Every piece of the maps that was ever written: its level's index in [`LEVELS`], a number that only pages of that
    /// piece have by [`Maps::piece_of`], and the page whose spare area holds it.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, (u32, u32), u32)> + '_ {
        let supers = (self.cells.len() / self.each as usize) as u32;
        let of = [(self.pgd, 1), (self.pmd, self.pgd - self.pmd), (self.pt, self.pmd - self.pt)];
        let all = (0..supers).flat_map(move |sb| {
            of.into_iter().enumerate().flat_map(move |(level, (from, len))| {
                (0..len).map(move |i| (level, (sb, i), self.cells[self.base(sb) + (from + i) as usize]))
            })
        });
        all.filter(|(_, _, ppn)| *ppn != NONE)
    }

    /// Which piece of a level covers a logical page.
    pub fn piece_of(&self, level: usize, lpn: u32) -> (u32, u32) {
        let (sb, page) = self.pages.of(lpn);
        (sb, [0, page / PMD_PAGES, page / PT_PAGES][level])
    }

    /// A page's place is asked for.
    #[inline]
    pub fn expect(&self, lpn: u32) {
        let (sb, page) = self.pages.of(lpn);
        prefetch(&self.cells, self.base(sb) + page as usize);
        prefetch(&self.cells, self.base(sb) + (self.pt + page / PT_PAGES) as usize);
        prefetch(&self.cells, self.base(sb) + self.pgd as usize);
    }

    /// All of a superblock's maps are asked for.
    #[inline]
    pub fn expect_all(&self, sb: u32) {
        prefetch_range(&self.cells, self.base(sb), self.each as usize);
    }
}
