//! One run: a machine, daemons on it one after another, and a guest, all on one thread; who acts next is drawn from the seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use afterimage_block::{BlockError, Lane, Medium, Quiesced};
use afterimage_block_conformance::sim::{CrashOptions, Fault, SimWorld};
use afterimage_compose::{Prepared, Stack};
use afterimage_format::log::RECORDS_OFFSET;
use afterimage_frontend::stepped::Stepped;
use afterimage_frontend::{FrontendStats, QueueStats};
use afterimage_journal::group::{JournalOptions, RetainGroup};
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::AreaView;
use afterimage_journal::{AreaBlock, Block, FileSystemStatus, FsBlock, Tid, BLOCK_BYTES};
use afterimage_order::redo::{create_medium, Mutation};
use afterimage_order::{Clock as _, Contract, GroupOptions};
use afterimage_store::Image as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::disk::{content, home, versions, Kind, DATA_BLOCKS, DISK, STATE_BLOCKS};
use crate::driver::{Ask, Driver, Ticket, DATA_BYTES, QUEUES};
use crate::oracle::{Crash, Found, Oracle};
use crate::store::{is_death, Died, Machine, OnMachine, SimImage, Stuck, IMAGE, LOG};

const WINDOW: Duration = Duration::from_millis(20);
/// What is retained at most: enough, or so little that room has to be made.
const RETAIN_BYTES: [u64; 2] = [8 << 20, 1 << 20];
/// Sizes of the log: small, so that it wraps and throttles.
const LOG_PAGES: [usize; 3] = [48, 80, 160];

/// The world before anything, with a log of each size.
static WORLDS: LazyLock<[SimWorld; 3]> = LazyLock::new(|| {
    let log = |pages| vec![0; RECORDS_OFFSET as usize + pages * 4096];
    LOG_PAGES.map(|pages| SimWorld::new(vec![log(pages), DISK.bytes.clone()]))
});

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub seed: u64,
    pub contract: Contract,
    pub retain: bool,
    /// The guest has no write cache: every write completes as if flushed.
    pub flushed: bool,
    /// Which of [`LOG_PAGES`].
    pub log_size: usize,
    pub retain_bytes: u64,
    pub mutation: Option<Mutation>,
}

impl Config {
    pub fn draw(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let window = Contract::PowerWindow { window: WINDOW };
        let (contract, retain) = [
            (window, true),
            (window, true),
            (window, false),
            (Contract::GuestCrash, true),
            (Contract::GuestCrash, false),
            (Contract::Power, false),
        ][rng.random_range(0..6)];
        Self {
            seed,
            contract,
            retain,
            flushed: rng.random_ratio(1, 8),
            log_size: rng.random_range(0..LOG_PAGES.len()),
            retain_bytes: RETAIN_BYTES[rng.random_range(0..2)],
            mutation: None,
        }
    }
}

/// What happens next. The numbers are what it draws from, so that it stays what it is when others are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The guest writes, zeroes or discards blocks of its files, and goes on.
    Data,
    /// The guest reads blocks of its files, and goes on.
    Read,
    /// The guest flushes, and goes on.
    Flush,
    /// Its jbd2 commits a transaction.
    Commit,
    /// Its jbd2 writes committed blocks home and moves its tail.
    Checkpoint,
    /// Time goes by, and everybody takes turns.
    Turns(u8),
    /// The clock jumps: the host was suspended.
    Jump,
    /// The log is synced, and requests come in meanwhile.
    Sync,
    /// Records go home.
    Home,
    /// Somebody asks that everything be durable (`ctl flush`).
    Settle,
    /// Somebody pauses the group, and lets it go on.
    Pause,
    /// An error of storage, to come.
    Fail { image: bool, fault: Fault, skip: u8 },
    /// The guest dies, and another one boots.
    Reset,
    /// The daemon dies here, and another one goes on.
    Kill,
    /// The daemon dies in the operation after so many of storage's.
    KillAfter(u8),
    /// The same, and the next one while it opens.
    KillTwice(u8),
    /// The power fails here.
    Cut,
    /// The power fails in that operation.
    CutAfter(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub op: Op,
    pub seed: u32,
}

pub fn draw_steps(seed: u64) -> Vec<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let count = rng.random_range(20..80);
    let faults = rng.random_ratio(1, 3);
    (0..count)
        .map(|_| {
            let op = match rng.random_range(0..100) {
                0..28 => Op::Data,
                28..34 => Op::Read,
                34..44 => Op::Flush,
                44..60 => Op::Commit,
                // Where storage fails, it does so often.
                60..63 | 90 if faults => {
                    let fault = [Fault::Write, Fault::Sync, Fault::Read][rng.random_range(0..3)];
                    Op::Fail { image: rng.random(), fault, skip: rng.random_range(0..6) }
                }
                60..66 => Op::Checkpoint,
                66..78 => Op::Turns(rng.random_range(1..30)),
                78..80 => Op::Jump,
                80..84 => Op::Sync,
                84..88 => Op::Home,
                88 => Op::Settle,
                89 => Op::Pause,
                91 => Op::Reset,
                92..94 => Op::Kill,
                94 => Op::KillAfter(rng.random_range(1..40)),
                95 => Op::KillTwice(rng.random_range(1..8)),
                96 => Op::Cut,
                97..99 => Op::CutAfter(rng.random_range(1..40)),
                _ => Op::Turns(3),
            };
            Step { op, seed: rng.random() }
        })
        .collect()
}

/// How a daemon's life ended.
enum End {
    /// The guest dies.
    Reset,
    /// A request failed: the guest gives up, and somebody restarts the daemon.
    Failed,
    /// A promise was broken.
    Broken(String),
}

type Goes<T = ()> = Result<T, End>;

impl From<String> for End {
    fn from(what: String) -> Self {
        Self::Broken(what)
    }
}

/// What a guest waits for.
enum Pending {
    Data(Vec<(usize, u32)>),
    Read {
        block: usize,
        submitted: u64,
    },
    Flush {
        submitted: u64,
    },
    Commit(usize),
    /// Of the journal, or of recovery.
    Plain,
}

/// The guest's file system in its memory.
struct FileSystem {
    head: AreaBlock,
    tid: Tid,
    /// Transactions that are in the journal, the oldest first.
    live: VecDeque<Transaction>,
    /// Blocks of files with a request in flight.
    busy: BTreeSet<usize>,
    /// The next version of a block of the file system.
    next: u32,
}

struct Transaction {
    tid: Tid,
    start: AreaBlock,
    blocks: BTreeSet<usize>,
}

/// What happened, in order: the same for the same seed.
#[derive(Default)]
pub struct Trace {
    /// Kept where somebody wants to read it.
    pub lines: Option<String>,
}

impl Trace {
    fn note(&mut self, line: std::fmt::Arguments<'_>) {
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
    config: Config,
    place: &'p Place,
    image: PathBuf,
    machine: Arc<Machine>,
    driver: Driver,
    oracle: Oracle,
    fs: FileSystem,
    pending: BTreeMap<Ticket, Pending>,
    /// The next step.
    at: usize,
    /// The guest is in the middle of something that it waits for.
    busy: bool,
    /// The guest has to boot, after this.
    boots: Option<Crash>,
    /// Where the daemon dies, the power fails.
    power: bool,
    /// The next daemon dies, too, after so many operations.
    again: Option<usize>,
    rng: ChaCha8Rng,
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
            fs: FileSystem {
                head: DISK.geometry.first,
                tid: Tid(1),
                live: VecDeque::new(),
                busy: BTreeSet::new(),
                next: 1,
            },
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

/// The guest and everybody else, taking turns while one daemon lives.
struct Turn<'a, 'p> {
    sim: &'a mut Sim<'p>,
    machine: &'a Arc<Machine>,
    group: &'a Arc<RetainGroup>,
    queues: Vec<Stepped<&'a mut dyn Lane, &'a QueueStats>>,
    rng: ChaCha8Rng,
    /// What a read has found.
    read: Vec<u8>,
}

impl<'a, 'p> Turn<'a, 'p> {
    fn new(
        sim: &'a mut Sim<'p>,
        group: &'a Arc<RetainGroup>,
        machine: &'a Arc<Machine>,
        stats: &'a FrontendStats,
        lanes: &'a mut [Box<dyn Lane>],
        disk: &dyn afterimage_block::Disk,
    ) -> Goes<Self> {
        let mut queues = Vec::new();
        for (index, lane) in lanes.iter_mut().enumerate() {
            let (guest, flushed) = (&sim.driver.guest, sim.config.flushed);
            let stats = stats.queue(index as u16).expect("as many as there are queues");
            let lane: &mut dyn Lane = &mut **lane;
            queues.push(Stepped::start(guest, Driver::place(index), flushed, disk, lane, stats)?);
        }
        let rng = ChaCha8Rng::seed_from_u64(sim.rng.random());
        Ok(Self { sim, machine, group, queues, rng, read: Vec::new() })
    }

    fn steps(&mut self, steps: &[Step]) -> Goes {
        while let Some(step) = steps.get(self.sim.at) {
            let at = self.sim.at;
            self.sim.at += 1;
            self.rng = ChaCha8Rng::seed_from_u64(u64::from(step.seed));
            self.machine.reseed(u64::from(step.seed));
            let (now, ops) = (self.machine.now(), self.machine.world.ops());
            self.sim.trace.note(format_args!("{now:?} {at} {:?} after {ops} operations", step.op));
            self.sim.busy = matches!(step.op, Op::Commit | Op::Checkpoint);
            self.step(step.op)?;
            self.sim.busy = false;
        }
        Ok(())
    }

    fn step(&mut self, op: Op) -> Goes {
        match op {
            Op::Data => self.data(),
            Op::Read => self.look(),
            Op::Flush => self.flush().map(|_| ()),
            Op::Commit => self.commit(),
            Op::Checkpoint => self.checkpoint(),
            Op::Turns(count) => (0..count).try_for_each(|_| self.turn()),
            Op::Jump => {
                self.machine.advance(Duration::from_millis(self.rng.random_range(1..500)));
                Ok(())
            }
            Op::Sync => self.sync(),
            Op::Home => {
                self.machine.home_turn(true);
                Ok(())
            }
            Op::Settle => {
                let before = self.sim.oracle.moment();
                if self.group.flush().is_ok() {
                    self.sim.oracle.settled(before);
                }
                Ok(())
            }
            Op::Pause => self.pause(),
            Op::Fail { image, fault, skip } => {
                let medium = if image { IMAGE } else { LOG };
                self.machine.world.fail(medium, fault, skip.into(), io::ErrorKind::Other);
                Ok(())
            }
            Op::Reset => Err(End::Reset),
            Op::Kill | Op::Cut | Op::KillTwice(_) => {
                self.sim.power = op == Op::Cut;
                self.sim.again = match op {
                    Op::KillTwice(ops) => Some(ops.into()),
                    _ => None,
                };
                self.machine.world.halt_after(0);
                resume_unwind(Box::new(Died))
            }
            Op::KillAfter(ops) | Op::CutAfter(ops) => {
                self.sim.power = matches!(op, Op::CutAfter(_));
                self.machine.world.halt_after(ops.into());
                Ok(())
            }
        }
    }

    /// Somebody acts.
    fn turn(&mut self) -> Goes {
        self.machine.look();
        match self.rng.random_range(0..16) {
            0..10 => self.serve(),
            10 => {
                self.machine.sync_turn();
                Ok(())
            }
            11 => {
                self.machine.home_turn(self.rng.random());
                Ok(())
            }
            12 => {
                self.group.turn();
                Ok(())
            }
            _ => {
                self.machine.advance(Duration::from_micros(self.rng.random_range(0..2000)));
                Ok(())
            }
        }
    }

    fn serve(&mut self) -> Goes {
        let queue = self.rng.random_range(0..QUEUES);
        self.queues[queue].turn()?;
        self.hear(queue)
    }

    /// The guest takes what it was answered.
    fn hear(&mut self, queue: usize) -> Goes {
        let mut failed = false;
        for answer in self.sim.driver.poll(queue)? {
            let pending = self.sim.pending.remove(&answer.ticket);
            let pending = pending.ok_or_else(|| format!("{:?} was answered twice", answer.ticket))?;
            let good = answer.good;
            self.sim.trace.note(format_args!("  {:?}: {good}", answer.ticket));
            failed |= !good;
            match pending {
                Pending::Data(written) => {
                    for (block, version) in written {
                        self.sim.fs.busy.remove(&block);
                        if good {
                            self.sim.oracle.written(block, version);
                        }
                    }
                }
                Pending::Read { block, submitted } if good => {
                    for (i, found) in versions(Kind::Data, block, &answer.data)?.iter().enumerate() {
                        if !self.sim.oracle.may_read(block, i, *found, submitted) {
                            let what = format!("a read of data block {block} sector {i} found {found:?}");
                            return Err(End::Broken(what));
                        }
                    }
                }
                Pending::Flush { submitted } if good => {
                    self.sim.oracle.flushed(submitted, self.machine.now());
                }
                Pending::Commit(transaction) if good => self.sim.oracle.committed(transaction),
                Pending::Plain if good => self.read = answer.data,
                _ => {}
            }
        }
        match failed {
            true => Err(End::Failed),
            false => Ok(()),
        }
    }

    fn submit(&mut self, ask: Ask<'_>, pending: Pending) -> Goes<Ticket> {
        loop {
            let queue = self.rng.random_range(0..QUEUES);
            if let Some(ticket) = self.sim.driver.submit(queue, ask) {
                self.sim.pending.insert(ticket, pending);
                return Ok(ticket);
            }
            self.turn()?;
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Goes {
        while self.sim.pending.contains_key(&ticket) {
            self.turn()?;
        }
        Ok(())
    }

    fn wait_all(&mut self, tickets: Vec<Ticket>) -> Goes {
        tickets.into_iter().try_for_each(|ticket| self.wait(ticket))
    }

    fn drain(&mut self) -> Goes {
        while !self.sim.pending.is_empty() {
            self.turn()?;
        }
        Ok(())
    }

    fn sector(&self, block: FsBlock) -> u64 {
        block.sector(DISK.layout.start).0
    }

    fn data(&mut self) -> Goes {
        let count = self.rng.random_range(1..=DATA_BYTES / BLOCK_BYTES);
        let first = self.rng.random_range(0..=DATA_BLOCKS - count);
        let blocks: Vec<usize> = (first..first + count).collect();
        while blocks.iter().any(|block| self.sim.fs.busy.contains(block)) {
            self.turn()?;
        }
        let how = self.rng.random_range(0..10);
        let written: Vec<_> =
            blocks.iter().map(|block| (*block, self.sim.oracle.write(*block, how < 3))).collect();
        self.sim.fs.busy.extend(blocks);
        let sector = self.sector(home(Kind::Data, first));
        let sectors = (count * 8) as u32;
        let bytes: Vec<u8> =
            written.iter().flat_map(|(block, version)| *content(Kind::Data, *block, *version)).collect();
        let ask = match how {
            0 => Ask::Discard { sector, sectors },
            1 | 2 => Ask::WriteZeroes { sector, sectors, unmap: how == 1 },
            _ => Ask::Write { sector, bytes: &bytes },
        };
        self.submit(ask, Pending::Data(written)).map(|_| ())
    }

    fn look(&mut self) -> Goes {
        let block = self.rng.random_range(0..DATA_BLOCKS);
        let submitted = self.sim.oracle.moment();
        let sector = self.sector(home(Kind::Data, block));
        let ask = Ask::Read { sector, bytes: BLOCK_BYTES };
        self.submit(ask, Pending::Read { block, submitted }).map(|_| ())
    }

    fn flush(&mut self) -> Goes<Ticket> {
        let submitted = self.sim.oracle.moment();
        self.submit(Ask::Flush, Pending::Flush { submitted })
    }

    /// A transaction as jbd2 writes it: its blocks, a flush, the commit block, a flush.
    fn commit(&mut self) -> Goes {
        if self.sim.fs.live.len() > 40 {
            self.checkpoint()?;
        }
        let mut state = self.sim.oracle.state().to_vec();
        let blocks: BTreeSet<usize> =
            (0..self.rng.random_range(1..6)).map(|_| self.rng.random_range(0..STATE_BLOCKS)).collect();
        let mut draft = Draft { commit_sec: 5, ..Draft::default() };
        for block in blocks.iter().copied() {
            let version = self.sim.fs.next;
            self.sim.fs.next += 1;
            state[block] = version;
            draft.logged.push((home(Kind::State, block), content(Kind::State, block, version)));
        }
        let (head, tid) = (self.sim.fs.head, self.sim.fs.tid);
        let mut encoder = Encoder::new(&DISK.geometry, head, tid);
        encoder.transaction(&draft);
        let end = if encoder.at == DISK.geometry.first { DISK.geometry.maxlen } else { encoder.at.0 };
        let commit = AreaBlock(end - 1);
        let mut tickets = Vec::new();
        for (at, block) in encoder.blocks.iter().filter(|(at, _)| **at != commit) {
            let sector = self.area_sector(*at);
            tickets.push(self.submit(Ask::Write { sector, bytes: &block[..] }, Pending::Plain)?);
        }
        self.wait_all(tickets)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        let transaction = self.sim.oracle.commit(state);
        let sector = self.area_sector(commit);
        let ask = Ask::Write { sector, bytes: &encoder.blocks[&commit][..] };
        let commit = self.submit(ask, Pending::Commit(transaction))?;
        self.wait(commit)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        self.sim.fs.live.push_back(Transaction { tid, start: head, blocks });
        (self.sim.fs.head, self.sim.fs.tid) = (encoder.at, encoder.tid);
        self.sim.tally.commits += 1;
        let status = self.group.status();
        self.sim.tally.held += status.held_flushes;
        self.sim.tally.full += status.throttled;
        let retained = self.group.disk_status(0);
        let retains = |f: &FileSystemStatus| f.mode == "retain";
        self.sim.tally.retained +=
            u64::from(retained.is_some_and(|disk| disk.file_systems.iter().any(retains)));
        Ok(())
    }

    fn area_sector(&self, at: AreaBlock) -> u64 {
        self.sector(DISK.layout.home_of(at).expect("a block of the journal"))
    }

    /// The newest committed versions of what the oldest transactions hold go home; then the tail moves.
    fn checkpoint(&mut self) -> Goes {
        if self.sim.fs.live.is_empty() {
            return Ok(());
        }
        let count = self.rng.random_range(1..=self.sim.fs.live.len());
        let live = self.sim.fs.live.iter().take(count);
        let blocks: BTreeSet<usize> = live.flat_map(|t| t.blocks.iter().copied()).collect();
        let mut tickets = Vec::new();
        for block in blocks {
            let version = self.sim.oracle.state()[block];
            let bytes = content(Kind::State, block, version);
            let sector = self.sector(home(Kind::State, block));
            tickets.push(self.submit(Ask::Write { sector, bytes: &bytes[..] }, Pending::Plain)?);
        }
        self.wait_all(tickets)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        self.sim.fs.live.drain(..count);
        self.write_tail()
    }

    fn write_tail(&mut self) -> Goes {
        let fs = &self.sim.fs;
        let (tid, start) = fs.live.front().map_or((fs.tid, fs.head), |t| (t.tid, t.start));
        let superblock = DISK.superblock.with_tail(tid, Some(start));
        let sector = self.area_sector(AreaBlock(0));
        let write = self.submit(Ask::Write { sector, bytes: superblock.bytes() }, Pending::Plain)?;
        self.wait(write)?;
        let flush = self.flush()?;
        self.wait(flush)
    }

    /// A sync of the log, with requests that come in while it runs.
    fn sync(&mut self) -> Goes {
        let Some(redo) = self.machine.redo() else { return Ok(()) };
        let Ok(Some(sync)) = redo.syncer.begin() else { return Ok(()) };
        for _ in 0..self.rng.random_range(0..3) {
            self.serve()?;
        }
        if redo.syncer.run(&sync).is_err() {
            return Ok(());
        }
        for _ in 0..self.rng.random_range(0..3) {
            self.serve()?;
        }
        redo.syncer.finish(&sync);
        Ok(())
    }

    /// While it is paused, writes wait, and the image is all there is.
    fn pause(&mut self) -> Goes {
        self.drain()?;
        let before = self.sim.oracle.moment();
        if self.group.pause(None).is_err() {
            return Ok(());
        }
        self.sim.oracle.settled(before);
        self.data()?;
        for _ in 0..self.rng.random_range(0..4) {
            self.serve()?;
        }
        self.group.resume();
        Ok(())
    }

    fn fetch(&mut self, sector: u64, bytes: usize) -> Goes<Vec<u8>> {
        let ticket = self.submit(Ask::Read { sector, bytes }, Pending::Plain)?;
        self.wait(ticket)?;
        Ok(std::mem::take(&mut self.read))
    }

    /// A guest boots: its own recovery, as jbd2 does it; what it finds is judged; its journal begins anew.
    fn boot(&mut self, crash: Crash) -> Goes {
        let at = self.area_sector(AreaBlock(0));
        let block: Block = self.fetch(at, BLOCK_BYTES)?[..].try_into().expect("a block");
        let superblock = JournalSuperblock::parse(&block)
            .map_err(|e| format!("the guest is served an unsound journal: {e}"))?;
        let mut end = superblock.sequence();
        let mut homes = BTreeMap::new();
        if let Some(start) = superblock.start() {
            let mut view = View { turn: self, ended: None };
            let replayed = replay(&mut view, &DISK.geometry, start, superblock.sequence());
            if let Some(ended) = view.ended {
                return Err(ended);
            }
            let replayed = replayed.map_err(|e| format!("the guest's recovery failed: {e}"))?;
            if !replayed.damaged.is_empty() {
                return Err(End::Broken(format!("damaged blocks in the journal: {:?}", replayed.damaged)));
            }
            self.sim.tally.replays += u64::from(replayed.transactions > 0);
            end = replayed.end;
            homes = replayed.writes.into_iter().collect::<BTreeMap<_, _>>();
        }
        let mut found = Found { data: Vec::new(), state: Vec::new() };
        for block in 0..STATE_BLOCKS {
            let place = home(Kind::State, block);
            let bytes = match homes.get(&place) {
                Some(bytes) => bytes.to_vec(),
                None => self.fetch(self.sector(place), BLOCK_BYTES)?,
            };
            let sectors = versions(Kind::State, block, &bytes)?;
            if sectors.iter().any(|sector| *sector != sectors[0]) {
                return Err(End::Broken(format!("block {block} of the file system is torn: {sectors:?}")));
            }
            found.state.push(sectors[0].unwrap_or(0));
        }
        for first in (0..DATA_BLOCKS).step_by(DATA_BYTES / BLOCK_BYTES) {
            let bytes = self.fetch(self.sector(home(Kind::Data, first)), DATA_BYTES)?;
            for (i, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
                found.data.push(versions(Kind::Data, first + i, bytes)?);
            }
        }
        let before = self.sim.oracle.state().to_vec();
        let state = self.sim.oracle.judge(&found, crash, &self.sim.config.contract)?;
        self.sim.trace.note(format_args!("after {crash:?}: {found:?}"));
        self.sim.tally.lost += u64::from(before != found.state);
        match crash {
            Crash::Power => self.sim.oracle.rebase(&found),
            Crash::Process => self.sim.oracle.recovered(state),
        }
        let mut tickets = Vec::new();
        for (place, bytes) in homes {
            let sector = self.sector(place);
            tickets.push(self.submit(Ask::Write { sector, bytes: &bytes[..] }, Pending::Plain)?);
        }
        self.wait_all(tickets)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        let fs = &mut self.sim.fs;
        fs.live.clear();
        fs.head = DISK.geometry.first;
        fs.tid = end.next();
        self.write_tail()
    }
}

/// The journal as the guest reads it.
struct View<'t, 'a, 'p> {
    turn: &'t mut Turn<'a, 'p>,
    ended: Option<End>,
}

impl AreaView for View<'_, '_, '_> {
    fn block<'b>(&'b mut self, at: AreaBlock, scratch: &'b mut Block) -> Result<&'b Block, BlockError> {
        let sector = self.turn.area_sector(at);
        match self.turn.fetch(sector, BLOCK_BYTES) {
            Ok(bytes) => scratch.copy_from_slice(&bytes),
            Err(ended) => {
                self.ended = Some(ended);
                return Err(BlockError::Failed { reason: "the guest's read failed".into() });
            }
        }
        Ok(scratch)
    }
}
