//! What was acknowledged, against what is there, under what the contract allows.
//!
//! ```text
//!   ledger ──┐
//!            ├─► lost, and over how much time ─► allowance ─► checks
//!   survivors┘
//! ```
//!
//! A window is judged by what can be proved: the daemon acknowledged the newest flush not before the guest called
//! for it, and the oldest lost one not after the guest said so. If even that is more than the window, the promise
//! is broken, whatever the scheduling. What is shown beside it is the time between the guest's two reports.

use std::collections::BTreeSet;

use super::ledger::{Ack, Ledger, Stream, RESOLUTION_NS};
use super::plan::Allowance;
use super::report::{Check, StreamReport};
use super::sql::Journal;
use super::survivors::Survivors;

/// So many lost numbers are spelled out.
const LOST_SHOWN_MAX: usize = 20;

/// A stream's losses.
struct Losses<'a> {
    stream: &'a Stream,
    lost: Vec<Ack>,
    survived: Vec<Ack>,
}

impl Losses<'_> {
    fn report(&self) -> StreamReport {
        let newest = self.stream.acks.iter().max_by_key(|ack| ack.sent_ns);
        let newest_call_ns = self.stream.acks.iter().map(|ack| ack.called_ns).max().unwrap_or(0);
        let oldest_lost = self.lost.iter().min_by_key(|ack| ack.sent_ns);
        let (shown_ns, proved_ns) = match (newest, oldest_lost) {
            (Some(newest), Some(oldest)) => (
                newest.sent_ns - oldest.sent_ns,
                newest_call_ns.saturating_sub(oldest.sent_ns + RESOLUTION_NS),
            ),
            _ => (0, 0),
        };
        StreamReport {
            name: self.stream.name.clone(),
            acknowledged: self.stream.acks.len() as u64,
            lost: self.lost.len() as u64,
            lost_numbers: self.lost.iter().take(LOST_SHOWN_MAX).map(|ack| ack.number).collect(),
            lost_ms: shown_ns as f64 / 1e6,
            lost_ms_proved: proved_ns as f64 / 1e6,
        }
    }
}

fn losses<'a>(stream: &'a Stream, present: &dyn Fn(u64) -> bool) -> Losses<'a> {
    let (survived, lost) = stream.acks.iter().copied().partition(|ack| present(ack.number));
    Losses { stream, lost, survived }
}

/// Compares. The streams come back in the ledger's order.
pub fn judge(ledger: &Ledger, found: &Survivors, allowance: Allowance) -> (Vec<StreamReport>, Vec<Check>) {
    let mut checks = vec![file_system(found)];
    let none = BTreeSet::new();
    let records = found.records.as_ref().unwrap_or(&none);
    let mut all = Vec::new();
    for (at, stream) in ledger.streams.iter().enumerate() {
        all.push(if at == 0 {
            losses(stream, &|number| records.contains(&number))
        } else {
            let newest = found.banks[at - 1].as_ref().map_or(0, |bank| bank.newest);
            losses(stream, &|number| number <= newest)
        });
    }
    for losses in &all {
        checks.push(loss(losses, allowance));
    }
    for (journal, bank) in Journal::ALL.into_iter().zip(&found.banks) {
        let promise = format!("SQLite ({}) is whole: integrity_check, sums, no gaps", journal.name());
        checks.push(match bank {
            None => Check::new(promise, false, "sqlite3 could not read the database; see the guest's output"),
            Some(bank) => match bank.fault() {
                Some(fault) => Check::new(promise, false, fault),
                None => Check::new(promise, true, format!("{} transactions", bank.rows)),
            },
        });
    }
    checks.push(order(found, &all));
    let promise = "the recovered file system works: postmark runs on it";
    checks.push(match found.postmark {
        Some(0) => Check::new(promise, true, "it does"),
        Some(code) => Check::new(promise, false, format!("postmark or umount ended with status {code}")),
        None => Check::new(promise, false, "the guest did not get so far"),
    });
    (all.iter().map(Losses::report).collect(), checks)
}

fn file_system(found: &Survivors) -> Check {
    let promise = "the journal is replayed by mount, and e2fsck -fn is clean after it";
    match (found.mounted, found.e2fsck) {
        (None, _) => Check::new(promise, false, "ext4 could not be mounted"),
        (_, None) => Check::new(promise, false, "the guest did not get as far as e2fsck"),
        (_, Some(0)) if found.mounted == Some(true) => Check::new(promise, true, "replayed, clean"),
        (_, Some(0)) => Check::new(promise, true, "clean; the journal had nothing to replay"),
        (_, Some(code)) => Check::new(promise, false, format!("e2fsck -fn ended with status {code}")),
    }
}

fn loss(losses: &Losses<'_>, allowance: Allowance) -> Check {
    let report = losses.report();
    let seen = format!(
        "{} of {} lost, {:.1} ms of acknowledgements (at least {:.1} ms proved)",
        report.lost, report.acknowledged, report.lost_ms, report.lost_ms_proved
    );
    match allowance {
        Allowance::Nothing => Check::new(
            format!("{}: nothing acknowledged is lost", report.name),
            report.lost == 0,
            if report.lost == 0 { format!("0 of {} lost", report.acknowledged) } else { seen },
        ),
        Allowance::Window(window) => {
            let window_ms = window.as_secs_f64() * 1000.0;
            Check::new(
                format!(
                    "{}: at most one window ({window_ms:.0} ms) of acknowledgements is lost",
                    report.name
                ),
                report.lost_ms_proved <= window_ms,
                seen,
            )
        }
    }
}

/// The prefix rule: nothing that is there was begun after something that is lost had been acknowledged. Within the
/// records the agent's own floors say so, between the workloads the order of their reports; neither needs a clock.
fn order(found: &Survivors, all: &[Losses<'_>]) -> Check {
    let promise = "nothing is reordered or torn";
    if found.records.is_none() {
        return Check::new(promise, false, "the records could not be verified");
    }
    if found.torn > 0 || found.order_violations > 0 {
        return Check::new(
            promise,
            false,
            format!(
                "{} records are torn, {} are missing below later ones",
                found.torn, found.order_violations
            ),
        );
    }
    for lost in all {
        let Some(oldest) = lost.lost.iter().min_by_key(|ack| ack.line) else { continue };
        for other in all {
            let overtook =
                other.survived.iter().find(|ack| ack.begun_after.is_some_and(|line| line > oldest.line));
            if let Some(overtook) = overtook {
                return Check::new(
                    promise,
                    false,
                    format!(
                        "{} number {} is lost, though {} number {}, begun after its acknowledgement, is there",
                        lost.stream.name, oldest.number, other.stream.name, overtook.number,
                    ),
                );
            }
        }
    }
    Check::new(promise, true, "no record is torn or overtaken, and no workload overtook another")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::survivors::Bank;
    use super::*;

    /// A worker that reports every 10 ms, in a channel that has a line for each millisecond.
    fn stream(name: &str, first_ms: u64, count: u64) -> Stream {
        let acks = (1..=count)
            .map(|number| Ack {
                number,
                called_ns: (first_ms + number * 10 - 2) * 1_000_000,
                sent_ns: (first_ms + number * 10) * 1_000_000,
                line: (first_ms + number * 10) as usize,
                begun_after: (number > 1).then(|| (first_ms + number * 10 - 10) as usize),
            })
            .collect();
        Stream { name: name.to_owned(), acks }
    }

    fn ledger() -> Ledger {
        Ledger {
            streams: vec![
                stream("records", 0, 20),
                stream("sqlite wal", 3, 20),
                stream("sqlite rollback", 5, 20),
            ],
            postmark_rounds: 1,
            ended: Vec::new(),
        }
    }

    fn survivors(records: u64, wal: u64, rollback: u64) -> Survivors {
        let bank =
            |rows| Bank { integrity: "ok".to_owned(), rows, newest: rows, sum: 100_000, unexplained: 0 };
        Survivors {
            mounted: Some(true),
            records: Some((1..=records).collect()),
            torn: 0,
            order_violations: 0,
            banks: [Some(bank(wal)), Some(bank(rollback))],
            e2fsck: Some(0),
            postmark: Some(0),
        }
    }

    fn broken(found: &Survivors, allowance: Allowance) -> Vec<String> {
        let (_, checks) = judge(&ledger(), found, allowance);
        checks.into_iter().filter(|check| !check.held).map(|check| check.promise).collect()
    }

    const WINDOW: Allowance = Allowance::Window(Duration::from_millis(50));

    #[test]
    fn everything_there_is_fine() {
        assert!(broken(&survivors(20, 20, 20), Allowance::Nothing).is_empty());
        // One more than was heard of: its report was still on its way.
        assert!(broken(&survivors(21, 21, 21), Allowance::Nothing).is_empty());
    }

    #[test]
    fn one_lost_transaction_is_seen() {
        let seen = broken(&survivors(20, 20, 19), Allowance::Nothing);
        assert_eq!(seen, ["sqlite rollback: nothing acknowledged is lost"]);
    }

    #[test]
    fn a_window_may_be_lost_but_not_two() {
        assert!(broken(&survivors(16, 16, 16), WINDOW).is_empty());
        assert_eq!(broken(&survivors(10, 10, 10), WINDOW).len(), 3);
    }

    #[test]
    fn what_was_begun_before_the_lost_acknowledgement_may_be_there() {
        // Record 17 is lost (line 170); transactions 17 (lines 173 and 175) were begun at 163 and 165.
        assert!(broken(&survivors(16, 17, 17), WINDOW).is_empty());
        assert_eq!(broken(&survivors(16, 18, 17), WINDOW), ["nothing is reordered or torn"]);
    }

    #[test]
    fn a_workload_that_overtakes_another_breaks_the_prefix() {
        // Records end at 160 ms, transactions go on to 203 ms.
        let seen = broken(&survivors(16, 20, 20), WINDOW);
        assert_eq!(seen, ["nothing is reordered or torn"]);
    }

    #[test]
    fn the_lost_time_is_measured_from_the_oldest_lost_to_the_newest() {
        let (streams, _) = judge(&ledger(), &survivors(16, 20, 20), WINDOW);
        assert_eq!(streams[0].lost, 4);
        assert_eq!(streams[0].lost_numbers, [17, 18, 19, 20]);
        assert!((streams[0].lost_ms - 30.0).abs() < 1e-9);
        assert!((streams[0].lost_ms_proved - 27.0).abs() < 1e-9);
        assert_eq!((streams[1].lost, streams[1].lost_ms), (0, 0.0));
    }

    #[test]
    fn an_unreadable_disk_breaks_everything() {
        let seen = broken(&Survivors::default(), Allowance::Nothing);
        assert_eq!(seen.len(), 8, "{seen:?}");
    }
}
