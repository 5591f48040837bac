//! `power` and `guest-crash`: a thin layer that counts, gates and translates flushes.
//!
//! ```text
//! write ─► gate (paused: held) ─► store lane ─► numbered when it completes
//! flush ─► power: store lane (fdatasync) ─► durable = what had completed when it was submitted
//!      └─► guest-crash, Order: completes at once; Durable: store lane
//! read  ─► store lane
//! ```
//!
//! Sequence numbers are given at completion: every write that completed before a flush was submitted has a number
//! up to the counter's value at that moment, and that is what the flush covers. Requests in flight together have no
//! order, so this is as good an order as any, and a writer's cost is one atomic increment. Outcomes after a crash
//! are the store's: under `power` everything up to the last completed flush, and any subset of what came after;
//! under `guest-crash` undefined after a power cut, everything completed after a process's death.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, FlushKind, Front, Geometry, Health, Lane, Operation,
    SequenceNumber, Token, SECTOR_BYTES,
};
use slab::Slab;

use crate::board::Board;
use crate::changes::Changes;
use crate::clock::Clock;
use crate::relaxed_flushes::RelaxedFlushes;
use crate::sequence::Sequence;
use crate::signal::LaneSignal;
use crate::Event;

/// What the lanes of all disks of a group share. Readers touch none of it.
pub(crate) struct Shared {
    /// `guest-crash`: guest flushes complete without a sync.
    pub(crate) relaxed: bool,
    pub(crate) board: Arc<Board>,
    relaxed_flushes: Mutex<RelaxedFlushes>,
    clock: Arc<dyn Clock>,
}

impl Shared {
    pub(crate) fn new(relaxed: bool, clock: Arc<dyn Clock>) -> Arc<Self> {
        let board = Arc::new(Board::new(Sequence::default(), Arc::clone(&clock)));
        Arc::new(Self { relaxed, board, relaxed_flushes: Mutex::default(), clock })
    }

    /// A sync of all disks begins now.
    pub(crate) fn begin_sync(&self) -> Covers {
        Covers { acknowledged: self.board.sequence.acknowledged.get(), begun: self.clock.now() }
    }

    /// All disks of the group were synced; what had completed when the sync began is durable.
    pub(crate) fn synced_all(&self, covers: Covers) {
        self.board.sequence.durable.raise(covers.acknowledged);
        self.board.sequence.home.raise(covers.acknowledged);
        if self.relaxed {
            self.relaxed_flushes().synced(covers.begun, self.clock.now());
        }
    }

    /// Ages of acknowledged flushes that are not durable: the oldest now, and the oldest that there was.
    pub(crate) fn ages(&self) -> (Option<Duration>, Duration) {
        self.relaxed_flushes().ages(self.clock.now())
    }

    fn acknowledge_relaxed(&self) {
        self.relaxed_flushes().acknowledged(self.clock.now());
    }

    fn relaxed_flushes(&self) -> MutexGuard<'_, RelaxedFlushes> {
        self.relaxed_flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sync makes durable, if it succeeds.
#[derive(Clone, Copy)]
pub(crate) struct Covers {
    pub(crate) acknowledged: SequenceNumber,
    begun: Duration,
}

/// The failure of one disk. Whoever of its lanes and syncs meets it first tells those who listen, once.
#[derive(Clone)]
pub(crate) struct Failure {
    health: Health,
    board: Arc<Board>,
    told: Arc<AtomicBool>,
}

impl Failure {
    /// There is none yet.
    pub(crate) fn new(health: &Health, board: &Arc<Board>) -> Self {
        Self { health: health.clone(), board: Arc::clone(board), told: Arc::default() }
    }

    /// A write or a sync did not succeed, which may be its own matter.
    pub(crate) fn tell(&self) {
        let Some(reason) = self.health.failure() else { return };
        if !self.told.swap(true, Ordering::SeqCst) {
            self.board.events.publish(&Event::Failed { reason: reason.to_string() });
        }
    }
}

/// One disk of the group.
pub(crate) struct PassThroughDisk {
    lower: Arc<dyn Disk>,
    shared: Arc<Shared>,
    failure: Failure,
    /// With one disk a completed guest flush says that the whole group is durable.
    only_disk: bool,
    changes: Arc<Changes>,
}

impl PassThroughDisk {
    pub(crate) fn new(
        lower: Arc<dyn Disk>,
        shared: Arc<Shared>,
        failure: Failure,
        only_disk: bool,
        changes: Arc<Changes>,
    ) -> Self {
        Self { lower, shared, failure, only_disk, changes }
    }
}

impl Front for PassThroughDisk {
    fn lower(&self) -> &dyn Disk {
        self.lower.as_ref()
    }

    fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(PassThroughLane {
            lower,
            failure: self.failure.clone(),
            shared: Arc::clone(&self.shared),
            signal: self
                .shared
                .board
                .signals
                .register()
                .map_err(|e| BlockError::io("creating an eventfd", e))?,
            only_disk: self.only_disk,
            slots: Slots::new(&self.changes),
            held: VecDeque::new(),
            done: Vec::new(),
            below: Vec::new(),
        }))
    }
}

enum InFlight {
    Read(Token),
    Write { token: Token, offset: u64, bytes: u64 },
    Flush { token: Token, covers: Covers },
}

/// What the layer below has not answered, by the token that it has of it.
struct Slots {
    slab: Slab<InFlight>,
    changes: Arc<Changes>,
}

impl Slots {
    fn new(changes: &Arc<Changes>) -> Self {
        Self { slab: Slab::new(), changes: Arc::clone(changes) }
    }

    /// It was answered; a write has reached the image, if it ever will.
    fn take(&mut self, token: Token) -> InFlight {
        let slot = self.slab.try_remove(token.0 as usize);
        let slot = slot.expect("the layer below answers what it was asked, once");
        self.note(&slot);
        slot
    }

    fn note(&self, slot: &InFlight) {
        if let InFlight::Write { offset, bytes, .. } = slot {
            self.changes.note(*offset, *bytes);
        }
    }
}

/// A lane that goes away waits for its writes, and nobody takes their answers.
impl Drop for Slots {
    fn drop(&mut self) {
        self.slab.iter().for_each(|(_, slot)| self.note(slot));
    }
}

struct PassThroughLane {
    /// Dropped before `slots` and `signal`: while the layer below may still write, the lane's count is still seen.
    lower: Box<dyn Lane>,
    slots: Slots,
    failure: Failure,
    shared: Arc<Shared>,
    signal: Arc<LaneSignal>,
    only_disk: bool,
    /// Writes that wait for the pause to end.
    held: VecDeque<Admitted>,
    done: Vec<Completion>,
    below: Vec<Completion>,
}

impl PassThroughLane {
    /// Hands a write down, or gives it back while the group is paused.
    fn write(&mut self, request: Admitted) -> Option<Admitted> {
        // Counted before the gate is looked at, and the gate is closed before the counters are: so a pause sees this
        // write or this write sees the pause.
        self.signal.writes_in_flight.fetch_add(1, Ordering::SeqCst);
        let gate = &self.shared.board.gate;
        let closed = gate.check();
        if closed.is_err() || gate.is_paused() {
            self.signal.writes_in_flight.fetch_sub(1, Ordering::SeqCst);
            if let Err(error) = closed {
                self.done.push(Completion { token: request.token, result: Err(error) });
                return None;
            }
            return Some(request);
        }
        let (token, offset) = (request.token, request.sector.0 * SECTOR_BYTES);
        let bytes = request.sectors * SECTOR_BYTES;
        let request = if self.shared.relaxed { request.unflushed() } else { request };
        self.hand_down(request, InFlight::Write { token, offset, bytes });
        None
    }

    fn hand_down(&mut self, request: Admitted, as_what: InFlight) {
        let token = Token(self.slots.slab.insert(as_what) as u64);
        self.lower.take(request.with_token(token));
    }

    fn retry_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.signal.drain();
        while let Some(request) = self.held.pop_front() {
            if let Some(request) = self.write(request) {
                self.held.push_front(request);
                return;
            }
        }
        self.signal.parked.store(false, Ordering::SeqCst);
        self.lower.dispatch();
    }

    fn flush(&mut self, request: Admitted, kind: FlushKind) {
        if self.shared.relaxed && kind != FlushKind::Durable {
            let result = self.failure.health.check();
            if result.is_ok() {
                self.shared.acknowledge_relaxed();
            }
            self.done.push(Completion { token: request.token, result });
            return;
        }
        let (token, covers) = (request.token, self.shared.begin_sync());
        self.hand_down(request, InFlight::Flush { token, covers });
    }
}

impl Lane for PassThroughLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        match request.operation {
            Operation::Read => {
                let token = request.token;
                self.hand_down(request, InFlight::Read(token));
            }
            Operation::Flush(kind) => self.flush(request, kind),
            _ => {
                if let Some(request) = self.write(request) {
                    self.signal.parked.store(true, Ordering::SeqCst);
                    self.held.push_back(request);
                }
            }
        }
    }

    fn dispatch(&mut self) {
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.retry_held();
        self.lower.reap(&mut self.below);
        for below in self.below.drain(..) {
            // Before the write is none in flight any more, on which a pause relies.
            let slot = self.slots.take(below.token);
            if below.result.is_err() {
                self.failure.tell();
            }
            let token = match slot {
                InFlight::Read(token) => token,
                InFlight::Write { token, .. } => {
                    if below.result.is_ok() {
                        self.shared.board.sequence.acknowledged.step();
                    }
                    self.signal.writes_in_flight.fetch_sub(1, Ordering::SeqCst);
                    token
                }
                InFlight::Flush { token, covers } => {
                    if below.result.is_ok() && self.only_disk {
                        self.shared.synced_all(covers);
                    }
                    token
                }
            };
            completions.push(Completion { token, result: below.result });
        }
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.slots.slab.len() + self.held.len() + self.done.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.retry_held();
        if !self.done.is_empty() {
            self.lower.dispatch();
            return Ok(());
        }
        if self.held.is_empty() {
            return self.lower.wait(also, timeout);
        }
        if self.shared.board.pass() {
            return Ok(());
        }
        let mut fds = also.to_vec();
        let signal = Arc::clone(&self.signal);
        fds.push(signal.fd());
        self.lower.wait(&fds, timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use afterimage_block::{Buffers, Request, Sector};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::clock::VirtualClock;

    /// A disk that answers when it is told to.
    #[derive(Default)]
    struct Below {
        taken: Vec<Admitted>,
        undispatched: usize,
        answered: Vec<Completion>,
    }

    struct BelowLane(Arc<Mutex<Below>>);

    impl Lane for BelowLane {
        fn geometry(&self) -> Geometry {
            Geometry {
                sectors: 8,
                logical_block_bytes: 512,
                physical_block_bytes: 512,
                discard_granularity_bytes: 512,
                read_only: false,
            }
        }

        fn refuse(&mut self, _refusal: Completion) {
            unreachable!("nobody asks for what is not there");
        }

        fn take(&mut self, request: Admitted) {
            let mut below = self.0.lock().unwrap();
            below.undispatched += 1;
            below.taken.push(request);
        }

        fn dispatch(&mut self) {
            self.0.lock().unwrap().undispatched = 0;
        }

        fn reap(&mut self, completions: &mut Vec<Completion>) {
            completions.append(&mut self.0.lock().unwrap().answered);
        }

        fn in_flight(&self) -> usize {
            unreachable!("the layer above counts for itself");
        }

        fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> io::Result<()> {
            Ok(())
        }
    }

    /// What was asked for and is not answered.
    #[derive(Clone, Copy, Debug)]
    enum Asked {
        Write,
        /// What it covers, and when it came.
        Flush(SequenceNumber, Duration),
        /// It completes by itself.
        Relaxed,
    }

    fn play(seed: u64, relaxed: bool, only_disk: bool) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let clock = Arc::new(VirtualClock::default());
        let shared = Shared::new(relaxed, Arc::clone(&clock) as Arc<dyn Clock>);
        let (board, health) = (Arc::clone(&shared.board), Health::default());
        let below = Arc::new(Mutex::new(Below::default()));
        let signal = board.signals.register().unwrap();
        let mut lane = PassThroughLane {
            lower: Box::new(BelowLane(Arc::clone(&below))),
            failure: Failure::new(&health, &board),
            shared: Arc::clone(&shared),
            signal: Arc::clone(&signal),
            only_disk,
            slots: Slots::new(&Arc::default()),
            held: VecDeque::new(),
            done: Vec::new(),
            below: Vec::new(),
        };
        let mut asked: BTreeMap<u64, Asked> = BTreeMap::new();
        let (mut completed, mut durable) = (SequenceNumber(0), SequenceNumber(0));
        // When flushes were acknowledged that no sync covers.
        let mut open: Vec<Duration> = Vec::new();
        let (mut paused, mut closed, mut failed, mut held_back) = (false, false, false, 0);
        for step in 0..300 {
            clock.advance(Duration::from_millis(1));
            let mut ask = |lane: &mut PassThroughLane, operation, as_what| {
                let (token, sectors) = (Token(step), u64::from(matches!(operation, Operation::Write { .. })));
                let buffers = Buffers::allocate(sectors as usize * 512);
                lane.submit(Request { token, operation, sector: Sector(0), sectors, buffers });
                lane.dispatch();
                asked.insert(step, as_what);
            };
            match rng.random_range(0..16) {
                0..5 => {
                    ask(&mut lane, Operation::Write { flushed: rng.random() }, Asked::Write);
                    held_back += usize::from(paused && !closed);
                }
                5 => {
                    let kind = if rng.random() { FlushKind::Order } else { FlushKind::Durable };
                    let by_itself = relaxed && kind == FlushKind::Order;
                    let covers = Asked::Flush(completed, clock.now());
                    ask(&mut lane, Operation::Flush(kind), if by_itself { Asked::Relaxed } else { covers });
                    open.extend((by_itself && !failed).then(|| clock.now()));
                }
                6..13 => {
                    let mut below = below.lock().unwrap();
                    if !below.taken.is_empty() {
                        let n = rng.random_range(0..below.taken.len());
                        let request = below.taken.swap_remove(n);
                        let is_relaxed = matches!(request.operation, Operation::Write { flushed: true });
                        assert!(!(relaxed && is_relaxed), "nothing is synced for a write");
                        let fails = failed || rng.random_ratio(1, 50);
                        let result = if fails { Err(BlockError::ReadOnly) } else { Ok(()) };
                        below.answered.push(Completion { token: request.token, result });
                    }
                }
                13 if paused => {
                    board.let_go();
                    (paused, held_back) = (false, 0);
                }
                13 => {
                    board.pause();
                    paused = true;
                }
                14 if rng.random_ratio(1, 20) => {
                    board.close();
                    (closed, held_back) = (true, 0);
                }
                15 if rng.random_ratio(1, 20) => {
                    failed = true;
                    health.fail("it broke");
                }
                _ => {}
            }
            let mut completions = Vec::new();
            lane.reap(&mut completions);
            for Completion { token, result } in completions {
                match asked.remove(&token.0).expect("asked for, and answered once") {
                    Asked::Write => completed.0 += u64::from(result.is_ok()),
                    Asked::Flush(covers, begun) if result.is_ok() && only_disk => {
                        durable = durable.max(covers);
                        open.retain(|acknowledged| *acknowledged > begun);
                    }
                    Asked::Flush(..) => {}
                    Asked::Relaxed => assert_eq!(result.is_ok(), !failed, "seed {seed}, step {step}"),
                }
            }
            let below = below.lock().unwrap();
            let writes = below.taken.iter().filter(|request| request.operation.is_write()).count();
            let held = asked.values().filter(|asked| matches!(asked, Asked::Write)).count() - writes;
            assert_eq!(held, held_back, "seed {seed}, step {step}");
            assert_eq!(lane.in_flight(), asked.len(), "seed {seed}, step {step}");
            assert_eq!(signal.writes_in_flight.load(Ordering::SeqCst), writes, "seed {seed}, step {step}");
            assert_eq!(signal.parked.load(Ordering::SeqCst), held > 0, "seed {seed}, step {step}");
            assert_eq!(below.undispatched, 0, "seed {seed}, step {step}");
            let sequence = &board.sequence;
            assert_eq!((sequence.acknowledged.get(), sequence.durable.get()), (completed, durable));
            let age = shared.ages().0;
            assert_eq!(age.is_some(), !open.is_empty(), "seed {seed}, step {step}");
            assert!(age >= open.first().map(|oldest| clock.now() - *oldest), "seed {seed}, step {step}");
        }
    }

    /// Whatever a disk answers, and when: what completed is counted, a flush covers that and no more, and a pause holds back what comes.
    #[test]
    fn counts_what_has_completed_and_says_what_a_flush_covers() {
        for seed in 0..100 {
            play(seed, seed % 2 == 0, seed % 3 > 0);
        }
    }
}
