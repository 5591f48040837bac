//! Memory for home writes that are compared: recycled, so that it is faulted in already.

use afterimage_block::Buffers;

/// Spare pieces kept of one size.
const SPARE_MAX: usize = 32;

/// Pieces by size class, powers of two from 4 KiB on.
#[derive(Debug, Default)]
pub(super) struct Lender {
    spare: Vec<Vec<Buffers>>,
}

impl Lender {
    fn class(len: usize) -> usize {
        len.div_ceil(4096).next_power_of_two().trailing_zeros() as usize
    }

    /// A piece of at least that length.
    pub(super) fn lend(&mut self, len: usize) -> Buffers {
        let class = Self::class(len);
        if self.spare.len() <= class {
            self.spare.resize_with(class + 1, Vec::new);
        }
        self.spare[class].pop().unwrap_or_else(|| Buffers::allocate(4096 << class))
    }

    /// Takes a piece back that nobody uses any more.
    pub(super) fn take_back(&mut self, piece: Buffers) {
        let class = Self::class(piece.len());
        if self.spare[class].len() < SPARE_MAX {
            self.spare[class].push(piece);
        }
    }
}
