//! Every parameter, with the study's defaults, and the choices the study leaves open as [C].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::geometry::{Geometry, Timing};
use crate::nand::Flash;

/// Which FTL.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum FtlKind {
    /// FAST: block-mapped data, a page-mapped log.
    Fast,
    /// Superblock FTL: a page map inside groups of blocks, kept in spare areas.
    Superblock,
    /// DFTL: the page map in flash, its hot part in RAM.
    Dftl,
    /// The ideal page map: all of it in RAM.
    Page,
}

impl FtlKind {
    /// The study's three and the ideal.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Superblock, Self::Dftl, Self::Page];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Superblock => "superblock",
            Self::Dftl => "dftl",
            Self::Page => "page",
        }
    }
}

impl fmt::Display for FtlKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which block page map and DFTL collect. An uncertainty of the literature: DFTL's paper says cost-benefit, its authors' code
/// is greedy (docs/flash.md, The FTLs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum GcPolicy {
    /// The one with the most dead pages.
    #[default]
    Greedy,
    /// The one with the largest age × (1 − u) / u: of blocks with as many live pages the one whose pages have been left
    /// alone longest (Kawaguchi et al., USENIX 1995).
    CostBenefit,
}

/// A rule of merging or collecting that is broken on purpose, to prove that the proof can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[doc(hidden)]
pub enum MergeFault {
    /// As specified.
    #[default]
    None,
    /// FAST: merges do not take pages from the random log (the defect of a public simulator).
    SkipsLogCopies,
    /// FAST: a partial merge starts one page late.
    PartialStartsLate,
    /// Page map, DFTL: the victim is the second best block.
    SecondBestVictim,
    /// Page map, DFTL, Superblock: of each block that is emptied, the map misses one move.
    ForgetsAMove,
    /// DFTL: a dirty entry that leaves the cache is not written back.
    DropsDirtyEntries,
    /// Superblock: a compaction begins with the fullest blocks.
    FullestFirst,
}

/// FAST's parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FastOptions {
    /// Random log blocks. `None` [C]: all spare blocks but the sequential log and the merge reserve.
    pub log_blocks: Option<u32>,
    /// Free blocks kept for merges. [C] 2.
    pub reserve_blocks: u32,
}

/// Superblock's parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SuperblockOptions {
    /// Logical blocks a superblock, N. [C] 8.
    pub n: u32,
    /// Physical blocks it may have beyond N, M. [C] 8.
    pub m: u32,
    /// Collected pages go to blocks of their own. On.
    pub hot_cold: bool,
    /// When the pool is exhausted, a superblock that holds an extra block collects its own blocks instead of
    /// compacting the one written least recently. [C] Off.
    pub local_first: bool,
    /// Of the superblocks with an extra block, those whose open block is full are compacted first. [C] On:
    /// off (plain least recently written) wastes what a block still has room for (docs/flash.md).
    pub full_first: bool,
    /// Free blocks that only collection may use. [C] 2.
    pub reserve_blocks: u32,
    /// RAM for the map cache, bytes. `None` [C]: as large as FAST's tables on the same drive.
    pub map_cache_bytes: Option<u64>,
    /// RAM a cached page table takes (8 entries of 10 bits, its key, its queue). [C] 16.
    pub cache_entry_bytes: u64,
    /// Spare area of a page, bytes; the map path must fit.
    pub spare_bytes: u32,
}

/// DFTL's parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DftlOptions {
    /// RAM for the cached mapping table, bytes. `None` [C]: as large as FAST's tables on the same drive, as the DFTL
    /// paper sized it.
    pub cmt_bytes: Option<u64>,
    /// RAM an entry takes. 8.
    pub entry_bytes: u64,
    /// Flash an entry of a translation page takes, bytes. 4: 512 entries a page of 2 KB.
    pub flash_entry_bytes: u32,
    /// Share of the cached table that is protected. [C] 0.8.
    pub protected_share: f64,
    /// An eviction writes all dirty entries of its translation page. On.
    pub batch: bool,
    /// With at most so many free blocks a translation block is collected first, if one has a dead page. [C] 1: collecting
    /// data may cost more pages than it gains, and greed alone may use up all blocks; 0 is greed alone.
    pub last_free: u32,
}

impl DftlOptions {
    /// Entries a translation page.
    pub fn entries_per_page(&self, page_bytes: u32) -> u32 {
        (page_bytes / self.flash_entry_bytes.max(1)).max(1)
    }
}

/// All parameters of a simulated drive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// The flash. Table II.
    pub geometry: Geometry,
    /// Its operations. Table II.
    pub timing: Timing,
    /// Spare share, [`Config::SPARE`]: of the flash for a whole drive, on top of the traced blocks for an active region.
    pub spare: f64,
    /// Pages of a block are programmed in ascending order. On; off models small-block NAND for FAST.
    pub in_order: bool,
    /// Which block page map and DFTL collect. [C] Greedy.
    pub gc_policy: GcPolicy,
    /// Page map and DFTL collect when at most this many blocks are free. 3.
    pub gc_low: u32,
    /// They stop when this many are free. `None`: 4 for the page map, 3 for DFTL.
    pub gc_high: Option<u32>,
    /// Static wear levelling when erase counts differ by more than this. `None` (default): off, as in the study.
    pub static_wear: Option<u32>,
    /// Erases a block endures: 100,000 (SLC, the study's introduction).
    pub endurance: u32,
    /// FAST.
    pub fast: FastOptions,
    /// Superblock.
    pub superblock: SuperblockOptions,
    /// DFTL.
    pub dftl: DftlOptions,
    #[doc(hidden)]
    pub merge_fault: MergeFault,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            geometry: Geometry::default(),
            timing: Timing::default(),
            spare: Self::SPARE,
            in_order: true,
            gc_policy: GcPolicy::Greedy,
            gc_low: 3,
            gc_high: None,
            static_wear: None,
            endurance: 100_000,
            fast: FastOptions { log_blocks: None, reserve_blocks: 2 },
            superblock: SuperblockOptions {
                n: 8,
                m: 8,
                hot_cold: true,
                local_first: false,
                full_first: true,
                reserve_blocks: 2,
                map_cache_bytes: None,
                cache_entry_bytes: 16,
                spare_bytes: 64,
            },
            dftl: DftlOptions {
                cmt_bytes: None,
                entry_bytes: 8,
                flash_entry_bytes: 4,
                protected_share: 0.8,
                batch: true,
                last_free: 1,
            },
            merge_fault: MergeFault::None,
        }
    }
}

/// Why a drive cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl Config {
    /// The share of flash beyond what is logical. [C] The study does not say; the DFTL paper's log share is 3 %.
    pub const SPARE: f64 = 0.03;

    /// The study's flash, of as many blocks as a whole drive for `logical_bytes` takes.
    pub fn for_drive_of(logical_bytes: u64) -> Self {
        let mut config = Self::default();
        let Geometry { pages_per_block, page_bytes, .. } = config.geometry;
        let logical = logical_bytes.div_ceil(u64::from(pages_per_block) * u64::from(page_bytes));
        config.geometry.blocks = up(logical as f64 / (1.0 - config.spare)) as u32;
        // Rounding must not take a block away.
        while u64::from(config.drive_blocks()) < logical {
            config.geometry.blocks += 1;
        }
        config
    }

    /// The erased flash with its allocator.
    pub(crate) fn device(&self) -> Device {
        Device::new(Flash::new(self.geometry, self.timing, self.in_order), self.static_wear)
    }

    /// Logical blocks of a whole drive: (1 − spare) × physical.
    pub fn drive_blocks(&self) -> u32 {
        down(f64::from(self.geometry.blocks) * (1.0 - self.spare)) as u32
    }

    /// Physical blocks for an active region of `logical` blocks: the spare share on top, and never fewer than every
    /// FTL needs to work at all, so that all FTLs get the same flash.
    pub fn region_blocks(&self, logical: u32) -> u64 {
        let spare = up(f64::from(logical) * self.spare) as u64;
        u64::from(logical) + spare.max(u64::from(self.least_spare(logical)))
    }

    /// Spare blocks without which some FTL cannot work: DFTL's translation pages twice over, both frontiers and the
    /// collection reserve; at least 12.
    fn least_spare(&self, logical: u32) -> u32 {
        let pages = u64::from(logical) * u64::from(self.geometry.pages_per_block);
        let maps = pages.div_ceil(u64::from(self.dftl.entries_per_page(self.geometry.page_bytes)));
        let blocks = maps.div_ceil(u64::from(self.geometry.pages_per_block)) as u32;
        (2 * blocks + 2).saturating_add(self.gc_low.max(self.gc_high.unwrap_or(4))).max(12)
    }
}

/// Shares of blocks are not exact in binary: what is a whole number but for that is one. Larger than the error of 2^28 blocks.
const SLACK: f64 = 1e-6;

fn down(blocks: f64) -> f64 {
    (blocks + SLACK).floor()
}

fn up(blocks: f64) -> f64 {
    (blocks - SLACK).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_gives_whole_blocks_gives_them() {
        // In binary 1000 × (1 − 0.07) is 929.99…, and 100 × 0.07 is 7.00…1.
        let mut config = Config { geometry: Geometry::small(1000, 64), spare: 0.07, ..Config::default() };
        assert_eq!(config.drive_blocks(), 930);
        for (hundreds, percent) in
            (4..1000).flat_map(|hundreds| (3..30).map(move |percent| (hundreds, percent)))
        {
            let (blocks, spare) = (hundreds * 100, hundreds * percent);
            config.geometry.blocks = blocks;
            config.spare = f64::from(percent) / 100.0;
            assert_eq!(config.drive_blocks(), blocks - spare, "{percent} % of {blocks}");
            let spare = spare.max(config.least_spare(blocks));
            assert_eq!(config.region_blocks(blocks), u64::from(blocks + spare), "{percent} % of {blocks}");
        }
        config.geometry.blocks = 1024;
        config.spare = 0.07;
        assert_eq!((config.drive_blocks(), config.region_blocks(1024)), (952, 1096), "parts go to the spare");
    }
}
