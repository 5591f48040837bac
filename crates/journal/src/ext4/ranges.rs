//! Which parts of a disk are looked at: found by halving, for a guest may lay its journal out in single blocks.

use afterimage_block::Sector;

use super::volume::{area_ranges, Volume};
use crate::ids::{AreaBlock, BLOCK_SECTORS};

/// Ranges of a disk that cannot simply be handed through. Each list ascends, and its ranges neither touch nor overlap.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// Journal areas that are absorbed: reads are served from the arena.
    areas: Vec<(Sector, u64)>,
    /// File systems whose writes must be looked at, and the sectors on which layouts rest.
    writes: Vec<(Sector, u64)>,
    /// Superblocks of journals that wait for a mount.
    superblocks: Vec<(Sector, u64)>,
    /// Whether a flush has to be told of: see [`super::systems::FileSystems::flushes`].
    pub flushes: bool,
}

impl Ranges {
    pub(super) fn new(
        areas: Vec<(Sector, u64)>,
        writes: Vec<(Sector, u64)>,
        superblocks: Vec<(Sector, u64)>,
        flushes: bool,
    ) -> Self {
        Self { areas: merged(areas), writes: merged(writes), superblocks: merged(superblocks), flushes }
    }

    /// Whether a read touches an absorbed journal.
    pub fn touch_area(&self, sector: Sector, sectors: u64) -> bool {
        touch(&self.areas, sector, sectors)
    }

    /// Whether a read touches the superblock of a journal that waits for a mount: [`super::systems::FileSystems::superblock_read`] is to be told.
    pub fn touch_superblock(&self, sector: Sector, sectors: u64) -> bool {
        touch(&self.superblocks, sector, sectors)
    }

    /// Whether a write has to be looked at.
    pub fn touch_write(&self, sector: Sector, sectors: u64) -> bool {
        touch(&self.writes, sector, sectors)
    }
}

fn merged(mut ranges: Vec<(Sector, u64)>) -> Vec<(Sector, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(Sector, u64)> = Vec::with_capacity(ranges.len());
    for (sector, sectors) in ranges {
        match merged.last_mut() {
            Some((start, length)) if sector.0 <= start.0 + *length => {
                *length = (*length).max(sector.0 + sectors - start.0);
            }
            _ => merged.push((sector, sectors)),
        }
    }
    merged
}

fn touch(list: &[(Sector, u64)], sector: Sector, sectors: u64) -> bool {
    // The last range that begins before the end reaches furthest of all that do.
    let before = list.partition_point(|(s, _)| s.0 < sector.0 + sectors);
    before.checked_sub(1).is_some_and(|i| sector.0 < list[i].0 .0 + list[i].1)
}

/// A piece of an absorbed journal that lies together on the disk.
#[derive(Clone, Copy, Debug)]
struct Piece {
    sector: Sector,
    sectors: u64,
    /// Whose journal, by position among the volumes.
    v: usize,
    /// Its first block.
    at: AreaBlock,
}

/// All absorbed journals of a disk, in the disk's order.
#[derive(Debug, Default)]
pub(super) struct Areas(Vec<Piece>);

impl Areas {
    pub(super) fn of(volumes: &[Volume]) -> Self {
        let logs = volumes.iter().enumerate().filter_map(|(v, volume)| Some((v, volume.retained()?)));
        let pieces = logs.flat_map(|(v, retained)| {
            area_ranges(&retained.place.layout).map(move |(sector, sectors, at)| Piece {
                sector,
                sectors,
                v,
                at,
            })
        });
        let mut pieces: Vec<Piece> = pieces.collect();
        pieces.sort_unstable_by_key(|piece| piece.sector);
        Self(pieces)
    }

    pub(super) fn ranges(&self) -> Vec<(Sector, u64)> {
        self.0.iter().map(|piece| (piece.sector, piece.sectors)).collect()
    }

    /// The journal block that a sector lies in: whose, which, and its first sector.
    pub(super) fn at(&self, sector: Sector) -> Option<(usize, AreaBlock, Sector)> {
        let piece = self.0[..self.0.partition_point(|p| p.sector <= sector)].last()?;
        let within = sector.0 - piece.sector.0;
        // Below the journal's length, which has 32 bits.
        let block = (within / BLOCK_SECTORS) as u32;
        (within < piece.sectors).then(|| {
            (
                piece.v,
                AreaBlock(piece.at.0 + block),
                Sector(piece.sector.0 + u64::from(block) * BLOCK_SECTORS),
            )
        })
    }

    /// Where the next one begins after a sector.
    pub(super) fn next(&self, sector: Sector) -> u64 {
        self.0.get(self.0.partition_point(|p| p.sector <= sector)).map_or(u64::MAX, |p| p.sector.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_whatever_their_order() {
        let list = vec![(Sector(40), 8), (Sector(8), 8), (Sector(0), 34), (Sector(48), 2), (Sector(100), 1)];
        let ranges = Ranges::new(Vec::new(), list.clone(), Vec::new(), false);
        for sector in 0..110 {
            for sectors in 1..30 {
                let naive = list.iter().any(|(s, n)| s.0 < sector + sectors && sector < s.0 + n);
                assert_eq!(ranges.touch_write(Sector(sector), sectors), naive, "{sector}+{sectors}");
            }
        }
        assert!(!ranges.touch_area(Sector(0), 1 << 40));
    }

    #[test]
    fn a_journal_in_single_blocks_is_found_as_a_naive_search_finds_it() {
        let pieces: Vec<Piece> = (0..100u32)
            .map(|i| Piece {
                sector: Sector(u64::from(i) * 24 + 16),
                sectors: 8 * u64::from(i % 3).max(1),
                v: (i % 2) as usize,
                at: AreaBlock(i * 7),
            })
            .collect();
        let areas = Areas(pieces.clone());
        for sector in 0..2500 {
            let naive =
                pieces.iter().find(|p| (p.sector.0..p.sector.0 + p.sectors).contains(&sector)).map(|p| {
                    let block = (sector - p.sector.0) / 8;
                    (p.v, AreaBlock(p.at.0 + block as u32), Sector(p.sector.0 + block * 8))
                });
            assert_eq!(areas.at(Sector(sector)), naive);
            let next = pieces.iter().map(|p| p.sector.0).find(|s| *s > sector).unwrap_or(u64::MAX);
            assert_eq!(areas.next(Sector(sector)), next);
        }
    }
}
