//! Where a trace's addresses lie on the drive.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::config::Config;
use crate::control::RunError;
use crate::ids::Lpn;
use crate::scan::Scan;

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

/// What an active region consists of. [C]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Region {
    /// The traced pages side by side, in order of device and address: nothing but traced pages fills the flash.
    Pages,
    /// The blocks that hold a traced page, whole: offsets in blocks stay, pages never traced are room to spare.
    Blocks,
}

/// What a run does besides the drive's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunOptions {
    /// Ageing.
    pub precondition: Precondition,
    /// What a region is made of.
    pub region: Region,
    /// A write of a part of a page reads the page first. Off: every touched page counts one operation.
    pub modify: bool,
    /// Discards reach the FTL. Off [C]: the study's guests sent none.
    pub discards: bool,
    /// The trace's times are kept. Off: one request after the other.
    pub timed: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            precondition: Precondition::Region,
            region: Region::Pages,
            modify: false,
            discards: false,
            timed: true,
        }
    }
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
    /// Touched blocks, by number; where each begins and which of its pages count.
    Dense {
        blocks: FxHashMap<(u32, u64), u32>,
        /// The same, in order.
        keys: Vec<(u32, u64)>,
        first: Vec<u32>,
        bits: Vec<u64>,
        /// The block that was looked up last, and the one for a request ahead.
        last: [((u32, u64), Option<u32>); 2],
    },
    /// Devices side by side, whole; the first block of each, and the end of the last.
    Whole { first: Vec<u64> },
}

impl Placement {
    /// Places a scanned trace on a drive, whose size it decides for a region: the geometry in `config` is set.
    ///
    /// # Errors
    /// The trace does not fit the drive.
    pub fn new(
        config: &mut Config,
        scan: &Scan,
        precondition: Precondition,
        region: Region,
    ) -> Result<Self, RunError> {
        let pages_per_block = u64::from(config.geometry.pages_per_block);
        if precondition == Precondition::Region {
            return Self::dense(config, scan, region);
        }
        let logical_blocks = config.drive_blocks();
        let block_bytes = pages_per_block * u64::from(config.geometry.page_bytes);
        let mut first = Vec::new();
        let mut next = 0_u64;
        for extent in scan.extents() {
            first.push(next);
            next += extent.div_ceil(block_bytes);
        }
        first.push(next);
        if next > u64::from(logical_blocks) {
            return Err(RunError::TooLarge(format!(
                "the trace spans {}, the drive has {}; use --precondition region or a larger --geometry",
                afterimage_report::number::show_bytes(next * block_bytes),
                afterimage_report::number::show_bytes(u64::from(logical_blocks) * block_bytes)
            )));
        }
        Ok(Self { pages_per_block, logical_blocks, kind: Kind::Whole { first } })
    }

    fn dense(config: &mut Config, scan: &Scan, region: Region) -> Result<Self, RunError> {
        let p = u64::from(config.geometry.pages_per_block);
        let (mut blocks, mut keys) = (FxHashMap::default(), Vec::new());
        let (mut first, mut all_bits) = (Vec::new(), Vec::new());
        let mut pages = 0_u64;
        for ((key, bits), number) in scan.blocks().into_iter().zip(0..) {
            blocks.insert(key, number);
            keys.push(key);
            first.push(u32::try_from(pages).unwrap_or(u32::MAX));
            match region {
                Region::Pages => {
                    all_bits.extend_from_slice(bits);
                    pages += bits.iter().map(|w| u64::from(w.count_ones())).sum::<u64>();
                }
                Region::Blocks => {
                    all_bits.extend(bits.iter().map(|_| u64::MAX));
                    pages += p;
                }
            }
        }
        if pages == 0 {
            return Err(RunError::TooLarge(
                "the trace neither reads nor writes anything; there is no region to simulate".to_owned(),
            ));
        }
        let logical_blocks = u32::try_from(pages.div_ceil(p)).unwrap_or(u32::MAX);
        config.geometry.blocks = u32::try_from(config.region_blocks(logical_blocks)).unwrap_or(u32::MAX);
        config
            .geometry
            .validate()
            .map_err(|e| RunError::TooLarge(format!("the traced region is too large: {e}")))?;
        let last = [((u32::MAX, u64::MAX), None); 2];
        let kind = Kind::Dense { blocks, keys, first, bits: all_bits, last };
        Ok(Self { pages_per_block: p, logical_blocks, kind })
    }

    /// The next page after one that is no part of the drive that may be one, on the same device; `None`: there is none.
    /// What lies between costs nothing, however much it is.
    pub fn next_page(&self, device: u32, page: u64) -> Option<u64> {
        match &self.kind {
            Kind::Dense { keys, .. } => match keys.binary_search(&(device, page / self.pages_per_block)) {
                Ok(_) => Some(page + 1),
                Err(next) => {
                    let (owner, block) = *keys.get(next)?;
                    (owner == device).then_some(block * self.pages_per_block)
                }
            },
            // All of a device is part of a whole drive: this page lies behind it.
            Kind::Whole { .. } => None,
        }
    }

    /// The logical page of a device's page. `None`: not part of the drive (only what is discarded can be).
    #[inline]
    pub fn lpn(&mut self, device: u32, page: u64) -> Option<Lpn> {
        self.find(device, page, 0)
    }

    /// The same, for a request whose turn comes later.
    #[inline]
    pub fn lpn_ahead(&mut self, device: u32, page: u64) -> Option<Lpn> {
        self.find(device, page, 1)
    }

    #[inline]
    fn find(&mut self, device: u32, page: u64, reader: usize) -> Option<Lpn> {
        let (block, offset) = (page / self.pages_per_block, page % self.pages_per_block);
        match &mut self.kind {
            Kind::Dense { blocks, first, bits, last, .. } => {
                let last = &mut last[reader];
                if last.0 != (device, block) {
                    *last = ((device, block), blocks.get(&(device, block)).copied());
                }
                let number = last.1? as usize;
                let words = bits.len() / first.len();
                let bits = &bits[number * words..][..words];
                let (word, bit) = ((offset / 64) as usize, 1u64 << (offset % 64));
                let below = bits[..word].iter().map(|w| w.count_ones()).sum::<u32>();
                let rank = below + (bits[word] & (bit - 1)).count_ones();
                (bits[word] & bit != 0).then_some(Lpn(first[number] + rank))
            }
            Kind::Whole { first } => {
                let block = first.get(device as usize)? + block;
                // A discard may reach beyond what its device was seen to have.
                let end = first.get(device as usize + 1)?;
                (block < *end).then_some(Lpn((block * self.pages_per_block + offset) as u32))
            }
        }
    }
}
