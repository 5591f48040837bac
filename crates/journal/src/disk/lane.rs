//! One queue's way through the retained journals.
//!
//! ```text
//! submit ─► touches nothing of interest? ─► below, as it is
//!        └► piece by piece, under the disk's lock: parts ─► done at once (absorbed, served from the arena)
//!                                                       └► below ─► completed: under the lock again, then answered
//! ```
//!
//! What a lane has handed out is posted when it is called again: until then the next daemon may be asked for it once more, and no commit may
//! count on the order.
//!
//! A commit under `power-window` makes a set of home writes due. The queue that made it writes it, without the lock, and goes on then:
//! the others go on meanwhile, but for what has to wait for the set (`versions::way`), which is tried again.
//!
//! Guest memory may block whoever touches it for as long as its VMM likes, and everybody needs the lock: what a change holds
//! is copied before the lock is taken, and what a read gets after it was given up. A guest decides how large a request is,
//! so both go by pieces, and neither the copies nor the parts below of one lane exceed a bound: the rest waits its turn.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Buffers, Completion, FlushKind, Geometry, Health, Lane, Operation, Request, Sector,
    Token, SECTOR_BYTES,
};
use slab::Slab;

use super::lend::{self, Lender, Lent};
use super::shared::Shared;
use crate::error::JournalError;
use crate::ext4::{Change, FileSystems, Part, Ranges, ReadPart};
use crate::versions::Track;

/// How often a lane looks whether what it holds back may go on.
const PAUSE_LOOK: Duration = Duration::from_millis(2);
/// The piece of a change that is copied at once. Most guests send nothing larger.
const CHANGE_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;
/// The piece of a read that is served under the lock at once.
const READ_SECTORS: u64 = (256 << 10) / SECTOR_BYTES;
/// Parts below from which on reads and changes wait.
const PARTS_MAX: usize = 1024;
/// What a part takes here and below, in bytes, roughly.
const PART_BYTES: usize = 768;

/// The most memory that a lane takes beside its requests, in bytes. A change has at most two parts a block that was lent.
pub const LANE_BYTES_MAX: usize = lend::BYTES_MAX
    + (READ_SECTORS * SECTOR_BYTES) as usize
    + (PARTS_MAX + READ_SECTORS as usize + 2 * lend::BYTES_MAX / 4096) * PART_BYTES;

/// A guest's request that is not passed as it is.
struct Whole {
    request: Admitted,
    /// The first sector that was not looked at.
    next: u64,
    pieces_left: usize,
    /// It waits for its turn, by its index.
    waits: bool,
    /// What of it has landed: to be posted with it.
    landed: Vec<Track>,
    result: Result<(), BlockError>,
}

impl Whole {
    fn end(&self) -> u64 {
        self.request.sector.0 + self.request.sectors
    }

    /// Whether no piece is left to begin.
    fn is_split(&self) -> bool {
        self.next == self.end() || self.result.is_err()
    }
}

/// A piece of a request, of which parts are below.
struct Piece {
    whole: usize,
    parts_left: usize,
    lent: Option<Lent>,
}

/// What is below.
enum Below {
    /// A request as it came.
    Whole(Token),
    /// A part of a piece.
    Part { piece: usize, track: Option<Track> },
}

pub(super) struct RetainLane {
    lower: Box<dyn Lane>,
    health: Health,
    shared: Arc<Shared>,
    ranges: Arc<Ranges>,
    version: u64,
    wholes: Slab<Whole>,
    pieces: Slab<Piece>,
    below: Slab<Below>,
    /// Requests below as they came.
    passed: usize,
    lender: Lender,
    /// A change that waits for the end of a pause, for memory, for room for parts, or for writes that are below, and the writes behind it.
    stuck: Option<usize>,
    backlog: VecDeque<Admitted>,
    /// Reads of which a piece is left, in the order of their turns.
    reads: VecDeque<usize>,
    /// Parts that have completed below, and whose end leads to a look at the disk, for which it may have to wait.
    late: VecDeque<(usize, Track, Result<(), BlockError>)>,
    scratch: Option<Buffers>,
    parts: Vec<Part>,
    read_parts: Vec<ReadPart>,
    done: Vec<Completion>,
    /// What has landed of `done`, and of what was handed out and may not be posted yet.
    landed: Vec<Track>,
    unposted: Vec<Track>,
    reaped: Vec<Completion>,
}

impl RetainLane {
    pub(super) fn new(lower: Box<dyn Lane>, health: Health, shared: Arc<Shared>) -> Self {
        Self {
            lower,
            health,
            ranges: Arc::default(),
            version: 0,
            shared,
            wholes: Slab::new(),
            pieces: Slab::new(),
            below: Slab::new(),
            passed: 0,
            lender: Lender::default(),
            stuck: None,
            backlog: VecDeque::new(),
            reads: VecDeque::new(),
            late: VecDeque::new(),
            scratch: None,
            parts: Vec::new(),
            read_parts: Vec::new(),
            done: Vec::new(),
            landed: Vec::new(),
            unposted: Vec::new(),
            reaped: Vec::new(),
        }
    }

    fn refresh(&mut self) {
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.version {
            self.ranges = self.shared.ranges();
            self.version = version;
        }
    }

    fn hand_down(&mut self, below: Below, request: Admitted) {
        let token = Token(self.below.insert(below) as u64);
        self.lower.take(request.with_token(token));
    }

    fn pass(&mut self, request: Admitted) {
        self.passed += 1;
        self.hand_down(Below::Whole(request.token), request);
    }

    fn whole(&mut self, request: Admitted) -> usize {
        let next = request.sector.0;
        self.wholes.insert(Whole {
            request,
            next,
            pieces_left: 0,
            waits: false,
            landed: Vec::new(),
            result: Ok(()),
        })
    }

    /// Answers a request of which nothing is left.
    fn end_if_over(&mut self, whole: usize) {
        let over = |w: &mut Whole| w.is_split() && w.pieces_left == 0 && !w.waits;
        if self.wholes.get_mut(whole).is_some_and(over) {
            if let Some(Whole { request, landed, result, .. }) = self.wholes.try_remove(whole) {
                self.landed.extend(landed);
                self.done.push(Completion { token: request.token, result });
            }
        }
    }

    /// What was handed out is posted.
    fn post(&mut self) {
        if !self.unposted.is_empty() {
            self.shared.posted(self.unposted.drain(..));
        }
    }

    /// Something of a request has landed. Where the rest of it waits, perhaps for whoever would wait for this, nobody waits for it.
    fn has_landed(&mut self, whole: usize, track: Track) {
        match self.wholes.get_mut(whole).filter(|whole| !whole.waits) {
            Some(whole) => whole.landed.push(track),
            None => self.shared.posted([track]),
        }
    }

    /// Gives waiting reads their turns, a piece each, while there is room for parts.
    fn go_on_reading(&mut self) {
        while self.below.len() < PARTS_MAX {
            let Some(index) = self.reads.pop_front() else { break };
            let more = self.read_piece(index);
            if let Some(whole) = self.wholes.get_mut(index) {
                whole.waits = more;
            }
            if more {
                self.reads.push_back(index);
            } else {
                self.end_if_over(index);
            }
        }
    }

    /// The next piece of a read. Returns whether there is another one.
    fn read_piece(&mut self, index: usize) -> bool {
        let Some(whole) = self.wholes.get_mut(index).filter(|w| w.result.is_ok()) else { return false };
        let (from, start, end) = (whole.next, whole.request.sector.0, whole.end());
        let to = (from + READ_SECTORS).min(end);
        let scratch =
            self.scratch.get_or_insert_with(|| Buffers::allocate((READ_SECTORS * SECTOR_BYTES) as usize));
        let mut parts = std::mem::take(&mut self.read_parts);
        parts.clear();
        whole.result = self.shared.lock().read(Sector(from), to - from, scratch, &mut parts);
        whole.next = to;
        let failed = whole.result.is_err();
        let below = parts.iter().filter(|p| matches!(p, ReadPart::Below { .. })).count();
        let buffers = whole.request.buffers.share();
        let mut piece = None;
        if !failed && below > 0 {
            whole.pieces_left += 1;
            piece = Some(self.pieces.insert(Piece { whole: index, parts_left: below, lent: None }));
        }
        let bytes = |sectors: u64| (sectors * SECTOR_BYTES) as usize;
        let served = |low: u64, high: u64| {
            scratch.copy_between(bytes(low - from), &buffers, bytes(low - start), bytes(high - low));
        };
        let mut at = from;
        let mut requests = Vec::new();
        for part in parts.iter().filter(|_| !failed) {
            let ReadPart::Below { sector, sectors } = *part else { continue };
            served(at, sector.0);
            at = sector.0 + sectors;
            requests.push(whole.request.part(Token(0), sector, sectors));
        }
        if !failed {
            served(at, to);
        }
        self.read_parts = parts;
        for request in requests {
            let piece = piece.expect("a part below is a part of a piece");
            self.hand_down(Below::Part { piece, track: None }, request);
        }
        !failed && to < end
    }

    /// Works a change off piece by piece. `false` where it has to wait: for the end of a pause, for memory, for room for parts, or, if it
    /// is a commit, for writes of any lane that are below and wait for nobody.
    fn change(&mut self, index: usize) -> bool {
        let mut parts = std::mem::take(&mut self.parts);
        let mut goes_on = true;
        while goes_on && self.wholes.get_mut(index).is_some_and(|w| !w.is_split()) {
            parts.clear();
            goes_on = self.below.len() < PARTS_MAX && self.change_piece(index, &mut parts);
        }
        self.parts = parts;
        if let Some(whole) = self.wholes.get_mut(index) {
            whole.waits = !goes_on;
            if whole.waits && !whole.landed.is_empty() {
                self.shared.posted(whole.landed.drain(..));
            }
        }
        self.end_if_over(index);
        goes_on
    }

    /// The next piece of a change, as far as it can be taken. `false` where the rest has to wait.
    fn change_piece(&mut self, index: usize, parts: &mut Vec<Part>) -> bool {
        let Some(whole) = self.wholes.get_mut(index) else { return true };
        let (from, end) = (whole.next, whole.end());
        let piece_end = end.min(from + CHANGE_SECTORS);
        let mut lent = None;
        if matches!(whole.request.operation, Operation::Write { .. }) {
            let mut systems = self.shared.lock();
            // Looked at again under the lock: what is made complete under it must stay so.
            if self.shared.paused.load(Ordering::SeqCst) {
                return false;
            }
            // Most writes need no look, however large they are. Where one does, it is looked at piece by piece: looking at all of
            // the rest again for each would take the square of its length.
            let all = (from == whole.request.sector.0).then_some(end);
            for to in all.into_iter().chain([piece_end]) {
                if systems.submit_unread(Sector(from), to - from, parts) {
                    self.shared.publish(&systems);
                    drop(systems);
                    self.hand_down_parts(index, to, Ok(()), parts, None);
                    return true;
                }
            }
            drop(systems);
            let bytes = ((piece_end - from) * SECTOR_BYTES) as usize;
            let Some(piece) = self.lender.lend(bytes) else { return false };
            let offset = ((from - whole.request.sector.0) * SECTOR_BYTES) as usize;
            whole.request.buffers.copy_between(offset, &piece, 0, bytes);
            lent = Some(piece);
        }
        let to = if lent.is_some() { piece_end } else { end };
        // What waited for it may go on at once.
        let wrote_set;
        let result = {
            let mut systems = self.shared.lock();
            if self.shared.paused.load(Ordering::SeqCst) {
                drop(systems);
                lent.into_iter().for_each(|piece| self.lender.take_back(piece));
                return false;
            }
            let change = lent.as_ref().map_or(Change::Clear, |piece| Change::Write(piece));
            let taken = systems.submit(change, Sector(from), to - from, parts);
            wrote_set = systems.is_due();
            let home = self.shared.write_sets(&mut systems).map_err(JournalError::into_block);
            self.shared.publish(&systems);
            taken.and_then(|taken| home.map(|()| taken))
        };
        let taken = result.as_ref().map_or(to, |sectors| from + sectors);
        self.hand_down_parts(index, taken, result.map(drop), parts, lent);
        taken == to || wrote_set
    }

    /// What is left of the piece of a change that ends at `to`.
    fn hand_down_parts(
        &mut self,
        index: usize,
        to: u64,
        result: Result<(), BlockError>,
        parts: &mut Vec<Part>,
        lent: Option<Lent>,
    ) {
        let Some(whole) = self.wholes.get_mut(index) else { return };
        let from = std::mem::replace(&mut whole.next, to);
        whole.result = result;
        let (operation, token) = (whole.request.operation, whole.request.token);
        let is_done = |part: &Part| matches!(part, Part::Done | Part::Elided(_));
        whole.landed.extend(parts.iter().filter_map(|part| match part {
            Part::Elided(track) => Some(*track),
            _ => None,
        }));
        let absorbed = parts.iter().any(is_done);
        // What was absorbed is in the arena; where its transaction went into a log, that must be flushed, too.
        let flush = absorbed && operation.is_flushed();
        let left = parts.iter().filter(|part| !is_done(part)).count() + usize::from(flush);
        if left == 0 {
            lent.into_iter().for_each(|piece| self.lender.take_back(piece));
            return;
        }
        whole.pieces_left += 1;
        let mut requests = Vec::with_capacity(left);
        for part in parts.drain(..) {
            match part {
                Part::Done | Part::Elided(_) => {}
                Part::Durable => requests.push((Ok(Admitted::flush(token, FlushKind::Durable)), None)),
                Part::Below { sector, sectors, copy: None, track } => {
                    let part = whole.request.part(token, sector, sectors);
                    let part = match &lent {
                        Some(lent) => {
                            let offset = ((sector.0 - from) * SECTOR_BYTES) as usize;
                            part.with_buffers(lent.slice(offset, (sectors * SECTOR_BYTES) as usize))
                        }
                        None => part,
                    };
                    requests.push((Ok(part), track));
                }
                // A request of our own, to where a guest says that its journal is.
                Part::Below { sector, sectors, copy: Some(buffers), track } => {
                    requests.push((Err(Request { token, operation, sector, sectors, buffers }), track));
                }
            }
        }
        if flush {
            requests.push((Ok(Admitted::flush(token, FlushKind::Order)), None));
        }
        let piece = self.pieces.insert(Piece { whole: index, parts_left: left, lent });
        for (request, track) in requests {
            let below = Below::Part { piece, track };
            match request {
                Ok(part) => self.hand_down(below, part),
                Err(own) => {
                    let token = Token(self.below.insert(below) as u64);
                    self.lower.submit(Request { token, ..own });
                }
            }
        }
    }

    fn serve(&mut self, request: Admitted) {
        self.refresh();
        if request.operation == Operation::Read
            && self.ranges.touch_superblock(request.sector, request.sectors)
        {
            self.shared.lock().superblock_read(request.sector, request.sectors);
        }
        match request.operation {
            Operation::Read if self.ranges.touch_area(request.sector, request.sectors) => {
                let index = self.whole(request);
                if let Some(whole) = self.wholes.get_mut(index) {
                    whole.waits = true;
                }
                self.reads.push_back(index);
                self.go_on_reading();
            }
            Operation::Flush(_) if self.ranges.flushes => {
                let mut systems = self.shared.lock_idle();
                if let Err(error) = systems.flushes() {
                    systems.tell(&error, "what a guest made could not be looked at");
                }
                self.shared.publish(&systems);
                drop(systems);
                self.pass(request);
            }
            Operation::Read | Operation::Flush(_) => self.pass(request),
            _ if request.sectors > 0 && self.ranges.touch_write(request.sector, request.sectors) => {
                let index = self.whole(request);
                if !self.change(index) {
                    self.stuck = Some(index);
                }
            }
            _ => self.pass(request),
        }
    }

    fn retry(&mut self) {
        while !self.shared.paused.load(Ordering::SeqCst) {
            if let Some(index) = self.stuck {
                if !self.change(index) {
                    return;
                }
                self.stuck = None;
            }
            let Some(request) = self.backlog.pop_front() else { return };
            self.serve(request);
        }
    }

    /// Goes on with whatever waits here. May take long: it waits for sets, and writes some.
    fn go_on(&mut self) {
        self.end_late();
        self.retry();
        self.go_on_reading();
        self.lower.dispatch();
    }

    /// Whether writes wait here.
    fn holds_writes(&self) -> bool {
        self.stuck.is_some() || !self.backlog.is_empty()
    }

    /// A part below was answered. Neither waits nor reads: a flush may have been answered with it.
    fn answered(&mut self, piece: usize, track: Option<Track>, mut result: Result<(), BlockError>) {
        if let Some(track) = track {
            let mut systems = self.shared.lock();
            if systems.completion_looks(track) {
                drop(systems);
                self.late.push_back((piece, track, result));
                return;
            }
            result = self.look(&mut systems, track, result);
            drop(systems);
            self.piece_has_landed(piece, track);
        }
        self.part_is_over(piece, result);
    }

    /// Ends the parts that came late.
    fn end_late(&mut self) {
        while let Some((piece, track, result)) = self.late.pop_front() {
            let result = {
                let mut systems = self.shared.lock();
                self.shared.idle.wait_while(&mut systems, |systems| systems.completion_waits(track));
                self.look(&mut systems, track, result)
            };
            self.piece_has_landed(piece, track);
            let whole = self.pieces.get(piece).and_then(|piece| self.wholes.get(piece.whole));
            if result.is_ok() && whole.is_some_and(|whole| whole.request.operation.is_flushed()) {
                // It completed as if flushed before all this: what the window allowed then it may not allow any more.
                let again = Admitted::flush(Token(0), FlushKind::Order);
                self.hand_down(Below::Part { piece, track: None }, again);
            } else {
                self.part_is_over(piece, result);
            }
        }
    }

    /// Looks at what a write that has completed has changed.
    fn look(
        &self,
        systems: &mut FileSystems,
        track: Track,
        result: Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let looked = systems.completed(track, result.is_ok()).map_err(|e| {
            systems.tell(&e, "a write completed, but what it changed could not be looked at");
            BlockError::Corrupt(e.to_string().into())
        });
        self.shared.publish(systems);
        self.shared.landed.notify_all();
        result.and(looked)
    }

    fn piece_has_landed(&mut self, piece: usize, track: Track) {
        let whole = self.pieces.get(piece).map(|piece| piece.whole);
        self.has_landed(whole.unwrap_or(usize::MAX), track);
    }

    fn part_is_over(&mut self, piece: usize, result: Result<(), BlockError>) {
        let Some(entry) = self.pieces.get_mut(piece) else { return };
        entry.parts_left -= 1;
        let (index, over) = (entry.whole, entry.parts_left == 0);
        let lent = if over { self.pieces.try_remove(piece).and_then(|piece| piece.lent) } else { None };
        lent.into_iter().for_each(|piece| self.lender.take_back(piece));
        let Some(whole) = self.wholes.get_mut(index) else { return };
        whole.pieces_left -= usize::from(over);
        if whole.result.is_ok() {
            whole.result = result;
        }
        self.end_if_over(index);
    }
}

impl Drop for RetainLane {
    /// What is below is waited for, as the contract of lanes has it, and what it changed is looked at: the other lanes must not
    /// believe for ever that it is still under way.
    fn drop(&mut self) {
        self.post();
        self.backlog.clear();
        self.stuck = None;
        self.reads.clear();
        let mut dropped = Vec::new();
        while !self.below.is_empty() || !self.late.is_empty() {
            self.reap(&mut dropped);
            let waits = !self.below.is_empty() && self.late.is_empty();
            if waits && self.lower.wait(&[], Some(PAUSE_LOOK)).is_err() {
                break;
            }
        }
        let wholes = self.wholes.drain().flat_map(|whole| whole.landed);
        self.shared.posted(self.landed.drain(..).chain(self.unposted.drain(..)).chain(wholes));
    }
}

impl Lane for RetainLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.post();
        if let Err(e) = self.health.admit(request.operation) {
            self.done.push(Completion { token: request.token, result: Err(e) });
            return;
        }
        let held = request.operation.is_write()
            && (self.holds_writes() || self.shared.paused.load(Ordering::SeqCst));
        if held {
            self.backlog.push_back(request);
        } else {
            self.serve(request);
        }
    }

    fn dispatch(&mut self) {
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.post();
        self.go_on();
        let mut reaped = std::mem::take(&mut self.reaped);
        self.lower.reap(&mut reaped);
        for answer in reaped.drain(..) {
            match self.below.try_remove(answer.token.0 as usize) {
                None => {}
                Some(Below::Whole(token)) => {
                    self.passed -= 1;
                    self.done.push(Completion { token, result: answer.result });
                }
                Some(Below::Part { piece, track }) => self.answered(piece, track, answer.result),
            }
        }
        self.reaped = reaped;
        // A flush counts as acknowledged since it was answered below: it is handed out first, and whoever is handed something calls again.
        let waits = self.holds_writes() || !self.reads.is_empty() || !self.late.is_empty();
        if self.done.is_empty() && waits {
            self.go_on();
        }
        completions.append(&mut self.done);
        self.unposted.append(&mut self.landed);
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.wholes.len() + self.passed + self.backlog.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.post();
        self.retry();
        self.go_on_reading();
        if !self.done.is_empty() || !self.late.is_empty() {
            self.lower.dispatch();
            return Ok(());
        }
        let timeout = match self.holds_writes() {
            false => timeout,
            true => Some(timeout.map_or(PAUSE_LOOK, |t| t.min(PAUSE_LOOK))),
        };
        self.lower.wait(also, timeout)
    }
}
