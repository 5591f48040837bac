//! What an arena remembers of file systems beside their blocks: which they are, how much of their logs is needed, what was seen of them on
//! the disk.
//!
//! A record has two copies of which one word names the valid one, so a record changes whole; a tail alone changes in one store. Tags of
//! slots bear the generation that their file system's record had: those of a lower one count for nothing, so a file system is
//! forgotten with all its blocks in one store, too.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::file::corrupt;
use super::map::{fence, Map};
use super::tags;
use super::VolumeId;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Tid};

/// What is remembered of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeRecord {
    /// First sector on the disk.
    pub start_sector: u64,
    /// File system UUID.
    pub fs_uuid: [u8; 16],
    /// The served tail: transaction id and block. Published in one store.
    pub tail: (Tid, AreaBlock),
    /// Journal-area writes are absorbed.
    pub absorbing: bool,
    /// The journal's superblock was read since the guest last wrote one: whoever writes one now may be a mount.
    pub superblock_read: bool,
    /// The journal's superblock on the disk bears this arena's stamp.
    pub stamped: bool,
    /// A commit waits for a write of one of its blocks: the next daemon may be asked for both, in the other order.
    pub commit_waits: bool,
    /// Blocks may be served from home. Earlier versions, which would look for them elsewhere, take the record for damaged.
    pub from_home: bool,
}

/// What is remembered of the disk itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// ext4's superblock.
    FileSystem,
    /// The same, as earlier versions took its checksum: never stored any more.
    Earlier,
    /// The journal's superblock, where it bears no stamp.
    Journal,
}

impl Seen {
    fn word(self) -> usize {
        tags::SEEN_WORD + usize::from(self == Self::Journal)
    }

    /// The flag in its word that says that it is known.
    fn flag(self) -> u64 {
        match self {
            Self::FileSystem => tags::SEEN_CONTENT,
            Self::Earlier | Self::Journal => tags::SEEN,
        }
    }
}

/// A record as this process sees it.
#[derive(Debug)]
pub(super) struct Record {
    held: Option<VolumeRecord>,
    /// Tags of a lower one were forgotten.
    pub(super) generation: u64,
    /// Which copy is valid.
    copy: usize,
}

impl Record {
    pub(super) fn held(&self) -> Option<VolumeRecord> {
        self.held
    }
}

/// Those in an arena's head.
pub(super) fn read(path: &Path, head: &[u64], salt: u32) -> Result<Vec<Record>, JournalError> {
    (0..tags::RECORDS)
        .map(|volume| {
            let at = tags::record_word(volume, 0);
            let (generation, copy, held) = tags::read_record(&head[at..at + tags::RECORD_WORDS], salt)
                .ok_or_else(|| {
                    corrupt(path, format_args!("the record of file system {volume} is damaged"))
                })?;
            Ok(Record { held, generation, copy })
        })
        .collect()
}

/// See the module.
#[derive(Debug)]
pub struct Records {
    pub(super) map: Arc<Map>,
    salt: u32,
    list: Vec<Record>,
}

impl Records {
    pub(super) fn new(map: &Arc<Map>, salt: u32, list: Vec<Record>) -> Self {
        Self { map: Arc::clone(map), salt, list }
    }

    /// With nothing remembered.
    pub(super) fn none(map: &Arc<Map>, salt: u32) -> Self {
        let none = || Record { held: None, generation: 0, copy: 0 };
        Self::new(map, salt, (0..tags::RECORDS).map(|_| none()).collect())
    }

    fn of(&self, volume: VolumeId) -> Option<&Record> {
        self.list.get(usize::from(volume.0))
    }

    /// What is remembered of a file system.
    pub fn get(&self, volume: VolumeId) -> Option<VolumeRecord> {
        self.of(volume)?.held
    }

    /// All file systems that are remembered.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, VolumeRecord)> + '_ {
        (0..).zip(&self.list).filter_map(|(i, record)| Some((VolumeId(i), record.held?)))
    }

    /// Remembers a file system. A changed tail is published in one 8-byte store; whatever else changes, a kill leaves
    /// the whole old record or the whole new one. Blocks that are here stay.
    ///
    /// # Panics
    /// The volume is not below [`super::VOLUMES_MAX`].
    pub fn set(&mut self, volume: VolumeId, record: VolumeRecord) {
        let index = usize::from(volume.0);
        let of = &mut self.list[index];
        let old = of.held.replace(record);
        if old == Some(record) {
            return;
        }
        if old.is_some_and(|old| VolumeRecord { tail: record.tail, ..old } == record) {
            let word = tags::record_word(index, 1 + of.copy * tags::COPY_WORDS);
            self.map.head(word).store(tags::tail_word(record.tail), Ordering::Release);
            return;
        }
        of.copy = 1 - of.copy;
        // The copy that is written was given up by an earlier state, whose store must not come after.
        fence();
        tags::put_copy(&self.map, index, of.copy, &tags::copy_words(&record, of.generation, self.salt));
        let state = tags::state_word(of.generation, of.copy, true, self.salt);
        self.map.head(tags::record_word(index, 0)).store(state, Ordering::Release);
    }

    /// How often what was remembered under this number was forgotten: with the arena's UUID, which absorbing it is.
    pub fn generation(&self, volume: VolumeId) -> u64 {
        self.of(volume).map_or(0, |record| record.generation)
    }

    /// The checksum of one of the file system's superblocks as it is on the disk; `None` where that is not known, as while a
    /// write of it may be under way.
    pub fn seen(&self, volume: VolumeId, what: Seen) -> Option<u32> {
        self.of(volume)?;
        let word = self.map.head(tags::record_word(volume.0.into(), what.word())).load(Ordering::Acquire);
        (word & what.flag() != 0).then_some(word as u32)
    }

    /// See [`Records::seen`]. `None` is stored before such a write begins.
    pub fn set_seen(&mut self, volume: VolumeId, what: Seen, seen: Option<u32>) {
        if self.of(volume).is_none() {
            return;
        }
        let word = seen.map_or(0, |check| what.flag() | u64::from(check));
        self.map.head(tags::record_word(volume.0.into(), what.word())).store(word, Ordering::Release);
        fence();
    }

    /// Forgets a file system and its blocks, in one store.
    pub(super) fn forget(&mut self, volume: VolumeId) {
        let index = usize::from(volume.0);
        let Some(of) = self.list.get_mut(index) else { return };
        of.held = None;
        of.generation += 1;
        let state = tags::state_word(of.generation, of.copy, false, self.salt);
        self.map.head(tags::record_word(index, 0)).store(state, Ordering::Release);
    }
}
