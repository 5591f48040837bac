//! What the lanes of a control disk have in common: its group, the slots' answers, and the flushes that are asked for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use afterimage_block::{Admitted, Bell, BlockError, Buffers, Disk, SequenceNumber, SECTOR_BYTES};
use afterimage_format::control_disk::{
    is_of_a_file_system, Answer, Command, Held, Lent, BLOCK_BYTES, FILE_SYSTEM_SLOTS, OPERATION_CHALLENGE,
    OPERATION_CLEANUP, OPERATION_INIT, OPERATION_LEND, OPERATION_MPROTECT, OPERATION_QUERY,
    OPERATION_RECOVER, OPERATION_VFLUSH, OPERATION_VORDER, OPERATION_WAIT, SLOTS, SLOT_BYTES, STATUS_DONE,
    STATUS_FAILED, STATUS_NOT_YET, STATUS_UNSUPPORTED, WAIT_MS_MAX,
};
use afterimage_format::mark;
use afterimage_journal::{by_uuid, AreaBlock, FsBlock, Lending, RetainDisk};
use afterimage_order::{Clock, Contract};
use parking_lot::{Condvar, Mutex};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::commands::Commands;
use crate::desk::{Place, Verdict};
use crate::durability::Durability;
use crate::flights::Flights;
use crate::hand::{Brought, Challenged, HandOver, Way, What};
use crate::lent::{Loan, Owed};

pub(crate) const SLOT_SECTORS: u64 = SLOT_BYTES as u64 / SECTOR_BYTES;
/// What there is, a bit each.
const OPERATIONS: u64 = 1 << OPERATION_VORDER
    | 1 << OPERATION_VFLUSH
    | 1 << OPERATION_WAIT
    | 1 << OPERATION_INIT
    | 1 << OPERATION_CLEANUP
    | 1 << OPERATION_MPROTECT
    | 1 << OPERATION_QUERY
    | 1 << OPERATION_RECOVER
    | 1 << OPERATION_CHALLENGE;

/// Why nothing is promised.
pub(crate) const OWED: &str = "a commit that was published was not taken, and was not sent since: its guest may count on it, and it may not be durable";

/// What a guest reads of the contract in force.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The contract.
    pub contract: Contract,
    /// In one sentence, with its loss bound.
    pub text: String,
    /// Memory may be lent, in which commits are published. Somebody looks there when nobody wakes them ([`crate::ControlLane::deadline`]).
    pub lends: bool,
}

/// Memory that is lent, for as long as its read is held.
pub(crate) struct Borrowed {
    pub(crate) loan: Loan,
    pub(crate) slot: usize,
    pub(crate) disk: Arc<RetainDisk>,
    pub(crate) lending: Lending,
    /// A look that is asked for ([`Lending::look`]), and what was published then.
    pub(crate) look: Option<(u64, u32)>,
}

/// See the module.
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
    /// And until when somebody who asks for a promise waits for each.
    owed: Mutex<Vec<(Owed, Duration)>>,
    pub(crate) flushing: Mutex<Flushing>,
    /// A flush is asked for, or the end.
    pub(crate) wanted: Condvar,
    pub(crate) bells: Arc<Bells>,
}

/// Of the lanes that there are.
#[derive(Default)]
pub(crate) struct Bells(Mutex<Vec<Weak<Bell>>>);

impl Bells {
    pub(crate) fn add(&self, bell: &Arc<Bell>) {
        let mut bells = self.0.lock();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(bell));
    }

    pub(crate) fn ring(&self) {
        self.0.lock().iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
    }
}

#[derive(Default)]
pub(crate) struct Flushing {
    pub(crate) flights: Flights,
    end: bool,
}

impl Shared {
    pub(crate) fn new(
        group: Arc<dyn Durability>,
        promise: Promise,
        ways_in: Vec<Arc<dyn Disk>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            disks: group.retained_disks(),
            ways_in,
            group,
            promise,
            instance: uuid::Uuid::new_v4().as_u64_pair().0 | 1,
            clock,
            commands: Commands::default(),
            answers: Mutex::new(vec![None; SLOTS as usize]),
            owed: Mutex::default(),
            flushing: Mutex::default(),
            wanted: Condvar::new(),
            bells: Arc::default(),
        }
    }

    /// Flushes whenever that is wanted, until [`Shared::end`].
    pub(crate) fn flush_for_ever(&self) {
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

    pub(crate) fn end(&self) {
        self.flushing.lock().end = true;
        self.wanted.notify_all();
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
        let what = What::Blocks { sector, buffers };
        Ok(HandOver {
            way: Way::Command(Box::new(Brought { place, command, hand, challenged: None })),
            disk,
            what,
        })
    }

    /// A file system that may be a copy of one here, elsewhere: its journal's superblock is to be read as its guest would read it, for the number
    /// that it has written there.
    pub(crate) fn challenged(&self, place: Place, command: Command) -> Result<HandOver, Verdict> {
        let found = by_uuid::journal_layout(&self.disks, command.file_system);
        let found = found.and_then(|(disk, journal)| Some((disk, journal.home_of(AreaBlock(0))?, journal)));
        let Some((disk, superblock, journal)) = found else {
            return Err(Verdict::not(STATUS_UNSUPPORTED, "its journal is not retained any more"));
        };
        let guest = disk.hands().guest();
        let Some(hand) = disk.hands().begin(guest) else {
            return Err(Verdict::not(STATUS_UNSUPPORTED, "its guest has left the disk"));
        };
        let buffers = Buffers::allocate(BLOCK_BYTES as usize);
        let challenged = Some(Challenged { superblock: buffers.share(), guest });
        let what = What::Look { sector: superblock.sector(journal.start), buffers };
        let brought = Brought { place, command, hand, challenged };
        Ok(HandOver { way: Way::Command(Box::new(brought)), disk, what })
    }

    /// Memory that is lent, by which right; `now` is before it was looked at.
    pub(crate) fn borrow(
        &self,
        now: Duration,
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
        let loan = Loan::open(now, request.token, request.buffers.share(), lent, journal)?;
        let slot = (request.sector.0 / SLOT_SECTORS) as usize;
        Ok(Borrowed { loan, slot, disk, lending, look: None })
    }

    /// Nothing that covers it is promised before it is [`Shared::paid`]: its guest sends it now, or writes it to its journal.
    pub(crate) fn owe(&self, owed: Owed) {
        let mut all = self.owed.lock();
        all.retain(|(other, _)| other.file_system != owed.file_system);
        // A guest has no more file systems that publish.
        all.truncate(FILE_SYSTEM_SLOTS as usize - 1);
        all.push((owed, self.now() + Duration::from_millis(WAIT_MS_MAX.into())));
    }

    /// Some is there now, or belongs to a guest that is gone.
    pub(crate) fn paid(&self, is_paid: impl Fn(&Owed) -> bool) {
        let mut all = self.owed.lock();
        let before = all.len();
        all.retain(|(owed, _)| !is_paid(owed));
        if all.len() < before {
            self.bells.ring();
        }
    }

    /// Until when promises wait, where any is owed.
    pub(crate) fn owes_until(&self) -> Option<Duration> {
        // Nobody rings for what a guest writes to its journal itself.
        self.paid(|owed| {
            let expected = owed.tid.zip(by_uuid::expected(&self.disks, owed.file_system));
            expected.is_some_and(|(tid, expected)| expected.is_after(tid))
        });
        self.owed.lock().iter().map(|(_, until)| *until).max()
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
