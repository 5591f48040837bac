//! One queue's way through the redo log.
//!
//! ```text
//! submit: write ─► staged in the batch ─┐            read ─► index: log part copied now, the rest ─► store lane
//! dispatch ─────────────────────────────┴─► append ─► completion (or, flushed, the window rule first)
//!                                             └ full or paused: kept, later writes wait as requests in `backlog`
//! ```
//!
//! A full log or a pause holds back writes only: reads of the same queue go on.
//!
//! A flush is asked about when completions are handed out, last of all, and not when it is submitted: the verdict is the
//! moment of the acknowledgement, and what a queue does in between (filling the page cache, reading) may take long.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    admit, BlockError, Completion, Disk, FlushKind, Geometry, Health, Lane, Operation, Request, Sector,
    Token, SECTOR_BYTES,
};
use afterimage_format::log::RecordKind;

use super::append::Appended;
use super::batch::{Answer, Batch};
use super::core::Core;
use super::extents::Source;
use super::mutation::Mutation;
use super::window::Verdict;
use crate::signal::LaneSignal;
use crate::slots::Slots;

/// One disk of the group.
pub struct RedoDisk {
    core: Arc<Core>,
    disk: usize,
    lower: Arc<dyn Disk>,
}

impl RedoDisk {
    /// The disk of that index; `lower` reads its image.
    pub fn new(core: Arc<Core>, disk: usize, lower: Arc<dyn Disk>) -> Self {
        Self { core, disk, lower }
    }
}

impl Disk for RedoDisk {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn serial(&self) -> &str {
        self.lower.serial()
    }

    fn health(&self) -> &Health {
        self.core.health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let signal = self.core.signals.register().map_err(|e| BlockError::io("creating an eventfd", e))?;
        Ok(Box::new(RedoLane {
            lower: self.lower.open_lane()?,
            geometry: self.lower.geometry(),
            core: Arc::clone(&self.core),
            disk: self.disk,
            signal,
            batch: Batch::default(),
            blocked: false,
            backlog: VecDeque::new(),
            held: Vec::new(),
            reads: Slots::default(),
            scratch: Vec::new(),
            done: Vec::new(),
            below: Vec::new(),
        }))
    }
}

/// A request that waits for a flush's condition.
struct Held {
    token: Token,
    kind: FlushKind,
    covers: u64,
    /// It has been asked about, and has to wait.
    asked: bool,
}

/// A guest read of which parts are read from the image.
struct Reading {
    token: Token,
    parts_left: usize,
    result: Result<(), BlockError>,
}

struct RedoLane {
    lower: Box<dyn Lane>,
    geometry: Geometry,
    core: Arc<Core>,
    disk: usize,
    signal: Arc<LaneSignal>,
    batch: Batch,
    /// The batch is complete and waits for room or the end of a pause.
    blocked: bool,
    /// Requests behind a blocked batch, and how many sectors of each are staged already.
    backlog: VecDeque<(Request, u64)>,
    /// Flushes that have not been acknowledged.
    held: Vec<Held>,
    reads: Slots<Reading>,
    scratch: Vec<u8>,
    done: Vec<Completion>,
    below: Vec<Completion>,
}

impl RedoLane {
    fn complete(&mut self, token: Token, result: Result<(), BlockError>) {
        self.done.push(Completion { token, result });
    }

    fn write(&mut self, request: Request) {
        if request.sectors == 0 {
            self.complete(request.token, Ok(()));
        } else if self.blocked || !self.backlog.is_empty() {
            self.backlog.push_back((request, 0));
        } else if let Some(rest) = self.stage(request, 0) {
            self.backlog.push_front(rest);
        }
    }

    /// Stages a request from a sector on, in parts where it is larger than a record may be. Gives the rest back where
    /// the log takes no more.
    fn stage(&mut self, request: Request, mut staged: u64) -> Option<(Request, u64)> {
        let (kind, part_max) = match request.operation {
            Operation::Write { .. } => {
                (RecordKind::Write, self.core.payload_bytes_max() as u64 / SECTOR_BYTES)
            }
            Operation::WriteZeroes { unmap: false, .. } => (RecordKind::Zero, u64::MAX),
            _ => (RecordKind::Discard, u64::MAX),
        };
        while staged < request.sectors {
            if self.blocked {
                return Some((request, staged));
            }
            let sectors = (request.sectors - staged).min(part_max);
            let last = staged + sectors == request.sectors;
            let mut answers =
                last.then_some(Answer { token: request.token, flushed: request.operation.is_flushed() });
            if last && self.core.mutated(Mutation::AckBeforeAppend) {
                self.complete(request.token, Ok(()));
                answers = None;
            }
            let range = match kind {
                RecordKind::Write => {
                    (staged * SECTOR_BYTES) as usize..((staged + sectors) * SECTOR_BYTES) as usize
                }
                _ => 0..0,
            };
            self.batch.push(kind, request.sector.0 + staged, sectors, &request.buffers, range, answers);
            staged += sectors;
            if self.batch.len() >= self.core.batch_bytes_max() {
                self.append();
            }
        }
        None
    }

    /// Puts the batch into the log, if the log takes it.
    fn append(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        match self.core.append(self.disk, &mut self.batch) {
            Ok(Appended::From(first)) => {
                self.blocked = false;
                let mut entries = std::mem::take(&mut self.batch.entries);
                for (entry, sequence) in entries.drain(..).zip(first..) {
                    match entry.answers {
                        Some(Answer { token, flushed: false }) => self.complete(token, Ok(())),
                        Some(Answer { token, flushed: true }) => {
                            let kind = FlushKind::Order;
                            self.held.push(Held { token, kind, covers: sequence, asked: false });
                        }
                        None => {}
                    }
                }
                self.batch.entries = entries;
                self.batch.clear();
            }
            Ok(Appended::Full) => {
                if !self.blocked {
                    self.core.counters.throttled.fetch_add(1, Ordering::Relaxed);
                }
                self.blocked = true;
                self.signal.parked.store(true, Ordering::SeqCst);
                self.core.request_checkpoint();
            }
            Ok(Appended::Paused) => {
                self.blocked = true;
                self.signal.parked.store(true, Ordering::SeqCst);
            }
            Err(e) => self.fail_writes(&e),
        }
    }

    /// The group has failed: nothing that waits will get into the log.
    fn fail_writes(&mut self, error: &BlockError) {
        self.blocked = false;
        let mut entries = std::mem::take(&mut self.batch.entries);
        for entry in entries.drain(..) {
            if let Some(answer) = entry.answers {
                self.complete(answer.token, Err(error.clone()));
            }
        }
        self.batch.clear();
        while let Some((request, _)) = self.backlog.pop_front() {
            self.complete(request.token, Err(error.clone()));
        }
    }

    /// Acknowledges the flushes that can be.
    fn ask(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|flush| {
            let verdict = match flush.kind {
                FlushKind::Order => self.core.ask_order(flush.covers),
                FlushKind::Durable => self.core.ask_durable(flush.covers),
            };
            let result = match verdict {
                Ok(Verdict::Complete) => Ok(()),
                Ok(Verdict::Hold) => {
                    if !std::mem::replace(&mut flush.asked, true) {
                        self.core.counters.held_flushes.fetch_add(1, Ordering::Relaxed);
                    }
                    return true;
                }
                Err(error) => Err(error),
            };
            self.done.push(Completion { token: flush.token, result });
            false
        });
        self.held = held;
    }

    fn waits(&self) -> bool {
        self.blocked || !self.backlog.is_empty() || !self.held.is_empty()
    }

    /// Looks again at the writes that wait.
    fn retry(&mut self) {
        if self.blocked {
            self.append();
        }
        while !self.blocked {
            let Some((request, staged)) = self.backlog.pop_front() else {
                // Behind a wait nobody calls dispatch for these.
                self.append();
                break;
            };
            if let Some(rest) = self.stage(request, staged) {
                self.backlog.push_front(rest);
            }
        }
    }

    fn read(&mut self, mut request: Request) {
        if self.core.index[self.disk].is_empty() {
            request.token =
                self.reads.insert(Reading { token: request.token, parts_left: 1, result: Ok(()) });
            self.lower.submit(request);
            return;
        }
        match self.read_log_parts(&request) {
            Err(e) => self.complete(request.token, Err(e)),
            Ok(gaps) if gaps.is_empty() => self.complete(request.token, Ok(())),
            Ok(gaps) => {
                let reading = Reading { token: request.token, parts_left: gaps.len(), result: Ok(()) };
                let token = self.reads.insert(reading);
                for (sector, sectors) in gaps {
                    let offset = ((sector - request.sector.0) * SECTOR_BYTES) as usize;
                    self.lower.submit(Request {
                        token,
                        operation: Operation::Read,
                        sector: Sector(sector),
                        sectors,
                        buffers: request.buffers.slice(offset, (sectors * SECTOR_BYTES) as usize),
                    });
                }
            }
        }
    }

    /// Copies what the log has of a range, and says what it has not: those sectors are newest at home. They stay so
    /// for this read: a version that comes later belongs to a write that is in flight together with it.
    fn read_log_parts(&mut self, request: &Request) -> Result<Vec<(u64, u64)>, BlockError> {
        let core = &self.core;
        let index = &core.index[self.disk];
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        let mut gap = |from: u64, to: u64| match gaps.last_mut() {
            _ if from == to => {}
            Some((start, sectors)) if *start + *sectors == from => *sectors += to - from,
            _ => gaps.push((from, to - from)),
        };
        for piece in index.pieces(request.sector.0, request.sectors) {
            // Held while the log is read: a checkpoint takes the entry away, under the same lock, before it gives the
            // space up.
            let map = index.read(&piece);
            let mut at = piece.start;
            for (sector, extent) in map.overlapping(piece.start, piece.sectors) {
                gap(at, sector);
                at = sector + extent.sectors;
                let offset = ((sector - request.sector.0) * SECTOR_BYTES) as usize;
                let len = (extent.sectors * SECTOR_BYTES) as usize;
                match extent.source {
                    Source::Zero { .. } => request.buffers.fill_zero(offset, len),
                    Source::Log(position) => {
                        if self.scratch.len() < len {
                            self.scratch.resize(len, 0);
                        }
                        core.area
                            .read(position, &mut self.scratch[..len])
                            .map_err(|e| BlockError::io("reading the redo log", e))?;
                        request.buffers.copy_from(offset, &self.scratch[..len]);
                    }
                }
            }
            gap(at, piece.start + piece.sectors);
        }
        Ok(gaps)
    }
}

impl Lane for RedoLane {
    fn submit(&mut self, request: Request) {
        if let Err(e) = admit(&request, &self.geometry, &self.core.health) {
            self.complete(request.token, Err(e));
            return;
        }
        match request.operation {
            Operation::Read => self.read(request),
            Operation::Flush(kind) => {
                // Covers what has completed; that staged writes of this lane come in as well costs nothing.
                self.append();
                let covers = self.core.acknowledged.load(Ordering::SeqCst);
                self.held.push(Held { token: request.token, kind, covers, asked: false });
            }
            _ => self.write(request),
        }
    }

    fn dispatch(&mut self) {
        if !self.blocked {
            self.append();
        }
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if self.blocked || !self.backlog.is_empty() {
            self.retry();
        }
        self.lower.reap(&mut self.below);
        let mut below = std::mem::take(&mut self.below);
        for part in below.drain(..) {
            let reading =
                self.reads.get_mut(part.token).expect("the layer below answers what it was asked, once");
            reading.parts_left -= 1;
            if reading.result.is_ok() {
                reading.result = part.result;
            }
            if reading.parts_left == 0 {
                if let Some(reading) = self.reads.remove(part.token) {
                    self.complete(reading.token, reading.result);
                }
            }
        }
        self.below = below;
        self.ask();
        if !self.waits() {
            self.signal.parked.store(false, Ordering::SeqCst);
        }
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        let staged = self.batch.entries.iter().filter(|e| e.answers.is_some()).count();
        self.done.len() + self.reads.len() + self.held.len() + staged + self.backlog.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.dispatch();
        if self.waits() {
            // Before anything is looked at: who changes it afterwards rings.
            self.signal.parked.store(true, Ordering::SeqCst);
            self.signal.drain();
            self.retry();
        }
        // To be asked about, or answered, when completions are handed out.
        let ready = |flush: &Held| !flush.asked || !self.core.holds(flush.kind, flush.covers);
        if !self.done.is_empty() || self.held.iter().any(ready) {
            return Ok(());
        }
        if !self.waits() {
            return self.lower.wait(also, timeout);
        }
        let signal = Arc::clone(&self.signal);
        let mut fds = also.to_vec();
        fds.push(signal.fd());
        self.lower.wait(&fds, timeout)
    }
}
