//! Short names of address spaces met before, found without hashing their bytes one by one.

const PLACES: usize = 64;

/// Names that were met, as [`super::sight::Sight::key`] makes them, with their numbers; those that share a place drive
/// each other out.
#[derive(Debug)]
pub struct Names(Box<[(u128, u32); PLACES]>);

/// The number of no address space.
const NONE: u32 = u32::MAX;

impl Default for Names {
    fn default() -> Self {
        Self(Box::new([(0, NONE); PLACES]))
    }
}

impl Names {
    #[inline(always)]
    fn place(key: u128) -> usize {
        let mixed = (key as u64 ^ (key >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 58) as usize % PLACES
    }

    /// The number of a name, if it is here.
    #[inline(always)]
    pub fn get(&self, key: u128) -> Option<u32> {
        let (own, number) = self.0[Self::place(key)];
        (own == key && number != NONE).then_some(number)
    }

    /// Keeps a name's number; a name without a key (0) is not kept.
    pub fn put(&mut self, key: u128, number: u32) {
        if key != 0 {
            self.0[Self::place(key)] = (key, number);
        }
    }
}
