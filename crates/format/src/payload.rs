//! The checksum of what guests write.
//!
//! Not CRC-32C, and no other CRC: file systems and databases end their blocks with a checksum of their own, and ext4's is
//! CRC-32C. A CRC is linear, so every block that ends with its own, right checksum has the same CRC as every other one (over
//! the same length): what one computes over it again says nothing. A torn record in which an older block of the same kind
//! shows through would pass as whole. The crash-state explorer found that with descriptor blocks of a guest's journal.
//!
//! XXH3 is not linear, is as fast as a CRC in hardware, and no file system embeds it.

use twox_hash::xxhash3_64;

/// The low 32 bits of XXH3-64, without a seed.
pub fn payload_hash(bytes: &[u8]) -> u32 {
    low(xxhash3_64::Hasher::oneshot(bytes))
}

/// [`payload_hash`] of bytes that come in pieces.
#[derive(Default)]
pub struct PayloadHasher(xxhash3_64::Hasher);

impl PayloadHasher {
    /// Adds the bytes that follow.
    pub fn update(&mut self, bytes: &[u8]) {
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    /// The hash of everything so far.
    pub fn finish(&self) -> u32 {
        low(std::hash::Hasher::finish(&self.0))
    }
}

fn low(hash: u64) -> u32 {
    hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;

    /// As the kernel's ext4 ends a block of its journal: CRC-32C, not inverted, of all before it.
    fn sealed(byte: u8) -> Vec<u8> {
        let mut block = vec![byte; 4096];
        let own = !checksum(&block[..4092]);
        block[4092..].copy_from_slice(&own.to_le_bytes());
        block
    }

    #[test]
    fn blocks_that_end_with_a_crc_of_their_own_differ() {
        let (one, other) = (sealed(1), sealed(2));
        assert_eq!(checksum(&one), checksum(&other), "what a CRC cannot tell apart is what this is about");
        assert_ne!(payload_hash(&one), payload_hash(&other));
    }

    #[test]
    fn pieces_hash_as_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for piece in [1, 64, 512, 4096, 65_536] {
            let mut hasher = PayloadHasher::default();
            bytes.chunks(piece).for_each(|part| hasher.update(part));
            assert_eq!(hasher.finish(), payload_hash(&bytes));
        }
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // XXH3_64bits("") = 2d06800538d394c2, from the reference implementation's test vectors.
        assert_eq!(payload_hash(b""), 0x38d3_94c2);
    }
}
