//! Seeded synthetic page streams for tests and measurements.

use crate::ids::Lpn;

/// A small generator (SplitMix64): the same seed gives the same stream on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x9E37_79B9_7F4A_7C15)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, all equally likely (to within 2^-32); `n` must not be 0.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }
}

/// How page writes fall on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Every page equally often.
    Uniform,
    /// 80 % of the writes on 20 % of the pages.
    Skewed,
    /// Ascending, again and again.
    Sequential,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 3] = [Self::Uniform, Self::Skewed, Self::Sequential];

    /// The `i`-th page written, of `pages`.
    #[inline]
    pub fn page(self, random: &mut Random, i: u64, pages: u32) -> Lpn {
        Lpn(match self {
            Self::Uniform => random.below(pages),
            Self::Skewed => {
                let hot = (pages / 5).max(1);
                if random.below(5) < 4 || pages <= hot {
                    random.below(hot)
                } else {
                    hot + random.below(pages - hot)
                }
            }
            Self::Sequential => (i % u64::from(pages)) as u32,
        })
    }
}
