//! One disk's file systems, and what is retained of their journals.
//!
//! ```text
//!                 ┌ area part ─► absorb ─► arena ─► follow: commit? ─► area::mprotect ─► (power-window: home at once)
//! write ─► split ─┤
//!                 └ the rest ──► compare: same bytes as the version? ─► below ─► completed: version is home ─► release
//! ```
//!
//! Everything here runs under one lock per disk. The lock is also the range lock of the daemon's own home writes
//! (design § 4 rule 6): they are made under it, and only where no guest's write is in flight.
//!
//! Outcomes. A daemon killed at any instant leaves an arena from which the log can be read again from the served
//! tail: nothing else is needed, and what was completed towards the guest is in the arena or below. A guest that dies
//! at any instant leaves a served journal whose replay is its own recovery; [`Retainer::settle_all`] does that replay's
//! work ahead, as far as a guest that only looked dead can be sure not to notice.

mod absorb;
mod below;
mod checkpoint;
mod classes;
mod errors;
mod follow;
#[cfg(any(test, feature = "testkit"))]
pub mod fuzz;
mod home;
mod inflight;
mod known;
mod learn;
mod mutation;
mod passed;
mod ranges;
mod released;
mod report;
mod superblock_write;
mod volume;
mod write;

use std::sync::Arc;

use afterimage_block::{BlockError, Buffers, Disk, Sector, SECTOR_BYTES};
use afterimage_order::HomeWriter;

use crate::area::JournalArea;
use crate::arena::{Arena, VolumeId};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, BLOCK_BYTES, BLOCK_SECTORS};
use crate::log::AreaView;

use below::Below;
pub use classes::Classes;
use inflight::InFlight;
pub use inflight::Track;
pub use mutation::Mutation;
use ranges::Areas;
pub use ranges::Ranges;
use volume::Volume;
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
pub struct Retainer {
    volumes: Vec<Volume>,
    /// Where their absorbed journals lie; follows them in [`Retainer::changed`].
    areas: Areas,
    arena: Arena,
    area: JournalArea,
    below: Below,
    in_flight: InFlight,
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
    /// Counts changes of which ranges need a look; lanes keep a copy of [`Retainer::ranges`].
    version: u64,
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
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

impl Retainer {
    /// Looks at the disk, and goes on with what an earlier daemon left in the arena.
    ///
    /// # Errors
    /// The disk below cannot be read or written.
    pub fn open(disk: &dyn Disk, arena: Arena, options: Options) -> Result<Self, JournalError> {
        let mut retainer = Self::open_unsettled(disk, arena, options)?;
        for v in 0..retainer.volumes.len() {
            retainer.settle(v)?;
        }
        Ok(retainer)
    }

    /// As [`Retainer::open`], but nothing goes home yet: for saying what is retained.
    ///
    /// # Errors
    /// The disk below cannot be read.
    pub fn open_unsettled(disk: &dyn Disk, arena: Arena, options: Options) -> Result<Self, JournalError> {
        let mut retainer = Self::unlearnt(disk, arena, options)?;
        retainer.look()?;
        retainer.take_over()?;
        Ok(retainer)
    }

    /// As [`Retainer::open`], with a mistake.
    ///
    /// # Errors
    /// As [`Retainer::open`].
    #[cfg(feature = "mutations")]
    pub fn open_mutated(
        disk: &dyn Disk,
        arena: Arena,
        options: Options,
        mutation: Mutation,
    ) -> Result<Self, JournalError> {
        let mut retainer = Self::unlearnt(disk, arena, options)?;
        retainer.mutation = Some(mutation);
        retainer.look()?;
        retainer.take_over()?;
        for v in 0..retainer.volumes.len() {
            retainer.settle(v)?;
        }
        Ok(retainer)
    }

    fn unlearnt(disk: &dyn Disk, arena: Arena, options: Options) -> Result<Self, JournalError> {
        let below = Below::new(disk, options.home.clone())?;
        Ok(Self {
            volumes: Vec::new(),
            areas: Areas::default(),
            arena,
            area: JournalArea::default(),
            below,
            in_flight: InFlight::default(),
            options,
            disk_sectors: disk.geometry().sectors,
            table: Vec::new(),
            places: Vec::new(),
            look_at_flush: false,
            told_no_memory: false,
            version: 1,
            #[cfg(feature = "mutations")]
            mutation: None,
        })
    }

    /// Changes with [`Retainer::ranges`].
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
                self.set_being_read(v, true);
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
            return Some(*self.served(log).bytes());
        }
        self.arena.get(volume.id, at).copied()
    }

    /// What has to be looked at is no longer the same.
    fn changed(&mut self) {
        self.areas = Areas::of(&self.volumes);
        self.version += 1;
    }

    fn volume_id_free(&self) -> VolumeId {
        // Those of the arena that were not found again yet are taken, too.
        let remembered = self.arena.volumes();
        let used =
            |id: u16| self.volumes.iter().any(|v| v.id.0 == id) || remembered.iter().any(|(r, _)| r.0 == id);
        VolumeId((0..u16::MAX).find(|id| !used(*id)).unwrap_or(u16::MAX))
    }
}

/// The log of one file system, read through the arena: what is not there stands on the disk.
struct View<'a> {
    arena: &'a Arena,
    below: &'a mut Below,
    volume: VolumeId,
    layout: &'a crate::layout::Layout,
}

impl AreaView for View<'_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        if let Some(block) = self.arena.get(self.volume, at) {
            return Ok(block);
        }
        match self.layout.home_of(at) {
            Some(home) => *scratch = self.below.read_block(home.sector(self.layout.start))?,
            None => *scratch = [0; BLOCK_BYTES],
        }
        Ok(scratch)
    }
}
