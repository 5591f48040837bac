//! One queue of the control disk: commands are carried out or wait, reads are answered or held.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, Bell, BlockError, Buffers, Completion, Geometry, Lane, Operation, Sector, Token, SECTOR_BYTES,
};
use afterimage_format::control_disk::{
    is_of_a_file_system, Command, FILE_SYSTEM_SLOTS, OPERATION_INIT, OPERATION_LEND, OPERATION_MPROTECT,
    OPERATION_RECOVER, OPERATION_VFLUSH, OPERATION_VORDER, OPERATION_WAIT, SLOTS, STATUS_DONE, STATUS_FAILED,
    STATUS_MALFORMED, STATUS_UNSUPPORTED,
};
use afterimage_format::FormatError;
use zerocopy::FromZeros as _;

use crate::desk::{Desk, Place, Verdict};
use crate::hand::{Brought, HandOver, Handing, Over, Way, What};
use crate::lent::{self, Next, Owed};
use crate::shared::{Borrowed, Shared, OWED, SLOT_SECTORS};

/// Memory that was refused is logged so often, for each queue of a guest's; `refused` counts the rest.
const LOGGED_REFUSALS: u32 = 8;

/// A command as it was when it came. It lies in the guest's memory, where another may stand by the time it is carried out.
struct Received {
    request: Admitted,
    /// And the slot that it was written to; `None` where no slot begins that takes commands.
    command: Option<(usize, Result<Command, FormatError>)>,
}

impl Received {
    fn new(request: Admitted) -> Self {
        let slot = request.sector.0 / SLOT_SECTORS;
        let begins = request.sector == Sector(slot * SLOT_SECTORS) && slot > 0;
        let command = begins.then(|| {
            let mut sector = [0; SECTOR_BYTES as usize];
            let length = sector.len().min(request.buffers.len());
            request.buffers.copy_to(0, &mut sector[..length]);
            (slot as usize, Command::parse(&sector[..length], request.buffers.len()))
        });
        Self { request, command }
    }

    fn is(&self, operations: &[u16]) -> bool {
        matches!(&self.command, Some((_, Ok(command))) if operations.contains(&command.operation.get()))
    }

    fn hands_over(&self) -> bool {
        self.is(&[OPERATION_MPROTECT])
    }
}

/// What is answered only when all that its sender may have been told is there.
const PROMISES: [u16; 4] = [OPERATION_VORDER, OPERATION_VFLUSH, OPERATION_WAIT, OPERATION_RECOVER];

/// A command, and what had been published when it came: by the read, as long as that is held, and its number. Its sender may have been
/// told that this is committed.
struct Behind {
    received: Received,
    published: Vec<(Token, u32)>,
}

/// A commit that a guest has published, as it lies in its memory.
pub struct Published {
    /// In which slot the memory was lent: one file system's.
    pub slot: usize,
    /// Where its runs of blocks belong, the commit block last.
    pub runs: Vec<(Sector, Buffers)>,
}

/// Hears of each publication once, before anything of it is taken.
pub type Hear = Box<dyn FnMut(Published) + Send>;

/// See the module.
pub struct ControlLane {
    geometry: Geometry,
    shared: Arc<Shared>,
    desk: Desk,
    bell: Arc<Bell>,
    handing: Handing,
    borrowed: Vec<Borrowed>,
    hear: Option<Hear>,
    /// In the order in which they came.
    behind: VecDeque<Behind>,
    /// Promises that are asked for while a commit is owed, in that order.
    unpaid: Vec<Received>,
    over: Vec<Over>,
    done: Vec<Completion>,
    /// Of [`LOGGED_REFUSALS`].
    logged: u32,
}

impl ControlLane {
    /// Nothing was asked, and nothing is lent.
    pub(crate) fn new(geometry: Geometry, shared: Arc<Shared>, bell: Arc<Bell>) -> Result<Self, BlockError> {
        Ok(Self {
            geometry,
            desk: Desk::new(shared.is_in_order(), shared.instance),
            handing: Handing::new(shared.ways_in())?,
            shared,
            bell,
            borrowed: Vec::new(),
            hear: None,
            behind: VecDeque::new(),
            unpaid: Vec::new(),
            over: Vec::new(),
            done: Vec::new(),
            logged: 0,
        })
    }

    /// Somebody listens, where guests do not compute while their daemon does: then all that is heard of is committed, and will be taken.
    pub fn heard_by(&mut self, hear: Hear) {
        self.hear = Some(hear);
    }

    /// Tells what is published, and takes nothing.
    pub fn listen(&mut self) {
        let Some(hear) = &mut self.hear else { return };
        for Borrowed { loan, slot, .. } in &mut self.borrowed {
            let runs = loan.hear();
            if !runs.is_empty() {
                hear(Published { slot: *slot, runs });
            }
        }
    }

    /// When there is something to do that nobody asks for, by the control disk's clock.
    pub fn deadline(&self) -> Option<Duration> {
        let looks = self.borrowed.iter().filter_map(|borrowed| borrowed.loan.deadline());
        let owed = self.unpaid.first().and_then(|_| self.shared.owes_until());
        self.desk.deadline().into_iter().chain(looks).chain(owed).min()
    }

    /// Whether promises wait for a commit that is owed.
    fn waits_for_owed(&self) -> bool {
        self.shared.owes_until().is_some_and(|until| self.shared.now() < until)
    }

    /// Carries a command out, or begins to.
    fn carry_out(&mut self, received: Received) {
        if received.is(&PROMISES) && self.waits_for_owed() {
            return self.unpaid.push(received);
        }
        let Received { request, command } = received;
        let result = match command {
            Some((slot, Ok(command))) => match self.command(&request, slot, command) {
                Some(verdict) => self.shared.conclude(slot, &command, &verdict),
                None => return,
            },
            Some((slot, Err(error))) => {
                let status = match error {
                    FormatError::Version { .. } | FormatError::Old { .. } => STATUS_UNSUPPORTED,
                    _ => STATUS_MALFORMED,
                };
                self.shared.conclude(slot, &Command::new_zeroed(), &Verdict::not(status, error.to_string()))
            }
            // Nobody looks for an answer there.
            None => {
                self.shared.commands.count(&Command::new_zeroed(), STATUS_MALFORMED);
                let why = "commands are taken at the beginning of each slot but the first";
                Err(BlockError::Corrupt(FormatError::Corrupt(why).to_string().into()))
            }
        };
        self.finish(request.token, result);
    }

    /// `None` where it is answered later.
    fn command(&mut self, request: &Admitted, slot: usize, command: Command) -> Option<Verdict> {
        let place = Place { token: request.token, slot };
        if PROMISES.contains(&command.operation.get()) && self.shared.owes_until().is_some() {
            return Some(Verdict::not(STATUS_FAILED, OWED));
        }
        if command.operation.get() == OPERATION_MPROTECT {
            return self.shared.hand_over(place, command, request).map(|over| self.handing.take(over)).err();
        }
        if is_of_a_file_system(command.operation.get()) {
            if let Some(verdict) = self.shared.of_a_file_system(&command) {
                let challenges = command.operation.get() == OPERATION_INIT && command.block.get() != 0;
                if !challenges || verdict.status != STATUS_DONE {
                    self.mounted(&command, &verdict);
                    return Some(verdict);
                }
                return self.shared.challenged(place, command).map(|over| self.handing.take(over)).err();
            }
        }
        let reached = self.shared.group.reached();
        let mut flushing = self.shared.flushing.lock();
        let verdict = self.desk.ask(self.shared.now(), place, command, &reached, &mut flushing.flights);
        if verdict.is_none() {
            self.shared.wanted.notify_all();
        }
        verdict
    }

    /// What an earlier mount of it was told is over.
    fn mounted(&self, command: &Command, verdict: &Verdict) {
        if command.operation.get() == OPERATION_INIT && verdict.status == STATUS_DONE {
            self.shared.paid(|owed| owed.file_system == command.file_system);
        }
    }

    /// Holds a read by which memory is lent; any other one is given back.
    fn lend(&mut self, request: Admitted) -> Option<Admitted> {
        let (sector, first_slot) = (request.sector.0, u64::from(SLOTS - FILE_SYSTEM_SLOTS));
        if sector % SLOT_SECTORS != 0 || sector / SLOT_SECTORS < first_slot {
            return Some(request);
        }
        // Where an earlier daemon has left it open, something may be published as soon as it has been looked at.
        let now = self.shared.now();
        let Ok(lent) = lent::offered(&request.buffers) else { return Some(request) };
        let borrowed = match self.borrowed.len() < FILE_SYSTEM_SLOTS as usize {
            true => self.shared.borrow(now, &lent, &request, &self.bell),
            false => Err("more memory is lent than file systems may have".to_owned()),
        };
        match borrowed {
            Ok(borrowed) => self.borrowed.push(borrowed),
            Err(why) => {
                if let Some(owed) = lent::refuse(&request.buffers, lent.state.get()) {
                    self.shared.owe(owed);
                }
                self.refuse_loan((sector / SLOT_SECTORS) as usize, &why);
                self.finish(request.token, Ok(()));
            }
        }
        None
    }

    /// Leaves in a slot why nothing is taken of what is published.
    fn refuse_loan(&mut self, slot: usize, why: &str) {
        if self.logged < LOGGED_REFUSALS {
            self.logged += 1;
            tracing::warn!(
                "the control disk takes nothing of what is published in memory that was lent: {why}"
            );
        }
        let verdict = Verdict::not(STATUS_UNSUPPORTED, why);
        // Said where it is looked for; the read itself went well.
        let _ = self.shared.conclude(slot, &Command::new(OPERATION_LEND, 0), &verdict);
    }

    /// A command is carried out when what had been published before it came is taken; what is handed over need not wait for that.
    fn order(&mut self, request: Admitted) {
        let received = Received::new(request);
        let published: Vec<(Token, u32)> = match received.hands_over() {
            true => Vec::new(),
            false => self.borrowed.iter().map(|b| (b.loan.token, b.loan.published())).collect(),
        };
        if received.hands_over() || self.is_taken(&published) && self.behind.is_empty() {
            self.carry_out(received);
        } else {
            self.behind.push_back(Behind { received, published });
        }
        self.hand();
    }

    fn is_taken(&self, published: &[(Token, u32)]) -> bool {
        published.iter().all(|(token, published)| {
            let read = self.borrowed.iter().find(|borrowed| borrowed.loan.token == *token);
            read.is_none_or(|borrowed| borrowed.loan.has_taken(*published))
        })
    }

    /// Looks at memory that is lent. Whether anything came of it.
    fn look_at_loans(&mut self) -> bool {
        self.listen();
        let (mut moved, now) = (false, self.shared.now());
        // What a guest's own store commits nobody could hold.
        let holds = !self.borrowed.is_empty() && self.shared.group.holds_flushes();
        let mut at = 0;
        while let Some(Borrowed { loan, disk, lending, look, .. }) = self.borrowed.get_mut(at) {
            let token = loan.token;
            *look = look.or_else(|| lending.look().map(|asked| (asked, loan.published())));
            let waited_for =
                look.is_some() || self.behind.iter().any(|b| b.published.iter().any(|(of, _)| *of == token));
            let next = loan.next(now, lending.is_asked_back() || holds, waited_for);
            let (taken, commands) = (loan.count(), &self.shared.commands);
            commands.published.fetch_add(taken.commits, Ordering::Relaxed);
            commands.published_blocks.fetch_add(taken.blocks, Ordering::Relaxed);
            moved |= taken.commits > 0;
            if let Some((asked, _)) = look.take_if(|(_, published)| loan.has_taken(*published)) {
                lending.looked(asked);
                moved = true;
            }
            match next {
                Next::HandOver(sector, buffers) => {
                    let (disk, what) = (Arc::clone(disk), What::Blocks { sector, buffers });
                    self.handing.take(HandOver { way: Way::Lent(token), disk, what });
                    moved = true;
                }
                Next::Flush(since) => {
                    let (disk, what) = (Arc::clone(disk), What::Published { since });
                    self.handing.take(HandOver { way: Way::Lent(token), disk, what });
                    moved = true;
                }
                Next::Over(why) => {
                    // Its lending ends behind the last look, and before the guest hears that the read is over.
                    let slot = self.borrowed.remove(at).slot;
                    // Then its token may name another one, for which nobody waits who came before.
                    self.behind.iter_mut().for_each(|b| b.published.retain(|(of, _)| *of != token));
                    if let Some(why) = why {
                        self.refuse_loan(slot, why);
                    }
                    self.finish(token, Ok(()));
                    moved = true;
                    continue;
                }
                Next::Wait | Next::Look(_) => {}
            }
            at += 1;
        }
        moved
    }

    fn look(&mut self) {
        let shared = &self.shared;
        if self.desk.pending() == 0 {
            return;
        }
        // In this order: what a flush covers is durable when its end is seen.
        let flushing = shared.flushing.lock();
        let reached = shared.group.reached();
        let done = &mut self.done;
        self.desk.answer(shared.now(), &reached, &flushing.flights, |place, command, verdict| {
            let result = shared.conclude(place.slot, &command, &verdict);
            done.push(Completion { token: place.token, result });
        });
    }

    /// Goes on with what was handed over, and with what waits behind it.
    fn hand(&mut self) {
        loop {
            let moved = self.look_at_loans();
            self.handing.go_on(&mut self.over);
            if !moved && self.over.is_empty() {
                break;
            }
            for (way, result) in std::mem::take(&mut self.over) {
                self.handed_over(way, result);
            }
        }
        while self.behind.front().is_some_and(|behind| self.is_taken(&behind.published)) {
            if let Some(Behind { received, .. }) = self.behind.pop_front() {
                self.carry_out(received);
            }
        }
        if !self.unpaid.is_empty() && !self.waits_for_owed() {
            std::mem::take(&mut self.unpaid).into_iter().for_each(|received| self.carry_out(received));
        }
    }

    fn handed_over(&mut self, way: Way, result: Result<(), BlockError>) {
        match way {
            Way::Command(brought) => {
                let Brought { place, command, hand, challenged } = *brought;
                let verdict = match (result, challenged) {
                    (Ok(()), Some(challenged)) => challenged.verdict(&command),
                    // Asked now: what it covers is before the point.
                    (Ok(()), None) => {
                        let first = command.block.get();
                        let brought = first..first + u64::from(command.blocks.get());
                        let is_paid = |owed: &Owed| {
                            owed.file_system == command.file_system && brought.contains(&owed.commit.0)
                        };
                        self.shared.paid(is_paid);
                        Verdict::done(self.shared.group.reached().acknowledged)
                    }
                    (Err(error), _) => Verdict::not(STATUS_FAILED, error.to_string()),
                };
                self.mounted(&command, &verdict);
                let result = self.shared.conclude(place.slot, &command, &verdict);
                drop(hand);
                self.done.push(Completion { token: place.token, result });
            }
            Way::Lent(token) => {
                let borrowed = self.borrowed.iter_mut().find(|borrowed| borrowed.loan.token == token);
                let owed = borrowed.and_then(|borrowed| borrowed.loan.handed_over(result.is_ok()));
                if let Some(owed) = owed {
                    self.shared.owe(owed);
                }
            }
        }
    }

    fn finish(&mut self, token: Token, result: Result<(), BlockError>) {
        self.done.push(Completion { token, result });
    }
}

impl Lane for ControlLane {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn take(&mut self, request: Admitted) {
        let result = match request.operation {
            Operation::Read => {
                let Some(request) = self.lend(request) else { return };
                self.shared.read(&request);
                return self.finish(request.token, Ok(()));
            }
            Operation::Write { .. } => return self.order(request),
            // Nothing is kept here.
            Operation::Flush(_) => Ok(()),
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                Err(BlockError::Unsupported("the control disk takes commands, and no more".into()))
            }
        };
        self.finish(request.token, result);
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.look();
        self.hand();
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        let lent = self.borrowed.len() + self.behind.len() + self.unpaid.len();
        self.done.len() + self.desk.pending() + self.handing.commands() + lent
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.bell.drain();
        self.look();
        self.hand();
        if !self.done.is_empty() {
            return Ok(());
        }
        let left = self.deadline().map(|until| until.saturating_sub(self.shared.now()));
        let timeout = timeout.into_iter().chain(left).min();
        let fds: Vec<BorrowedFd<'_>> = also.iter().copied().chain([self.bell.fd()]).collect();
        self.handing.wait(&fds, timeout)
    }
}
