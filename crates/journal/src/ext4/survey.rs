//! What is on the disk, learnt at the beginning and whenever the guest changes what that rests on.

use std::ops::Range;

use afterimage_block::{BlockError, Buffers, Sector, SECTOR_BYTES};

use super::layout::{self, Found, Source};
use super::volume::{byte_of, Volume};
use crate::error::JournalError;
use crate::ids::BLOCK_SECTORS;
use crate::versions::Below;

/// Sectors in which a partition table stands as a rule: the MBR, GPT's header and its entries. Layers have their labels there, too.
const TABLE_SECTORS: u64 = 34;

/// What layouts rest on, as it was when the disk was last looked at.
pub(super) struct Survey {
    pub(super) disk_sectors: u64,
    /// The disk's first sectors, and what else was read of partition tables: logical partitions, GPT's entries elsewhere.
    tables: Vec<(Sector, Vec<u8>)>,
    /// Where the disk and its partitions begin, whatever is in them.
    places: Vec<Sector>,
    /// The guest's next flush is an occasion to look again.
    pub(super) look_at_flush: bool,
}

impl Survey {
    pub(super) fn new(disk_sectors: u64) -> Self {
        Self { disk_sectors, tables: Vec::new(), places: Vec::new(), look_at_flush: false }
    }

    /// Looks at the whole disk.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn look(&mut self, below: &mut Below) -> Result<Vec<Found>, JournalError> {
        let mut found = layout::find(below, self.disk_sectors)?;
        bound_rooms(&mut found);
        let mut first = vec![0; (TABLE_SECTORS.min(self.disk_sectors) * SECTOR_BYTES) as usize];
        below.read(Sector(0), &mut first)?;
        let mut tables = Tables { below, read: vec![(Sector(0), first)] };
        self.places = layout::places(&mut tables, self.disk_sectors)?;
        self.places.push(Sector(0));
        self.tables = tables.read;
        self.look_at_flush = false;
        Ok(found)
    }

    /// Where tables are, and where somebody may make a file system.
    pub(super) fn ranges(&self, volumes: &[Volume]) -> Vec<(Sector, u64)> {
        let blank = |place: &&Sector| !volumes.iter().any(|v| v.start == **place);
        let table = |(at, bytes): &(Sector, Vec<u8>)| (*at, bytes.len() as u64 / SECTOR_BYTES);
        let mut ranges: Vec<(Sector, u64)> = self.tables.iter().map(table).collect();
        let signatures = |place: &Sector| {
            let start = place.0;
            layout::SIGNATURES.into_iter().map(move |s| (Sector(start + s.start), s.end - s.start))
        };
        ranges.extend(self.places.iter().filter(blank).flat_map(signatures));
        ranges
    }

    /// Whether a range holds anything that [`Survey::rests_on`] compares.
    pub(super) fn watches(&self, volumes: &[Volume], sector: Sector, sectors: u64) -> bool {
        let (from, to) = (sector.0 * SECTOR_BYTES, (sector.0 + sectors) * SECTOR_BYTES);
        let overlaps = |at: u64, len: usize| at < to && from < at + len as u64;
        let layouts = || volumes.iter().filter_map(|v| v.layout());
        self.tables.iter().any(|(at, bytes)| overlaps(at.0 * SECTOR_BYTES, bytes.len()))
            || layouts().any(|layout| {
                let start = layout.start;
                layout.watched.iter().any(|w| overlaps(byte_of(start, w.block, w.offset), w.bytes.len()))
            })
    }

    /// Whether something that the layouts rest on changes with a write (`None`: with zeroes). Where an absorbed file
    /// system is touched, nothing of it goes home until the write has completed and was looked at.
    pub(super) fn rests_on(
        &self,
        volumes: &mut [Volume],
        sector: Sector,
        sectors: u64,
        buffers: Option<&Buffers>,
    ) -> bool {
        let (from, to) = (sector.0 * SECTOR_BYTES, (sector.0 + sectors) * SECTOR_BYTES);
        let changes = |at: u64, known: &[u8], mask: Option<&[u8]>| {
            let (low, high) = (at.max(from), (at + known.len() as u64).min(to));
            if low >= high {
                return false;
            }
            let Some(buffers) = buffers else { return true };
            let part = (low - at) as usize..(high - at) as usize;
            let mut written = vec![0; part.len()];
            buffers.copy_to((low - from) as usize, &mut written);
            let bits = |i: usize| mask.map_or(0xff, |m| m[i]);
            part.zip(written).any(|(i, byte)| (byte ^ known[i]) & bits(i) != 0)
        };
        // A file system without partitions keeps its superblock and first descriptors there: those are watched apart.
        let whole_disk = volumes.iter().any(|v| v.start == Sector(0) && v.layout().is_some());
        let (tables, bytes_max) = if whole_disk { (1, 1024) } else { (usize::MAX, usize::MAX) };
        let mut look_again = self
            .tables
            .iter()
            .take(tables)
            .any(|(at, known)| changes(at.0 * SECTOR_BYTES, &known[..known.len().min(bytes_max)], None));
        for volume in &mut *volumes {
            let start = volume.start.0 * SECTOR_BYTES;
            let changed = match volume.layout() {
                Some(layout) => layout
                    .watched
                    .iter()
                    .any(|w| changes(byte_of(layout.start, w.block, w.offset), &w.bytes, Some(&w.mask))),
                // What is there is not known: whatever is written over its superblock may be a file system.
                None => from < start + 2048 && start + 1024 < to,
            };
            if changed {
                look_again = true;
                if let Some(retained) = volume.retained_mut() {
                    retained.suspended = true;
                }
            }
        }
        // Where nothing was recognised yet, somebody may make a file system.
        let blank = |place: &&Sector| !volumes.iter().any(|v| v.start == **place);
        let signature = |place: &Sector| {
            let touches =
                |s: Range<u64>| sector.0 < place.0 + s.end && place.0 + s.start < sector.0 + sectors;
            layout::SIGNATURES.into_iter().any(touches)
        };
        look_again || self.places.iter().filter(blank).any(signature)
    }
}

/// Where something that was found begins.
pub(super) fn start_of(found: &Found) -> Sector {
    match found {
        Found::FileSystem(layout) => layout.start,
        Found::Passthrough { start, .. } => *start,
    }
}

/// A file system may grow as far as the next place where something was found: what lies there is not its own.
fn bound_rooms(found: &mut [Found]) {
    let mut starts: Vec<Sector> = found.iter().map(start_of).collect();
    starts.sort_unstable();
    for found in found {
        let Found::FileSystem(layout) = found else { continue };
        let next = starts.partition_point(|s| *s < layout.end());
        if let Some(next) = starts.get(next) {
            layout.room_blocks = layout.room_blocks.min((next.0 - layout.start.0) / BLOCK_SECTORS);
        }
    }
}

/// Remembers what is read of partition tables behind the first sectors.
struct Tables<'a> {
    below: &'a mut Below,
    read: Vec<(Sector, Vec<u8>)>,
}

impl Source for Tables<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        self.below.read(sector, buf)?;
        if sector.0 + buf.len() as u64 / SECTOR_BYTES > TABLE_SECTORS {
            self.read.push((sector, buf.to_vec()));
        }
        Ok(())
    }
}

impl Source for Below {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        Below::read(self, sector, buf)
    }
}
