//! A file system's journal begins to be absorbed, goes on to be after a daemon's death, and is left.

use super::layout::superblock::JournalSuperblock;
use super::retained::{Retained, Stop};
use super::side;
use super::stamp::forget;
use super::volume::{area_ranges, Orphan, Phase, Volume};
use super::volumes::read_superblock;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, BLOCK_BYTES};
use crate::mutation::Mutation;
use crate::versions::arena::{VolumeRecord, VOLUMES_MAX};
use crate::versions::{Places, Versions};

impl Volume {
    /// Begins to absorb, where a mount goes on from what it has read, and the log is empty from its tail on: then nothing that the guest may
    /// need is on the disk only.
    pub(super) fn begin(
        &mut self,
        versions: &mut Versions,
        superblock: &JournalSuperblock,
        start: AreaBlock,
    ) -> Result<bool, JournalError> {
        let id = self.id;
        let behind = self.clamp.is_some_and(|(tid, _)| tid.is_after(superblock.sequence()));
        if behind || usize::from(id.0) >= VOLUMES_MAX {
            return Ok(false);
        }
        let Phase::Armed { layout, why } = &mut self.phase else { return Ok(false) };
        if superblock.maxlen() > layout.journal_blocks() {
            return Ok(false);
        }
        let tail = (superblock.sequence(), start);
        let mut retained = Retained::new(id, layout.clone(), superblock.clone(), tail);
        let mut scratch = [0; BLOCK_BYTES];
        // What is on its way to the journal's place may be a part of that transaction: neither in memory nor on the disk yet.
        let flies = area_ranges(layout).any(|(at, length, _)| versions.in_flight.any(at, length));
        if flies || is_of(versions.reader(id, &**layout).get(start, &mut scratch)?, tail.0 .0) {
            *why = "mounted before retention could begin: it begins at the next mount".to_owned();
            return Ok(false);
        }
        let before = read_superblock(&mut versions.below, layout.sector_of(AreaBlock(0)))?;
        let Some(before) = before.filter(|before| superblock.goes_on_from(before)) else {
            return Ok(false);
        };
        retained.partly_there = before.start().is_some();
        if retained.partly_there {
            retained.expect_commit();
        }
        let stamped = !versions.mistake.is(Mutation::SkipMarkEmpty);
        if stamped {
            // Blocks that were spilled once may stand there with any id before that of the disk's superblock.
            let (own, on_disk) = (superblock.sequence(), before.sequence());
            let sequence = if on_disk.is_after(own) { on_disk } else { own };
            retained.place.mark_empty(versions, superblock, sequence)?;
        }
        forget(&mut versions.arena, id);
        let record = VolumeRecord {
            start_sector: self.start.0,
            fs_uuid: layout.uuid,
            tail,
            absorbing: true,
            superblock_read: false,
            stamped,
            commit_waits: false,
            from_home: false,
        };
        versions.arena.records.set(id, record);
        versions.init(id, retained.place.room())?;
        versions.arena.reserve_marks(id, layout.journal_blocks());
        let remembered = side::store_journal(&mut versions.arena, id, layout);
        if let Err(error) = remembered.and_then(|()| {
            versions.store(id, AreaBlock(0), &mut |slot| {
                *slot = *superblock.bytes();
                None
            })
        }) {
            // No memory for even one block, or more file systems than an arena takes.
            versions.cleanup(id);
            *why = format!("nothing can be retained: {error}");
            return Ok(false);
        }
        if versions.lines.may() {
            let (disk, start_sector) = (versions.lines.name(), self.start.0);
            tracing::info!(disk, start_sector, tid = tail.0 .0, "retaining a journal");
        }
        retained.log.unproven = self.orphan.take().is_some_and(|orphan| orphan.adopted.is_none());
        self.clamp = None;
        self.phase = Phase::Absorbing(Box::new(retained));
        Ok(true)
    }

    /// Goes on where an earlier daemon stopped.
    pub(super) fn resume(
        &mut self,
        versions: &mut Versions,
        superblock: JournalSuperblock,
        record: VolumeRecord,
    ) -> Result<(), Stop> {
        let Phase::Armed { layout, .. } = &self.phase else { return Ok(()) };
        let mut retained = Box::new(Retained::new(self.id, layout.clone(), superblock, record.tail));
        // What stands on the disk is at most as young as the tail; it is raised before anything is evicted.
        retained.place.on_disk = self.clamp.take().is_some();
        retained.log.superblock_read = record.superblock_read;
        self.uuid = Some(record.fs_uuid);
        versions.init(self.id, retained.place.room())?;
        retained.place.stamp_again(versions)?;
        self.orphan = None;
        let resumed = retained.resume(versions).and_then(|()| retained.is_unproven(versions));
        retained.log.unproven = matches!(resumed, Ok(true));
        self.phase = Phase::Absorbing(retained);
        resumed.map(drop)
    }

    /// Nothing is retained any more, and nothing needs to be.
    pub(super) fn disarm(&mut self, versions: &mut Versions, why: &str) {
        let Some(layout) = self.layout().cloned() else { return };
        self.phase = Phase::Armed { layout, why: why.to_owned() };
        versions.cleanup(self.id);
    }

    /// Stops absorbing. `keep`: the file system is the same, and its own recovery must find every committed transaction
    /// that is not home on the disk; otherwise nothing that was committed may go home any more. Either
    /// way the disk holds what the guest wrote.
    ///
    /// # Errors
    /// The disk below failed; nothing was forgotten then.
    pub(super) fn leave(
        &mut self,
        versions: &mut Versions,
        why: &str,
        keep: bool,
    ) -> Result<(), JournalError> {
        let start_sector = self.start.0;
        let Some(Retained { log, place, .. }) = self.retained_mut() else { return Ok(()) };
        if versions.lines.may() {
            tracing::info!(
                disk = versions.lines.name(),
                start_sector,
                why,
                "a journal is no longer retained"
            );
        }
        let clamp = (keep && !log.is_complete()).then_some(log.tail);
        let unproven = keep && log.unproven;
        // As it was shown all the time: nothing that comes before that tail is needed.
        let superblock = log.served();
        place.put_log(versions, log)?;
        match unproven {
            true => place.write_unproven(versions, &superblock)?,
            false => place.write_unstamped(versions, &superblock)?,
        }
        self.disarm(versions, why);
        self.clamp = clamp;
        self.orphan = unproven.then(|| Orphan::new(superblock));
        Ok(())
    }

    /// What the guest's own recovery would do, all of it: the guest is dead.
    pub(super) fn recover(&mut self, versions: &mut Versions) -> Result<(), JournalError> {
        let (id, start) = (self.id, self.start);
        let Some(Retained { log, place, .. }) = self.retained_mut() else { return Ok(()) };
        let tuples = versions.recover(id, true);
        let on_disk = versions.below.read_block(start)?;
        versions.write_home(id, &tuples, |home, content| {
            if home == FsBlock(0) {
                super::errors::keep_errors(content, &on_disk);
            }
        })?;
        versions.below.sync()?;
        let empty = log.superblock.with_tail(log.head.0.next(), None);
        place.write_unstamped(versions, &empty)?;
        self.disarm(versions, "recovered: waiting for the next mount");
        self.clamp = None;
        Ok(())
    }
}

/// Whether a block is a log block of that transaction, by magic and id.
pub(super) fn is_of(block: &Block, tid: u32) -> bool {
    /// JBD2_MAGIC_NUMBER
    const MAGIC: u32 = 0xc03b_3998;
    let field = |at: usize| u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    field(0) == MAGIC && field(8) == tid
}
