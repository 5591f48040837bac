//! What a replay's redo log has below and beside it: a log that takes its time to sync, a syncer and a checkpointer, all
//! moved by one virtual clock. Shared between the driver and whatever waits inside a lane.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Medium, MediumDisk};
use afterimage_order::redo::{Config, LogSync, Redo, RedoDisk};
use afterimage_order::{Clock, LoggedDisk, VirtualClock};
use parking_lot::Mutex;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::tape::{Tape, TapeMedium};
use super::{failed, Floor, LayersOptions, Tally};
use crate::Result;

/// A sync of the log that the device is working on.
struct Running {
    sync: LogSync,
    done_at: Duration,
}

/// See the module.
pub(super) struct Device {
    pub options: LayersOptions,
    pub rng: ChaCha8Rng,
    pub clock: Arc<VirtualClock>,
    tape: Arc<Tape>,
    log: Arc<TapeMedium>,
    homes: Vec<Arc<TapeMedium>>,
    core: Option<Arc<Redo>>,
    running: Option<Running>,
    pub floors: Vec<Floor>,
    pub tally: Tally,
}

/// A device and everybody who makes it go on.
pub(super) type Shared = Arc<Mutex<Device>>;

impl Device {
    pub fn new(
        options: &LayersOptions,
        rng: ChaCha8Rng,
        clock: Arc<VirtualClock>,
        tape: Arc<Tape>,
        log: Arc<TapeMedium>,
        homes: Vec<Arc<TapeMedium>>,
    ) -> Self {
        Self {
            options: options.clone(),
            rng,
            clock,
            tape,
            log,
            homes,
            core: None,
            running: None,
            floors: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// A process begins: takes over what is in the log.
    pub fn start(&mut self) -> Result<Vec<RedoDisk>> {
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
        let core = Redo::open(config).map_err(|e| failed("taking the log over", &e))?;
        let disk = |(disk, home): (usize, &Arc<TapeMedium>)| {
            let below = Arc::new(MediumDisk::new(Arc::clone(home) as Arc<dyn Medium>));
            RedoDisk::new(Arc::clone(&core), LoggedDisk(disk as u16), below)
        };
        let disks = self.homes.iter().enumerate().map(disk).collect();
        if self.floors.is_empty() {
            // As a new log is: only its begin is written out.
            core.log.written_out(0);
        }
        self.core = Some(core);
        self.note_floor();
        Ok(disks)
    }

    /// The process is dead, and nobody waits for its sync.
    pub fn stop(&mut self) {
        self.count_waits();
        self.running = None;
        self.log.abandon_sync();
        self.core = None;
    }

    pub fn core(&self) -> Arc<Redo> {
        Arc::clone(self.core.as_ref().expect("a process runs from `start` to `stop`"))
    }

    fn note_floor(&mut self) {
        let k = self.core().board.sequence.durable.get().0 as usize;
        if self.floors.last().is_none_or(|floor| floor.k < k) {
            self.floors.push(Floor { event: self.tape.len(), k });
        }
    }

    pub fn draw(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_range(0..1000) < per_mille
    }

    pub fn move_to(&self, time: Duration) {
        self.clock.advance(time.saturating_sub(self.clock.now()));
    }

    /// When the sync that is running ends.
    pub fn running_until(&self) -> Option<Duration> {
        self.running.as_ref().map(|running| running.done_at)
    }

    /// A sync begins, whatever the schedule says: what is appended from now on belongs to the next one.
    pub fn begin_sync(&mut self) -> Result<()> {
        let core = self.core();
        core.syncer.request();
        // What is left of the sync before comes first.
        while self.running.is_none() && core.syncer.next() == Some(Duration::ZERO) {
            self.turn_sync()?;
        }
        Ok(())
    }

    /// What the schedule says of syncs now.
    pub fn turn_sync(&mut self) -> Result<()> {
        let begun = self.core().syncer.turn().map_err(|e| failed("a turn of the syncer", &e))?;
        self.note_floor();
        let Some(sync) = begun else { return Ok(()) };
        let most = self.options.schedule.sync_max.as_nanos() as u64;
        let took = if self.draw(self.options.schedule.stall) {
            self.options.window.as_nanos() as u64 * self.rng.random_range(1..=4)
        } else {
            self.rng.random_range(0..=most)
        };
        // Only a broken schedule has two at once.
        self.end_sync()?;
        self.log.begin_sync();
        self.running = Some(Running { sync, done_at: self.clock.now() + Duration::from_nanos(took) });
        Ok(())
    }

    /// The device has answered.
    pub fn end_sync(&mut self) -> Result<()> {
        let Some(Running { sync, done_at }) = self.running.take() else { return Ok(()) };
        self.move_to(done_at);
        let core = self.core();
        self.log.end_sync(|| core.syncer.run(&sync)).map_err(|e| failed("syncing the log", &e))?;
        core.syncer.ran();
        self.tally.syncs += 1;
        self.turn_sync()
    }

    /// The sync that somebody waits for: the running one ends, or one begins.
    pub fn go_on(&mut self) -> Result<()> {
        match self.running {
            Some(_) => self.end_sync(),
            None => self.begin_sync(),
        }
    }

    /// Everything appended so far durable, however long it takes.
    pub fn sync_now(&mut self) -> Result<()> {
        self.end_sync()?;
        self.begin_sync()?;
        self.end_sync()
    }

    pub fn checkpoint(&mut self, log_bytes_max: u64) -> Result<()> {
        let some = self.core().going_home.round(log_bytes_max).map_err(|e| failed("a checkpoint", &e))?;
        self.tally.checkpoints += u64::from(some);
        Ok(())
    }

    /// A full log: everything durable, and some of it brought home.
    pub fn make_room(&mut self) -> Result<()> {
        self.sync_now()?;
        let bytes = self.rng.random_range(1..=self.core().log.area_bytes());
        self.checkpoint(bytes)
    }

    /// What the schedule says of going home now.
    pub fn turn_home(&mut self) -> Result<()> {
        let core = self.core();
        if !core.home_is_due() {
            return Ok(());
        }
        if core.home_wants_sync() {
            self.sync_now()?;
        }
        let some = core.half_home().map_err(|e| failed("a checkpoint", &e))?;
        self.tally.checkpoints += u64::from(some);
        Ok(())
    }

    /// The same where an append has asked for it; the thread may come late.
    pub fn turn_home_if_wanted(&mut self) -> Result<()> {
        if !self.core().going_home.is_requested() || self.rng.random_range(0..6) > 0 {
            return Ok(());
        }
        self.turn_home()
    }

    fn count_waits(&mut self) {
        let (held, throttled) = (self.core().syncer.held_flushes(), self.core().log.throttled());
        self.tally.held_flushes += held;
        self.tally.throttled += throttled;
    }
}
