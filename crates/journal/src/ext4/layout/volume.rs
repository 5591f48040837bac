//! One place of a disk: what stands there, and if it is an ext4, where its journal is.

use afterimage_block::{BlockError, Sector, SECTOR_BYTES};

use super::ext4::{corrupt, incompat, unsupported, Reader, Superblock};
use super::extents::{self, Limits};
use super::group::Group;
use super::inode::Inode;
use super::superblock::JournalSuperblock;
use super::{foreign, Found, Layout, Source, JOURNAL_BLOCKS_MAX};
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, BLOCK_BYTES, BLOCK_SECTORS};

/// How much of a volume's beginning is looked at: up to the superblock of btrfs at 64 KiB.
const HEAD_BYTES: usize = 68 * 1024;

/// Why a journal is left alone whose file system may have i-transactions.
pub const IJOURNAL: &str =
    "ext4 in use with iJournaling, whose i-transactions would be judged by a journal that storage does not have";

/// What stands at a place.
pub struct Seen {
    pub found: Found,
    /// A layer that has the whole place to itself: a partition table in there is its own business.
    pub container: bool,
}

/// Recognises what begins at `start` and may reach over `sectors`.
///
/// What lies between file system and disk (LVM, LUKS, md) comes first, for an ext4 below it is not what the guest
/// mounts. Then ext4; another file system's signature beside a sound ext4 is a remnant. `limits`: less what its journal takes.
///
/// # Errors
/// The disk cannot be read.
pub fn look(
    source: &mut dyn Source,
    start: Sector,
    sectors: u64,
    limits: &mut Limits,
) -> Result<Option<Seen>, BlockError> {
    let mut head = vec![0; HEAD_BYTES];
    let readable = sectors.min((HEAD_BYTES as u64) / SECTOR_BYTES);
    if readable == 0 {
        return Ok(None);
    }
    source.read(start, &mut head[..(readable * SECTOR_BYTES) as usize])?;
    if let Some((why, uuid)) = foreign::container(source, start, sectors, &head)? {
        let found = Found::Passthrough { start, uuid, why, journal: None };
        return Ok(Some(Seen { found, container: true }));
    }
    let seen = |found| Some(Seen { found, container: false });
    let Some(superblock) = Superblock::sniff(&head[..(readable * SECTOR_BYTES) as usize]) else {
        return Ok(foreign::file_system(&head)
            .and_then(|why| seen(Found::Passthrough { start, uuid: None, why, journal: None })));
    };
    let mut left = *limits;
    let layout = ext4(source, start, sectors, &superblock, &mut left).and_then(|(layout, journal)| {
        check_retainable(&superblock, &journal)?;
        Ok(layout)
    });
    match layout {
        Ok(layout) => {
            *limits = left;
            Ok(seen(Found::FileSystem(layout)))
        }
        Err(JournalError::Block(error)) => Err(error),
        Err(JournalError::Corrupt(why) | JournalError::Unsupported(why)) => {
            // Two bytes of magic number are little: a foreign signature explains more than a damaged ext4.
            let foreign = foreign::file_system(&head);
            let journal = match foreign {
                Some(_) => None,
                None => journal(source, start, sectors, &superblock).ok(),
            };
            let (uuid, why) = (Some(superblock.s_uuid), foreign.unwrap_or(why));
            Ok(seen(Found::Passthrough { start, uuid, why, journal }))
        }
        Err(other @ (JournalError::Full { .. } | JournalError::Foreign(_))) => {
            unreachable!("nothing is retained while looking: {other}")
        }
    }
}

/// The ext4 that begins at `start`, whatever else may be recognised there, and whatever UUID its journal bears.
///
/// # Errors
/// *Corrupt* and *unsupported*, with a sentence; the disk cannot be read.
pub fn look_ext4(source: &mut dyn Source, start: Sector, sectors: u64) -> Result<Layout, JournalError> {
    let mut head: Block = [0; BLOCK_BYTES];
    let superblock = match sectors < BLOCK_SECTORS {
        true => None,
        false => {
            source.read(start, &mut head)?;
            Superblock::sniff(&head)
        }
    };
    let superblock = superblock.ok_or_else(|| corrupt("there is no ext4".into()))?;
    Ok(ext4(source, start, sectors, &superblock, &mut Limits::of_disk())?.0)
}

/// Refuses journals that are sound, and not to be retained.
fn check_retainable(superblock: &Superblock, journal: &JournalSuperblock) -> Result<(), JournalError> {
    if superblock.has_incompat(incompat::IJOURNAL) || journal.has_ijournal() {
        return Err(unsupported(IJOURNAL.into()));
    }
    if !journal.is_v1() && journal.uuid() != superblock.s_uuid {
        return Err(corrupt(
            "the journal bears another UUID than its ext4 (tune2fs -U leaves it so); tune2fs -O ^has_journal and \
             then -O has_journal, unmounted, make a new one"
                .into(),
        ));
    }
    if journal.maxlen() > JOURNAL_BLOCKS_MAX {
        let maxlen = journal.maxlen();
        return Err(unsupported(format!(
            "a journal of {maxlen} blocks; at most {JOURNAL_BLOCKS_MAX} are handled"
        )));
    }
    Ok(())
}

/// Where the journal's superblock is, whatever it says.
fn journal(
    source: &mut dyn Source,
    start: Sector,
    sectors: u64,
    superblock: &Superblock,
) -> Result<Sector, JournalError> {
    superblock.check(sectors)?;
    let mut reader = Reader { source, start, blocks: superblock.blocks() };
    let (_, inode) = journal_inode(&mut reader, superblock)?;
    Ok(first_block(&mut reader, superblock, &inode)?.sector(start))
}

fn journal_inode(reader: &mut Reader<'_>, superblock: &Superblock) -> Result<(Group, Inode), JournalError> {
    let number = superblock.s_journal_inum.get();
    let group = u64::from((number - 1) / superblock.s_inodes_per_group.get());
    let group = Group::read(reader, superblock, group)?;
    let inode = Inode::read(reader, superblock, &group, number)?;
    Ok((group, inode))
}

fn first_block(
    reader: &mut Reader<'_>,
    superblock: &Superblock,
    inode: &Inode,
) -> Result<FsBlock, JournalError> {
    // Nothing of it is kept: it is found whatever other journals take.
    let first = extents::read(reader, inode, superblock.checksummed(), 1, &mut Limits::of_disk())?;
    let home = first.extents.first().map(|e| e.home);
    home.ok_or_else(|| corrupt("the journal has no blocks".into()))
}

fn ext4(
    source: &mut dyn Source,
    start: Sector,
    sectors: u64,
    superblock: &Superblock,
    limits: &mut Limits,
) -> Result<(Layout, JournalSuperblock), JournalError> {
    superblock.check(sectors)?;
    let mut reader = Reader { source, start, blocks: superblock.blocks() };
    let (group, inode) = journal_inode(&mut reader, superblock)?;
    let home = first_block(&mut reader, superblock, &inode)?;
    let block = reader.block(home, "the journal's superblock")?;
    let journal = JournalSuperblock::parse(&block)?;
    if u64::from(journal.maxlen()) > inode.size / BLOCK_BYTES as u64 {
        let (maxlen, size) = (journal.maxlen(), inode.size);
        return Err(corrupt(format!("the journal has {maxlen} blocks, but its file only {size} bytes")));
    }
    let mapping = extents::read(&mut reader, &inode, superblock.checksummed(), journal.maxlen(), limits)?;

    let mut watched = superblock.watched();
    watched.extend(group.watched);
    watched.extend(inode.watched);
    watched.extend(mapping.watched);
    let layout = Layout {
        start,
        uuid: superblock.s_uuid,
        blocks: superblock.blocks(),
        room_blocks: sectors / BLOCK_SECTORS,
        bitmaps: super::bitmap::Bitmaps::new(superblock),
        journal: mapping.extents,
        watched,
    };
    for (block, what) in [
        (FsBlock(0), "the superblock"),
        (group.block, "its group descriptor"),
        (inode.block, "its own inode"),
    ] {
        if layout.area_of(block).is_some() {
            return Err(corrupt(format!("the journal would lie over {what}")));
        }
    }
    Ok((layout, journal))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn a_journal_that_would_reach_the_arenas_other_pages_is_not_retained() {
        let superblock = Superblock::new_zeroed();
        let mut block: Block = [0; BLOCK_BYTES];
        let mut checked = |maxlen: u32| {
            // Version 1: magic, type, block size, length, first block, sequence.
            for (at, value) in [(0, 0xc03b_3998), (4, 3), (12, 4096), (16, maxlen), (20, 1), (24, 7)] {
                block[at..at + 4].copy_from_slice(&value.to_be_bytes());
            }
            check_retainable(&superblock, &JournalSuperblock::parse(&block).unwrap())
        };
        checked(JOURNAL_BLOCKS_MAX).unwrap();
        let refused = checked(JOURNAL_BLOCKS_MAX + 1);
        assert!(
            matches!(&refused, Err(JournalError::Unsupported(why)) if why.contains("at most")),
            "{refused:?}"
        );
    }
}
