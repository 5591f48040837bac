//! Digests of disk content that can be kept up to date sector by sector.
//!
//! A disk's digest is the XOR over its sectors of a 128-bit hash of position and content, where a sector of zeroes counts
//! nothing. Equal content gives equal digests; that different content gives equal ones by chance is as likely as any
//! 128-bit collision, and two states are taken for the same where their digests are.

use twox_hash::XxHash3_128;

/// Hash of one sector's content, without its position; 0 for zeroes.
pub fn content(sector: &[u8]) -> u128 {
    if is_zero(sector) {
        return 0;
    }
    XxHash3_128::oneshot(sector) | 1
}

fn is_zero(bytes: &[u8]) -> bool {
    // In pieces without an early end: the compiler makes wide compares of them.
    bytes.chunks(64).all(|piece| piece.iter().fold(0, |any, byte| any | byte) == 0)
}

/// What a sector with that content hash contributes to its disk's digest.
pub fn placed(medium: usize, sector: u64, content: u128) -> u128 {
    if content == 0 {
        return 0;
    }
    let place = sector ^ ((medium as u64) << 56);
    let low = mix((content as u64) ^ mix(place));
    let high =
        mix(((content >> 64) as u64) ^ low.rotate_left(32) ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (u128::from(high) << 64) | u128::from(low)
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
