//! Operations counted by cause.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Why the flash did something. Every read, program and erase has exactly one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// A page the host reads or writes.
    Host,
    /// A page read first because the host writes only a part of it.
    Modify,
    /// FAST: a sequential log block with every page replaces its data block.
    SwitchMerge,
    /// FAST: a sequential log block is filled up from the data block and the random log.
    PartialMerge,
    /// FAST: a sequential log block and its data block are folded into a fresh block.
    FullMerge,
    /// FAST: the oldest random log block is emptied.
    LogMerge,
    /// Page map and DFTL: a data block is collected.
    Collect,
    /// DFTL: a block of translation pages is collected.
    CollectMap,
    /// DFTL: translation pages are updated for pages that a collection moved.
    MapUpdate,
    /// DFTL: a translation page is read on a miss of the cached map.
    MapFetch,
    /// DFTL: a dirty entry leaves the cached map.
    MapEvict,
    /// Superblock: a block without a live page is erased and reused.
    Exchange,
    /// Superblock: the superblock at its limit collects its own block.
    LocalCollect,
    /// Superblock: another superblock is compacted to give a block back.
    Compact,
    /// Static wear levelling moves a block that nobody writes.
    WearLevel,
}

/// How many causes there are.
pub const CAUSES: usize = 15;

impl Cause {
    /// All causes, in order.
    pub const ALL: [Self; CAUSES] = [
        Self::Host,
        Self::Modify,
        Self::SwitchMerge,
        Self::PartialMerge,
        Self::FullMerge,
        Self::LogMerge,
        Self::Collect,
        Self::CollectMap,
        Self::MapUpdate,
        Self::MapFetch,
        Self::MapEvict,
        Self::Exchange,
        Self::LocalCollect,
        Self::Compact,
        Self::WearLevel,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Modify => "modify",
            Self::SwitchMerge => "switch-merge",
            Self::PartialMerge => "partial-merge",
            Self::FullMerge => "full-merge",
            Self::LogMerge => "log-merge",
            Self::Collect => "collect",
            Self::CollectMap => "collect-map",
            Self::MapUpdate => "map-update",
            Self::MapFetch => "map-fetch",
            Self::MapEvict => "map-evict",
            Self::Exchange => "exchange",
            Self::LocalCollect => "local-collect",
            Self::Compact => "compact",
            Self::WearLevel => "wear-level",
        }
    }

    /// Whether it belongs to garbage collection (the study's GC overhead). Translation updates inside a collection
    /// do; fetches and evictions of the cached map, and static wear levelling, do not.
    pub fn is_collection(self) -> bool {
        match self {
            Self::SwitchMerge
            | Self::PartialMerge
            | Self::FullMerge
            | Self::LogMerge
            | Self::Collect
            | Self::CollectMap
            | Self::MapUpdate
            | Self::Exchange
            | Self::LocalCollect
            | Self::Compact => true,
            Self::Host | Self::Modify | Self::MapFetch | Self::MapEvict | Self::WearLevel => false,
        }
    }
}

/// Reads, programs and erases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Ops {
    /// Pages read.
    pub reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
}

impl Ops {
    fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            programs: self.programs + other.programs,
            erases: self.erases + other.erases,
        }
    }
}

/// Everything the flash did, by cause, and in all as a second, independent count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    by_cause: [Ops; CAUSES],
    total: Ops,
    /// Spare-area reads (Superblock's map look-ups), counted apart.
    pub spare_reads: u64,
}

impl Counts {
    /// What was done for `cause`.
    pub fn of(&self, cause: Cause) -> Ops {
        self.by_cause[cause as usize]
    }

    /// What was done in all, counted where it was done and not by adding the causes.
    pub fn total(&self) -> Ops {
        self.total
    }

    /// The sum over the causes.
    pub fn sum(&self) -> Ops {
        self.by_cause.iter().fold(Ops::default(), |sum, ops| sum.plus(*ops))
    }

    /// The sum over the causes of garbage collection.
    pub fn collection(&self) -> Ops {
        let gc = Cause::ALL.into_iter().filter(|c| c.is_collection());
        gc.fold(Ops::default(), |sum, cause| sum.plus(self.of(cause)))
    }

    #[inline]
    pub(crate) fn read(&mut self, cause: Cause, pages: u64) {
        self.by_cause[cause as usize].reads += pages;
        self.total.reads += pages;
    }

    #[inline]
    pub(crate) fn program(&mut self, cause: Cause, pages: u64) {
        self.by_cause[cause as usize].programs += pages;
        self.total.programs += pages;
    }

    #[inline]
    pub(crate) fn erase(&mut self, cause: Cause) {
        self.by_cause[cause as usize].erases += 1;
        self.total.erases += 1;
    }
}

impl Serialize for Counts {
    /// Only the causes that occurred, then the total.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for cause in Cause::ALL {
            if self.of(cause) != Ops::default() {
                map.serialize_entry(cause.name(), &self.of(cause))?;
            }
        }
        map.serialize_entry("total", &self.total)?;
        map.serialize_entry("spare_reads", &self.spare_reads)?;
        map.end()
    }
}
