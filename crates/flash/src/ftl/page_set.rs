//! A set of translation pages that is filled in any order and emptied in ascending order, without sorting.

/// Numbers below a bound, as bits, with a bit for every 64 of them above.
#[derive(Debug, Clone)]
pub struct PageSet {
    bits: Vec<u64>,
    /// A bit a word of `bits` that is not zero.
    used: Vec<u64>,
}

impl PageSet {
    /// An empty set of numbers below `bound`.
    pub fn new(bound: usize) -> Self {
        let words = bound.div_ceil(64);
        Self { bits: vec![0; words], used: vec![0; words.div_ceil(64)] }
    }

    /// Puts a number in; it may be in already.
    #[inline]
    pub fn insert(&mut self, number: u32) {
        let word = number as usize / 64;
        self.bits[word] |= 1 << (number % 64);
        self.used[word / 64] |= 1 << (word % 64);
    }

    /// Takes the lowest number that is at least `from`'s group; groups below must be empty. `from` remembers the group
    /// between calls; start with 0.
    #[inline]
    pub fn take_lowest(&mut self, from: &mut usize) -> Option<u32> {
        while let Some(used) = self.used.get_mut(*from) {
            if *used == 0 {
                *from += 1;
                continue;
            }
            let word = *from * 64 + used.trailing_zeros() as usize;
            let bits = &mut self.bits[word];
            let number = word as u32 * 64 + bits.trailing_zeros();
            *bits &= *bits - 1;
            // Whether a word has another number is even odds, so that it is counted, not branched on.
            *used ^= u64::from(*bits == 0) << (word % 64);
            return Some(number);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_once_and_in_order() {
        let mut set = PageSet::new(10_000);
        for number in [9_999, 0, 63, 64, 4_096, 63, 0, 5] {
            set.insert(number);
        }
        let mut from = 0;
        let out: Vec<u32> = std::iter::from_fn(|| set.take_lowest(&mut from)).collect();
        assert_eq!(out, [0, 5, 63, 64, 4_096, 9_999]);
        assert_eq!(set.take_lowest(&mut 0), None);
    }
}
