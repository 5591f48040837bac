//! One queue's way through the retained journals.
//!
//! ```text
//! submit ─► touches nothing of interest? ─► below, as it is
//!        └► under the disk's lock: parts ─► done at once (absorbed, served from the arena)
//!                                        └► below ─► completed: under the lock again, then answered
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    admit, BlockError, Buffers, Completion, FlushKind, Geometry, Health, Lane, Operation, Request, Sector,
    Token, SECTOR_BYTES,
};

use super::lend::Lender;
use super::slots::Slots;
use super::Shared;
use crate::retain::{Change, Part, Ranges, ReadPart, Track};

/// How often a paused lane looks whether it may go on.
const PAUSE_LOOK: Duration = Duration::from_millis(2);

/// A guest's request of which parts are below.
struct Whole {
    token: Token,
    parts_left: usize,
    result: Result<(), BlockError>,
    lent: Vec<Buffers>,
}

/// A part below.
struct Below {
    whole: usize,
    track: Option<Track>,
}

pub(super) struct RetainLane {
    lower: Box<dyn Lane>,
    geometry: Geometry,
    health: Health,
    shared: Arc<Shared>,
    ranges: Arc<Ranges>,
    version: u64,
    wholes: Slots<Whole>,
    below: Slots<Below>,
    lender: Lender,
    /// Writes behind a pause.
    backlog: VecDeque<Request>,
    parts: Vec<Part>,
    read_parts: Vec<ReadPart>,
    done: Vec<Completion>,
    reaped: Vec<Completion>,
}

impl RetainLane {
    pub(super) fn new(lower: Box<dyn Lane>, geometry: Geometry, health: Health, shared: Arc<Shared>) -> Self {
        Self {
            lower,
            geometry,
            health,
            ranges: Arc::default(),
            version: 0,
            shared,
            wholes: Slots::default(),
            below: Slots::default(),
            lender: Lender::default(),
            backlog: VecDeque::new(),
            parts: Vec::new(),
            read_parts: Vec::new(),
            done: Vec::new(),
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

    fn hand_down(&mut self, whole: usize, track: Option<Track>, mut request: Request) {
        request.token = Token(self.below.insert(Below { whole, track }) as u64);
        self.lower.submit(request);
    }

    fn whole(&mut self, token: Token, parts_left: usize) -> usize {
        self.wholes.insert(Whole { token, parts_left, result: Ok(()), lent: Vec::new() })
    }

    fn pass(&mut self, request: Request) {
        let whole = self.whole(request.token, 1);
        self.hand_down(whole, None, request);
    }

    fn read(&mut self, request: Request) {
        let mut parts = std::mem::take(&mut self.read_parts);
        parts.clear();
        let result = self.shared.lock().read(request.sector, request.sectors, &request.buffers, &mut parts);
        let left = parts.iter().filter(|p| matches!(p, ReadPart::Below { .. })).count();
        if result.is_err() || left == 0 {
            self.done.push(Completion { token: request.token, result });
        } else {
            let whole = self.whole(request.token, left);
            for part in &parts {
                let ReadPart::Below { sector, sectors } = *part else { continue };
                let offset = ((sector.0 - request.sector.0) * SECTOR_BYTES) as usize;
                let buffers = request.buffers.slice(offset, (sectors * SECTOR_BYTES) as usize);
                let (token, operation) = (request.token, Operation::Read);
                self.hand_down(whole, None, Request { token, operation, sector, sectors, buffers });
            }
        }
        self.read_parts = parts;
    }

    fn change(&mut self, request: Request) {
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        let mut lent = Vec::new();
        let lender = &mut self.lender;
        let mut lend = |len: usize| {
            let piece = lender.lend(len);
            let part = piece.slice(0, len);
            lent.push(piece);
            part
        };
        let change = match request.operation {
            Operation::Write { .. } => Change::Write(&request.buffers),
            _ => Change::Clear,
        };
        let result = {
            let mut retainer = self.shared.lock();
            // Looked at again under the lock: what is made complete under it must stay so.
            if self.shared.paused.load(Ordering::SeqCst) {
                drop(retainer);
                self.parts = parts;
                self.backlog.push_front(request);
                return;
            }
            let result = retainer.submit(change, request.sector, request.sectors, &mut lend, &mut parts);
            self.shared.publish(&retainer);
            result
        };
        self.hand_down_parts(&request, result, &mut parts, lent);
        self.parts = parts;
    }

    fn hand_down_parts(
        &mut self,
        request: &Request,
        result: Result<(), BlockError>,
        parts: &mut Vec<Part>,
        lent: Vec<Buffers>,
    ) {
        let absorbed = parts.iter().any(|p| matches!(p, Part::Done));
        // What was absorbed is in the arena; where its transaction went into a log, that must be flushed, too.
        let flush = absorbed && request.operation.is_flushed();
        let left = parts.iter().filter(|p| !matches!(p, Part::Done)).count() + usize::from(flush);
        if left == 0 {
            lent.into_iter().for_each(|piece| self.lender.take_back(piece));
            self.done.push(Completion { token: request.token, result });
            return;
        }
        let whole = self.whole(request.token, left);
        if let Some(entry) = self.wholes.get_mut(whole) {
            entry.result = result;
            entry.lent = lent;
        }
        let token = request.token;
        let nothing = |operation| Request {
            token,
            operation,
            sector: Sector(0),
            sectors: 0,
            buffers: Buffers::empty(),
        };
        for part in parts.drain(..) {
            match part {
                Part::Done => {}
                Part::Durable => {
                    self.hand_down(whole, None, nothing(Operation::Flush(FlushKind::Durable)));
                }
                Part::Below { sector, sectors, copy, track } => {
                    let buffers = match (copy, request.operation) {
                        (Some(copy), _) => copy,
                        (None, Operation::Write { .. }) => {
                            let offset = ((sector.0 - request.sector.0) * SECTOR_BYTES) as usize;
                            request.buffers.slice(offset, (sectors * SECTOR_BYTES) as usize)
                        }
                        (None, _) => Buffers::empty(),
                    };
                    let operation = request.operation;
                    self.hand_down(whole, track, Request { token, operation, sector, sectors, buffers });
                }
            }
        }
        if flush {
            self.hand_down(whole, None, nothing(Operation::Flush(FlushKind::Order)));
        }
    }

    fn serve(&mut self, request: Request) {
        self.refresh();
        match request.operation {
            Operation::Read if self.ranges.touch_area(request.sector, request.sectors) => self.read(request),
            Operation::Flush(_) if self.ranges.flushes => {
                let mut retainer = self.shared.lock();
                if let Err(error) = retainer.flushes() {
                    tracing::error!(%error, "what a guest made could not be looked at");
                }
                self.shared.publish(&retainer);
                drop(retainer);
                self.pass(request);
            }
            Operation::Read | Operation::Flush(_) => self.pass(request),
            _ if request.sectors > 0 && self.ranges.touch_write(request.sector, request.sectors) => {
                self.change(request);
            }
            _ => self.pass(request),
        }
    }

    fn retry(&mut self) {
        while !self.backlog.is_empty() && !self.shared.paused.load(Ordering::SeqCst) {
            if let Some(request) = self.backlog.pop_front() {
                self.serve(request);
            }
        }
    }
}

impl Drop for RetainLane {
    /// What is below is waited for, as the contract of lanes has it, and what it changed is looked at: the other lanes must not
    /// believe for ever that it is still under way.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut dropped = Vec::new();
        while self.below.len() > 0 {
            self.reap(&mut dropped);
            if self.below.len() > 0 && self.lower.wait(&[], Some(PAUSE_LOOK)).is_err() {
                return;
            }
        }
    }
}

impl Lane for RetainLane {
    fn submit(&mut self, request: Request) {
        if let Err(e) = admit(&request, &self.geometry, &self.health) {
            self.done.push(Completion { token: request.token, result: Err(e) });
            return;
        }
        let held = request.operation.is_write()
            && (!self.backlog.is_empty() || self.shared.paused.load(Ordering::SeqCst));
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
        self.retry();
        self.lower.dispatch();
        let mut reaped = std::mem::take(&mut self.reaped);
        self.lower.reap(&mut reaped);
        for part in reaped.drain(..) {
            let Some(below) = self.below.remove(part.token.0 as usize) else { continue };
            let mut result = part.result;
            if let Some(track) = below.track {
                let mut retainer = self.shared.lock();
                if let Err(e) = retainer.completed(track, result.is_ok()) {
                    tracing::error!(error = %e, "a write completed, but what it changed could not be looked at");
                    result = result.and(Err(BlockError::Corrupt(e.to_string().into())));
                }
                self.shared.publish(&retainer);
            }
            let Some(whole) = self.wholes.get_mut(below.whole) else { continue };
            whole.parts_left -= 1;
            if whole.result.is_ok() {
                whole.result = result;
            }
            if whole.parts_left == 0 {
                if let Some(whole) = self.wholes.remove(below.whole) {
                    whole.lent.into_iter().for_each(|piece| self.lender.take_back(piece));
                    self.done.push(Completion { token: whole.token, result: whole.result });
                }
            }
        }
        self.reaped = reaped;
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.wholes.len() + self.backlog.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.retry();
        if !self.done.is_empty() {
            self.lower.dispatch();
            return Ok(());
        }
        let timeout = match self.backlog.is_empty() {
            true => timeout,
            false => Some(timeout.map_or(PAUSE_LOOK, |t| t.min(PAUSE_LOOK))),
        };
        self.lower.wait(also, timeout)
    }
}
