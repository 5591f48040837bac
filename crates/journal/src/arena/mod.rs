//! The retained-journal arena: memory that outlives the daemon (a tmpfs file, or a memfd that `keep` holds).
//!
//! ```text
//! [header page][volume records, one page][slot tags, 24 bytes each ...][slots, 4 KiB each ...]
//! ```
//!
//! A slot's tag says which journal block its content is; content is complete before the tag is published, so a daemon
//! killed at any instant leaves, for every journal block, its old content or its new one, never a mixture.

use std::path::{Path, PathBuf};

use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, Tid};

/// Which of the arena's file systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// What identifies the image that an arena belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaIdentity {
    /// Random, repeated in `FILE.state`.
    pub uuid: [u8; 16],
    /// The image's inode.
    pub inode: u64,
    /// The image's size in bytes.
    pub size_bytes: u64,
}

/// What is remembered of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeRecord {
    /// First sector on the disk.
    pub start_sector: u64,
    /// File system UUID.
    pub fs_uuid: [u8; 16],
    /// The served tail (design § 4 rule 4): transaction id and block. Published in one store.
    pub tail: (Tid, AreaBlock),
    /// Journal-area writes are absorbed.
    pub absorbing: bool,
}

/// The arena of one disk.
#[derive(Debug)]
pub struct Arena {
    path: PathBuf,
}

impl Arena {
    /// Creates the file, of room for `bytes_max` of slots (sparse until used).
    pub fn create(path: &Path, _identity: ArenaIdentity, _bytes_max: u64) -> Result<Self, JournalError> {
        Ok(Self { path: path.to_owned() })
    }

    /// Opens what an earlier daemon left. Two slots of one block: the younger counts.
    ///
    /// # Errors
    /// Not an arena, damaged, or of another image.
    pub fn open(path: &Path, _identity: Option<ArenaIdentity>) -> Result<Self, JournalError> {
        Ok(Self { path: path.to_owned() })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a block's content into a free slot (`fill` gets memory that is faulted in), publishes it and frees the slot
    /// of its older content.
    ///
    /// # Errors
    /// [`JournalError::Full`].
    pub fn store(
        &mut self,
        _volume: VolumeId,
        _at: AreaBlock,
        _fill: &mut dyn FnMut(&mut Block),
    ) -> Result<(), JournalError> {
        Ok(())
    }

    /// A block's content, if it is here.
    pub fn get(&self, _volume: VolumeId, _at: AreaBlock) -> Option<&Block> {
        None
    }

    /// Frees a block's slot. Returns whether it was there.
    pub fn remove(&mut self, _volume: VolumeId, _at: AreaBlock) -> bool {
        false
    }

    /// Remembers that the block's home was written with something else after it was committed; goes with the slot.
    pub fn set_overwritten(&mut self, _volume: VolumeId, _at: AreaBlock, _overwritten: bool) {}

    /// See [`Arena::set_overwritten`].
    pub fn is_overwritten(&self, _volume: VolumeId, _at: AreaBlock) -> bool {
        false
    }

    /// The blocks of a file system that are here, in no order.
    pub fn blocks(&self, _volume: VolumeId) -> Vec<AreaBlock> {
        Vec::new()
    }

    /// What is remembered of a file system.
    pub fn volume(&self, _volume: VolumeId) -> Option<VolumeRecord> {
        None
    }

    /// All file systems that are remembered.
    pub fn volumes(&self) -> Vec<(VolumeId, VolumeRecord)> {
        Vec::new()
    }

    /// Remembers a file system. A changed tail is published in one 8-byte store, everything else before it.
    pub fn set_volume(&mut self, _volume: VolumeId, _record: VolumeRecord) {}

    /// Forgets a file system and frees its slots.
    pub fn clear_volume(&mut self, _volume: VolumeId) {}

    /// Bytes of content held.
    pub fn used_bytes(&self) -> u64 {
        0
    }

    /// Memory that the file takes, content, spare slots and tags together.
    pub fn resident_bytes(&self) -> u64 {
        0
    }

    /// The most content it takes.
    pub fn bytes_max(&self) -> u64 {
        0
    }

    /// Gives memory of free slots back but for `spare_bytes`.
    pub fn trim(&mut self, _spare_bytes: u64) {}
}
