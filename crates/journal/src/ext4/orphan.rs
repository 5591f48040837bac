//! Journals whose log was in the memory of an earlier daemon, and that memory is gone: under `power-window` everything in it was home.
//!
//! On the disk stands the superblock that daemon has stamped, and it says that the journal is empty. A guest that lives knows nothing
//! of that: it goes on behind its head, and writes no superblock before its tail moves, in minutes or hours. Until then no recovery
//! would find what it commits. So the first block of its log that comes by tells where the log begins now, and a superblock on the
//! disk says so before that block gets there. The guest's own tail, which lags behind, is clamped to it.
//!
//! A guest that mounts writes its superblock first, and the first block of its log has the id that this names. Until one has, it
//! is not known which of the two it is. A daemon that gives the journal up meanwhile leaves the superblock that came, for whoever
//! serves the guest next, and the stamp in it, for the next daemon.

use std::sync::Arc;

use afterimage_block::{BlockError, Buffers, Sector, SECTOR_BYTES};

use super::followed::Log;
use super::layout::superblock::JournalSuperblock;
use super::layout::Layout;
use super::log;
use super::phase::is_of;
use super::retained::{Retained, Stop};
use super::stamp::Stamp;
use super::volume::{area_ranges, Orphan, Phase, Volume};
use super::volumes::Volumes;
use crate::ids::{AreaBlock, Tid, BLOCK_BYTES, BLOCK_SECTORS};
use crate::versions::{Below, Places, Versions};

impl Log {
    /// A block of its log comes while that is unproven, of that transaction if it is not a logged one.
    ///
    /// # Errors
    /// The guest's log begins elsewhere.
    pub(super) fn prove(&mut self, tid: Option<Tid>) -> Result<(), Stop> {
        let Some(tid) = tid else { return Ok(()) };
        if tid.is_after(self.head.0) {
            return Err(Stop::hand_back("its log was in the memory of an earlier daemon, which is gone"));
        }
        self.unproven = tid != self.head.0;
        Ok(())
    }
}

impl Orphan {
    /// A journal that nobody uses, as far as is known, with its superblock on the disk: whether a daemon has left it so. Of one that has a
    /// log the first block does not stand there then.
    pub(super) fn find(
        below: &mut Below,
        layout: &Layout,
        on_disk: Option<&JournalSuperblock>,
    ) -> Result<Option<Self>, BlockError> {
        let Some(superblock) = on_disk.filter(|s| Stamp::read(s.bytes()).is_some()) else { return Ok(None) };
        let start = superblock.start().and_then(|start| layout.sector_of(start));
        let first = start.map(|start| below.read_block(start)).transpose()?;
        let begins = first.is_some_and(|first| is_of(&first, superblock.sequence().0));
        Ok((!begins).then(|| Self::new(superblock.clone())))
    }
}

impl Retained {
    /// A log that is taken over may begin elsewhere where it is empty: nothing remembers whether it was proven. It was, if the first block
    /// of its next transaction is here, which does not come again.
    pub(super) fn is_unproven(&self, versions: &mut Versions) -> Result<bool, Stop> {
        let (tid, at) = self.log.head;
        if !self.log.transactions.is_empty() {
            return Ok(false);
        }
        let mut scratch = [0; BLOCK_BYTES];
        Ok(!is_of(versions.reader(self.log.id, &*self.place.layout).get(at, &mut scratch)?, tid.0))
    }
}

impl Volume {
    /// A guest's superblock goes to the disk. One that is flushed, or whose tail has come as far, has no log elsewhere. Of another one the
    /// stamp tells the next daemon.
    pub(super) fn orphan_after(&mut self, mut superblock: JournalSuperblock) -> JournalSuperblock {
        let known = self.clamp.is_some();
        let goes_on = |orphan: &Orphan| {
            let same = orphan.superblock.uuid() == superblock.uuid();
            same && superblock.start().is_some() && (known || orphan.adopted.is_none())
        };
        let Some(orphan) = self.orphan.take().filter(goes_on) else { return superblock };
        if let Some(stamp) = Stamp::read(orphan.superblock.bytes()).filter(|_| orphan.adopted.is_none()) {
            let mut block = *superblock.bytes();
            stamp.put(&mut block);
            superblock = JournalSuperblock::parse(&block).unwrap_or(superblock);
        }
        self.orphan = Some(Orphan { superblock: superblock.clone(), ..orphan });
        superblock
    }

    /// The orderly end: that what was retained is lost was accepted, and nobody is to ask for it any more, as where nothing durable was
    /// lost. The stamp still tells the next daemon that its guest may live.
    pub(super) fn accept_orphan(&mut self, versions: &mut Versions) -> Result<(), BlockError> {
        // Of one that was adopted the stamp is gone.
        let orphan = self.orphan.take().filter(|orphan| orphan.adopted.is_none());
        let (Some(orphan), Some(sector)) = (orphan, self.sector_of(AreaBlock(0))) else { return Ok(()) };
        let mut block = *orphan.superblock.bytes();
        let Some(stamp) = Stamp::read(&block).filter(|stamp| !stamp.durable) else { return Ok(()) };
        Stamp { durable: true, ..stamp }.put(&mut block);
        versions.below.write(sector, &block)?;
        versions.below.sync()
    }

    /// A block of the log is about to be written.
    fn adopt(&mut self, versions: &mut Versions, tid: Tid, at: AreaBlock) -> Result<(), BlockError> {
        let (Some(orphan), Phase::Armed { layout, .. }) = (&mut self.orphan, &self.phase) else {
            return Ok(());
        };
        if !orphan.tells(tid, at) {
            // With the next transaction the first one is there.
            if orphan.adopted.is_some_and(|(known, _)| tid.is_after(known)) {
                self.orphan = None;
            }
            return Ok(());
        }
        let Some(sector) = layout.sector_of(AreaBlock(0)) else { return Ok(()) };
        let superblock = orphan.superblock.with_tail(tid, Some(at));
        let mut block = *superblock.bytes();
        Stamp::clear(&mut block);
        versions.below.write(sector, &block)?;
        versions.below.sync()?;
        *orphan = Orphan { superblock, adopted: Some((tid, at)) };
        self.clamp = orphan.adopted;
        tracing::warn!(
            disk = versions.lines.name(),
            start_sector = self.start.0,
            tid = tid.0,
            "a guest goes on with a log that was in the memory of an earlier daemon: its recovery begins with this transaction; of one \
             that was being written then a part is missing"
        );
        Ok(())
    }
}

impl Volumes {
    /// Whether a write touches the log of such a journal.
    pub(super) fn touches_orphan(&self, sector: Sector, sectors: u64) -> bool {
        self.list.iter().any(|volume| volume.orphan.is_some() && has_journal_in(volume, sector, sectors))
    }

    /// A journal that is cleared is nobody's any more.
    pub(super) fn clear_orphans(&mut self, sector: Sector, sectors: u64) {
        for volume in &mut self.list {
            if volume.orphan.is_some() && has_journal_in(volume, sector, sectors) {
                volume.orphan = None;
            }
        }
    }

    /// Before a write outside what is absorbed is handed down: see the module.
    ///
    /// # Errors
    /// The disk below failed.
    pub(super) fn adopt(
        &mut self,
        versions: &mut Versions,
        sector: Sector,
        sectors: u64,
        buffers: &Buffers,
    ) -> Result<(), BlockError> {
        for volume in self.list.iter_mut().filter(|volume| volume.orphan.is_some()) {
            let Some(layout) = volume.layout().map(Arc::clone) else { continue };
            for (start, length, first) in area_ranges(&layout) {
                let from = sector.0.saturating_sub(start.0).next_multiple_of(BLOCK_SECTORS);
                let to = (sector.0 + sectors).saturating_sub(start.0).min(length);
                for at in (from..to).step_by(BLOCK_SECTORS as usize) {
                    let mut header = [0; log::HEADER_BYTES];
                    buffers.copy_to(((start.0 + at - sector.0) * SECTOR_BYTES) as usize, &mut header);
                    if let Some(tid) = log::header_tid(&header) {
                        volume.adopt(versions, tid, AreaBlock(first.0 + (at / BLOCK_SECTORS) as u32))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn has_journal_in(volume: &Volume, sector: Sector, sectors: u64) -> bool {
    let mut ranges = volume.layout().into_iter().flat_map(|layout| area_ranges(layout));
    ranges.any(|(start, length, _)| start.0 < sector.0 + sectors && sector.0 < start.0 + length)
}
