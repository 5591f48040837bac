//! Whether the disk is still as an earlier daemon left it: what is retained belongs to no other.
//!
//! ```text
//! journal superblock  stamped by the daemon while the journal is absorbed; guests' writes of it do not get to the disk
//! ext4 superblock     a checksum of it in the arena; none while a write of it is under way
//! ```
//!
//! Neither is compared with a time or with anything else that moves by itself, and at every instant at which a daemon
//! can be killed the disk agrees with the arena. So what disagrees was changed by somebody else while nobody served
//! it: a backup that was put back, e2fsck or a mount on the host. A change that touches neither of the two is not noticed.

use std::sync::Arc;

use afterimage_block::Sector;

use super::layout::superblock::JournalSuperblock;
use super::layout::{self, AreaExtent, Layout};
use super::side;
use super::stamp::Stamp;
use super::volume::{Phase, Volume};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, BLOCK_SECTORS};
use crate::versions::arena::{Seen, VolumeId, VolumeRecord};
use crate::versions::{Places, Versions};

/// Where the ext4 superblock stands in block 0.
const SUPERBLOCK: std::ops::Range<usize> = 1024..2048;

/// What is found where a journal was absorbed.
#[derive(Debug, PartialEq)]
pub(super) enum Left {
    /// The file system that is remembered.
    Sound,
    /// The same, but not as it can be retained: where its journal lies, what is not in order.
    Unsound(Arc<Layout>, String),
    /// Another file system, which the guest made itself.
    Replaced,
}

/// The checksum of a file system's superblock, which stands in this first block of it: of all but its last field. With `metadata_csum` that is
/// a CRC-32C of the rest, and a CRC over a message with its own is the same for every message.
pub(super) fn superblock_check(first: &Block) -> u32 {
    crc32c::crc32c(&first[SUPERBLOCK.start..SUPERBLOCK.end - 4])
}

/// As earlier versions made it, of all of it: with `metadata_csum` it tells only that there is an ext4.
fn earlier_check(first: &Block) -> u32 {
    crc32c::crc32c(&first[SUPERBLOCK])
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
    let blocks = disk_sectors.saturating_sub(start.0) / BLOCK_SECTORS;
    let sound = here.and_then(Volume::layout).filter(|layout| layout.uuid == record.fs_uuid);
    let journal = side::journal(&versions.arena, id).or_else(|| Some(sound?.journal.clone()));
    let layout = journal.and_then(|journal| remembered(start, record.fs_uuid, blocks, journal));
    let known = Known {
        uuid: record.fs_uuid,
        superblock: versions.arena.records.seen(id, Seen::FileSystem),
        earlier: versions.arena.records.seen(id, Seen::Earlier),
        stamp: record.stamped.then(|| Stamp::of(versions, id)),
        journal: versions.arena.records.seen(id, Seen::Journal),
        unsound: match (sound, here.map(|v| &v.phase)) {
            (Some(sound), _) if layout.as_ref().is_some_and(|l| l.journal == sound.journal) => None,
            (_, Some(Phase::Passthrough { why })) => Some(why.clone()),
            _ => Some("it is not where it was".to_owned()),
        },
        layout,
    };
    let at =
        [Some(start).filter(|_| blocks > 0), known.layout.as_ref().and_then(|l| l.sector_of(AreaBlock(0)))];
    let mut found = [None; 2];
    for (found, sector) in found.iter_mut().zip(at) {
        *found = sector.map(|sector| versions.below.read_block(sector)).transpose()?;
    }
    let [first, journal] = found;
    known.judge(first.as_ref(), journal.as_ref()).map_err(|what| {
        let uuid = uuid::Uuid::from_bytes(record.fs_uuid);
        JournalError::Foreign(format!("of the file system {uuid} at sector {} {what}", start.0))
    })
}

/// A journal where it lay, if there is room for it.
fn remembered(start: Sector, uuid: [u8; 16], blocks: u64, journal: Vec<AreaExtent>) -> Option<Layout> {
    let fits = |e: &AreaExtent| e.home.0.checked_add(e.blocks.into()).is_some_and(|end| end <= blocks);
    let layout =
        Layout { start, uuid, blocks, room_blocks: blocks, bitmaps: None, journal, watched: Vec::new() };
    layout.journal.iter().all(fits).then_some(layout)
}

/// What is known of a file system that was retained.
struct Known {
    uuid: [u8; 16],
    /// The checksum of its superblock, where no write of it was under way.
    superblock: Option<u32>,
    /// The same, as a daemon of an earlier version left it.
    earlier: Option<u32>,
    /// The journal superblock bears it, if there is one.
    stamp: Option<Stamp>,
    /// The checksum of one without a stamp, where that was seen.
    journal: Option<u32>,
    /// Where the journal lies, if that is known.
    layout: Option<Layout>,
    /// Why it cannot be retained as it is found, if it cannot.
    unsound: Option<String>,
}

impl Known {
    /// With what is there: its first block, and the one where its journal's superblock stood.
    ///
    /// # Errors
    /// It is another disk, or was changed by somebody else: in what.
    fn judge(self, first: Option<&Block>, journal: Option<&Block>) -> Result<Left, &'static str> {
        let first = first.ok_or("nothing is there")?;
        if self.superblock.is_some_and(|seen| seen != superblock_check(first))
            || self.earlier.is_some_and(|seen| seen != earlier_check(first))
        {
            return Err("the superblock is not the one that was written last");
        }
        let own = journal.is_some_and(|journal| self.is_own(journal));
        let replaced = layout::ext4_uuid(first).is_some_and(|uuid| uuid != self.uuid);
        match self.layout {
            Some(layout) if own => {
                Ok(self.unsound.map_or(Left::Sound, |why| Left::Unsound(layout.into(), why)))
            }
            // Or in the middle of making another file system.
            _ if replaced => Ok(Left::Replaced),
            Some(_) => Err("the journal's superblock is not the one that was written last"),
            None => Err("no journal is found"),
        }
    }

    fn is_own(&self, journal: &Block) -> bool {
        match (self.stamp, JournalSuperblock::parse(journal)) {
            (Some(stamp), _) => stamp.is_in(journal),
            (None, Ok(superblock)) => {
                (superblock.uuid() == self.uuid || superblock.is_v1())
                    && self.journal.is_none_or(|seen| seen == crc32c::crc32c(journal))
            }
            (None, Err(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::followed::tests::superblock;
    use super::*;
    use crate::ids::{FsBlock, BLOCK_BYTES};

    const OWN: [u8; 16] = [0; 16];

    /// The first block of an ext4 with that UUID, as far as is looked at here.
    fn first(uuid: [u8; 16]) -> Block {
        let mut block = [0; BLOCK_BYTES];
        block[1024 + 0x38..1024 + 0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
        block[1024 + 0x68..1024 + 0x78].copy_from_slice(&uuid);
        block
    }

    fn known(unsound: Option<&str>) -> Known {
        let journal = vec![AreaExtent { at: AreaBlock(0), home: FsBlock(100), blocks: 1030 }];
        Known {
            uuid: OWN,
            superblock: None,
            earlier: None,
            stamp: None,
            journal: None,
            layout: remembered(Sector(8), OWN, 2000, journal),
            unsound: unsound.map(str::to_owned),
        }
    }

    #[test]
    fn the_same_disk_is_known_by_its_journal_and_anybody_elses_is_refused() {
        let (own, other) = (first(OWN), first([9; 16]));
        let journal = *superblock(7, 1).bytes();
        let judge = |known: Known, first: &Block, journal: &Block| known.judge(Some(first), Some(journal));
        assert_eq!(judge(known(None), &own, &journal), Ok(Left::Sound));
        let unsound = judge(known(Some("odd")), &[0; BLOCK_BYTES], &journal);
        assert!(
            matches!(unsound, Ok(Left::Unsound(layout, why)) if why == "odd" && layout.start == Sector(8))
        );
        // The journal is not there any more: the guest made another file system, or somebody something.
        let none = [0; BLOCK_BYTES];
        assert_eq!(judge(known(None), &other, &none), Ok(Left::Replaced));
        assert!(judge(known(None), &own, &none).unwrap_err().starts_with("the journal's superblock"));
        // Its UUID was changed: still the same journal.
        assert_eq!(judge(known(None), &other, &journal), Ok(Left::Sound));
        assert!(known(None).judge(None, None).unwrap_err().starts_with("nothing"));
        let lost = || Known { layout: None, ..known(None) };
        assert_eq!(lost().judge(Some(&other), None), Ok(Left::Replaced));
        assert!(lost().judge(Some(&own), None).unwrap_err().starts_with("no journal"));
    }

    #[test]
    fn what_was_seen_last_has_to_be_there() {
        let (own, journal) = (first(OWN), *superblock(7, 1).bytes());
        let judge = |known: Known| known.judge(Some(&own), Some(&journal));
        let seen = |superblock, journal| Known { superblock, journal, ..known(None) };
        let (check, check_journal) = (superblock_check(&own), crc32c::crc32c(&journal));
        assert_eq!(judge(seen(Some(check), Some(check_journal))), Ok(Left::Sound));
        assert!(judge(seen(Some(check ^ 1), None)).unwrap_err().starts_with("the superblock"));
        assert!(judge(seen(None, Some(check_journal ^ 1))).unwrap_err().starts_with("the journal's"));
        // With its own checksum behind it, another content is as much another one as without.
        let with_sum = |label: u8| {
            let mut first = own;
            first[1024 + 0x78] = label;
            let sum = !crc32c::crc32c(&first[1024..2044]);
            first[2044..2048].copy_from_slice(&sum.to_le_bytes());
            first
        };
        assert_ne!(superblock_check(&with_sum(1)), superblock_check(&with_sum(2)));
        // What a daemon of an earlier version left is compared as it did: no more is known.
        let earlier = |check| Known { earlier: Some(check), ..known(None) };
        assert_eq!(judge(earlier(earlier_check(&own))), Ok(Left::Sound));
        assert!(judge(earlier(earlier_check(&own) ^ 1)).unwrap_err().starts_with("the superblock"));
        assert_eq!(earlier_check(&with_sum(1)), earlier_check(&with_sum(2)));
        // A stamp is this arena's, of this absorbing, or nobody's.
        let stamp = Stamp { arena: [3; 16], generation: 4, durable: false };
        let mut stamped = journal;
        stamp.put(&mut stamped);
        let judge = |stamp, journal: &Block| {
            Known { stamp: Some(stamp), ..known(None) }.judge(Some(&own), Some(journal))
        };
        assert_eq!(judge(stamp, &stamped), Ok(Left::Sound));
        assert_eq!(
            judge(Stamp { durable: true, ..stamp }, &stamped),
            Ok(Left::Sound),
            "the contract may change"
        );
        assert!(judge(stamp, &journal).is_err());
        assert!(judge(Stamp { generation: 5, ..stamp }, &stamped).is_err());
    }

    #[test]
    fn a_journal_lies_where_there_is_room() {
        let journal = |home| vec![AreaExtent { at: AreaBlock(0), home: FsBlock(home), blocks: 30 }];
        assert!(remembered(Sector(0), OWN, 100, journal(70)).is_some());
        assert!(remembered(Sector(0), OWN, 100, journal(71)).is_none());
        assert!(remembered(Sector(0), OWN, 100, journal(u64::MAX - 3)).is_none());
    }
}
