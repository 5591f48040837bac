//! One seeded run: random requests on several disks and lanes, background steps, deaths, faults and power cuts, all
//! interleaved on one thread, and every promise checked at every cut.

mod deaths;
mod sets;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Buffers, Completion, Disk, FlushKind, Lane, Medium, MediumDisk, Operation, Request, Sector, Token,
};
use afterimage_block_conformance::sim::{CrashOptions, Fault, SimWorld};
use afterimage_format::log::{ImageEntry, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, Config, Mutation, Redo, RedoDisk};
use afterimage_order::{Clock, LoggedDisk, VirtualClock};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::model::{difference, Ack, Change, History, SECTOR};

pub const WINDOW: Duration = Duration::from_millis(50);

/// What a run went through: a suite that never does the interesting things proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub cuts: u64,
    pub deaths: u64,
    pub failures: u64,
    pub held_flushes: u64,
    pub throttled: u64,
    pub laps: u64,
    pub lost_acks: u64,
    pub recovery_cuts: u64,
    /// Sets written, and cuts and deaths that left a part of one in the log.
    pub sets: u64,
    pub torn_sets: u64,
    pub waiting_sets: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.deaths += other.deaths;
        self.failures += other.failures;
        self.held_flushes += other.held_flushes;
        self.throttled += other.throttled;
        self.laps += other.laps;
        self.lost_acks += other.lost_acks;
        self.recovery_cuts += other.recovery_cuts;
        self.sets += other.sets;
        self.torn_sets += other.torn_sets;
        self.waiting_sets += other.waiting_sets;
    }
}

enum Pending {
    Write { change: Change, flushed: bool, sequence: Option<u64> },
    Flush { covers: u64, durable: bool },
    Read { disk: usize, sector: usize, buffers: Buffers },
}

struct OneLane {
    disk: usize,
    lane: Box<dyn Lane>,
    /// Writes that have no number yet, in order.
    unnumbered: VecDeque<Token>,
    pending: HashMap<Token, Pending>,
}

pub struct Run {
    rng: ChaCha8Rng,
    mutation: Option<Mutation>,
    world: SimWorld,
    clock: Arc<VirtualClock>,
    disk_sectors: Vec<usize>,
    core: Option<Arc<Redo>>,
    lanes: Vec<OneLane>,
    history: History,
    acks: Vec<Ack>,
    /// From that many operations on, a cut must leave at least this.
    floors: Vec<(usize, u64)>,
    completed_max: u64,
    next_token: u64,
    acting: usize,
    /// A set whose writing broke off: in the log as a whole or not at all.
    broken_set: Option<Vec<Change>>,
    /// All writes of this run have this many sectors: then a stale record of another life is where a new one could be.
    uniform: Option<usize>,
    /// Steps for which the device answers no sync.
    stalled: usize,
    pub tally: Tally,
}

type Checked = Result<(), String>;

impl Run {
    pub fn new(seed: u64, mutation: Option<Mutation>) -> Result<Self, String> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let disks = rng.random_range(1..=3);
        let disk_sectors: Vec<usize> = (0..disks).map(|_| rng.random_range(4..=24) * 8).collect();
        let area = rng.random_range(8..=32) * 4096usize;
        let mut contents = vec![vec![0; RECORDS_OFFSET as usize + area]];
        for sectors in &disk_sectors {
            contents.push((0..sectors * SECTOR).map(|i| (i / SECTOR) as u8 ^ 0xa5).collect());
        }
        let base = contents[1..].to_vec();
        let world = SimWorld::new(contents);
        let log: Arc<dyn Medium> = world.medium(0);
        let homes: Vec<Arc<dyn Medium>> = (1..=disks).map(|i| world.medium(i) as Arc<dyn Medium>).collect();
        let images: Vec<ImageEntry> = disk_sectors
            .iter()
            .zip(1u64..)
            .map(|(sectors, i)| ImageEntry {
                inode: i.into(),
                size_bytes: ((sectors * SECTOR) as u64).into(),
                ..ImageEntry::default()
            })
            .collect();
        create_medium(&log, &homes, &images, &[], [7; 16], rng.random()).map_err(|e| e.to_string())?;
        // Cuts during the creation of a log leave a file that has not got its name yet.
        let mut contents = vec![world.cached(0)];
        contents.extend(base.iter().cloned());
        let uniform = (rng.random_range(0..3) == 0).then(|| rng.random_range(1..=7));
        let mut run = Self {
            rng,
            mutation,
            world: SimWorld::new(contents),
            clock: Arc::new(VirtualClock::default()),
            disk_sectors,
            core: None,
            lanes: Vec::new(),
            history: History::new(base, 0),
            acks: Vec::new(),
            floors: vec![(0, 0)],
            completed_max: 0,
            next_token: 0,
            acting: 0,
            broken_set: None,
            uniform,
            stalled: 0,
            tally: Tally::default(),
        };
        run.start()?;
        let written_out = run.rng.random_range(0..=run.core().log.area_bytes() / 4096) * 4096;
        run.core().log.written_out(written_out);
        Ok(run)
    }

    fn open_core(&mut self, world: &SimWorld) -> Result<Arc<Redo>, String> {
        let config = Config {
            window: WINDOW,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            log: world.medium(0),
            homes: (1..=self.disk_sectors.len()).map(|i| world.medium(i) as Arc<dyn Medium>).collect(),
            incarnation: self.rng.random(),
            any_content: false,
            mutation: self.mutation,
        };
        Redo::open(config).map_err(|e| format!("opening failed: {e}"))
    }

    fn disk(core: &Arc<Redo>, world: &SimWorld, disk: usize) -> RedoDisk {
        RedoDisk::new(
            Arc::clone(core),
            LoggedDisk(disk as u16),
            Arc::new(MediumDisk::new(world.medium(disk + 1))),
        )
    }

    /// A process begins.
    fn start(&mut self) -> Checked {
        let world = self.world.clone();
        let core = self.open_core(&world)?;
        self.lanes.clear();
        for disk in 0..self.disk_sectors.len() {
            for _ in 0..self.rng.random_range(1..=2) {
                let lane = Self::disk(&core, &world, disk).open_lane().map_err(|e| e.to_string())?;
                let (unnumbered, pending) = (VecDeque::new(), HashMap::new());
                self.lanes.push(OneLane { disk, lane, unnumbered, pending });
            }
        }
        self.core = Some(core);
        self.acting = 0;
        self.note_floor();
        Ok(())
    }

    fn core(&self) -> &Arc<Redo> {
        self.core.as_ref().expect("a process runs")
    }

    /// What the core says is durable has to be there from now on.
    fn note_floor(&mut self) {
        let durable = self.core().board.sequence.durable.get().0;
        if self.floors.last().is_none_or(|(_, floor)| *floor < durable) {
            self.floors.push((self.world.ops(), durable));
        }
    }

    pub fn steps(&mut self, steps: usize) -> Checked {
        for _ in 0..steps {
            self.step()?;
            self.note_floor();
            if self.core().board.health.failure().is_some() {
                self.after_failure()?;
            }
        }
        self.cuts_here(6)
    }

    fn step(&mut self) -> Checked {
        self.stalled = self.stalled.saturating_sub(1);
        if self.uniform.is_some() && self.rng.random_range(0..40) == 0 {
            return self.cut_and_go_on();
        }
        let lane = self.rng.random_range(0..self.lanes.len());
        match self.rng.random_range(0..1000) {
            0..=329 => self.write(lane),
            330..=399 => self.write_set(),
            400..=519 => self.flush(lane),
            520..=619 => self.act(lane, |lane| lane.dispatch()),
            620..=719 => self.read_somewhere(lane),
            720..=819 => {
                self.clock.advance(Duration::from_micros(self.rng.random_range(0..20_000)));
                if self.core().syncer.next_at().is_some_and(|at| at <= self.clock.now())
                    && self.rng.random_range(0..4) > 0
                {
                    self.sync()?;
                }
                Ok(())
            }
            820..=829 => {
                // An error is the group's failure.
                let _ = self.core().log.write_ahead();
                Ok(())
            }
            830..=879 => self.sync(),
            880..=949 => self.round_home(),
            950..=969 => self.cuts_here(3),
            970..=979 => self.die(),
            980..=987 => self.die_within(),
            988..=989 => {
                self.stalled = 60;
                Ok(())
            }
            990..=992 => {
                let medium = self.rng.random_range(0..=self.disk_sectors.len());
                let fault = if self.rng.random() { Fault::Write } else { Fault::Sync };
                let error = if self.rng.random() { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
                self.world.fail(medium, fault, self.rng.random_range(0..3), error);
                Ok(())
            }
            _ => self.cut_and_go_on(),
        }
    }

    /// A sync, sometimes with requests that come in while it runs.
    fn sync(&mut self) -> Checked {
        if self.stalled > 0 {
            return Ok(());
        }
        let core = Arc::clone(self.core());
        core.syncer.request();
        // What is left of the sync before comes first.
        let begun = (0..3).find_map(|_| core.syncer.turn().transpose());
        let Some(Ok(sync)) = begun else { return Ok(()) };
        for _ in 0..self.rng.random_range(0..3) {
            self.interfere()?;
        }
        if self.rng.random() {
            // Too early for the schedule.
            let _ = core.syncer.turn();
            self.interfere()?;
        }
        if core.syncer.run(&sync).is_err() {
            return Ok(());
        }
        for _ in 0..self.rng.random_range(0..3) {
            self.interfere()?;
        }
        core.syncer.ran();
        // Finished, and now and then not written ahead before the next.
        for _ in 0..self.rng.random_range(1..3) {
            let _ = core.syncer.turn();
        }
        Ok(())
    }

    fn interfere(&mut self) -> Checked {
        let lane = self.rng.random_range(0..self.lanes.len());
        match self.rng.random_range(0..5) {
            0 => self.flush(lane),
            1 => self.read_somewhere(lane),
            2 => self.write_set(),
            _ => self.write(lane),
        }
    }

    fn round_home(&mut self) -> Checked {
        let limit = self.rng.random_range(1..self.core().log.area_bytes());
        let before = self.core().board.sequence.home.get().0;
        let _ = self.core().going_home.round(limit);
        if self.core().board.sequence.home.get().0 > before {
            self.tally.laps += 1;
        }
        for lane in 0..self.lanes.len() {
            self.act(lane, |_| {})?;
        }
        Ok(())
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn write(&mut self, lane: usize) -> Checked {
        let disk = self.lanes[lane].disk;
        let max = (self.core().log.area_bytes() as usize / 8).max(4096) / SECTOR;
        let sectors =
            *[1, 1, 2, 3, 8, 8, 8, 16].get(self.rng.random_range(0..8)).unwrap_or(&1usize).min(&max);
        let sectors = self.uniform.unwrap_or(sectors).min(self.disk_sectors[disk]);
        let sector = self.rng.random_range(0..=self.disk_sectors[disk] - sectors);
        let flushed = self.rng.random_range(0..12) == 0;
        let token = self.token();
        let (operation, data) = match self.rng.random_range(0..10) {
            0 => (Operation::Discard { flushed }, None),
            1 => (Operation::WriteZeroes { unmap: self.rng.random(), flushed }, None),
            2 => {
                // The same bytes everywhere: what a stale record would show, too.
                (Operation::Write { flushed }, Some(vec![0x55; sectors * SECTOR]))
            }
            _ => {
                let data = (0..sectors * SECTOR).map(|i| (token.0 as u8).wrapping_add((i / 64) as u8));
                (Operation::Write { flushed }, Some(data.collect::<Vec<u8>>()))
            }
        };
        let buffers = data.as_ref().map_or_else(Buffers::empty, |d| Buffers::from_bytes(d));
        let change = Change { disk, sector, sectors, data: data.map(Into::into) };
        self.lanes[lane].pending.insert(token, Pending::Write { change, flushed, sequence: None });
        self.lanes[lane].unnumbered.push_back(token);
        let (sector, sectors) = (Sector(sector as u64), sectors as u64);
        let dispatch = self.uniform.is_some() || self.rng.random_range(0..3) > 0;
        self.act(lane, |lane| {
            lane.submit(Request { token, operation, sector, sectors, buffers });
            if dispatch {
                lane.dispatch();
            }
        })
    }

    fn flush(&mut self, lane: usize) -> Checked {
        let durable = self.rng.random_range(0..8) == 0;
        let kind = if durable { FlushKind::Durable } else { FlushKind::Order };
        let token = self.token();
        // Everything that has completed, on any lane.
        let covers = self.completed_max;
        self.lanes[lane].pending.insert(token, Pending::Flush { covers, durable });
        let request = Request {
            token,
            operation: Operation::Flush(kind),
            sector: Sector(0),
            sectors: 0,
            buffers: Buffers::empty(),
        };
        self.act(lane, |lane| lane.submit(request))
    }

    fn read_somewhere(&mut self, lane: usize) -> Checked {
        let disk = self.lanes[lane].disk;
        let sectors = self.rng.random_range(1..=self.disk_sectors[disk].min(40));
        let sector = self.rng.random_range(0..=self.disk_sectors[disk] - sectors);
        let token = self.token();
        let buffers = Buffers::allocate(sectors * SECTOR);
        let request = Request {
            token,
            operation: Operation::Read,
            sector: Sector(sector as u64),
            sectors: sectors as u64,
            buffers: buffers.share(),
        };
        self.lanes[lane].pending.insert(token, Pending::Read { disk, sector, buffers });
        self.act(lane, |lane| lane.submit(request))?;
        match self.lanes[lane].pending.contains_key(&token) {
            true => Err("a read was held back".to_owned()),
            false => Ok(()),
        }
    }

    /// Does something with a lane, gives numbers to what it appended, and takes its completions.
    fn act(&mut self, lane: usize, action: impl FnOnce(&mut dyn Lane)) -> Checked {
        if !self.world.halted() && self.core().board.health.failure().is_none() {
            self.acting = lane;
        }
        let mut completions: Vec<Completion> = Vec::new();
        {
            let lane = &mut self.lanes[lane].lane;
            action(lane.as_mut());
            lane.reap(&mut completions);
        }
        self.number(self.core().board.sequence.acknowledged.get().0)?;
        for completion in completions {
            self.completed(lane, completion)?;
        }
        Ok(())
    }

    /// The acting lane has put everything up to `last` into the log.
    fn number(&mut self, last: u64) -> Checked {
        while self.history.last() < last {
            let lane = &mut self.lanes[self.acting];
            let token = lane.unnumbered.pop_front().ok_or("a number was given to nothing")?;
            let sequence = self.history.last() + 1;
            match lane.pending.get_mut(&token) {
                Some(Pending::Write { change, sequence: number, .. }) => {
                    *number = Some(sequence);
                    self.history.push(change.clone());
                }
                // Completed before it was in the log: the number comes too late for those who have read.
                _ => return Err("a write completed before it had a number".to_owned()),
            }
        }
        Ok(())
    }

    fn completed(&mut self, lane: usize, completion: Completion) -> Checked {
        let pending = self.lanes[lane].pending.remove(&completion.token);
        let pending = pending.ok_or("a completion for nothing")?;
        if let Err(e) = completion.result {
            let failed = self.core().board.health.failure().is_some() || self.world.halted();
            return match pending {
                Pending::Read { .. } if !self.world.halted() => Err(format!("a read failed: {e}")),
                _ if !failed => Err(format!("a request failed: {e}")),
                pending => {
                    // Not acknowledged; a record that was written before the failure may be there all the same.
                    self.lanes[lane].pending.insert(completion.token, pending);
                    Ok(())
                }
            };
        }
        match pending {
            Pending::Read { disk, sector, buffers } => {
                let found = buffers.to_vec();
                let expected = &self.history.prefix(self.history.last())[disk];
                let expected = &expected[sector * SECTOR..sector * SECTOR + found.len()];
                if found != expected {
                    let found = [found];
                    return Err(format!(
                        "read of sector {sector}: {}",
                        difference(&found, &[expected.to_vec()]).unwrap_or_default()
                    ));
                }
            }
            Pending::Write { flushed, sequence, .. } => {
                let sequence = sequence.ok_or("a write completed before it was in the log")?;
                self.completed_max = self.completed_max.max(sequence);
                if flushed {
                    self.acknowledged(sequence, false);
                }
            }
            Pending::Flush { covers, durable } => self.acknowledged(covers, durable),
        }
        Ok(())
    }

    fn acknowledged(&mut self, covers: u64, durable: bool) {
        let ops = self.world.ops();
        if durable {
            self.floors.push((ops, covers));
        } else {
            self.acks.push(Ack { ops, covers, at_us: self.clock.now().as_micros() as u64 });
        }
    }

    /// Reads every disk of a core completely.
    fn read_all(&self, core: &Arc<Redo>, world: &SimWorld) -> Result<Vec<Vec<u8>>, String> {
        let mut disks = Vec::new();
        for (disk, sectors) in self.disk_sectors.iter().enumerate() {
            let lane = Self::disk(core, world, disk).open_lane().map_err(|e| e.to_string())?;
            let mut content = vec![0; sectors * SECTOR];
            let mut lane = afterimage_block::Blocking::new(lane);
            lane.read(Sector(0), &mut content).map_err(|e| format!("reading after recovery: {e}"))?;
            disks.push(content);
        }
        Ok(disks)
    }

    fn count_core(&mut self) {
        if let Some(core) = &self.core {
            let (held, throttled) = (core.syncer.held_flushes(), core.log.throttled());
            self.tally.held_flushes += held;
            self.tally.throttled += throttled;
        }
    }
}
