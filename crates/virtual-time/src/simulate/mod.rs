//! Whole systems from one seed: real kernels, real databases, our daemon, and everything that goes wrong, at any instant of virtual time.
//!
//! ```text
//!   plan: who, on what, what goes wrong ─► events ─► crowd: guests and daemons take their turns
//!                                           ▲  │ killed: unwinds where its clock reaches the instant; its files stay
//!     the next one begins, boots ───────────┘  │ power: what of the files was durable, and any part of the rest
//!   script: each boot looks at what earlier ones left ─► console ─► ledger: what was promised, what is there
//! ```
//!
//! A seed is run by a process of its own, whose random numbers are pinned like the guests' kernel's: identities of arenas and logs are
//! random, and guests see some of them.
//!
//! A daemon is one thread here but for syncs of its log, so that what it has in memory is always what it has done by its own
//! clock. Not simulated: two threads of one daemon at one moment, and what the kernel of its host does wrong.

mod ledger;
mod plan;
mod script;
mod vext4;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_frontend::inband::Peer;
use afterimage_order::Contract;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::calendar::Ns;
use crate::canary::Canary;
use crate::crowd::{Crowd, Turn};
use crate::daemon::{panic_said, Daemon};
use crate::guest::{GuestKernel, GuestOptions};
use crate::machine::{Died, Machine, Storage};
use crate::page_cache::DirtyLimits;
use crate::site::{Files, Site};
use crate::trace::Trace;
use crate::world::{io_error, RunError, RunOptions};
use ledger::{End, Promises};
use plan::{Fault, Plan};
use vext4::Vext4;

const MS: Ns = 1_000_000;
const IMAGE_BYTES: u64 = 64 << 20;
const MEMORY_MIB: u32 = 96;
/// How long somebody waits who needs guests that have booted.
const PATIENCE: Ns = 500 * MS;

/// What is simulated, and with which programs.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// The guests' kernel.
    pub kernel: GuestKernel,
    /// The program that works inside.
    pub agent: PathBuf,
    /// No more guests than so many.
    pub guests_max: usize,
    /// What is broken on purpose.
    pub canary: Canary,
    /// Guests have `vext4`: the folder with the tests' programs.
    pub vext4: Option<PathBuf>,
    /// How long one seed may take in real time.
    pub limit: Duration,
}

/// What happened: a simulation that never does the interesting things proves nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Seeds.
    pub runs: u64,
    /// Virtual time of all guests together, in seconds.
    pub guest_s: f64,
    /// Boots of guests.
    pub boots: u64,
    /// Daemons that were killed.
    pub daemon_kills: u64,
    /// Of these while they recovered.
    pub kills_in_recovery: u64,
    /// Guests that were killed.
    pub guest_kills: u64,
    /// Guests whose kernel panicked where it was told to.
    #[serde(default)]
    pub panics: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Daemons that began after another one's death.
    pub restarts: u64,
    /// Interrupts that were not delivered.
    pub calls_lost: u64,
    /// Times that the device stood still.
    pub stalls: u64,
    /// Operations of the device that failed.
    pub io_errors: u64,
    /// Work that was acknowledged: records and transactions.
    pub acknowledged: u64,
    /// Of these lost by a power cut, within the window.
    pub lost_within_window: u64,
    /// Times that a boot's work was judged.
    pub judged: u64,
    /// Checks of a file system after its kernel's own replay.
    pub checks: u64,
}

impl Tally {
    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.guest_s += other.guest_s;
        self.boots += other.boots;
        self.daemon_kills += other.daemon_kills;
        self.kills_in_recovery += other.kills_in_recovery;
        self.guest_kills += other.guest_kills;
        self.panics += other.panics;
        self.power_cuts += other.power_cuts;
        self.restarts += other.restarts;
        self.calls_lost += other.calls_lost;
        self.stalls += other.stalls;
        self.io_errors += other.io_errors;
        self.acknowledged += other.acknowledged;
        self.lost_within_window += other.lost_within_window;
        self.judged += other.judged;
        self.checks += other.checks;
    }
}

/// What came of a seed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// What it was.
    pub plan: String,
    /// What happened.
    pub tally: Tally,
    /// The sum of all requests and of what went wrong, with their times.
    pub trace: u64,
    /// What is wrong, if something is.
    pub broken: Option<String>,
}

/// Runs one seed. `folder` is an empty one on a tmpfs.
///
/// # Errors
/// The run itself came to no end; a broken promise is in the report.
pub fn simulate(
    seed: u64,
    options: &SimulateOptions,
    folder: &Path,
    trace: &Path,
) -> Result<Simulated, RunError> {
    let plan = Plan::draw(seed, options.guests_max, options.vext4.is_some());
    let run = run_options(&plan, options);
    let trace = Trace::create(trace, plan.guests).map_err(io_error("make the trace"))?;
    let mut world = World::new(&plan, &run, options, folder, &trace)?;
    let lived = world.live();
    let broken = match lived {
        Ok(()) => None,
        Err(Ended::Broken(what)) => Some(what),
        // What broke where a promise is judged is a finding like any other.
        Err(Ended::Run(error)) => match *error {
            RunError::Daemon { .. } | RunError::Stuck(_) => Some(error.to_string()),
            error => return Err(error),
        },
    };
    // Where it ran is no part of what was found: the next run of the seed is in another folder.
    let broken = broken.map(|what| what.replace(&format!("{}/", folder.display()), ""));
    let mut tally = world.tally.clone();
    tally.runs = 1;
    tally.guest_s = world.crowd.calendar.now() as f64 / 1e9 * plan.guests as f64;
    for guest in &world.guests {
        tally.acknowledged += guest.promises.acknowledged;
        tally.lost_within_window += guest.promises.lost;
        tally.judged += guest.promises.looks;
        tally.checks += guest.promises.checks;
    }
    for guest in &world.guests {
        tally.io_errors += guest.files.image.failed() + guest.files.log.failed();
    }
    // What is left of daemons that live reaches nothing any more.
    world.crowd.daemons.iter_mut().for_each(Daemon::die);
    drop(world);
    let sum = trace.finish().map_err(io_error("write the trace"))?;
    Ok(Simulated { plan: plan.describe(), tally, trace: sum, broken })
}

fn run_options(plan: &Plan, options: &SimulateOptions) -> RunOptions {
    let mut append = vec![
        format!("AGENT={}", options.agent.display()),
        format!("DATA={}", plan.data),
        format!("THREADS={}", plan.threads),
        format!("SIZE={}", plan.record_bytes),
    ];
    if let (Some(vext4), Some(programs)) = (&plan.vext4, &options.vext4) {
        append.extend(vext4.append(programs));
    }
    append.extend(options.canary.guest().map(|part| format!("vjbd2.without={part}")));
    let guest = GuestOptions {
        kernel: options.kernel.clone(),
        memory_mib: MEMORY_MIB,
        seed: plan.seed,
        script: script::script(plan.vext4.is_some()),
        append,
        reports: false,
    };
    RunOptions {
        guests: plan.guests,
        model: plan.model,
        limits: DirtyLimits::of_memory(plan.host_bytes),
        image_bytes: IMAGE_BYTES,
        contract: plan.contract,
        journal: plan.journal.clone(),
        direct: plan.direct,
        log_bytes: plan.log_bytes(),
        request_ns: plan.request_ns,
        crashes: true,
        canary: options.canary,
        limit: options.limit,
        ..RunOptions::of(guest)
    }
}

enum Ended {
    Run(Box<RunError>),
    Broken(String),
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
    /// Its next interrupt is not delivered.
    loses: bool,
    /// An error may have hit it.
    failing: bool,
}

struct World<'a> {
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
    /// The last boots have begun.
    finishing: bool,
    rng: ChaCha8Rng,
    tally: Tally,
}

impl<'a> World<'a> {
    fn new(
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
            // Here nothing of ours is there to mend a torn sector, and a file system cannot: its journal's superblock, which each emptying of the
            // journal writes, is there once.
            if plan.vext4.is_some() && plan.contract == Contract::Power {
                files.image.keep_sectors_whole();
            }
            let machine = Machine::mortal(&storage, run.request_ns, 0);
            let site = Site::open(&files, run, &machine, trace)
                .map_err(|source| RunError::Compose { guest, source })?;
            daemons.push(Daemon::new(&site));
            let promises = Promises::default();
            guests.push(Guest { files, promises, boot: 0, up: false, loses: false, failing: false });
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
            finishing: false,
            rng: ChaCha8Rng::seed_from_u64(plan.seed ^ 0xfa17),
            tally: Tally::default(),
        };
        for guest in 0..plan.guests {
            world.boot(guest)?;
        }
        world.schedule(300 * MS, Event::Fault);
        Ok(world)
    }

    fn live(&mut self) -> Result<(), Ended> {
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
                    self.gone(id, End::Itself, false)?;
                }
            }
            let now = self.crowd.calendar.now();
            for guest in &self.guests {
                guest.files.image.settle(now);
                guest.files.log.settle(now);
            }
        }
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
                if *event == Event::KillDaemon(id) || matches!(event, Event::Cut { .. }) {
                    daemon.machine().die_at(*at);
                }
            }
        }
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
            self.note(at, &format!("{event:?}"));
            match event {
                Event::Fault => self.fault(at)?,
                Event::KillDaemon(id) => {
                    self.tally.daemon_kills += 1;
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
        let Some((gap, fault)) = self.plan.faults.get(self.next_fault).copied() else {
            self.schedule(at + PATIENCE, Event::Finish);
            return Ok(());
        };
        let wants = match fault {
            Fault::Cut { .. } => {
                self.guests.iter().all(|guest| guest.promises.was_ready || self.is_ready(guest))
            }
            _ => true,
        };
        if !wants {
            // Of a file system that is being made nothing is promised yet.
            self.schedule(at + PATIENCE, Event::Fault);
            return Ok(());
        }
        self.next_fault += 1;
        let mut then = at + gap;
        match fault {
            Fault::KillDaemon { guest, down, again } => {
                then = self.earliest([guest].into_iter(), then);
                self.schedule(then, Event::KillDaemon(guest));
                self.schedule(then + down, Event::StartDaemon { guest, again });
            }
            Fault::KillGuest { guest, down } => {
                if self.guests[guest].up {
                    self.tally.guest_kills += 1;
                    self.kill(guest, false)?;
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
                state.failing = true;
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
            self.schedule(then, Event::KillDaemon(id));
            self.schedule(then + 10 * MS, Event::StartDaemon { guest: id, again: None });
        }
        let machine = Machine::mortal(&self.storage, self.run.request_ns, at);
        let doomed = self
            .events
            .iter()
            .find(|(_, event)| **event == Event::KillDaemon(id) || matches!(event, Event::Cut { .. }));
        if let Some(((at, _), _)) = doomed {
            machine.die_at(*at);
        }
        let files = &self.guests[id].files;
        let opened = catch_unwind(AssertUnwindSafe(|| Site::open(files, self.run, &machine, self.trace)));
        match opened {
            Ok(Ok(site)) => {
                self.crowd.daemons[id] = Daemon::new(&site);
                drop(site);
                self.crowd.attach(id)?;
            }
            // The device fails just then: it is tried again when it does not.
            Ok(Err(_)) if self.guests[id].failing => machine.bury(),
            Ok(Err(error)) => return Err(Ended::Broken(format!("daemon {id} does not start: {error}"))),
            Err(panic) if panic.is::<Died>() => {
                machine.bury();
                self.tally.kills_in_recovery += 1;
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
        guest.up = true;
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
        if self.plan.vext4.is_some() {
            options.append.extend(Vext4::append_to_boot(&mut self.rng, self.finishing));
        }
        self.crowd.boot(id, &options, self.folder)
    }

    /// A guest is killed.
    fn kill(&mut self, id: usize, cut: bool) -> Result<(), Ended> {
        if self.crowd.kill(id)? {
            self.crowd.take_gone();
            self.gone(id, End::Killed, cut)?;
        }
        Ok(())
    }

    /// A guest has ended.
    fn gone(&mut self, id: usize, end: End, cut: bool) -> Result<(), Ended> {
        let console = self.console(&self.guests[id]);
        let contract = self.plan.contract;
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
        let guest = &mut self.guests[id];
        (guest.up, guest.loses) = (false, false);
        let (boot, failing) = (guest.boot, guest.failing);
        let heard = guest.promises.hear(boot, &console, end, failing, cut, contract);
        heard.map_err(|what| {
            let last: Vec<&str> = console.lines().collect();
            let last = last[last.len().saturating_sub(15)..].join("\n    ");
            Ended::Broken(format!("guest {id}, {what}\n  it had said:\n    {last}"))
        })
    }

    /// After an error: guest and daemon anew.
    fn repair(&mut self, id: usize, at: Ns) -> Result<(), Ended> {
        self.kill(id, false)?;
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
            self.guests[id].promises.cut();
            self.kill(id, true)?;
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
        if waits {
            self.schedule(at + PATIENCE, Event::Finish);
            return Ok(());
        }
        self.finishing = true;
        for id in 0..self.guests.len() {
            self.kill(id, false)?;
            self.start(id, None, at)?;
            // Who never came as far as a file system has nothing to look at, and would begin to work.
            if self.guests[id].promises.was_ready {
                self.boot(id)?;
            }
        }
        Ok(())
    }
}
