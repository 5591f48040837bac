//! The guest writes its journal's superblock: it mounts, moves the tail, changes features, or is done.

use std::collections::VecDeque;

use afterimage_block::{Buffers, Sector, SECTOR_BYTES};

use super::follow::begins;
use super::volume::{Log, Phase, Position};
use super::write::Part;
use super::{Mutation, Retainer, View};
use crate::arena::{Seen, VolumeRecord};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, Tid, BLOCK_BYTES};
use crate::layout::superblock::{Features, JournalSuperblock};
use crate::layout::Layout;
use crate::log::LogGeometry;

impl Retainer {
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
        let Some(sector) = self.area_sector(v, AreaBlock(0)) else { return Ok(()) };
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
            self.volumes[v].classes.journal_truncations += 1;
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
        self.set_being_read(v, false);
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
        debug_assert!(self.arena.volume(id).is_some());
        self.forget_passed(v);
        self.volumes[v].classes.journal_truncations += u64::from(truncated);
        parts.push(if truncated && self.options.vflush_at_truncation { Part::Durable } else { Part::Done });
        Ok(())
    }

    /// The guest's own tail: what is older is home or of no use to it. Says whether anything was passed.
    fn guest_tail(&mut self, v: usize, tail: Position) -> Result<bool, &'static str> {
        let Some(log) = self.volumes[v].log() else { return Ok(false) };
        let (tid, start) = tail;
        let passed = log.transactions.iter().take_while(|t| tid.is_after(t.tid)).count();
        let oldest = log.transactions.front().map_or(log.head.0, |t| t.tid);
        if oldest.is_after(tid) {
            let went_back = log.superblock.sequence().is_after(tid);
            if went_back || self.start_of(v, tid).is_some_and(|known| known != start) {
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
            self.drop_oldest(v);
        }
        let Some(log) = self.volumes[v].log_mut() else { return Ok(false) };
        if expected.is_none() && log.head != (tid, start) {
            // Nothing is left: the log begins anew, as after a recovery.
            log.head = (tid, start);
            log.commit_seen = false;
            if log.tail.0 == tid {
                self.set_tail(v, (tid, start));
            }
        }
        self.move_tail(v);
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
        let track = self.track(sector, 8, Vec::new(), look_again);
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
            this.overwrite(sector, sectors);
            let track = this.track(sector, sectors, Vec::new(), true);
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
    /// only (design § 4 rule 2).
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
        let mut view = View { arena: &self.arena, below: &mut self.below, volume: id, layout: &log.layout };
        if begins(&mut view, &log)? {
            if let Phase::Armed { why, .. } = &mut self.volumes[v].phase {
                *why = "mounted before retention could begin: it begins at the next mount".to_owned();
            }
            return Ok(false);
        }
        if !self.mutated(Mutation::SkipMarkEmpty) {
            self.mark_empty(v, superblock, superblock.sequence())?;
        }
        let stamped = !self.mutated(Mutation::SkipMarkEmpty);
        let volume = &mut self.volumes[v];
        let record = VolumeRecord {
            start_sector: volume.start.0,
            fs_uuid: log.layout.uuid,
            tail: log.tail,
            absorbing: true,
            being_read: false,
            stamped,
        };
        if usize::from(id.0) >= crate::arena::VOLUMES_MAX {
            return Ok(false);
        }
        self.arena.set_seen(id, Seen::FileSystem, None);
        self.arena.set_seen(id, Seen::Journal, None);
        self.arena.set_volume(id, record);
        self.area.init(id, BLOCK_BYTES)?;
        let remembered = self.remember_journal(id, &log.layout);
        let first = &mut |slot: &mut Block| slot.copy_from_slice(superblock.bytes());
        match remembered.and_then(|()| self.arena.store(id, AreaBlock(0), first)) {
            Ok(()) => {}
            Err(error) => {
                // No memory for even one block, or more file systems than an arena takes.
                self.arena.clear_volume(id);
                self.area.cleanup(id);
                if let Phase::Armed { why, .. } = &mut self.volumes[v].phase {
                    *why = format!("nothing can be retained: {error}");
                }
                return Ok(false);
            }
        }
        let volume = &mut self.volumes[v];
        tracing::info!(start_sector = volume.start.0, tid = superblock.sequence().0, "retaining a journal");
        volume.clamp = None;
        volume.phase = Phase::Absorbing(Box::new(log));
        let (at, length) = volume.superblock_range();
        self.note_superblocks(at, length)?;
        self.reserve(v, superblock.sequence());
        self.changed();
        Ok(true)
    }

    /// Makes the journal on the disk say, durably, that it is empty, and whose it is.
    pub(super) fn mark_empty(
        &mut self,
        v: usize,
        superblock: &JournalSuperblock,
        sequence: Tid,
    ) -> Result<(), JournalError> {
        let Some(sector) = self.area_sector(v, AreaBlock(0)) else { return Ok(()) };
        let mut block = *superblock.with_tail(sequence, None).bytes();
        self.stamp(self.volumes[v].id).put(&mut block);
        self.arena.set_seen(self.volumes[v].id, Seen::Journal, None);
        self.below.write(sector, &block)?;
        self.below.sync()?;
        self.set_stamped(v, true);
        if let Some(log) = self.volumes[v].log_mut() {
            log.disk_sequence = sequence;
            log.on_disk = false;
        }
        Ok(())
    }

    /// After a copy of the log was put on the disk, the disk must say again that its journal is empty before more is
    /// absorbed: a reader of that copy alone would replay what has been overtaken.
    pub(super) fn empty_on_disk(&mut self, v: usize) -> Result<(), JournalError> {
        let Some(log) = self.volumes[v].log() else { return Ok(()) };
        if !log.on_disk {
            return Ok(());
        }
        let (superblock, next) = (log.superblock.clone(), log.head.0.next());
        self.mark_empty(v, &superblock, next)
    }

    /// Nothing is retained any more, and nothing needs to be.
    pub(super) fn disarm(&mut self, v: usize, why: &str) {
        let volume = &mut self.volumes[v];
        let Some(layout) = volume.layout().cloned() else { return };
        volume.phase = Phase::Armed { layout, why: why.to_owned() };
        let id = volume.id;
        self.arena.clear_volume(id);
        self.area.cleanup(id);
        self.changed();
    }
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
pub(super) fn new_log(layout: Layout, superblock: JournalSuperblock, tail: Position) -> Log {
    let mut forbidden: Vec<_> = layout
        .journal
        .iter()
        .map(|e| (e.home, crate::ids::FsBlock(e.home.0 + u64::from(e.blocks))))
        .collect();
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
        waits_for: None,
        suspended: false,
        on_disk: false,
        being_read: false,
        resuming: false,
        spilled: false,
    }
}
