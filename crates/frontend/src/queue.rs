//! One virtqueue at work: fetch → submit → dispatch → reap → answer, in batches.
//!
//! ```text
//! available ring ─fetch─► mark in flight ─► walk, classify ─► lane.submit
//!                                               │ bad request        │ dispatch, reap
//! interrupt? ◄─ publish one used index ◄─ link, used element ◄─ status byte
//!                     └─► unmark in flight
//! ```
//!
//! What a guest has in flight costs memory in every layer, and the guest decides how many segments or ranges it is: a queue
//! that has [`LOAD_BYTES_MAX`] of it in flight leaves the rest in the ring until something is answered.
//!
//! After a daemon's death queues start one by one, and each first submits again what was in flight on it. None takes anything
//! new before all have: what a guest wrote before the death would else come over what it writes behind it.
//!
//! Outcomes of a crash: see [`crate::inflight`]. A request is marked before anything is done with it and unmarked
//! only after the driver can see its answer.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Bell, Completion, Lane, Request, Token};
use afterimage_seldom::Lines;
use parking_lot::Mutex;
use tracing::warn;

use crate::chain::{Chain, DESCRIPTORS_MAX};
use crate::inflight::Inflight;
use crate::memory::{GuestAddress, GuestMemory, SegmentList};
use crate::notify::{Call, Doorbell};
use crate::options::QUEUE_SIZE_MAX;
use crate::request::{classify, status_of, Range, Shape, Verdict, S_IOERR, S_OK};
use crate::ring::{Ring, RingFault};
use crate::stats::{QueueStats, RequestKind};
use crate::unheard::Unheard;

/// How often a queue without a kick descriptor looks at its ring.
const POLLING_PERIOD: Duration = Duration::from_micros(200);
/// What the requests in flight of one queue may take in bytes, in all layers together, but for one more request. A queue of
/// 1024 requests as Linux sends them stays below.
const LOAD_BYTES_MAX: usize = 4 << 20;
/// What a request of a lane takes beside its segments, roughly: its slots from here down to the ring.
const REQUEST_BYTES: usize = 1024;
/// What one segment takes: as it came, and as the slices of parts below.
const SEGMENT_BYTES: usize = 3 * size_of::<libc::iovec>();
/// The most memory that a queue takes, in bytes, beside its lane's own: requests in flight, slots, the chain at hand.
pub const BYTES_MAX: usize = LOAD_BYTES_MAX
    + DESCRIPTORS_MAX * SEGMENT_BYTES
    + QUEUE_SIZE_MAX as usize * (size_of::<Slot>() + 64)
    + SegmentList::BYTES_MAX;
/// Wake-ups in a row that found nothing to do and the kick descriptor readable after it was read, after which it is taken for
/// one that is always readable (a full counter of which each read takes one) and left alone: the ring is polled instead.
const FRUITLESS_WAKES_MAX: u32 = 10_000;
/// Failed requests logged per start of a queue; the counters tell the rest.
const LOGGED_FAILURES: u32 = 8;

/// How long a queue waits for others that have something to submit again, and how often it looks. A VMM that starts them at all
/// does so within milliseconds.
const OWED_PATIENCE: Duration = Duration::from_secs(2);
const OWED_PERIOD: Duration = Duration::from_micros(500);

/// The call descriptor, which the peer may change while the queue runs.
pub(crate) type CallSlot = Arc<Mutex<Call>>;

/// Everything a queue needs to run.
pub(crate) struct Run {
    pub name: String,
    pub ring: Ring,
    pub memory: Arc<GuestMemory>,
    pub inflight: Option<Inflight>,
    /// Heads that a dead daemon had fetched and not answered, oldest first.
    pub resubmit: Vec<u16>,
    pub kick: Option<Arc<Doorbell>>,
    pub call: CallSlot,
    pub shape: Shape,
    /// Writes complete as if flushed.
    pub flushed: Arc<AtomicBool>,
    pub spin: Duration,
    /// For what a guest may cause for ever, by one start after another.
    pub lines: Arc<Lines>,
    /// Dropped when the lane has what is to be submitted again.
    pub over: Option<Sender<Infallible>>,
    /// Which of all queues have yet to submit again, where any has: one bit each, and this one's.
    pub owed: Option<(Arc<AtomicU64>, u64)>,
}

/// Why a queue no longer runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was asked to.
    Stopped,
    /// The driver broke the ring's rules, or the lane failed.
    Broken(String),
    /// A page of guest memory is gone.
    MemoryGone,
}

/// A request between fetch and publication.
#[derive(Clone, Copy)]
struct Slot {
    busy: bool,
    /// Lane requests not yet completed.
    pending: u16,
    /// What it takes in bytes.
    load: u32,
    status: u8,
    kind: RequestKind,
    bytes: u64,
    written: u32,
    /// Where the guest looks for the status; `None` where its chain has no room for one.
    status_at: Option<GuestAddress>,
    since: Instant,
}

/// A queue at work on a lane, with counters: lent by a thread that outlives it, or its own.
pub(crate) struct Queue<L, S> {
    run: Run,
    lane: L,
    stats: S,
    slots: Vec<Slot>,
    chain: Chain,
    ranges: Vec<Range>,
    completions: Vec<Completion>,
    answered: Vec<u16>,
    counter: u64,
    logged: u32,
    /// What all requests in flight take in bytes.
    load: usize,
    unheard: Unheard,
    /// Since when it may wait for other queues.
    begun: Instant,
}

impl<L: DerefMut<Target: Lane>, S: Deref<Target = QueueStats>> Queue<L, S> {
    /// What the device is from now on, for those who step it.
    #[cfg(feature = "testkit")]
    pub fn shape(&mut self) -> &mut Shape {
        &mut self.run.shape
    }

    pub fn new(run: Run, lane: L, stats: S) -> Self {
        // A handle of its own, so that no two queues count references on one cache line.
        let memory = Arc::new(GuestMemory::clone(&run.memory));
        let idle = Slot {
            busy: false,
            pending: 0,
            load: 0,
            status: S_OK,
            kind: RequestKind::Other,
            bytes: 0,
            written: 0,
            status_at: None,
            since: Instant::now(),
        };
        Self {
            slots: vec![idle; usize::from(run.ring.size())],
            chain: Chain::new(&memory),
            ranges: Vec::new(),
            completions: Vec::new(),
            answered: Vec::new(),
            counter: 0,
            logged: 0,
            load: 0,
            unheard: Unheard::default(),
            begun: Instant::now(),
            run,
            lane,
            stats,
        }
    }

    /// The next entry of the available ring.
    pub fn next_avail(&self) -> u16 {
        self.run.ring.next_avail()
    }

    /// Serves until `stopping` is set (and `wake` rung), then until nothing is in flight.
    pub fn serve(&mut self, stopping: &AtomicBool, wake: &Bell) -> Ended {
        let ended = self.work(stopping, wake);
        let quiesced = self.quiesce();
        match (ended, quiesced) {
            (Ended::Stopped, ended) | (ended, Ended::Stopped) => ended,
            (_, Ended::MemoryGone) => Ended::MemoryGone,
            (ended, _) => ended,
        }
    }

    fn work(&mut self, stopping: &AtomicBool, wake: &Bell) -> Ended {
        if let Err(ended) = self.begin_run() {
            return ended;
        }
        let mut fruitless = 0u32;
        while !stopping.load(Ordering::Acquire) {
            match self.turn() {
                Ok(true) => {
                    fruitless = 0;
                    continue;
                }
                Ok(false) => {}
                Err(ended) => return ended,
            }
            // Asked before kicks are: where the others are ready meanwhile, it has a short sleep, and not one without kicks.
            let waits = self.waits_for_others();
            match self.may_sleep() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(ended) => return ended,
            }
            // A full queue takes nothing more, whatever the driver says: only an answer or the end wakes it.
            let full = self.is_full();
            let waited = match &self.run.kick {
                _ if waits => self.lane.wait(&[wake.fd()], Some(OWED_PERIOD)),
                _ if full => self.lane.wait(&[wake.fd()], None),
                Some(kick) => self.lane.wait(&[kick.as_fd(), wake.fd()], None),
                None => self.lane.wait(&[wake.fd()], Some(POLLING_PERIOD)),
            };
            if let Err(error) = waited {
                return Ended::Broken(format!("waiting for the disk failed: {error}"));
            }
            self.woken();
            let reaped = match self.reap() {
                Ok(reaped) => reaped,
                Err(ended) => return ended,
            };
            // A wake-up by a completion alone leaves the kick descriptor alone: one system call less.
            let has_available = self.run.ring.has_available();
            let Some(kick) = self.run.kick.as_ref().filter(|_| !reaped || has_available) else { continue };
            if kick.clear() {
                self.stats.kicked();
                // Looked at after the kick was taken: whatever it announces is there by then. A ring that somebody has used is
                // the guest's, also where its index has come round to 0.
                let unused = self.counter == 0 && self.run.ring.next_avail() == 0;
                if unused && !self.run.ring.has_available() && self.unheard.note() && self.run.lines.may() {
                    let name = &self.run.name;
                    warn!(
                        "{name}: the guest kicks and its ring stays empty: it seems to write to other memory than it handed over; \
                         with QEMU, give its memory backend share=on"
                    );
                }
            }
            if !reaped && !has_available && kick.is_ready() {
                fruitless += 1;
                if fruitless == FRUITLESS_WAKES_MAX {
                    self.run.kick = None;
                    if self.run.lines.may() {
                        let name = &self.run.name;
                        warn!("{name}: the kick descriptor is always readable; the ring is polled instead");
                    }
                }
            }
        }
        Ended::Stopped
    }

    /// Before the first turn.
    pub(crate) fn begin_run(&mut self) -> Result<(), Ended> {
        // Whoever served this ring before may have died between publication and interrupt.
        self.notify();
        self.run.ring.disable_kicks();
        let resubmitted = self.resubmit();
        if let Some((owed, own)) = &self.run.owed {
            owed.fetch_and(!own, Ordering::AcqRel);
        }
        self.run.over = None;
        resubmitted
    }

    /// One batch. Returns whether there was anything to do.
    pub(crate) fn turn(&mut self) -> Result<bool, Ended> {
        let fetched = match self.fetch() {
            Ok(fetched) => fetched,
            Err(fault) => {
                self.settle()?;
                return Err(Ended::Broken(fault.to_string()));
            }
        };
        if fetched {
            self.lane.dispatch();
        }
        let reaped = self.reap()?;
        Ok(fetched || reaped)
    }

    /// Answers what the lane has completed, before the lane is asked for anything else: a flush counts as acknowledged since the lane
    /// completed it, and whatever comes next may take long. Returns whether there was anything.
    pub(crate) fn reap(&mut self) -> Result<bool, Ended> {
        self.lane.reap(&mut self.completions);
        let reaped = !self.completions.is_empty();
        self.settle()?;
        Ok(reaped)
    }

    /// Whether there is nothing to do until a kick or a completion, which the driver is asked for from here on.
    pub(crate) fn may_sleep(&mut self) -> Result<bool, Ended> {
        if self.spin_found_work()? || (self.takes_more() && self.run.ring.enable_kicks()) {
            self.woken();
            return Ok(false);
        }
        Ok(true)
    }

    /// After [`Queue::may_sleep`]: no kicks, whatever it was that came.
    pub(crate) fn woken(&mut self) {
        self.run.ring.disable_kicks();
    }

    fn spin_found_work(&mut self) -> Result<bool, Ended> {
        if self.run.spin.is_zero() {
            return Ok(false);
        }
        let start = Instant::now();
        while start.elapsed() < self.run.spin {
            if self.reap()? || (self.takes_more() && self.run.ring.has_available()) {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    fn resubmit(&mut self) -> Result<(), Ended> {
        let heads = std::mem::take(&mut self.run.resubmit);
        if heads.is_empty() {
            return Ok(());
        }
        self.stats.resubmitted(heads.len() as u64);
        let now = Instant::now();
        for head in heads {
            self.begin(head, now);
            // What the dead daemon had in flight is what the peer's region says.
            while self.is_full() {
                self.lane.dispatch();
                self.reap()?;
                if self.is_full() {
                    let failed = |error| Ended::Broken(format!("waiting for the disk failed: {error}"));
                    self.lane.wait(&[], None).map_err(failed)?;
                }
            }
        }
        self.lane.dispatch();
        self.reap().map(drop)
    }

    /// Whether so much is in flight that nothing more is taken.
    fn is_full(&self) -> bool {
        self.load >= LOAD_BYTES_MAX
    }

    /// Whether other queues have yet to submit again what was in flight on them.
    fn waits_for_others(&mut self) -> bool {
        let Some((owed, _)) = &self.run.owed else { return false };
        let owing = owed.load(Ordering::Acquire) != 0;
        let waits = owing && self.begun.elapsed() < OWED_PATIENCE;
        if !waits {
            // For all queues, and those that are started anew: the disk has waited once.
            owed.store(0, Ordering::Release);
            self.run.owed = None;
            if owing && self.run.lines.may() {
                let name = &self.run.name;
                warn!(
                    "{name}: goes on, though another queue of the disk that had requests in flight when an earlier daemon died \
                     was not started: what it does now may be written over by them"
                );
            }
        }
        waits
    }

    fn takes_more(&mut self) -> bool {
        !self.is_full() && !self.waits_for_others()
    }

    fn fetch(&mut self) -> Result<bool, RingFault> {
        let mut now = None;
        for _ in 0..self.run.ring.size() {
            if !self.takes_more() {
                break;
            }
            let Some(head) = self.run.ring.fetch()? else { break };
            if self.slots[usize::from(head)].busy {
                return Err(RingFault::HeadBusy { head });
            }
            self.begin(head, *now.get_or_insert_with(Instant::now));
        }
        Ok(now.is_some())
    }

    fn begin(&mut self, head: u16, now: Instant) {
        if let Some(inflight) = &self.run.inflight {
            inflight.fetched(head, self.counter);
        }
        self.counter += 1;
        self.chain.walk(&self.run.memory, self.run.ring.descriptors(), head);
        let flushed = self.run.flushed.load(Ordering::Relaxed);
        let verdict = classify(&self.chain, &self.run.shape, flushed, &mut self.ranges);
        let slot = &mut self.slots[usize::from(head)];
        *slot = Slot {
            busy: true,
            pending: 0,
            load: 0,
            status: S_OK,
            kind: RequestKind::Other,
            bytes: 0,
            // A walked chain's total is below 4 GiB.
            written: self.chain.writable.len() as u32,
            status_at: self.chain.status,
            since: now,
        };
        match verdict {
            Verdict::Submit { kind, operation, sector, sectors, buffers } => {
                slot.kind = kind;
                slot.bytes = buffers.len() as u64;
                slot.pending = 1;
                slot.load = (REQUEST_BYTES + buffers.segments().len() * SEGMENT_BYTES) as u32;
                self.load += slot.load as usize;
                self.lane.submit(Request { token: token(head, 0), operation, sector, sectors, buffers });
            }
            Verdict::Ranges { kind } => {
                slot.kind = kind;
                slot.bytes = self.ranges.iter().map(|r| r.sectors * 512).sum();
                slot.pending = self.ranges.len() as u16;
                slot.load = (REQUEST_BYTES * self.ranges.len()) as u32;
                self.load += slot.load as usize;
                for (part, range) in self.ranges.drain(..).enumerate() {
                    self.lane.submit(Request {
                        token: token(head, part),
                        operation: range.operation,
                        sector: range.sector,
                        sectors: range.sectors,
                        buffers: afterimage_block::Buffers::empty(),
                    });
                }
            }
            Verdict::Answer { kind, status } => {
                slot.kind = kind;
                slot.status = status;
                let fault = self.chain.fault;
                self.log_failure(status, &fault);
                self.answer(head, now);
            }
            Verdict::Unanswerable => {
                slot.status = S_IOERR;
                slot.written = 0;
                let fault = self.chain.fault;
                self.log_failure(S_IOERR, &fault);
                self.answer(head, now);
            }
        }
    }

    /// Takes in what was reaped and publishes everything answered.
    fn settle(&mut self) -> Result<(), Ended> {
        if !self.completions.is_empty() {
            let now = Instant::now();
            let mut completions = std::mem::take(&mut self.completions);
            for completion in completions.drain(..) {
                self.complete(completion, now);
            }
            self.completions = completions;
        }
        self.publish()
    }

    fn complete(&mut self, completion: Completion, now: Instant) {
        let head = completion.token.0 as u16;
        let slot = &mut self.slots[usize::from(head)];
        assert!(slot.busy && slot.pending > 0, "a lane completed a request that it was not given");
        slot.pending -= 1;
        let pending = slot.pending;
        if let Err(error) = completion.result {
            slot.status = status_of(error.kind());
            self.log_failure(S_IOERR, &Some(error));
        }
        if pending == 0 {
            self.answer(head, now);
        }
    }

    fn answer(&mut self, head: u16, now: Instant) {
        let slot = &self.slots[usize::from(head)];
        self.load -= slot.load as usize;
        if let Some(at) = slot.status_at {
            self.run.memory.store_u8(at, slot.status);
        }
        let latency = now.saturating_duration_since(slot.since);
        self.stats.answered(slot.kind, slot.bytes, latency, slot.status == S_OK);
        let written = slot.written;
        if let Some(inflight) = &self.run.inflight {
            inflight.answered(head);
        }
        self.run.ring.push_used(head, written);
        self.answered.push(head);
    }

    fn publish(&mut self) -> Result<(), Ended> {
        if self.run.memory.poisoned() || self.run.inflight.as_ref().is_some_and(Inflight::poisoned) {
            return Err(Ended::MemoryGone);
        }
        if self.answered.is_empty() {
            return Ok(());
        }
        let index = self.run.ring.publish();
        for head in &self.answered {
            self.slots[usize::from(*head)].busy = false;
        }
        if let Some(inflight) = &self.run.inflight {
            inflight.published(self.answered.drain(..), index);
        }
        self.answered.clear();
        self.stats.batched();
        if self.run.ring.wants_interrupt() {
            self.notify();
        }
        Ok(())
    }

    fn notify(&self) {
        if self.run.call.lock().notify() {
            self.stats.interrupted();
        }
    }

    /// Returns when the lane holds nothing of this queue any more.
    pub(crate) fn quiesce(&mut self) -> Ended {
        let mut ended = Ended::Stopped;
        self.lane.dispatch();
        loop {
            if let Err(worse) = self.reap() {
                ended = worse;
            }
            if self.lane.in_flight() == 0 {
                break;
            }
            if let Err(error) = self.lane.wait(&[], None) {
                // The buffers stay owned by the requests; only the answers are lost.
                return Ended::Broken(format!("waiting for the disk failed: {error}"));
            }
        }
        // What was reaped last is posted, which a lane learns by being asked again; where memory is gone, nobody asks for it.
        self.lane.reap(&mut self.completions);
        self.run.ring.enable_kicks();
        ended
    }

    fn log_failure(&mut self, status: u8, reason: &Option<impl std::fmt::Display>) {
        if status == S_OK || self.logged == LOGGED_FAILURES || !self.run.lines.may() {
            return;
        }
        self.logged += 1;
        let name = &self.run.name;
        match reason {
            Some(reason) => warn!("{name}: a request failed: {reason}"),
            None => warn!("{name}: a request was refused: out of range, malformed or unsupported"),
        }
    }
}

fn token(head: u16, part: usize) -> Token {
    Token(u64::from(head) | (part as u64) << 16)
}
