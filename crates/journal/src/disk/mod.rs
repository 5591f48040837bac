//! The disk that a frontend serves when journals are retained.

pub mod by_uuid;
mod hands;
mod lane;
mod lend;
mod shared;

pub use hands::{Hand, Hands, Lending};
pub use lane::LANE_BYTES_MAX;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, Disk, Geometry, Health, Lane, Quiesced, Sector};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::JournalError;
use crate::ext4::layout::Layout;
use crate::ext4::{FileSystems, Options};
use crate::ids::{FsBlock, Tid};
use crate::mutation::Mistake;
use crate::status::DiskStatus;
use crate::versions::arena::Arena;
use crate::versions::Versions;
use shared::Shared;

/// How long somebody who flushes waits for a guest's writes: one that writes the same blocks again and again, or whose memory is stuck,
/// gets its journal back.
const PATIENCE: Duration = Duration::from_secs(10);

/// A disk whose guest's journals are retained. It stands between a frontend and the ordering layer.
pub struct RetainDisk {
    lower: Arc<dyn Disk>,
    shared: Arc<Shared>,
    hands: Arc<Hands>,
}

impl RetainDisk {
    /// Looks at the disk and goes on with what the arena holds of it. No request of a guest may be under way.
    ///
    /// # Errors
    /// The disk cannot be read, or what was retained cannot be written.
    pub fn open(lower: Arc<dyn Disk>, arena: Arena, options: Options) -> Result<Self, JournalError> {
        Self::open_with(lower, arena, options, Mistake::default())
    }

    /// As [`RetainDisk::open`], with a mistake.
    ///
    /// # Errors
    /// As [`RetainDisk::open`].
    #[cfg(feature = "mutations")]
    pub fn open_mutated(
        lower: Arc<dyn Disk>,
        arena: Arena,
        options: Options,
        mutation: crate::Mutation,
    ) -> Result<Self, JournalError> {
        Self::open_with(lower, arena, options, Mistake::of(mutation))
    }

    /// As [`RetainDisk::open`], with a mistake or none.
    pub(crate) fn open_with(
        lower: Arc<dyn Disk>,
        arena: Arena,
        options: Options,
        mistake: Mistake,
    ) -> Result<Self, JournalError> {
        let systems = FileSystems::open(&*lower, arena, options, mistake)?;
        let shared = Shared {
            version: AtomicU64::new(systems.version()),
            ranges: Mutex::new(Arc::new(systems.ranges())),
            systems: Mutex::new(systems),
            idle: Condvar::new(),
            landed: Condvar::new(),
            paused: AtomicBool::new(false),
            left: AtomicBool::new(false),
        };
        Ok(Self { lower, shared: Arc::new(shared), hands: Arc::default() })
    }

    /// A snapshot.
    pub fn status(&self) -> DiskStatus {
        self.shared.lock().status()
    }

    /// Who may hand over commits of its guest's.
    pub fn hands(&self) -> &Arc<Hands> {
        &self.hands
    }

    /// See [`FileSystems::journal_sector`].
    pub fn journal_sector(&self, uuid: [u8; 16], block: FsBlock, blocks: u32) -> (usize, Option<Sector>) {
        self.shared.lock().journal_sector(uuid, block, blocks)
    }

    /// See [`FileSystems::journal_layout`].
    pub fn journal_layout(&self, uuid: [u8; 16]) -> (usize, Option<Arc<Layout>>) {
        self.shared.lock().journal_layout(uuid)
    }

    /// See [`FileSystems::expected`].
    pub fn expected(&self, uuid: [u8; 16]) -> (usize, Option<Tid>) {
        self.shared.lock().expected(uuid)
    }

    /// The guest may be dead: what is committed goes home. See [`FileSystems::settle_all`].
    ///
    /// # Errors
    /// The disk below failed.
    pub fn settle(&self) -> Result<(), JournalError> {
        self.with(FileSystems::settle_all)
    }

    /// As [`RetainDisk::settle`], for somebody who is told then that it is durable. What was on its way home already is waited for:
    /// where that carried something older, its version goes home behind it. What was not home when this began and only a
    /// recovery would bring there has to be in the journal on the disk.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn settle_to_flush(&self) -> Result<(), JournalError> {
        let mut systems = self.shared.lock_idle();
        while self.act(&mut systems, FileSystems::due)? {}
        let mut versions = systems.not_home();
        let until = Instant::now() + PATIENCE;
        loop {
            let tracks = systems.awaited(&mut versions);
            if tracks.is_empty() || Instant::now() >= until {
                break;
            }
            let flies = |systems: &mut FileSystems| systems.flies(&tracks);
            self.shared.landed.wait_while_until(&mut systems, flies, until);
            self.shared.idle.wait_while(&mut systems, |systems| systems.is_on_its_way());
            while self.act(&mut systems, FileSystems::due)? {}
        }
        self.act(&mut systems, |systems| {
            systems.hand_back(&versions)?;
            systems.settle_all()
        })
    }

    /// Does a bounded part of [`RetainDisk::settle`] where the guest has left since that was last done. Whether there is
    /// more to do.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn settle_after_guest(&self) -> Result<bool, JournalError> {
        if !self.shared.left.swap(false, Ordering::SeqCst) {
            return Ok(false);
        }
        let more = self.act(&mut self.shared.lock_idle(), |systems| match systems.due()? {
            true => Ok(true),
            false => systems.settle_all().map(|()| false),
        });
        if matches!(more, Ok(true)) {
            self.shared.left.store(true, Ordering::SeqCst);
        }
        more
    }

    /// Makes room in the arena.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn make_room(&self) -> Result<(), JournalError> {
        let mut systems = self.shared.lock_idle();
        let goal_bytes = systems.room_goal_bytes();
        self.act(&mut systems, |systems| systems.make_room(goal_bytes))
    }

    /// Sends the log to its own place on the disk, as far as it can do without the arena: making the image complete then is short work.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn spill(&self) -> Result<(), JournalError> {
        let mut systems = self.shared.lock_idle();
        self.act(&mut systems, FileSystems::spill_all)
    }

    /// Acts on what is retained for a client that is no file system of the guest's; what becomes due by it is home when this returns.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn act_on_versions<T>(&self, act: impl FnOnce(&mut Versions) -> T) -> Result<T, JournalError> {
        self.act(&mut self.shared.lock_idle(), |systems| Ok(act(systems.versions())))
    }

    /// From now on a power cut is to lose nothing, and an earlier contract did not say so: what neither is home nor goes there by itself must
    /// be in the journal on the disk. No guest may be served yet.
    ///
    /// # Errors
    /// The disk below failed.
    pub fn hand_back_overwritten(&self) -> Result<(), JournalError> {
        self.with(FileSystems::hand_back_overwritten)
    }

    /// Holds writes back and makes the image complete without the arena, but for a sync of the group.
    ///
    /// # Errors
    /// The disk below failed; writes go on.
    pub fn pause(&self) -> Result<(), JournalError> {
        self.shared.paused.store(true, Ordering::SeqCst);
        let done = self.with(FileSystems::materialise);
        if done.is_err() {
            self.resume();
        }
        done
    }

    /// Lets writes go on.
    pub fn resume(&self) {
        self.shared.paused.store(false, Ordering::SeqCst);
    }

    /// The orderly end; see [`FileSystems::finish`]. Stop the frontends first.
    ///
    /// # Errors
    /// The disk below failed; the arena stays the truth.
    pub fn finish(&self, attached: bool) -> Result<bool, JournalError> {
        self.with(|systems| systems.finish(attached))
    }

    /// The orderly end while a guest may live that has not come back; see [`FileSystems::stay`].
    ///
    /// # Errors
    /// The disk below failed; the arena stays the truth.
    pub fn stay(&self) -> Result<bool, JournalError> {
        self.with(FileSystems::stay)
    }

    /// What was published ([`Lending`]) before this was called is taken when it returns. During a pause nothing is, and it returns at once.
    pub fn take_published(&self) {
        self.hands.take_published(|| self.shared.paused.load(Ordering::SeqCst));
    }

    /// Does something when all that is pending is home as far as sets bring it there.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut FileSystems) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut systems = self.shared.lock_idle();
        while self.act(&mut systems, FileSystems::due)? {}
        self.act(&mut systems, act)
    }

    /// Does something, and brings home what becomes due by it: nothing is on its way before or afterwards.
    fn act<T>(
        &self,
        systems: &mut MutexGuard<'_, FileSystems>,
        act: impl FnOnce(&mut FileSystems) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let result = act(systems);
        let home = self.shared.write_sets(systems);
        self.shared.publish(systems);
        result.and_then(|result| home.map(|()| result))
    }
}

impl Disk for RetainDisk {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn serial(&self) -> &str {
        self.lower.serial()
    }

    fn health(&self) -> &Health {
        self.lower.health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(lane::RetainLane::new(
            self.lower.open_lane()?,
            self.lower.health().clone(),
            Arc::clone(&self.shared),
        )))
    }

    /// Whoever asks waits, perhaps a VMM's main loop: only for what is under way, as for the queues' own requests. The work is left to
    /// [`RetainDisk::settle_after_guest`].
    fn quiesced(&self, why: Quiesced) {
        tracing::debug!(?why, "no request is in flight: what is committed will go home");
        self.hands.stopped(why == Quiesced::Disconnected);
        self.shared.left.store(true, Ordering::SeqCst);
    }
}
