//! Where guests wait for each other: each asks for its disk's serial number until it is told to go on.
//!
//! ```text
//!   guest: "may I?" ─► WAIT ... "may I?" ─► WAIT ...   the last one asks ─► all may go on at one instant ─► GO, to each
//! ```
//!
//! The number is a request of virtio's (GET_ID) that no layer below the queue sees, and Linux asks for it whenever a script reads
//! `/sys/block/vda/serial`: so a meeting leaves no trace on any disk and costs the device nothing.

use crate::calendar::Ns;

/// The disk's serial number while a guest has to wait.
pub const WAIT: &str = "wait";
/// And when it may go on.
pub const GO: &str = "go";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// At its work.
    #[default]
    Away,
    /// It has come, and waits.
    There,
    /// It may go on, and does not know it yet.
    Free,
    /// It has ended.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub struct Meetings {
    guests: Vec<Place>,
    /// When those who have met may go on.
    go_at: Option<Ns>,
}

impl Meetings {
    /// Nobody has come.
    pub fn new(guests: usize) -> Self {
        Self { guests: vec![Place::Away; guests], go_at: None }
    }

    /// A guest asks. Whether it has been told to go on.
    pub fn asks(&mut self, guest: usize) -> bool {
        let was_free = self.guests[guest] == Place::Free;
        self.guests[guest] = if was_free { Place::Away } else { Place::There };
        was_free
    }

    /// A guest has ended; nobody waits for it.
    pub fn end(&mut self, guest: usize) {
        self.guests[guest] = Place::Gone;
    }

    /// Whether everybody is there, and nobody has said yet when they may go on.
    pub fn has_met(&self) -> bool {
        let live = || self.guests.iter().filter(|place| **place != Place::Gone);
        self.go_at.is_none() && live().count() > 0 && live().all(|place| *place == Place::There)
    }

    /// They may go on then.
    pub fn go_on(&mut self, at: Ns) {
        self.go_at = Some(at);
    }

    /// When they may.
    pub fn next(&self) -> Option<Ns> {
        self.go_at
    }

    /// They may go on now: who has to be told.
    pub fn go(&mut self) -> Vec<usize> {
        self.go_at = None;
        let mut freed = Vec::new();
        for (guest, place) in self.guests.iter_mut().enumerate().filter(|(_, p)| **p == Place::There) {
            *place = Place::Free;
            freed.push(guest);
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_goes_on_before_all_have_come() {
        let mut meetings = Meetings::new(2);
        assert!(!meetings.asks(0));
        assert!(!meetings.asks(0), "again");
        assert!(!meetings.has_met());
        assert!(!meetings.asks(1));
        assert!(meetings.has_met());
        meetings.go_on(50);
        assert_eq!((meetings.has_met(), meetings.next()), (false, Some(50)));
        assert!(!meetings.asks(1), "not yet");
        assert_eq!(meetings.go(), [0, 1]);
        assert_eq!(meetings.next(), None);
        assert!(meetings.asks(1));
        assert!(!meetings.asks(1), "the next meeting");
        assert!(!meetings.has_met(), "the first has not heard of the last one yet");
        assert!(meetings.asks(0));
        assert!(!meetings.asks(0));
        assert!(meetings.has_met());
    }

    #[test]
    fn nobody_waits_for_those_who_have_ended() {
        let mut meetings = Meetings::new(2);
        assert!(!meetings.asks(0));
        meetings.end(1);
        assert!(meetings.has_met());
        meetings.go_on(1);
        assert_eq!(meetings.go(), [0]);
        meetings.end(0);
        assert!(!meetings.has_met(), "nobody is left");
    }
}
