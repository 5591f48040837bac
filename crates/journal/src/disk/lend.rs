//! Memory for changes that are looked at: bounded, and the lowest that is free, so that few pages are used again and again, and
//! only they are ever faulted in.

use std::ops::{Deref, Range};

use afterimage_block::Buffers;

/// What one lane lends at most, in bytes.
pub(super) const BYTES_MAX: usize = 4 << 20;
const PAGE: usize = 4096;

/// Lends pieces of one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Lender {
    memory: Option<Buffers>,
    /// What is lent, in pages, in order.
    lent: Vec<Range<usize>>,
}

/// What is lent, until it is taken back.
#[derive(Debug)]
pub(super) struct Lent {
    buffers: Buffers,
    first: usize,
}

impl Deref for Lent {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        &self.buffers
    }
}

impl Lender {
    /// A piece of that length in bytes, which is at most [`BYTES_MAX`]; `None` until others have come back.
    pub(super) fn lend(&mut self, len: usize) -> Option<Lent> {
        let pages = len.div_ceil(PAGE).max(1);
        let ends = std::iter::once(0).chain(self.lent.iter().map(|l| l.end));
        let starts = self.lent.iter().map(|l| l.start).chain([BYTES_MAX / PAGE]);
        let (index, first) = ends
            .zip(starts)
            .enumerate()
            .find_map(|(n, (end, start))| (start - end >= pages).then_some((n, end)))?;
        self.lent.insert(index, first..first + pages);
        let memory = self.memory.get_or_insert_with(|| Buffers::allocate(BYTES_MAX));
        Some(Lent { buffers: memory.slice(first * PAGE, len), first })
    }

    /// Takes a piece back that nobody uses any more.
    pub(super) fn take_back(&mut self, piece: Lent) {
        self.lent.retain(|lent| lent.start != piece.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lends_no_more_than_its_bound_whatever_the_sizes() {
        let mut lender = Lender::default();
        let mut lent: Vec<Lent> = std::iter::from_fn(|| lender.lend(4096)).collect();
        assert_eq!(lent.len(), BYTES_MAX / 4096);
        lent.drain(..8).for_each(|piece| lender.take_back(piece));
        assert!(lender.lend(8 * 4096 + 1).is_none(), "eight blocks came back");
        let large = lender.lend(8 * 4096).expect("they did");
        assert!(lender.lend(1).is_none());
        lender.take_back(large);
        assert!(lender.lend(1).is_some());
    }

    #[test]
    fn no_page_is_lent_twice() {
        let mut lender = Lender::default();
        let mut lent: Vec<Lent> = Vec::new();
        let mut seed = 1_u64;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (seed >> 33) as usize;
            if number % 3 == 0 && !lent.is_empty() {
                lender.take_back(lent.swap_remove(number % lent.len()));
            } else if let Some(piece) = lender.lend(1 + number % (1 << 20)) {
                lent.push(piece);
            }
            let mut ranges: Vec<_> =
                lent.iter().map(|l| (l.first * PAGE, l.first * PAGE + l.len())).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            assert!(ranges.last().is_none_or(|last| last.1 <= BYTES_MAX));
        }
    }
}
