//! The guest's tail passes transactions of which versions are not home.
//!
//! A journal moves its tail when everything before it is home or not needed any more. Most of what is still pending then was
//! freed: nobody wants it, and it costs no write. But a guest can be wrong: ext4 with `data=journal` in Linux 6.1 moves the
//! tail past a committed block whose home write it has not submitted, and then loses it in a crash, on any disk
//! (`docs/explore-results.md`). Here the daemon still has the block. So what the committed bitmaps have in use is written home
//! before it is let go. A crash a moment earlier would have replayed just that: a live guest cannot mind.

use super::{Mutation, Retainer};
use crate::area::{Tuple, Version, VersionState};
use crate::error::JournalError;
use crate::ids::{Block, FsBlock, Tid};
use crate::layout::bitmap::Bitmaps;
use crate::layout::superblock::JournalSuperblock;

impl Retainer {
    /// Before every transaction older than `tid` is let go.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn save_passed(&mut self, v: usize, tid: Option<Tid>) -> Result<(), JournalError> {
        let id = self.volumes[v].id;
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let Some(bitmaps) = log.layout.bitmaps else {
            // Which blocks are in use is not known: all of them go home.
            let passed = |t: &Tuple| tid.is_none_or(|tid| tid.is_after(t.tid));
            let tuples = self.area.recover(id, false).into_iter().filter(passed).collect();
            return self.go_home(v, tuples);
        };
        let passed = log.transactions.iter().take_while(|t| tid.is_none_or(|tid| tid.is_after(t.tid)));
        let mut tuples: Vec<Tuple> = Vec::new();
        for transaction in passed.filter(|t| t.open > 0) {
            tuples.extend(transaction.homes.iter().filter_map(|home| {
                let version = self.area.version(id, *home)?;
                let wanted = version.tid == transaction.tid && version.state == VersionState::Pending;
                wanted.then_some(Tuple {
                    home: *home,
                    at: version.at,
                    tid: version.tid,
                    escaped: version.escaped,
                })
            }));
        }
        tuples.sort_unstable_by_key(|t| t.home);
        let mut needed = Vec::new();
        let mut looked_at: Option<(FsBlock, Option<Block>)> = None;
        for tuple in tuples {
            let descriptors = bitmaps.descriptor_block(tuple.home);
            let group = FsBlock(tuple.home.0 / bitmaps.blocks_per_group());
            if looked_at.as_ref().is_none_or(|(of, _)| *of != group) {
                looked_at = Some((group, self.bitmap(v, &bitmaps, tuple.home, descriptors)?));
            }
            let bitmap = looked_at.as_ref().and_then(|(_, bitmap)| bitmap.as_ref());
            if bitmap.is_none_or(|bitmap| bitmaps.in_use(tuple.home, bitmap)) {
                needed.push(tuple);
            }
        }
        self.go_home(v, needed)
    }

    /// Whether a superblock of the guest moves the tail past a version that cannot be saved just now, because its home, or what the
    /// layout rests on, is being written.
    pub(super) fn passes_flying(&self, v: usize, superblock: &Block) -> bool {
        let volume = &self.volumes[v];
        let Some(log) = volume.log() else { return false };
        let Ok(superblock) = JournalSuperblock::parse(superblock) else { return false };
        if self.mutated(Mutation::ForgetFlight) {
            return false;
        }
        let tid = superblock.start().map(|_| superblock.sequence());
        let passed = |t: &Tid| tid.is_none_or(|tid| tid.is_after(*t));
        let open = |version: Version| version.state != VersionState::Home && passed(&version.tid);
        if log.suspended {
            return log.transactions.iter().any(|t| t.open > 0 && passed(&t.tid));
        }
        self.in_flight.iter().any(|write| {
            if write.sector.0 + write.sectors <= volume.start.0 {
                return false;
            }
            let (from, to) = volume.blocks_of(write.sector, write.sectors);
            self.area.versions_in(volume.id, from, to).into_iter().any(|(_, version)| open(version))
        })
    }

    fn bitmap(
        &mut self,
        v: usize,
        bitmaps: &Bitmaps,
        home: FsBlock,
        descriptors: FsBlock,
    ) -> Result<Option<Block>, JournalError> {
        let descriptors = self.newest(v, descriptors)?;
        let Some(bitmap) = bitmaps.bitmap_block(home, &descriptors) else { return Ok(None) };
        let room_blocks = self.volumes[v].log().map_or(0, |l| l.layout.room_blocks);
        if bitmap.0 >= room_blocks {
            return Ok(None);
        }
        self.newest(v, bitmap).map(Some)
    }

    /// A block's committed content: its newest version, or what stands at home.
    fn newest(&mut self, v: usize, home: FsBlock) -> Result<Block, JournalError> {
        let (id, start) = (self.volumes[v].id, self.volumes[v].start);
        let Some(version) = self.area.version(id, home) else {
            return Ok(self.below.read_block(home.sector(start))?);
        };
        let tuple = Tuple { home, at: version.at, tid: version.tid, escaped: version.escaped };
        let contents = self.contents(v, &[tuple])?;
        match contents.first() {
            Some(content) => Ok(*content),
            None => Ok(self.below.read_block(home.sector(start))?),
        }
    }
}
