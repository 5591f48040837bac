//! Who rides on which flush: at most one runs, and who asks meanwhile shares the next, because the running one may have begun too early for
//! it.

use std::sync::Arc;

use afterimage_block::SequenceNumber;

/// A place on one flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What a flush covers, or why it failed.
pub type Outcome = Result<SequenceNumber, Arc<str>>;

/// The flushes of a group, by their numbers from 1. Invariant: `ended <= begun <= ended + 1` and `asked <= begun + 1`.
#[derive(Debug, Default)]
pub struct Flights {
    asked: u64,
    begun: u64,
    ended: u64,
    covered: SequenceNumber,
    /// The first one: nothing is promised any more, whatever a later flush says.
    failure: Option<Arc<str>>,
}

impl Flights {
    /// A place on the next flush that begins.
    pub fn join(&mut self) -> Ticket {
        self.asked = self.begun + 1;
        Ticket(self.asked)
    }

    /// Whether a flush is to begin now; it has, then.
    pub fn begin(&mut self) -> bool {
        let begins = self.ended == self.begun && self.asked > self.begun;
        self.begun += u64::from(begins);
        begins
    }

    /// The one that was under way has ended.
    pub fn end(&mut self, outcome: Outcome) {
        debug_assert!(self.begun == self.ended + 1, "one was under way");
        self.ended = self.begun;
        match outcome {
            Ok(covered) => self.covered = self.covered.max(covered),
            Err(why) => {
                self.failure.get_or_insert(why);
            }
        }
    }

    /// How it went; `None` while it is not over.
    pub fn outcome(&self, ticket: Ticket) -> Option<Outcome> {
        (ticket.0 <= self.ended).then(|| match &self.failure {
            Some(why) => Err(Arc::clone(why)),
            None => Ok(self.covered),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_one_runs_rides_on_the_next() {
        let mut flights = Flights::default();
        assert!(!flights.begin(), "nobody asked");
        let (first, beside) = (flights.join(), flights.join());
        assert_eq!(first, beside);
        assert!(flights.begin() && !flights.begin());
        let late = flights.join();
        assert!(late > first);
        flights.end(Ok(SequenceNumber(7)));
        assert_eq!(flights.outcome(first), Some(Ok(SequenceNumber(7))));
        assert_eq!(flights.outcome(late), None);
        assert!(flights.begin());
        flights.end(Ok(SequenceNumber(9)));
        assert_eq!(flights.outcome(late), Some(Ok(SequenceNumber(9))));
        assert!(!flights.begin());
    }

    #[test]
    fn after_a_failure_nothing_is_promised() {
        let mut flights = Flights::default();
        for outcome in [Ok(SequenceNumber(1)), Err("broken".into()), Ok(SequenceNumber(2))] {
            let (failed, ticket) = (outcome.is_err(), flights.join());
            assert!(flights.begin());
            flights.end(outcome);
            let promised = flights.outcome(ticket).unwrap();
            assert_eq!(promised.is_ok(), !failed && promised == Ok(SequenceNumber(1)));
        }
    }
}
