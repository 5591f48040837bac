//! What is asked on one queue, and what waits. Told what comes and how far the group has got, it says who is answered what.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{SequenceNumber, Token};
use afterimage_format::control_disk::{
    Command, OPERATION_RECOVER, OPERATION_VFLUSH, OPERATION_VORDER, OPERATION_WAIT, STATUS_DONE,
    STATUS_FAILED, STATUS_NOT_YET, STATUS_UNSUPPORTED,
};

use crate::flights::{Flights, Ticket};

/// How far a group has got.
#[derive(Clone, Debug)]
pub struct Reached {
    /// The newest request that may have completed.
    pub acknowledged: SequenceNumber,
    /// Everything up to this survives a power cut.
    pub durable: SequenceNumber,
    /// The first failure.
    pub failure: Option<Arc<str>>,
}

/// Which request a command came in, and where its answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The request.
    pub token: Token,
    /// The slot.
    pub slot: usize,
}

/// What a command is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// As in [`afterimage_format::control_disk::Answer::status`].
    pub status: u16,
    /// The point that it is about.
    pub sequence: SequenceNumber,
    /// Why not.
    pub why: Arc<str>,
}

impl Verdict {
    pub(crate) fn done(sequence: SequenceNumber) -> Self {
        Self { status: STATUS_DONE, sequence, why: "".into() }
    }

    pub(crate) fn not(status: u16, why: impl Into<Arc<str>>) -> Self {
        Self { status, sequence: SequenceNumber(0), why: why.into() }
    }

    fn failed(why: &Arc<str>) -> Self {
        Self::not(STATUS_FAILED, Arc::clone(why))
    }
}

#[derive(Debug)]
enum Wait {
    Flush(Ticket),
    Durable { point: SequenceNumber, until: Duration },
}

#[derive(Debug)]
struct Pending {
    place: Place,
    command: Command,
    wait: Wait,
}

/// See the module.
#[derive(Debug)]
pub struct Desk {
    /// What comes becomes durable in one order, and by itself: `power-window`. Elsewhere only a flush orders, or makes durable.
    in_order: bool,
    instance: u64,
    pending: Vec<Pending>,
}

impl Desk {
    /// Nobody has asked anything. `instance`: this daemon's.
    pub fn new(in_order: bool, instance: u64) -> Self {
        Self { in_order, instance, pending: Vec::new() }
    }

    /// A command comes. Its verdict, or `None`: it waits, for a flush where [`Flights::begin`] says so.
    pub fn ask(
        &mut self,
        now: Duration,
        place: Place,
        command: Command,
        reached: &Reached,
        flights: &mut Flights,
    ) -> Option<Verdict> {
        let here = command.instance.get() == self.instance;
        let wait = match command.operation.get() {
            OPERATION_VORDER if self.in_order => {
                return Some(match &reached.failure {
                    Some(why) => Verdict::failed(why),
                    None => Verdict::done(reached.acknowledged),
                });
            }
            OPERATION_WAIT if self.in_order && (here || command.instance.get() == 0) => {
                let point = if here { SequenceNumber(command.sequence.get()) } else { reached.acknowledged };
                let until = now.saturating_add(Duration::from_millis(command.timeout_ms.get().into()));
                Wait::Durable { point, until }
            }
            // A point of an earlier daemon is part of what a flush covers now; so is any, where a commit may be retained without a
            // number of its own.
            OPERATION_VORDER | OPERATION_VFLUSH | OPERATION_WAIT | OPERATION_RECOVER => {
                Wait::Flush(flights.join())
            }
            operation => {
                return Some(Verdict::not(STATUS_UNSUPPORTED, format!("there is no operation {operation}")));
            }
        };
        let pending = Pending { place, command, wait };
        let verdict = pending.verdict(now, reached, flights);
        if verdict.is_none() {
            self.pending.push(pending);
        }
        verdict
    }

    /// Whoever is to be answered now, in the order in which they asked.
    pub fn answer(
        &mut self,
        now: Duration,
        reached: &Reached,
        flights: &Flights,
        mut tell: impl FnMut(Place, Command, Verdict),
    ) {
        self.pending.retain(|pending| match pending.verdict(now, reached, flights) {
            None => true,
            Some(verdict) => {
                tell(pending.place, pending.command, verdict);
                false
            }
        });
    }

    /// When somebody's time is over.
    pub fn deadline(&self) -> Option<Duration> {
        let untils = self.pending.iter().filter_map(|pending| match pending.wait {
            Wait::Durable { until, .. } => Some(until),
            Wait::Flush(_) => None,
        });
        untils.min()
    }

    /// How many wait.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}

impl Pending {
    fn verdict(&self, now: Duration, reached: &Reached, flights: &Flights) -> Option<Verdict> {
        match self.wait {
            Wait::Flush(ticket) => flights.outcome(ticket).map(|outcome| match outcome {
                Ok(covered) => Verdict::done(covered),
                Err(why) => Verdict::failed(&why),
            }),
            Wait::Durable { point, .. } if reached.durable >= point => Some(Verdict::done(point)),
            Wait::Durable { point, until } => match &reached.failure {
                Some(why) => Some(Verdict::failed(why)),
                None if until <= now => Some(Verdict {
                    status: STATUS_NOT_YET,
                    sequence: point,
                    why: "the time is over, and it is not durable yet".into(),
                }),
                None => None,
            },
        }
    }
}
