//! One disk's ext4 file systems: what a guest writes to them and to their journals becomes operations on [`Versions`].
//!
//! ```text
//!                 ┌ area part ─► absorb ─► arena ─► follow: commit? ─► mprotect ─► (power-window: home at once)
//! write ─► split ─┤
//!                 └ the rest ──► compare: same bytes as the version? ─► below ─► completed: version is home ─► release
//! ```
//!
//! A state machine: events in (a write, a completion, a read, "the guest may be gone"), parts of requests and sets of home writes
//! out. It has no threads, and no clock. Everything here happens under one lock per disk, which is also the range lock of the daemon's
//! single home writes: they are made only where no guest's write is in flight. Sets are written without the lock: see `way`.
//!
//! Outcomes. A daemon killed at any instant leaves an arena from which the log can be read again from the served
//! tail: nothing else is needed, and what was completed towards the guest is in the arena or below. A guest that dies
//! at any instant leaves a served journal whose replay is its own recovery; [`FileSystems::settle_all`] does that replay's
//! work ahead, as far as a guest that only looked dead can be sure not to notice.

mod absorb;
mod checkpoint;
mod errors;
mod follow;
#[cfg(any(test, feature = "testkit"))]
pub mod fuzz;
mod known;
pub mod layout;
mod learn;
pub mod log;
mod passed;
mod ranges;
mod released;
mod report;
mod side;
mod superblock_write;
mod tail;
mod takeover;
mod volume;
mod way;
mod write;

use std::sync::Arc;

use afterimage_block::{BlockError, Buffers, Disk, Sector, SECTOR_BYTES};
use afterimage_order::HomeWriter;

use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, BLOCK_SECTORS};
use crate::mutation::Mistake;
use crate::status::Classes;
use crate::versions::arena::{Arena, VolumeId};
use crate::versions::{Places, Reader, Versions};
use layout::Layout;
use log::AreaView;

use ranges::Areas;
pub use ranges::Ranges;
use volume::Volume;
use way::Way;
pub use write::{Change, Part};

/// The most memory that one disk takes besides what `--retain-max` holds, in bytes: what is known of versions whose content is
/// not held, and of a transaction while it is read, however large the guest makes it.
pub const DISK_BYTES_MAX: usize = 80 << 20;

/// How a disk's journals are retained.
#[derive(Clone)]
pub struct Options {
    /// Where a transaction's home writes become one atomic part of the disk's history (`power-window`). Without it
    /// versions wait for the guest's own home writes (`guest-crash`, the paper's setting).
    pub home: Option<Arc<dyn HomeWriter>>,
    /// Journal writes are dropped, not retained: what retention is measured against. Loses data when a guest dies.
    pub drop_journal: bool,
    /// What is retained of a file system that somebody else has changed is given up, not a reason to refuse.
    pub accept_loss: bool,
    /// When the guest moves its journal's tail, everything is made durable first (vDrive's vflush at truncation).
    pub vflush_at_truncation: bool,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("home", &self.home.is_some())
            .field("drop_journal", &self.drop_journal)
            .field("accept_loss", &self.accept_loss)
            .field("vflush_at_truncation", &self.vflush_at_truncation)
            .finish()
    }
}

/// See the module.
pub struct FileSystems {
    volumes: Vec<Volume>,
    /// Where their absorbed journals lie; follows them in [`FileSystems::changed`].
    areas: Areas,
    versions: Versions,
    /// Versions on their way home as one set, at most one set a disk.
    way: Option<Way>,
    options: Options,
    disk_sectors: u64,
    /// The disk's first sectors, where partition tables stand, as they were when the disk was last looked at.
    table: Vec<u8>,
    /// Where partitions begin, whatever is in them.
    places: Vec<Sector>,
    /// The guest's next flush is an occasion to look again.
    look_at_flush: bool,
    /// That the arena's tmpfs is full was said.
    told_no_memory: bool,
    /// Counts changes of which ranges need a look; lanes keep a copy of [`FileSystems::ranges`].
    version: u64,
}

/// A part of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// The buffers are filled.
    Done,
    /// To be read from below.
    Below {
        /// First sector.
        sector: Sector,
        /// How many.
        sectors: u64,
    },
}

impl FileSystems {
    /// Looks at the disk, and goes on with what an earlier daemon left in the arena.
    ///
    /// # Errors
    /// The disk below cannot be read or written.
    pub fn open(
        disk: &dyn Disk,
        arena: Arena,
        options: Options,
        mistake: Mistake,
    ) -> Result<Self, JournalError> {
        let mut opened = Self::open_unsettled(disk, arena, options, mistake)?;
        opened.all_home()?;
        for v in 0..opened.volumes.len() {
            opened.settle(v)?;
        }
        Ok(opened)
    }

    /// As [`FileSystems::open`], but nothing goes home yet: for saying what is retained.
    ///
    /// # Errors
    /// The disk below cannot be read.
    pub fn open_unsettled(
        disk: &dyn Disk,
        arena: Arena,
        options: Options,
        mistake: Mistake,
    ) -> Result<Self, JournalError> {
        let mut opened = Self {
            volumes: Vec::new(),
            areas: Areas::default(),
            versions: Versions::new(disk, arena, options.home.clone(), mistake)?,
            way: None,
            options,
            disk_sectors: disk.geometry().sectors,
            table: Vec::new(),
            places: Vec::new(),
            look_at_flush: false,
            told_no_memory: false,
            version: 1,
        };
        opened.look()?;
        opened.take_over()?;
        Ok(opened)
    }

    /// Changes with [`FileSystems::ranges`].
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What cannot simply be handed through now.
    pub fn ranges(&self) -> Ranges {
        let mut writes = vec![(Sector(0), learn::TABLE_SECTORS.min(self.disk_sectors))];
        for volume in &self.volumes {
            writes.push(volume.superblock_range());
            writes.extend(volume.guarded_superblock().map(|at| (at, BLOCK_SECTORS)));
            // While it waits for a mount, too: what is under way then may land behind what is committed after it.
            writes.extend(volume.layout().map(|l| (volume.start, l.room_blocks * BLOCK_SECTORS)));
        }
        let blank = |place: &&Sector| !self.volumes.iter().any(|v| v.start == **place);
        writes.extend(self.places.iter().filter(blank).map(|place| (Sector(place.0 + 2), 2)));
        Ranges::new(self.areas.ranges(), writes, self.look_at_flush)
    }

    /// Serves the parts of a read that lie in absorbed journals; says what is left.
    pub fn read(
        &mut self,
        sector: Sector,
        sectors: u64,
        buffers: &Buffers,
        parts: &mut Vec<ReadPart>,
    ) -> Result<(), BlockError> {
        let mut at = sector.0;
        let end = sector.0 + sectors;
        while at < end {
            let Some((v, block, start)) = self.areas.at(Sector(at)) else {
                let next = self.areas.next(Sector(at)).min(end);
                parts.push(ReadPart::Below { sector: Sector(at), sectors: next - at });
                at = next;
                continue;
            };
            let piece_end = (start.0 + 8).min(end);
            let from = ((at - start.0) * SECTOR_BYTES) as usize;
            let len = ((piece_end - at) * SECTOR_BYTES) as usize;
            let offset = ((at - sector.0) * SECTOR_BYTES) as usize;
            if block == AreaBlock(0) {
                self.volumes[v].set_being_read(&mut self.versions, true);
            }
            match self.content(v, block) {
                Some(content) => {
                    buffers.copy_from(offset, &content[from..from + len]);
                    parts.push(ReadPart::Done);
                }
                None => match parts.last_mut() {
                    Some(ReadPart::Below { sector: s, sectors: n }) if s.0 + *n == at => *n += piece_end - at,
                    _ => parts.push(ReadPart::Below { sector: Sector(at), sectors: piece_end - at }),
                },
            }
            at = piece_end;
        }
        Ok(())
    }

    /// A journal block as the guest is shown it, where it is not the disk's own.
    fn content(&self, v: usize, at: AreaBlock) -> Option<Block> {
        let volume = &self.volumes[v];
        let log = volume.log()?;
        if at == AreaBlock(0) {
            return Some(*log.served(self.versions.mistake).bytes());
        }
        self.versions.arena.get(volume.id, at).copied()
    }

    /// What has to be looked at is no longer the same.
    fn changed(&mut self) {
        self.areas = Areas::of(&self.volumes);
        self.version += 1;
    }

    /// A volume's counters.
    fn count(&mut self, v: usize) -> &mut Classes {
        self.versions.count(self.volumes[v].id)
    }

    fn volume_id_free(&self) -> VolumeId {
        // Those of the arena that were not found again yet are taken, too.
        let remembered = self.versions.arena.volumes();
        let used =
            |id: u16| self.volumes.iter().any(|v| v.id.0 == id) || remembered.iter().any(|(r, _)| r.0 == id);
        VolumeId((0..u16::MAX).find(|id| !used(*id)).unwrap_or(u16::MAX))
    }
}

impl Places for Layout {
    fn sector_of(&self, at: AreaBlock) -> Option<Sector> {
        Some(self.home_of(at)?.sector(self.start))
    }
}

impl AreaView for Reader<'_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        self.get(at, scratch)
    }
}
