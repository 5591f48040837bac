//! Request memory with gaps that nobody may touch.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use afterimage_block::Buffers;

/// What fills the gaps between segments, and the segments of a read before it.
pub(super) const FILLER: u8 = 0xa5;

/// A request's segments inside one larger allocation.
pub(super) struct Memory {
    whole: Buffers,
    /// Offset and length of each segment in `whole`.
    segments: Vec<(usize, usize)>,
    pub buffers: Buffers,
}

impl Memory {
    /// `len` bytes in up to `segments_max` segments. Addresses and lengths are multiples of 512, or of nothing at all.
    pub fn new(random: &mut ChaCha8Rng, len: usize, segments_max: usize) -> Self {
        let grain = if random.random_bool(0.7) { 512 } else { 1 };
        let mut cuts: Vec<usize> = (1..random.random_range(1..=segments_max.max(1)))
            .map(|_| random.random_range(0..=len) / grain * grain)
            .collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut at = 0;
        let mut segments = Vec::new();
        for pair in cuts.windows(2) {
            at += random.random_range(0..=1024) / grain * grain;
            segments.push((at, pair[1] - pair[0]));
            at += pair[1] - pair[0];
        }
        let whole = Buffers::from_bytes(&vec![FILLER; at + 512]);
        let base = whole.segments()[0].iov_base.cast::<u8>();
        let vectors: Vec<libc::iovec> = segments
            .iter()
            .map(|(offset, len)| libc::iovec { iov_base: base.wrapping_add(*offset).cast(), iov_len: *len })
            .collect();
        let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(Mutex::new(whole.share()));
        // SAFETY: the segments lie inside `whole`, which the buffers keep alive and which is only reached by copies.
        let buffers = unsafe { Buffers::from_raw(vectors, Some(owner)) };
        Self { whole, segments, buffers }
    }

    /// Whether all bytes outside the segments are as they were.
    pub fn gaps_are_untouched(&self) -> bool {
        let all = self.whole.to_vec();
        let mut at = 0;
        for (offset, len) in self.segments.iter().copied().chain([(all.len(), 0)]) {
            if all[at..offset].iter().any(|b| *b != FILLER) {
                return false;
            }
            at = offset + len;
        }
        true
    }

    /// Makes the whole memory unlike anything that was ever written.
    pub fn scribble(&self, byte: u8) {
        self.whole.copy_from(0, &vec![byte; self.whole.len()]);
    }

    /// Whether the whole memory still is what [`Memory::scribble`] left.
    pub fn is_all(&self, byte: u8) -> bool {
        self.whole.to_vec().iter().all(|b| *b == byte)
    }
}
