//! What the guest told the host before it died: every acknowledgement, with the guest's own clock.
//!
//! ```text
//!   guest:  called ─► (flush reaches the daemon, is acknowledged) ─► sent ─► host: arrived
//! ```
//!
//! The daemon's own acknowledgement lies between `called` and `sent`, so both are kept: what can be *proved* about
//! a window uses the one that favours the daemon, what is *shown* uses the other.
//!
//! The order of lines in the channel needs no clock at all: a worker begins its next piece of work only after its
//! report is in the channel. So when a line comes before a worker's previous line, what the earlier line reports
//! was acknowledged before that worker's next write was even begun.

use std::collections::BTreeMap;

use afterimage_protocol::report::Agent;

use super::heard::{Demo, Line, Sqlite};
use super::sql::Journal;
use crate::channel::Arrival;
use crate::error::Result;

/// One acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The record's or transaction's number.
    pub number: u64,
    /// When the guest asked for it to be made safe, or a little earlier; guest clock, nanoseconds.
    pub called_ns: u64,
    /// When the guest knew that it is safe; guest clock, nanoseconds.
    pub sent_ns: u64,
    /// The line of the channel that said so.
    pub line: usize,
    /// The line with which the same worker reported what it did before; this one was begun after that.
    pub begun_after: Option<usize>,
}

/// One workload's acknowledgements in the order of arrival. Times of different workloads are of different clocks.
#[derive(Clone, Debug)]
pub struct Stream {
    /// `records`, `sqlite wal`, `sqlite rollback`
    pub name: String,
    /// What was acknowledged.
    pub acks: Vec<Ack>,
}

/// Everything a guest acknowledged.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// One per workload.
    pub streams: Vec<Stream>,
    /// Rounds of postmark that were completed.
    pub postmark_rounds: u64,
    /// Programs that ended though they should not have.
    pub ended: Vec<String>,
}

/// The resolution of SQLite's clock, in nanoseconds.
pub const RESOLUTION_NS: u64 = 1_000_000;

impl Ledger {
    /// Reads a channel's lines. Acknowledgements that arrived at or after `cut_ns` (CLOCK_MONOTONIC) do not count:
    /// whether they were made before the power went can not be known.
    ///
    /// # Errors
    /// A line cannot be read: what it acknowledged would be missed by nobody.
    pub fn read(lines: &[Arrival], cut_ns: Option<u64>) -> Result<Ledger> {
        let stream = |name: String| Stream { name, acks: Vec::new() };
        let mut records = stream("records".to_owned());
        let mut banks: Vec<Stream> =
            Journal::ALL.iter().map(|journal| stream(format!("sqlite {}", journal.name()))).collect();
        let mut postmark_rounds = 0;
        let mut ended = Vec::new();
        let mut last_line_of_thread = BTreeMap::new();
        for (line, arrival) in lines.iter().enumerate() {
            if cut_ns.is_some_and(|cut_ns| arrival.at_ns >= cut_ns) {
                break;
            }
            match Line::read(arrival)? {
                Line::Agent(Agent::Ack(ack)) => records.acks.push(Ack {
                    number: ack.n,
                    called_ns: ack.ns.saturating_sub(ack.fsync_ns),
                    sent_ns: ack.ns,
                    line,
                    begun_after: last_line_of_thread.insert(ack.thread, line),
                }),
                Line::Sqlite(Sqlite::Commit { mode, n, ms }) => {
                    let acks = &mut banks[mode as usize].acks;
                    // A transaction begins after its predecessor was reported; the clock has whole milliseconds.
                    let before = acks.last().copied();
                    acks.push(Ack {
                        number: n,
                        called_ns: before.map_or(0, |before: Ack| before.sent_ns),
                        sent_ns: ms * 1_000_000,
                        line,
                        begun_after: before.map(|before| before.line),
                    });
                }
                Line::Demo(Demo::PostmarkRound {}) => postmark_rounds += 1,
                Line::Demo(Demo::Ended { what }) => ended.push(what),
                _ => {}
            }
        }
        let mut streams = vec![records];
        streams.append(&mut banks);
        Ok(Ledger { streams, postmark_rounds, ended })
    }

    /// What was acknowledged, in one line.
    pub fn summary(&self) -> String {
        let parts: Vec<String> =
            self.streams.iter().map(|stream| format!("{} {}", stream.acks.len(), stream.name)).collect();
        format!("{}; postmark rounds: {}", parts.join(", "), self.postmark_rounds)
    }
}

/// Counts, line by line, whether a guest has done enough to be killed.
#[derive(Debug, Default)]
pub struct Gauge {
    records: u64,
    commits: [u64; 2],
    ended: Option<String>,
}

impl Gauge {
    /// Takes one line.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn add(&mut self, arrival: &Arrival) -> Result<()> {
        match Line::read(arrival)? {
            Line::Agent(Agent::Ack(_)) => self.records += 1,
            Line::Sqlite(Sqlite::Commit { mode, .. }) => self.commits[mode as usize] += 1,
            Line::Demo(Demo::Ended { what }) => self.ended = Some(what),
            _ => {}
        }
        Ok(())
    }

    /// Whether there are that many records, and commits in each mode.
    pub fn reached(&self, records: u64, commits: u64) -> bool {
        self.records >= records && self.commits.iter().all(|count| *count >= commits)
    }

    /// A program that ended though it should not have.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_after_the_cut_do_not_count() {
        let at = |ms: u64, line: &str| Arrival { at_ns: ms * 1_000_000, line: line.to_owned() };
        let lines = [
            at(1, r#"{"agent":"ack","n":1,"thread":0,"slot":0,"floor":0,"ns":5000,"fsync_ns":2000}"#),
            at(2, r#"{"guest":"ready"}"#),
            at(3, r#"{"sqlite":"commit","mode":"wal","n":1,"ms":1000}"#),
            at(4, r#"{"sqlite":"commit","mode":"wal","n":2,"ms":1007}"#),
            at(9, r#"{"agent":"ack","n":2,"thread":0,"slot":1,"floor":1,"ns":9000,"fsync_ns":1000}"#),
        ];
        let all = Ledger::read(&lines, None).unwrap();
        assert_eq!(all.streams.iter().map(|s| s.acks.len()).collect::<Vec<_>>(), [2, 2, 0]);
        assert_eq!(all.streams[0].acks[0].called_ns, 3000);
        assert_eq!(all.streams[1].acks[1].called_ns, 1_000_000_000);
        assert_eq!(all.streams[0].acks[1].begun_after, Some(0));
        assert_eq!((all.streams[1].acks[0].begun_after, all.streams[1].acks[1].begun_after), (None, Some(2)));
        let before = Ledger::read(&lines, Some(9_000_000)).unwrap();
        assert_eq!(before.streams[0].acks.len(), 1);
        let mut gauge = Gauge::default();
        lines.iter().for_each(|line| gauge.add(line).unwrap());
        assert!(!gauge.reached(2, 1));
        gauge.add(&at(10, r#"{"sqlite":"commit","mode":"rollback","n":1,"ms":1}"#)).unwrap();
        assert!(gauge.reached(2, 1));
        // What is said in the middle is never nothing.
        for bad in ["wal", r#"{"agent":"ack","n":3,"thr"#, r#"{"sqlite":"commit","mode":"wal","n":3}"#] {
            let mut lines = lines.to_vec();
            lines.insert(3, at(3, bad));
            assert!(Ledger::read(&lines, None).is_err() && gauge.add(&lines[3]).is_err(), "{bad}");
        }
    }
}
