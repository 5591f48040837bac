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

use afterimage_block::{BlockError, Medium, SequenceNumber};
use afterimage_format::log::{LogHeader, RecordKind, FEATURE_SETS, STATE_CLEAN};
use parking_lot::{Condvar, Mutex};

use super::extents::{ExtentMap, Source};
use super::header;
use super::log::RedoLog;
use super::mutation::{Mistake, Mutation};
use crate::board::Board;
use crate::clock::Clock;
use crate::sequence::LoggedDisk;
use crate::Event;

/// The largest single write to an image.
const HOME_WRITE_BYTES_MAX: usize = 1 << 20;

/// See the module.
pub struct GoingHome {
    log: Arc<RedoLog>,
    /// The images, by disk.
    homes: Vec<Arc<dyn Medium>>,
    window: Duration,
    clock: Arc<dyn Clock>,
    board: Arc<Board>,
    round: Mutex<Round>,
    /// The header on storage says that there may be sets.
    sets_announced: AtomicBool,
    pub(super) written_bytes: AtomicU64,
    /// Somebody has asked the thread for a round; it sleeps here.
    wanted: Mutex<bool>,
    wake: Condvar,
    mistake: Mistake,
}

/// What is kept from one round to the next.
struct Round {
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
        Self {
            log,
            homes,
            window,
            clock,
            board,
            round: Mutex::new(Round { header, pace: Pace::default() }),
            sets_announced: AtomicBool::new(header.has_sets()),
            written_bytes: AtomicU64::new(0),
            wanted: Mutex::new(false),
            wake: Condvar::new(),
            mistake,
        }
    }

    pub(super) fn home(&self, disk: LoggedDisk) -> &dyn Medium {
        self.homes[disk.index()].as_ref()
    }

    /// Asks the thread for a round; one comes where the log is more than half full.
    pub fn request(&self) {
        let mut wanted = self.wanted.lock();
        if !std::mem::replace(&mut *wanted, true) {
            self.wake.notify_one();
        }
    }

    /// Sleeps until somebody asks, or for that long; whether somebody has asked.
    pub(super) fn wait_for_request(&self, idle: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        if !*wanted && !self.board.is_stopped() {
            self.wake.wait_for(&mut wanted, idle);
        }
        std::mem::take(&mut wanted)
    }

    /// Ends [`GoingHome::wait_for_request`], where the board says that the thread is to end.
    pub(super) fn stop(&self) {
        drop(self.wanted.lock());
        self.wake.notify_all();
    }

    /// Brings durable records home, the oldest first, up to `log_bytes_max` bytes of log (at least one record), and
    /// gives their space up. Returns whether there were any.
    ///
    /// # Errors
    /// The group has failed, or fails with a write or sync of this round.
    pub fn round(&self, log_bytes_max: u64) -> Result<bool, BlockError> {
        let mut round = self.round.lock();
        let _whole = self.board.whole();
        self.board.health.check()?;
        let (records, tail) = self.log.space().oldest_durable(log_bytes_max);
        let Some(last) = records.last() else { return Ok(false) };
        let sequence = last.sequence;
        let newest = self.log.newest_of(&records);
        if self.mistake.is(Mutation::DropIndexEarly) {
            self.log.forget(&records, sequence);
        }
        for (disk, map) in newest.iter().enumerate() {
            self.write_home(disk, map, &mut round.pace)
                .map_err(|e| self.board.fail(format!("writing disk {disk} home from the redo log"), e))?;
        }
        if self.mistake.is(Mutation::DropNewerIndex) {
            self.log.forget(&records, SequenceNumber(u64::MAX));
        }
        self.log.forget(&records, sequence);
        if !self.mistake.is(Mutation::DropHomeSync) && !self.mistake.is(Mutation::HeaderBeforeHomeSync) {
            self.sync_homes(&newest)?;
        }
        let mut next = round.header;
        next.tail_position = tail.0.into();
        next.tail_sequence = sequence.0.into();
        if let Some(begun) = records.iter().rev().find(|r| r.kind == RecordKind::Incarnation) {
            next.tail_incarnation = begun.sector.into();
        }
        next.durable_sequence = self.board.sequence.durable.get().max(sequence).0.into();
        header::choose_witnesses(&mut next, &newest, &self.log.area)
            .map_err(|e| self.board.fail("reading the redo log", e))?;
        self.write_header(&mut round, next)?;
        if self.mistake.is(Mutation::HeaderBeforeHomeSync) {
            self.sync_homes(&newest)?;
        }
        self.log.space().give_up(records.len(), tail);
        self.board.sequence.home.raise(sequence);
        self.board.note_change();
        self.board.events.publish(&Event::Home { sequence: sequence.0 });
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
        let mut round = self.round.lock();
        self.board.health.check()?;
        if !round.header.has_sets() {
            let mut next = round.header;
            next.features_incompat = (next.features_incompat.get() | FEATURE_SETS).into();
            self.write_header(&mut round, next)?;
        }
        self.sets_announced.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Says in the header that everything is home. Call with an empty log and appends closed.
    pub(super) fn mark_clean(&self) -> Result<(), BlockError> {
        let mut round = self.round.lock();
        let mut next = round.header;
        next.state = STATE_CLEAN.into();
        self.write_header(&mut round, next)
    }

    /// Writes and syncs the next header.
    fn write_header(&self, round: &mut Round, mut next: LogHeader) -> Result<(), BlockError> {
        next.generation = (round.header.generation.get() + 1).into();
        let mut written = header::write(self.log.area.medium.as_ref(), &next);
        if !self.mistake.is(Mutation::ReuseBeforeHeaderSync) {
            written = written.and_then(|()| self.log.sync());
        }
        written.map_err(|e| self.board.fail("writing the redo log's header", e))?;
        round.header = next;
        Ok(())
    }

    /// In the order of the disk, neighbours merged.
    fn write_home(&self, disk: usize, map: &ExtentMap, pace: &mut Pace) -> io::Result<()> {
        let home = &self.homes[disk];
        let mut run = Run { home, start: 0, bytes: Vec::new(), written: 0 };
        let mut started = self.clock.now();
        let mut zeroes: Option<(u64, u64, bool)> = None;
        for (sector, extent) in map.iter() {
            match extent.source {
                Source::Log(position) => {
                    let mut done = 0;
                    while done < extent.sectors {
                        let n = (extent.sectors - done).min(HOME_WRITE_BYTES_MAX as u64 / 512);
                        let target = run.grow(sector + done, n)?;
                        self.log.area.read(position + done * 512, target)?;
                        done += n;
                    }
                    if run.written >= pace.bytes_max {
                        home.sync()?;
                        run.written = 0;
                        pace.learn(self.clock.now().saturating_sub(started), self.window);
                        started = self.clock.now();
                    }
                    self.written_bytes.fetch_add(extent.sectors * 512, Ordering::Relaxed);
                }
                Source::Zero { unmap } => match &mut zeroes {
                    Some((start, sectors, u)) if *start + *sectors == sector && *u == unmap => {
                        *sectors += extent.sectors;
                    }
                    _ => {
                        zero(home, zeroes.take())?;
                        zeroes = Some((sector, extent.sectors, unmap));
                    }
                },
            }
        }
        zero(home, zeroes)?;
        run.finish()
    }

    fn sync_homes(&self, newest: &[ExtentMap]) -> Result<(), BlockError> {
        for (disk, map) in newest.iter().enumerate().filter(|(_, map)| map.len() > 0) {
            tracing::trace!(disk, extents = map.len(), "syncing an image");
            self.homes[disk].sync().map_err(|e| self.board.fail(format!("syncing disk {disk}"), e))?;
        }
        Ok(())
    }
}

fn zero(home: &Arc<dyn Medium>, range: Option<(u64, u64, bool)>) -> io::Result<()> {
    match range {
        Some((sector, sectors, unmap)) => home.zero_at(sector * 512, sectors * 512, unmap),
        None => Ok(()),
    }
}

/// How much is written home between two syncs of an image. One sync for all would be cheapest, but it would hand the
/// device seconds of work at once, and the log's sync, for which flushes wait, would queue behind it. So pieces that
/// take about one window; the order of the disk is kept across them.
#[derive(Clone, Copy, Debug)]
struct Pace {
    bytes_max: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { bytes_max: 4 << 20 }
    }
}

impl Pace {
    const BYTES_LEAST: u64 = 128 << 10;
    const BYTES_MOST: u64 = 256 << 20;

    fn learn(&mut self, took: Duration, window: Duration) {
        if took > window {
            self.bytes_max = (self.bytes_max / 2).max(Self::BYTES_LEAST);
        } else if took < window / 4 {
            self.bytes_max = (self.bytes_max * 2).min(Self::BYTES_MOST);
        }
    }
}

/// Contiguous sectors that become one write.
struct Run<'a> {
    home: &'a Arc<dyn Medium>,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes written since the last sync.
    written: u64,
}

impl Run<'_> {
    /// Room for the next sectors; writes what was there before where they do not join it.
    fn grow(&mut self, sector: u64, sectors: u64) -> io::Result<&mut [u8]> {
        let len = sectors as usize * 512;
        let joins = self.start + self.bytes.len() as u64 / 512 == sector
            && self.bytes.len() + len <= HOME_WRITE_BYTES_MAX;
        if !joins {
            self.write()?;
            self.start = sector;
        }
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        Ok(&mut self.bytes[at..])
    }

    fn write(&mut self) -> io::Result<()> {
        if !self.bytes.is_empty() {
            self.home.write_at(&self.bytes, self.start * 512)?;
            self.written += self.bytes.len() as u64;
            self.bytes.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.write()
    }
}
