//! Home writes: comparing them with what was committed.

use afterimage_block::{Buffers, Sector, SECTOR_BYTES};

use super::inflight::{Flying, Match};
use super::{Mutation, Retainer, View};
use crate::area::VersionState;
use crate::error::JournalError;
use crate::ids::{FsBlock, BLOCK_BYTES, BLOCK_SECTORS};
use crate::log::{unescape, AreaView};

impl Retainer {
    /// Whether any block of a range has a retained version.
    pub(super) fn touches_versions(&self, sector: Sector, sectors: u64) -> bool {
        self.volumes.iter().any(|volume| {
            if volume.log().is_none() || sector.0 + sectors <= volume.start.0 {
                return false;
            }
            let (from, to) = volume.blocks_of(sector, sectors);
            (from.0..to.0).any(|b| self.area.version(volume.id, FsBlock(b)).is_some())
        })
    }

    /// Compares a write with the versions of the blocks that it covers. Blocks that get other content are marked at once:
    /// from now on the disk may hold either. Says which versions the write carries, and whether it carries nothing but
    /// versions that are home.
    pub(super) fn compare(
        &mut self,
        sector: Sector,
        sectors: u64,
        content: &Buffers,
    ) -> Result<(Vec<Match>, bool), JournalError> {
        let lenient = self.mutated(Mutation::MatchAnything);
        let mut matches = Vec::new();
        let mut all_home = sectors % BLOCK_SECTORS == 0;
        let mut home_blocks = 0;
        let (mut written, mut logged) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        for v in 0..self.volumes.len() {
            if self.volumes[v].log().is_none() || sector.0 + sectors <= self.volumes[v].start.0 {
                continue;
            }
            let (from, to) = self.volumes[v].blocks_of(sector, sectors);
            for home in (from.0..to.0).map(FsBlock) {
                let volume = &mut self.volumes[v];
                let id = volume.id;
                let Some(version) = self.area.version(id, home) else { continue };
                volume.classes.page_writebacks += 1;
                let start = home.sector(volume.start);
                let covered = start >= sector && start.0 + BLOCK_SECTORS <= sector.0 + sectors;
                let mut same = covered && !self.in_flight.any(start, BLOCK_SECTORS);
                if same {
                    content.copy_to(((start.0 - sector.0) * SECTOR_BYTES) as usize, &mut written);
                    let Some(log) = volume.log() else { continue };
                    let mut view =
                        View { arena: &self.arena, below: &mut self.below, volume: id, layout: &log.layout };
                    let block = view.block(version.at, &mut logged)?;
                    same = if version.escaped {
                        let mut block = *block;
                        unescape(&mut block);
                        block == written
                    } else {
                        *block == written
                    };
                    same |= lenient;
                }
                if same {
                    self.volumes[v].classes.page_writebacks_matching += 1;
                    home_blocks += u64::from(version.state == VersionState::Home);
                    matches.push(Match { volume: id, home, generation: version.generation });
                } else {
                    self.set_state(v, home, VersionState::Overwritten);
                }
            }
        }
        all_home &= home_blocks * BLOCK_SECTORS == sectors;
        Ok((matches, all_home))
    }

    /// A range gets content that is no version's.
    pub(super) fn overwrite(&mut self, sector: Sector, sectors: u64) {
        for v in 0..self.volumes.len() {
            let volume = &self.volumes[v];
            if volume.log().is_none() || sector.0 + sectors <= volume.start.0 {
                continue;
            }
            let (from, to) = volume.blocks_of(sector, sectors);
            for (home, _) in self.area.versions_in(volume.id, from, to) {
                self.set_state(v, home, VersionState::Overwritten);
            }
        }
    }

    /// A write has completed: the versions that it carried are home, unless something came between.
    pub(super) fn arrived(&mut self, flying: &Flying) {
        for matched in &flying.matches {
            let Some(v) = self.volumes.iter().position(|v| v.id == matched.volume) else { continue };
            let current = self.area.version(matched.volume, matched.home);
            if current.is_none_or(|c| c.generation != matched.generation) {
                continue;
            }
            let start = matched.home.sector(self.volumes[v].start);
            let state = match self.in_flight.any(start, BLOCK_SECTORS) {
                true => VersionState::Overwritten,
                false => VersionState::Home,
            };
            self.set_state(v, matched.home, state);
        }
        for v in 0..self.volumes.len() {
            if flying.matches.iter().any(|m| m.volume == self.volumes[v].id) {
                self.release(v);
            }
        }
    }

    /// A write has ended that was in flight when versions of its blocks were committed. Where nothing was written there since,
    /// what the disk holds is older, whatever it is: they wait to go home like any other.
    pub(super) fn landed(&mut self, flying: &Flying) {
        if self.mutated(Mutation::ForgetFlight) {
            return;
        }
        for version in &flying.older_than {
            let Some(v) = self.volumes.iter().position(|v| v.id == version.volume) else { continue };
            let current = self.area.version(version.volume, version.home);
            let start = version.home.sector(self.volumes[v].start);
            if current.is_some_and(|c| c.generation == version.generation)
                && !self.in_flight.any(start, BLOCK_SECTORS)
            {
                self.set_state(v, version.home, VersionState::Pending);
            }
        }
    }

    /// Moves a version, its transaction's count, and what the arena remembers of it for the next daemon.
    pub(super) fn set_state(&mut self, v: usize, home: FsBlock, state: VersionState) {
        let id = self.volumes[v].id;
        let Some(before) = self.area.set_state(id, home, state) else { return };
        match state {
            _ if before.state == state => {}
            VersionState::Overwritten => self.arena.set_overwritten(id, before.at, true),
            VersionState::Home => self.arena.set_home(id, before.at, true),
            VersionState::Pending => self.arena.set_home(id, before.at, false),
        }
        let (was_open, is_open) = (before.state != VersionState::Home, state != VersionState::Home);
        let Some(log) = self.volumes[v].log_mut() else { return };
        if let Some(transaction) = log.transaction_mut(before.tid) {
            match (was_open, is_open) {
                (true, false) => transaction.open -= 1,
                (false, true) => transaction.open += 1,
                _ => {}
            }
        }
    }
}
