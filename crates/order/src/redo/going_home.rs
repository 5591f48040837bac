//! Going home: durable records to the images, and their log space to new records.
//!
//! ```text
//! round: oldest durable records ─► newest version of each sector ─► images ─► sync ─► header ─► sync ─► the log gives up
//! ```
//!
//! A power cut at any point leaves the records in the log or, once the header is durable, at home: nothing of the log is
//! reused before. All headers are written here, one at a time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{BlockError, Medium, SECTOR_BYTES};
use afterimage_format::log::{LogHeader, WitnessEntry, FEATURE_SETS, STATE_CLEAN};
use parking_lot::{Condvar, Mutex};

use super::extents::ExtentMap;
use super::log::RedoLog;
use super::mutation::{Mistake, Mutation};
use super::round::{pieces, Content, Pace, Piece, Round, Step};
use super::witness::{self, Spot};
use crate::board::Board;
use crate::changes::Changes;
use crate::clock::Clock;
use crate::schedule::{Fill, HomeSchedule};
use crate::sequence::{LogPosition, LoggedDisk};
use crate::Event;

/// See the module.
pub struct GoingHome {
    log: Arc<RedoLog>,
    /// The images, by disk.
    homes: Vec<Arc<dyn Medium>>,
    changes: Vec<Changes>,
    window: Duration,
    clock: Arc<dyn Clock>,
    board: Arc<Board>,
    kept: Mutex<Kept>,
    /// The header on storage says that there may be sets.
    sets_announced: AtomicBool,
    pub(super) written_bytes: AtomicU64,
    /// The thread sleeps here.
    schedule: Mutex<HomeSchedule>,
    wake: Condvar,
    mistake: Mistake,
}

/// What is kept from one round to the next.
struct Kept {
    /// The newest header on storage.
    header: LogHeader,
    pace: Pace,
}

impl GoingHome {
    pub(super) fn new(
        log: Arc<RedoLog>,
        homes: Vec<Arc<dyn Medium>>,
        header: LogHeader,
        window: Duration,
        clock: Arc<dyn Clock>,
        board: Arc<Board>,
        mistake: Mistake,
    ) -> Self {
        let schedule = Mutex::new(HomeSchedule::new(clock.now()));
        Self {
            log,
            changes: homes.iter().map(|_| Changes::default()).collect(),
            homes,
            window,
            clock,
            board,
            kept: Mutex::new(Kept { header, pace: Pace::new() }),
            sets_announced: AtomicBool::new(header.has_sets()),
            written_bytes: AtomicU64::new(0),
            schedule,
            wake: Condvar::new(),
            mistake,
        }
    }

    pub(super) fn home(&self, disk: LoggedDisk) -> &dyn Medium {
        self.homes[disk.index()].as_ref()
    }

    pub(super) fn changes(&self, disk: LoggedDisk) -> &Changes {
        &self.changes[disk.index()]
    }

    /// Asks for a round; one comes where the log is more than half full.
    pub fn request(&self) {
        if self.schedule.lock().want() {
            self.wake.notify_one();
        }
    }

    /// Whether a round is asked for.
    pub fn is_requested(&self) -> bool {
        self.schedule.lock().is_wanted()
    }

    /// When a turn is due: [`Duration::ZERO`] is at once.
    pub fn next(&self) -> Duration {
        self.schedule.lock().next()
    }

    /// Takes a turn of the schedule: whether the older half of the log is to go home now.
    pub(super) fn turn(&self, log: Fill) -> bool {
        self.schedule.lock().turn(self.clock.now(), log)
    }

    /// Sleeps until a turn is due; `false` when the thread is to end.
    pub(super) fn wait_until_due(&self) -> bool {
        let mut schedule = self.schedule.lock();
        loop {
            if self.board.is_stopped() || self.board.health.check().is_err() {
                return false;
            }
            let (at, now) = (schedule.next(), self.clock.now());
            if at <= now {
                return true;
            }
            self.wake.wait_for(&mut schedule, at - now);
        }
    }

    /// Ends [`GoingHome::wait_until_due`], where the board says that the thread is to end.
    pub(super) fn stop(&self) {
        drop(self.schedule.lock());
        self.wake.notify_all();
    }

    /// Brings durable records home, the oldest first, up to `log_bytes_max` bytes of log (at least one record), and
    /// gives their space up. Returns whether there were any.
    ///
    /// # Errors
    /// The group has failed, or fails with a write or sync of this round.
    pub fn round(&self, log_bytes_max: u64) -> Result<bool, BlockError> {
        let mut kept = self.kept.lock();
        let _whole = self.board.whole();
        self.board.health.check()?;
        let (records, tail) = self.log.space().oldest_durable(log_bytes_max);
        let Some(round) = Round::new(records, tail, self.homes.len(), self.mistake) else { return Ok(false) };
        for step in round.steps() {
            match step {
                Step::Write => self.write_home(&round.newest, &mut kept.pace)?,
                Step::Forget(up_to) => self.log.forget(&round.records, up_to),
                Step::SyncImages => self.sync_homes(&round.newest)?,
                Step::Header => {
                    let chosen = self.read_witnesses(&round.newest)?;
                    let next = round.header(&kept.header, self.board.sequence.durable.get(), chosen);
                    self.write_header(&mut kept, next)?;
                }
            }
        }
        self.log.space().give_up(round.records.len(), tail);
        self.board.sequence.home.raise(round.sequence);
        self.board.note_change();
        self.board.events.publish(&Event::Home { sequence: round.sequence.0 });
        Ok(true)
    }

    /// Everything durable home.
    ///
    /// # Errors
    /// As [`GoingHome::round`].
    pub fn all(&self) -> Result<(), BlockError> {
        while self.round(self.log.area_bytes())? {}
        Ok(())
    }

    /// Says in the header, durably, that records may form sets, before there is one: a program that does not know them
    /// refuses the log.
    pub(super) fn announce_sets(&self) -> Result<(), BlockError> {
        if self.sets_announced.load(Ordering::SeqCst) || self.mistake.is(Mutation::SetUnannounced) {
            return Ok(());
        }
        let mut kept = self.kept.lock();
        self.board.health.check()?;
        if !kept.header.has_sets() {
            let mut next = kept.header;
            next.features_incompat = (next.features_incompat.get() | FEATURE_SETS).into();
            self.write_header(&mut kept, next)?;
        }
        self.sets_announced.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Says in the header that everything is home. Call with an empty log and appends closed.
    pub(super) fn mark_clean(&self) -> Result<(), BlockError> {
        let mut kept = self.kept.lock();
        let mut next = kept.header;
        next.state = STATE_CLEAN.into();
        self.write_header(&mut kept, next)
    }

    /// Writes and syncs the next header.
    fn write_header(&self, kept: &mut Kept, mut next: LogHeader) -> Result<(), BlockError> {
        // Into the slot that does not hold the one in force.
        next.generation = (kept.header.generation.get() + 1).into();
        let mut written = self.log.area.medium.write_at(&next.seal(), next.slot_offset());
        if !self.mistake.is(Mutation::ReuseBeforeHeaderSync) {
            written = written.and_then(|()| self.log.sync());
        }
        written.map_err(|e| self.board.fail("writing the redo log's header", e))?;
        kept.header = next;
        Ok(())
    }

    fn write_home(&self, newest: &[ExtentMap], pace: &mut Pace) -> Result<(), BlockError> {
        for (disk, map) in newest.iter().enumerate() {
            self.write_disk(disk, map, pace)
                .map_err(|e| self.board.fail(format!("writing disk {disk} home from the redo log"), e))?;
        }
        Ok(())
    }

    fn write_disk(&self, disk: usize, newest: &ExtentMap, pace: &mut Pace) -> io::Result<()> {
        let (home, changes) = (&self.homes[disk], &self.changes[disk]);
        let mut bytes = Vec::new();
        pace.begin(self.clock.now());
        for Piece { sector, sectors, content } in pieces(newest) {
            let parts = match content {
                Content::Zero { unmap } => {
                    let zeroed = home.zero_at(sector * SECTOR_BYTES, sectors * SECTOR_BYTES, unmap);
                    changes.note(sector * SECTOR_BYTES, sectors * SECTOR_BYTES);
                    zeroed?;
                    continue;
                }
                Content::Logged(parts) => parts,
            };
            if pace.wants_sync() {
                home.sync()?;
                pace.synced(self.clock.now(), self.window);
            }
            bytes.resize((sectors * SECTOR_BYTES) as usize, 0);
            let mut rest = &mut bytes[..];
            for (position, sectors) in parts {
                let (part, after) = rest.split_at_mut((sectors * SECTOR_BYTES) as usize);
                self.log.area.read(position, part)?;
                rest = after;
            }
            let written = home.write_at(&bytes, sector * SECTOR_BYTES);
            changes.note(sector * SECTOR_BYTES, bytes.len() as u64);
            written?;
            pace.wrote(bytes.len() as u64);
            self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn sync_homes(&self, newest: &[ExtentMap]) -> Result<(), BlockError> {
        for (disk, map) in newest.iter().enumerate().filter(|(_, map)| map.len() > 0) {
            tracing::trace!(disk, extents = map.len(), "syncing an image");
            self.homes[disk].sync().map_err(|e| self.board.fail(format!("syncing disk {disk}"), e))?;
        }
        Ok(())
    }

    fn read_witnesses(&self, newest: &[ExtentMap]) -> Result<Vec<WitnessEntry>, BlockError> {
        let entry = |(spot, position): (Spot, LogPosition)| {
            let mut block = vec![0; spot.bytes()];
            self.log.area.read(position, &mut block)?;
            Ok(spot.entry(&block))
        };
        let entries: io::Result<Vec<_>> = witness::of_round(newest).into_iter().map(entry).collect();
        entries.map_err(|e| self.board.fail("reading the redo log", e))
    }
}
