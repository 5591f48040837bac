//! Versions on their way home: what needs no lock.

use std::sync::Arc;

use afterimage_block::{Sector, SECTOR_BYTES};
use afterimage_order::{HomeError, HomeWriter};

use super::area::Tuple;
use super::arena::{Loan, VolumeId};
use crate::ids::BLOCK_BYTES;

/// Versions on their way home as one. It needs nothing of [`Versions`] to be written, and whoever writes it may wait.
pub struct HomeSet {
    pub(crate) client: VolumeId,
    /// In the order of the disk.
    pub(crate) tuples: Vec<Tuple>,
    pub(super) start: Sector,
    /// What is not read from the arena as it is: the number of a version, and a whole number of sectors from its block's beginning.
    pub(super) copies: Vec<(usize, Box<[u8]>)>,
    pub(super) loan: Loan,
    pub(super) writer: Arc<dyn HomeWriter>,
}

impl HomeSet {
    /// Writes it; see [`HomeWriter::write_home`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self) -> Result<(), HomeError> {
        let mut pieces: Vec<(Sector, &[u8])> = Vec::with_capacity(self.tuples.len());
        let mut copies = self.copies.iter().peekable();
        let mut lent = 0;
        for (n, tuple) in self.tuples.iter().enumerate() {
            let sector = tuple.home.sector(self.start);
            let copy = copies.next_if(|(of, _)| *of == n).map_or(&[][..], |(_, copy)| &copy[..]);
            if !copy.is_empty() {
                pieces.push((sector, copy));
            }
            if copy.len() < BLOCK_BYTES {
                let behind = Sector(sector.0 + copy.len() as u64 / SECTOR_BYTES);
                pieces.push((behind, &self.loan.block(lent)[copy.len()..]));
                lent += 1;
            }
        }
        self.writer.write_home(&pieces)
    }
}
