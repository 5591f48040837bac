//! One run: a machine, daemons on it one after another, and a guest, all on one thread; who acts next is drawn from the seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use afterimage_block::{Medium, Quiesced};
use afterimage_block_conformance::sim::{CrashOptions, SimWorld};
use afterimage_compose::{Prepared, Stack};
use afterimage_format::log::RECORDS_OFFSET;
use afterimage_frontend::FrontendStats;
use afterimage_journal::group::JournalOptions;
use afterimage_order::redo::create_medium;
use afterimage_order::{Clock as _, Contract, GroupOptions};
use afterimage_store::Image as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::disk::{DATA_BLOCKS, DISK, STATE_BLOCKS};
use crate::driver::{Driver, Ticket, QUEUES};
use crate::guest::FileSystem;
use crate::oracle::{Crash, Oracle};
use crate::plan::{Config, Op, Step, LOG_PAGES};
use crate::store::{is_death, Machine, OnMachine, SimImage, Stuck, IMAGE, LOG};
use crate::turn::{Pending, Turn};

/// The world before anything, with a log of each size.
static WORLDS: LazyLock<[SimWorld; 3]> = LazyLock::new(|| {
    let log = |pages| vec![0; RECORDS_OFFSET as usize + pages * 4096];
    LOG_PAGES.map(|pages| SimWorld::new(vec![log(pages), DISK.bytes.clone()]))
});

/// How a daemon's life ended.
pub enum End {
    /// The guest dies.
    Reset,
    /// A request failed: the guest gives up, and somebody restarts the daemon.
    Failed,
    /// A promise was broken.
    Broken(String),
}

pub type Goes<T = ()> = Result<T, End>;

impl From<String> for End {
    fn from(what: String) -> Self {
        Self::Broken(what)
    }
}

/// What happened, in order: the same for the same seed.
#[derive(Default)]
pub struct Trace {
    /// Kept where somebody wants to read it.
    pub lines: Option<String>,
}

impl Trace {
    pub fn note(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            let _ = writeln!(lines, "{line}");
        }
    }
}

/// What runs went through: a simulation that never does the interesting things proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub commits: u64,
    pub replays: u64,
    pub cuts: u64,
    pub kills: u64,
    pub deaths_within: u64,
    pub resets: u64,
    pub failures: u64,
    /// Crashes that cost something that was not promised.
    pub lost: u64,
    /// Commits of a journal that was retained.
    pub retained: u64,
    /// Commits with journal blocks that were served from home, and blocks that were saved from there.
    pub from_home: u64,
    pub saved: u64,
    /// Flushes that the window rule held, and writes that a full log did.
    pub held: u64,
    pub full: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.replays += other.replays;
        self.cuts += other.cuts;
        self.kills += other.kills;
        self.deaths_within += other.deaths_within;
        self.resets += other.resets;
        self.failures += other.failures;
        self.lost += other.lost;
        self.retained += other.retained;
        self.from_home += other.from_home;
        self.saved += other.saved;
        self.held += other.held;
        self.full += other.full;
    }
}

/// Where the files are that only have names here. Each contract has its own.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("simulation-").tempdir_in("/dev/shm");
        Self(folder.expect("a folder in memory"))
    }

    fn image(&self, config: &Config) -> PathBuf {
        let name = match config.contract {
            Contract::Power => "power",
            Contract::GuestCrash => "guest-crash",
            Contract::PowerWindow { .. } => "power-window",
        };
        let path = self.0.path().join(format!("{name}.img"));
        if !path.exists() {
            let file = std::fs::File::create(&path).expect("a file");
            file.set_len(DISK.bytes.len() as u64).expect("a hole");
        }
        path
    }

    fn arenas(&self) -> PathBuf {
        self.0.path().join("arenas")
    }

    /// The host's memory is lost.
    fn forget(&self) {
        let _ = std::fs::remove_dir_all(self.arenas());
        std::fs::create_dir(self.arenas()).expect("a folder");
    }
}

pub struct Sim<'p> {
    pub config: Config,
    place: &'p Place,
    image: PathBuf,
    machine: Arc<Machine>,
    pub driver: Driver,
    pub oracle: Oracle,
    pub fs: FileSystem,
    pub pending: BTreeMap<Ticket, Pending>,
    /// The next step.
    pub at: usize,
    /// The guest is in the middle of something that it waits for.
    pub busy: bool,
    /// The guest has to boot, after this.
    boots: Option<Crash>,
    /// Where the daemon dies, the power fails.
    pub power: bool,
    /// The next daemon dies, too, after so many operations.
    pub again: Option<usize>,
    pub rng: ChaCha8Rng,
    pub trace: Trace,
    pub tally: Tally,
}

/// Runs the steps.
///
/// # Errors
/// What promise was broken.
pub fn run(place: &Place, config: Config, steps: &[Step], trace: bool) -> Result<(Trace, Tally), String> {
    let mut sim = Sim::new(place, config)?;
    sim.trace.lines = trace.then(String::new);
    let result = sim.all(steps);
    let image = &sim.image;
    let _ = std::fs::remove_file(image.with_extension("img.state"));
    if let Err(what) = result {
        let lines = sim.trace.lines.take().map(|lines| format!("{lines}\n")).unwrap_or_default();
        return Err(format!("{lines}{what}"));
    }
    Ok((sim.trace, sim.tally))
}

impl<'p> Sim<'p> {
    fn new(place: &'p Place, config: Config) -> Result<Self, String> {
        let machine = Machine::new(WORLDS[config.log_size].settled(), Duration::from_secs(1));
        let image = place.image(&config);
        place.forget();
        let mut sim = Self {
            config,
            place,
            image,
            machine,
            driver: Driver::new(),
            oracle: Oracle::new(DATA_BLOCKS, STATE_BLOCKS),
            fs: FileSystem::new(),
            pending: BTreeMap::new(),
            at: 0,
            busy: false,
            boots: Some(Crash::Process),
            power: false,
            again: None,
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            trace: Trace::default(),
            tally: Tally::default(),
        };
        sim.make_log().map_err(|e| e.to_string())?;
        Ok(sim)
    }

    /// An empty log, with its image's name, all of it on storage.
    fn make_log(&mut self) -> io::Result<()> {
        let entry = SimImage::open(&self.machine, &self.image).log_entry()?;
        let log: Arc<dyn Medium> = self.machine.world.medium(LOG);
        let homes: Vec<Arc<dyn Medium>> = vec![self.machine.world.medium(IMAGE)];
        create_medium(&log, &homes, &[entry], &[], [7; 16], self.config.seed)?;
        self.machine = Machine::new(self.machine.world.settled(), self.machine.now());
        Ok(())
    }

    fn all(&mut self, steps: &[Step]) -> Result<(), String> {
        let last = [Step { op: Op::Cut, seed: 1 }, Step { op: Op::Commit, seed: 2 }];
        let steps: Vec<Step> = steps.iter().chain(&last).copied().collect();
        for _ in 0..10 * steps.len() {
            let lived = catch_unwind(AssertUnwindSafe(|| self.life(&steps)));
            match lived {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(End::Broken(what))) => return Err(what),
                Ok(Err(End::Failed | End::Reset)) => {
                    self.tally.failures += 1;
                    self.boots.get_or_insert(Crash::Process);
                }
                Err(panic) if is_death(&*panic) => {
                    if self.busy {
                        self.tally.deaths_within += 1;
                        self.boots.get_or_insert(Crash::Process);
                    }
                }
                Err(panic) => return Err(why(panic)),
            }
            self.trace.note(format_args!("the daemon is dead after {} operations", self.machine.world.ops()));
            if std::mem::take(&mut self.power) {
                if self.config.contract == Contract::GuestCrash {
                    return Ok(());
                }
                self.cut();
            } else {
                self.tally.kills += 1;
                self.machine.bury();
                if let Some(ops) = self.again.take() {
                    self.machine.world.halt_after(ops);
                }
            }
        }
        Err("the daemon dies again and again".into())
    }

    fn cut(&mut self) {
        let torn = self.config.contract != Contract::Power;
        let world = &self.machine.world;
        let world = world.crash(world.ops(), CrashOptions { torn }, &mut self.rng);
        self.machine = Machine::new(world, self.machine.now());
        self.place.forget();
        self.driver.reset();
        self.pending.clear();
        self.fs.busy.clear();
        self.boots = Some(Crash::Power);
        self.tally.cuts += 1;
    }

    fn open(&self) -> Result<Stack<SimImage>, String> {
        let host = Arc::new(OnMachine(Arc::clone(&self.machine)));
        let options = GroupOptions {
            log_max_bytes: GroupOptions::LOG_MIN_BYTES,
            host: Arc::clone(&host) as _,
            mutation: self.config.mutation,
            ..GroupOptions::new(self.config.contract)
        };
        let journal = JournalOptions {
            retain: self.config.retain,
            retain_bytes_max: self.config.retain_bytes,
            arena_folder: self.place.arenas(),
            ..JournalOptions::passthrough()
        };
        let image = SimImage::open(&self.machine, &self.image);
        let prepared = Prepared::of(vec![image], options, journal).map_err(|e| e.to_string())?;
        prepared.open(Some(host)).map_err(|e| e.to_string())
    }

    /// One daemon.
    fn life(&mut self, steps: &[Step]) -> Goes {
        let seed = self.rng.random();
        self.machine.reseed(seed);
        let stack = self.open().map_err(|e| format!("the daemon does not start: {e}"))?;
        let disk = Arc::clone(&stack.disks[0].disk);
        let mut lanes = Vec::new();
        for _ in 0..QUEUES {
            lanes.push(disk.open_lane().map_err(|e| format!("no lane: {e}"))?);
        }
        let stats = FrontendStats::new(QUEUES as u16);
        stack.group.guest_was_seen(0);
        let machine = Arc::clone(&self.machine);
        if self.boots.is_some() && !self.pending.is_empty() {
            // What its dead guest had asked for is done first.
            let mut turn = Turn::new(self, &stack.group, &machine, &stats, &mut lanes, &*disk)?;
            turn.drain()?;
        }
        loop {
            if self.boots.is_some() {
                disk.quiesced(Quiesced::Stopped);
                self.driver.reset();
                self.pending.clear();
                self.fs.busy.clear();
            }
            let mut turn = Turn::new(self, &stack.group, &machine, &stats, &mut lanes, &*disk)?;
            if let Some(crash) = turn.sim.boots {
                turn.sim.busy = true;
                turn.boot(crash)?;
                turn.sim.boots = None;
                turn.sim.busy = false;
            }
            match turn.steps(steps) {
                Err(End::Reset) => {
                    turn.sim.tally.resets += 1;
                    turn.drain()?;
                    for queue in &mut turn.queues {
                        queue.quiesce()?;
                    }
                    drop(turn);
                    self.boots = Some(Crash::Process);
                }
                other => return other,
            }
        }
    }
}

fn why(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<Stuck>() {
        Ok(stuck) => stuck.0,
        Err(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(text), _) => format!("a panic: {text}"),
            (_, Some(text)) => format!("a panic: {text}"),
            _ => "a panic".into(),
        },
    }
}
