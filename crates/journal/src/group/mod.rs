//! A group of disks whose guest's journals are retained: what `serve` opens, asks and closes.
//!
//! ```text
//! images locked ─► Prepared (state files judged, arenas opened) ─► Group::open ─► RetainGroup::open ─► frontends
//! flush   every disk settled ─► group flushed
//! pause   every disk holds writes back and is made complete ─► group paused
//! close   every disk finished ─► group closed ─► state files removed, durably ─► arenas removed
//!         (a disk of which an earlier daemon's guest may live, unseen: made complete, and all of it stays)
//! ```
//!
//! Outcomes. A daemon that dies, or hands over, leaves state files and arenas: the next one takes them over. After an
//! orderly end the images are plain raw files, and nothing of this layer is left. With `--journal passthrough` the group
//! is handed through as it is.

mod error;
mod prepare;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use afterimage_block::{BlockError, Disk, DiskIndex, SequenceNumber};
use afterimage_order::{Closing, Contract, Group, GroupStatus, Sequence, Subscription};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::RetainDisk;
use crate::error::JournalError;
use crate::ext4::{self, Options};
use crate::mutation::Mistake;
use crate::state_file::{self, ImageIdentity, State};
use crate::status::DiskStatus;
use crate::versions::arena::{Arena, Budget};
use crate::versions::Below;

pub use error::RetainError;
use prepare::PreparedDisk;
pub(crate) use prepare::{arena_of, is_behind_its_log, is_own, judge, open_arena, stray, Earlier};
pub use prepare::{GroupImage, Prepared};

/// How often the fill is looked at while it may soon need room.
const LOOK_OFTEN: Duration = Duration::from_millis(20);
/// How often otherwise.
const LOOK: Duration = Duration::from_millis(100);
/// How long nothing is tried after a checkpoint that made no room.
const LOOK_IN_VAIN: Duration = Duration::from_millis(500);

/// What is done with the journals of a group's disks.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// `--journal retain`; otherwise they are passed through, and the rest counts for nothing but `accept_loss`.
    pub retain: bool,
    /// `--retain-max`: bytes of journal content that all disks together may hold.
    pub retain_bytes_max: u64,
    /// `--arena`: where arenas are made, on a tmpfs.
    pub arena_folder: PathBuf,
    /// `--accept-loss`: go on where an arena is gone.
    pub accept_loss: bool,
    /// See [`Options::vflush_at_truncation`].
    pub vflush_at_truncation: bool,
    /// See [`Options::drop_journal`].
    pub drop_journal: bool,
    /// A mistake that is to be made; only with the feature `mutations`.
    #[cfg(feature = "mutations")]
    pub mutation: Option<crate::Mutation>,
}

impl JournalOptions {
    /// Journal content that suits most guests, in bytes: ext4's journals have 4 to 1024 MiB, mostly 64 or 128.
    pub const RETAIN_DEFAULT_BYTES: u64 = 256 << 20;
    /// The least that is of use, in bytes.
    pub const RETAIN_MIN_BYTES: u64 = 1 << 20;
    /// The most that one arena can hold, in bytes: just below 16 TiB.
    pub const RETAIN_MAX_BYTES: u64 = crate::versions::arena::BYTES_MAX;
    /// Where arenas are made unless somebody says otherwise.
    pub const ARENA_FOLDER: &'static str = "/dev/shm";

    /// Journals are passed through.
    pub fn passthrough() -> Self {
        Self {
            retain: false,
            retain_bytes_max: Self::RETAIN_DEFAULT_BYTES,
            arena_folder: Self::ARENA_FOLDER.into(),
            accept_loss: false,
            vflush_at_truncation: false,
            drop_journal: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    pub(crate) fn mistake(&self) -> Mistake {
        #[cfg(feature = "mutations")]
        if let Some(mutation) = self.mutation {
            return Mistake::of(mutation);
        }
        Mistake::default()
    }

    /// As `--journal` spells it.
    pub fn mode(&self) -> &'static str {
        match (self.retain, self.drop_journal) {
            (false, _) => "passthrough",
            (true, false) => "retain",
            (true, true) => "drop-for-bench",
        }
    }
}

/// How a group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// For good. With a guest attached its own recovery must find everything in the journal. Disks whose arenas were taken over,
    /// and to which no guest [was seen](RetainGroup::guest_was_seen) to come back, stay retained.
    Close {
        /// A guest is attached, and may go on later.
        attached: bool,
    },
    /// Another daemon goes on with the same guest: what is retained stays.
    HandOver,
}

/// A disk whose journals are retained.
struct Member {
    /// Its position in the group.
    index: usize,
    disk: Arc<RetainDisk>,
    image: PathBuf,
    state: PathBuf,
    arena: PathBuf,
    /// What an earlier daemon retained was taken over, and no guest has been seen since: the one that it belongs to may live.
    awaited: AtomicBool,
}

#[derive(Default)]
struct Gate {
    stop: bool,
    pause: Pause,
}

/// How far a pause is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pause {
    /// Writes go on.
    #[default]
    Off,
    /// Some disks may not be complete: whoever promises durability settles them, and nothing is done in the background.
    Begun,
    /// Every disk is complete, and holds writes back.
    Complete,
}

struct Shared {
    members: Vec<Member>,
    budget: Budget,
    /// Held while the checkpointing thread works: a pause or an end waits for it.
    gate: Mutex<Gate>,
    wake: Condvar,
}

/// See the module.
pub struct RetainGroup {
    group: Arc<Group>,
    disks: Vec<Arc<dyn Disk>>,
    shared: Arc<Shared>,
    options: JournalOptions,
    contract: Contract,
    /// Everything up to this is durable, and every commit before it, as a flush has proved.
    flushed: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for RetainGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetainGroup").field("journal", &self.options.mode()).finish_non_exhaustive()
    }
}

impl RetainGroup {
    /// Goes on with what was prepared, over a group that was opened of the same images in the same order. No guest may
    /// be served yet.
    ///
    /// # Errors
    /// A state file cannot be written, an image cannot be read, or what was retained cannot be written.
    pub fn open(group: Arc<Group>, mut prepared: Prepared) -> Result<Self, RetainError> {
        let contract = group.status().contract;
        let mut disks = group.disks();
        let mut members = Vec::new();
        let mut fresh = Vec::new();
        for (index, disk) in std::mem::take(&mut prepared.disks).into_iter().enumerate() {
            let Some(disk) = disk else { continue };
            let (member, made) = join(&group, index, &disks[index], disk, &prepared.options, &contract)?;
            disks[index] = Arc::clone(&member.disk) as Arc<dyn Disk>;
            members.push(member);
            fresh.push(made);
        }
        for n in &prepared.given_up {
            let mut below = Below::new(&*disks[*n])?;
            ext4::give_up(&mut below, disks[*n].geometry().sectors)?;
        }
        for path in &prepared.stale {
            state_file::remove(path)?;
        }
        for (path, identity) in &prepared.dead_arenas {
            if !path.exists() {
                // Nothing is left of it but its folder.
                let _ = crate::versions::arena::remove(path);
                continue;
            }
            let removed = Arena::open(path, Some(*identity)).and_then(Arena::remove_file);
            if let Err(error) = removed {
                tracing::warn!(%error, "an arena of no use stays");
            }
        }
        let shared = Arc::new(Shared {
            members,
            budget: prepared.budget.clone(),
            gate: Mutex::default(),
            wake: Condvar::new(),
        });
        let thread = match shared.members.is_empty() || group.is_stepped() {
            true => None,
            false => {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new().name("checkpoint".to_owned());
                Some(thread.spawn(move || shared.keep_room()).map_err(RetainError::Thread)?)
            }
        };
        fresh.iter_mut().for_each(prepare::Fresh::keep);
        Ok(Self {
            group,
            disks,
            shared,
            options: prepared.options,
            contract,
            flushed: AtomicU64::new(0),
            thread: Mutex::new(thread),
        })
    }

    /// The disks to serve, in the order of the images.
    pub fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.disks.clone()
    }

    /// A guest has come to that disk since the start: from now on one that is not there is gone.
    pub fn guest_was_seen(&self, index: usize) {
        self.shared
            .members
            .iter()
            .filter(|m| m.index == index)
            .for_each(|m| m.awaited.store(false, Ordering::SeqCst));
    }

    /// As `--journal` spells it.
    pub fn journal(&self) -> &'static str {
        self.options.mode()
    }

    /// The promise in force and its loss bound; what retaining adds to it stands in a sentence of its own.
    pub fn promise(&self) -> String {
        let mut promise = self.group.promise();
        if !self.options.retain {
            return promise;
        }
        promise.push(' ');
        promise.push_str(match (self.options.drop_journal, self.contract) {
            (true, _) => {
                "UNSAFE, for measurements only: journal writes are DROPPED; when the guest dies, what it committed is lost \
                 and its file systems may be damaged."
            }
            (false, Contract::PowerWindow { .. }) => {
                "Journals are retained: what the guest writes to an ext4 journal stays in host memory, and what it commits \
                 becomes durable as its recovery would leave it; each committed block is written twice, once to the \
                 redo log and once home."
            }
            (false, _) => {
                "Journals are retained: what the guest writes to an ext4 journal stays in host memory, which outlives \
                 guest, VMM and daemon, and what it commits is written once, home."
            }
        });
        promise
    }

    /// A snapshot of the group.
    pub fn status(&self) -> GroupStatus {
        // In this order: what is durable had been acknowledged.
        let durable = self.durable();
        let status = self.group.status();
        GroupStatus { durable, home: status.home.min(durable), ..status }
    }

    /// Everything up to this survives a power cut. A commit that is retained has no number of its own: where none is durable by itself, it
    /// counts as the next one, and what a flush has proved is behind the newest.
    pub fn durable(&self) -> SequenceNumber {
        match self.syncs_by_itself() || self.shared.members.is_empty() {
            true => self.group.sequence().durable.get(),
            false => SequenceNumber(self.flushed.load(Ordering::Acquire)),
        }
    }

    fn syncs_by_itself(&self) -> bool {
        matches!(self.contract, Contract::PowerWindow { .. })
    }

    /// How far the group has got, without a lock.
    pub fn sequence(&self) -> &Sequence {
        self.group.sequence()
    }

    /// As [`Group::holds_flushes`].
    pub fn holds_flushes(&self) -> bool {
        self.group.holds_flushes()
    }

    /// A snapshot of what is retained of a disk; `None` where its journals are passed through.
    pub fn disk_status(&self, index: usize) -> Option<DiskStatus> {
        self.shared.members.iter().find(|m| m.index == index).map(|m| m.disk.status())
    }

    /// Those whose journals are retained.
    pub fn retained_disks(&self) -> Vec<Arc<RetainDisk>> {
        self.shared.members.iter().map(|member| Arc::clone(&member.disk)).collect()
    }

    /// Makes everything that has completed, and is committed, durable on all disks; returns what is covered.
    ///
    /// # Errors
    /// A disk failed.
    pub fn flush(&self) -> Result<SequenceNumber, RetainError> {
        let before = self.group.sequence().acknowledged.get();
        self.settle()?;
        let covers = self.group.flush()?;
        self.flushed.fetch_max(before.0.saturating_sub(1), Ordering::AcqRel);
        Ok(covers)
    }

    /// As [`RetainDisk::take_published`], on all disks. Another thread than the caller's has to serve the control disk.
    pub fn take_published(&self) {
        self.shared.members.iter().for_each(|member| member.disk.take_published());
    }

    /// As [`Group::wait_durable`]. Where nothing becomes durable by itself, [flushed](RetainGroup::flush) at once.
    ///
    /// # Errors
    /// A disk failed.
    pub fn wait_durable(
        &self,
        sequence: SequenceNumber,
        timeout: Option<Duration>,
    ) -> Result<bool, RetainError> {
        if self.syncs_by_itself() {
            return Ok(self.group.wait_durable(sequence, timeout)?);
        }
        Ok(self.durable() >= sequence || self.flush()? >= sequence)
    }

    /// What the thread does that keeps room among what is retained, once; for a host that steps what is done in the background.
    /// Says after how long to look again.
    pub fn turn(&self) -> Duration {
        self.shared.turn(&self.shared.gate())
    }

    /// As [`Group::subscribe`].
    pub fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Subscription {
        self.group.subscribe(wake)
    }

    /// Holds new writes back and makes the image files complete without the arenas, so that they may be copied: as
    /// [`Group::pause`], with the guest's journals in their own places.
    ///
    /// # Errors
    /// A disk failed, or the time is over: writes go on.
    pub fn pause(&self, timeout: Option<Duration>) -> Result<SequenceNumber, RetainError> {
        self.pause_by(|group| group.pause(timeout))
    }

    /// As [`RetainGroup::pause`], for the end of a copy: see [`Group::hold`].
    ///
    /// # Errors
    /// As [`RetainGroup::pause`].
    pub fn hold(&self, timeout: Duration) -> Result<SequenceNumber, RetainError> {
        self.pause_by(|group| group.hold(timeout))
    }

    /// Leaves little to do for a pause that follows, while writes go on: see [`Group::approach`].
    ///
    /// # Errors
    /// A disk failed.
    pub fn approach(&self) -> Result<(), RetainError> {
        // Paused disks are complete, and would make a write of ours wait.
        if self.shared.gate().pause == Pause::Off {
            self.shared.members.iter().try_for_each(|m| m.disk.spill())?;
        }
        Ok(self.group.approach()?)
    }

    /// As [`Group::note_changes`].
    pub fn note_changes(&self) {
        self.group.note_changes();
    }

    /// As [`Group::changed`].
    pub fn changed(&self, disk: usize, ranges_max: usize) -> (Vec<Range<u64>>, bool) {
        self.group.changed(disk, ranges_max)
    }

    /// As [`Group::forget_changes`].
    pub fn forget_changes(&self) {
        self.group.forget_changes();
    }

    fn pause_by(
        &self,
        pause: impl FnOnce(&Group) -> Result<SequenceNumber, BlockError>,
    ) -> Result<SequenceNumber, RetainError> {
        self.shared.gate().pause = Pause::Begun;
        let paused = self.shared.members.iter().try_for_each(|m| m.disk.pause());
        let paused = paused.map_err(RetainError::from).and_then(|()| {
            self.shared.gate().pause = Pause::Complete;
            pause(&self.group).map_err(RetainError::from)
        });
        if paused.is_err() {
            self.resume();
        }
        paused
    }

    /// Lets writes go on after [`RetainGroup::pause`].
    pub fn resume(&self) {
        // The group first: whoever waits in it may hold what the others need.
        self.group.resume();
        // Before any disk goes on: what is committed then is not complete without a flush that settles.
        self.shared.gate().pause = Pause::Off;
        self.shared.members.iter().for_each(|m| m.disk.resume());
    }

    /// The orderly end; stop the frontends first. Home is written for no longer than about `limit` where a redo log can
    /// hold the rest.
    ///
    /// # Errors
    /// A disk failed: what is retained stays, for the next daemon.
    pub fn close_within(&self, limit: Duration, ending: Ending) -> Result<Closing, RetainError> {
        self.stop_thread();
        let mut done = Vec::new();
        let finished: Result<(), JournalError> = match ending {
            Ending::HandOver => Ok(()),
            Ending::Close { attached } => self.shared.members.iter().try_for_each(|member| {
                if !member.end(attached)? {
                    done.push(member);
                }
                Ok(())
            }),
        };
        let closed = self.group.close_within(limit);
        finished?;
        let closing = closed?;
        for member in done {
            state_file::remove(&member.state)?;
            if let Err(error) = crate::versions::arena::remove(&member.arena) {
                tracing::warn!(%error, arena = %member.arena.display(), "the arena stays, and nothing names it");
            }
        }
        Ok(closing)
    }

    fn settle(&self) -> Result<(), RetainError> {
        // Paused disks are complete, and would make a write of ours wait.
        if self.shared.gate().pause == Pause::Complete {
            return Ok(());
        }
        // Where one thread steps everything, nobody completes what is waited for.
        let settle = if self.group.is_stepped() { RetainDisk::settle } else { RetainDisk::settle_to_flush };
        Ok(self.shared.members.iter().try_for_each(|m| settle(&m.disk))?)
    }

    fn stop_thread(&self) {
        self.shared.gate().stop = true;
        self.shared.wake.notify_all();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|t| t.join().is_err()) {
            tracing::error!("the checkpointing thread panicked");
        }
    }
}

impl Member {
    /// The orderly end of a disk. Whether its arena stays.
    fn end(&self, attached: bool) -> Result<bool, JournalError> {
        if self.awaited.load(Ordering::SeqCst) && self.disk.stay()? {
            tracing::warn!(
                image = %self.image.display(),
                "the guest whose journal was taken over has not come back yet and may live: what it committed stays retained, \
                 and the next `serve --journal retain` goes on; if it is gone, run `afterimage recover` on the image"
            );
            return Ok(true);
        }
        let stays = self.disk.finish(attached)?;
        if stays {
            tracing::warn!(
                image = %self.image.display(),
                "an earlier version gave up what the guest believes to be in its journal: its arena stays until the guest has moved its \
                 journal's tail under `serve --journal retain`, or `afterimage recover` is told that it is gone"
            );
        }
        Ok(stays)
    }
}

impl Drop for RetainGroup {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock()
    }

    /// Keeps the budget below seven eighths: absorbing a write should not have to wait for a checkpoint.
    fn keep_room(&self) {
        let mut gate = self.gate();
        while !gate.stop {
            let wait = self.turn(&gate);
            self.wake.wait_for(&mut gate, wait);
        }
    }

    /// One look; says after how long to look again.
    fn turn(&self, gate: &Gate) -> Duration {
        let (bytes_max, used_bytes) = (self.budget.bytes_max(), self.budget.used_bytes());
        let goes_on = gate.pause == Pause::Off;
        let more_to_settle = goes_on && self.settle_after_guests();
        if more_to_settle {
            Duration::ZERO
        } else if used_bytes > bytes_max / 8 * 7 && goes_on {
            match self.make_room() {
                true => Duration::ZERO,
                false => LOOK_IN_VAIN,
            }
        } else if used_bytes > bytes_max / 2 {
            LOOK_OFTEN
        } else {
            LOOK
        }
    }

    /// Brings home what guests that have left had committed. Whether there is more to do.
    fn settle_after_guests(&self) -> bool {
        let mut more = false;
        for member in &self.members {
            match member.disk.settle_after_guest() {
                Ok(rest) => more |= rest,
                // The disk has failed and says so itself; what is retained stays retained.
                Err(error) => {
                    tracing::error!(%error, image = %member.image.display(), "what was committed could not be written home");
                }
            }
        }
        more
    }

    /// Takes from the disk that holds most. Whether that made room.
    fn make_room(&self) -> bool {
        let before_bytes = self.budget.used_bytes();
        let held_bytes = |m: &&Member| m.disk.status().arena_used_bytes;
        let Some(member) = self.members.iter().max_by_key(held_bytes) else { return false };
        if let Err(error) = member.disk.make_room() {
            // The disk has failed and says so itself; what is retained stays retained.
            tracing::error!(%error, image = %member.image.display(), "no room could be made among retained journals");
            return false;
        }
        self.budget.used_bytes() < before_bytes
    }
}

/// Brings one disk to life. Its state file is durable before anything of it may be absorbed.
fn join(
    group: &Arc<Group>,
    index: usize,
    lower: &Arc<dyn Disk>,
    prepared: PreparedDisk,
    journal: &JournalOptions,
    contract: &Contract,
) -> Result<(Member, prepare::Fresh), RetainError> {
    let PreparedDisk { image, state_path, arena, state, mut fresh } = prepared;
    let options = Options {
        name: image.display().to_string(),
        home: Some(group.home_writer(DiskIndex(index as u16))?),
        drop_journal: journal.drop_journal,
        accept_loss: journal.accept_loss,
        vflush_at_truncation: journal.vflush_at_truncation,
    };
    // It may have been moved.
    let identity = ImageIdentity::of(&image)?.unwrap_or(state.image);
    let wanted = State { contract: contract.to_string(), image: identity, ..state.clone() };
    // What was promised before is not durable yet where the new promise is the stronger one.
    let later = !fresh.is_fresh() && wanted.survives_power() && !state.survives_power();
    if fresh.is_fresh() || (wanted != state && !later) {
        fresh.state_written = true;
        wanted.write(&state_path)?;
    }
    let named = |error| RetainError::of(error, &image, &wanted.arena);
    let disk =
        Arc::new(RetainDisk::open_with(Arc::clone(lower), arena, options, journal.mistake()).map_err(named)?);
    if later {
        // Opening settled what an earlier daemon left, but for what only a recovery brings home.
        disk.hand_back_overwritten()?;
        group.flush()?;
        wanted.write(&state_path)?;
    }
    let awaited = AtomicBool::new(!fresh.is_fresh());
    Ok((Member { index, disk, image, state: state_path, arena: wanted.arena, awaited }, fresh))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use afterimage_block::{Blocking, Sector};
    use afterimage_order::GroupOptions;
    use afterimage_store::{ImageStore, OpenOptions};

    use super::*;

    /// A group of two disks, `guest-crash`.
    fn group(folder: &std::path::Path) -> RetainGroup {
        let paths = ["a.img", "b.img"].map(|name| folder.join(name));
        paths.iter().for_each(|path| std::fs::File::create(path).unwrap().set_len(1 << 20).unwrap());
        let images = paths.each_ref().map(|path| GroupImage { path, read_only: false });
        let contract = Contract::GuestCrash;
        let options =
            JournalOptions { retain: true, arena_folder: folder.to_owned(), ..JournalOptions::passthrough() };
        let opened: Vec<_> =
            paths.iter().map(|path| ImageStore::open(&OpenOptions::new(path)).unwrap()).collect();
        let prepared = Prepared::new(&images, &contract, options).unwrap();
        RetainGroup::open(Group::open(opened, GroupOptions::new(contract)).unwrap(), prepared).unwrap()
    }

    /// The second disk takes its time to be made complete: until it is, a flush does not rely on that.
    #[test]
    fn a_flush_during_a_pause_promises_nothing_that_is_not_complete() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let group = &group(folder.path());
        let disks = group.retained_disks();
        std::thread::scope(|scope| {
            let ((held, is_held), (release, released)) = (channel(), channel::<()>());
            let second = &disks[1];
            scope.spawn(move || {
                second.act_on_versions(|_| {
                    held.send(()).unwrap();
                    released.recv().unwrap();
                })
            });
            is_held.recv().unwrap();
            let pausing = scope.spawn(|| group.pause(None));
            while group.shared.gate().pause == Pause::Off {
                std::thread::yield_now();
            }
            let flushing = scope.spawn(|| group.flush());
            std::thread::sleep(Duration::from_millis(100));
            let answered = flushing.is_finished();
            release.send(()).unwrap();
            flushing.join().unwrap().unwrap();
            pausing.join().unwrap().unwrap();
            assert!(!answered, "a flush was answered while a disk was not complete");
        });
        // And behind it there is nothing to settle, which would have to wait.
        group.flush().unwrap();
    }

    /// A commit that is retained has no number of its own, and none that is durable covers it before it is: one that has come since the
    /// flush may share the newest.
    #[test]
    fn nothing_is_durable_that_a_commit_may_share() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let group = &group(folder.path());
        let mut lane = Blocking::new(group.disks()[0].open_lane().unwrap());
        for write in 1..4 {
            lane.write(Sector(0), &[7; 4096]).unwrap();
            let newest = group.sequence().acknowledged.get();
            let durable = || (group.durable(), group.status().durable);
            assert!(durable().0 < newest, "write {write}");
            assert!(group.flush().unwrap() >= newest);
            let proved = SequenceNumber(newest.0 - 1);
            assert_eq!(durable(), (proved, proved), "write {write}");
            // So whoever waits for it flushes.
            assert!(group.wait_durable(newest, None).unwrap());
        }
    }

    /// Whoever flushes while disks go on settles them, however soon after.
    #[test]
    fn no_disk_goes_on_while_flushes_rely_on_the_pause() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let group = &group(folder.path());
        group.pause(None).unwrap();
        std::thread::scope(|scope| {
            let gate = group.shared.gate();
            let resuming = scope.spawn(|| group.resume());
            let mut lane = Blocking::new(group.disks()[0].open_lane().unwrap());
            let writing = scope.spawn(move || lane.write(Sector(0), &[7; 4096]));
            std::thread::sleep(Duration::from_millis(100));
            let went_on = writing.is_finished();
            drop(gate);
            resuming.join().unwrap();
            writing.join().unwrap().unwrap();
            assert!(!went_on, "a disk went on while flushes took it for complete");
        });
    }
}
