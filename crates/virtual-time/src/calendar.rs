//! Who runs until when: the calendar of User Mode Linux's `time-travel=ext`, without sockets and without guests
//! (include/uapi/linux/um_timetravel.h, arch/um/kernel/time.c of 6.1).
//!
//! At most one guest computes at a time, and computing takes no time: a guest's clock moves where it waits (REQUEST, WAIT, RUN), and by
//! itself up to the time that it was told it may run on alone (FREE_UNTIL). Everything else that happens, the guests' disks, is one
//! list of times that the caller keeps; the calendar says who is next.
//!
//! What it keeps, whatever it hears:
//! - The earliest is next: what the disks do before guests at the same time, guests by their numbers. So guests begin one after
//!   another, each when it waits for the first time.
//! - Time never goes back, neither the calendar's nor a guest's: a guest runs on alone no further than where something of its own may
//!   happen to it. The caller says how far that is ([`Calendar::run`]), and shortens it where the guest itself asks for something
//!   ([`Calendar::shorten`]). Guests meet nowhere but at the disks, so another guest's time is no bound: this is what makes two guests
//!   that look at the clock all the time run at a speed that is worth it.
//! - A kick has the clock of its guest, not the calendar's.

/// A guest's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestId(pub usize);

/// Nanoseconds since the guests' boot.
pub type Ns = u64;

/// What a guest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// It wants to begin.
    Start,
    /// It wants to run again then.
    Request(Ns),
    /// It has nothing to do until then, or until it is interrupted.
    Wait,
    /// What is the time?
    Get,
    /// Its own clock stands there.
    Update(Ns),
    /// What is the time of day?
    GetTimeOfDay,
}

/// What a guest is told when it begins to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Its START is acknowledged.
    Begin,
    /// It runs from `now` on, and alone up to `free_until`.
    Run {
        /// The time.
        now: Ns,
        /// Told before RUN, if at all.
        free_until: Option<Ns>,
    },
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something at the disks, then.
    Disk(Ns),
    /// A guest computes.
    Guest(GuestId),
    /// All guests have ended.
    Over,
    /// Every guest waits, and nothing will happen.
    Stuck,
}

/// A guest does what no guest may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest {guest} at {now} ns: {what}")]
pub struct Broken {
    /// Which.
    pub guest: usize,
    /// The time.
    pub now: Ns,
    /// What it did.
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not heard of yet.
    Absent,
    /// It waits for its START to be acknowledged.
    Started,
    Computes,
    Waits,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Guest {
    state: State,
    /// When it wants to run.
    wants: Option<Ns>,
    /// How far it may run on alone.
    free_until: Option<Ns>,
    /// Its own clock, as far as it is known.
    clock: Ns,
}

/// See the module.
#[derive(Debug)]
pub struct Calendar {
    now: Ns,
    /// Nanoseconds since 1970 at the guests' boot: the same for all and in every run.
    epoch: Ns,
    guests: Vec<Guest>,
}

/// 2023-11-14 22:13:20 UTC.
const EPOCH: Ns = 1_700_000_000_000_000_000;
/// "For ever", as far as a guest's arithmetic goes.
const LATEST: Ns = i64::MAX as Ns - 1;

impl Calendar {
    /// Before anybody has begun.
    pub fn new(guests: usize) -> Self {
        let guest = Guest { state: State::Absent, wants: None, free_until: None, clock: 0 };
        Self { now: 0, epoch: EPOCH, guests: vec![guest; guests] }
    }

    /// The time.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// A guest's own clock.
    pub fn clock(&self, id: GuestId) -> Ns {
        self.guests[id.0].clock.max(if self.computes(id) { self.now } else { 0 })
    }

    /// Whether a guest computes.
    pub fn computes(&self, id: GuestId) -> bool {
        self.guests[id.0].state == State::Computes
    }

    /// Whether a guest has ended.
    pub fn has_ended(&self, id: GuestId) -> bool {
        self.guests[id.0].state == State::Ended
    }

    /// A guest says something. The answer is the time that its acknowledgement carries; `None` for START, which is acknowledged when
    /// it is the guest's turn ([`Calendar::run`]).
    ///
    /// # Errors
    /// It may not say that now.
    pub fn hear(&mut self, id: GuestId, say: Say) -> Result<Option<Ns>, Broken> {
        let now = self.now;
        let clock = self.clock(id);
        let guest = &mut self.guests[id.0];
        let broken = |what: String| Err(Broken { guest: id.0, now, what });
        match (say, guest.state) {
            (Say::Start, State::Absent) => {
                guest.state = State::Started;
                return Ok(None);
            }
            (_, State::Absent | State::Started | State::Ended) | (Say::Start, _) => {
                return broken(format!("{say:?} while it is {:?}", guest.state));
            }
            // An interrupted guest asks for its turn before it acknowledges the interrupt, so it may wait already.
            (Say::Request(at), _) => guest.wants = Some(at.max(now)),
            (Say::Wait, State::Computes) => {
                guest.state = State::Waits;
                guest.free_until = None;
            }
            (Say::Wait, state) => return broken(format!("it waits while it is {state:?}")),
            (Say::Get, _) => return Ok(Some(clock.max(now))),
            (Say::Update(at), _) => {
                if at < clock {
                    return broken(format!("its clock goes back from {clock} to {at}"));
                }
                if guest.free_until.is_none_or(|until| at > until) && at > now {
                    return broken(format!(
                        "its clock is at {at}, and it may run until {:?}",
                        guest.free_until
                    ));
                }
                guest.clock = at;
            }
            (Say::GetTimeOfDay, _) => return Ok(Some(self.epoch + clock.max(now))),
        }
        Ok(Some(0))
    }

    /// A guest has closed its socket.
    pub fn end(&mut self, id: GuestId) {
        let clock = self.clock(id);
        let guest = &mut self.guests[id.0];
        (guest.state, guest.wants, guest.clock) = (State::Ended, None, clock);
    }

    /// A guest will say that it begins: one that has not been there, or boots again.
    ///
    /// # Panics
    /// It is there.
    pub fn comes(&mut self, id: GuestId) {
        let guest = &mut self.guests[id.0];
        assert!(matches!(guest.state, State::Absent | State::Ended), "guest {} is {:?}", id.0, guest.state);
        *guest = Guest { state: State::Absent, wants: None, free_until: None, clock: self.now };
    }

    /// What is next, where the earliest thing at the disks is at that time.
    pub fn next(&self, disk: Option<Ns>) -> Next {
        let wants = |guest: &Guest| match guest.state {
            State::Started => Some(0),
            State::Waits => guest.wants,
            State::Absent | State::Computes | State::Ended => None,
        };
        let all = self.guests.iter().enumerate();
        let guest = all.filter_map(|(id, guest)| Some((wants(guest)?, GuestId(id)))).min();
        match (disk, guest) {
            _ if self.guests.iter().all(|guest| guest.state == State::Ended) => Next::Over,
            (Some(at), Some((wants, _))) if at <= wants => Next::Disk(at.max(self.now)),
            (_, Some((_, id))) => Next::Guest(id),
            (Some(at), None) => Next::Disk(at.max(self.now)),
            (None, None) => Next::Stuck,
        }
    }

    /// Time moves to where something happens at the disks.
    pub fn reach(&mut self, at: Ns) {
        self.now = self.now.max(at);
    }

    /// It is a guest's turn ([`Next::Guest`]). `alone_until`: nothing happens to it before, unless it asks for something.
    ///
    /// # Panics
    /// It is not its turn.
    pub fn run(&mut self, id: GuestId, alone_until: Option<Ns>) -> Go {
        let guest = &mut self.guests[id.0];
        let go = match guest.state {
            State::Started => Go::Begin,
            State::Waits => {
                let wants = guest.wants.take().expect("it wants to run");
                self.now = self.now.max(wants);
                let until = alone_until.unwrap_or(LATEST).min(LATEST);
                guest.free_until = (until > self.now).then_some(until);
                guest.clock = self.now;
                Go::Run { now: self.now, free_until: guest.free_until }
            }
            state => panic!("guest {} is {state:?}", id.0),
        };
        guest.state = State::Computes;
        go
    }

    /// Something will happen to a guest that computes at that time: what it has to be told, if it believes that it is alone for longer.
    pub fn shorten(&mut self, id: GuestId, at: Ns) -> Option<Ns> {
        let guest = &mut self.guests[id.0];
        let is_longer = guest.free_until.is_some_and(|until| until > at);
        is_longer.then(|| *guest.free_until.insert(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GuestId = GuestId(0);
    const B: GuestId = GuestId(1);

    /// Two guests that have booted and wait, A for 100 and B for 50.
    fn two() -> Calendar {
        let mut calendar = Calendar::new(2);
        for (id, wants) in [(A, 100), (B, 50)] {
            assert_eq!(calendar.hear(id, Say::Start), Ok(None));
            assert_eq!(calendar.next(None), Next::Guest(id));
            assert_eq!(calendar.run(id, None), Go::Begin);
            assert_eq!(calendar.hear(id, Say::Request(wants)), Ok(Some(0)));
            assert_eq!(calendar.hear(id, Say::Wait), Ok(Some(0)));
        }
        calendar
    }

    #[test]
    fn guests_begin_one_after_another() {
        let mut calendar = Calendar::new(2);
        assert_eq!(calendar.next(None), Next::Stuck, "nobody is there");
        calendar.hear(B, Say::Start).unwrap();
        calendar.hear(A, Say::Start).unwrap();
        assert_eq!(calendar.next(Some(0)), Next::Disk(0));
        assert_eq!(calendar.next(None), Next::Guest(A));
        assert_eq!(calendar.run(A, None), Go::Begin);
        assert!(calendar.computes(A));
        assert_eq!(calendar.hear(A, Say::Get), Ok(Some(0)));
        assert!(calendar.hear(A, Say::Start).is_err());
        calendar.hear(A, Say::Request(7)).unwrap();
        calendar.hear(A, Say::Wait).unwrap();
        assert_eq!(calendar.next(None), Next::Guest(B), "before A goes on");
    }

    #[test]
    fn the_earliest_is_next_and_disks_before_guests() {
        let mut calendar = two();
        assert_eq!(calendar.next(None), Next::Guest(B));
        assert_eq!(calendar.next(Some(50)), Next::Disk(50));
        assert_eq!(calendar.next(Some(51)), Next::Guest(B));
        assert_eq!(calendar.run(B, None), Go::Run { now: 50, free_until: Some(LATEST) });
        calendar.hear(B, Say::Request(100)).unwrap();
        calendar.hear(B, Say::Wait).unwrap();
        assert_eq!(calendar.next(None), Next::Guest(A), "equal times by number");
        calendar.end(A);
        assert!(calendar.has_ended(A));
        assert_eq!(calendar.next(None), Next::Guest(B));
        calendar.end(B);
        assert_eq!(calendar.next(Some(1)), Next::Over);
    }

    #[test]
    fn a_guest_runs_alone_until_its_own_next_event_and_others_are_no_bound() {
        let mut calendar = two();
        // A wants to run at 100 only, and that does not hold B up.
        assert_eq!(calendar.run(B, Some(5000)), Go::Run { now: 50, free_until: Some(5000) });
        calendar.hear(B, Say::Update(4000)).unwrap();
        assert_eq!((calendar.clock(B), calendar.now()), (4000, 50), "its clock, not the calendar's");
        // A kick at 4000: its answer may come from 4005 on.
        assert_eq!(calendar.shorten(B, 4005), Some(4005));
        assert_eq!(calendar.shorten(B, 4010), None, "it knows of something earlier");
        assert!(calendar.hear(B, Say::Update(4006)).is_err(), "past what it was told");
        calendar.hear(B, Say::Update(4005)).unwrap();
        calendar.hear(B, Say::Request(9000)).unwrap();
        calendar.hear(B, Say::Wait).unwrap();
        // Then A, which is behind.
        assert_eq!(calendar.next(Some(4005)), Next::Guest(A));
        assert_eq!(calendar.run(A, None), Go::Run { now: 100, free_until: Some(LATEST) });
        calendar.hear(A, Say::Request(20_000)).unwrap();
        calendar.hear(A, Say::Wait).unwrap();
        assert_eq!(calendar.next(Some(4005)), Next::Disk(4005));
        calendar.reach(4005);
        assert_eq!(calendar.hear(B, Say::Get), Ok(Some(4005)), "interrupted while it waits");
        calendar.hear(B, Say::Request(4005)).unwrap();
        assert_eq!(calendar.next(Some(4006)), Next::Guest(B));
    }

    #[test]
    fn where_nothing_lies_ahead_there_is_no_time_alone() {
        let mut calendar = two();
        assert_eq!(calendar.run(B, Some(50)), Go::Run { now: 50, free_until: None });
        assert!(calendar.hear(B, Say::Update(51)).is_err());
        calendar.hear(B, Say::Update(50)).unwrap();
        assert_eq!(calendar.shorten(B, 60), None);
    }

    #[test]
    fn time_does_not_go_back() {
        let mut calendar = two();
        calendar.reach(80);
        calendar.reach(70);
        assert_eq!(calendar.now(), 80);
        assert_eq!(calendar.run(B, None), Go::Run { now: 80, free_until: Some(LATEST) }, "it is late");
        assert!(calendar.hear(B, Say::Update(79)).is_err());
        calendar.hear(B, Say::Request(3)).unwrap();
        calendar.hear(B, Say::Wait).unwrap();
        assert_eq!(calendar.run(B, None), Go::Run { now: 80, free_until: Some(LATEST) });
        assert!(calendar.hear(A, Say::Wait).is_err(), "it waits already");
    }

    #[test]
    fn the_time_of_day_is_the_same_in_every_run() {
        let mut calendar = two();
        calendar.run(B, None);
        assert_eq!(calendar.hear(B, Say::GetTimeOfDay), Ok(Some(EPOCH + 50)));
    }

    #[test]
    fn a_guest_that_boots_again_begins_now() {
        let mut calendar = two();
        calendar.run(B, None);
        calendar.hear(B, Say::Wait).unwrap();
        calendar.end(B);
        calendar.reach(90);
        calendar.comes(B);
        calendar.hear(B, Say::Start).unwrap();
        assert_eq!(calendar.next(None), Next::Guest(B));
        assert_eq!(calendar.run(B, None), Go::Begin);
        assert_eq!(calendar.hear(B, Say::Get), Ok(Some(90)));
        calendar.hear(B, Say::Request(95)).unwrap();
        calendar.hear(B, Say::Wait).unwrap();
        assert_eq!(calendar.next(None), Next::Guest(B));
    }

    #[test]
    fn guests_that_wait_for_nothing_are_stuck() {
        let mut calendar = two();
        for id in [B, A] {
            calendar.run(id, None);
            calendar.hear(id, Say::Wait).unwrap();
        }
        assert_eq!(calendar.next(None), Next::Stuck);
        assert_eq!(calendar.next(Some(300)), Next::Disk(300));
    }
}
