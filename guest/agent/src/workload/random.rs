//! Seeded random numbers, so that two runs ask for the same files in the same order.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, good enough to choose files and sizes.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts a sequence.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `bound`, which must not be 0. The bias (below 2⁻³² here) is of no consequence.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// A number in (0, 1): never 0, so that its logarithm is finite.
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        // Box and Muller.
        (-2.0 * self.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }

    /// A gamma-distributed number (Marsaglia and Tsang 2000, for shapes of at least 1).
    pub fn gamma(&mut self, mean: f64, shape: f64) -> f64 {
        assert!(shape >= 1.0, "the method is for shapes of at least 1");
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v * mean / shape;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_has_its_mean_and_variance() {
        let mut random = Random::new(1);
        let count = 200_000;
        let all: Vec<f64> = (0..count).map(|_| random.gamma(16384.0, 1.5)).collect();
        let mean = all.iter().sum::<f64>() / f64::from(count);
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(count);
        assert!((mean / 16384.0 - 1.0).abs() < 0.02, "{mean}");
        // Variance of a gamma distribution: mean² / shape.
        assert!((variance / (16384.0f64.powi(2) / 1.5) - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn a_seed_repeats() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| a.word() == b.word()));
        assert_ne!(Random::new(7).word(), Random::new(8).word());
    }
}
