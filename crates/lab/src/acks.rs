//! What a guest was promised, against what is left of it.
//!
//! ```text
//!   report channel ─► Ledger: every acknowledged record ─┐
//!   `agent verify` after recovery ─► Remains ────────────┴─► Verdict: lost, torn, out of order, over how long
//! ```
//!
//! How a window is judged. A record is acknowledged in the daemon between the guest's call of fsync and its
//! return. If the oldest lost record's fsync had returned at `a`, and the newest lost one's was called at `b`,
//! then the daemon acknowledged flushes at least `b - a` apart, all of which the cut took: more than the
//! window is a broken promise, whatever the scheduling did to the guest. No slack is needed, and none given.

use std::collections::BTreeMap;

pub use afterimage_protocol::report::Ack;
use afterimage_protocol::report::Agent;
use serde::{Deserialize, Serialize};

use crate::channel::{Arrival, Channel};
use crate::error::{LabError, Result};

/// Everything that was acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// In the order of arrival.
    pub acks: Vec<Ack>,
}

impl Ledger {
    /// Reads the acknowledgements out of a guest's channel. Of a guest whose power was cut, those that arrived
    /// after the cut count too: the flush had been acknowledged before.
    ///
    /// # Errors
    /// A line cannot be read: what it acknowledged would be missed by nobody.
    pub fn of(channel: &Channel) -> Result<Ledger> {
        Ledger::read(&channel.lines())
    }

    /// The same from lines.
    ///
    /// # Errors
    /// As [`Ledger::of`].
    pub fn read(lines: &[Arrival]) -> Result<Ledger> {
        let mut ledger = Ledger::default();
        for line in lines {
            if let Some(Agent::Ack(ack)) = line.agent()? {
                ledger.acks.push(ack);
            }
        }
        Ok(ledger)
    }

    /// Two parts of one life, in order.
    pub fn of_both(mut before: Ledger, after: Ledger) -> Ledger {
        before.acks.extend(after.acks);
        before
    }

    /// The fsync latency that this many of 1000 fsyncs did not exceed, in microseconds.
    pub fn fsync_us(&self, per_mille: usize) -> f64 {
        let mut all: Vec<u64> = self.acks.iter().map(|ack| ack.fsync_ns).collect();
        all.sort_unstable();
        all.get((all.len().saturating_sub(1) * per_mille) / 1000).map_or(0.0, |ns| *ns as f64 / 1000.0)
    }
}

/// What `agent verify` found.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// Per file and slot, the number of the intact record there.
    pub present: BTreeMap<(u32, u64), u64>,
    /// Slots that hold something that is neither whole nor empty.
    pub torn: Vec<(u32, u64)>,
    /// Records that are there though one acknowledged before they were written is not, as the agent counts them.
    pub order_violations: u64,
}

impl Remains {
    /// Reads the verification out of a guest's channel.
    ///
    /// # Errors
    /// The agent has not reported to its end.
    pub fn of(channel: &Channel) -> Result<Remains> {
        Remains::read(&channel.lines())
    }

    /// The same from lines.
    ///
    /// # Errors
    /// As [`Remains::of`]; or a line cannot be read.
    pub fn read(lines: &[Arrival]) -> Result<Remains> {
        let mut remains = Remains::default();
        let mut complete = false;
        for line in lines {
            match line.agent()? {
                Some(Agent::VerifyFile(file)) => {
                    remains.present.extend(file.records().map(|(slot, n)| ((file.thread, slot), n)));
                    remains.torn.extend(file.torn.iter().map(|slot| (file.thread, *slot)));
                }
                Some(Agent::Verify(end)) => {
                    remains.order_violations = end.order_violations;
                    complete = true;
                }
                _ => {}
            }
        }
        if complete {
            Ok(remains)
        } else {
            Err(LabError::Guest("the guest did not finish its verification".to_owned()))
        }
    }
}

/// What the contract allows to be missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowance {
    /// Nothing.
    Nothing,
    /// The last window of acknowledgements.
    Window {
        /// How long it is.
        window_ms: f64,
    },
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Records that were acknowledged.
    pub acknowledged: u64,
    /// Of these, how many are not there.
    pub lost: u64,
    /// The first few of them.
    pub lost_first: Vec<u64>,
    /// Between the first and the last lost acknowledgement as the guest saw them, in milliseconds.
    pub lost_span_ms: f64,
    /// What of that is certain (see the module), in milliseconds.
    pub lost_span_certain_ms: f64,
    /// Slots torn where a record had been acknowledged and nothing was being written.
    pub torn: u64,
    /// Records present without one that they must not be without.
    pub order_violations: u64,
    /// Records present that were never acknowledged: in flight at the end. Not a fault.
    pub unacknowledged_present: u64,
}

impl Verdict {
    /// Compares.
    pub fn new(ledger: &Ledger, remains: &Remains) -> Verdict {
        let mut verdict = Verdict { acknowledged: ledger.acks.len() as u64, ..Verdict::default() };
        // In a ring a slot's newest record covers the older ones.
        let mut newest: BTreeMap<(u32, u64), &Ack> = BTreeMap::new();
        let mut last_of_thread: BTreeMap<u32, &Ack> = BTreeMap::new();
        let mut floors: BTreeMap<u64, u64> = BTreeMap::new();
        for ack in &ledger.acks {
            floors.insert(ack.n, ack.floor);
            newest.insert((ack.thread, ack.slot), ack);
            last_of_thread.insert(ack.thread, ack);
        }
        // A slot that a thread may have been overwriting at the end: the one after its last, or the first again.
        let in_flight = |thread: u32, slot: u64| {
            last_of_thread
                .get(&thread)
                .is_none_or(|last| slot == last.slot + 1 || (slot == 0 && last.slot > 0))
        };
        let mut lost: Vec<&Ack> = Vec::new();
        for ((thread, slot), ack) in &newest {
            let is_there = remains.present.get(&(*thread, *slot)).is_some_and(|n| *n >= ack.n);
            let overwriting = remains.torn.contains(&(*thread, *slot)) && in_flight(*thread, *slot);
            if !is_there && !overwriting {
                lost.push(ack);
            }
        }
        lost.sort_by_key(|ack| ack.n);
        verdict.lost = lost.len() as u64;
        verdict.lost_first = lost.iter().take(10).map(|ack| ack.n).collect();
        if let (Some(first), Some(last)) =
            (lost.iter().min_by_key(|ack| ack.ns), lost.iter().max_by_key(|ack| ack.ns - ack.fsync_ns))
        {
            let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
            verdict.lost_span_ms = ms(first.ns, last.ns);
            verdict.lost_span_certain_ms = ms(first.ns, last.ns - last.fsync_ns);
        }
        verdict.torn = remains
            .torn
            .iter()
            .filter(|place| newest.contains_key(*place) && !in_flight(place.0, place.1))
            .count() as u64;
        let floor_kept = remains.present.values().filter_map(|n| floors.get(n)).max().copied().unwrap_or(0);
        let below = lost.iter().filter(|ack| ack.n <= floor_kept).count() as u64;
        verdict.order_violations = below.max(remains.order_violations);
        verdict.unacknowledged_present =
            remains.present.values().filter(|n| !floors.contains_key(n)).count() as u64;
        verdict
    }

    /// Which promise is broken, if one is.
    ///
    /// # Errors
    /// [`LabError::Broken`] with the sentence.
    pub fn check(&self, allowance: Allowance) -> Result<()> {
        let mut broken = Vec::new();
        match allowance {
            Allowance::Nothing if self.lost > 0 => broken.push(format!(
                "{} of {} acknowledged records are lost, and none may be (first: {:?})",
                self.lost, self.acknowledged, self.lost_first
            )),
            Allowance::Window { window_ms } if self.lost_span_certain_ms > window_ms => broken.push(format!(
                "{} acknowledged records over {:.1} ms are lost, and the window is {window_ms} ms",
                self.lost, self.lost_span_certain_ms
            )),
            _ => {}
        }
        if self.torn > 0 {
            broken.push(format!("{} acknowledged records are torn", self.torn));
        }
        if self.order_violations > 0 {
            broken.push(format!(
                "{} records are missing that had been acknowledged before others that are there were written: this is no prefix",
                self.order_violations
            ));
        }
        if broken.is_empty() {
            Ok(())
        } else {
            Err(LabError::Broken(broken.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(count: u64) -> Ledger {
        let ms = 1_000_000;
        let acks = (1..=count)
            .map(|n| Ack { n, thread: 0, slot: n - 1, floor: n - 1, ns: n * 10 * ms, fsync_ns: ms })
            .collect();
        Ledger { acks }
    }

    fn remains(numbers: impl IntoIterator<Item = u64>) -> Remains {
        Remains { present: numbers.into_iter().map(|n| ((0, n - 1), n)).collect(), ..Remains::default() }
    }

    fn arrivals(lines: &[&str]) -> Vec<Arrival> {
        lines.iter().map(|line| Arrival { at_ns: 0, line: (*line).to_owned() }).collect()
    }

    const ACK: &str = r#"{"agent":"ack","n":1,"thread":0,"slot":0,"floor":0,"ns":5,"fsync_ns":2}"#;
    const FILE: &str = r#"{"agent":"verify-file","thread":0,"size":4096,"bytes":8192,"empty":0,"present":[[0,1,1]],"torn":[1]}"#;
    const END: &str = r#"{"agent":"verify","files":1,"intact":1,"torn":1,"order_violations":2,"shown":[]}"#;

    #[test]
    fn what_a_guest_says_is_read_exactly() {
        let lines = [r#"{"guest":"ready"}"#, ACK];
        assert_eq!(Ledger::read(&arrivals(&lines)).unwrap().acks.len(), 1);
        let left = Remains::read(&arrivals(&[FILE, END])).unwrap();
        assert_eq!((left.present[&(0, 0)], &left.torn[..], left.order_violations), (1, &[(0, 1)][..], 2));
    }

    #[test]
    fn what_cannot_be_read_is_not_nothing() {
        for bad in [
            // In the middle of a stream nothing may be cut short, and nobody else's words may come between.
            &ACK[..30],
            "wal",
            "",
            &ACK.replace("\"n\"", "\"number\""),
            &ACK.replace("\"n\":1", "\"n\":1,\"lost\":1"),
            &ACK.replace("\"ack\"", "\"acknowledged\""),
        ] {
            assert!(Ledger::read(&arrivals(&[ACK, bad, ACK])).is_err(), "{bad}");
        }
        for (file, end) in [
            (FILE.replace("present", "intact"), END.to_owned()),
            (FILE.replace("torn", "damaged"), END.to_owned()),
            (FILE.replace("[[0,1,1]]", "[[0,1]]"), END.to_owned()),
            (FILE.to_owned(), END.replace("order_violations", "violations")),
            (FILE.to_owned(), END.replace("\"verify\"", "\"verified\"")),
        ] {
            assert!(Remains::read(&arrivals(&[&file, &end])).is_err(), "{file} {end}");
        }
        assert!(Remains::read(&arrivals(&[FILE])).is_err(), "it has not come to its end");
    }

    #[test]
    fn all_there_is_fine() {
        let verdict = Verdict::new(&ledger(10), &remains(1..=11));
        assert_eq!((verdict.lost, verdict.unacknowledged_present), (0, 1));
        verdict.check(Allowance::Nothing).unwrap();
    }

    #[test]
    fn a_lost_tail_is_judged_by_its_length() {
        let verdict = Verdict::new(&ledger(10), &remains(1..=6));
        assert_eq!(verdict.lost, 4);
        assert!(
            (verdict.lost_span_ms - 30.0).abs() < 1e-9 && (verdict.lost_span_certain_ms - 29.0).abs() < 1e-9
        );
        assert!(verdict.check(Allowance::Nothing).is_err());
        verdict.check(Allowance::Window { window_ms: 50.0 }).unwrap();
        assert!(verdict.check(Allowance::Window { window_ms: 20.0 }).is_err());
    }

    #[test]
    fn a_gap_is_never_fine() {
        let verdict = Verdict::new(&ledger(10), &remains((1..=10).filter(|n| *n != 5)));
        assert_eq!((verdict.lost, verdict.order_violations), (1, 1));
        assert!(verdict.check(Allowance::Window { window_ms: 1e9 }).is_err());
    }

    #[test]
    fn a_torn_record_is_fine_only_where_one_was_being_written() {
        let mut left = remains(1..=10);
        left.torn.push((0, 10));
        Verdict::new(&ledger(10), &left).check(Allowance::Nothing).unwrap();
        left.present.remove(&(0, 4));
        left.torn.push((0, 4));
        assert!(Verdict::new(&ledger(10), &left).check(Allowance::Window { window_ms: 1e9 }).is_err());
    }

    #[test]
    fn in_a_ring_the_newest_record_counts() {
        let mut ring = ledger(6);
        for ack in &mut ring.acks {
            ack.slot = (ack.n - 1) % 3;
        }
        let kept = Remains { present: [((0, 0), 4), ((0, 1), 5), ((0, 2), 6)].into(), ..Remains::default() };
        Verdict::new(&ring, &kept).check(Allowance::Nothing).unwrap();
        let stale = Remains { present: [((0, 0), 4), ((0, 1), 2), ((0, 2), 6)].into(), ..Remains::default() };
        let verdict = Verdict::new(&ring, &stale);
        assert_eq!((verdict.lost, verdict.order_violations), (1, 1));
    }
}
