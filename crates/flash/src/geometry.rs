//! How large the flash is and how long its operations take. The defaults are Table II of the VMA-SSD study.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::ids::{Block, Ppn};

/// The flash: blocks × pages × bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Erase blocks. Table II: 262,144.
    pub blocks: u32,
    /// Pages in a block. Table II: 64.
    pub pages_per_block: u32,
    /// Bytes in a page. Table II: 2048.
    pub page_bytes: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self { blocks: 262_144, pages_per_block: 64, page_bytes: 2048 }
    }
}

/// Why a geometry cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Not BLOCKSxPAGESxBYTES and not a size.
    #[error(
        "'{0}' is not a geometry; write BLOCKSxPAGESxBYTES such as 262144x64x2048, or a size such as 32G"
    )]
    Syntax(String),
    /// Numbers out of range.
    #[error("{0}")]
    Range(String),
}

impl Geometry {
    /// A geometry with 2 KB pages, for tests and small studies.
    pub fn small(blocks: u32, pages_per_block: u32) -> Self {
        Self { blocks, pages_per_block, page_bytes: 2048 }
    }

    /// Checks the ranges: 1 to 2^28 blocks, 2 to 4096 pages a block, 512 bytes to 1 MiB a page (a power of two),
    /// fewer than 2^32 − 1 pages in all, because tables hold page numbers in 32 bits.
    ///
    /// # Errors
    /// The first range that is left.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let range = |text: String| Err(GeometryError::Range(text));
        if !(1..=1 << 28).contains(&self.blocks) {
            return range(format!("{} blocks are not between 1 and 268435456", self.blocks));
        }
        if !(2..=4096).contains(&self.pages_per_block) {
            return range(format!("{} pages a block are not between 2 and 4096", self.pages_per_block));
        }
        if !(512..=1 << 20).contains(&self.page_bytes) || !self.page_bytes.is_power_of_two() {
            return range(format!(
                "a page of {} bytes is not a power of two from 512 to 1048576",
                self.page_bytes
            ));
        }
        let pages = u64::from(self.blocks) * u64::from(self.pages_per_block);
        if pages >= u64::from(u32::MAX) {
            return range(format!("{pages} pages are more than the 4294967294 that page numbers can name"));
        }
        Ok(())
    }

    /// All pages.
    pub fn pages(&self) -> u32 {
        self.blocks * self.pages_per_block
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages()) * u64::from(self.page_bytes)
    }

    /// The page at `page` of `block`.
    #[inline]
    pub fn ppn(&self, block: Block, page: u32) -> Ppn {
        Ppn(block.0 * self.pages_per_block + page)
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.blocks, self.pages_per_block, self.page_bytes)
    }
}

impl FromStr for Geometry {
    type Err = GeometryError;

    /// `BLOCKSxPAGESxBYTES`, or a size in bytes with K, M, G or T (64 pages of 2 KB a block).
    fn from_str(text: &str) -> Result<Self, GeometryError> {
        let syntax = || GeometryError::Syntax(text.to_owned());
        let parts: Vec<&str> = text.split(['x', 'X', '×']).collect();
        let geometry = match parts[..] {
            [blocks, pages, bytes] => Self {
                blocks: blocks.trim().parse().map_err(|_| syntax())?,
                pages_per_block: pages.trim().parse().map_err(|_| syntax())?,
                page_bytes: bytes.trim().parse().map_err(|_| syntax())?,
            },
            [size] => {
                let bytes = crate::units::parse_bytes(size).ok_or_else(syntax)?;
                let base = Self::default();
                let block_bytes = u64::from(base.pages_per_block) * u64::from(base.page_bytes);
                if bytes == 0 || bytes % block_bytes != 0 {
                    return Err(GeometryError::Range(format!(
                        "a flash of {text} is not a multiple of the block of {block_bytes} bytes; \
                         write BLOCKSxPAGESxBYTES"
                    )));
                }
                let blocks = u32::try_from(bytes / block_bytes)
                    .map_err(|_| GeometryError::Range(format!("a flash of {text} has too many blocks")))?;
                Self { blocks, ..base }
            }
            _ => return Err(syntax()),
        };
        geometry.validate()?;
        Ok(geometry)
    }
}

/// How long operations take. Table II; the bus transfer is inside (25 µs + 2112 B × 30 ns ≈ 88 µs; 200 + 63 = 263).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Reading a page, nanoseconds.
    pub read_ns: u64,
    /// Programming a page, nanoseconds.
    pub program_ns: u64,
    /// Erasing a block, nanoseconds.
    pub erase_ns: u64,
    /// Reading a page's 64-byte spare area, nanoseconds: 25 µs + 64 × 30 ns ≈ 27 µs. [C]
    pub spare_read_ns: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { read_ns: 88_000, program_ns: 263_000, erase_ns: 2_000_000, spare_read_ns: 27_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_two_is_32_gib() {
        assert_eq!(Geometry::default().bytes(), 32 << 30);
        assert_eq!("32G".parse(), Ok(Geometry::default()));
        assert_eq!("262144x64x2048".parse(), Ok(Geometry::default()));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for text in ["", "x", "1x2", "0x64x2048", "8x1x2048", "8x64x1000", "100000000x64x2048", "3K", "-1G"] {
            let refused = text.parse::<Geometry>();
            assert!(refused.is_err(), "{text} was taken as {refused:?}");
        }
    }
}
