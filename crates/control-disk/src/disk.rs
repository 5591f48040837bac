//! The shell: a [`Disk`] whose writes are commands and whose reads are answers, and the thread that flushes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use afterimage_block::{
    Admitted, Bell, BlockError, Disk, Geometry, Health, Lane, SequenceNumber, SECTOR_BYTES,
};
use afterimage_format::control_disk::{
    is_of_a_file_system, Answer, Command, Held, Lent, BLOCK_BYTES, CONTROL_SERIAL, OPERATION_CLEANUP,
    OPERATION_INIT, OPERATION_LEND, OPERATION_MPROTECT, OPERATION_QUERY, OPERATION_RECOVER, OPERATION_VFLUSH,
    OPERATION_VORDER, OPERATION_WAIT, SLOTS, SLOT_BYTES, STATUS_DONE, STATUS_FAILED, STATUS_NOT_YET,
    STATUS_UNSUPPORTED,
};
use afterimage_format::mark;
use afterimage_journal::group::RetainGroup;
use afterimage_journal::{by_uuid, FsBlock, RetainDisk};
use afterimage_order::{Clock, Contract, Subscription, SystemClock};
use parking_lot::{Condvar, Mutex};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::desk::{Place, Reached, Verdict};
use crate::flights::Flights;
use crate::hand::{Brought, HandOver, Way};
use crate::lane::{Borrowed, ControlLane};
use crate::lent::Loan;

pub(crate) const SLOT_SECTORS: u64 = SLOT_BYTES as u64 / SECTOR_BYTES;
/// What there is, a bit each.
const OPERATIONS: u64 = 1 << OPERATION_VORDER
    | 1 << OPERATION_VFLUSH
    | 1 << OPERATION_WAIT
    | 1 << OPERATION_INIT
    | 1 << OPERATION_CLEANUP
    | 1 << OPERATION_MPROTECT
    | 1 << OPERATION_QUERY
    | 1 << OPERATION_RECOVER;

/// What the control disk asks of its group.
pub trait Durability: Send + Sync {
    /// How far it has got. Does not wait for storage.
    fn reached(&self) -> Reached;

    /// Makes everything that had completed before the call durable; see [`RetainGroup::flush`].
    ///
    /// # Errors
    /// The group has failed, in one sentence.
    fn flush(&self) -> Result<SequenceNumber, String>;

    /// `wake` is called whenever [`Durability::reached`] has changed without a request, from any thread, and does not wait.
    fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Option<Subscription>;

    /// Those for which commits may be handed over: always the same.
    fn retained_disks(&self) -> Vec<Arc<RetainDisk>>;
}

impl Durability for RetainGroup {
    fn reached(&self) -> Reached {
        let sequence = self.sequence();
        // In this order: what is durable had been acknowledged.
        let durable = sequence.durable.get();
        let failure = self.disks().iter().find_map(|disk| disk.health().failure());
        Reached { acknowledged: sequence.acknowledged.get(), durable, failure }
    }

    fn flush(&self) -> Result<SequenceNumber, String> {
        RetainGroup::flush(self).map_err(|error| error.to_string())
    }

    fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Option<Subscription> {
        Some(RetainGroup::subscribe(self, wake))
    }

    fn retained_disks(&self) -> Vec<Arc<RetainDisk>> {
        RetainGroup::retained_disks(self)
    }
}

/// What a guest reads of the contract in force.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The contract.
    pub contract: Contract,
    /// In one sentence, with its loss bound.
    pub text: String,
    /// Memory may be lent, in which commits are published. Somebody looks there when nobody wakes them ([`ControlLane::deadline`]).
    pub lends: bool,
}

/// How often commands were answered, since the start.
#[derive(Debug, Default)]
pub struct Commands {
    /// Ordering points given.
    pub vorders: AtomicU64,
    /// Durability that was asked for, and reached.
    pub vflushes: AtomicU64,
    /// Points that were waited for, and durable.
    pub waits: AtomicU64,
    /// Points that were waited for, and not durable in time.
    pub not_yet: AtomicU64,
    /// Blocks of commits that were handed over.
    pub handed_over_blocks: AtomicU64,
    /// Requests with such blocks.
    pub mprotects: AtomicU64,
    /// Commits that were published in memory which was lent, and taken.
    pub published: AtomicU64,
    /// Their blocks.
    pub published_blocks: AtomicU64,
    /// What was asked or told of file systems besides.
    pub file_systems: AtomicU64,
    /// What was no command, or none that there is.
    pub refused: AtomicU64,
    /// What the disks' failure prevented.
    pub failed: AtomicU64,
}

impl Commands {
    pub(crate) fn count(&self, command: &Command, status: u16) {
        let counter = match (status, command.operation.get()) {
            (STATUS_DONE, OPERATION_VORDER) => &self.vorders,
            (STATUS_DONE, OPERATION_VFLUSH) => &self.vflushes,
            (STATUS_DONE, OPERATION_MPROTECT) => {
                self.handed_over_blocks.fetch_add(command.blocks.get().into(), Ordering::Relaxed);
                &self.mprotects
            }
            (STATUS_DONE | STATUS_NOT_YET, operation) if is_of_a_file_system(operation) => &self.file_systems,
            (STATUS_DONE, _) => &self.waits,
            (STATUS_NOT_YET, _) => &self.not_yet,
            (STATUS_FAILED, _) => &self.failed,
            _ => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) struct Shared {
    pub(crate) group: Arc<dyn Durability>,
    disks: Vec<Arc<RetainDisk>>,
    /// The way in to each of them for what is handed over.
    ways_in: Vec<Arc<dyn Disk>>,
    promise: Promise,
    pub(crate) instance: u64,
    clock: Arc<dyn Clock>,
    pub(crate) commands: Commands,
    /// A slot's last answer.
    answers: Mutex<Vec<Option<Answer>>>,
    pub(crate) flushing: Mutex<Flushing>,
    /// A flush is asked for, or the end.
    pub(crate) wanted: Condvar,
    bells: Arc<Bells>,
}

/// Of the lanes that there are.
#[derive(Default)]
struct Bells(Mutex<Vec<Weak<Bell>>>);

impl Bells {
    fn add(&self, bell: &Arc<Bell>) {
        let mut bells = self.0.lock();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(bell));
    }

    fn ring(&self) {
        self.0.lock().iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
    }
}

#[derive(Default)]
pub(crate) struct Flushing {
    pub(crate) flights: Flights,
    end: bool,
}

/// See the module.
pub struct ControlDisk {
    shared: Arc<Shared>,
    health: Health,
    thread: Option<JoinHandle<()>>,
    /// Kept: dropped, no bell would ring.
    _events: Option<Subscription>,
}

impl std::fmt::Debug for ControlDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlDisk").field("commands", self.commands()).finish_non_exhaustive()
    }
}

impl ControlDisk {
    /// A control disk of a group. Starts the thread that flushes.
    ///
    /// # Errors
    /// No thread is left.
    pub fn new(group: Arc<dyn Durability>, promise: Promise) -> io::Result<Self> {
        let ways_in = group.retained_disks().into_iter().map(|disk| disk as Arc<dyn Disk>).collect();
        Self::heard(group, promise, ways_in, Arc::new(SystemClock))
    }

    /// As [`ControlDisk::new`], for somebody who listens to the disks: what is handed over goes through `ways_in`, one for each of
    /// [`Durability::retained_disks`], in that order. A way in leads to its disk, and to nothing else. The time is that of `clock`.
    ///
    /// # Errors
    /// As [`ControlDisk::new`].
    pub fn heard(
        group: Arc<dyn Durability>,
        promise: Promise,
        ways_in: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            disks: group.retained_disks(),
            ways_in,
            group,
            promise,
            instance: uuid::Uuid::new_v4().as_u64_pair().0 | 1,
            clock,
            commands: Commands::default(),
            answers: Mutex::new(vec![None; SLOTS as usize]),
            flushing: Mutex::default(),
            wanted: Condvar::new(),
            bells: Arc::default(),
        });
        let woken = Arc::clone(&shared.bells);
        let events = shared.group.subscribe(Box::new(move || woken.ring()));
        let flusher = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("control-disk".to_owned());
        let thread = Some(thread.spawn(move || flusher.flush_for_ever())?);
        Ok(Self { shared, health: Health::default(), thread, _events: events })
    }

    /// A lane, as itself.
    ///
    /// # Errors
    /// As [`Disk::open_lane`].
    pub fn lane(&self) -> Result<ControlLane, BlockError> {
        let bell =
            Bell::new().map_err(|error| BlockError::io("opening a lane of the control disk", error))?;
        let bell = Arc::new(bell);
        self.shared.bells.add(&bell);
        ControlLane::new(self.geometry(), Arc::clone(&self.shared), bell)
    }

    /// What was asked so far.
    pub fn commands(&self) -> &Commands {
        &self.shared.commands
    }
}

impl Drop for ControlDisk {
    fn drop(&mut self) {
        self.shared.flushing.lock().end = true;
        self.shared.wanted.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the control disk's thread panicked");
        }
    }
}

impl Shared {
    fn flush_for_ever(&self) {
        let mut flushing = self.flushing.lock();
        loop {
            if flushing.flights.begin() {
                drop(flushing);
                let outcome = self.group.flush();
                flushing = self.flushing.lock();
                flushing.flights.end(outcome.map_err(Into::into));
                self.bells.ring();
            } else if flushing.end {
                return;
            } else {
                self.wanted.wait(&mut flushing);
            }
        }
    }

    /// The disks whose commits may be handed over, each with the way in for them.
    pub(crate) fn ways_in(&self) -> impl Iterator<Item = (&Arc<RetainDisk>, &dyn Disk)> {
        self.disks.iter().zip(self.ways_in.iter().map(|way_in| &**way_in))
    }

    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self.promise.contract, Contract::PowerWindow { .. })
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// An answer with all that does not depend on the command.
    fn blank(&self) -> Answer {
        let (contract, window) = match self.promise.contract {
            Contract::Power => (mark::CONTRACT_POWER, Duration::ZERO),
            Contract::PowerWindow { window } => (mark::CONTRACT_POWER_WINDOW, window),
            Contract::GuestCrash => (mark::CONTRACT_GUEST_CRASH, Duration::ZERO),
        };
        Answer {
            contract: contract.into(),
            window_us: u32::try_from(window.as_micros()).unwrap_or(u32::MAX).into(),
            instance: self.instance.into(),
            durable: self.group.reached().durable.0.into(),
            operations: (OPERATIONS | u64::from(self.promise.lends) << OPERATION_LEND).into(),
            slots: SLOTS.into(),
            slot_bytes: SLOT_BYTES.into(),
            ..Answer::new_zeroed()
        }
    }

    /// The disk that holds a file system whose journal is retained, and what is retained of it; see [`by_uuid::file_system`].
    fn file_system(&self, uuid: [u8; 16]) -> Result<(Arc<RetainDisk>, Held), String> {
        let (disk, system) = by_uuid::file_system(&self.disks, uuid)?;
        let held = Held {
            versions: system.versions.into(),
            pending: system.versions_pending.into(),
            data_bytes: system.data_bytes.into(),
            information_bytes: system.information_bytes.into(),
        };
        Ok((disk, held))
    }

    /// What is to be said of a file system at once: all but that everything is home.
    pub(crate) fn of_a_file_system(&self, command: &Command) -> Option<Verdict> {
        let (disk, held) = match self.file_system(command.file_system) {
            Ok(found) => found,
            Err(why) => return Some(Verdict::not(STATUS_UNSUPPORTED, why)),
        };
        match command.operation.get() {
            OPERATION_RECOVER => None,
            // A commit names the guest whose it is.
            OPERATION_INIT => Some(Verdict::done(SequenceNumber(disk.hands().guest()))),
            OPERATION_CLEANUP if held.versions.get() > 0 => {
                let why = format!(
                    "{} versions are retained of it: it is mounted, or its journal is not empty",
                    held.versions
                );
                Some(Verdict::not(STATUS_NOT_YET, why))
            }
            _ => Some(Verdict::done(SequenceNumber(0))),
        }
    }

    /// Blocks of a commit, and where they belong.
    pub(crate) fn hand_over(
        &self,
        place: Place,
        command: Command,
        request: &Admitted,
    ) -> Result<HandOver, Verdict> {
        let (block, blocks) = (command.block.get(), command.blocks.get());
        let Some((disk, sector)) =
            by_uuid::journal_sector(&self.disks, command.file_system, FsBlock(block), blocks)
        else {
            let why = format!("{blocks} blocks from {block} on are not in a journal that is retained, of one file system alone");
            return Err(Verdict::not(STATUS_UNSUPPORTED, why));
        };
        // To a daemon that was started since, the guest that it names is the first.
        let here = command.instance.get() == self.instance;
        let guest = if here { command.sequence.get() } else { 0 };
        let Some(hand) = disk.hands().begin(guest) else {
            return Err(Verdict::not(STATUS_UNSUPPORTED, "the guest whose commit this is has left the disk"));
        };
        let bytes = blocks as usize * BLOCK_BYTES as usize;
        let buffers = request.buffers.slice(SECTOR_BYTES as usize, bytes);
        Ok(HandOver { way: Way::Command(Box::new(Brought { place, command, hand })), buffers, disk, sector })
    }

    /// Memory that is lent, by which right.
    pub(crate) fn borrow(
        &self,
        lent: &Lent,
        request: &Admitted,
        bell: &Arc<Bell>,
    ) -> Result<Borrowed, String> {
        if !self.promise.lends {
            return Err("no memory may be lent here".to_owned());
        }
        let Some((disk, journal)) = by_uuid::journal_layout(&self.disks, lent.file_system) else {
            return Err("there is not one file system of this name whose journal is retained".to_owned());
        };
        let here = lent.instance.get() == self.instance;
        let guest = if here { lent.sequence.get() } else { 0 };
        let bell = Arc::clone(bell);
        let Some(lending) = disk.hands().lend(guest, Box::new(move || bell.ring())) else {
            return Err("the guest whose commits these are has left the disk".to_owned());
        };
        let loan = Loan::open(self.now(), request.token, request.buffers.share(), lent, journal)?;
        let slot = (request.sector.0 / SLOT_SECTORS) as usize;
        Ok(Borrowed { loan, slot, disk, lending })
    }

    /// Leaves in a slot why nothing is taken of what is published.
    pub(crate) fn refuse_loan(&self, slot: usize, why: &str) {
        tracing::warn!("the control disk takes nothing of what is published in memory that was lent: {why}");
        let verdict = Verdict::not(STATUS_UNSUPPORTED, why);
        // Said where it is looked for; the read itself went well.
        let _ = self.conclude(slot, &Command::new(OPERATION_LEND, 0), &verdict);
    }

    /// What is read where there was no command.
    fn introduction(&self) -> Answer {
        let sequence = self.group.reached().acknowledged.0.into();
        Answer { sequence, ..self.blank() }.seal(&self.promise.text)
    }

    /// Leaves a command's answer in its slot; the completion of its write is the result.
    pub(crate) fn conclude(
        &self,
        slot: usize,
        command: &Command,
        verdict: &Verdict,
    ) -> Result<(), BlockError> {
        self.commands.count(command, verdict.status);
        let asks =
            is_of_a_file_system(command.operation.get()) && command.operation.get() != OPERATION_MPROTECT;
        let system = asks.then(|| self.file_system(command.file_system).ok()).flatten();
        let answer = Answer {
            held: system.map_or_else(Held::default, |(_, held)| held),
            operation: command.operation,
            tag: command.tag,
            status: verdict.status.into(),
            sequence: verdict.sequence.0.into(),
            ..self.blank()
        };
        if let Some(place) = self.answers.lock().get_mut(slot) {
            *place = Some(answer.seal(&verdict.why));
        }
        let why = Arc::clone(&verdict.why);
        match verdict.status {
            STATUS_DONE | STATUS_NOT_YET => Ok(()),
            STATUS_FAILED => Err(BlockError::Failed { reason: why }),
            STATUS_UNSUPPORTED => Err(BlockError::Unsupported(why)),
            _ => Err(BlockError::Corrupt(why)),
        }
    }

    pub(crate) fn read(&self, request: &Admitted) {
        request.buffers.fill_zero(0, request.buffers.len());
        let (first, end) = (request.sector.0, request.sector.0 + request.sectors);
        for slot in first.div_ceil(SLOT_SECTORS)..end.div_ceil(SLOT_SECTORS) {
            let answer = self.answers.lock()[slot as usize].unwrap_or_else(|| self.introduction());
            let at = (slot * SLOT_SECTORS - first) * SECTOR_BYTES;
            request.buffers.copy_from(at as usize, answer.as_bytes());
        }
    }
}

impl Disk for ControlDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: u64::from(SLOTS) * SLOT_SECTORS,
            logical_block_bytes: SECTOR_BYTES as u32,
            physical_block_bytes: SECTOR_BYTES as u32,
            discard_granularity_bytes: SECTOR_BYTES as u32,
            read_only: false,
        }
    }

    fn serial(&self) -> &str {
        CONTROL_SERIAL
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(self.lane()?))
    }
}
