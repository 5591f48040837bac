//! A seed's guests, daemons and device, and what happens to them.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_control_disk::PUBLISHED_US_MAX;
use afterimage_frontend::inband::{Peer, Progress};
use afterimage_order::Contract;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::ledger::{Death, End, Promises};
use super::plan::{Fault, Plan, Planned};
use super::tally::Tally;
use super::vext4::{self, Vext4};
use super::{script, SimulateOptions};
use crate::calendar::Ns;
use crate::canary::{Canary, Slip};
use crate::crowd::{Crowd, Turn};
use crate::daemon::{panic_said, Daemon};
use crate::error::{io_error, RunError};
use crate::machine::{Died, Machine};
use crate::options::RunOptions;
use crate::site::{Files, Site};
use crate::storage::Storage;
use crate::trace::Trace;

const MS: Ns = 1_000_000;
/// Those of the drive below `power`: as the daemon reports them.
const PHYSICAL_SECTOR_BYTES: usize = 4096;
/// How long somebody waits who needs guests that have booted.
const PATIENCE: Ns = 500 * MS;
/// How long a fault awaits a guest that works, and how often it looks: most boots get there well within a second.
const WORK_AWAITED_MAX: Ns = 5_000 * MS;
const GLANCE: Ns = 10 * MS;
/// A guest that waits, and for which nobody does anything, waits for a late interrupt (below a second) or in vain.
const STANDS_MAX: Ns = 3_000 * MS;

pub enum Ended {
    Run(Box<RunError>),
    Broken(String),
}

/// How long nothing has moved in a queue for which nobody does anything, though somebody waits.
#[derive(Default)]
struct Standstill(Option<(Progress, Ns)>);

impl Standstill {
    /// It is the daemon that does not answer.
    fn is_unanswered(&self) -> bool {
        self.0.is_some_and(|(stands, _)| stands.available != stands.used)
    }

    /// What is seen now; whether it has been so for too long.
    fn look(&mut self, stands: Option<Progress>, now: Ns) -> bool {
        match (self.0, stands) {
            (Some((before, since)), Some(stands)) if before == stands => now - since > STANDS_MAX,
            _ => {
                self.0 = stands.map(|stands| (stands, now));
                false
            }
        }
    }
}

impl From<RunError> for Ended {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

/// What is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The next fault of the plan.
    Fault,
    KillDaemon(usize),
    StartDaemon {
        guest: usize,
        again: Option<Ns>,
    },
    Boot(usize),
    /// A late interrupt.
    Call(usize),
    /// Guest and daemon are started anew after an error.
    Repair(usize),
    Cut {
        down: Ns,
    },
    PowerOn,
    /// The last boots.
    Finish,
}

struct Guest {
    files: Files,
    promises: Promises,
    boot: u32,
    /// Whether it is there.
    up: bool,
    /// It is to look, and to end.
    last: bool,
    /// Since when it waits for what nobody does.
    standstill: Standstill,
    /// Its daemon has begun, and has not been killed; and whether it is still recovering.
    daemon: Option<bool>,
    /// How long before it is to be killed it may die within a write.
    early: Ns,
    /// Its next interrupt is not delivered.
    loses: bool,
    /// An error may have hit it.
    failing: bool,
}

pub struct World<'a> {
    plan: &'a Plan,
    run: &'a RunOptions,
    folder: &'a Path,
    trace: &'a Arc<Trace>,
    storage: Arc<Mutex<Storage>>,
    crowd: Crowd,
    guests: Vec<Guest>,
    events: BTreeMap<(Ns, u64), Event>,
    order: u64,
    next_fault: usize,
    /// Since when it has been due.
    fault_due: Option<Ns>,
    /// The last boots have begun.
    finishing: bool,
    rng: ChaCha8Rng,
    /// Of [`Guest::early`]: takes nothing from what else the seed draws.
    early: ChaCha8Rng,
    canary: Canary,
    tally: Tally,
}

impl<'a> World<'a> {
    pub fn new(
        plan: &'a Plan,
        run: &'a RunOptions,
        options: &SimulateOptions,
        folder: &'a Path,
        trace: &'a Arc<Trace>,
    ) -> Result<Self, RunError> {
        let storage = Storage::new(run.model, run.limits, run.host_fs);
        let (mut daemons, mut guests) = (Vec::new(), Vec::new());
        for guest in 0..plan.guests {
            let files = Files::make(guest, run, folder, &storage)?;
            files.image.break_word(options.canary.device());
            files.log.break_word(options.canary.device());
            // Here nothing of ours is there to mend what is torn, and a file system cannot: its superblocks, of which a mount wants one, have two
            // sectors of 512 bytes, and a torn commit block is no end of the journal (docs/lab.md). A drive as the daemon says that it is.
            if plan.contract == Contract::Power {
                files.image.keep_sectors_whole(PHYSICAL_SECTOR_BYTES);
            }
            let machine = Machine::mortal(&storage, run.request_ns, 0);
            let site = Site::open(&files, run, &machine, trace)
                .map_err(|source| RunError::Compose { guest, source })?;
            daemons.push(Daemon::new(&site));
            let promises = Promises::default();
            guests.push(Guest {
                files,
                promises,
                boot: 0,
                up: false,
                last: false,
                standstill: Standstill::default(),
                daemon: Some(false),
                early: 0,
                loses: false,
                failing: false,
            });
        }
        storage.lock().start();
        let crowd = Crowd::new(folder, &storage, daemons, Instant::now(), run.limit)?;
        let mut world = Self {
            plan,
            run,
            folder,
            trace,
            storage,
            crowd,
            guests,
            events: BTreeMap::new(),
            order: 0,
            next_fault: 0,
            fault_due: None,
            finishing: false,
            rng: ChaCha8Rng::seed_from_u64(plan.seed ^ 0xfa17),
            early: ChaCha8Rng::seed_from_u64(plan.seed ^ 0x7ea4),
            canary: options.canary,
            tally: Tally::default(),
        };
        for guest in 0..plan.guests {
            world.boot(guest)?;
        }
        world.schedule(300 * MS, Event::Fault);
        Ok(world)
    }

    pub fn live(&mut self) -> Result<(), Ended> {
        loop {
            let own = self.events.keys().next().map(|(at, _)| *at);
            match self.crowd.turn(own)? {
                Turn::Taken => {}
                Turn::Rings(id) if std::mem::take(&mut self.guests[id].loses) => self.tally.calls_lost += 1,
                Turn::Rings(id) => self.crowd.interrupt(id)?,
                Turn::Own(at) => self.happen(at)?,
                Turn::Over => match own {
                    Some(at) => {
                        self.crowd.calendar.reach(at);
                        self.happen(at)?;
                    }
                    None => return Ok(()),
                },
            }
            for id in self.crowd.take_gone() {
                if self.guests[id].up {
                    self.gone(id, End::Itself)?;
                }
            }
            let now = self.crowd.calendar.now();
            for (id, guest) in self.guests.iter_mut().enumerate() {
                guest.files.image.settle(now);
                guest.files.log.settle(now);
                let peer = self.crowd.guests[id].peer.as_ref().filter(|_| guest.up);
                let stands = self.crowd.daemons[id].stands(now, peer);
                if guest.standstill.look(stands, now) {
                    let what = format!(
                        "guest {id} has waited for {} s, and its daemon for nothing: {stands:?}",
                        STANDS_MAX / 1000 / MS
                    );
                    return Err(Ended::Broken(what));
                }
            }
            self.die_writing();
        }
    }

    /// Daemons that have died within a write have died then, and not when they were to die at the latest.
    fn die_writing(&mut self) {
        for id in 0..self.guests.len() {
            let daemon = &self.crowd.daemons[id];
            if self.guests[id].daemon == Some(false) && !daemon.lives() {
                self.died_at(id, daemon.machine().dies_at());
            }
        }
    }

    fn died_at(&mut self, id: usize, at: Ns) {
        let kills = |event: &Event| *event == Event::KillDaemon(id);
        // Or this is what was due.
        let is_due = |(when, event): (&(Ns, u64), &Event)| {
            when.0 <= at && (kills(event) || matches!(event, Event::Cut { .. }))
        };
        let due = self.events.iter().any(is_due);
        let kill = self.events.iter().find(|(_, event)| kills(event)).map(|(key, _)| *key);
        if let Some(key) = kill.filter(|_| !due) {
            self.events.remove(&key);
            self.tally.kills_in_writes += 1;
            self.schedule(at, Event::KillDaemon(id));
        }
    }

    /// What it came to. What is left of daemons that live reaches nothing any more.
    pub fn end(mut self) -> Tally {
        let mut tally = self.tally;
        tally.runs = 1;
        let begun = tally.restarts + self.plan.guests as u64;
        assert!(tally.daemon_kills <= begun, "{} of {begun} daemons were killed", tally.daemon_kills);
        tally.guest_s = self.crowd.calendar.now() as f64 / 1e9 * self.plan.guests as f64;
        for Guest { promises, files, .. } in &self.guests {
            tally.acknowledged += promises.acknowledged;
            tally.lost_within_window += promises.lost;
            tally.judged += promises.looks;
            tally.checks += promises.checks;
            tally.io_errors += files.image.failed() + files.log.failed();
        }
        tally.judged_nothing = u64::from(tally.judged == 0);
        self.crowd.daemons.iter_mut().for_each(Daemon::die);
        tally
    }

    fn schedule(&mut self, at: Ns, event: Event) {
        self.order += 1;
        self.events.insert((at, self.order), event);
        self.doom();
    }

    /// Daemons that are to die know when.
    fn doom(&self) {
        for ((at, _), event) in &self.events {
            for (id, daemon) in self.crowd.daemons.iter().enumerate() {
                self.doom_by(id, *at, *event, daemon.machine());
            }
        }
    }

    /// Half of those that are to be killed die within the first write of several pages that they begin some time before.
    fn doom_by(&self, id: usize, at: Ns, event: Event, machine: &Machine) {
        if event == Event::KillDaemon(id) {
            machine.die_writing_from(at.saturating_sub(self.guests[id].early));
        }
        if event == Event::KillDaemon(id) || matches!(event, Event::Cut { .. }) {
            machine.die_at(at);
        }
    }

    fn kill_daemon_at(&mut self, id: usize, at: Ns) {
        let early = self.early.random_range(MS..1000 * MS);
        self.guests[id].early = if self.early.random() { early } else { 0 };
        self.schedule(at, Event::KillDaemon(id));
    }

    /// The earliest that a daemon may still be killed: what it has done is done.
    fn earliest(&self, ids: impl Iterator<Item = usize>, at: Ns) -> Ns {
        ids.map(|id| self.crowd.daemons[id].machine().now_ns() + 1).max().unwrap_or(0).max(at)
    }

    fn note(&self, at: Ns, what: &str) {
        self.trace.say(at, what);
    }

    fn happen(&mut self, at: Ns) -> Result<(), Ended> {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= at) {
            let event = entry.remove();
            // What a fault is, is said where it comes.
            if event != Event::Fault {
                self.note(at, &format!("{event:?}"));
            }
            match event {
                Event::Fault => self.fault(at)?,
                Event::KillDaemon(id) => {
                    // Unless it is dead already: two kills of a plan may meet.
                    if let Some(recovers) = self.guests[id].daemon {
                        self.tally.daemon_kills += 1;
                        self.tally.kills_in_recovery += u64::from(recovers);
                    }
                    self.bury(id, at);
                }
                Event::StartDaemon { guest, again } => self.start(guest, again, at)?,
                Event::Boot(id) => self.boot(id)?,
                Event::Call(id) => {
                    self.guests[id].loses = false;
                    let set_up = self.crowd.guests[id].peer.as_ref().and_then(Peer::backend).is_some();
                    if self.guests[id].up && set_up && self.crowd.guests[id].enabled {
                        self.crowd.interrupt(id)?;
                    }
                }
                Event::Repair(id) => self.repair(id, at)?,
                Event::Cut { down } => self.cut(down, at)?,
                Event::PowerOn => {
                    for id in 0..self.guests.len() {
                        self.start(id, None, at)?;
                        self.boot(id)?;
                    }
                }
                Event::Finish => self.finish(at)?,
            }
        }
        Ok(())
    }

    /// The plan's next fault, and when the one after it is.
    fn fault(&mut self, at: Ns) -> Result<(), Ended> {
        let Some(Planned { gap, fault, awaits_work }) = self.plan.faults.get(self.next_fault).copied() else {
            self.schedule(at + PATIENCE, Event::Finish);
            return Ok(());
        };
        let due = *self.fault_due.get_or_insert(at);
        let awaited = fault.guest().filter(|_| awaits_work && at < due + WORK_AWAITED_MAX);
        if awaited.is_some_and(|guest| !self.is_ready(&self.guests[guest])) {
            self.schedule(at + GLANCE, Event::Fault);
            return Ok(());
        }
        let wants = match fault {
            Fault::Cut { .. } => {
                self.guests.iter().all(|guest| guest.promises.was_ready || self.is_ready(guest))
            }
            // Whoever waits in vain would be saved.
            Fault::KillGuest { guest, .. } => !self.guests[guest].standstill.is_unanswered(),
            _ => true,
        };
        if !wants {
            // Of a file system that is being made nothing is promised yet.
            self.schedule(at + PATIENCE, Event::Fault);
            return Ok(());
        }
        self.next_fault += 1;
        self.fault_due = None;
        self.note(at, &format!("{fault:?}"));
        let mut then = at + gap;
        match fault {
            Fault::KillDaemon { guest, down, again } => {
                then = self.earliest([guest].into_iter(), then);
                self.kill_daemon_at(guest, then);
                self.schedule(then + down, Event::StartDaemon { guest, again });
            }
            Fault::KillGuest { guest, down } => {
                if self.guests[guest].up {
                    self.tally.guest_kills += 1;
                    self.kill(guest)?;
                    self.schedule(at + down, Event::Boot(guest));
                }
            }
            Fault::LoseCall { guest, late } => {
                self.guests[guest].loses = true;
                self.schedule(at + late, Event::Call(guest));
            }
            Fault::Stall { long } => {
                self.tally.stalls += 1;
                self.storage.lock().stall(at, at + long);
            }
            Fault::Fail { guest, log, fails, repair } => {
                let state = &mut self.guests[guest];
                state.failing = self.canary != Canary::World(Slip::UntoldError);
                let file =
                    if log && state.files.log_bytes() > 0 { &state.files.log } else { &state.files.image };
                file.fail(Some(fails));
                self.schedule(at + repair, Event::Repair(guest));
            }
            Fault::Cut { down } => {
                then = self.earliest(0..self.guests.len(), then);
                self.schedule(then, Event::Cut { down });
            }
        }
        self.schedule(then, Event::Fault);
        Ok(())
    }

    /// Whether a guest has said that there is a file system.
    fn is_ready(&self, guest: &Guest) -> bool {
        guest.up && self.console(guest).lines().any(|line| line.trim_end() == script::READY)
    }

    fn console(&self, guest: &Guest) -> String {
        let id = guest.files.guest();
        let said = fs::read(self.folder.join(format!("guest{id}.out"))).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// A daemon is dead from that time on.
    fn bury(&mut self, id: usize, at: Ns) {
        self.crowd.daemons[id].die();
        self.guests[id].daemon = None;
        self.guests[id].files.image.die(at);
        self.guests[id].files.log.die(at);
    }

    /// A daemon begins, unless one is there.
    fn start(&mut self, id: usize, again: Option<Ns>, at: Ns) -> Result<(), Ended> {
        if self.crowd.daemons[id].lives() {
            return Ok(());
        }
        self.tally.restarts += 1;
        if let Some(after) = again {
            let then = at + after;
            self.kill_daemon_at(id, then);
            self.schedule(then + 10 * MS, Event::StartDaemon { guest: id, again: None });
        }
        let machine = Machine::mortal(&self.storage, self.run.request_ns, at);
        self.events.iter().for_each(|((at, _), event)| self.doom_by(id, *at, *event, &machine));
        let files = &self.guests[id].files;
        let opened = catch_unwind(AssertUnwindSafe(|| Site::open(files, self.run, &machine, self.trace)));
        match opened {
            Ok(Ok(site)) => {
                self.guests[id].daemon = Some(false);
                self.crowd.daemons[id] = Daemon::new(&site);
                drop(site);
                self.crowd.attach(id)?;
                if self.canary == Canary::World(Slip::LostKick) {
                    self.crowd.daemons[id].lose_kick();
                }
            }
            // The device fails just then: it is tried again when it does not.
            Ok(Err(_)) if self.guests[id].failing => machine.bury(),
            Ok(Err(error)) => return Err(Ended::Broken(format!("daemon {id} does not start: {error}"))),
            Err(panic) if panic.is::<Died>() => {
                machine.bury();
                self.guests[id].daemon = Some(true);
                self.died_at(id, machine.dies_at());
            }
            Err(panic) => {
                let said = panic_said(&*panic);
                return Err(Ended::Broken(format!("daemon {id} panics while it starts: {said}")));
            }
        }
        Ok(())
    }

    fn boot(&mut self, id: usize) -> Result<(), RunError> {
        let guest = &mut self.guests[id];
        if guest.up {
            return Ok(());
        }
        guest.boot += 1;
        (guest.up, guest.last) = (true, self.finishing);
        self.tally.boots += 1;
        let (look, remove) = guest.promises.next();
        let list = |boots: Vec<u32>| boots.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut options = self.run.guest.clone();
        options.seed = self.plan.seed.wrapping_mul(100).wrapping_add(u64::from(guest.boot));
        options.append.extend([
            format!("BOOT={}", guest.boot),
            format!("FRESH={}", u8::from(!guest.promises.was_ready)),
            format!("FINAL={}", u8::from(self.finishing)),
            format!("LOOK={}", list(look)),
            format!("REMOVE={}", list(remove)),
        ]);
        if let Some(vext4) = &self.plan.vext4 {
            options.append.extend(vext4.append_to_boot(&mut self.rng, self.finishing));
        }
        self.crowd.boot(id, &options, self.folder)
    }

    /// A guest is killed.
    fn kill(&mut self, id: usize) -> Result<(), Ended> {
        if self.crowd.kill(id)? {
            self.crowd.take_gone();
            self.gone(id, End::Killed)?;
        }
        Ok(())
    }

    /// A guest has ended.
    fn gone(&mut self, id: usize, end: End) -> Result<(), Ended> {
        let console = self.console(&self.guests[id]);
        let contract = self.plan.contract;
        self.tally.refusals += u64::from(console.contains(vext4::REFUSED));
        // Where it was told to, which is a death like any other.
        let end = match end {
            End::Itself if self.plan.vext4.is_some() && console.contains(vext4::PANICKED) => {
                self.tally.panics += 1;
                let down = self.rng.random_range(MS / 10..1000 * MS);
                let now = self.crowd.calendar.now();
                self.note(now, &format!("guest {id} panicked"));
                self.schedule(now + down, Event::Boot(id));
                End::Killed
            }
            end => end,
        };
        let publishes = self.plan.vext4.as_ref().is_some_and(Vext4::publishes);
        // What it published is taken by who can write: by nobody who is dead, or whose storage fails.
        let takes = self.crowd.daemons[id].lives() && !self.guests[id].failing;
        let untaken = match publishes && !takes {
            true => Duration::from_micros(PUBLISHED_US_MAX.into()),
            false => Duration::ZERO,
        };
        let guest = &mut self.guests[id];
        (guest.up, guest.loses) = (false, false);
        let death = Death { end, last: guest.last, failing: guest.failing, untaken };
        let heard = guest.promises.hear(guest.boot, &console, death, contract);
        heard.map_err(|what| {
            let last: Vec<&str> = console.lines().collect();
            let last = last[last.len().saturating_sub(15)..].join("\n    ");
            Ended::Broken(format!("guest {id}, {what}\n  it had said:\n    {last}"))
        })
    }

    /// After an error: guest and daemon anew.
    fn repair(&mut self, id: usize, at: Ns) -> Result<(), Ended> {
        self.kill(id)?;
        self.bury(id, self.earliest([id].into_iter(), at));
        let guest = &mut self.guests[id];
        guest.failing = false;
        guest.files.image.fail(None);
        guest.files.log.fail(None);
        let from = self.earliest([id].into_iter(), at);
        self.schedule(from + MS, Event::StartDaemon { guest: id, again: None });
        self.schedule(from + 2 * MS, Event::Boot(id));
        Ok(())
    }

    /// The host's power fails.
    fn cut(&mut self, down: Ns, at: Ns) -> Result<(), Ended> {
        self.tally.power_cuts += 1;
        for id in 0..self.guests.len() {
            self.crowd.daemons[id].die();
            self.guests[id].daemon = None;
            self.kill(id)?;
            // What it had found was there before the cut: heard by now.
            assert!(!self.guests[id].up, "guest {id} outlives a power cut");
            self.guests[id].promises.cut();
            let files = &self.guests[id].files;
            files.image.cut(at, &mut self.rng);
            files.log.cut(at, &mut self.rng);
            files.forget_memory().map_err(io_error("forget arenas"))?;
            self.guests[id].failing = false;
        }
        self.storage.lock().restart(self.run.model, self.run.limits, self.run.host_fs, at);
        // Nothing that was begun before goes on.
        self.events.retain(|_, event| matches!(event, Event::Fault | Event::Finish));
        self.schedule(at + down, Event::PowerOn);
        Ok(())
    }

    /// Everybody boots once more, looks, and ends.
    fn finish(&mut self, at: Ns) -> Result<(), Ended> {
        let waits = self.events.values().any(|event| !matches!(event, Event::Call(_)));
        if waits || self.guests.iter().any(|guest| guest.standstill.0.is_some()) {
            self.schedule(at + PATIENCE, Event::Finish);
            return Ok(());
        }
        self.finishing = true;
        for id in 0..self.guests.len() {
            self.kill(id)?;
            self.start(id, None, at)?;
            // Who never came as far as a file system has nothing to look at, and would begin to work.
            if self.guests[id].promises.was_ready {
                self.boot(id)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_nothing_is_seen_and_who_is_answered_is_not() {
        let stands = |used| Some(Progress { available: 7, used, taken: None });
        let looks = |seen: &[(Option<Progress>, Ns)]| {
            let mut standstill = Standstill::default();
            seen.iter().any(|(stands, at)| standstill.look(*stands, at * MS))
        };
        assert!(looks(&[(stands(6), 1), (stands(6), 3_002)]));
        assert!(!looks(&[(stands(6), 1), (stands(6), 3_001)]));
        assert!(!looks(&[(stands(5), 1), (stands(6), 3_001), (stands(6), 6_000)]), "an answer");
        assert!(!looks(&[(stands(6), 1), (None, 3_001), (stands(6), 6_000)]), "somebody was busy");
    }
}
