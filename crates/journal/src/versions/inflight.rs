//! Writes that were handed down and have not landed: their content is neither old nor new. And those that have, until they are posted: the
//! daemon may die before its guest was told, and the next one is asked for them again.

use afterimage_block::Sector;

use super::arena::VolumeId;
use crate::ids::{FsBlock, BLOCK_SECTORS};

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
pub struct Flying {
    track: Track,
    /// Its first sector.
    pub sector: Sector,
    /// How many.
    pub sectors: u64,
    pub(super) matches: Vec<Match>,
    /// Versions that were committed while it was in flight: it carries something older.
    pub(super) older_than: Vec<Match>,
    /// Something changes with it that somebody wants to look at when it has completed.
    pub look_again: bool,
}

impl Flying {
    /// Its name.
    pub fn track(&self) -> Track {
        self.track
    }

    /// Whether the write touches a range.
    fn overlaps(&self, sector: Sector, sectors: u64) -> bool {
        self.sector.0 < sector.0 + sectors && sector.0 < self.sector.0 + self.sectors
    }
}

/// All of them: as many as the queues hold.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    writes: Vec<Flying>,
    /// Those that have landed.
    unposted: Vec<Flying>,
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

    /// It has ended, well or not.
    pub(super) fn land(&mut self, track: Track) -> Option<Flying> {
        let at = self.writes.iter().position(|w| w.track == track)?;
        let mut landed = self.writes.swap_remove(at);
        let Flying { sector, sectors, .. } = landed;
        let older_than = std::mem::take(&mut landed.older_than);
        let unposted = Flying { track, sector, sectors, matches: Vec::new(), older_than, look_again: false };
        self.unposted.push(unposted);
        Some(landed)
    }

    /// Nobody asks for it again.
    pub(super) fn post(&mut self, track: Track) -> Option<Flying> {
        let at = self.unposted.iter().position(|w| w.track == track)?;
        Some(self.unposted.swap_remove(at))
    }

    /// All that were not posted, landed or not.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Flying> {
        self.writes.iter().chain(&self.unposted)
    }

    pub(crate) fn all_posted(&self) -> bool {
        self.open().next().is_none()
    }

    /// Whether it is not posted.
    pub(crate) fn holds(&self, track: Track) -> bool {
        self.open().any(|w| w.track == track)
    }

    /// Whether somebody looks at the disk when this write has completed.
    pub(crate) fn looks_again(&self, track: Track) -> bool {
        self.writes.iter().find(|w| w.track == track).is_some_and(|w| w.look_again)
    }

    /// A write that touches a range and was not posted: it may come over whatever is written there now.
    pub(crate) fn over(&self, sector: Sector, sectors: u64) -> Option<Track> {
        self.open().find(|w| w.overlaps(sector, sectors)).map(|w| w.track)
    }

    /// Whether any write touches a range that has not landed.
    pub(crate) fn any(&self, sector: Sector, sectors: u64) -> bool {
        self.writes.iter().any(|w| w.overlaps(sector, sectors))
    }

    /// Whether any write touches a range that has to be looked at again after it.
    pub(crate) fn looks_at(&self, sector: Sector, sectors: u64) -> bool {
        self.writes.iter().any(|w| w.look_again && w.overlaps(sector, sectors))
    }

    /// A block that some write touches has a new version.
    pub(super) fn outdated(&mut self, sector: Sector, volume: VolumeId, home: FsBlock, generation: u32) {
        let touching =
            self.writes.iter_mut().chain(&mut self.unposted).filter(|w| w.overlaps(sector, BLOCK_SECTORS));
        touching.for_each(|w| w.older_than.push(Match { volume, home, generation }));
    }

    /// Those that have not landed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flying> {
        self.writes.iter()
    }
}
