//! The window rule: which flushes are acknowledged at once, which wait, and when the next sync is due.
//!
//! No flush is acknowledged while an earlier acknowledged, not yet durable one is older than the window. Then the
//! acknowledgements that a cut can lose were all given within one window, however long a sync takes: take the oldest lost
//! one, given at t; every later one was given at t + window at the latest.
//!
//! A [`Window`] is told what happens and when, and says what follows. It has no clock, no lock and no thread of its own.

use std::collections::VecDeque;
use std::time::Duration;

use afterimage_block::SequenceNumber;

/// Room that the deadline leaves beside two sync times: waking up takes time, too.
const SLACK: Duration = Duration::from_millis(1);

/// May a flush complete now?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Yes: it counts as acknowledged from here on.
    Complete,
    /// Not before a sync has finished.
    Hold,
}

/// See the module. All times are of one monotonic clock.
#[derive(Debug)]
pub(crate) struct Window {
    limit: Duration,
    /// Acknowledged flushes that are not durable: what each covers, and when it was given. Both grow.
    pending: VecDeque<(SequenceNumber, Duration)>,
    /// When this began. What an earlier process had acknowledged, nobody knows when, is as old as can be for the rule; its age is told from here on.
    begun: Duration,
    /// The greatest age at which one became durable.
    age_max: Duration,
    /// Somebody waits for a sync.
    wanted: bool,
    /// How long a sync takes, smoothed.
    sync_time: Duration,
}

impl Window {
    pub(crate) fn new(limit: Duration, now: Duration) -> Self {
        let (pending, zero) = (VecDeque::new(), Duration::ZERO);
        Self { limit, pending, begun: now, age_max: zero, wanted: false, sync_time: zero }
    }

    /// Whether a flush may complete that covers everything up to `covers`, which is not durable yet. One that is held wants a
    /// sync.
    pub(crate) fn ask(&mut self, covers: SequenceNumber, now: Duration) -> Verdict {
        let verdict = self.judge(now);
        if verdict == Verdict::Complete {
            self.acknowledge(covers, now);
        }
        verdict
    }

    /// As [`Window::ask`], for what was acknowledged at `since` already: it is noted, and held for as long as it, or one before it, is older
    /// than the window.
    pub(crate) fn ask_told(&mut self, covers: SequenceNumber, since: Duration, now: Duration) -> Verdict {
        let at = self.pending.partition_point(|(newest, _)| *newest < covers);
        if self.pending.get(at).is_none_or(|(_, given)| *given > since) {
            self.pending.insert(at, (covers, since));
            // As old as this one, as far as the rule goes: while one of them is not durable, neither is this.
            let younger = self.pending.range_mut(..at).rev().take_while(|(_, given)| *given > since);
            younger.for_each(|(_, given)| *given = since);
        }
        self.judge(now)
    }

    fn judge(&mut self, now: Duration) -> Verdict {
        if self.holds(now) {
            self.want_sync();
            return Verdict::Hold;
        }
        Verdict::Complete
    }

    /// Notes an acknowledgement, whatever the rule says.
    pub(crate) fn acknowledge(&mut self, covers: SequenceNumber, now: Duration) {
        // The older of two that cover the same says all about both: it is lost where the other is, and no younger.
        if self.pending.back().is_none_or(|(newest, _)| *newest < covers) {
            self.pending.push_back((covers, now));
        }
    }

    /// Whether an acknowledged flush that is not durable is older than the window.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        self.pending.front().is_some_and(|(_, given)| now.saturating_sub(*given) > self.limit)
    }

    /// The next sync is due at once.
    pub(crate) fn want_sync(&mut self) {
        self.wanted = true;
    }

    /// When the next sync should start: `None` while nothing has been acknowledged since the last, and [`Duration::ZERO`] where
    /// somebody waits. Early enough that the oldest acknowledged flush is durable before the window ends even where this sync
    /// takes twice as long as usual.
    pub(crate) fn next_sync_at(&self) -> Option<Duration> {
        if self.wanted {
            return Some(Duration::ZERO);
        }
        let (_, given) = self.pending.front()?;
        Some(*given + self.limit.saturating_sub(self.sync_time * 2 + SLACK))
    }

    /// A sync begins: who asked for one before waits for this one.
    pub(crate) fn sync_begun(&mut self) {
        self.wanted = false;
    }

    /// A sync that began at `begun` has made everything up to `durable` durable.
    pub(crate) fn sync_finished(&mut self, durable: SequenceNumber, begun: Duration, now: Duration) {
        while let Some((_, given)) = self.pending.front().filter(|(covers, _)| *covers <= durable) {
            self.age_max = self.age_max.max(now.saturating_sub(self.begun.max(*given)));
            self.pending.pop_front();
        }
        let took = now.saturating_sub(begun);
        self.sync_time = if self.sync_time.is_zero() { took } else { (self.sync_time * 3 + took) / 4 };
    }

    /// Age of the oldest acknowledged flush that is not durable.
    pub(crate) fn oldest_age(&self, now: Duration) -> Option<Duration> {
        self.pending.front().map(|(_, given)| now.saturating_sub(self.begun.max(*given)))
    }

    /// The greatest such age so far.
    pub(crate) fn age_max(&self, now: Duration) -> Duration {
        self.age_max.max(self.oldest_age(now).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[derive(Clone, Debug)]
    enum Step {
        /// A write gets its number.
        Write,
        /// A flush that covers all but so many of the newest writes asks.
        Ask {
            behind: u64,
        },
        /// As much was acknowledged so long ago, while nothing was held; until it completes it asks again.
        Told {
            behind: u64,
            ms: u64,
        },
        Want,
        SyncBegins,
        SyncEnds,
        Pass {
            ms: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Write),
            4 => (0u64..3).prop_map(|behind| Step::Ask { behind }),
            2 => (0u64..3, 0u64..10).prop_map(|(behind, ms)| Step::Told { behind, ms }),
            1 => Just(Step::Want),
            1 => Just(Step::SyncBegins),
            1 => Just(Step::SyncEnds),
            3 => (1u64..40).prop_map(|ms| Step::Pass { ms }),
        ]
    }

    proptest! {
        /// Against a list of every acknowledgement ever given.
        #[test]
        fn decides_as_the_rule_says(steps in proptest::collection::vec(step(), 1..200)) {
            let mut window = Window::new(LIMIT, Duration::ZERO);
            let mut given: Vec<(u64, Duration)> = Vec::new();
            let (mut now, mut newest, mut durable, mut wanted) = (Duration::from_secs(9), 0u64, 0, false);
            let mut running: Option<(u64, Duration)> = None;
            let (mut sync_time, mut told) = (Duration::ZERO, Vec::new());
            for step in steps {
                match step {
                    Step::Write => newest += 1,
                    Step::Pass { ms } => now += Duration::from_millis(ms),
                    Step::Want => {
                        window.want_sync();
                        wanted = true;
                    }
                    Step::Ask { behind } => {
                        let covers = newest.saturating_sub(behind);
                        if covers > durable {
                            let late = given.iter().any(|(c, at)| *c > durable && now - *at > LIMIT);
                            let expected = if late { Verdict::Hold } else { Verdict::Complete };
                            prop_assert_eq!(window.ask(SequenceNumber(covers), now), expected);
                            wanted |= late;
                            given.extend((!late).then_some((covers, now)));
                        }
                    }
                    Step::Told { behind, ms } => {
                        let (covers, since) = (newest.saturating_sub(behind), now - Duration::from_millis(ms));
                        if covers > durable && !window.holds(now) {
                            given.push((covers, since));
                            prop_assert_eq!(
                                window.ask_told(SequenceNumber(covers), since, now),
                                Verdict::Complete
                            );
                            told.push((covers, since));
                        }
                    }
                    Step::SyncBegins => {
                        window.sync_begun();
                        wanted = false;
                        running = Some((newest, now));
                    }
                    Step::SyncEnds => {
                        if let Some((covers, begun)) = running.take() {
                            window.sync_finished(SequenceNumber(covers), begun, now);
                            durable = durable.max(covers);
                            let took = now - begun;
                            sync_time = if sync_time.is_zero() { took } else { (sync_time * 3 + took) / 4 };
                        }
                    }
                }
                told.retain(|(covers, _)| *covers > durable);
                for (covers, since) in &told {
                    let late = given.iter().any(|(c, at)| *c > durable && now - *at > LIMIT);
                    let expected = if late { Verdict::Hold } else { Verdict::Complete };
                    prop_assert_eq!(window.ask_told(SequenceNumber(*covers), *since, now), expected);
                    wanted |= late;
                }
                let lost: Vec<Duration> = given.iter().filter(|(c, _)| *c > durable).map(|(_, at)| *at).collect();
                let oldest = lost.iter().min().copied();
                prop_assert_eq!(window.oldest_age(now), oldest.map(|at| now - at));
                prop_assert_eq!(window.holds(now), oldest.is_some_and(|at| now - at > LIMIT));
                let due = oldest.map(|at| at + LIMIT.saturating_sub(sync_time * 2 + SLACK));
                prop_assert_eq!(window.next_sync_at(), if wanted { Some(Duration::ZERO) } else { due });
                // What the rule is for.
                let span = lost.iter().max().zip(oldest).map_or(Duration::ZERO, |(last, first)| *last - first);
                prop_assert!(span <= LIMIT, "a cut loses acknowledgements of {span:?}");
            }
        }
    }

    #[test]
    fn the_greatest_age_is_remembered() {
        let mut window = Window::new(LIMIT, Duration::ZERO);
        let at = Duration::from_millis;
        assert_eq!(window.ask(SequenceNumber(1), at(10)), Verdict::Complete);
        assert_eq!((window.oldest_age(at(25)), window.age_max(at(25))), (Some(at(15)), at(15)));
        window.sync_begun();
        window.sync_finished(SequenceNumber(1), at(25), at(40));
        assert_eq!((window.oldest_age(at(90)), window.age_max(at(90))), (None, at(30)));
    }

    /// A publication that an earlier daemon had left: it is held, and the host's uptime is no age.
    #[test]
    fn what_an_earlier_process_acknowledged_is_held_and_ages_from_here_on() {
        let at = |ms| Duration::from_secs(1000) + Duration::from_millis(ms);
        let mut window = Window::new(LIMIT, at(0));
        assert_eq!(window.ask_told(SequenceNumber(1), Duration::ZERO, at(5)), Verdict::Hold);
        assert!(window.holds(at(5)));
        assert_eq!(window.oldest_age(at(5)), Some(Duration::from_millis(5)));
        window.sync_begun();
        window.sync_finished(SequenceNumber(1), at(5), at(8));
        assert_eq!((window.oldest_age(at(9)), window.age_max(at(9))), (None, Duration::from_millis(8)));
    }
}
