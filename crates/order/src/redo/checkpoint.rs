//! Going home: durable records to the images, and their log space to new records.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{BlockError, Medium};
use afterimage_format::log::{RecordKind, STATE_CLEAN};

use super::append::records_max;
use super::core::{lock, Core};
use super::extents::{Extent, ExtentMap, Source};
use super::header;
use super::mutation::Mutation;
use super::scan::Placed;
use crate::Event;

/// The largest single write to an image.
const HOME_WRITE_BYTES_MAX: usize = 1 << 20;

impl Core {
    /// Asks for a checkpoint; one comes where the log is more than half full.
    pub fn request_checkpoint(&self) {
        let mut progress = lock(&self.progress);
        if !progress.checkpoint_wanted {
            progress.checkpoint_wanted = true;
            self.checkpoint_wake.notify_one();
        }
    }

    /// Brings durable records home, the oldest first, up to `log_bytes_max` bytes of log (at least one record), and
    /// gives their space up. Returns whether there were any.
    ///
    /// A power cut at any point leaves the records in the log or, once the header is durable, at home: nothing of
    /// the log is reused before.
    pub fn checkpoint_once(&self, log_bytes_max: u64) -> Result<bool, BlockError> {
        let mut checkpointing = lock(&self.checkpointing);
        self.health.check()?;
        let (batch, tail) = self.durable_records(log_bytes_max);
        let Some(last) = batch.last() else { return Ok(false) };
        let sequence = last.sequence;
        let overlay = self.newest_versions(&batch);
        if self.mutated(Mutation::DropIndexEarly) {
            self.drop_from_index(&batch, sequence);
        }
        for (disk, map) in overlay.iter().enumerate() {
            self.write_home(disk, map, &mut checkpointing.pace)
                .map_err(|e| self.fail(format!("writing disk {disk} home from the redo log"), e))?;
        }
        // Readers find these versions at home from now on.
        if self.mutated(Mutation::DropNewerIndex) {
            self.drop_from_index(&batch, u64::MAX);
        }
        self.drop_from_index(&batch, sequence);
        if !self.mutated(Mutation::DropHomeSync) && !self.mutated(Mutation::HeaderBeforeHomeSync) {
            self.sync_homes(&overlay)?;
        }
        let mut next = checkpointing.header;
        next.generation = (next.generation.get() + 1).into();
        next.tail_position = tail.into();
        next.tail_sequence = sequence.into();
        if let Some(begun) = batch.iter().rev().find(|r| r.kind == RecordKind::Incarnation) {
            next.tail_incarnation = begun.sector.into();
        }
        next.durable_sequence = self.durable.load(Ordering::SeqCst).max(sequence).into();
        header::choose_witnesses(&mut next, &overlay, &self.area)
            .map_err(|e| self.fail("reading the redo log".to_owned(), e))?;
        self.write_header(&next)?;
        if self.mutated(Mutation::HeaderBeforeHomeSync) {
            self.sync_homes(&overlay)?;
        }
        checkpointing.header = next;
        {
            let mut records = lock(&self.records);
            records.drain(..batch.len());
            if records.capacity() / 4 > records.len() {
                let kept = records.len() * 2;
                records.shrink_to(kept);
            }
        }
        {
            let mut progress = lock(&self.progress);
            progress.tail = tail;
            progress.home = sequence;
            progress.changes += 1;
            self.tail.store(tail, Ordering::SeqCst);
        }
        self.progressed.notify_all();
        self.signals.wake_parked();
        self.events.publish(&Event::Home { sequence });
        Ok(true)
    }

    /// Everything durable home.
    pub fn checkpoint_all(&self) -> Result<(), BlockError> {
        while self.checkpoint_once(self.area.bytes)? {}
        Ok(())
    }

    /// Writes and syncs a header.
    pub(super) fn write_header(&self, next: &afterimage_format::log::LogHeader) -> Result<(), BlockError> {
        let log = self.area.medium.as_ref();
        let mut written = header::write(log, next);
        if !self.mutated(Mutation::ReuseBeforeHeaderSync) {
            written = written.and_then(|()| log.sync());
        }
        written.map_err(|e| self.fail("writing the redo log's header".to_owned(), e))
    }

    /// Says in the header that everything is home. Call with an empty log and appends closed.
    pub(super) fn mark_clean(&self) -> Result<(), BlockError> {
        let mut checkpointing = lock(&self.checkpointing);
        let mut next = checkpointing.header;
        next.generation = (next.generation.get() + 1).into();
        next.state = STATE_CLEAN.into();
        self.write_header(&next)?;
        checkpointing.header = next;
        Ok(())
    }

    /// The durable records to take home, whole sets only, and where the log begins without them. No more at once than half
    /// of what the log takes: their newest versions are another index.
    fn durable_records(&self, log_bytes_max: u64) -> (Vec<Placed>, u64) {
        let (mut bound, from) = {
            let progress = lock(&self.progress);
            (progress.durable_position, progress.tail)
        };
        if self.mutated(Mutation::HomeBeforeDurable) {
            bound = lock(&self.append).head;
        }
        let records = lock(&self.records);
        let fits = |r: &&Placed| r.end() <= bound && r.end() - from <= log_bytes_max;
        let most = records_max(self.area.bytes) / 2;
        let mut count = records.iter().take(most).take_while(fits).count();
        // Where a set ends is where records may be cut: what is home is always a prefix that a crash may leave.
        while count > 0 && records[count - 1].more {
            count -= 1;
        }
        if count == 0 && records.front().is_some_and(|r| r.end() <= bound) {
            count = (records.iter().take_while(|r| r.more).count() + 1).min(records.len());
        }
        // Where nothing durable is left behind, the sealed rest of the page goes, too.
        let tail = records.get(count).map_or(bound, |next| next.position.min(bound));
        (records.iter().take(count).copied().collect(), tail)
    }

    fn newest_versions(&self, batch: &[Placed]) -> Vec<ExtentMap> {
        let mut overlay: Vec<ExtentMap> = self.homes.iter().map(|_| ExtentMap::default()).collect();
        let mut insert = |r: &Placed| {
            let source = match r.kind {
                RecordKind::Write => Source::Log(r.payload()),
                RecordKind::Discard => Source::Zero { unmap: true },
                RecordKind::Zero => Source::Zero { unmap: false },
                RecordKind::Incarnation => return,
            };
            let extent = Extent { sectors: r.sectors, source, sequence: r.sequence };
            overlay[usize::from(r.disk)].insert(r.sector, extent);
        };
        if self.mutated(Mutation::OldestVersion) {
            batch.iter().rev().for_each(&mut insert);
        } else {
            batch.iter().for_each(&mut insert);
        }
        overlay
    }

    fn drop_from_index(&self, batch: &[Placed], up_to: u64) {
        for record in batch.iter().filter(|r| r.kind != RecordKind::Incarnation) {
            self.index[usize::from(record.disk)].remove_up_to(record.sector, record.sectors, up_to);
        }
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
                        self.area.read(position + done * 512, target)?;
                        done += n;
                    }
                    if run.written >= pace.bytes_max {
                        home.sync()?;
                        run.written = 0;
                        pace.learn(self.clock.now().saturating_sub(started), self.window);
                        started = self.clock.now();
                    }
                    self.counters.home_written_bytes.fetch_add(extent.sectors * 512, Ordering::Relaxed);
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

    fn sync_homes(&self, overlay: &[ExtentMap]) -> Result<(), BlockError> {
        for (disk, map) in overlay.iter().enumerate().filter(|(_, map)| map.len() > 0) {
            tracing::trace!(disk, extents = map.len(), "syncing an image");
            self.homes[disk].sync().map_err(|e| self.fail(format!("syncing disk {disk}"), e))?;
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
pub(super) struct Pace {
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
