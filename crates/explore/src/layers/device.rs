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
    pub synced_at: Duration,
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
            synced_at: Duration::ZERO,
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
        self.core = Some(core);
        self.synced_at = self.clock.now();
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

    /// The syncer begins: what is appended from now on belongs to the next sync.
    pub fn begin_sync(&mut self) -> Result<()> {
        let core = self.core();
        self.synced_at = self.clock.now();
        let Some(sync) = core.syncer.begin().map_err(|e| failed("beginning a sync", &e))? else {
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
    pub fn end_sync(&mut self) -> Result<()> {
        let Some(Running { sync, done_at }) = self.running.take() else { return Ok(()) };
        self.move_to(done_at);
        let core = self.core();
        self.log.end_sync(|| core.syncer.run(&sync)).map_err(|e| failed("syncing the log", &e))?;
        core.syncer.finish(&sync);
        self.tally.syncs += 1;
        self.note_floor();
        Ok(())
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

    /// What the checkpointer does when an append asks it to.
    pub fn checkpoint_if_half_full(&mut self) -> Result<()> {
        let core = self.core();
        if core.log.bytes_used() <= core.log.area_bytes() / 2 || self.rng.random_range(0..6) > 0 {
            return Ok(());
        }
        if self.running.is_none() {
            self.sync_now()?;
        }
        self.checkpoint(core.log.area_bytes() / 2)
    }

    fn count_waits(&mut self) {
        let (held, throttled) = (self.core().syncer.held_flushes(), self.core().log.throttled());
        self.tally.held_flushes += held;
        self.tally.throttled += throttled;
    }
}
