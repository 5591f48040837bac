//! Memory for changes that are looked at: bounded, and recycled, so that it is faulted in already.

use afterimage_block::Buffers;

/// What one lane lends, lent and spare together, in bytes.
pub(super) const BYTES_MAX: usize = 4 << 20;

/// Pieces by size class, powers of two from 4 KiB on.
#[derive(Debug, Default)]
pub(super) struct Lender {
    spare: Vec<Vec<Buffers>>,
    /// All there is, lent or spare.
    bytes: usize,
}

impl Lender {
    fn class(len: usize) -> usize {
        len.div_ceil(4096).next_power_of_two().trailing_zeros() as usize
    }

    /// A piece of at least that length, which is at most [`BYTES_MAX`]; `None` until others have come back.
    pub(super) fn lend(&mut self, len: usize) -> Option<Buffers> {
        let class = Self::class(len);
        if self.spare.len() <= class {
            self.spare.resize_with(class + 1, Vec::new);
        }
        if let Some(piece) = self.spare[class].pop() {
            return Some(piece);
        }
        let bytes = 4096 << class;
        while self.bytes + bytes > BYTES_MAX {
            let spare = self.spare.iter_mut().rev().find_map(Vec::pop)?;
            self.bytes -= spare.len();
        }
        self.bytes += bytes;
        Some(Buffers::allocate(bytes))
    }

    /// Takes a piece back that nobody uses any more.
    pub(super) fn take_back(&mut self, piece: Buffers) {
        let class = Self::class(piece.len());
        self.spare[class].push(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lends_no_more_than_its_bound_whatever_the_sizes() {
        let mut lender = Lender::default();
        let mut lent: Vec<Buffers> = std::iter::from_fn(|| lender.lend(4096)).collect();
        assert_eq!(lent.len(), BYTES_MAX / 4096);
        lent.drain(..8).for_each(|piece| lender.take_back(piece));
        assert!(lender.lend(8 * 4096 + 1).is_none(), "eight blocks came back");
        let large = lender.lend(8 * 4096).expect("they did");
        assert!(lender.lend(1).is_none());
        lender.take_back(large);
        assert!(lender.lend(1).is_some());
    }
}
