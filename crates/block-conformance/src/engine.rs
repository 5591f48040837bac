//! Carries a plan out and keeps the oracle beside it.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

use crate::memory::Memory;
use crate::oracle::{Change, Moment, Oracle};
use crate::plan::{Plan, Step};
use crate::{generator, Violation};
use afterimage_block::{BlockError, Blocking, Completion, Disk, Lane, Operation, Request, Sector, Token};

const LANES: usize = 3;
/// Requests in flight on one lane.
const DEPTH_MAX: usize = 40;
/// How long a request may stay in flight. Not a measure of speed: a lost completion would hang the suite.
const LOST: Duration = Duration::from_secs(120);

/// What a token stands for.
struct Pending {
    lane: usize,
    memory: Memory,
    expect: Expect,
}

enum Expect {
    Read { first: u64, submitted: Moment },
    Change(Change),
    Flush,
    Refusal { was: Vec<u8> },
}

pub(super) struct Engine {
    disk: Arc<dyn Disk>,
    lanes: Vec<Box<dyn Lane>>,
    plan: Plan,
    random: ChaCha8Rng,
    seed: u64,
    step: usize,
    oracle: Oracle,
    pending: HashMap<Token, Pending>,
    next_token: u64,
    /// Memory of dropped lanes' requests: nothing may change it any more.
    abandoned: Vec<Memory>,
    completions: Vec<Completion>,
}

impl Engine {
    pub fn new(disk: Arc<dyn Disk>, seed: u64, mut plan: Plan) -> Result<Self, Violation> {
        let geometry = disk.geometry();
        assert!(!geometry.read_only, "this run writes");
        plan.grain = u64::from(geometry.logical_block_bytes) / 512;
        let failed = |e: BlockError| Violation { seed, step: 0, what: format!("before the first step: {e}") };
        let mut content = vec![0; ((plan.range.end - plan.range.start) * 512) as usize];
        Blocking::new(disk.open_lane().map_err(failed)?)
            .read(Sector(plan.range.start), &mut content)
            .map_err(failed)?;
        let lanes = (0..LANES).map(|_| disk.open_lane()).collect::<Result<_, _>>().map_err(failed)?;
        Ok(Self {
            lanes,
            random: generator(seed),
            seed,
            step: 0,
            oracle: Oracle::new(plan.range.start, &content),
            plan,
            pending: HashMap::new(),
            next_token: 0,
            abandoned: Vec::new(),
            completions: Vec::new(),
            disk,
        })
    }

    pub fn run(&mut self, steps: usize) -> Result<(), Violation> {
        for step in 0..steps {
            self.step = step;
            let lane = self.random.random_range(0..LANES);
            match self.plan.step(&mut self.random) {
                Step::Request { operation, sector, sectors } => self.submit(lane, operation, sector, sectors),
                Step::Bad { operation, sector, sectors, bytes } => {
                    self.submit_bad(lane, operation, sector, sectors, bytes);
                }
                Step::Drain => self.drain()?,
                Step::Compare => self.compare()?,
                Step::DropLane => self.drop_lane(lane)?,
            }
            if self.random.random_bool(0.3) {
                self.lanes[lane].dispatch();
            }
            if self.random.random_bool(0.3) {
                self.reap(lane)?;
            }
            while self.lanes[lane].in_flight() >= DEPTH_MAX {
                self.wait_for(lane)?;
            }
        }
        self.compare()
    }

    /// Checks what only shows at the end and gives the oracle away.
    pub fn finish(mut self) -> Result<Oracle, Violation> {
        self.check_wait()?;
        for memory in std::mem::take(&mut self.abandoned) {
            if !memory.is_all(SCRIBBLE) {
                return self.violation("a dropped lane touched its buffers afterwards");
            }
        }
        Ok(self.oracle)
    }

    fn violation<T>(&self, what: impl Into<String>) -> Result<T, Violation> {
        Err(Violation { seed: self.seed, step: self.step, what: what.into() })
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn submit(&mut self, lane: usize, operation: Operation, sector: u64, sectors: u64) {
        let has_buffers = matches!(operation, Operation::Read | Operation::Write { .. });
        let len = if has_buffers { sectors as usize * 512 } else { 0 };
        let segments_max = if self.random.random_bool(0.02) { 1500 } else { 6 };
        let memory = Memory::new(&mut self.random, len, segments_max);
        let expect = match operation {
            Operation::Read => Expect::Read { first: sector, submitted: self.oracle.now() },
            Operation::Write { .. } => {
                let mut bytes = vec![0; len];
                self.random.fill_bytes(&mut bytes);
                memory.buffers.copy_from(0, &bytes);
                Expect::Change(self.oracle.submit_write(sector, &bytes))
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                Expect::Change(self.oracle.submit_zeroes(sector, sectors))
            }
            Operation::Flush(_) => Expect::Flush,
        };
        self.send(lane, operation, sector, sectors, memory, expect);
    }

    fn submit_bad(&mut self, lane: usize, operation: Operation, sector: u64, sectors: u64, bytes: usize) {
        let memory = Memory::new(&mut self.random, bytes, 3);
        let was = memory.buffers.to_vec();
        self.send(lane, operation, sector, sectors, memory, Expect::Refusal { was });
    }

    fn send(
        &mut self,
        lane: usize,
        operation: Operation,
        sector: u64,
        sectors: u64,
        memory: Memory,
        expect: Expect,
    ) {
        let token = self.token();
        let buffers = memory.buffers.share();
        self.pending.insert(token, Pending { lane, memory, expect });
        self.lanes[lane].submit(Request { token, operation, sector: Sector(sector), sectors, buffers });
    }

    fn reap(&mut self, lane: usize) -> Result<(), Violation> {
        let mut completions = std::mem::take(&mut self.completions);
        self.lanes[lane].reap(&mut completions);
        for completion in completions.drain(..) {
            self.completed(lane, completion)?;
        }
        self.completions = completions;
        let counted = self.lanes[lane].in_flight();
        let known = self.pending.values().filter(|p| p.lane == lane).count();
        if counted != known {
            return self.violation(format!("a lane counts {counted} requests in flight, there are {known}"));
        }
        Ok(())
    }

    fn completed(&mut self, lane: usize, completion: Completion) -> Result<(), Violation> {
        let Some(pending) = self.pending.remove(&completion.token) else {
            return self.violation("a completion for no request, or the second for one");
        };
        if pending.lane != lane {
            return self.violation("a completion on another lane than its request");
        }
        if !pending.memory.gaps_are_untouched() {
            return self.violation("memory outside the request's segments was changed");
        }
        match (pending.expect, completion.result) {
            (Expect::Read { first, submitted }, Ok(())) => {
                let bytes = pending.memory.buffers.to_vec();
                self.oracle.check_read(first, &bytes, submitted).or_else(|e| self.violation(e))
            }
            (Expect::Change(change), Ok(())) => {
                self.oracle.complete(change);
                Ok(())
            }
            (Expect::Flush, Ok(())) => Ok(()),
            (Expect::Refusal { .. }, Ok(())) => self.violation("a bad request was accepted"),
            (Expect::Refusal { was }, Err(_)) => {
                if was == pending.memory.buffers.to_vec() {
                    return Ok(());
                }
                self.violation("a refused request changed its buffers")
            }
            (_, Err(error)) => self.violation(format!("a good request failed: {error}")),
        }
    }

    fn wait_for(&mut self, lane: usize) -> Result<(), Violation> {
        let before = self.lanes[lane].in_flight();
        let waited = std::time::Instant::now();
        while self.lanes[lane].in_flight() == before {
            if waited.elapsed() > LOST {
                return self.violation(format!("{before} requests never completed"));
            }
            if let Err(error) = self.lanes[lane].wait(&[], Some(LOST)) {
                return self.violation(format!("waiting failed: {error}"));
            }
            self.reap(lane)?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Violation> {
        for lane in 0..LANES {
            self.lanes[lane].dispatch();
        }
        for lane in 0..LANES {
            self.reap(lane)?;
            while self.lanes[lane].in_flight() > 0 {
                self.wait_for(lane)?;
            }
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<(), Violation> {
        self.drain()?;
        let range = self.plan.range.clone();
        self.submit(0, Operation::Read, range.start, range.end - range.start);
        self.drain()
    }

    /// A lane goes with what it has in flight; afterwards its memory belongs to others.
    fn drop_lane(&mut self, lane: usize) -> Result<(), Violation> {
        match self.disk.open_lane() {
            Ok(new) => drop(std::mem::replace(&mut self.lanes[lane], new)),
            Err(error) => return self.violation(format!("opening another lane: {error}")),
        }
        let tokens: Vec<Token> =
            self.pending.iter().filter(|(_, p)| p.lane == lane).map(|(t, _)| *t).collect();
        for token in tokens {
            let Some(pending) = self.pending.remove(&token) else { continue };
            if !pending.memory.gaps_are_untouched() {
                return self.violation("memory outside the request's segments was changed");
            }
            pending.memory.scribble(SCRIBBLE);
            self.abandoned.push(pending.memory);
            if let Expect::Change(change) = pending.expect {
                self.oracle.abandon(change);
            }
        }
        Ok(())
    }

    /// [`Lane::wait`] returns for a readable descriptor, also one that takes the number of a closed one, and for time.
    fn check_wait(&mut self) -> Result<(), Violation> {
        for round in 0..3 {
            let Ok((reader, writer)) = rustix::pipe::pipe() else { return self.violation("no pipe") };
            for lane in &mut self.lanes {
                // Nobody will ever write before this one is over.
                if let Err(e) = lane.wait(&[reader.as_fd()], Some(Duration::from_millis(1))) {
                    return Err(Violation {
                        seed: self.seed,
                        step: self.step,
                        what: format!("waiting: {e}"),
                    });
                }
            }
            let written = rustix::io::write(&writer, &[round]);
            debug_assert!(written.is_ok());
            for lane in &mut self.lanes {
                let start = std::time::Instant::now();
                let waited = lane.wait(&[reader.as_fd()], Some(LOST));
                if waited.is_err() || start.elapsed() >= LOST {
                    return self.violation("a readable descriptor did not end a wait");
                }
            }
        }
        Ok(())
    }
}

/// What the memory of dropped requests is filled with.
const SCRIBBLE: u8 = 0x3c;
