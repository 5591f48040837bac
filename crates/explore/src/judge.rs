//! Whether what was found may be there: against the marks, and what the contract says about them.

use serde::{Deserialize, Serialize};

use crate::check::Observation;
use crate::marks::{Mark, Record};
use crate::model::{Choice, Cut};
use crate::stream::Stream;

/// What a state must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Marks before this event must be visible. The event of the crash, or where the contract allows the newest
    /// acknowledgements to be lost, of the first write that is not there.
    pub required: usize,
    /// The event of the crash: the last one that could have left this state.
    pub crash: usize,
    /// The first one: see [`crate::model::Cut::since`]. Nothing may be there that the guest asked for only then.
    pub since: usize,
    /// When the last one is, in nanoseconds since the recording began.
    pub crash_ns: u64,
}

impl Expectation {
    /// Of a state of a cut, at a crash before the event `crash`: everything acknowledged must be visible.
    pub fn at(stream: &Stream, cut: &Cut, choice: &Choice, crash: usize) -> Self {
        let since = cut.since(stream, choice, crash);
        Self { required: crash, crash, since, crash_ns: stream.at_ns(crash) }
    }
}

/// The classes of outcomes, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Everything that had been acknowledged is there.
    Fresh,
    /// Consistent, older than what had been acknowledged, and the contract allows it.
    Stale,
    /// Nothing is known of it: its check took too long.
    NotJudged,
    /// Consistent, but something is missing that must be there.
    Lost,
    /// No crash may leave this.
    Inconsistent,
}

impl Class {
    /// Whether it breaks a promise.
    pub fn is_violation(self) -> bool {
        self >= Self::Lost
    }
}

/// One sentence and its proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The check that failed: `redo log`, `e2fsck`, `mount`, …
    pub check: String,
    /// What is wrong.
    pub what: String,
    /// The tool's own words.
    pub evidence: String,
    /// The daemon has kept its promise: its recovery left exactly a prefix of the guest's requests, inside the window. So
    /// the guest's file system or program does not survive its own order of writes, on any disk.
    #[serde(default)]
    pub above_the_daemon: bool,
}

/// The outcome of one state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ends.
    pub class: Class,
    /// The application's state, where a checker names it.
    pub state: Option<String>,
    /// How old it is: since the first mark that it lacks had been acknowledged, in milliseconds.
    pub stale_ms: f64,
    /// Why it is a violation, or not judged.
    pub problem: Option<Problem>,
}

impl Verdict {
    /// Nothing wrong, nothing missing.
    pub fn fresh() -> Self {
        Self { class: Class::Fresh, state: None, stale_ms: 0.0, problem: None }
    }

    /// A violation.
    pub fn broken(class: Class, check: &str, what: String, evidence: String) -> Self {
        let problem = Some(Problem { check: check.to_owned(), what, evidence, above_the_daemon: false });
        Self { class, state: None, stale_ms: 0.0, problem }
    }

    /// Nothing is known.
    pub fn not_judged(check: &str, what: String) -> Self {
        Self::broken(Class::NotJudged, check, what, String::new())
    }

    /// Whether it breaks a promise that is proved to be none of the daemon's.
    pub fn is_above_the_daemon(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.above_the_daemon)
    }

    /// The worse of two outcomes of the same state.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let state = self.state.clone().or(other.state.clone());
        let stale_ms = self.stale_ms.max(other.stale_ms);
        let worse = if other.class > self.class { other } else { self };
        Self { state, stale_ms, ..worse }
    }
}

/// What the guest had been promised.
#[derive(Clone, Debug)]
pub struct Judge {
    states: Vec<Mark>,
    records: Vec<(Record, Mark)>,
    /// Checks whose silence is no answer.
    naming: Vec<&'static str>,
    /// Checks of whose silence nobody knows whether it is one: they took too long when they were asked.
    unknown: Vec<&'static str>,
}

impl Judge {
    /// Of a recording's marks.
    pub fn new(marks: &[Mark]) -> Self {
        let states = marks.iter().filter(|m| m.names_state()).cloned().collect();
        let records = marks.iter().filter_map(|m| Some((m.record?, m.clone()))).collect();
        Self { states, records, naming: Vec::new(), unknown: Vec::new() }
    }

    /// These checks name a state where nothing is lost. So where they name none, none is there: not the one that must be, either.
    #[must_use]
    pub fn naming(self, checks: Vec<&'static str>) -> Self {
        Self { naming: checks, ..self }
    }

    /// These checks took too long to tell whether they name a state.
    #[must_use]
    pub fn unknown(self, checks: Vec<&'static str>) -> Self {
        Self { unknown: checks, ..self }
    }

    /// Whether there is any state to be named.
    pub fn names_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// The outcome where nobody looks into the file system: stale, where there are marks that need not be visible.
    pub fn missing(&self, expected: &Expectation) -> Verdict {
        let marks = self.states.iter().chain(self.records.iter().map(|(_, mark)| mark));
        let first =
            marks.filter(|m| (expected.required..expected.crash).contains(&m.event)).min_by_key(|m| m.event);
        match first {
            Some(mark) => Verdict {
                class: Class::Stale,
                state: None,
                stale_ms: ms(mark.at_ns, expected.crash_ns),
                problem: None,
            },
            None => Verdict::fresh(),
        }
    }

    /// Judges what one checker found.
    pub fn judge(&self, check: &str, found: &Observation, expected: &Expectation) -> Verdict {
        match found {
            Observation::Sound if self.naming.contains(&check) => self.named(check, None, expected),
            Observation::Sound if self.unknown.contains(&check) => match self.named(check, None, expected) {
                verdict if verdict.class == Class::Lost => {
                    let what = "the check took too long to say whether it names states where nothing is lost";
                    Verdict::not_judged(check, format!("{what}; --check-timeout allows more"))
                }
                verdict => verdict,
            },
            Observation::Sound => Verdict::fresh(),
            Observation::NotJudged { what } => Verdict::not_judged(check, what.clone()),
            Observation::Named { state } => self.named(check, Some(state), expected),
            Observation::Records { present, torn } => self.recorded(check, present, torn, expected),
            Observation::Inconsistent { what, evidence } => {
                Verdict::broken(Class::Inconsistent, check, what.clone(), evidence.clone())
            }
        }
    }

    fn named(&self, check: &str, name: Option<&str>, expected: &Expectation) -> Verdict {
        let before = |event: usize| self.states.iter().take_while(|m| m.event < event).count();
        let (required, acknowledged) = (before(expected.required), before(expected.crash));
        let state = name.map(str::to_owned);
        let newest = self.states.iter().rposition(|m| Some(m.name.as_str()) == name);
        if required > newest.map_or(0, |at| at + 1) {
            let must = &self.states[required - 1];
            let what = match (name, newest) {
                (None, _) => format!("the check names no state; {} must be there", must.name),
                (Some(name), None) => {
                    format!("the state is {name}, which is no mark; {} must be there", must.name)
                }
                (Some(name), Some(_)) => {
                    format!("the state is {name}, but {} had been acknowledged and must be there", must.name)
                }
            };
            let verdict = Verdict::broken(Class::Lost, check, what, String::new());
            let stale_ms = newest.map_or(0.0, |at| self.age_ms(at + 1, expected));
            return Verdict { state, stale_ms, ..verdict };
        }
        match newest {
            Some(at) if at + 1 < acknowledged => {
                Verdict { class: Class::Stale, state, stale_ms: self.age_ms(at + 1, expected), problem: None }
            }
            _ => Verdict { state, ..Verdict::fresh() },
        }
    }

    /// How long before the crash a mark had been there.
    fn age_ms(&self, mark: usize, expected: &Expectation) -> f64 {
        self.states.get(mark).map_or(0.0, |m| ms(m.at_ns, expected.crash_ns))
    }

    fn recorded(
        &self,
        check: &str,
        present: &[(u64, u64)],
        torn: &[(u32, u64)],
        expected: &Expectation,
    ) -> Verdict {
        let remains = Remains { judge: self, present, torn, expected };
        let broken = |what: String| Verdict::broken(Class::Lost, check, what, String::new());
        let lost = remains.missing(expected.required);
        if let Some((record, _)) = lost.first() {
            return broken(format!(
                "record {} had been acknowledged and is not there ({} missing in all)",
                record.n,
                lost.len()
            ));
        }
        if let Some((thread, slot)) = torn.iter().find(|place| !remains.in_flight(place.0, place.1)) {
            return broken(format!(
                "slot {slot} of thread {thread} is torn, and nothing was being written there"
            ));
        }
        match remains.missing(expected.crash).first() {
            Some((_, mark)) => Verdict {
                class: Class::Stale,
                state: None,
                stale_ms: ms(mark.at_ns, expected.crash_ns),
                problem: None,
            },
            None => Verdict::fresh(),
        }
    }
}

/// What is left of the agent's records.
struct Remains<'a> {
    judge: &'a Judge,
    present: &'a [(u64, u64)],
    torn: &'a [(u32, u64)],
    expected: &'a Expectation,
}

impl Remains<'_> {
    fn is_there(&self, n: u64) -> bool {
        self.present.iter().any(|(first, last)| (*first..=*last).contains(&n))
    }

    /// Records acknowledged before an event that are neither there nor overwritten by a later one.
    fn missing(&self, event: usize) -> Vec<&(Record, Mark)> {
        let acknowledged = self.judge.records.iter().filter(move |(_, mark)| mark.event < event);
        acknowledged.filter(|(record, _)| !self.is_there(record.n) && !self.is_overwritten(record)).collect()
    }

    /// In a ring a later record takes the place: one that is there, or one that was being written.
    fn is_overwritten(&self, record: &Record) -> bool {
        let same =
            |other: &Record| (other.thread, other.slot) == (record.thread, record.slot) && other.n > record.n;
        if self.judge.records.iter().any(|(other, _)| same(other) && self.is_there(other.n)) {
            return true;
        }
        // Not acknowledged yet, so only its thread's next place is known.
        let known = |n: u64| self.judge.records.iter().any(|(other, _)| other.n == n);
        let newer = || self.present.iter().any(|(_, last)| *last > record.n && !known(*last));
        self.in_flight(record.thread, record.slot)
            && (self.torn.contains(&(record.thread, record.slot)) || newer())
    }

    /// Whether a place may have been written to when the crash came: by a record that the contract allows to be lost, or by
    /// the thread's next one. Acknowledgements may have been on their way: the next one is the first that is not there.
    /// Later rounds of a ring come to every place, but after the crash.
    fn in_flight(&self, thread: u32, slot: u64) -> bool {
        let Expectation { required, crash, .. } = *self.expected;
        let mine = || self.judge.records.iter().filter(move |(record, _)| record.thread == thread);
        let may_be_lost = mine()
            .filter(|(_, mark)| (required..crash).contains(&mark.event))
            .any(|(record, _)| record.slot == slot);
        let mut later = mine().filter(|(_, mark)| mark.event >= crash);
        let next = match later.find(|(record, _)| !self.is_there(record.n)) {
            Some((next, _)) => slot == next.slot,
            // The recording ends before its acknowledgement.
            None => mine().next_back().is_none_or(|(last, _)| {
                // A ring begins anew after its last place; appended records never come back to the first.
                let is_ring = mine().filter(|(record, _)| record.slot == 0).count() > 1;
                let ends_ring = is_ring && mine().all(|(record, _)| record.slot <= last.slot);
                slot == if ends_ring { 0 } else { last.slot + 1 }
            }),
        };
        may_be_lost || next
    }
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge() -> Judge {
        let mark = |event: usize, name: &str| Mark {
            event,
            at_ns: event as u64 * 1_000_000,
            name: name.to_owned(),
            record: None,
        };
        Judge {
            states: vec![mark(10, "old"), mark(20, "new")],
            records: (1..=3u64)
                .map(|n| (Record { n, thread: 0, slot: n - 1 }, mark(n as usize * 10, "record")))
                .collect(),
            naming: vec!["app"],
            unknown: vec!["slow"],
        }
    }

    fn class(found: &Observation, required: usize, crash: usize) -> (Class, f64) {
        let expected = Expectation { required, crash, since: crash, crash_ns: crash as u64 * 1_000_000 };
        let verdict = judge().judge("app", found, &expected);
        (verdict.class, verdict.stale_ms)
    }

    #[test]
    fn states_are_fresh_stale_or_lost() {
        let named = |state: &str| Observation::Named { state: state.to_owned() };
        assert_eq!(class(&named("old"), 20, 20), (Class::Fresh, 0.0), "not acknowledged yet");
        assert_eq!(class(&named("new"), 15, 15).0, Class::Fresh, "earlier than acknowledged");
        assert_eq!(class(&named("old"), 20, 25), (Class::Stale, 5.0), "the contract allows it");
        assert_eq!(class(&named("old"), 25, 25), (Class::Lost, 5.0));
        assert_eq!(class(&named("what"), 15, 15).0, Class::Lost);
        assert_eq!(class(&named("what"), 5, 5).0, Class::Fresh, "nothing had been promised");
        assert_eq!(class(&Observation::Sound, 15, 15).0, Class::Lost, "it names a state where there is one");
        assert_eq!(class(&Observation::Sound, 5, 5).0, Class::Fresh);
        let expected = Expectation { required: 15, crash: 15, since: 15, crash_ns: 0 };
        let other = judge().judge("mount", &Observation::Sound, &expected);
        assert_eq!(other.class, Class::Fresh, "it never names any");
        let slow = judge().judge("slow", &Observation::Sound, &expected);
        assert_eq!(slow.class, Class::NotJudged, "nobody knows whether it names any");
        let late = judge().judge("app", &Observation::NotJudged { what: "late".to_owned() }, &expected);
        assert!(late.class == Class::NotJudged && !late.class.is_violation(), "{late:?}");
    }

    #[test]
    fn records_are_fresh_stale_or_lost() {
        let present = |runs: &[(u64, u64)]| Observation::Records { present: runs.to_vec(), torn: Vec::new() };
        assert_eq!(class(&present(&[(1, 2)]), 25, 25).0, Class::Fresh);
        assert_eq!(class(&present(&[(1, 1)]), 15, 25), (Class::Stale, 5.0));
        assert_eq!(class(&present(&[(2, 2)]), 25, 25).0, Class::Lost);
        let torn = |slot: u64| Observation::Records { present: vec![(1, 2)], torn: vec![(0, slot)] };
        assert_eq!(class(&torn(2), 25, 25).0, Class::Fresh, "the third was being written");
        assert_eq!(class(&torn(1), 25, 25).0, Class::Lost, "the second was not");
    }

    #[test]
    fn in_a_ring_one_place_at_a_time_may_be_torn() {
        let records = (1..=12u64).map(|n| {
            let mark =
                Mark { event: n as usize, at_ns: n * 1_000_000, name: "record".to_owned(), record: None };
            (Record { n, thread: 0, slot: (n - 1) % 4 }, mark)
        });
        let judge =
            Judge { states: Vec::new(), records: records.collect(), naming: Vec::new(), unknown: Vec::new() };
        // Before the acknowledgement of 7, which is being written over 3: the ring holds 5, 6, 3 or 7, 4.
        let class = |required: usize, present: &[(u64, u64)], torn: &[u64]| {
            let torn = torn.iter().map(|slot| (0, *slot)).collect();
            let found = Observation::Records { present: present.to_vec(), torn };
            judge
                .judge("records", &found, &Expectation { required, crash: 7, since: 7, crash_ns: 7_000_000 })
                .class
        };
        assert_eq!(class(7, &[(3, 6)], &[]), Class::Fresh);
        assert_eq!(class(7, &[(4, 7)], &[]), Class::Fresh);
        assert_eq!(class(7, &[(4, 6)], &[2]), Class::Fresh, "7 was being written");
        assert_eq!(class(7, &[(5, 7)], &[3]), Class::Fresh, "or 8: the acknowledgement of 7 was on its way");
        assert_eq!(class(7, &[(3, 3), (5, 6)], &[3]), Class::Lost, "8 was not, yet");
        assert_eq!(class(7, &[(3, 4), (6, 6)], &[0]), Class::Lost, "nor 9");
        assert_eq!(class(7, &[(3, 5)], &[1]), Class::Lost, "6 had been acknowledged");
        assert_eq!(class(6, &[(2, 5)], &[]), Class::Stale, "the contract allows to lose 6");
    }
}
