//! A drive with one of the FTLs, where its parameters go together.

use super::dftl::Dftl;
use super::fast::{fast_table_bytes, Fast};
use super::page_map::PageMap;
use super::super_maps::{PMD_PAGES, PT_PAGES};
use super::{superblock, Ftl};
use crate::config::{Config, ConfigError, FtlKind};

impl Config {
    /// A new drive with `logical_blocks` blocks of logical pages.
    ///
    /// # Errors
    /// The parameters contradict each other or leave the FTL too little spare space; one sentence.
    pub fn build(&self, kind: FtlKind, logical_blocks: u32) -> Result<Box<dyn Ftl>, ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        self.geometry.validate().map_err(|e| ConfigError(e.to_string()))?;
        if logical_blocks == 0 {
            return refuse("a drive without logical blocks cannot be simulated; lower --spare".to_owned());
        }
        let spare = self.geometry.blocks.saturating_sub(logical_blocks);
        let pages = logical_blocks.saturating_mul(self.geometry.pages_per_block);
        let needs = |least: u32, why: &str| -> Result<(), ConfigError> {
            if self.geometry.blocks < logical_blocks || spare < least {
                return Err(ConfigError(format!(
                    "{kind} needs at least {least} spare blocks {why}, but {} physical blocks leave {spare} beside \
                     {logical_blocks} logical ones; raise --spare or --geometry",
                    self.geometry.blocks
                )));
            }
            Ok(())
        };
        let high = self.gc_high.unwrap_or(4);
        match kind {
            FtlKind::Page => {
                needs(
                    self.gc_low.max(high).saturating_add(2),
                    "(the frontier, the collection threshold and one to gain)",
                )?;
                Ok(Box::new(PageMap::new(self, pages)))
            }
            FtlKind::Fast => {
                let fixed = self.fast.reserve_blocks.saturating_add(1);
                if self.fast.reserve_blocks == 0 || self.fast.log_blocks == Some(0) {
                    return refuse(
                        "FAST needs at least one log block and one free block for merges".to_owned(),
                    );
                }
                needs(
                    fixed.saturating_add(self.fast.log_blocks.unwrap_or(1)),
                    "(the log and the merge reserve)",
                )?;
                let log = self.fast.log_blocks.unwrap_or(spare - fixed);
                Ok(Box::new(Fast::new(self, logical_blocks, log)))
            }
            FtlKind::Superblock => {
                self.check_superblock()?;
                needs(
                    self.superblock.reserve_blocks.saturating_add(1),
                    "(the collection reserve and one to share)",
                )?;
                let bytes =
                    self.superblock.map_cache_bytes.unwrap_or_else(|| self.ram_like_fast(logical_blocks));
                let cached = (bytes / self.superblock.cache_entry_bytes.max(1)).clamp(1, u64::from(u32::MAX));
                Ok(superblock::build(self, logical_blocks, cached as u32))
            }
            FtlKind::Dftl => {
                if !(0.0..=1.0).contains(&self.dftl.protected_share) {
                    return refuse("the protected share of DFTL's cache must be between 0 and 1".to_owned());
                }
                if self.geometry.pages() >= Dftl::MOST_PAGES {
                    return refuse(format!(
                        "DFTL simulates fewer than {} pages, but the drive has {}; lower --geometry",
                        Dftl::MOST_PAGES,
                        self.geometry.pages()
                    ));
                }
                let maps = pages
                    .div_ceil(self.dftl.entries_per_page(self.geometry.page_bytes))
                    .div_ceil(self.geometry.pages_per_block);
                let high = self.gc_high.unwrap_or(3);
                needs(
                    self.gc_low.max(high).saturating_add(maps + 3),
                    "(translation pages, two frontiers, the threshold)",
                )?;
                let bytes = self.dftl.cmt_bytes.unwrap_or_else(|| self.ram_like_fast(logical_blocks));
                let cached = (bytes / self.dftl.entry_bytes.max(1)).clamp(1, u64::from(u32::MAX));
                Ok(Box::new(Dftl::new(self, pages, cached as u32)))
            }
        }
    }

    fn ram_like_fast(&self, logical_blocks: u32) -> u64 {
        let spare = self.geometry.blocks.saturating_sub(logical_blocks);
        let log = spare.saturating_sub(self.fast.reserve_blocks.saturating_add(1)).max(1);
        fast_table_bytes(u64::from(logical_blocks), u64::from(log), self.geometry.pages_per_block)
    }

    /// N, M and whether the map path fits the spare area: the PGD has one entry for each PMD, PMD and PT have eight;
    /// an entry names one of N + M blocks and a page.
    fn check_superblock(&self) -> Result<(), ConfigError> {
        let o = &self.superblock;
        let refuse = |text: String| Err(ConfigError(text));
        if o.n == 0 || o.m == 0 || o.reserve_blocks == 0 {
            return refuse("Superblock needs N, M and the reserve to be at least 1".to_owned());
        }
        if o.n > 1024 || o.m > 1024 {
            return refuse(format!("N = {} and M = {} are not both at most 1024", o.n, o.m));
        }
        let pages = o.n * self.geometry.pages_per_block;
        let bits = |values: u32| u32::BITS - (values - 1).leading_zeros();
        let entry = bits(o.n + o.m) + bits(self.geometry.pages_per_block);
        let level = |entries: u32| (entries * entry).div_ceil(8);
        let bytes = level(PT_PAGES) + level(PMD_PAGES / PT_PAGES) + level(pages.div_ceil(PMD_PAGES));
        if bytes > o.spare_bytes {
            return refuse(format!(
                "the maps of a superblock with N = {}, M = {} take {bytes} bytes, a spare area has {}",
                o.n, o.m, o.spare_bytes
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SuperblockOptions;
    use crate::geometry::Geometry;

    #[test]
    fn impossible_drives_are_refused() {
        let config = Config { geometry: Geometry::small(20, 64), ..Config::default() };
        for kind in FtlKind::ALL {
            assert!(config.build(kind, 20).is_err(), "{kind} without spare blocks");
            assert!(config.build(kind, 0).is_err(), "{kind} without logical blocks");
            assert!(config.build(kind, 10).is_ok(), "{kind}");
        }
    }

    #[test]
    fn numbers_that_no_drive_has_are_refused() {
        let mut config = Config { geometry: Geometry::small(100, 64), ..Config::default() };
        config.fast.log_blocks = Some(u32::MAX);
        config.gc_low = u32::MAX;
        for kind in [FtlKind::Fast, FtlKind::Page, FtlKind::Dftl] {
            assert!(config.build(kind, 50).is_err(), "{kind}");
        }
        assert!(config.region_blocks(50) > u64::from(u32::MAX) - 100);
    }

    #[test]
    fn the_map_path_of_the_default_superblock_takes_thirty_bytes() {
        let mut config = Config::default();
        config.superblock.spare_bytes = 30;
        assert_eq!(config.check_superblock(), Ok(()));
        config.superblock.spare_bytes = 29;
        assert!(config.check_superblock().is_err());
        config.superblock = SuperblockOptions { n: 16, m: 16, ..Config::default().superblock };
        assert_eq!(config.check_superblock(), Ok(()));
    }
}
