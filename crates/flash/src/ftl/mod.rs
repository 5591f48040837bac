//! The four flash translation layers behind one trait.

mod build;
pub mod cmt;
pub mod dftl;
pub mod fast;
pub mod lru;
pub mod page_map;
mod page_set;
pub(crate) mod super_blocks;
pub mod super_maps;
mod super_owners;
pub mod superblock;
pub(crate) mod superblock_gc;
mod upcoming;

use crate::counts::Cause;
use crate::ids::{Lpn, Ppn};
use crate::nand::Flash;

/// Why an FTL cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FtlError {
    /// Collection cannot gain a block.
    #[error("the flash has no block left to reclaim; give it more spare space (--spare)")]
    NoSpace,
}

/// How far off an announced page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// Its map entry is asked for.
    Far,
    /// Its map entry has come: what it points to is asked for.
    Near,
    /// That has come too: what lies beside it in a queue is asked for.
    Close,
}

impl Ahead {
    /// Pages between an announcement and its page: enough for a few trips to memory, few enough to stay in the cache.
    #[inline]
    pub fn distance(self) -> usize {
        match self {
            Self::Far => 16,
            Self::Near => 8,
            Self::Close => 4,
        }
    }
}

/// A flash translation layer over its own flash.
///
/// Logical pages beyond [`Ftl::logical_pages`] must not be given: the caller places requests on the drive.
pub trait Ftl: Send {
    /// How reports call it.
    fn name(&self) -> &'static str;

    /// Logical pages.
    fn logical_pages(&self) -> u32;

    /// The flash below.
    fn flash(&self) -> &Flash;

    /// The flash below, to reset counters and to follow data.
    fn flash_mut(&mut self) -> &mut Flash;

    /// Reads a logical page. Returns the physical page read; `None`: never written, nothing is read.
    ///
    /// # Errors
    /// The map must be written for it, and no block can be gained.
    fn read(&mut self, lpn: Lpn, cause: Cause) -> Result<Option<Ppn>, FtlError> {
        Ok(read_located(self, lpn, cause))
    }

    /// Writes a logical page.
    ///
    /// # Errors
    /// No block can be gained.
    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError>;

    /// Says that a page will be read or written soon, first at [`Ahead::Far`], last at [`Ahead::Close`]: what that
    /// needs can be on its way into the processor's caches. It changes nothing.
    fn expect(&self, lpn: Lpn, ahead: Ahead) {
        let _ = (lpn, ahead);
    }

    /// Writes pages one after the other, each announced by [`Ftl::expect`].
    ///
    /// # Errors
    /// As [`Ftl::write`]; the pages before the failed one are written.
    fn write_all(&mut self, pages: &[Lpn]) -> Result<(), FtlError> {
        for (i, lpn) in pages.iter().enumerate() {
            for ahead in [Ahead::Far, Ahead::Near, Ahead::Close] {
                if let Some(next) = pages.get(i + ahead.distance()) {
                    self.expect(*next, ahead);
                }
            }
            self.write(*lpn)?;
        }
        Ok(())
    }

    /// The host no longer needs the page. Without a flash operation of its own, except what the map costs.
    ///
    /// # Errors
    /// As [`Ftl::read`].
    fn discard(&mut self, lpn: Lpn) -> Result<(), FtlError>;

    /// Where the newest copy is, by the FTL's own tables, without touching anything.
    fn locate(&self, lpn: Lpn) -> Option<Ppn>;

    /// Invariants of the FTL itself, beyond those of the flash.
    ///
    /// # Errors
    /// What does not hold, in words.
    fn check(&self) -> Result<(), String>;

    /// RAM that a real drive would need for the tables, in bytes.
    fn table_bytes(&self) -> u64;

    /// Counters of its own, for reports.
    fn details(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Reads a page where the FTL's tables say it is; `None`: never written.
#[inline]
fn read_located<F: Ftl + ?Sized>(ftl: &mut F, lpn: Lpn, cause: Cause) -> Option<Ppn> {
    let found = ftl.locate(lpn);
    if let Some(ppn) = found {
        ftl.flash_mut().read(ppn, cause);
    }
    found
}

/// Checks that the FTL's tables and the flash agree: every mapped logical page has exactly one live copy, which
/// belongs to it, and nothing else is live but what `others` accounts for (translation pages).
pub(crate) fn check_mapping(ftl: &dyn Ftl, others: u64) -> Result<(), String> {
    check_mapping_by(ftl, others, |ppn| ftl.flash().owner_of(ppn))
}

/// The same with owners of pages that the FTL keeps itself.
fn check_mapping_by(ftl: &dyn Ftl, others: u64, owner_of: impl Fn(Ppn) -> u32) -> Result<(), String> {
    let flash = ftl.flash();
    flash.check()?;
    let mut mapped = 0_u64;
    for lpn in (0..ftl.logical_pages()).map(Lpn) {
        if let Some(ppn) = ftl.locate(lpn) {
            mapped += 1;
            if !flash.is_live(ppn) || owner_of(ppn) != lpn.0 {
                return Err(format!(
                    "logical page {} is mapped to page {}, which is not its live copy",
                    lpn.0, ppn.0
                ));
            }
        }
    }
    let blocks = flash.geometry().blocks;
    let live: u64 = (0..blocks).map(|b| u64::from(flash.live_in(crate::ids::Block(b)))).sum();
    if live != mapped + others {
        return Err(format!(
            "{live} pages are live, {mapped} are mapped and {others} belong to the map itself"
        ));
    }
    Ok(())
}

/// Splits logical pages into block and offset; a shift where pages a block is a power of two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    pages: u32,
    shift: Option<u32>,
}

impl Split {
    pub fn new(pages: u32) -> Self {
        Self { pages, shift: pages.is_power_of_two().then(|| pages.trailing_zeros()) }
    }

    /// Pages a block.
    #[inline]
    pub fn pages(self) -> u32 {
        self.pages
    }

    #[inline]
    pub fn of(self, value: u32) -> (u32, u32) {
        match self.shift {
            Some(shift) => (value >> shift, value & (self.pages - 1)),
            None => (value / self.pages, value % self.pages),
        }
    }
}
