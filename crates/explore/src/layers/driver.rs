//! Drives guest requests through the real redo log on one thread: a discrete-event simulation whose clock moves only when
//! everything that is due has been done.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Completion, Disk as _, Lane, Medium, MediumDisk, Token};
use afterimage_format::log::PAGE_BYTES;
use afterimage_order::redo::{payload_bytes_max, Config, Core, LogSync, RedoDisk};
use afterimage_order::{Clock, Contract, VirtualClock};
use afterimage_trace::{EventKind, Layer, Op, Recording, Role, Target, TargetId};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::direct::ids_end;
use super::setting::{new_log, request};
use super::tape::{Tape, TapeMedium};
use super::{Floor, LayersOptions, Replay, Tally};
use crate::{ExploreError, Result};

/// The smallest record area that is accepted: room for two of the largest records of such an area, and the reserve.
const AREA_PAGES_MIN: u64 = 8;
/// Writes that nobody flushes become durable after this time, as in the daemon's syncer.
const UNFLUSHED_MAX: Duration = Duration::from_secs(1);
/// A log to which nothing was appended for this time is emptied by halves, as in the daemon's checkpointer.
const IDLE: Duration = Duration::from_secs(2);
/// A request that is not answered after so many turns of everything that could help it never will be.
const TURNS_MAX: usize = 256;

/// The guest layer of `recording` through the redo log: a recording with both layers. See the [module](super).
///
/// # Errors
/// The guest layer is not the disks of one group, the options are out of range, or the daemon's code fails.
pub fn replay(recording: &Recording, options: &LayersOptions) -> Result<Recording> {
    replay_noted(recording, options).map(|replay| replay.recording)
}

/// As [`replay`], with what the core declared durable, and what happened.
///
/// # Errors
/// As [`replay`].
pub fn replay_noted(recording: &Recording, options: &LayersOptions) -> Result<Replay> {
    let disks = super::guest_disks(recording)?;
    let refused = super::refused_ids(recording);
    let mut driver = Driver::new(recording, &disks, options)?;
    let place: HashMap<TargetId, usize> = disks.iter().copied().zip(0..).collect();
    let mut before_ns = recording.events.first().map_or(0, |event| event.at_ns);
    for event in &recording.events {
        let guest = match &event.kind {
            EventKind::Submit { target, id, .. } | EventKind::Complete { target, id, .. } => {
                place.contains_key(target) && !refused.contains(id)
            }
            EventKind::Mark { .. } => true,
        };
        if !guest {
            continue;
        }
        let think_ns = event.at_ns.saturating_sub(before_ns) as f64 * options.time_scale;
        before_ns = event.at_ns;
        driver.pass(Duration::from_nanos(think_ns as u64))?;
        driver.by_chance()?;
        match &event.kind {
            EventKind::Submit { target, id, op } => driver.submit(place[target], *id, op)?,
            EventKind::Complete { id, .. } => driver.wait_for(*id)?,
            EventKind::Mark { text } => driver.tape.push(EventKind::Mark { text: Arc::clone(text) }),
        }
        driver.checkpoint_if_half_full()?;
    }
    Ok(driver.finish(recording))
}

/// A request of the guest that has not been answered.
struct Pending {
    disk: usize,
    op: Op,
}

/// A sync of the log that the device is working on.
struct Running {
    sync: LogSync,
    done_at: Duration,
}

/// See the module.
struct Driver<'a> {
    options: &'a LayersOptions,
    rng: ChaCha8Rng,
    clock: Arc<VirtualClock>,
    tape: Arc<Tape>,
    targets: Vec<Target>,
    log: Arc<TapeMedium>,
    homes: Vec<Arc<TapeMedium>>,
    core: Option<Arc<Core>>,
    lanes: Vec<Box<dyn Lane>>,
    /// By the guest's name for it.
    pending: HashMap<u64, Pending>,
    /// The names in the order of submission.
    order: BTreeMap<u64, u64>,
    submitted: u64,
    /// Records that everything submitted so far makes.
    records: u64,
    part_bytes: u64,
    running: Option<Running>,
    synced_at: Duration,
    /// Where the log's end was seen to move last, and when.
    head: (u64, Duration),
    floors: Vec<Floor>,
    tally: Tally,
}

impl<'a> Driver<'a> {
    fn new(recording: &Recording, disks: &[TargetId], options: &'a LayersOptions) -> Result<Self> {
        let area_bytes = options.log_area_bytes / PAGE_BYTES * PAGE_BYTES;
        if area_bytes < AREA_PAGES_MIN * PAGE_BYTES {
            return Err(ExploreError::Usage(format!(
                "a log area of {} bytes is too small: use at least {} bytes",
                options.log_area_bytes,
                AREA_PAGES_MIN * PAGE_BYTES
            )));
        }
        if !(options.time_scale.is_finite() && options.time_scale >= 0.0) {
            return Err(ExploreError::Usage("the time scale is not a number from 0 on".to_owned()));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        let clock = Arc::new(VirtualClock::default());
        let tape = Tape::new(Arc::clone(&clock), ids_end(recording));
        let mut targets: Vec<Target> =
            disks.iter().map(|id| recording.targets[id.0 as usize].clone()).collect();
        for disk in 0..disks.len() {
            targets.push(Target {
                layer: Layer::Storage,
                role: Role::Disk(disk as u16),
                ..targets[disk].clone()
            });
        }
        let storage = |disk: usize| TargetId((disks.len() + disk) as u16);
        let homes: Vec<_> = (0..disks.len())
            .map(|disk| TapeMedium::new(&tape, storage(disk), (*targets[disk].base).clone()))
            .collect();
        let log_base = new_log(area_bytes, &homes, &mut rng)?;
        let log = TapeMedium::new(&tape, storage(disks.len()), log_base.clone());
        targets.push(Target {
            layer: Layer::Storage,
            role: Role::Log,
            bytes: log_base.len(),
            base: Arc::new(log_base),
        });
        let mut driver = Self {
            options,
            rng,
            clock,
            tape,
            targets,
            log,
            homes,
            core: None,
            lanes: Vec::new(),
            pending: HashMap::new(),
            order: BTreeMap::new(),
            submitted: 0,
            records: 0,
            part_bytes: payload_bytes_max(area_bytes),
            running: None,
            synced_at: Duration::ZERO,
            head: (0, Duration::ZERO),
            floors: Vec::new(),
            tally: Tally::default(),
        };
        driver.start()?;
        Ok(driver)
    }

    /// A process begins: takes over what is in the log, and opens a lane for each disk.
    fn start(&mut self) -> Result<()> {
        let mut config = Config::new(
            self.options.window,
            Arc::clone(&self.clock) as Arc<dyn Clock>,
            Arc::clone(&self.log) as Arc<dyn Medium>,
            self.homes.iter().map(|home| Arc::clone(home) as Arc<dyn Medium>).collect(),
            self.rng.random(),
        );
        if let Some(configure) = &self.options.configure {
            config = configure(config);
        }
        let core = Core::open(config).map_err(|e| failed("taking the log over", &e))?;
        self.lanes.clear();
        for (disk, home) in self.homes.iter().enumerate() {
            let below = Arc::new(MediumDisk::new(Arc::clone(home) as Arc<dyn Medium>));
            let lane = RedoDisk::new(Arc::clone(&core), disk, below).open_lane();
            self.lanes.push(lane.map_err(|e| failed("opening a lane", &e))?);
        }
        self.core = Some(core);
        self.synced_at = self.clock.now();
        self.note_floor();
        Ok(())
    }

    fn core(&self) -> Arc<Core> {
        Arc::clone(self.core.as_ref().expect("a process runs from `new` to `finish`"))
    }

    fn note_floor(&mut self) {
        let k = self.core().durable().0 as usize;
        if self.floors.last().is_none_or(|floor| floor.k < k) {
            self.floors.push(Floor { event: self.tape.len(), k });
        }
    }

    fn draw(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_range(0..1000) < per_mille
    }

    /// Time passes, and what is due is done.
    fn pass(&mut self, time: Duration) -> Result<()> {
        let until = self.clock.now() + time;
        let mut turns = 0;
        while let Some(due) = self.due().filter(|due| *due <= until) {
            turns = if due > self.clock.now() { 0 } else { turns + 1 };
            if turns > TURNS_MAX {
                return Err(ExploreError::Corrupt("the redo log asks for the same sync for ever".to_owned()));
            }
            self.move_to(due);
            self.act()?;
        }
        self.move_to(until);
        Ok(())
    }

    fn move_to(&self, time: Duration) {
        self.clock.advance(time.saturating_sub(self.clock.now()));
    }

    /// When the background has something to do next.
    fn due(&self) -> Option<Duration> {
        if let Some(running) = &self.running {
            return Some(running.done_at);
        }
        let core = self.core();
        let unflushed = (core.acknowledged() > core.durable()).then(|| self.synced_at + UNFLUSHED_MAX);
        let sync = core.next_sync_at().or(unflushed);
        let idle = (core.log_bytes() > 0).then(|| self.head.1 + IDLE);
        [sync, idle].into_iter().flatten().min().map(|due| due.max(self.clock.now()))
    }

    /// Does what is due now.
    fn act(&mut self) -> Result<()> {
        let now = self.clock.now();
        if self.running.is_some() {
            return self.end_sync();
        }
        let core = self.core();
        if core.log_bytes() > 0 && self.head.1 + IDLE <= now {
            self.head.1 = now;
            self.sync_now()?;
            return self.checkpoint(core.area_bytes() / 2);
        }
        self.begin_sync()
    }

    /// The syncer begins: what is appended from now on belongs to the next sync.
    fn begin_sync(&mut self) -> Result<()> {
        let core = self.core();
        self.synced_at = self.clock.now();
        let Some(sync) = core.begin_sync().map_err(|e| failed("beginning a sync", &e))? else {
            return Ok(());
        };
        let most = self.options.schedule.sync_max.as_nanos() as u64;
        let took = if self.draw(self.options.schedule.stall) {
            self.options.window.as_nanos() as u64 * self.rng.random_range(1..=4)
        } else {
            self.rng.random_range(0..=most)
        };
        self.log.begin_sync();
        self.running = Some(Running { sync, done_at: self.clock.now() + Duration::from_nanos(took) });
        Ok(())
    }

    /// The device has answered.
    fn end_sync(&mut self) -> Result<()> {
        let Some(Running { sync, done_at }) = self.running.take() else { return Ok(()) };
        self.move_to(done_at);
        let core = self.core();
        self.log.end_sync(|| core.run_sync(&sync)).map_err(|e| failed("syncing the log", &e))?;
        core.finish_sync(&sync);
        self.tally.syncs += 1;
        self.note_floor();
        self.reap_all();
        Ok(())
    }

    /// Everything appended so far durable, however long it takes.
    fn sync_now(&mut self) -> Result<()> {
        self.end_sync()?;
        self.begin_sync()?;
        self.end_sync()
    }

    fn checkpoint(&mut self, log_bytes_max: u64) -> Result<()> {
        let some = self.core().checkpoint_once(log_bytes_max).map_err(|e| failed("a checkpoint", &e))?;
        self.tally.checkpoints += u64::from(some);
        self.reap_all();
        Ok(())
    }

    /// What the checkpointer does when an append asks it to.
    fn checkpoint_if_half_full(&mut self) -> Result<()> {
        let core = self.core();
        if core.log_bytes() <= core.area_bytes() / 2 || self.rng.random_range(0..6) > 0 {
            return Ok(());
        }
        if self.running.is_none() {
            self.sync_now()?;
        }
        self.checkpoint(core.area_bytes() / 2)
    }

    /// What the schedule adds.
    fn by_chance(&mut self) -> Result<()> {
        let schedule = self.options.schedule;
        if self.draw(schedule.early_sync) && self.running.is_none() {
            self.begin_sync()?;
        }
        if self.draw(schedule.checkpoint) {
            let bytes = self.rng.random_range(1..self.core().area_bytes());
            self.checkpoint(bytes)?;
        }
        if self.draw(schedule.death) {
            self.die()?;
        }
        Ok(())
    }

    /// The process dies between two requests. The next one finds what is in the page cache, and the guest's unanswered
    /// requests are handed in again. Not while a write is unanswered: it would get a second number.
    fn die(&mut self) -> Result<()> {
        if self.pending.values().any(|pending| pending.op != Op::Flush) {
            return Ok(());
        }
        self.tally.deaths += 1;
        self.count_waits();
        self.running = None;
        self.log.abandon_sync();
        self.lanes.clear();
        self.core = None;
        self.start()?;
        let found = self.core().acknowledged().0;
        if found < self.records {
            return Err(ExploreError::Corrupt(format!(
                "the death of the process has lost requests {} to {}, which had completed",
                found + 1,
                self.records
            )));
        }
        let again: Vec<u64> = self.order.values().copied().collect();
        for id in again {
            let Pending { disk, op } = &self.pending[&id];
            self.lanes[*disk].submit(request(id, op));
        }
        self.reap_all();
        Ok(())
    }

    fn count_waits(&mut self) {
        let (held, throttled) = self.core().waits();
        self.tally.held_flushes += held;
        self.tally.throttled += throttled;
    }

    /// The guest asks for something.
    fn submit(&mut self, disk: usize, id: u64, op: &Op) -> Result<()> {
        // What waits on other lanes comes first, so that numbers follow the order of submission.
        if self.pending.values().any(|pending| pending.disk != disk) {
            self.make_room()?;
        }
        self.tape.push(EventKind::Submit { target: TargetId(disk as u16), id, op: op.clone() });
        self.submitted += 1;
        self.order.insert(self.submitted, id);
        self.pending.insert(id, Pending { disk, op: op.clone() });
        self.records += crate::prefix::parts(op, Some(self.part_bytes)).count() as u64;
        self.lanes[disk].submit(request(id, op));
        if *op == Op::Flush || !self.draw(self.options.schedule.batch) {
            self.make_room()?;
        }
        self.reap_all();
        Ok(())
    }

    /// Dispatches, and where the log is full: syncs and checkpoints until everything that was submitted is in it. Only one
    /// lane has anything that was not dispatched, so nothing is overtaken.
    fn make_room(&mut self) -> Result<()> {
        self.lanes.iter_mut().for_each(|lane| lane.dispatch());
        for _ in 0..TURNS_MAX {
            self.reap_all();
            if self.core().acknowledged().0 >= self.records {
                self.see_head();
                return Ok(());
            }
            self.sync_now()?;
            let bytes = self.rng.random_range(1..=self.core().area_bytes());
            self.checkpoint(bytes)?;
        }
        let core = self.core();
        Err(ExploreError::Corrupt(format!(
            "the redo log stays full whatever is brought home: request {} does not get in behind {}, {} of {} bytes in use",
            self.records,
            core.acknowledged().0,
            core.log_bytes(),
            core.area_bytes(),
        )))
    }

    fn see_head(&mut self) {
        let bytes = self.core().acknowledged().0;
        if bytes != self.head.0 {
            self.head = (bytes, self.clock.now());
        }
    }

    /// Goes on until a request is answered.
    fn wait_for(&mut self, id: u64) -> Result<()> {
        self.make_room()?;
        for _ in 0..TURNS_MAX {
            self.reap_all();
            if !self.pending.contains_key(&id) {
                return Ok(());
            }
            // Held back by the window rule: the sync that it waits for.
            match self.running {
                Some(_) => self.end_sync()?,
                None => self.begin_sync()?,
            }
        }
        Err(ExploreError::Corrupt(format!("the redo log never answers the guest's request {id}")))
    }

    fn reap_all(&mut self) {
        let mut completions: Vec<Completion> = Vec::new();
        for (disk, lane) in self.lanes.iter_mut().enumerate() {
            lane.reap(&mut completions);
            for Completion { token: Token(id), result } in completions.drain(..) {
                if self.pending.remove(&id).is_none() {
                    continue;
                }
                self.order.retain(|_, pending| *pending != id);
                let target = TargetId(disk as u16);
                self.tape.push(EventKind::Complete { target, id, ok: result.is_ok() });
            }
        }
    }

    fn finish(mut self, source: &Recording) -> Replay {
        self.count_waits();
        let mut about = source.about.clone();
        let contract = Contract::PowerWindow { window: self.options.window };
        about.insert("contract".to_owned(), contract.to_string().into());
        let replay = serde_json::json!({
            "seed": self.options.seed,
            "log_area_bytes": self.options.log_area_bytes,
            "time_scale": self.options.time_scale,
        });
        about.insert("layers".to_owned(), replay);
        let targets = std::mem::take(&mut self.targets);
        let recording = Recording { about, targets, events: self.tape.take() };
        Replay { recording, floors: std::mem::take(&mut self.floors), tally: self.tally }
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> ExploreError {
    ExploreError::Corrupt(format!("replaying the guest's requests through the redo log: {what}: {error}"))
}
