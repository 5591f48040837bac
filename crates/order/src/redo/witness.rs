//! Witnesses: blocks of the images of which a header knows the content, so that a restored copy is recognised.

use afterimage_format::log::{LogHeader, WitnessEntry, WITNESSES_MAX};
use afterimage_format::payload_hash;

use super::extents::{ExtentMap, Source};
use crate::sequence::LogPosition;

/// Sectors of a witness block.
const WITNESS_SECTORS: u64 = 8;
/// How many blocks of one round home, or of images that get their first log, become witnesses.
const WITNESSES_NEW_MAX: usize = WITNESSES_MAX / 2;

/// A block that is to become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    disk: u16,
    pub(super) sector: u64,
    sectors: u64,
}

impl Spot {
    pub(super) fn disk(&self) -> usize {
        usize::from(self.disk)
    }

    pub(super) fn bytes(&self) -> usize {
        self.sectors as usize * 512
    }

    /// The witness of what the block holds.
    pub(super) fn entry(&self, content: &[u8]) -> WitnessEntry {
        WitnessEntry {
            sector: self.sector.into(),
            disk: self.disk.into(),
            sectors: (self.sectors as u16).into(),
            hash: payload_hash(content).into(),
        }
    }
}

/// Blocks spread over images of these sizes.
pub(super) fn of_images(home_bytes: &[u64]) -> Vec<Spot> {
    let each = (WITNESSES_NEW_MAX / home_bytes.len().max(1)).max(1) as u64;
    let spread = |(bytes, disk): (&u64, u16)| {
        let blocks = bytes / (WITNESS_SECTORS * 512);
        (0..each.min(blocks)).map(move |i| {
            let sector = (blocks - 1) * i / each.max(2) * WITNESS_SECTORS;
            Spot { disk, sector, sectors: WITNESS_SECTORS }
        })
    };
    home_bytes.iter().zip(0u16..).flat_map(spread).take(WITNESSES_MAX).collect()
}

/// Blocks spread over what goes home, and where the log has them.
pub(super) fn of_round(newest: &[ExtentMap]) -> Vec<(Spot, LogPosition)> {
    let logged = || {
        newest.iter().zip(0u16..).flat_map(|(map, disk)| {
            map.iter().filter_map(move |(sector, extent)| match extent.source {
                Source::Log(at) => {
                    Some((Spot { disk, sector, sectors: extent.sectors.min(WITNESS_SECTORS) }, at))
                }
                Source::Zero { .. } => None,
            })
        })
    };
    let step = logged().count().div_ceil(WITNESSES_NEW_MAX).max(1);
    logged().step_by(step).collect()
}

/// Puts these into a header, and, as far as there is room, those of before that nothing has touched.
pub(super) fn replace(header: &mut LogHeader, mut chosen: Vec<WitnessEntry>, newest: &[ExtentMap]) {
    let untouched = header.witnesses().iter().filter(|old| {
        let map = newest.get(usize::from(old.disk.get()));
        map.is_some_and(|map| !map.overlaps(old.sector.get(), u64::from(old.sectors.get())))
    });
    chosen.extend(untouched.copied());
    chosen.truncate(WITNESSES_MAX);
    header.witnesses[..chosen.len()].copy_from_slice(&chosen);
    header.witnesses[chosen.len()..].fill(WitnessEntry::default());
    header.witness_count = (chosen.len() as u32).into();
}
