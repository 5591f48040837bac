//! Whether the disk is still as an earlier daemon left it: what is retained belongs to no other.
//!
//! ```text
//! journal superblock  stamped by the daemon while the journal is absorbed; guests' writes of it do not get to the disk
//! ext4 superblock     its checksum in the arena; none while a write of it is under way
//! ```
//!
//! Neither is compared with a time or with anything else that moves by itself, and at every instant at which a daemon
//! can be killed the disk agrees with the arena. So what disagrees was changed by somebody else while nobody served
//! it: a backup that was put back, e2fsck or a mount on the host. A change that touches neither of the two is not noticed.

use std::sync::Arc;

use afterimage_block::{BlockError, Sector};

use super::layout::superblock::JournalSuperblock;
use super::layout::{self, AreaExtent, Layout};
use super::side;
use super::stamp::Stamp;
use super::volume::{Phase, Volume};
use crate::error::JournalError;
use crate::ids::{AreaBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::versions::arena::{Seen, VolumeId, VolumeRecord};
use crate::versions::{Places, Versions};

/// Where the ext4 superblock stands in block 0.
const SUPERBLOCK: std::ops::Range<usize> = 1024..2048;

/// What is found where a journal was absorbed.
pub(super) enum Left {
    /// The file system that is remembered.
    Sound,
    /// The same, but not as it can be retained: where its journal lies, what is not in order.
    Unsound(Arc<Layout>, String),
    /// Another file system, which the guest made itself.
    Replaced,
}

/// The checksum of a file system's superblock as it is on the disk.
pub(super) fn superblock_check(versions: &mut Versions, start: Sector) -> Result<u32, BlockError> {
    Ok(crc32c::crc32c(&versions.below.read_block(start)?[SUPERBLOCK]))
}

/// Compares the disk with what the arena remembers of one file system. `here`: what is found in its place.
///
/// # Errors
/// *Foreign*: it is another disk, or was changed by somebody else. The disk cannot be read.
pub(super) fn left(
    versions: &mut Versions,
    disk_sectors: u64,
    here: Option<&Volume>,
    id: VolumeId,
    record: &VolumeRecord,
) -> Result<Left, JournalError> {
    let start = Sector(record.start_sector);
    let foreign = |what: &str| {
        let uuid = uuid::Uuid::from_bytes(record.fs_uuid);
        Err(JournalError::Foreign(format!("of the file system {uuid} at sector {} {what}", start.0)))
    };
    let room = disk_sectors.saturating_sub(start.0);
    if room < BLOCK_SECTORS {
        return foreign("nothing is there");
    }
    let seen = versions.arena.seen(id, Seen::FileSystem);
    if seen.is_some() && seen != Some(superblock_check(versions, start)?) {
        return foreign("the superblock is not the one that was written last");
    }
    let replaced =
        layout::ext4_uuid(&versions.below.read_block(start)?).is_some_and(|uuid| uuid != record.fs_uuid);
    let sound = here.and_then(Volume::layout).filter(|layout| layout.uuid == record.fs_uuid);
    let journal = side::journal(&versions.arena, id).or_else(|| Some(sound?.journal.clone()));
    let blocks = room / BLOCK_SECTORS;
    let fits = |journal: &Vec<AreaExtent>| {
        journal.iter().all(|e| e.home.0.checked_add(e.blocks.into()).is_some_and(|end| end <= blocks))
    };
    let Some(journal) = journal.filter(fits) else {
        return if replaced { Ok(Left::Replaced) } else { foreign("no journal is found") };
    };
    let layout = Layout {
        start,
        uuid: record.fs_uuid,
        blocks,
        room_blocks: blocks,
        bitmaps: None,
        journal,
        watched: Vec::new(),
    };
    let is_sound = sound.is_some_and(|sound| sound.journal == layout.journal);
    let why = match here.map(|v| &v.phase) {
        Some(Phase::Passthrough { why }) => why.clone(),
        _ => "it is not where it was".to_owned(),
    };
    let block = match layout.sector_of(AreaBlock(0)) {
        Some(sector) => versions.below.read_block(sector)?,
        None => [0; BLOCK_BYTES],
    };
    let own = match (record.stamped, JournalSuperblock::parse(&block)) {
        (true, _) => Stamp::of(&versions.arena, id).is_in(&block),
        (false, Ok(journal)) => {
            let seen = versions.arena.seen(id, Seen::Journal);
            (journal.uuid() == record.fs_uuid || journal.is_v1())
                && seen.is_none_or(|seen| seen == crc32c::crc32c(&block))
        }
        (false, Err(_)) => false,
    };
    match own {
        true if is_sound => Ok(Left::Sound),
        true => Ok(Left::Unsound(Arc::new(layout), why)),
        // In the middle of making another file system.
        false if replaced => Ok(Left::Replaced),
        false => foreign("the journal's superblock is not the one that was written last"),
    }
}
