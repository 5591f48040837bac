//! The transactions that the real `sqlite3` runs in the guest.
//!
//! ```text
//!   BEGIN ─► move an amount between two accounts, note it as move n ─► COMMIT ─► report n to the host
//! ```
//!
//! The report is the output of the statement after COMMIT: `sqlite3 -bail` runs it only when COMMIT has succeeded,
//! so a number that the host has seen is a committed transaction. `synchronous=EXTRA` because with FULL a
//! rollback-journal commit is not durable until the directory is (SQLite's documentation of that pragma).

use std::fmt::Write as _;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

/// Accounts in the bank.
pub const ACCOUNTS: u32 = 100;
/// What each holds at first.
pub const OPENING_BALANCE: u32 = 1000;

/// How SQLite commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Journal {
    /// A write-ahead log.
    Wal = 0,
    /// A rollback journal, deleted at commit.
    Rollback = 1,
}

impl Journal {
    /// Both, each at its own number.
    pub const ALL: [Journal; 2] = [Journal::Wal, Journal::Rollback];

    /// The name in reports and of the folder in the guest.
    pub fn name(self) -> &'static str {
        match self {
            Journal::Wal => "wal",
            Journal::Rollback => "rollback",
        }
    }

    fn pragma(self) -> &'static str {
        match self {
            Journal::Wal => "wal",
            Journal::Rollback => "delete",
        }
    }
}

/// The script of `count` transactions.
///
/// Each reports `{"sqlite":"commit","mode":…,"n":…,"ms":…}`; `ms` is the guest's wall clock in milliseconds, read
/// after the commit.
pub fn transactions(journal: Journal, count: u32, rng: &mut ChaCha8Rng) -> String {
    let mut sql = format!(
        // The first pragma answers; only reports may go where reports go.
        ".bail on\n.output /dev/null\nPRAGMA journal_mode={};\n.output\nPRAGMA synchronous=EXTRA;\n\
         CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);\n\
         CREATE TABLE moves(id INTEGER PRIMARY KEY, payer INTEGER, payee INTEGER, amount INTEGER);\n\
         INSERT INTO accounts SELECT value, {OPENING_BALANCE} FROM generate_series(1, {ACCOUNTS});\n",
        journal.pragma()
    );
    for n in 1..=count {
        let payer = rng.random_range(1..=ACCOUNTS);
        let payee = rng.random_range(1..=ACCOUNTS);
        let amount = rng.random_range(1..=50u32);
        // Writing to a string does not fail.
        let _ = writeln!(
            sql,
            "BEGIN IMMEDIATE; UPDATE accounts SET balance=balance-{amount} WHERE id={payer}; \
             UPDATE accounts SET balance=balance+{amount} WHERE id={payee}; \
             INSERT INTO moves VALUES({n},{payer},{payee},{amount}); COMMIT; \
             SELECT '{{\"sqlite\":\"commit\",\"mode\":\"{}\",\"n\":{n},\"ms\":' \
             || CAST((julianday('now')-2440587.5)*86400000 AS INTEGER) || '}}';",
            journal.name()
        );
    }
    sql
}

/// One statement that reports the state of a recovered database: integrity, rows, newest transaction, the sum of
/// all balances, and how many accounts do not hold what the noted moves explain.
pub fn state(journal: Journal) -> String {
    format!(
        "SELECT json_object('demo','sqlite','mode','{}',\
         'integrity',(SELECT group_concat(integrity_check,'; ') FROM pragma_integrity_check),\
         'rows',(SELECT count(*) FROM moves),'newest',(SELECT ifnull(max(id),0) FROM moves),\
         'sum',(SELECT ifnull(sum(balance),0) FROM accounts),\
         'unexplained',(SELECT count(*) FROM accounts a WHERE balance <> {OPENING_BALANCE}\
         -(SELECT ifnull(sum(amount),0) FROM moves WHERE payer=a.id)\
         +(SELECT ifnull(sum(amount),0) FROM moves WHERE payee=a.id)));",
        journal.name()
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use rand::SeedableRng as _;

    use super::*;
    use crate::channel::Arrival;
    use crate::demo::heard::{Demo, Line, Sqlite};

    fn read(line: &str) -> Line {
        Line::read(&Arrival { at_ns: 0, line: line.to_owned() }).unwrap()
    }

    fn sqlite(database: &str, script: &str) -> String {
        let mut child = Command::new("sqlite3")
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_real_program_runs_and_explains_it() {
        let folder = tempfile::tempdir().unwrap();
        for journal in Journal::ALL {
            let database = folder.path().join(journal.name()).to_string_lossy().into_owned();
            let script = transactions(journal, 20, &mut ChaCha8Rng::seed_from_u64(1));
            let said = sqlite(&database, &script);
            let commits: Vec<Line> = said.lines().map(read).collect();
            let numbers = commits.iter().map(|line| match line {
                Line::Sqlite(Sqlite::Commit { mode, n, .. }) if *mode == journal => *n,
                other => panic!("{other:?}"),
            });
            assert_eq!(numbers.collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
            let told = |wrong: u64, more: u64| {
                let sum = u64::from(ACCOUNTS * OPENING_BALANCE) + more;
                let (integrity, rows, newest) = ("ok".to_owned(), 20, 20);
                Line::Demo(Demo::Sqlite { mode: journal, integrity, rows, newest, sum, unexplained: wrong })
            };
            assert_eq!(read(sqlite(&database, &state(journal)).trim_end()), told(0, 0));
            sqlite(&database, "UPDATE accounts SET balance=balance+1 WHERE id=1;");
            assert_eq!(read(sqlite(&database, &state(journal)).trim_end()), told(1, 1));
        }
    }

    #[test]
    fn a_seed_is_a_script() {
        let script = |seed| transactions(Journal::Wal, 5, &mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(script(3), script(3));
        assert_ne!(script(3), script(4));
    }
}
