//! Whose pause it is, and until when. No thread, no clock, no socket: time and what happened come in, what to do goes
//! out.
//!
//! ```text
//!            ask                 reached                 resume, leave, close, time over
//!   Free ──────────► Reaching ─────────────► Held(until) ───────────────────────────────► Ending ──► Free
//!     ▲                 │ failed; owner gone                                                 ▲ writes go on
//!     └─────────────────┴────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - There is at most one pause, and one connection owns it.
//! - A pause is held for its time and no longer, whatever its connection does meanwhile.
//! - It gives way to a guest's device that is to stop and has writes held back: the VMM's main loop waits for them.
//! - `resume` is good only where writes were held from the answer to `pause` until then. A connection that has asked for
//!   a pause answers for its own ones only: it can neither end another's nor take another's for its own. One that never
//!   asked is an operator, and ends whoever's pause there is; its owner learns of it from its own `resume`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::connection::ConnectionId;

/// Why there is no pause for somebody, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    /// One at a time.
    #[error("writes are paused already: wait for that pause to end, or resume")]
    Taken,
    /// Nothing to resume.
    #[error("writes are not paused: the pause has ended already")]
    NotHeld,
    /// It took too long to reach the point, or somebody else's pause was in the way.
    #[error("the pause ended before the images were complete")]
    Late,
    /// The orderly end has begun.
    #[error("the daemon is ending: no pause begins any more")]
    Closed,
    /// See [`Pauses::give_way`].
    #[error("a guest's device was stopped meanwhile, and waited for the end of the pause: ask again")]
    GivenWay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// The group was asked to pause.
    Reaching {
        /// `None` where nobody wants it any more.
        owner: Option<ConnectionId>,
        lasts: Lasts,
        /// Writes go on already.
        given_way: bool,
    },
    Held {
        owner: ConnectionId,
        until: Duration,
    },
    /// The group was told to let writes go on.
    Ending {
        /// Who is to hear of it.
        asker: Option<ConnectionId>,
    },
}

/// How long a pause is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// For so long from when it is reached.
    For(Duration),
    /// Until then, whenever it is reached.
    Until(Duration),
}

/// What became of reaching a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It is in force; its owner is to be told.
    Held(ConnectionId),
    /// Writes go on; its owner, if it is still there, is to be told why.
    Failed(Option<ConnectionId>),
    /// It is not given: the group is to be told to let writes go on, and its owner, if it is still there, why.
    Unwanted(Option<(ConnectionId, PauseError)>),
}

/// What the group is to be told where a pause gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveWay {
    /// There is none.
    Nothing,
    /// To let writes go on, as at each end of a pause.
    Resume,
    /// To let writes go on although it is still reaching the pause, which will not be given.
    LetGo,
}

/// The one pause.
#[derive(Clone, Debug)]
pub struct Pauses {
    phase: Phase,
    /// Connections that asked for a pause and are still there.
    askers: BTreeSet<ConnectionId>,
    closed: bool,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { phase: Phase::Free, askers: BTreeSet::new(), closed: false }
    }
}

impl Pauses {
    /// Somebody wants a pause. Where this is good, the group is to be asked for it.
    ///
    /// # Errors
    /// There is another pause, or the daemon is ending.
    pub fn ask(&mut self, owner: ConnectionId, lasts: Lasts) -> Result<(), PauseError> {
        self.askers.insert(owner);
        self.check_free()?;
        self.phase = Phase::Reaching { owner: Some(owner), lasts, given_way: false };
        Ok(())
    }

    /// Whether somebody could be given a pause.
    ///
    /// # Errors
    /// There is another pause, or the daemon is ending.
    pub fn check_free(&self) -> Result<(), PauseError> {
        match self.phase {
            _ if self.closed => Err(PauseError::Closed),
            Phase::Free => Ok(()),
            _ => Err(PauseError::Taken),
        }
    }

    /// The group is paused, or could not be. The pause's time begins now.
    pub fn reached(&mut self, now: Duration, paused: bool) -> Reached {
        let Phase::Reaching { owner, lasts, given_way } = self.phase else {
            debug_assert!(false, "nobody asked");
            return Reached::Failed(None);
        };
        match owner {
            _ if !paused => {
                self.phase = Phase::Free;
                Reached::Failed(owner)
            }
            Some(owner) if !self.closed && !given_way => {
                let until = match lasts {
                    Lasts::For(hold) => now.saturating_add(hold),
                    Lasts::Until(until) => until,
                };
                if until <= now {
                    self.phase = Phase::Ending { asker: None };
                    return Reached::Unwanted(Some((owner, PauseError::Late)));
                }
                self.phase = Phase::Held { owner, until };
                Reached::Held(owner)
            }
            _ => {
                self.phase = Phase::Ending { asker: None };
                let why = if self.closed { PauseError::Closed } else { PauseError::GivenWay };
                Reached::Unwanted(owner.map(|owner| (owner, why)))
            }
        }
    }

    /// Somebody wants writes to go on. Where this is good, the group is to be told, and the answer waits for it.
    ///
    /// # Errors
    /// There is none that this connection could end.
    pub fn resume(&mut self, asker: ConnectionId) -> Result<(), PauseError> {
        match self.phase {
            Phase::Held { owner, .. } if owner == asker || !self.askers.contains(&asker) => {
                self.phase = Phase::Ending { asker: Some(asker) };
                Ok(())
            }
            _ => Err(PauseError::NotHeld),
        }
    }

    /// Time passes. Whether the group is to be told to let writes go on.
    #[must_use]
    pub fn tick(&mut self, now: Duration) -> bool {
        self.end_if(|phase| matches!(phase, Phase::Held { until, .. } if *until <= now))
    }

    /// A connection is gone. Whether the group is to be told to let writes go on.
    #[must_use]
    pub fn leave(&mut self, gone: ConnectionId) -> bool {
        self.askers.remove(&gone);
        match &mut self.phase {
            Phase::Reaching { owner: someone, .. } | Phase::Ending { asker: someone }
                if *someone == Some(gone) =>
            {
                *someone = None;
            }
            _ => {}
        }
        self.end_if(|phase| matches!(phase, Phase::Held { owner, .. } if *owner == gone))
    }

    /// A guest's device is to stop, and writes of its are held back.
    #[must_use]
    pub fn give_way(&mut self) -> GiveWay {
        if let Phase::Reaching { given_way, .. } = &mut self.phase {
            *given_way = true;
            return GiveWay::LetGo;
        }
        if self.end_if(|phase| matches!(phase, Phase::Held { .. })) {
            GiveWay::Resume
        } else {
            GiveWay::Nothing
        }
    }

    /// The orderly end begins: no pause survives it, and none comes after. Whether the group is to be told to let
    /// writes go on.
    #[must_use]
    pub fn close(&mut self) -> bool {
        self.closed = true;
        self.end_if(|phase| matches!(phase, Phase::Held { .. }))
    }

    /// Writes go on, as the group was told. Who is to hear of it.
    pub fn resumed(&mut self) -> Option<ConnectionId> {
        let Phase::Ending { asker } = self.phase else {
            debug_assert!(false, "nobody asked");
            return None;
        };
        self.phase = Phase::Free;
        asker
    }

    /// Whose pause is in force.
    pub fn owner(&self) -> Option<ConnectionId> {
        match self.phase {
            Phase::Held { owner, .. } => Some(owner),
            _ => None,
        }
    }

    /// When [`Pauses::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Held { until, .. } => Some(until),
            _ => None,
        }
    }

    fn end_if(&mut self, over: impl FnOnce(&Phase) -> bool) -> bool {
        let ends = over(&self.phase);
        if ends {
            self.phase = Phase::Ending { asker: None };
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);
    const OPERATOR: ConnectionId = ConnectionId(3);
    const SECOND: Duration = Duration::from_secs(1);

    fn held_by(owner: ConnectionId, now: Duration) -> Pauses {
        let mut pauses = Pauses::default();
        pauses.ask(owner, Lasts::For(SECOND)).unwrap();
        assert_eq!(pauses.reached(now, true), Reached::Held(owner));
        pauses
    }

    /// What ends a pause of A that is held from 5 s to 6 s: whether the group is told, and what A's resume then says.
    #[test]
    fn a_pause_ends_once_and_its_owner_knows_how() {
        type Step = fn(&mut Pauses) -> bool;
        let table: [(&str, Step, bool); 9] = [
            ("nothing", |_| false, false),
            ("not yet over", |p| p.tick(6 * SECOND - Duration::from_nanos(1)), false),
            ("its time", |p| p.tick(6 * SECOND), true),
            ("the operator", |p| p.resume(OPERATOR).is_ok(), true),
            ("another client left", |p| p.leave(B), false),
            ("the daemon's end", |p| p.close(), true),
            ("a device that is to stop", |p| p.give_way() == GiveWay::Resume, true),
            ("another's failed attempt", |p| p.ask(B, Lasts::For(SECOND)).is_ok(), false),
            (
                "the resume of one that was refused a pause",
                |p| p.ask(B, Lasts::For(SECOND)).is_ok() || p.resume(B).is_ok(),
                false,
            ),
        ];
        for (what, step, ends) in table {
            let mut pauses = held_by(A, 5 * SECOND);
            assert_eq!(step(&mut pauses), ends, "{what}");
            assert_eq!(pauses.owner().is_none(), ends, "{what}");
            let resumed = pauses.resume(A);
            assert_eq!(resumed, if ends { Err(PauseError::NotHeld) } else { Ok(()) }, "{what}");
            pauses.resumed();
            assert_eq!(pauses.resume(A), Err(PauseError::NotHeld), "{what}: once");
        }
    }

    #[test]
    fn an_expired_pause_is_not_anothers() {
        let mut pauses = held_by(A, Duration::ZERO);
        assert!(pauses.tick(SECOND));
        pauses.resumed();
        pauses.ask(B, Lasts::For(SECOND)).unwrap();
        assert_eq!(pauses.resume(A), Err(PauseError::NotHeld), "while B's is being reached");
        assert_eq!(pauses.reached(2 * SECOND, true), Reached::Held(B));
        assert_eq!(pauses.resume(A), Err(PauseError::NotHeld));
        assert_eq!(pauses.owner(), Some(B));
        assert!(!pauses.leave(A));
        assert_eq!(pauses.resume(B), Ok(()));
        assert_eq!(pauses.resumed(), Some(B));
    }

    #[test]
    fn what_is_held_until_then_is_not_held_for_longer_because_it_was_reached_late() {
        for (reached_at, reached) in
            [(SECOND / 2, Reached::Held(A)), (SECOND, Reached::Unwanted(Some((A, PauseError::Late))))]
        {
            let mut pauses = Pauses::default();
            pauses.ask(A, Lasts::Until(SECOND)).unwrap();
            assert_eq!(pauses.reached(reached_at, true), reached);
            assert_eq!(pauses.tick(SECOND), reached == Reached::Held(A));
            assert_eq!(pauses.resume(A), Err(PauseError::NotHeld));
            pauses.resumed();
            assert_eq!(pauses.check_free(), Ok(()));
        }
    }

    #[test]
    fn a_pause_whose_owner_left_before_it_was_reached_is_not_kept() {
        for left in [true, false] {
            let mut pauses = Pauses::default();
            pauses.ask(A, Lasts::For(SECOND)).unwrap();
            let owner = if left { None } else { Some((A, PauseError::Closed)) };
            assert!(!(if left { pauses.leave(A) } else { pauses.close() }));
            assert_eq!(pauses.reached(SECOND, true), Reached::Unwanted(owner));
            assert_eq!(pauses.resumed(), None);
            let expected = if left { Ok(()) } else { Err(PauseError::Closed) };
            assert_eq!(pauses.ask(B, Lasts::For(SECOND)), expected);
        }
        let mut pauses = Pauses::default();
        assert_eq!(pauses.give_way(), GiveWay::Nothing);
        pauses.ask(A, Lasts::For(SECOND)).unwrap();
        assert_eq!(pauses.give_way(), GiveWay::LetGo);
        assert_eq!(pauses.reached(SECOND, true), Reached::Unwanted(Some((A, PauseError::GivenWay))));
        assert_eq!(pauses.give_way(), GiveWay::Nothing, "it ends already");
        assert_eq!(pauses.resumed(), None);
        pauses.ask(A, Lasts::For(SECOND)).unwrap();
        assert_eq!(pauses.reached(SECOND, false), Reached::Failed(Some(A)));
        assert_eq!(pauses.ask(B, Lasts::For(SECOND)), Ok(()));
    }
}
