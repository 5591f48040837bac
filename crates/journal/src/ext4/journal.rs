//! Writes to a journal: its blocks are absorbed, and its superblock says that the guest mounts, moves the tail, changes features, or is
//! done.

use afterimage_block::{Buffers, Sector, SECTOR_BYTES};

use super::absorb::{Content, Piece};
use super::layout::superblock::JournalSuperblock;
use super::layout::IJOURNAL;
use super::retained::{Retained, Stop};
use super::systems::FileSystems;
use super::volume::Phase;
use super::write::Part;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, BLOCK_BYTES, BLOCK_SECTORS};
use crate::versions::{Carried, Places};

/// What became of a journal block.
enum Kept {
    /// It is in the arena, or in its own place on the disk.
    Here,
    /// Its file system is not absorbed any more.
    Left,
}

impl FileSystems {
    /// A piece of one journal block.
    pub(super) fn absorb(
        &mut self,
        v: usize,
        piece: &Piece,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        if piece.at == AreaBlock(0) {
            return self.absorb_superblock(v, piece, parts);
        }
        let Self { volumes, versions, options, .. } = self;
        let Some(retained) = volumes.retained_mut(v) else { return Ok(()) };
        let (id, at) = (retained.log.id, piece.at);
        let absorbed_bytes = piece.bytes.len() as u64;
        if options.drop_journal {
            versions.count(id).journal_absorbed_bytes += absorbed_bytes;
            parts.push(Part::Done);
            return Ok(());
        }
        let content = retained.composed(versions, piece)?;
        let accepts = retained.accepts(versions, at, &content);
        let kept = match volumes.stopped(v, versions, accepts)? {
            Some(true) => self.keep(v, at, &content)?,
            Some(false) => {
                parts.push(Part::Done);
                return Ok(());
            }
            None => Kept::Left,
        };
        if let Kept::Left = kept {
            let Some(sector) = self.volumes.list[v].sector_of(at) else { return Ok(()) };
            let block = content.block();
            self.volumes.adopt(&mut self.versions, sector, BLOCK_SECTORS, &Buffers::from_bytes(&block))?;
            return self.through(sector, &block, false, parts);
        }
        self.versions.count(id).journal_absorbed_bytes += absorbed_bytes;
        parts.push(Part::Done);
        self.volumes
            .with(v, &mut self.versions, |retained, versions| retained.kept(versions, at, &content))
            .map(drop)
    }

    /// Puts a journal block into the arena, making room where there is none; the last resort is its own place on the disk.
    fn keep(&mut self, v: usize, at: AreaBlock, content: &Content<'_>) -> Result<Kept, JournalError> {
        let id = self.volumes.list[v].id;
        let signed = self.volumes.list[v]
            .retained()
            .is_some_and(|retained| retained.log.geometry.features.checksummed());
        let mut made_room = false;
        loop {
            let error = match self.versions.store(id, at, &mut |slot| content.store(slot, signed)) {
                Ok(()) => return Ok(Kept::Here),
                Err(error) if error.is_full() => error,
                Err(error) => return Err(error),
            };
            if !made_room {
                made_room = true;
                self.tell_no_memory(&error);
                self.make_room(self.room_goal_bytes())?;
                continue;
            }
            let evicted = self.volumes.with(v, &mut self.versions, |retained, versions| {
                if at == AreaBlock(0) {
                    // Its own place on the disk says that the journal is empty: it cannot go there alone.
                    return Err(Stop::hand_back(format!(
                        "its journal's superblock cannot be retained: {error}"
                    )));
                }
                let Retained { log, place, .. } = retained;
                Ok(place.evict(versions, log, &[(at, content.block())])?)
            })?;
            return Ok(if evicted.is_some() { Kept::Here } else { Kept::Left });
        }
    }

    /// Less memory than `--retain-max` promised: said once, for it costs only speed.
    fn tell_no_memory(&mut self, error: &JournalError) {
        if matches!(error, JournalError::Block(_)) && !std::mem::replace(&mut self.told_no_memory, true) {
            tracing::warn!(
                disk = self.versions.lines.name(),
                %error,
                arena = %self.versions.arena.path().display(),
                used_bytes = self.versions.arena.used_bytes(),
                "the arena's tmpfs is full: what does not fit of journals goes to its own place on the disk; nothing is lost; free memory there, enlarge the tmpfs, or serve with a smaller --retain-max"
            );
        }
    }

    /// A piece of the superblock of an absorbed journal.
    fn absorb_superblock(
        &mut self,
        v: usize,
        piece: &Piece,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let Self { volumes, versions, options, .. } = self;
        let Some(Retained { log, place, .. }) = volumes.retained_mut(v) else { return Ok(()) };
        let id = log.id;
        let mut block = *log.superblock.bytes();
        piece.bytes.copy_to(0, &mut block[piece.within..piece.within + piece.bytes.len()]);
        let Some(sector) = place.layout.sector_of(AreaBlock(0)) else { return Ok(()) };
        let newer = match log.newer(&block) {
            Ok(newer) => newer,
            Err(why) => {
                // What mkfs or an administrator puts there is not to be mixed with what was committed before.
                volumes.leave(v, versions, &why, false)?;
                return self.through(sector, &block, true, parts);
            }
        };
        let Some(start) = newer.start() else {
            // Flushed: at an unmount, a freeze, or by e2fsck. The guest says that everything is home.
            versions.count(id).journal_truncations += 1;
            volumes.list[v].disarm(versions, "waiting for the next mount");
            volumes.list[v].superblock_read = true;
            volumes.changed();
            return self.through(sector, &block, false, parts);
        };
        if options.drop_journal {
            log.superblock = newer;
            parts.push(Part::Done);
            return Ok(());
        }
        let moved = log.guest_tail(versions, (newer.sequence(), start));
        log.set_superblock_read(versions, false);
        let why = match moved {
            Ok(_) if newer.has_ijournal() => Some(IJOURNAL),
            Ok(_) if log.may_become(newer.features()) => None,
            Ok(_) => Some("its journal's features changed while transactions were in it"),
            Err(why) => Some(why),
        };
        if let Some(why) = why {
            volumes.leave(v, versions, why, true)?;
            if moved.is_err() {
                // The guest knows where its log begins.
                volumes.list[v].clamp = None;
            }
            return self.through_clamped(v, sector, newer, parts);
        }
        // A reader of the copy of the log on the disk alone would begin behind the guest's tail.
        if place.on_disk {
            place.mark_empty(versions, &newer, log.head.0.next())?;
        }
        let truncated = moved == Ok(true);
        log.geometry.features = newer.features();
        log.read = None;
        log.superblock = newer.clone();
        if let Kept::Left = self.keep(v, AreaBlock(0), &Content::Composed(block.into()))? {
            return self.through_clamped(v, sector, newer, parts);
        }
        self.versions.count(id).journal_truncations += u64::from(truncated);
        parts.push(if truncated && self.options.vflush_at_truncation { Part::Durable } else { Part::Done });
        Ok(())
    }

    /// A whole block of a journal that is not absorbed any more goes to its own place on the disk.
    fn through(
        &mut self,
        sector: Sector,
        block: &Block,
        look_again: bool,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        // One that was left may have had it where another file system has its blocks now.
        self.versions.overwrite(sector, 8)?;
        let track = self.volumes.track(&mut self.versions, sector, 8, Carried::default(), look_again);
        parts.push(Part::Below { sector, sectors: 8, copy: Some(Buffers::from_bytes(block)), track });
        Ok(())
    }

    /// So does a superblock, with a tail that does not fall behind what the disk holds.
    fn through_clamped(
        &mut self,
        v: usize,
        sector: Sector,
        superblock: JournalSuperblock,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let superblock = self.volumes.list[v].clamped(superblock);
        self.through(sector, superblock.bytes(), false, parts)
    }

    /// A write to the journal superblock, or to a part of it, of a file system that waits for a mount. `at` is the
    /// superblock's first sector. `alone`: it is no part of something larger.
    pub(super) fn superblock_while_armed(
        &mut self,
        v: usize,
        at: Sector,
        (sector, sectors): (Sector, u64),
        buffers: Buffers,
        alone: bool,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let Self { volumes, versions, .. } = self;
        let covers = sector <= at && at.0 + 8 <= sector.0 + sectors;
        let mut block = [0; BLOCK_BYTES];
        if covers {
            buffers.copy_to(((at.0 - sector.0) * SECTOR_BYTES) as usize, &mut block);
        }
        let volume = &mut volumes.list[v];
        let superblock = match JournalSuperblock::parse(&block) {
            Ok(superblock) if covers => superblock,
            // mkfs zeroes, or something odd: what it was is learnt again when it has arrived.
            parsed => {
                if let (Err(JournalError::Unsupported(why)), Phase::Armed { why: reason, .. }, true) =
                    (parsed, &mut volume.phase, covers)
                {
                    *reason = format!("its journal uses what is not understood: {why}");
                }
                volume.orphan = None;
                volume.superblock_read = false;
                versions.overwrite(sector, sectors)?;
                let track = volumes.track(versions, sector, sectors, Carried::default(), true);
                parts.push(Part::Below { sector, sectors, copy: None, track });
                return Ok(());
            }
        };
        if volume.left.is_some_and(|left| left.uuid != superblock.uuid()) {
            // Another file system's journal owes nothing to the older one's tail.
            volume.clamp = None;
        }
        let ijournal = superblock.has_ijournal();
        if let Some(start) = superblock.start().filter(|_| alone && volume.superblock_read && !ijournal) {
            if volume.begin(versions, &superblock, start)? {
                let (at, length) = volume.superblock_range();
                volumes.note_superblocks(versions, at, length);
                volumes.changed();
                parts.push(Part::Done);
                return Ok(());
            }
        }
        let volume = &mut volumes.list[v];
        // Whoever empties it knows what is there, and may go on from that.
        volume.superblock_read = alone && superblock.start().is_none();
        let superblock = volume.clamped(superblock);
        let superblock = volume.orphan_after(superblock);
        // A look says why nothing is retained.
        self.through(at, superblock.bytes(), ijournal, parts)
    }
}

const _: () = assert!(BLOCK_BYTES as u64 == 8 * SECTOR_BYTES);
