//! Drives guest requests through the real redo log on one thread: a discrete-event simulation whose clock moves only when
//! everything that is due has been done.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Completion, Disk as _, Lane, Medium, Sector, Token};
use afterimage_format::log::PAGE_BYTES;
use afterimage_order::redo::{payload_bytes_max, Redo};
use afterimage_order::{Clock as _, Contract, VirtualClock};
use afterimage_trace::{EventKind, Layer, Op, Recording, Role, Target, TargetId};
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::device::{Device, Shared};
use super::direct::ids_end;
use super::retained::Retained;
use super::setting::{new_log, request};
use super::tape::{Tape, TapeMedium};
use super::{failed, LayersOptions, Replay, TURNS_MAX};
use crate::retained::{overlap, Journals};
use crate::{ExploreError, Result};

/// The smallest record area that is accepted: room for two of the largest records of such an area, and the reserve.
const AREA_PAGES_MIN: u64 = 8;
/// The most events of the guest that one of its writes is late.
const LATE_EVENTS_MAX: u32 = 60;

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
            EventKind::Publish { target, .. } => place.contains_key(target),
            EventKind::Mark { .. } => true,
        };
        if !guest {
            continue;
        }
        let think_ns = event.at_ns.saturating_sub(before_ns);
        before_ns = event.at_ns;
        driver.pass(Duration::from_nanos(think_ns))?;
        driver.by_chance()?;
        match &event.kind {
            EventKind::Submit { target, id, op } => driver.submit(place[target], *id, op)?,
            // A kernel need not have waited for it.
            EventKind::Complete { id, .. } if driver.is_late(*id) => {}
            EventKind::Complete { id, .. } => driver.wait_for(*id)?,
            EventKind::Publish { target, slot, runs } => driver.tape.push(EventKind::Publish {
                target: TargetId(place[target] as u16),
                slot: *slot,
                runs: Arc::clone(runs),
            }),
            EventKind::Mark { text } => driver.tape.push(EventKind::Mark { text: Arc::clone(text) }),
        }
        driver.device.lock().turn_home_if_wanted()?;
        driver.reap_all();
    }
    Ok(driver.finish(recording))
}

/// The bytes that a request changes.
fn bytes_of(op: &Op) -> Range<u64> {
    match op {
        Op::Write { offset, data, .. } => *offset..offset + data.len() as u64,
        Op::Zero { offset, len, .. } => *offset..offset + len,
        Op::Flush => 0..0,
    }
}

/// A request of the guest that has not been answered.
struct Pending {
    disk: usize,
    op: Op,
}

/// The write that is late.
struct LateWrite {
    id: u64,
    disk: usize,
    bytes: Range<u64>,
    /// For so many events more.
    events: u32,
}

/// See the module.
struct Driver<'a> {
    options: &'a LayersOptions,
    clock: Arc<VirtualClock>,
    tape: Arc<Tape>,
    targets: Vec<Target>,
    device: Shared,
    retained: Option<Retained>,
    /// Where the guest's journals are, by disk; empty where they are passed through.
    journals: Vec<Journals>,
    late: Option<LateWrite>,
    lanes: Vec<Box<dyn Lane>>,
    /// By the guest's name for it.
    pending: HashMap<u64, Pending>,
    /// The names in the order of submission.
    order: BTreeMap<u64, u64>,
    submitted: u64,
    /// Records that everything submitted so far makes. Where journals are retained that is not known: what was in the log
    /// when it was last looked at.
    records: u64,
    part_bytes: u64,
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
        let sizes = homes.iter().map(|home| home.len()).collect();
        let retained = options.retain.as_ref().map(|how| Retained::new(how, sizes)).transpose()?;
        let device = Device::new(options, rng, Arc::clone(&clock), Arc::clone(&tape), log, homes);
        let mut driver = Self {
            options,
            clock,
            tape,
            targets,
            device: Arc::new(Mutex::new(device)),
            journals: retained.as_ref().map_or_else(Vec::new, |_| Journals::of(recording, disks)),
            late: None,
            retained,
            lanes: Vec::new(),
            pending: HashMap::new(),
            order: BTreeMap::new(),
            submitted: 0,
            records: 0,
            part_bytes: payload_bytes_max(area_bytes),
        };
        driver.start()?;
        Ok(driver)
    }

    /// A process begins: takes over what is in the log and in the arenas, and opens a lane for each disk.
    fn start(&mut self) -> Result<()> {
        let disks = self.device.lock().start()?;
        self.lanes = match &mut self.retained {
            Some(retained) => retained.start(disks, &self.device)?,
            None => {
                let lanes = disks.iter().map(|disk| disk.open_lane());
                lanes.collect::<std::result::Result<_, _>>().map_err(|e| failed("opening a lane", &e))?
            }
        };
        Ok(())
    }

    fn core(&self) -> Arc<Redo> {
        self.device.lock().core()
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
            self.device.lock().move_to(due);
            self.act()?;
        }
        self.device.lock().move_to(until);
        Ok(())
    }

    /// When the background has something to do next. Where room is wanted, the thread may come late.
    fn due(&self) -> Option<Duration> {
        let device = self.device.lock();
        let core = device.core();
        let home = (!core.going_home.is_requested()).then(|| core.going_home.next());
        let due = [device.running_until(), core.syncer.next(), home].into_iter().flatten().min();
        due.map(|due| due.max(self.clock.now()))
    }

    /// Does what is due now.
    fn act(&mut self) -> Result<()> {
        let now = self.clock.now();
        let mut device = self.device.lock();
        if device.running_until().is_some_and(|at| at <= now) {
            device.end_sync()?;
        } else if device.core().syncer.next().is_some_and(|at| at <= now) {
            device.turn_sync()?;
        } else {
            device.turn_home()?;
        }
        drop(device);
        self.reap_all();
        Ok(())
    }

    fn is_late(&self, id: u64) -> bool {
        self.late.as_ref().is_some_and(|late| late.id == id)
    }

    /// The late write arrives, and is answered.
    fn end_late(&mut self) -> Result<()> {
        let (Some(late), Some(retained)) = (self.late.take(), &self.retained) else { return Ok(()) };
        retained.late.set(None);
        self.wait_for(late.id)
    }

    /// The guest is about to ask for something: what a kernel would have waited for before is answered, and perhaps this
    /// is late. Whether it is.
    fn lateness(&mut self, disk: usize, id: u64, op: &Op) -> Result<bool> {
        let Some(retained) = &self.retained else { return Ok(false) };
        let (bytes, journals) = (bytes_of(op), &mut self.journals[disk]);
        journals.see(op);
        // A write of the same bytes comes after the one before; the journal's superblock after everything; and what completes as
        // if flushed may be long in the log before it is answered.
        let flushed = matches!(op, Op::Write { flushed: true, .. } | Op::Zero { flushed: true, .. });
        let awaited = |late: &LateWrite| {
            late.disk == disk && overlap(&late.bytes, &bytes) || journals.in_superblock(&bytes) || flushed
        };
        let may_be = journals.is_checkpoint(op);
        let per_mille = retained.how.late;
        if self.late.as_ref().is_some_and(awaited) {
            self.end_late()?;
        }
        let one = crate::prefix::parts(op, Some(self.part_bytes)).count() == 1;
        if self.late.is_some() || !may_be || !one || !self.device.lock().draw(per_mille) {
            return Ok(false);
        }
        let events = self.device.lock().rng.random_range(1..LATE_EVENTS_MAX);
        if let Some(retained) = &self.retained {
            retained.late.set(Some((disk, Sector(bytes.start / 512))));
        }
        self.late = Some(LateWrite { id, disk, bytes, events });
        Ok(true)
    }

    /// What the schedule adds.
    fn by_chance(&mut self) -> Result<()> {
        if let Some(late) = &mut self.late {
            late.events -= 1;
            if late.events == 0 {
                self.end_late()?;
            }
        }
        let schedule = self.options.schedule;
        let mut device = self.device.lock();
        if device.draw(schedule.early_sync) && device.running_until().is_none() {
            device.begin_sync()?;
        }
        if device.draw(schedule.checkpoint) {
            let area_bytes = device.core().log.area_bytes();
            let bytes = device.rng.random_range(1..area_bytes);
            device.checkpoint(bytes)?;
        }
        let dies = device.draw(schedule.death);
        drop(device);
        self.reap_all();
        if let Some(retained) = &mut self.retained {
            retained.by_chance(&self.device, self.pending.is_empty())?;
        }
        if dies {
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
        self.lanes.clear();
        if let Some(retained) = &mut self.retained {
            retained.stop();
            self.records = self.core().board.sequence.acknowledged.get().0;
        }
        let mut device = self.device.lock();
        device.tally.deaths += 1;
        device.stop();
        drop(device);
        self.start()?;
        let found = self.core().board.sequence.acknowledged.get().0;
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

    /// The guest asks for something.
    fn submit(&mut self, disk: usize, id: u64, op: &Op) -> Result<()> {
        // What waits on other lanes comes first, so that numbers follow the order of submission.
        if self.pending.values().any(|pending| pending.disk != disk) {
            self.make_room()?;
        }
        let is_late = self.lateness(disk, id, op)?;
        self.tape.push(EventKind::Submit { target: TargetId(disk as u16), id, op: op.clone() });
        if let Some(retained) = &self.retained {
            retained.read_first(disk, op)?;
        }
        self.submitted += 1;
        self.order.insert(self.submitted, id);
        self.pending.insert(id, Pending { disk, op: op.clone() });
        self.records += crate::prefix::parts(op, Some(self.part_bytes)).count() as u64;
        self.lanes[disk].submit(request(id, op));
        if self.late.is_some() {
            // So it is clear what came before the late write and what after: what is not answered now waits for it.
            self.reap_all();
            if !is_late && *op != Op::Flush && self.pending.contains_key(&id) {
                self.end_late()?;
                self.wait_for(id)?;
            }
            return Ok(());
        }
        let waits = *op != Op::Flush && self.device.lock().draw(self.options.schedule.batch);
        if !waits {
            self.make_room()?;
        } else if self.retained.is_some() {
            // It is in the log, and completes later.
            return Ok(());
        }
        self.reap_all();
        Ok(())
    }

    /// Dispatches, and where the log is full: syncs and checkpoints until everything that was submitted is in it. Only one
    /// lane has anything that was not dispatched, so nothing is overtaken.
    fn make_room(&mut self) -> Result<()> {
        self.lanes.iter_mut().for_each(|lane| lane.dispatch());
        if self.retained.is_some() {
            self.reap_all();
            return Ok(());
        }
        for _ in 0..TURNS_MAX {
            self.reap_all();
            if self.core().board.sequence.acknowledged.get().0 >= self.records {
                return Ok(());
            }
            self.device.lock().make_room()?;
            self.reap_all();
        }
        let core = self.core();
        Err(ExploreError::Corrupt(format!(
            "the redo log stays full whatever is brought home: request {} does not get in behind {}, {} of {} bytes in use",
            self.records,
            core.board.sequence.acknowledged.get().0,
            core.log.bytes_used(),
            core.log.area_bytes(),
        )))
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
            self.device.lock().go_on()?;
            self.reap_all();
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
        // What is late arrives.
        self.lanes.clear();
        self.retained = None;
        self.device.lock().stop();
        let mut about = source.about.clone();
        let contract = Contract::PowerWindow { window: self.options.window };
        about.insert("contract".to_owned(), contract.to_string().into());
        let mut replay = serde_json::json!({
            "seed": self.options.seed,
            "log_area_bytes": self.options.log_area_bytes,
        });
        if let Some(retain) = &self.options.retain {
            about.insert(super::JOURNAL.to_owned(), super::RETAIN.into());
            replay["arena_bytes_max"] = retain.arena_bytes_max.into();
        }
        about.insert(super::LAYERS.to_owned(), replay);
        let targets = std::mem::take(&mut self.targets);
        let recording = Recording { about, targets, events: self.tape.take() };
        let mut device = self.device.lock();
        Replay { recording, floors: std::mem::take(&mut device.floors), tally: device.tally }
    }
}
