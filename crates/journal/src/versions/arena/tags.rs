//! What the head and the tags hold, as 64-bit words in the machine's own byte order: an arena never leaves its machine.
//!
//! ```text
//! header   [magic][version | check][uuid, 2 words][inode][image bytes] ; [bytes_max], alone, outside the check
//! name     from word 16: [check << 32 | bytes][path of the image ...]: for people, who find an arena that nothing names
//! record   [state: check << 48 | generation << 2 | copy << 1 | valid; 0 at first][copy 0: 5 words][copy 1: 5 words][seen][seen]
//! copy     [tail: tid << 32 | block][start sector][fs uuid, 2 words]
//!          [check << 32 | from home, a commit waits, stamped, superblock read, absorbing]
//! seen     [2 << 32 | CRC-32C of the file system's superblock on the disk without its own checksum; 1 << 32 | CRC-32C of all of
//!          it, by earlier versions] [1 << 32 | CRC-32C of the journal's superblock there]; 0: not known
//! tag      [sequence, 0 = free][flags << 48 | volume << 32 | block][generation][check]
//! ```
//!
//! What changes in an arena that is in use changes by one store of one word: a tag's sequence, its flags, a record's
//! state, a tail, what was seen, `bytes_max`. Everything that such a word makes valid was stored before it.

use super::map::{Map, PAGE, RECORD_PAGES, TAG_WORDS};
use super::{ArenaIdentity, VolumeRecord};
use crate::ids::{AreaBlock, Tid};

/// "AIarena" and a zero byte, as read on a little-endian machine.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"AIarena\0");
/// The only version.
pub(super) const VERSION: u32 = 1;
/// Words of the header that its check covers.
const HEADER_WORDS: usize = 6;
/// The word of the bound.
pub(super) const BYTES_MAX_WORD: usize = 6;
/// The word where the image's name begins; see [`name_words`].
pub(super) const NAME_WORD: usize = 16;
/// The longest name, in bytes: the header's page ends there.
const NAME_BYTES_MAX: usize = (PAGE as usize / 8 - NAME_WORD - 1) * 8;
/// Words of a volume record.
pub(super) const RECORD_WORDS: usize = 16;
/// Words of one copy in a record.
pub(super) const COPY_WORDS: usize = 5;
/// The first word of a record that holds what was seen of the disk.
pub(super) const SEEN_WORD: usize = 1 + 2 * COPY_WORDS;
/// The flag in that word: it is known.
pub(super) const SEEN: u64 = 1 << 32;
/// The same, of a checksum of what its own checksum is of. Earlier versions take it for not known.
pub(super) const SEEN_CONTENT: u64 = 1 << 33;
/// Volume records.
pub(super) const RECORDS: usize = (RECORD_PAGES * PAGE) as usize / 8 / RECORD_WORDS;
/// The flag in a tag: the block's home was written with something else.
pub(super) const OVERWRITTEN: u64 = 1 << 48;
/// The flag in a tag: the block is home; with [`OVERWRITTEN`], it was.
pub(super) const HOME: u64 = 1 << 49;
/// The flag in a tag, beside [`OVERWRITTEN`]: what was written is older.
pub(super) const OLDER: u64 = 1 << 50;
/// All of them.
pub(super) const MARKS: u64 = OVERWRITTEN | HOME | OLDER;
/// Flags of a tag.
const FLAGS: u64 = 0xffff << 48;
/// A sequence above this was not counted up to: seventy years of a store every nanosecond.
pub(super) const SEQUENCE_MAX: u64 = 1 << 61;
/// Bits of a generation and the two bits below it.
const STATE_BITS: u32 = 48;

/// A CRC-32C of words.
fn check(seed: u32, words: &[u64]) -> u32 {
    words.iter().fold(seed, |crc, word| crc32c::crc32c_append(crc, &word.to_ne_bytes()))
}

fn two_words(uuid: [u8; 16]) -> [u64; 2] {
    let value = u128::from_ne_bytes(uuid);
    [value as u64, (value >> 64) as u64]
}

fn sixteen_bytes(words: [u64; 2]) -> [u8; 16] {
    (u128::from(words[0]) | u128::from(words[1]) << 64).to_ne_bytes()
}

/// The header's words, but for the bound.
pub(super) fn header(identity: &ArenaIdentity) -> [u64; HEADER_WORDS] {
    let [low, high] = two_words(identity.uuid);
    let mut words = [MAGIC, u64::from(VERSION), low, high, identity.inode, identity.size_bytes];
    words[1] |= u64::from(check(0, &words)) << 32;
    words
}

/// The image's name as words; `None` where it is too long.
pub(super) fn name_words(name: &[u8]) -> Option<Vec<u64>> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut words = vec![u64::from(crc32c::crc32c(name)) << 32 | name.len() as u64];
    for chunk in name.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        words.push(u64::from_ne_bytes(bytes));
    }
    Some(words)
}

/// The image's name in the head; `None` where there is none.
pub(super) fn read_name(head: &[u64]) -> Option<Vec<u8>> {
    let first = *head.get(NAME_WORD)?;
    let len =
        usize::try_from(first & u64::from(u32::MAX)).ok().filter(|len| (1..=NAME_BYTES_MAX).contains(len))?;
    let words = head.get(NAME_WORD + 1..NAME_WORD + 1 + len.div_ceil(8))?;
    let mut name: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    name.truncate(len);
    (u64::from(crc32c::crc32c(&name)) == first >> 32).then_some(name)
}

/// What the header says.
pub(super) enum Header {
    Good(ArenaIdentity),
    OtherMagic,
    OtherVersion(u32),
    Damaged,
}

/// Reads the header.
pub(super) fn read_header(page: &[u64]) -> Header {
    let mut words = [0; HEADER_WORDS];
    words.copy_from_slice(&page[..HEADER_WORDS]);
    if words[0] != MAGIC {
        return Header::OtherMagic;
    }
    let (version, found) = (words[1] as u32, (words[1] >> 32) as u32);
    if version != VERSION {
        return Header::OtherVersion(version);
    }
    words[1] = u64::from(version);
    if check(0, &words) != found {
        return Header::Damaged;
    }
    Header::Good(ArenaIdentity {
        uuid: sixteen_bytes([words[2], words[3]]),
        inode: words[4],
        size_bytes: words[5],
    })
}

/// A tail as one word.
pub(super) fn tail_word(tail: (Tid, AreaBlock)) -> u64 {
    u64::from(tail.0 .0) << 32 | u64::from(tail.1 .0)
}

/// A copy of a record. Its check covers all but the tail, which changes alone.
pub(super) fn copy_words(record: &VolumeRecord, generation: u64, salt: u32) -> [u64; COPY_WORDS] {
    let [low, high] = two_words(record.fs_uuid);
    let VolumeRecord { absorbing, superblock_read, stamped, commit_waits, from_home, .. } = *record;
    let flags = [absorbing, superblock_read, stamped, commit_waits, from_home];
    let flags = flags.iter().rev().fold(0, |word, flag| word << 1 | u64::from(*flag));
    let found = check(salt, &[record.start_sector, low, high, flags, generation]);
    [tail_word(record.tail), record.start_sector, low, high, u64::from(found) << 32 | flags]
}

/// What a record's words say: its generation, which copy is valid, and that copy's content. `None`: they contradict
/// themselves.
pub(super) fn read_record(words: &[u64], salt: u32) -> Option<(u64, usize, Option<VolumeRecord>)> {
    let state = words[0] & ((1 << STATE_BITS) - 1);
    let (generation, copy, valid) = (state >> 2, (state >> 1 & 1) as usize, state & 1 == 1);
    if words[0] != 0 && words[0] != state_word(generation, copy, valid, salt) {
        return None;
    }
    if !valid {
        return Some((generation, copy, None));
    }
    let at = 1 + copy * COPY_WORDS;
    let copy_found = &words[at..at + COPY_WORDS];
    let record = VolumeRecord {
        start_sector: copy_found[1],
        fs_uuid: sixteen_bytes([copy_found[2], copy_found[3]]),
        tail: (Tid((copy_found[0] >> 32) as u32), AreaBlock(copy_found[0] as u32)),
        absorbing: copy_found[4] & 1 == 1,
        superblock_read: copy_found[4] >> 1 & 1 == 1,
        stamped: copy_found[4] >> 2 & 1 == 1,
        commit_waits: copy_found[4] >> 3 & 1 == 1,
        from_home: copy_found[4] >> 4 & 1 == 1,
    };
    (copy_words(&record, generation, salt)[..] == *copy_found).then_some((generation, copy, Some(record)))
}

/// The state word of a record.
pub(super) fn state_word(generation: u64, copy: usize, valid: bool, salt: u32) -> u64 {
    let state = generation << 2 | (copy as u64) << 1 | u64::from(valid);
    state | u64::from(check(salt, &[state])) << STATE_BITS
}

/// A slot's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotTag {
    pub(super) sequence: u64,
    pub(super) volume: u16,
    pub(super) block: u32,
    pub(super) generation: u64,
    /// See [`MARKS`].
    pub(super) flags: u64,
}

impl SlotTag {
    /// Its words for that slot.
    pub(super) fn words(&self, slot: u32, salt: u32) -> [u64; TAG_WORDS] {
        let key = u64::from(self.volume) << 32 | u64::from(self.block);
        let found = check(salt, &[self.sequence, key, self.generation, u64::from(slot)]);
        [self.sequence, key | self.flags, self.generation, u64::from(found)]
    }

    /// What a slot's words say. `None`: they contradict themselves.
    pub(super) fn read(words: &[u64], slot: u32, salt: u32) -> Option<Self> {
        let key = words[1] & !FLAGS;
        let tag = Self {
            sequence: words[0],
            volume: (key >> 32) as u16,
            block: key as u32,
            generation: words[2],
            flags: words[1] & MARKS,
        };
        (tag.words(slot, salt)[..] == words[..TAG_WORDS]
            && usize::from(tag.volume) < RECORDS
            && tag.sequence <= SEQUENCE_MAX)
            .then_some(tag)
    }
}

/// What ties tags and records to their arena.
pub(super) fn salt(identity: &ArenaIdentity) -> u32 {
    check(0, &two_words(identity.uuid))
}

/// Where a record's words are in the head.
pub(super) fn record_word(volume: usize, word: usize) -> usize {
    PAGE as usize / 8 + volume * RECORD_WORDS + word
}

/// Stores a record's copy, which nothing refers to yet.
pub(super) fn put_copy(map: &Map, volume: usize, copy: usize, words: &[u64; COPY_WORDS]) {
    for (i, word) in words.iter().enumerate() {
        map.head(record_word(volume, 1 + copy * COPY_WORDS + i))
            .store(*word, std::sync::atomic::Ordering::Relaxed);
    }
}
