//! One record of the acknowledged-write workload.
//!
//! ```text
//!   0        8        16       24    28    32     36     40            size-8   size
//!   │ magic  │ number │ floor  │thrd │ pad │ size │ slot │ payload ... │ checksum│
//! ```
//!
//! All fields little-endian. The payload is a function of the number, so a mixture of two records can not
//! pass even where the checksum's own words come from one of them. `floor` is the largest number such that
//! this and every smaller one had been reported to the host before this record was written: the order that
//! storage has to keep.

/// The smallest record: a header, eight bytes of payload and the checksum.
pub const SIZE_BYTES_MIN: usize = 56;

const MAGIC: u64 = u64::from_le_bytes(*b"aimgrec1");
const PAYLOAD_AT: usize = 40;

/// What a record says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number, counted from 1 over all threads.
    pub number: u64,
    /// Every record up to this number was acknowledged before this one was written.
    pub floor: u64,
    /// The thread, and so the file.
    pub thread: u32,
    /// Its place in the file, in records.
    pub slot: u32,
}

/// What a slot of a file holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Slot {
    /// Zeroes: never written, or a hole.
    Empty,
    /// A whole record.
    Intact(Record),
    /// Anything else.
    Torn,
}

impl Record {
    /// Fills `buffer` with the record.
    pub fn encode(&self, buffer: &mut [u8]) {
        let size = buffer.len();
        assert!(size >= SIZE_BYTES_MIN && size % 8 == 0);
        buffer[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        buffer[8..16].copy_from_slice(&self.number.to_le_bytes());
        buffer[16..24].copy_from_slice(&self.floor.to_le_bytes());
        buffer[24..28].copy_from_slice(&self.thread.to_le_bytes());
        buffer[28..32].fill(0);
        buffer[32..36].copy_from_slice(&(size as u32).to_le_bytes());
        buffer[36..40].copy_from_slice(&self.slot.to_le_bytes());
        for (at, word) in buffer[PAYLOAD_AT..size - 8].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&payload_word(self.number, at as u64).to_le_bytes());
        }
        let sum = checksum(&buffer[..size - 8]);
        buffer[size - 8..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads a slot.
    pub fn decode(buffer: &[u8], slot: u32, thread: u32) -> Slot {
        if buffer.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        let size = buffer.len();
        if size < SIZE_BYTES_MIN || size % 8 != 0 {
            return Slot::Torn;
        }
        let record = Record {
            number: word_at(buffer, 8),
            floor: word_at(buffer, 16),
            thread: (word_at(buffer, 24) & 0xffff_ffff) as u32,
            slot: (word_at(buffer, 32) >> 32) as u32,
        };
        let whole = word_at(buffer, 0) == MAGIC
            && word_at(buffer, 32) & 0xffff_ffff == size as u64
            && record.slot == slot
            && record.thread == thread
            && word_at(buffer, size - 8) == checksum(&buffer[..size - 8])
            && buffer[PAYLOAD_AT..size - 8]
                .chunks_exact(8)
                .enumerate()
                .all(|(at, word)| word == payload_word(record.number, at as u64).to_le_bytes());
        if whole {
            Slot::Intact(record)
        } else {
            Slot::Torn
        }
    }
}

fn word_at(buffer: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&buffer[at..at + 8]);
    u64::from_le_bytes(word)
}

fn payload_word(number: u64, at: u64) -> u64 {
    mix(number ^ mix(at))
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    for word in bytes.chunks_exact(8) {
        sum = mix(sum ^ word_at(word, 0));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record = Record { number: 7, floor: 5, thread: 3, slot: 2 };

    #[test]
    fn survives_a_round_trip() {
        let mut buffer = vec![0; 4096];
        RECORD.encode(&mut buffer);
        assert_eq!(Record::decode(&buffer, 2, 3), Slot::Intact(RECORD));
    }

    #[test]
    fn any_changed_sector_is_torn() {
        let mut new = vec![0; 4096];
        let mut old = vec![0; 4096];
        RECORD.encode(&mut new);
        Record { number: 6, ..RECORD }.encode(&mut old);
        for sector in 0..8 {
            let mut mixed = new.clone();
            mixed[sector * 512..(sector + 1) * 512].copy_from_slice(&old[sector * 512..(sector + 1) * 512]);
            assert_eq!(Record::decode(&mixed, 2, 3), Slot::Torn, "sector {sector}");
        }
    }

    #[test]
    fn a_record_in_the_wrong_place_is_torn() {
        let mut buffer = vec![0; 512];
        RECORD.encode(&mut buffer);
        assert_eq!(Record::decode(&buffer, 1, 3), Slot::Torn);
        assert_eq!(Record::decode(&buffer, 2, 4), Slot::Torn);
        assert_eq!(Record::decode(&[0; 512], 0, 0), Slot::Empty);
    }
}
