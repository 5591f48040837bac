//! Campaigns over a recording made by hand, whose application is checked here: no guests, no file system.
//!
//! ```text
//!   sector 0: how many transactions there are      sectors 8 n …: what transaction n wrote
//!   transaction n:  write data ─► flush ─► write count n ─► flush ─► mark t<n>
//! ```

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::Medium as _;
use afterimage_explore::campaign::{self, Failure, Limits, Progress, Subject};
use afterimage_explore::check::{Checker, Observation};
use afterimage_explore::evaluate::{Evaluator, Known};
use afterimage_explore::judge::{Class, Judge, Problem, Verdict};
use afterimage_explore::log_recovery::{recover, RecoveryOptions};
use afterimage_explore::minimise::minimise;
use afterimage_explore::model::{state_digest, Choice, LostWrite};
use afterimage_explore::own::{OwnRecovery, Recovered};
use afterimage_explore::report::{Known as KnownFault, Report};
use afterimage_explore::runner::{self, Request};
use afterimage_explore::schedule::{Picking, Schedule};
use afterimage_explore::setup::{Level, Setup};
use afterimage_explore::state::{Image, Scratch};
use afterimage_explore::{saved, ExploreError};
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, Sparse, Target, TargetId};

const TRANSACTIONS: u64 = 12;
/// The sector of a transaction's data that is checked.
const CHECKED: u64 = 3;
const BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Tape {
    recording: Recording,
}

impl Tape {
    fn new() -> Self {
        let base = Arc::new(Sparse::new(BYTES));
        let target = Target { layer: Layer::Storage, role: Role::Disk(0), bytes: BYTES, base };
        let mut tape = Self::default();
        tape.recording.targets.push(target);
        tape.recording.about.insert("contract".to_owned(), "power".into());
        tape
    }

    fn event(&mut self, kind: EventKind) {
        let at_ns = self.recording.events.len() as u64 * 1_000_000;
        self.recording.events.push(Event { at_ns, kind });
    }

    fn request(&mut self, op: Op) {
        let (target, id) = (TargetId(0), self.recording.events.len() as u64);
        self.event(EventKind::Submit { target, id, op });
        self.event(EventKind::Complete { target, id, ok: true });
    }

    fn write(&mut self, sector: u64, sectors: usize, byte: u64) {
        let data = vec![byte as u8; sectors * 512].into();
        self.request(Op::Write { offset: sector * 512, data, flushed: false });
    }

    fn mark(&mut self, name: &str) {
        self.event(EventKind::Mark { text: format!("{{\"mark\":\"{name}\"}}").into() });
    }

    /// The application; the transaction `forgets` leaves the flush between data and count out. `noise` writes
    /// elsewhere in each transaction, which nobody flushes before the count.
    fn bank(forgets: Option<u64>, noise: u64) -> Recording {
        let mut tape = Self::new();
        tape.mark("begin");
        for n in 1..=TRANSACTIONS {
            tape.write(8 * n, 8, n);
            if forgets != Some(n) {
                tape.request(Op::Flush);
            }
            (0..noise).for_each(|i| tape.write(1000 + 3 * i, 3, n));
            tape.write(0, 1, n);
            tape.request(Op::Flush);
            tape.mark(&format!("t{n}"));
        }
        tape.mark("end");
        tape.recording
    }
}

/// Old or new, never mixed.
struct Bank;

impl Checker for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
        let byte = |sector: u64| {
            let mut byte = [0];
            disks[0].read_at(&mut byte, sector * 512).expect("inside the disk");
            u64::from(byte[0])
        };
        let count = byte(0);
        // What a checker writes is lost to nobody.
        disks[0].write_at(&[0xff; 512], 0).expect("inside the disk");
        Ok(match (1..=count).find(|n| byte(8 * n + CHECKED) != *n) {
            None => Observation::Named { state: format!("t{count}") },
            Some(n) => Observation::Inconsistent {
                what: format!("{count} transactions, and not what number {n} wrote"),
                evidence: String::new(),
            },
        })
    }
}

fn bank(_worker: usize) -> afterimage_explore::Result<Vec<Box<dyn Checker>>> {
    Ok(vec![Box::new(Bank)])
}

fn setup(recording: &Recording, picking: Picking) -> Setup {
    Setup { atomic_bytes: 512, picking, ..Setup::of(recording).expect("a contract") }
}

fn subject(recording: &Recording, picking: Picking) -> Subject {
    setup(recording, picking).subject(recording).expect("something to look at")
}

fn limits(states: u64, jobs: usize) -> Limits {
    Limits { time: Duration::from_secs(3600), states: Some(states), jobs, in_all: true, first_only: false }
}

fn run(subject: &Subject, limits: &Limits, from: Progress) -> Progress {
    campaign::run(subject, limits, &bank, from, &AtomicBool::new(false), &mut |_| ()).expect("a result")
}

/// Everything that must not depend on how the work was shared out. What was pruned may: two workers may meet the same state.
fn result(progress: &Progress) -> serde_json::Value {
    let mut json = serde_json::to_value(progress).expect("JSON");
    json["elapsed"].take();
    json["tally"]["work"].take();
    json
}

#[test]
fn results_do_not_depend_on_the_number_of_workers() {
    for picking in [Picking::Rounds, Picking::Moments] {
        let recording = Tape::bank(Some(5), 12);
        let subject = subject(&recording, picking);
        let one = run(&subject, &limits(900, 1), Progress::default());
        let three = run(&subject, &limits(900, 3), Progress::default());
        assert_eq!(one.done, 900);
        assert_eq!(one.done, one.tally.states());
        assert_eq!(result(&one), result(&three), "{picking:?}");
        assert!(one.tally.inconsistent > 0 && one.tally.fresh > one.tally.inconsistent, "{:?}", one.tally);
        assert_eq!((one.tally.lost, one.tally.stale), (0, 0), "every count was flushed before its mark");
    }
}

#[test]
fn all_states_of_a_small_run_are_looked_at_once() {
    let recording = Tape::bank(None, 0);
    let subject = subject(&recording, Picking::Rounds);
    let schedule = || Schedule::new(&subject.stream, &subject.cuts, Picking::Rounds, 7);
    let all = schedule().all_states().expect("few");
    let items: Vec<_> = schedule().map(|item| (item.cut, item.choice)).collect();
    assert_eq!(items.len() as u64, all);
    assert_eq!(items.iter().collect::<HashSet<_>>().len() as u64, all, "none comes twice");
    assert_eq!(items.iter().map(|(cut, _)| cut).collect::<HashSet<_>>().len(), subject.cuts.len());
    for n in [0, 1, 40, all - 1, all, all + 9] {
        let mut rest = schedule();
        rest.leave_out(n);
        let rest: Vec<_> = rest.map(|item| (item.cut, item.choice)).collect();
        assert_eq!(rest, items[(n.min(all)) as usize..], "without the first {n}");
    }
    let progress = run(&subject, &limits(u64::MAX, 2), Progress::default());
    assert!(progress.exhausted && progress.done == all, "{} of {all}", progress.done);
    assert_eq!(progress.tally.fresh, all, "an honest application: {:?}", progress.failures);
}

#[test]
fn a_moment_has_nothing_that_comes_after_it() {
    let recording = Tape::bank(None, 12);
    let subject = subject(&recording, Picking::Moments);
    let mut moments = HashSet::new();
    for item in Schedule::new(&subject.stream, &subject.cuts, Picking::Moments, 3).take(500) {
        let (stream, crash) = (&subject.stream, item.crash.crash);
        let cut = &subject.cuts[item.cut];
        assert!(crash > stream.begin && crash <= cut.event);
        moments.insert(crash);
        let late = cut.volatile.iter().map(|v| v.write).filter(|w| stream.writes[*w].submitted >= crash);
        let late = late.map(|write| LostWrite { write, sectors: None });
        assert!(item.choice.lost.iter().all(|lost| stream.writes[lost.write].submitted < crash));
        assert!(item.choice.lost.is_sorted_by_key(|lost| lost.write));
        let without = Choice { lost: item.choice.lost.iter().cloned().chain(late).collect() };
        let digest = state_digest(&cut.state_at(stream, &item.choice, crash));
        assert_eq!(digest, state_digest(&cut.state(stream, &without)), "at {crash}");
    }
    assert!(moments.len() > 100, "{}", moments.len());
}

fn explore(recording: &Recording, out: &Path, states: u64, resume: bool) -> Report {
    let setup = setup(recording, Picking::Rounds);
    explore_as(recording, &setup, out, states, resume).expect("a report")
}

fn explore_as(
    recording: &Recording,
    setup: &Setup,
    out: &Path,
    states: u64,
    resume: bool,
) -> afterimage_explore::Result<Report> {
    let request =
        Request { name: "bank", recording, setup, limits: limits(states, 2), out: Some(out), resume };
    runner::explore(&request, &bank, &AtomicBool::new(false), &mut |_| ())
}

#[test]
fn a_campaign_in_pieces_is_one_campaign() {
    let recording = Tape::bank(Some(5), 12);
    let folder = tempfile::tempdir().expect("a folder");
    let whole = explore(&recording, &folder.path().join("whole"), 700, false);
    let out = folder.path().join("pieces");
    for states in [3, 100, 450, 700] {
        let piece = explore(&recording, &out, states, true);
        assert_eq!(piece.progress.done, states);
    }
    let pieces = explore(&recording, &out, 700, true);
    // Which states an earlier piece has met is not kept.
    let result = |report: &Report| {
        let mut json = result(&report.progress);
        json["tally"]["different"].take();
        json
    };
    assert_eq!(result(&whole), result(&pieces));
    let setup = Setup { seed: 2, ..setup(&recording, Picking::Rounds) };
    let other = explore_as(&recording, &setup, &out, 900, true);
    assert!(matches!(other, Err(ExploreError::Usage(_))), "another seed is another campaign");
    let other = Tape::bank(Some(6), 12);
    let other = explore_as(&other, &self::setup(&other, Picking::Rounds), &out, 900, true);
    assert!(matches!(other, Err(ExploreError::Usage(_))), "so is another recording");
}

#[test]
fn a_campaign_that_is_resumed_has_a_budget_of_its_own() {
    let recording = Tape::bank(Some(5), 12);
    let subject = subject(&recording, Picking::Rounds);
    let resumed = Limits { in_all: false, ..limits(50, 2) };
    let before = run(&subject, &resumed, Progress::default());
    let from = || Progress { elapsed: resumed.time, ..before.clone() };
    assert_eq!(run(&subject, &resumed, from()).done, 100);
    let in_all = Limits { in_all: true, ..limits(100, 2) };
    assert_eq!(run(&subject, &in_all, from()).done, 50, "a suite's time is over");
}

#[test]
fn a_campaign_whose_time_is_over_before_its_first_state_looks_at_some() {
    let recording = Tape::bank(None, 12);
    let setup = setup(&recording, Picking::Rounds);
    let limits = Limits { time: Duration::ZERO, ..limits(u64::MAX, 2) };
    let look = |stop: bool| {
        let (name, resume) = ("bank", false);
        let request = Request { name, recording: &recording, setup: &setup, limits, out: None, resume };
        runner::explore(&request, &bank, &AtomicBool::new(stop), &mut |_| ()).expect("a report")
    };
    let report = look(false);
    assert!((1..100).contains(&report.progress.done) && report.is_accepted(), "{report}");
    let stopped = look(true);
    assert!(stopped.progress.done == 0 && !stopped.holds() && !stopped.is_accepted(), "{stopped}");
    assert!(stopped.to_string().contains("no state was looked at"), "{stopped}");
}

#[test]
fn states_are_counted_once_each_and_crashes_are_not_states() {
    let recording = Tape::bank(Some(5), 0);
    let subject = subject(&recording, Picking::Rounds);
    let progress = run(&subject, &limits(u64::MAX, 2), Progress::default());
    let mut worst = std::collections::HashMap::new();
    for item in Schedule::new(&subject.stream, &subject.cuts, Picking::Rounds, 1) {
        let images = subject.cuts[item.cut].state_at(&subject.stream, &item.choice, item.crash.crash);
        let digest = state_digest(&images);
        let mut evaluator = runner::evaluator(&subject, &bank).expect("checkers");
        let class = evaluator.evaluate(images, &item.crash).expect("a verdict").class;
        let before = worst.entry(digest).or_insert(class);
        *before = class.max(*before);
    }
    let count = |class: Class| worst.values().filter(|worst| **worst == class).count() as u64;
    let tally = &progress.tally;
    for class in [Class::Fresh, Class::Stale, Class::Lost, Class::Inconsistent] {
        assert_eq!(tally.different(class), count(class), "{class:?}");
    }
    assert!(tally.different(Class::Inconsistent) > 0, "{tally:?}");
    assert!(tally.different(Class::Fresh) < tally.fresh, "some crashes leave one state: {tally:?}");
}

/// A check that takes its time, and gives up when it is told to.
struct Slow {
    takes: Duration,
    until: Option<Instant>,
}

impl Checker for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
        let end = Instant::now() + self.takes;
        if let Some(until) = self.until.filter(|until| *until < end) {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            return Err(ExploreError::OutOfTime);
        }
        std::thread::sleep(self.takes);
        Bank.check(disks)
    }

    fn give_up_at(&mut self, until: Option<Instant>) {
        self.until = until;
    }
}

#[test]
fn a_budget_holds_in_the_middle_of_a_check_and_nothing_is_left_out_behind_it() {
    let recording = Tape::bank(Some(5), 12);
    let subject = subject(&recording, Picking::Rounds);
    let explore = |takes_ms: u64, limits: &Limits, from: Progress| {
        let slow = |_worker: usize| -> afterimage_explore::Result<Vec<Box<dyn Checker>>> {
            Ok(vec![Box::new(Slow { takes: Duration::from_millis(takes_ms), until: None })])
        };
        campaign::run(&subject, limits, &slow, from, &AtomicBool::new(false), &mut |_| ()).expect("a result")
    };
    let before = explore(0, &limits(8, 1), Progress::default());
    let begun = Instant::now();
    let time = Duration::from_millis(300);
    let short = Limits { time, states: None, jobs: 1, in_all: false, first_only: false };
    // Asked for the end with nothing lost, and for some states.
    let cut = explore(70, &short, before.clone());
    assert!(begun.elapsed() < time * 3, "{:?}", begun.elapsed());
    assert!((9..16).contains(&cut.done) && cut.done == cut.tally.states(), "{} states: in a chunk", cut.done);
    let none = explore(10_000, &short, before);
    assert_eq!((none.done, none.tally.not_judged, none.exhausted), (8, 0, false), "it is looked at later");
    let rest = explore(0, &limits(300, 1), cut);
    let whole = explore(0, &limits(300, 1), Progress::default());
    let counts = |progress: &Progress| {
        let tally = &progress.tally;
        (progress.done, tally.fresh, tally.lost, tally.inconsistent, tally.by_state.clone())
    };
    assert_eq!(counts(&rest), counts(&whole));
}

/// A check that is too slow where a transaction is half done.
struct Late;

impl Checker for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
        Ok(match Bank.check(disks)? {
            Observation::Inconsistent { .. } => {
                Observation::NotJudged { what: "it took too long".to_owned() }
            }
            found => found,
        })
    }
}

#[test]
fn a_check_that_takes_too_long_accuses_nobody_and_passes_nothing() {
    let recording = Tape::bank(Some(5), 12);
    let setup = setup(&recording, Picking::Rounds);
    let out = tempfile::tempdir().expect("a folder");
    let late =
        |_worker: usize| -> afterimage_explore::Result<Vec<Box<dyn Checker>>> { Ok(vec![Box::new(Late)]) };
    let request = Request {
        name: "bank",
        recording: &recording,
        setup: &setup,
        limits: limits(900, 2),
        out: Some(out.path()),
        resume: false,
    };
    let report = runner::explore(&request, &late, &AtomicBool::new(false), &mut |_| ()).expect("a report");
    let tally = &report.progress.tally;
    assert!(tally.not_judged > 0 && tally.violations() == 0, "{report}");
    assert!(!report.holds() && !report.is_accepted(), "what is not known does not pass: {report}");
    assert!(report.progress.failures.is_empty() && !out.path().join("failure").exists(), "{report}");
    let text = report.to_string();
    assert!(text.contains("NOT JUDGED: late: it took too long") && !text.contains("BROKEN"), "{text}");
}

#[test]
fn a_failure_of_what_lost_nothing_says_so() {
    let mut tape = Tape::new();
    tape.mark("begin");
    // Counted and never written: wrong with all that was asked for.
    tape.write(0, 1, 1);
    let setup = setup(&tape.recording, Picking::Rounds);
    let out = tempfile::tempdir().expect("a folder");
    explore_as(&tape.recording, &setup, out.path(), 50, false).expect("a report");
    let folder = out.path().join("failure");
    let (mut saved, _) = saved::load(&folder).expect("a failure");
    assert!(!saved.lost.is_empty() || saved.is_minimal);
    saved.lost.clear();
    saved.is_minimal = true;
    let text = saved::show(&saved, &folder);
    assert!(text.contains("lost: nothing; it fails with all that had been asked for"), "{text}");
    assert!(!text.contains("0 requests") && !text.contains("every one"), "{text}");
}

#[test]
fn a_failure_is_minimised_to_what_matters() {
    for picking in [Picking::Rounds, Picking::Moments] {
        let recording = Tape::bank(Some(5), 12);
        let subject = subject(&recording, picking);
        let progress = run(&subject, &limits(900, 1), Progress::default());
        let first = &progress.failures[0];
        let mut evaluator = runner::evaluator(&subject, &bank).expect("checkers");
        let found = minimise(&subject, &mut evaluator, first).expect("a minimum");
        assert!(found.is_minimal && found.tries < 200, "{} tries", found.tries);
        let [lost] = &found.failure.choice.lost[..] else { panic!("{:?}", found.failure.choice) };
        assert_eq!(subject.stream.writes[lost.write].first, 8 * 5, "the data of transaction 5");
        let checked = (CHECKED as u32, CHECKED as u32 + 1);
        assert_eq!(lost.sectors, Some(vec![checked]), "the sector that is checked");
        assert_eq!(found.failure.verdict.class, Class::Inconsistent);
    }
}

/// Nothing is flushed until the end: at a moment most of what is volatile at the next cut has not been asked for.
#[test]
fn what_comes_after_a_moment_is_not_given_back() {
    let mut hasty = Tape::bank(None, 0);
    hasty.events.retain(|event| (1..=TRANSACTIONS).all(|n| !is_mark(&event.kind, &format!("t{n}"))));
    let is_flush = |event: &Event| matches!(event.kind, EventKind::Submit { op: Op::Flush, .. });
    let flushes = hasty.events.iter().filter(|event| is_flush(event)).count();
    for _ in 1..flushes {
        let at = hasty.events.iter().position(is_flush).expect("a flush");
        hasty.events.drain(at..at + 2);
    }
    let subject = subject(&hasty, Picking::Moments);
    let progress = run(&subject, &limits(200, 1), Progress::default());
    let first = &progress.failures[0];
    let counts =
        subject.stream.writes.iter().filter(|w| w.first == 0 && w.submitted < first.crash_event).count();
    assert!((2..TRANSACTIONS as usize - 1).contains(&counts), "{counts}: some are made, some are to come");
    let mut evaluator = runner::evaluator(&subject, &bank).expect("checkers");
    let found = minimise(&subject, &mut evaluator, first).expect("a minimum");
    assert!(found.is_minimal);
    let what = found.failure.verdict.problem.expect("a problem").what;
    let count: usize = what.split(' ').next().and_then(|word| word.parse().ok()).expect("a count");
    assert!(count <= counts, "{what}, and only {counts} had been made");
}

/// Two mistakes, found by the same check: which one is told must not change.
#[test]
fn another_failure_of_the_same_check_is_not_taken_for_it() {
    struct Two;
    impl Checker for Two {
        fn name(&self) -> &'static str {
            "two"
        }

        fn check(&mut self, disks: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
            let mut byte = [0];
            for (sector, name) in [(8, "the older"), (16, "the newer")] {
                disks[0].read_at(&mut byte, sector * 512).expect("inside the disk");
                if byte == [0] {
                    return Ok(Observation::Inconsistent {
                        what: format!("{name} is gone"),
                        evidence: String::new(),
                    });
                }
            }
            Ok(Observation::Sound)
        }
    }
    let mut tape = Tape::new();
    tape.mark("begin");
    tape.write(8, 1, 1);
    tape.write(16, 1, 1);
    let subject = subject(&tape.recording, Picking::Rounds);
    let two =
        |_worker: usize| -> afterimage_explore::Result<Vec<Box<dyn Checker>>> { Ok(vec![Box::new(Two)]) };
    let mut evaluator = runner::evaluator(&subject, &two).expect("checkers");
    let cut = subject.cuts.last().expect("a cut");
    let choice = Choice { lost: (0..2).map(|write| LostWrite { write, sectors: None }).collect() };
    let verdict =
        campaign::again(&subject, &mut evaluator, cut.event, cut.event, &choice).expect("a verdict");
    let failure = Failure { cut_event: cut.event, crash_event: cut.event, choice, verdict };
    let found = minimise(&subject, &mut evaluator, &failure).expect("a minimum").failure;
    assert_eq!(found.verdict, failure.verdict);
    assert_eq!(found.choice.lost.iter().map(|lost| lost.write).collect::<Vec<_>>(), [0]);
}

#[test]
fn what_does_not_come_again_is_not_called_minimal() {
    /// Fails once.
    struct Moody(Arc<AtomicUsize>);
    impl Checker for Moody {
        fn name(&self) -> &'static str {
            "moody"
        }

        fn check(&mut self, _: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
            let what = "a bad day".to_owned();
            Ok(match self.0.fetch_add(1, Ordering::Relaxed) {
                5 => Observation::Inconsistent { what, evidence: String::new() },
                _ => Observation::Sound,
            })
        }
    }
    let subject = subject(&Tape::bank(None, 1), Picking::Rounds);
    let had = Arc::new(AtomicUsize::new(0));
    let moody = |_worker: usize| -> afterimage_explore::Result<Vec<Box<dyn Checker>>> {
        Ok(vec![Box::new(Moody(Arc::clone(&had)))])
    };
    let stop = AtomicBool::new(false);
    let progress = campaign::run(&subject, &limits(20, 1), &moody, Progress::default(), &stop, &mut |_| ());
    let first = progress.expect("a result").failures[0].clone();
    let mut evaluator = runner::evaluator(&subject, &moody).expect("checkers");
    let found = minimise(&subject, &mut evaluator, &first).expect("no minimum");
    assert!(!found.is_minimal && found.failure.choice == first.choice);
}

#[test]
fn what_was_found_before_a_check_failed_is_kept_and_told() {
    struct Mortal(Arc<AtomicUsize>);
    impl Checker for Mortal {
        fn name(&self) -> &'static str {
            "mortal"
        }

        fn check(&mut self, _: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                3 => Ok(Observation::Inconsistent { what: "a bad day".to_owned(), evidence: String::new() }),
                0..30 => Ok(Observation::Sound),
                _ => Err(ExploreError::Checker("the guest is dead".to_owned())),
            }
        }
    }
    let recording = Tape::bank(None, 12);
    let setup = setup(&recording, Picking::Rounds);
    let folder = tempfile::tempdir().expect("a folder");
    let explore = |had: usize, resume: bool| {
        let had = Arc::new(AtomicUsize::new(had));
        let mortal = |_worker: usize| -> afterimage_explore::Result<Vec<Box<dyn Checker>>> {
            Ok(vec![Box::new(Mortal(Arc::clone(&had)))])
        };
        let (limits, out) = (limits(900, 1), Some(folder.path()));
        let request = Request { name: "bank", recording: &recording, setup: &setup, limits, out, resume };
        let error = runner::explore(&request, &mortal, &AtomicBool::new(false), &mut |_| ());
        error.expect_err("the guest is dead").to_string()
    };
    let told = explore(0, false);
    assert!(told.contains("the guest is dead") && told.contains("mortal: a bad day"), "{told}");
    let again = explore(20, true);
    assert!(again.contains("mortal: a bad day"), "it is in the progress: {again}");
}

#[test]
fn what_is_known_of_a_guest_excuses_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut report = explore(&Tape::bank(Some(5), 12), folder.path(), 900, false);
    // As if the disks had held what the guest had asked for.
    report.progress.tally.above_the_daemon = report.progress.tally.violations();
    let [failure] = &mut report.progress.failures[..] else { panic!("{report}") };
    let problem = failure.verdict.problem.as_mut().expect("a problem");
    problem.above_the_daemon = true;
    let known = |check: &str, what: &str| KnownFault {
        why: String::new(),
        check: check.to_owned(),
        what: what.to_owned(),
    };
    let (right, problem) = (known("bank", &problem.what), problem.clone());
    let accepts = |known: Option<KnownFault>, more: &[&str]| {
        let mut report = Report { known, ..report.clone() };
        let first = report.progress.failures[0].clone();
        report.progress.failures.extend(more.iter().map(|check| {
            let problem = Some(Problem { check: (*check).to_owned(), ..problem.clone() });
            Failure { verdict: Verdict { problem, ..first.verdict.clone() }, ..first.clone() }
        }));
        report.is_accepted()
    };
    assert!(!accepts(None, &[]));
    assert!(accepts(Some(right.clone()), &[]));
    assert!(!accepts(Some(known("e2fsck", &right.what)), &[]));
    assert!(!accepts(Some(known("bank", "something else")), &[]));
    assert!(!accepts(Some(right.clone()), &["e2fsck"]), "that is another one");
    assert!(!accepts(Some(right), &["bank"; 7]), "others may not have been kept");
}

#[test]
fn a_saved_failure_fails_again() {
    let recording = Tape::bank(Some(5), 12);
    let folder = tempfile::tempdir().expect("a folder");
    let report = explore(&recording, folder.path(), 900, false);
    assert!(!report.holds());
    let failure = report.saved.expect("a folder");
    let (saved, again) = saved::load(&failure).expect("what was saved");
    assert_eq!((saved.lost.len(), saved.lost[0].sector, saved.is_minimal), (1, 40, true));
    let subject = saved.setup.subject(&again).expect("the same stream");
    let mut evaluator = runner::evaluator(&subject, &bank).expect("checkers");
    let found = &saved.failure;
    let verdict =
        campaign::again(&subject, &mut evaluator, found.cut_event, found.crash_event, &found.choice);
    assert_eq!(verdict.expect("a verdict"), found.verdict);
    let text = saved::show(&saved, &failure);
    assert!(text.contains("bank says") && text.contains("sectors 3..4"), "{text}");

    // The next campaign here holds: nothing must look as if it had failed.
    std::fs::write(failure.join("mine"), "a note").expect("a file");
    assert!(explore(&Tape::bank(None, 1), folder.path(), 900, false).holds());
    assert!(saved::load(&failure).is_err() && failure.join("mine").exists());
}

#[test]
fn a_failure_of_a_newer_program_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("failure.json");
    for (text, newer) in
        [("{\"version\":3,\"what\":\"else\"}", true), ("{\"version\":1}", false), ("", false)]
    {
        std::fs::write(&file, text).expect("a file");
        match saved::load(folder.path()) {
            Err(ExploreError::Usage(why)) => assert!(newer && why.contains("version 3"), "{why}"),
            Err(ExploreError::Corrupt(why)) => assert!(!newer && why.contains("damaged"), "{why}"),
            other => panic!("{text}: {:?}", other.map(|(saved, _)| saved)),
        }
    }
}

/// Recovers nothing, and promises that what is lost may be as old as it says.
struct Promise {
    required: Result<usize, String>,
}

impl OwnRecovery for Promise {
    fn recover(&self, media: Vec<Image>) -> Result<Recovered, String> {
        let digest = media[0].digest();
        Ok(Recovered {
            disks: media.into_iter().map(|m| Arc::new(Scratch::new(m))).collect(),
            digest,
            prefix: 0,
        })
    }

    fn promised(&self, _prefix: u64, _crash: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
        self.required.clone()
    }
}

#[test]
fn what_is_promised_decides_between_stale_and_lost() {
    let recording = Tape::bank(None, 0);
    let subject = subject(&recording, Picking::Rounds);
    // Before count 3 becomes durable, and it is lost: t2 is there. But the crash comes after the mark t3.
    let cut =
        subject.cuts.iter().find(|cut| cut.at_ns == mark_ns(&recording, "t3") - 1_000_000).expect("a cut");
    let t3 = recording.events.iter().position(|e| is_mark(&e.kind, "t3")).expect("a mark");
    let nothing = (0..cut.volatile.len()).map(|i| cut.volatile[i].write);
    let choice = Choice { lost: nothing.map(|write| LostWrite { write, sectors: None }).collect() };
    let verdict = |required: Result<usize, String>| {
        let own: Arc<dyn OwnRecovery> = Arc::new(Promise { required });
        let judge = Arc::new(Judge::new(&subject.stream.marks));
        let checkers = bank(0).expect("a checker");
        let mut evaluator = Evaluator::new(Arc::new(Known::default()), Some(own), judge, checkers);
        campaign::again(&subject, &mut evaluator, cut.event, t3 + 2, &choice).expect("a verdict")
    };
    let stale = verdict(Ok(t3));
    assert_eq!((stale.class, stale.state.as_deref(), stale.stale_ms), (Class::Stale, Some("t2"), 2.0));
    assert_eq!(verdict(Ok(t3 + 1)).class, Class::Lost);
    let broken = verdict(Err("too old".to_owned()));
    assert_eq!(broken.class, Class::Lost);
    assert_eq!(broken.problem.map(|p| p.check), Some("window rule".to_owned()));
}

fn is_mark(kind: &EventKind, name: &str) -> bool {
    matches!(kind, EventKind::Mark { text } if text.contains(&format!("\"{name}\"")))
}

fn mark_ns(recording: &Recording, name: &str) -> u64 {
    recording.events.iter().find(|e| is_mark(&e.kind, name)).map_or(0, |e| e.at_ns)
}

/// `cat` of a file: it names the state that is there, and says nothing where none is.
struct Cat {
    is_dumb: bool,
}

impl Checker for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> afterimage_explore::Result<Observation> {
        let mut byte = [0];
        disks[0].read_at(&mut byte, 0).expect("inside the disk");
        Ok(match byte[0] {
            n if n > 0 && !self.is_dumb => Observation::Named { state: format!("t{n}") },
            _ => Observation::Sound,
        })
    }
}

#[test]
fn silence_is_no_answer_of_a_check_that_names_states() {
    // Acknowledged, and never flushed.
    let mut tape = Tape::new();
    tape.mark("begin");
    tape.write(0, 1, 1);
    tape.mark("t1");
    tape.mark("end");
    for is_dumb in [false, true] {
        let cat = |_worker: usize| -> afterimage_explore::Result<Vec<Box<dyn Checker>>> {
            Ok(vec![Box::new(Cat { is_dumb })])
        };
        let subject = subject(&tape.recording, Picking::Rounds);
        let stop = AtomicBool::new(false);
        let found = campaign::run(&subject, &limits(9, 2), &cat, Progress::default(), &stop, &mut |_| ());
        let found = found.expect("a result");
        assert_eq!((found.tally.states(), found.tally.lost), (2, u64::from(!is_dumb)), "{is_dumb}");
        for failure in &found.failures {
            let what = failure.verdict.problem.as_ref().map(|problem| problem.what.as_str());
            assert_eq!(what, Some("the check names no state; t1 must be there"));
            // Who repeats it knows that, too.
            let mut evaluator = runner::evaluator(&subject, &cat).expect("checkers");
            let (cut, crash) = (failure.cut_event, failure.crash_event);
            let again = campaign::again(&subject, &mut evaluator, cut, crash, &failure.choice);
            assert_eq!(again.expect("a verdict"), failure.verdict);
        }
    }
}

#[test]
fn what_would_prove_nothing_is_refused() {
    let recording = Tape::bank(None, 0);
    let refused = |change: fn(&mut Setup)| {
        let mut setup = setup(&recording, Picking::Rounds);
        change(&mut setup);
        matches!(setup.subject(&recording), Err(ExploreError::Usage(_)))
    };
    assert!(!refused(|_| ()));
    assert!(refused(|setup| setup.level = Level::Log), "there is no log");
    assert!(refused(|setup| setup.layer = Layer::Guest), "there is no such layer");
    assert!(refused(|setup| setup.model = afterimage_explore::model::Model::Prefix), "nothing orders files");
    assert!(refused(|setup| setup.atomic_bytes = 1000));
}

#[test]
fn a_recovery_that_panics_refuses_the_state() {
    let media = (0..2).map(|medium| Image::digested(medium, Arc::new(Sparse::new(BYTES)))).collect();
    let options = RecoveryOptions {
        configure: Some(Arc::new(|_| panic!("no such page"))),
        ..RecoveryOptions::default()
    };
    let refused = recover(media, true, &options).expect_err("a panic");
    assert!(refused.to_string().contains("no such page"), "{refused}");
}
