//! The guest writes its journal's superblock: it mounts, moves the tail, changes features, or is done.

use std::collections::VecDeque;
use std::sync::Arc;

use afterimage_block::{Buffers, Sector, SECTOR_BYTES};

use super::layout::superblock::{Features, JournalSuperblock};
use super::layout::Layout;
use super::log::LogGeometry;
use super::side;
use super::volume::{Log, Phase, Position};
use super::write::Part;
use super::FileSystems;
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};
use crate::mutation::Mutation;
use crate::versions::arena::{Seen, VolumeRecord, VOLUMES_MAX};
use crate::versions::Carried;

impl FileSystems {
    /// A piece of the superblock of an absorbed journal.
    pub(super) fn absorb_superblock(
        &mut self,
        v: usize,
        within: usize,
        piece: &Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let mut block = *log.superblock.bytes();
        piece.copy_to(0, &mut block[within..within + piece.len()]);
        let Some(sector) = self.volumes[v].sector_of(AreaBlock(0)) else { return Ok(()) };
        let newer = match JournalSuperblock::parse(&block) {
            Ok(newer) if same_journal(&newer, &log.superblock) => newer,
            other => {
                let why = match other {
                    Ok(_) => "its journal became another one".to_owned(),
                    Err(e) => format!("its journal's superblock was overwritten ({e})"),
                };
                // What mkfs or an administrator puts there is not to be mixed with what was committed before.
                self.leave(v, &why, false)?;
                return self.through_superblock(sector, &block, true, parts);
            }
        };
        let Some(start) = newer.start() else {
            // Flushed: at an unmount, a freeze, or by e2fsck. The guest says that everything is home.
            self.save_passed(v, None)?;
            self.count(v).journal_truncations += 1;
            self.disarm(v, "waiting for the next mount");
            return self.through_superblock(sector, &block, false, parts);
        };
        if self.options.drop_journal {
            if let Some(log) = self.volumes[v].log_mut() {
                log.superblock = newer;
            }
            parts.push(Part::Done);
            return Ok(());
        }
        self.save_passed(v, Some(newer.sequence()))?;
        self.volumes[v].set_being_read(&mut self.versions, false);
        let moved = self.guest_tail(v, (newer.sequence(), start));
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        let other_format = !same_format(newer.features(), log.geometry.features);
        if moved.is_err() || (other_format && !log.transactions.is_empty()) {
            let why = moved.err().unwrap_or("its journal's features changed while transactions were in it");
            self.leave(v, why, true)?;
            if moved.is_err() {
                // The guest knows where its log begins.
                self.volumes[v].clamp = None;
            }
            return self.through_clamped(v, sector, newer, parts);
        }
        let id = self.volumes[v].id;
        let truncated = moved == Ok(true);
        if let Some(log) = self.volumes[v].log_mut() {
            log.geometry.features = newer.features();
            log.superblock = newer;
        }
        if !self.keep(v, AreaBlock(0), &block)? {
            let Some(newer) = JournalSuperblock::parse(&block).ok() else { return Ok(()) };
            return self.through_clamped(v, sector, newer, parts);
        }
        debug_assert!(self.versions.arena.volume(id).is_some());
        if let Some(log) = self.volumes[v].log() {
            log.forget_passed(&mut self.versions.arena, id);
        }
        self.count(v).journal_truncations += u64::from(truncated);
        parts.push(if truncated && self.options.vflush_at_truncation { Part::Durable } else { Part::Done });
        Ok(())
    }

    /// Before every transaction older than `tid` is let go, or all of them: see [`super::passed`].
    fn save_passed(&mut self, v: usize, tid: Option<Tid>) -> Result<(), JournalError> {
        let needed = self.volumes[v].needed_of_passed(&mut self.versions, tid)?;
        self.go_home(v, needed)
    }

    /// The guest's own tail: what is older is home or of no use to it. Says whether anything was passed.
    fn guest_tail(&mut self, v: usize, tail: Position) -> Result<bool, &'static str> {
        let Some(log) = self.volumes[v].log() else { return Ok(false) };
        let (tid, start) = tail;
        let passed = log.transactions.iter().take_while(|t| tid.is_after(t.tid)).count();
        let oldest = log.transactions.front().map_or(log.head.0, |t| t.tid);
        if oldest.is_after(tid) {
            let went_back = log.superblock.sequence().is_after(tid);
            if went_back
                || log
                    .start_of(&self.versions.arena, self.volumes[v].id, tid)
                    .is_some_and(|known| known != start)
            {
                return Err("its journal begins anew, behind what was committed");
            }
            // It lags behind what was released; the served superblock makes up for that.
            return Ok(false);
        }
        let expected = log.transactions.get(passed).map(|t| (t.tid, t.start));
        if expected.is_some_and(|e| e != tail) {
            return Err("its journal's tail is not where the transaction of that id begins");
        }
        for _ in 0..passed {
            self.volumes[v].drop_oldest(&mut self.versions);
        }
        let Some(log) = self.volumes[v].log_mut() else { return Ok(false) };
        if expected.is_none() && log.head != (tid, start) {
            // Nothing is left: the log begins anew, as after a recovery.
            log.head = (tid, start);
            log.commit_seen = false;
            if log.tail.0 == tid {
                self.volumes[v].set_tail(&mut self.versions, (tid, start));
            }
        }
        self.volumes[v].move_tail(&mut self.versions);
        Ok(passed > 0)
    }

    /// The whole superblock goes to the disk.
    fn through_superblock(
        &mut self,
        sector: Sector,
        block: &[u8; BLOCK_BYTES],
        look_again: bool,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let track = self.track(sector, 8, Carried::default(), look_again);
        parts.push(Part::Below { sector, sectors: 8, copy: Some(Buffers::from_bytes(block)), track });
        Ok(())
    }

    /// As above, with a tail that does not fall behind what the disk holds.
    fn through_clamped(
        &mut self,
        v: usize,
        sector: Sector,
        superblock: JournalSuperblock,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let superblock = self.clamped(v, superblock);
        self.through_superblock(sector, superblock.bytes(), false, parts)
    }

    fn clamped(&mut self, v: usize, superblock: JournalSuperblock) -> JournalSuperblock {
        let volume = &mut self.volumes[v];
        match (volume.clamp, superblock.start()) {
            (Some((tid, start)), Some(_))
                if tid.is_after(superblock.sequence())
                    && (superblock.first().0..superblock.maxlen()).contains(&start.0) =>
            {
                superblock.with_tail(tid, Some(start))
            }
            _ => {
                volume.clamp = None;
                superblock
            }
        }
    }

    /// A write to the journal superblock, or to a part of it, of a file system that waits for a mount. `at` is the
    /// superblock's first sector.
    pub(super) fn superblock_while_armed(
        &mut self,
        v: usize,
        at: Sector,
        sector: Sector,
        sectors: u64,
        buffers: Buffers,
        parts: &mut Vec<Part>,
    ) -> Result<(), JournalError> {
        let covers = sector <= at && at.0 + 8 <= sector.0 + sectors;
        let mut block = [0; BLOCK_BYTES];
        if covers {
            buffers.copy_to(((at.0 - sector.0) * SECTOR_BYTES) as usize, &mut block);
        }
        let whole = |this: &mut Self, parts: &mut Vec<Part>| {
            this.versions.overwrite(sector, sectors);
            let track = this.track(sector, sectors, Carried::default(), true);
            parts.push(Part::Below { sector, sectors, copy: None, track });
        };
        let superblock = match JournalSuperblock::parse(&block) {
            Ok(superblock) if covers => superblock,
            Err(JournalError::Unsupported(why)) if covers => {
                if let Phase::Armed { why: reason, .. } = &mut self.volumes[v].phase {
                    *reason = format!("its journal uses what is not understood: {why}");
                }
                whole(self, parts);
                return Ok(());
            }
            // mkfs zeroes, or something odd: what it was is learnt again when it has arrived.
            _ => {
                whole(self, parts);
                return Ok(());
            }
        };
        let volume = &mut self.volumes[v];
        if volume.left.is_some_and(|left| left.uuid != superblock.uuid()) {
            // Another file system's journal owes nothing to the older one's tail.
            volume.clamp = None;
        }
        if let Some(start) = superblock.start() {
            if self.begin(v, &superblock, start)? {
                parts.push(Part::Done);
                return Ok(());
            }
        }
        self.through_clamped(v, at, superblock, parts)
    }

    /// Begins to absorb, where the log is empty from its tail on: then nothing that the guest may need is on the disk
    /// only.
    fn begin(
        &mut self,
        v: usize,
        superblock: &JournalSuperblock,
        start: AreaBlock,
    ) -> Result<bool, JournalError> {
        let volume = &self.volumes[v];
        let (id, clamp) = (volume.id, volume.clamp);
        if clamp.is_some_and(|(tid, _)| tid.is_after(superblock.sequence())) {
            return Ok(false);
        }
        let Phase::Armed { layout, .. } = &volume.phase else { return Ok(false) };
        if superblock.maxlen() > layout.journal_blocks() {
            return Ok(false);
        }
        let layout = layout.clone();
        let log = new_log(layout, superblock.clone(), (superblock.sequence(), start));
        let mut scratch = [0; BLOCK_BYTES];
        let mut reader = self.versions.reader(id, &*log.layout);
        if is_of(reader.get(log.head.1, &mut scratch)?, log.head.0 .0) {
            if let Phase::Armed { why, .. } = &mut self.volumes[v].phase {
                *why = "mounted before retention could begin: it begins at the next mount".to_owned();
            }
            return Ok(false);
        }
        if !self.versions.mistake.is(Mutation::SkipMarkEmpty) {
            self.volumes[v].mark_empty(&mut self.versions, superblock, superblock.sequence())?;
        }
        let stamped = !self.versions.mistake.is(Mutation::SkipMarkEmpty);
        let volume = &mut self.volumes[v];
        let record = VolumeRecord {
            start_sector: volume.start.0,
            fs_uuid: log.layout.uuid,
            tail: log.tail,
            absorbing: true,
            being_read: false,
            stamped,
        };
        if usize::from(id.0) >= VOLUMES_MAX {
            return Ok(false);
        }
        self.versions.arena.set_seen(id, Seen::FileSystem, None);
        self.versions.arena.set_seen(id, Seen::Journal, None);
        self.versions.arena.set_volume(id, record);
        self.versions.init(id, log.room())?;
        let remembered = side::store_journal(&mut self.versions.arena, id, &log.layout);
        match remembered.and_then(|()| self.versions.store(id, AreaBlock(0), superblock.bytes())) {
            Ok(()) => {}
            Err(error) => {
                // No memory for even one block, or more file systems than an arena takes.
                self.versions.cleanup(id);
                if let Phase::Armed { why, .. } = &mut self.volumes[v].phase {
                    *why = format!("nothing can be retained: {error}");
                }
                return Ok(false);
            }
        }
        let volume = &mut self.volumes[v];
        tracing::info!(start_sector = volume.start.0, tid = superblock.sequence().0, "retaining a journal");
        volume.clamp = None;
        side::reserve(&mut self.versions.arena, id, log.layout.journal_blocks(), superblock.sequence());
        volume.phase = Phase::Absorbing(Box::new(log));
        let (at, length) = volume.superblock_range();
        self.note_superblocks(at, length)?;
        self.changed();
        Ok(true)
    }

    /// Nothing is retained any more, and nothing needs to be.
    pub(super) fn disarm(&mut self, v: usize, why: &str) {
        let volume = &mut self.volumes[v];
        let Some(layout) = volume.layout().cloned() else { return };
        volume.phase = Phase::Armed { layout, why: why.to_owned() };
        let id = volume.id;
        self.drop_due(id);
        self.versions.cleanup(id);
        self.changed();
    }
}

/// Whether a block is a log block of that transaction, by magic and id.
fn is_of(block: &Block, tid: u32) -> bool {
    /// JBD2_MAGIC_NUMBER
    const MAGIC: u32 = 0xc03b_3998;
    let field = |at: usize| u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    field(0) == MAGIC && field(8) == tid
}

/// Whether two superblocks are of one journal.
fn same_journal(a: &JournalSuperblock, b: &JournalSuperblock) -> bool {
    a.uuid() == b.uuid() && a.maxlen() == b.maxlen() && a.first() == b.first()
}

/// Whether blocks written under one set of features read the same under the other. A journal says that it may hold revoke
/// blocks when it writes its first one.
fn same_format(a: Features, b: Features) -> bool {
    Features { revoke: false, ..a } == Features { revoke: false, ..b }
}

/// A log with nothing in it.
pub(super) fn new_log(layout: Arc<Layout>, superblock: JournalSuperblock, tail: Position) -> Log {
    let mut forbidden: Vec<_> =
        layout.journal.iter().map(|e| (e.home, FsBlock(e.home.0 + u64::from(e.blocks)))).collect();
    forbidden.sort_unstable();
    let geometry = LogGeometry {
        first: superblock.first(),
        maxlen: superblock.maxlen(),
        features: superblock.features(),
        uuid: superblock.uuid(),
        fs_blocks: layout.room_blocks,
        forbidden,
    };
    Log {
        disk_sequence: superblock.sequence(),
        layout,
        geometry,
        superblock,
        tail,
        head: tail,
        transactions: VecDeque::new(),
        held_blocks: 0,
        commit_sec: 0,
        commit_seen: false,
        came_by: None,
        waits_for: None,
        suspended: false,
        on_disk: false,
        being_read: false,
        resuming: false,
        spilled: false,
    }
}
