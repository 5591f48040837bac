//! Where a trace's addresses lie on the drive.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::config::Config;
use crate::ids::Lpn;
use crate::scan::Scan;
use crate::sim::RunError;

/// How the drive is aged before the trace, and so how large it is. [C]: the study does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precondition {
    /// Every traced page is written once; the flash is the traced blocks and the spare share.
    Region,
    /// The whole drive, (1 − spare) × physical, is filled sequentially.
    Drive,
    /// The whole drive, empty.
    None,
}

/// From (device, page) to logical page.
#[derive(Debug, Clone)]
pub struct Placement {
    pages_per_block: u64,
    /// Logical blocks of the drive.
    pub logical_blocks: u32,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Touched blocks side by side, in order of device and address: what was adjacent stays as near as it can.
    Dense { blocks: FxHashMap<(u32, u64), u32>, last: ((u32, u64), Option<u32>) },
    /// Devices side by side, whole; the first block of each.
    Whole { first: Vec<u64> },
}

impl Placement {
    /// Places a scanned trace on a drive, whose size it decides for a region: the geometry in `config` is set.
    ///
    /// # Errors
    /// The trace does not fit the drive.
    pub fn new(config: &mut Config, scan: &Scan, precondition: Precondition) -> Result<Self, RunError> {
        let pages_per_block = u64::from(config.geometry.pages_per_block);
        if precondition == Precondition::Region {
            let blocks: FxHashMap<_, _> =
                scan.blocks().into_iter().zip(0..).map(|((key, _), number)| (key, number)).collect();
            if blocks.is_empty() {
                return Err(RunError::TooLarge(
                    "the trace neither reads nor writes anything; there is no region to simulate".to_owned(),
                ));
            }
            let logical_blocks = blocks.len() as u32;
            config.geometry.blocks = u32::try_from(config.region_blocks(logical_blocks)).unwrap_or(u32::MAX);
            config.geometry.validate().map_err(|e| RunError::TooLarge(e.to_string()))?;
            let kind = Kind::Dense { blocks, last: ((u32::MAX, u64::MAX), None) };
            return Ok(Self { pages_per_block, logical_blocks, kind });
        }
        let logical_blocks = config.drive_blocks();
        let block_bytes = pages_per_block * u64::from(config.geometry.page_bytes);
        let mut first = Vec::new();
        let mut next = 0_u64;
        for extent in scan.extents() {
            first.push(next);
            next += extent.div_ceil(block_bytes);
        }
        if next > u64::from(logical_blocks) {
            return Err(RunError::TooLarge(format!(
                "the trace spans {}, the drive has {}; use --precondition region or a larger --geometry",
                crate::units::show_bytes(next * block_bytes),
                crate::units::show_bytes(u64::from(logical_blocks) * block_bytes)
            )));
        }
        Ok(Self { pages_per_block, logical_blocks, kind: Kind::Whole { first } })
    }

    /// The first page of the block behind a page's.
    pub fn next_block(&self, page: u64) -> u64 {
        (page / self.pages_per_block + 1) * self.pages_per_block
    }

    /// The logical page of a device's page. `None`: not part of the drive (only what is discarded can be).
    #[inline]
    pub fn lpn(&mut self, device: u32, page: u64) -> Option<Lpn> {
        let (block, offset) = (page / self.pages_per_block, page % self.pages_per_block);
        let logical = match &mut self.kind {
            Kind::Dense { blocks, last } => {
                if last.0 != (device, block) {
                    *last = ((device, block), blocks.get(&(device, block)).copied());
                }
                u64::from(last.1?)
            }
            Kind::Whole { first } => {
                let block = first.get(device as usize)? + block;
                // A discard may reach beyond what its device was seen to have.
                let end = first.get(device as usize + 1).copied().unwrap_or(u64::from(self.logical_blocks));
                (block < end).then_some(block)?
            }
        };
        Some(Lpn((logical * self.pages_per_block + offset) as u32))
    }
}
