//! The pages' spare areas: whose page each is, and, for proofs, which host write its data came from.

use std::ops::RangeInclusive;

use crate::ids::Ppn;
use crate::table::{filled, prefetch_range};

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Spare {
    /// The logical page, by physical page; means nothing where that is not live. Empty if the FTL keeps the owners itself.
    owners: Vec<u32>,
    /// Which host write the data came from; only kept when asked for.
    stamps: Option<Vec<u32>>,
    /// What the next programs carry.
    stamp: u32,
}

impl Spare {
    /// With owners, of so many pages.
    pub fn with_owners(pages: usize) -> Self {
        Self { owners: filled(0, pages), ..Self::default() }
    }

    /// Stamps of so many pages are kept from now on.
    pub fn keep_stamps(&mut self, pages: usize) {
        self.stamps = Some(vec![0; pages]);
    }

    pub fn has_stamps(&self) -> bool {
        self.stamps.is_some()
    }

    pub fn set_stamp(&mut self, stamp: u32) {
        self.stamp = stamp;
    }

    /// 0 if stamps are not kept.
    pub fn stamp_of(&self, ppn: Ppn) -> u32 {
        self.stamps.as_ref().map_or(0, |stamps| stamps[ppn.index()])
    }

    #[inline(always)]
    pub fn owner_of(&self, ppn: Ppn) -> u32 {
        self.owners[ppn.index()]
    }

    /// A page is the host's newest of `owner`.
    #[inline(always)]
    pub fn program(&mut self, ppn: Ppn, owner: u32) {
        if let Some(held) = self.owners.get_mut(ppn.index()) {
            *held = owner;
        }
        if let Some(stamps) = &mut self.stamps {
            stamps[ppn.index()] = self.stamp;
        }
    }

    /// The same for pages from `first` on.
    #[inline(always)]
    pub fn program_run(&mut self, first: Ppn, owners: &[u32]) {
        let pages = first.index()..first.index() + owners.len();
        self.owners[pages.clone()].copy_from_slice(owners);
        if let Some(stamps) = &mut self.stamps {
            stamps[pages].fill(self.stamp);
        }
    }

    /// The owners of two different blocks of `pages` pages, by their first pages.
    #[inline(always)]
    pub fn owners_of_two(&mut self, src: Ppn, dst: Ppn, pages: usize) -> (&[u32], &mut [u32]) {
        let (src, dst) = (src.index(), dst.index());
        assert_ne!(src, dst, "a block is copied into itself");
        if src < dst {
            let (low, high) = self.owners.split_at_mut(dst);
            (&low[src..src + pages], &mut high[..pages])
        } else {
            let (low, high) = self.owners.split_at_mut(src);
            (&high[..pages], &mut low[dst..dst + pages])
        }
    }

    /// A page carries the newest write's data.
    pub fn stamp(&mut self, ppn: Ppn) {
        if let Some(stamps) = &mut self.stamps {
            stamps[ppn.index()] = self.stamp;
        }
    }

    /// A page carries what another one does.
    pub fn copy_stamp(&mut self, from: Ppn, to: Ppn) {
        if let Some(stamps) = &mut self.stamps {
            stamps[to.index()] = stamps[from.index()];
        }
    }

    /// Pages `first + range` are those of owners that follow each other, from `first_owner` for `first` on. Owners of pages that
    /// are not live mean nothing, so the whole stretch is written: it is one vector loop.
    #[inline(always)]
    pub fn number(&mut self, first: Ppn, range: RangeInclusive<usize>, first_owner: u32) {
        let owners = &mut self.owners[first.index()..=first.index() + *range.end()];
        for (offset, owner) in owners.iter_mut().enumerate().skip(*range.start()) {
            *owner = first_owner + offset as u32;
        }
    }

    /// The owners of a block are asked for.
    #[inline(always)]
    pub fn expect(&self, first: Ppn, pages: usize) {
        prefetch_range(&self.owners, first.index(), pages);
    }
}
