//! What the demo's scripts and the real `sqlite3` report.

use afterimage_protocol::report::{Agent, Latencies};
use serde::Deserialize;

use super::report::Traffic;
use super::sql::Journal;
use crate::channel::Arrival;
use crate::error::{LabError, Result};
use crate::guest;

/// What the shell around the programs reports.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "demo", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Demo {
    /// The disk is mounted.
    Mounted {
        /// Its journal had something to replay.
        needed_replay: bool,
    },
    /// It can not be.
    NotMounted {},
    /// The state of a recovered database.
    Sqlite {
        /// Which.
        mode: Journal,
        /// `PRAGMA integrity_check`: `ok` or what is wrong.
        integrity: String,
        /// Transactions that are there.
        rows: u64,
        /// The newest one's number.
        newest: u64,
        /// The sum of all balances.
        sum: u64,
        /// Accounts whose balance the transactions do not explain.
        unexplained: u64,
    },
    /// `e2fsck -fn` after the replay.
    E2fsck {
        /// Its exit status.
        code: i64,
    },
    /// postmark on the recovered file system.
    PostmarkAfter {
        /// Its exit status, or that of the unmount after it.
        code: i64,
    },
    /// A round of postmark is complete.
    PostmarkRound {},
    /// A program ended though it should not have.
    Ended {
        /// Which.
        what: String,
    },
    /// What the guest's kernel has sent so far.
    Disk {
        /// The moment.
        at: String,
        /// Write requests.
        writes: u64,
        /// 512 bytes each.
        sectors: u64,
        /// Flushes.
        flushes: u64,
    },
    /// The guest's clock.
    Clock {
        /// The moment.
        at: String,
        /// Seconds since its boot.
        s: f64,
    },
}

/// What `sqlite3` reports while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "sqlite", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Sqlite {
    /// A transaction is committed.
    Commit {
        /// In which database.
        mode: Journal,
        /// Its number.
        n: u64,
        /// The guest's wall clock after the commit, in milliseconds.
        ms: u64,
    },
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The agent's.
    Agent(Agent),
    /// A script's.
    Demo(Demo),
    /// A database's.
    Sqlite(Sqlite),
    /// About the guest.
    Guest(guest::Said),
}

impl Line {
    /// Reads a line. Nobody else speaks here.
    ///
    /// # Errors
    /// It is not exactly one of these.
    pub fn read(arrival: &Arrival) -> Result<Line> {
        if let Some(said) = arrival.agent()? {
            return Ok(Line::Agent(said));
        }
        if let Some(said) = arrival.report("demo")? {
            return Ok(Line::Demo(said));
        }
        if let Some(said) = arrival.report("sqlite")? {
            return Ok(Line::Sqlite(said));
        }
        let said = arrival.report("guest")?.map(Line::Guest);
        said.ok_or_else(|| {
            LabError::Guest(format!("nobody says this in the demo's guests: {}", arrival.line))
        })
    }
}

/// A measuring guest's reports.
#[derive(Debug)]
pub struct Heard<'a> {
    lines: Vec<Line>,
    title: &'a str,
}

impl<'a> Heard<'a> {
    /// Reads them; `title` says whose, for errors.
    ///
    /// # Errors
    /// As [`Line::read`].
    pub fn read(lines: &[Arrival], title: &'a str) -> Result<Heard<'a>> {
        Ok(Heard { lines: lines.iter().map(Line::read).collect::<Result<_>>()?, title })
    }

    fn find<T>(&self, what: &str, wanted: impl Fn(&Line) -> Option<T>) -> Result<T> {
        let found = self.lines.iter().find_map(wanted);
        found.ok_or_else(|| LabError::Guest(format!("the guest on {} did not report {what}", self.title)))
    }

    /// What the guest's kernel had sent at a moment.
    ///
    /// # Errors
    /// It was not reported.
    pub fn disk(&self, moment: &str) -> Result<Traffic> {
        self.find(moment, |line| match line {
            Line::Demo(Demo::Disk { at, writes, sectors, flushes }) if at == moment => {
                Some(Traffic { writes: *writes, bytes: sectors * 512, flushes: *flushes })
            }
            _ => None,
        })
    }

    /// The guest's clock at a moment, in seconds.
    ///
    /// # Errors
    /// As [`Heard::disk`].
    pub fn clock(&self, moment: &str) -> Result<f64> {
        self.find(moment, |line| match line {
            Line::Demo(Demo::Clock { at, s }) if at == moment => Some(*s),
            _ => None,
        })
    }

    /// How long one of the agent's micro-benchmarks took, in seconds.
    ///
    /// # Errors
    /// As [`Heard::disk`].
    pub fn micro_s(&self, name: &str) -> Result<f64> {
        self.find(name, |line| match line {
            Line::Agent(Agent::Micro(micro)) if micro.name == name => Some(micro.elapsed_ns as f64 / 1e9),
            _ => None,
        })
    }

    /// Each fsync of `fsync-bench`.
    ///
    /// # Errors
    /// As [`Heard::disk`].
    pub fn fsync(&self) -> Result<Latencies> {
        self.find("fsync-bench", |line| match line {
            Line::Agent(Agent::FsyncBench(bench)) => Some(bench.fsync),
            _ => None,
        })
    }
}
