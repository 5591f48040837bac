//! Sets of home writes: what the layer that retains a guest's journal hands down when a transaction commits.
//!
//! ```text
//! blocks of one transaction ─► Joined: neighbours become runs ─┬► power-window: one chained set of records (redo::sets)
//!                                                              └► power, guest-crash: writes through a lane (passthrough)
//! ```
//!
//! What a crash may leave of a set: see [`HomeWriter::write_home`].

use std::ops::Range;

use afterimage_block::{BlockError, DiskIndex, Medium, Sector, SECTOR_BYTES};

/// Why a set was not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HomeError {
    /// It could never be written at once. Nothing of it was.
    #[error(
        "a set of {bytes} bytes is too large to be written at once, which the redo log can do with up to {max_bytes}: \
         make the log larger with --log-max"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// [`HomeWriter::atomic_bytes_max`].
        max_bytes: u64,
    },
    /// As a write of a guest would fail: out of range, read-only, closed, or the disk or group has failed.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// Writes whole sets of blocks of one disk, in the place and with the rank of a guest's writes.
pub trait HomeWriter: Send + Sync {
    /// Writes a set; blocks until it is done. Each block's bytes are a multiple of 512; where blocks overlap, the later
    /// one in the list wins. No order of the list is needed: neighbours are joined.
    ///
    /// When this returns, every later read on any lane of the disk finds the blocks, a later flush covers them, and the
    /// process rule holds. Under `power-window` a power cut and a death at any moment leave all of the set or nothing,
    /// and readers may see a part of it only while this call runs. Under `power` and `guest-crash` a death within the call
    /// may leave any part.
    ///
    /// Waits while the group is paused, and, under `power-window`, while the redo log has no room: going home
    /// makes some, and later writes of guests let the set pass. So nothing that going home needs may wait for the caller.
    ///
    /// # Errors
    /// [`HomeError::TooLarge`] before anything is written. [`HomeError::Block`] where the group is closed or has failed, or
    /// fails while the set is written: under `power-window` nothing of the set can be read then, though after a
    /// restart all of it may be there.
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError>;

    /// The size of the largest set that is written at once, in bytes of its blocks, however they lie. `None` where a death may leave
    /// any part of a set of any size.
    fn atomic_bytes_max(&self) -> Option<u64>;
}

pub(crate) fn no_disk(disk: DiskIndex) -> BlockError {
    BlockError::Unsupported(format!("the group has no disk {}", disk.0).into())
}

/// The blocks of a set in the order in which they are written, neighbours joined.
pub(crate) struct Joined<'a> {
    pieces: Vec<(u64, &'a [u8])>,
    runs: Vec<Run>,
    bytes: u64,
}

/// Neighbouring blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) sector: u64,
    pub(crate) bytes: usize,
    pieces: Range<usize>,
}

impl<'a> Joined<'a> {
    /// Joins neighbours up to `run_bytes_max`, a multiple of 512; larger blocks are cut.
    ///
    /// # Errors
    /// A block that is no whole number of sectors.
    pub(crate) fn new(blocks: &[(Sector, &'a [u8])], run_bytes_max: usize) -> Result<Self, BlockError> {
        let mut sorted: Vec<(u64, &[u8])> = blocks.iter().map(|(sector, bytes)| (sector.0, *bytes)).collect();
        let odd = |bytes: &[u8]| bytes.len() as u64 % SECTOR_BYTES != 0;
        if sorted.iter().any(|(_, bytes)| odd(bytes)) {
            return Err(BlockError::Unsupported("a home write of a part of a sector".into()));
        }
        sorted.sort_by_key(|(sector, _)| *sector);
        let disjoint = sorted.windows(2).all(|pair| end(pair[0]) <= pair[1].0);
        if !disjoint {
            // Then the order of the list says which one wins.
            sorted = blocks.iter().map(|(sector, bytes)| (sector.0, *bytes)).collect();
        }
        let step = run_bytes_max as u64 / SECTOR_BYTES;
        let cut = |(sector, bytes): (u64, &'a [u8])| {
            (0u64..).map(move |n| sector.saturating_add(n * step)).zip(bytes.chunks(run_bytes_max))
        };
        let pieces: Vec<(u64, &[u8])> = sorted.into_iter().flat_map(cut).collect();
        let mut runs: Vec<Run> = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            match runs.last_mut() {
                Some(run)
                    if run.sector.saturating_add(run.bytes as u64 / SECTOR_BYTES) == piece.0
                        && run.bytes + piece.1.len() <= run_bytes_max =>
                {
                    run.bytes += piece.1.len();
                    run.pieces.end = index + 1;
                }
                _ => runs.push(Run { sector: piece.0, bytes: piece.1.len(), pieces: index..index + 1 }),
            }
        }
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        Ok(Self { pieces, runs, bytes })
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of a run, piece by piece.
    pub(crate) fn parts(&self, run: &Run) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.pieces[run.pieces.clone()].iter().map(|(_, bytes)| *bytes)
    }

    /// Checks that all of it lies on a disk of that size.
    pub(crate) fn check_range(&self, home: &dyn Medium) -> Result<(), BlockError> {
        let disk_sectors = home.len() / SECTOR_BYTES;
        let outside = self.runs.iter().find(|run| {
            let sectors = run.bytes as u64 / SECTOR_BYTES;
            run.sector.checked_add(sectors).is_none_or(|end| end > disk_sectors)
        });
        match outside {
            None => Ok(()),
            Some(run) => Err(BlockError::OutOfRange {
                sector: Sector(run.sector),
                sectors: run.bytes as u64 / SECTOR_BYTES,
                disk_sectors,
            }),
        }
    }
}

fn end((sector, bytes): (u64, &[u8])) -> u64 {
    sector.saturating_add(bytes.len() as u64 / SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Written run by run, the disk holds what it holds when the blocks are written one by one.
        #[test]
        fn runs_write_what_the_blocks_write(
            list in proptest::collection::vec((0u64..40, 0usize..9), 0..12),
            run_sectors in 1usize..6,
        ) {
            let contents: Vec<Vec<u8>> =
                list.iter().zip(1u8..).map(|((_, sectors), n)| vec![n; sectors * 512]).collect();
            let blocks: Vec<(Sector, &[u8])> =
                list.iter().zip(&contents).map(|((at, _), bytes)| (Sector(*at), &bytes[..])).collect();
            let mut expected = vec![0u8; 64 * 512];
            for (sector, bytes) in &blocks {
                expected[sector.0 as usize * 512..][..bytes.len()].copy_from_slice(bytes);
            }
            let joined = Joined::new(&blocks, run_sectors * 512).expect("whole sectors");
            let mut found = vec![0u8; 64 * 512];
            for run in joined.runs() {
                prop_assert!(run.bytes > 0 && run.bytes <= run_sectors * 512);
                let bytes: Vec<u8> = joined.parts(run).flatten().copied().collect();
                prop_assert_eq!(bytes.len(), run.bytes);
                found[run.sector as usize * 512..][..run.bytes].copy_from_slice(&bytes);
            }
            prop_assert!(found == expected);
            prop_assert_eq!(joined.bytes(), contents.iter().map(|c| c.len() as u64).sum::<u64>());
        }
    }

    #[test]
    fn neighbours_are_joined_in_whatever_order_they_come() {
        let block = [1; 4096];
        let blocks: Vec<(Sector, &[u8])> = [24, 8, 16, 64].map(|at| (Sector(at), &block[..])).to_vec();
        let joined = Joined::new(&blocks, 1 << 20).expect("whole sectors");
        let runs: Vec<_> = joined.runs().iter().map(|run| (run.sector, run.bytes)).collect();
        assert_eq!(runs, [(8, 3 * 4096), (64, 4096)]);
        assert!(Joined::new(&[(Sector(0), &block[..100])], 1 << 20).is_err());
    }
}
