//! Writes that were handed down and have not completed: their content is neither old nor new.

use afterimage_block::Sector;

use crate::arena::VolumeId;
use crate::ids::FsBlock;

/// The name of a write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Track(u64);

/// A block whose newest committed version the write carries, and that version's generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match {
    pub(super) volume: VolumeId,
    pub(super) home: FsBlock,
    pub(super) generation: u32,
}

/// One write.
#[derive(Debug)]
pub(super) struct Flying {
    track: Track,
    pub(super) sector: Sector,
    pub(super) sectors: u64,
    pub(super) matches: Vec<Match>,
    /// Versions that were committed while it was in flight: it carries something older.
    pub(super) older_than: Vec<Match>,
    /// Something that the layouts rest on changes with it: look again when it has completed.
    pub(super) look_again: bool,
}

impl Flying {
    /// Whether the write touches a range.
    pub(super) fn overlaps(&self, sector: Sector, sectors: u64) -> bool {
        self.sector.0 < sector.0 + sectors && sector.0 < self.sector.0 + self.sectors
    }
}

/// All of them: as many as the queues hold.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    writes: Vec<Flying>,
    next: u64,
}

impl InFlight {
    pub(super) fn add(
        &mut self,
        sector: Sector,
        sectors: u64,
        matches: Vec<Match>,
        look_again: bool,
    ) -> Track {
        let track = Track(self.next);
        self.next += 1;
        self.writes.push(Flying { track, sector, sectors, matches, older_than: Vec::new(), look_again });
        track
    }

    pub(super) fn remove(&mut self, track: Track) -> Option<Flying> {
        let at = self.writes.iter().position(|w| w.track == track)?;
        Some(self.writes.swap_remove(at))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn holds(&self, track: Track) -> bool {
        self.writes.iter().any(|w| w.track == track)
    }

    /// A write that touches a range.
    pub(super) fn over(&self, sector: Sector, sectors: u64) -> Option<Track> {
        self.writes.iter().find(|w| w.overlaps(sector, sectors)).map(|w| w.track)
    }

    /// Whether any write touches a range.
    pub(super) fn any(&self, sector: Sector, sectors: u64) -> bool {
        self.over(sector, sectors).is_some()
    }

    /// Whether any write touches a range that has to be looked at again after it.
    pub(super) fn looks_at(&self, sector: Sector, sectors: u64) -> bool {
        self.writes.iter().any(|w| w.look_again && w.overlaps(sector, sectors))
    }

    /// A block that some write touches has a new version.
    pub(super) fn outdated(&mut self, sector: Sector, sectors: u64, version: Match) {
        let touching = self.writes.iter_mut().filter(|w| w.overlaps(sector, sectors));
        touching.for_each(|w| w.older_than.push(version));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Flying> {
        self.writes.iter()
    }
}
