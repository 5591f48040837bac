//! One queue's way through the redo log.
//!
//! ```text
//! submit: write ─► staged in the batch ─┐            read ─► piece by piece: log part copied now, the rest ─► store lane
//! dispatch ─────────────────────────────┴─► append ─► completion (or, flushed, the window rule first)
//!                                             └ full or paused: kept, later writes wait as requests in `backlog`
//! ```
//!
//! A full log or a pause holds back writes only: reads of the same queue go on.
//!
//! A flush is asked about when completions are handed out, last of all, and not when it is submitted: the verdict is the
//! moment of the acknowledgement, and what a queue does in between (filling the page cache, reading) may take long.
//!
//! A guest decides how scattered a range is and how much it reads at once, so a read becomes parts below only as long as
//! there are fewer than [`PARTS_MAX`] of the lane; the others take turns, a [`Step`] each, and none waits for the whole of
//! another. Guest memory may block whoever touches it for as long as its VMM likes: it is never touched under a lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, FlushKind, Geometry, Health, Lane, Operation, Request, Sector,
    SequenceNumber, Token, SECTOR_BYTES,
};
use afterimage_format::log::RecordKind;
use slab::Slab;

use super::batch::{self, Answer, Batch};
use super::engine::Redo;
use super::extents::Source;
use super::log::{Appended, RedoLog};
use super::mutation::Mutation;
use crate::sequence::LoggedDisk;
use crate::signal::LaneSignal;
use crate::window::Verdict;

/// Parts of reads that one lane has below before further reads wait. As many as the largest queue has requests: reads of
/// one part never wait.
const PARTS_MAX: usize = 1024;
/// What one step of a read may add to them, and how many entries of the index it looks at with the shard locked: who
/// appends waits that long.
const STEP_PARTS: usize = 64;
const STEP_EXTENTS: usize = 256;
/// What one step reads from the log: the lane's scratch memory.
const STEP_BYTES: usize = 256 << 10;
/// Steps between two chances to answer, as long as there is something to answer.
const TURN_STEPS: usize = 16;
/// What a request of the layer below takes there and here, in bytes, roughly, without its segments.
const PART_BYTES: usize = 768;

/// The most memory that a lane takes beside its requests, in bytes: staging, scratch, parts of reads.
pub const LANE_BYTES_MAX: usize = batch::BYTES_MAX + STEP_BYTES + (PARTS_MAX + STEP_PARTS) * PART_BYTES;

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
            reads: Slab::new(),
            parts: 0,
            waiting: VecDeque::new(),
            step: Step::default(),
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

/// A guest read on its way.
struct Reading {
    token: Token,
    /// Parts below.
    parts_left: usize,
    /// What nobody has looked at yet.
    rest: Option<Rest>,
    result: Result<(), BlockError>,
}

/// The end of a read's range.
struct Rest {
    next: u64,
    end: u64,
    whole: Admitted,
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
    reads: Slab<Reading>,
    /// Parts of all reads below.
    parts: usize,
    /// Reads with a rest, in the order of their turns.
    waiting: VecDeque<usize>,
    step: Step,
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

    fn read(&mut self, request: Admitted) {
        if self.redo.log.newest(self.disk).is_empty() {
            let (token, result) = (request.token, Ok(()));
            let read = self.reads.insert(Reading { token, parts_left: 1, rest: None, result });
            self.parts += 1;
            self.lower.take(request.with_token(Token(read as u64)));
            return;
        }
        let start = request.sector.0;
        let end = start + request.sectors;
        let (token, result) = (request.token, Ok(()));
        let rest = Some(Rest { next: start, end, whole: request });
        let read = self.reads.insert(Reading { token, parts_left: 0, rest, result });
        self.waiting.push_back(read);
        self.go_on_reading();
    }

    /// Gives waiting reads their turns while there is room for parts. Where it stops before that, there is something to
    /// answer, and the next [`Lane::reap`] goes on.
    fn go_on_reading(&mut self) {
        let mut steps = 0;
        while self.parts < PARTS_MAX && (steps < TURN_STEPS || self.done.is_empty()) {
            let Some(read) = self.waiting.pop_front() else { break };
            steps += 1;
            if self.read_on(read) {
                self.waiting.push_back(read);
            } else {
                self.finish_read(read);
            }
        }
    }

    /// One step of a read. Returns whether there is a rest.
    fn read_on(&mut self, read: usize) -> bool {
        let Some(Reading { rest: Some(rest), parts_left, result, .. }) = self.reads.get_mut(read) else {
            return false;
        };
        if result.is_ok() {
            *result = self.step.look(&self.redo.log, self.disk, rest);
        }
        if result.is_err() {
            // Also that of a part: the rest would change nothing.
            self.reads[read].rest = None;
            return false;
        }
        let mut from = 0;
        for (offset, len, source) in &self.step.copies {
            match source {
                Copied::Zeroes => rest.whole.buffers.fill_zero(*offset, *len),
                Copied::Log => {
                    rest.whole.buffers.copy_from(*offset, &self.step.scratch[from..from + len]);
                    from += len;
                }
            }
        }
        for (sector, sectors) in self.step.gaps.drain(..) {
            *parts_left += 1;
            self.parts += 1;
            self.lower.take(rest.whole.part(Token(read as u64), Sector(sector), sectors));
        }
        let more = rest.next < rest.end;
        if !more {
            self.reads[read].rest = None;
        }
        more
    }

    /// Completes a read of which nothing is left.
    fn finish_read(&mut self, read: usize) {
        if self.reads.get(read).is_some_and(|r| r.parts_left == 0 && r.rest.is_none()) {
            let reading = self.reads.remove(read);
            self.complete(reading.token, reading.result);
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

/// What a part of a read that is not below gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    Log,
    Zeroes,
}

/// One look into the index on behalf of a read. The memory is kept.
#[derive(Default)]
struct Step {
    /// What is not in the log: first sector and how many.
    gaps: Vec<(u64, u64)>,
    /// What is: offset in the read's memory and length in bytes; the bytes of `Log` are in `scratch`, one after another.
    copies: Vec<(usize, usize, Copied)>,
    scratch: Vec<u8>,
}

impl Step {
    /// Looks at the rest of a read, as far as a step goes, and moves its begin. What the log has not is newest at home, and
    /// stays so for this read: a version that comes later belongs to a write that is in flight together with it.
    fn look(&mut self, log: &RedoLog, disk: LoggedDisk, rest: &mut Rest) -> Result<(), BlockError> {
        self.gaps.clear();
        self.copies.clear();
        let mut extents_left = STEP_EXTENTS;
        let mut used = 0;
        let index = log.newest(disk);
        for piece in index.pieces(rest.next, rest.end - rest.next) {
            // Held while the log is read: who brings the version home takes the entry away, under the same lock, before
            // it gives the space up.
            let map = index.read(&piece);
            for (sector, extent) in map.overlapping(piece.start, piece.sectors) {
                self.gap(rest.next, sector);
                rest.next = sector;
                if extents_left == 0 || self.gaps.len() >= STEP_PARTS || used == STEP_BYTES {
                    return Ok(());
                }
                extents_left -= 1;
                let offset = ((sector - rest.whole.sector.0) * SECTOR_BYTES) as usize;
                let mut len = (extent.sectors * SECTOR_BYTES) as usize;
                let copied = match extent.source {
                    Source::Zero { .. } => Copied::Zeroes,
                    Source::Log(position) => {
                        len = len.min(STEP_BYTES - used);
                        let end = used + len;
                        if self.scratch.len() < end {
                            self.scratch.resize(end.next_power_of_two(), 0);
                        }
                        log.area
                            .read(position, &mut self.scratch[used..end])
                            .map_err(|e| BlockError::io("reading the redo log", e))?;
                        used = end;
                        Copied::Log
                    }
                };
                self.copy(offset, len, copied);
                rest.next = sector + len as u64 / SECTOR_BYTES;
                if len as u64 / SECTOR_BYTES < extent.sectors {
                    return Ok(());
                }
            }
            self.gap(rest.next, piece.start + piece.sectors);
            rest.next = piece.start + piece.sectors;
        }
        Ok(())
    }

    fn gap(&mut self, from: u64, to: u64) {
        match self.gaps.last_mut() {
            _ if from == to => {}
            Some((start, sectors)) if *start + *sectors == from => *sectors += to - from,
            _ => self.gaps.push((from, to - from)),
        }
    }

    fn copy(&mut self, offset: usize, len: usize, source: Copied) {
        match self.copies.last_mut() {
            Some((o, l, s)) if *s == source && *o + *l == offset => *l += len,
            _ => self.copies.push((offset, len, source)),
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
            Operation::Read => self.read(request),
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
            let read = part.token.0 as usize;
            let reading = self.reads.get_mut(read).expect("the layer below answers what it was asked, once");
            self.parts -= 1;
            reading.parts_left -= 1;
            if reading.result.is_ok() {
                reading.result = part.result;
            }
            self.finish_read(read);
        }
        self.below = below;
        if !self.waiting.is_empty() {
            self.go_on_reading();
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
        self.go_on_reading();
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
