//! Find, never guess: where an ext4 keeps its journal.
//!
//! ```text
//! disk ─► partition table, or none ─► ext4 superblock ─► group 0's descriptor ─► inode s_journal_inum
//!                                                            ─► its extents ─► journal superblock
//! ```
//!
//! Whole-disk and partition-table offsets only. Every checksum that the file system has is verified, and the journal must
//! bear the file system's UUID. What is sound but not handled is [`Found::Passthrough`], with a sentence for `status`.
//! Layouts are documented in the kernel's `Documentation/filesystems/ext4/` (superblock, group descriptors, inodes,
//! extents, journal).
//!
//! **What may change without a new look**: counts, times, labels, mount counts, state, errors, the orphan list, checksums;
//! the bit that says that the journal needs recovery; the file system's size ([`Layout::blocks`]), which an online
//! `resize2fs` changes while all of the journal stays where it is. Everything else is in [`Layout::watched`].

use std::ops::Range;
use std::sync::Arc;

use afterimage_block::{BlockError, Medium, Sector, SECTOR_BYTES};

use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock};
use crate::versions::Places;
use extents::Limits;

pub mod bitmap;
mod checksum;
mod ext4;
mod extents;
mod foreign;
#[cfg(any(test, feature = "testkit"))]
#[path = "../../../testkit/layout_fuzz.rs"]
pub mod fuzz;
mod group;
mod inode;
mod partition;
pub mod superblock;
mod volume;

pub(super) use foreign::SIGNATURES;
pub(super) use volume::IJOURNAL;

/// Blocks of a journal that can be retained: the arena keeps pages of its own behind them ([`super::side`]).
pub(super) const JOURNAL_BLOCKS_MAX: u32 = 1 << 31;

/// Something that sectors can be read from.
pub trait Source {
    /// Fills `buf`, whose length is a multiple of 512, from `sector` on. Nothing outside the disk is ever asked for.
    ///
    /// # Errors
    /// The disk cannot be read.
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError>;
}

impl Source for Arc<dyn Medium> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        let offset = sector.0.saturating_mul(SECTOR_BYTES);
        self.read_at(buf, offset).map_err(|e| BlockError::io(format!("reading at byte {offset}"), e))
    }
}

/// A run of journal blocks on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaExtent {
    /// First block within the journal.
    pub at: AreaBlock,
    /// Where it lies in the file system.
    pub home: FsBlock,
    /// How many blocks.
    pub blocks: u32,
}

/// Bytes on which the layout rests: when a guest's write changes them, it must be learnt again.
///
/// Bits that change in ordinary use (`RECOVER` while mounted, `ORPHAN_PRESENT`, features that a kernel sets when it first
/// needs them) are masked out: compare with [`Watched::changed_in`].
#[derive(Clone, PartialEq, Eq)]
pub struct Watched {
    /// The block.
    pub block: FsBlock,
    /// The first byte in it.
    pub offset: usize,
    /// What was there when the layout was learnt, without the bits that `mask` leaves out.
    pub bytes: Vec<u8>,
    /// Which bits of `bytes` count; as long as it.
    pub mask: Vec<u8>,
    /// What it is, for `status`.
    pub what: &'static str,
}

impl Watched {
    fn new(block: FsBlock, offset: usize, bytes: &[u8], what: &'static str) -> Self {
        Self { block, offset, bytes: bytes.to_vec(), mask: vec![0xFF; bytes.len()], what }
    }

    fn masked(block: FsBlock, offset: usize, bytes: &[u8], mask: &[u8], what: &'static str) -> Self {
        let bytes = bytes.iter().zip(mask).map(|(byte, mask)| byte & mask).collect();
        Self { block, offset, bytes, mask: mask.to_vec(), what }
    }

    /// Whether this content of [`Watched::block`] differs in what is watched.
    pub fn changed_in(&self, content: &Block) -> bool {
        let now = &content[self.offset..self.offset + self.bytes.len()];
        now.iter().zip(&self.mask).zip(&self.bytes).any(|((now, mask), then)| now & mask != *then)
    }
}

impl std::fmt::Debug for Watched {
    /// Without the bytes, which in an extent tree are thousands.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes at {}+{})", self.what, self.bytes.len(), self.block, self.offset)
    }
}

/// Where a file system and its journal lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The file system's first sector on the disk.
    pub start: Sector,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its size in blocks, when it was looked at.
    pub blocks: u64,
    /// The size of the disk or partition that it is in, in blocks: as far as it may grow while it is mounted. No home
    /// block lies beyond.
    pub room_blocks: u64,
    /// Where allocation bitmaps are, where that is known.
    pub bitmaps: Option<bitmap::Bitmaps>,
    /// The journal's blocks in order, from [`AreaBlock`] 0 on, without holes.
    pub journal: Vec<AreaExtent>,
    /// The fixed fields of the superblock, of the group descriptor that locates the journal's inode, of that inode, and
    /// the blocks of its extent tree. Not those that change in ordinary use.
    pub watched: Vec<Watched>,
}

impl Layout {
    /// The sector behind the file system's last.
    pub fn end(&self) -> Sector {
        FsBlock(self.blocks).sector(self.start)
    }

    /// The journal's length in blocks.
    pub fn journal_blocks(&self) -> u32 {
        self.journal.last().map_or(0, |e| e.at.0 + e.blocks)
    }

    /// Where a journal block lies in the file system.
    pub fn home_of(&self, at: AreaBlock) -> Option<FsBlock> {
        let i = self.journal.partition_point(|e| e.at <= at).checked_sub(1)?;
        let e = &self.journal[i];
        (at.0 - e.at.0 < e.blocks).then(|| FsBlock(e.home.0 + u64::from(at.0 - e.at.0)))
    }

    /// Which journal block lies there, if one does.
    pub fn area_of(&self, block: FsBlock) -> Option<AreaBlock> {
        self.journal
            .iter()
            .find(|e| (e.home.0..e.home.0 + u64::from(e.blocks)).contains(&block.0))
            .map(|e| AreaBlock(e.at.0 + (block.0 - e.home.0) as u32))
    }

    /// Which journal block the first of these is, if they follow each other in the journal as they do in the file system.
    pub fn area_run(&self, block: FsBlock, blocks: u32) -> Option<AreaBlock> {
        let first = self.area_of(block)?;
        let mut done = 0;
        while done < blocks {
            let at = FsBlock(block.0.checked_add(done.into())?);
            let extent =
                self.journal.iter().find(|e| (e.home.0..e.home.0 + u64::from(e.blocks)).contains(&at.0))?;
            let within = (at.0 - extent.home.0) as u32;
            if extent.at.0 + within != first.0 + done {
                return None;
            }
            done += extent.blocks - within;
        }
        Some(first)
    }

    /// Whether a newer look found another file system or another journal, rather than this one with other sizes or
    /// features (`resize2fs`, `tune2fs`). What was retained of the older one must not go home then.
    pub fn identity_changed(&self, newer: &Self) -> bool {
        (self.start, self.uuid, &self.journal) != (newer.start, newer.uuid, &newer.journal)
    }
}

/// What was found at one place of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file system whose journal can be retained.
    FileSystem(Layout),
    /// A file system, partition or volume whose journal is left alone.
    Passthrough {
        /// Where it begins.
        start: Sector,
        /// Its UUID where it has one.
        uuid: Option<[u8; 16]>,
        /// Why, as a sentence for people.
        why: String,
        /// Where the superblock of an ext4's journal is, if that is found all the same: its guest may be using it.
        journal: Option<Sector>,
    },
}

/// Where the journals among them lie on the disk, in bytes and in its order.
pub fn journal_ranges(found: &[Found]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for layout in found.iter().filter_map(|found| match found {
        Found::FileSystem(layout) => Some(layout),
        Found::Passthrough { .. } => None,
    }) {
        let byte = |block: u64| FsBlock(block).sector(layout.start).0 * SECTOR_BYTES;
        ranges.extend(layout.journal.iter().map(|e| byte(e.home.0)..byte(e.home.0 + u64::from(e.blocks))));
    }
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}

/// Findings of one disk that are reported; a hostile partition table must not cost more.
const FOUND_MAX: usize = 64;

/// Everything recognisable on a disk: the whole disk first, then partitions in their table's order.
///
/// Two file systems that overlap cannot both be in use. The one in a partition counts, among partitions the first of the
/// table; the other is passed through. So is a journal with which those before it would lie in more pieces than are
/// remembered of one disk.
///
/// # Errors
/// The disk cannot be read. Content never is an error.
pub fn find(source: &mut dyn Source, disk_sectors: u64) -> Result<Vec<Found>, BlockError> {
    let mut limits = Limits::of_disk();
    let whole = volume::look(source, Sector(0), disk_sectors, &mut limits)?;
    if whole.as_ref().is_some_and(|seen| seen.container) {
        return Ok(whole.into_iter().map(|seen| seen.found).collect());
    }
    let table = partition::Table::read(source, disk_sectors)?;
    let refused = |start, why| Found::Passthrough { start, uuid: None, why, journal: None };
    let mut found: Vec<Found> = table.damage.into_iter().map(|(start, why)| refused(start, why)).collect();
    for place in &table.partitions {
        let Some(seen) = volume::look(source, place.start, place.sectors, &mut limits)? else { continue };
        // Room for this sentence and for the whole disk.
        if found.len() + 2 == FOUND_MAX {
            let why =
                format!("more than {FOUND_MAX} file systems on one disk: from here on none is looked at");
            found.push(refused(place.start, why));
            break;
        }
        found.push(unless_overlapping(seen.found, &found));
    }
    // Bytes of a sound GPT are no file system's, whatever they look like.
    if let Some(seen) = whole.filter(|_| !table.gpt) {
        found.insert(0, unless_overlapping(seen.found, &found));
    }
    Ok(found)
}

/// Where the partitions of a disk begin, whether or not anything is in them.
///
/// # Errors
/// The disk cannot be read.
pub fn places(source: &mut dyn Source, disk_sectors: u64) -> Result<Vec<Sector>, BlockError> {
    Ok(partition::Table::read(source, disk_sectors)?.partitions.iter().map(|p| p.start).collect())
}

/// The UUID of the ext4 whose first block this is, where it has one by its magic number.
pub fn ext4_uuid(head: &Block) -> Option<[u8; 16]> {
    ext4::Superblock::sniff(head).map(|superblock| superblock.s_uuid)
}

/// The same finding, passed through where one of the others has its blocks.
fn unless_overlapping(candidate: Found, others: &[Found]) -> Found {
    let Found::FileSystem(layout) = &candidate else { return candidate };
    let overlapping = others.iter().find_map(|other| match other {
        Found::FileSystem(other) if other.start.0 < layout.end().0 && layout.start.0 < other.end().0 => {
            Some(other.start)
        }
        _ => None,
    });
    match overlapping {
        Some(Sector(at)) => Found::Passthrough {
            start: layout.start,
            uuid: Some(layout.uuid),
            why: format!("overlaps the file system at sector {at}, so one of them is a remnant"),
            journal: None,
        },
        None => candidate,
    }
}

/// What stands at one position, which need not be in any partition table: for looking again.
///
/// # Errors
/// As [`find`].
pub fn look(source: &mut dyn Source, start: Sector, sectors: u64) -> Result<Option<Found>, BlockError> {
    Ok(volume::look(source, start, sectors, &mut Limits::of_disk())?.map(|seen| seen.found))
}

/// The ext4 that begins there, for whoever was told that it does and brings it home, as the recovery of i-transactions: a file's content
/// that looks like a layer ([`look`] asks for those first) is no reason to refuse it, nor is a journal that bears the UUID that the
/// file system had before `tune2fs -U`. Whether such a journal may be retained is another question.
///
/// # Errors
/// *Corrupt* or *unsupported*: there is no ext4, or none that is sound and understood. The disk cannot be read.
pub fn look_ext4(source: &mut dyn Source, start: Sector, sectors: u64) -> Result<Layout, JournalError> {
    volume::look_ext4(source, start, sectors)
}

impl Places for Layout {
    fn sector_of(&self, at: AreaBlock) -> Option<Sector> {
        Some(self.home_of(at)?.sector(self.start))
    }
}
