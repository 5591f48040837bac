//! One queue's way through the redo log.
//!
//! ```text
//! submit: write ─► staged in the batch ─┐            read ─► Reads: log part copied now, the rest ─► store lane
//! dispatch ─────────────────────────────┴─► append ─► completion (or, flushed, the window rule first)
//!                                             └ full or paused: kept, later writes wait as requests in `backlog`
//! ```
//!
//! A full log or a pause holds back writes only: reads of the same queue go on.
//!
//! A flush is asked about when completions are handed out, last of all, and not when it is submitted: the verdict is the
//! moment of the acknowledgement, and what a queue does in between (filling the page cache, reading) may take long.
//!
//! Guest memory may block whoever touches it for as long as its VMM likes: it is never touched under a lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, FlushKind, Geometry, Health, Lane, Operation, Request,
    SequenceNumber, Token, SECTOR_BYTES,
};
use afterimage_format::log::RecordKind;

use super::batch::{self, Answer, Batch};
use super::engine::Redo;
use super::log::Appended;
use super::mutation::Mutation;
use super::reads::{self, Reads};
use crate::sequence::LoggedDisk;
use crate::signal::LaneSignal;
use crate::window::Verdict;

/// The most memory that a lane takes beside its requests, in bytes: staging, scratch, parts of reads.
pub const LANE_BYTES_MAX: usize = batch::BYTES_MAX + reads::BYTES_MAX;

/// One disk of the group.
pub struct RedoDisk {
    redo: Arc<Redo>,
    disk: LoggedDisk,
    lower: Arc<dyn Disk>,
}

impl RedoDisk {
    /// The disk of that index; `lower` reads its image.
    pub fn new(redo: Arc<Redo>, disk: LoggedDisk, lower: Arc<dyn Disk>) -> Self {
        Self { redo, disk, lower }
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
        &self.redo.board.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let signal =
            self.redo.board.signals.register().map_err(|e| BlockError::io("creating an eventfd", e))?;
        Ok(Box::new(RedoLane {
            lower: self.lower.open_lane()?,
            redo: Arc::clone(&self.redo),
            disk: self.disk,
            signal,
            batch: Batch::default(),
            blocked: false,
            backlog: VecDeque::new(),
            held: Vec::new(),
            reads: Reads::new(Arc::clone(&self.redo), self.disk),
            done: Vec::new(),
            below: Vec::new(),
        }))
    }
}

/// A request that waits for a flush's condition.
struct Held {
    token: Token,
    kind: FlushKind,
    covers: SequenceNumber,
    /// It has been asked about, and has to wait.
    asked: bool,
}

struct RedoLane {
    lower: Box<dyn Lane>,
    redo: Arc<Redo>,
    disk: LoggedDisk,
    signal: Arc<LaneSignal>,
    batch: Batch,
    /// The batch is complete and waits for room or the end of a pause.
    blocked: bool,
    /// Requests behind a blocked batch, and how many sectors of each are staged already.
    backlog: VecDeque<(Request, u64)>,
    /// Flushes that have not been acknowledged.
    held: Vec<Held>,
    reads: Reads,
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
                (RecordKind::Write, self.redo.log.payload_bytes_max() as u64 / SECTOR_BYTES)
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
            if last && self.redo.mistake.is(Mutation::AckBeforeAppend) {
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
            let full = self.batch.len() >= self.redo.log.batch_bytes_max()
                || self.batch.entries.len() >= self.redo.log.batch_records_max();
            if full {
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
        match self.redo.log.append(self.disk, &mut self.batch) {
            Ok(Appended::In { first, crowded }) => {
                self.blocked = false;
                if crowded {
                    self.redo.going_home.request();
                }
                if self.redo.mistake.is(Mutation::DiscardEarly) {
                    self.discard_early();
                }
                let mut entries = std::mem::take(&mut self.batch.entries);
                for (entry, sequence) in entries.drain(..).zip(first.0..) {
                    match entry.answers {
                        Some(Answer { token, flushed: false }) => self.complete(token, Ok(())),
                        Some(Answer { token, flushed: true }) => {
                            let kind = FlushKind::Order;
                            self.held.push(Held {
                                token,
                                kind,
                                covers: SequenceNumber(sequence),
                                asked: false,
                            });
                        }
                        None => {}
                    }
                }
                self.batch.entries = entries;
                self.batch.clear();
            }
            Ok(Appended::Full) => {
                if !self.blocked {
                    self.redo.log.throttled.fetch_add(1, Ordering::Relaxed);
                }
                self.blocked = true;
                self.signal.parked.store(true, Ordering::SeqCst);
                self.redo.going_home.request();
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
            let result = match self.redo.syncer.ask(flush.kind, flush.covers) {
                Ok(Verdict::Complete) => Ok(()),
                Ok(Verdict::Hold) => {
                    if !std::mem::replace(&mut flush.asked, true) {
                        self.redo.syncer.held_flushes.fetch_add(1, Ordering::Relaxed);
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

    /// The mistake of that name.
    fn discard_early(&self) {
        for entry in self.batch.entries.iter().filter(|entry| entry.kind == RecordKind::Discard) {
            let home = self.redo.going_home.home(self.disk);
            let _ = home.zero_at(entry.sector * SECTOR_BYTES, entry.sectors * SECTOR_BYTES, true);
        }
    }
}

impl Lane for RedoLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        if let Err(e) = self.redo.board.health.admit(request.operation) {
            self.complete(request.token, Err(e));
            return;
        }
        match request.operation {
            Operation::Read => self.reads.take(request, &mut *self.lower, &mut self.done),
            Operation::Flush(kind) => {
                // Covers what has completed; that staged writes of this lane come in as well costs nothing.
                self.append();
                let covers = self.redo.board.sequence.acknowledged.get();
                self.held.push(Held { token: request.token, kind, covers, asked: false });
            }
            _ => self.write(request.into_request()),
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
            self.reads.part_done(part, &mut self.done);
        }
        self.below = below;
        if self.reads.has_waiting() {
            self.reads.go_on(&mut *self.lower, &mut self.done);
            self.lower.dispatch();
        }
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
        self.reads.go_on(&mut *self.lower, &mut self.done);
        self.dispatch();
        if self.waits() {
            // Before anything is looked at: who changes it afterwards rings.
            self.signal.parked.store(true, Ordering::SeqCst);
            self.signal.drain();
            self.retry();
        }
        // To be asked about, or answered, when completions are handed out.
        let ready = |flush: &Held| !flush.asked || !self.redo.syncer.holds(flush.kind, flush.covers);
        if !self.done.is_empty() || self.held.iter().any(ready) {
            return Ok(());
        }
        if !self.waits() {
            return self.lower.wait(also, timeout);
        }
        if self.redo.board.pass() {
            return Ok(());
        }
        let signal = Arc::clone(&self.signal);
        let mut fds = also.to_vec();
        fds.push(signal.fd());
        self.lower.wait(&fds, timeout)
    }
}
