//! Many bytes at a time: which of them are a separator, which end a line.
//!
//! A bit for each byte, the first byte's lowest.

/// A set of places in a line, one bit each. The highest place also stands for "there is no more".
pub trait Marks: Copy {
    /// Places.
    const PLACES: usize;

    /// Takes the lowest place out; the highest place where there is none.
    fn pop(&mut self) -> usize;

    /// Whether there is no place left.
    fn is_empty(self) -> bool;

    /// The edges of the text between the separators `self`, in a line that ends at `end`: where a field begins and
    /// where it ends, in turn.
    fn edges(self, end: usize) -> Self;

    /// The separators `self` of a line that ends at `end`; all from there on count as such.
    fn until(self, end: usize) -> Self;
}

macro_rules! marks {
    ($bits:ty) => {
        impl Marks for $bits {
            const PLACES: usize = <$bits>::BITS as usize;

            #[inline(always)]
            fn pop(&mut self) -> usize {
                let last = 1 << (<$bits>::BITS - 1);
                let at = (*self | last).trailing_zeros() as usize;
                *self &= self.wrapping_sub(1);
                at
            }

            #[inline(always)]
            fn is_empty(self) -> bool {
                self == 0
            }

            #[inline(always)]
            fn edges(self, end: usize) -> Self {
                // The end is at most the highest place: no text is shifted out.
                let text = !self & ((1 << (end % Self::PLACES)) - 1);
                text ^ (text << 1)
            }

            #[inline(always)]
            fn until(self, end: usize) -> Self {
                self | (Self::MAX << (end % Self::PLACES))
            }
        }
    };
}

marks!(u64);
marks!(u128);

/// Bytes that are marked at once.
pub const BLOCK: usize = 64;

/// What there is among 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marked {
    /// Separators of fields.
    pub separators: u64,
    /// Control characters: ends of lines, tabs and the like.
    pub controls: u64,
}

impl Marked {
    /// The 64 bytes that begin `bytes` behind the beginning of the first block.
    #[inline(always)]
    pub fn from_within(two: &[Self; 2], bytes: usize) -> Self {
        let [first, second] = two;
        let by = bytes % BLOCK;
        // Two steps: a shift by 64 is none.
        let join = |first: u64, second: u64| (first >> by) | (second << 1 << (BLOCK - 1 - by));
        Self {
            separators: join(first.separators, second.separators),
            controls: join(first.controls, second.controls),
        }
    }
}

/// What there is among these.
#[inline(always)]
pub fn of(bytes: &[u8; BLOCK], separator: u8) -> Marked {
    // Plain loops over bytes without a choice in them: the compiler takes 16 bytes at a time.
    let all_if = |yes: bool| 0_u8.wrapping_sub(u8::from(yes));
    let (mut separators, mut controls) = ([0_u8; BLOCK], [0_u8; BLOCK]);
    for i in 0..BLOCK {
        separators[i] = WEIGHTS[i] & all_if(bytes[i] == separator);
    }
    for i in 0..BLOCK {
        controls[i] = WEIGHTS[i] & all_if(bytes[i] < b' ');
    }
    Marked { separators: in_order(&separators), controls: in_order(&controls) }
}

/// The bit of byte 8k + j is bit k: eight words become one without losing any.
static WEIGHTS: [u8; 64] = {
    let mut weights = [0; 64];
    let mut i = 0;
    while i < 64 {
        weights[i] = 1 << (i / 8);
        i += 1;
    }
    weights
};

/// The bits in the order of the bytes: rows and columns of an 8 by 8 matrix change places.
#[inline(always)]
fn in_order(weighed: &[u8; BLOCK]) -> u64 {
    let part = |part: &[u8]| part.first_chunk().map_or(0, |part| u128::from_le_bytes(*part));
    let both = weighed.chunks_exact(16).fold(0, |bits, sixteen| bits | part(sixteen));
    let bits = both as u64 | (both >> 64) as u64;
    let swap = |bits: u64, by: u32, which: u64| {
        let moved = (bits ^ (bits >> by)) & which;
        bits ^ moved ^ (moved << by)
    };
    let bits = swap(bits, 7, 0x00aa_00aa_00aa_00aa);
    let bits = swap(bits, 14, 0x0000_cccc_0000_cccc);
    swap(bits, 28, 0x0000_0000_f0f0_f0f0)
}

/// How many bytes follow the last `what`; 16 without one.
#[inline(always)]
pub fn behind_last(bytes: [u8; 16], what: u8) -> usize {
    const LOW: u128 = u128::from_le_bytes([0x7f; 16]);
    let other = u128::from_le_bytes(bytes) ^ u128::from_le_bytes([what; 16]);
    // The highest bit of each byte: whether it is zero. No byte carries into the next.
    let zero = !(((other & LOW) + LOW) | other | LOW);
    zero.leading_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_found_at_every_place() {
        for byte in 0..=u8::MAX {
            for at in 0..64 {
                let mut bytes = [b'x'; 64];
                bytes[at] = byte;
                bytes[63 - at] = byte.wrapping_add(1);
                for separator in [b' ', b',', 0xff] {
                    let bits = |is: &dyn Fn(u8) -> bool| {
                        bytes.iter().enumerate().fold(0_u64, |bits, (i, b)| bits | (u64::from(is(*b)) << i))
                    };
                    let wanted =
                        Marked { separators: bits(&|b| b == separator), controls: bits(&|b| b < b' ') };
                    assert_eq!(of(&bytes, separator), wanted, "{byte} at {at}");
                }
            }
        }
    }

    #[test]
    fn marks_between_two_blocks_are_joined() {
        let text: Vec<u8> = (0..128_u32).map(|i| if i * i % 7 < 3 { b' ' } else { (i % 40) as u8 }).collect();
        let block = |at: usize| of(text[at..].first_chunk().unwrap(), b' ');
        for at in 0..BLOCK {
            assert_eq!(Marked::from_within(&[block(0), block(64)], at), block(at), "{at}");
        }
    }

    #[test]
    fn the_last_point_is_found() {
        for byte in 0..=u8::MAX {
            for at in 0..16 {
                let mut bytes = [byte; 16];
                bytes[at] = b'.';
                let wanted = bytes.iter().rev().position(|b| *b == b'.').unwrap();
                assert_eq!(behind_last(bytes, b'.'), wanted, "{byte} at {at}");
            }
        }
        assert_eq!(behind_last([b'0'; 16], b'.'), 16);
    }

    #[test]
    fn edges_stand_where_fields_begin_and_end() {
        let line = b"  ab c   def";
        let blanks = line.iter().enumerate().fold(0_u64, |bits, (i, b)| bits | (u64::from(*b == b' ') << i));
        let mut edges = blanks.edges(line.len());
        let places: Vec<usize> = std::iter::from_fn(|| (!edges.is_empty()).then(|| edges.pop())).collect();
        assert_eq!(places, [2, 4, 5, 6, 9, 12]);
        assert_eq!(edges.pop(), 63, "no more");
        let mut last = 0_u128.edges(127);
        assert_eq!((last.pop(), last.pop(), last.is_empty()), (0, 127, true));
    }

    #[test]
    fn what_follows_a_line_is_not_text() {
        let mut commas = (1_u64 << 3 | 1 << 9).until(7);
        assert_eq!([commas.pop(), commas.pop(), commas.pop()], [3, 7, 8]);
    }
}
