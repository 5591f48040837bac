//! What the boot after the death found on the disk.

use std::collections::BTreeSet;

use afterimage_protocol::report::Agent;

use super::heard::{Demo, Line};
use super::sql::{ACCOUNTS, OPENING_BALANCE};
use crate::channel::Arrival;
use crate::error::Result;

/// A recovered database.
#[derive(Clone, Debug)]
pub struct Bank {
    /// `PRAGMA integrity_check`: `ok` or what is wrong.
    pub integrity: String,
    /// Transactions that are there.
    pub rows: u64,
    /// The newest one's number.
    pub newest: u64,
    /// The sum of all balances.
    pub sum: u64,
    /// Accounts whose balance the transactions do not explain.
    pub unexplained: u64,
}

impl Bank {
    /// Why it is not as transactions leave it, if it is not.
    pub fn fault(&self) -> Option<String> {
        let sum = u64::from(ACCOUNTS * OPENING_BALANCE);
        if self.integrity != "ok" {
            Some(format!("integrity_check says: {}", self.integrity))
        } else if self.rows != self.newest {
            Some(format!("{} transactions are there, but the newest is number {}", self.rows, self.newest))
        } else if self.sum != sum || self.unexplained != 0 {
            Some(format!(
                "the balances add up to {} instead of {sum}; {} accounts are not explained by the transactions",
                self.sum, self.unexplained
            ))
        } else {
            None
        }
    }
}

/// Everything found.
#[derive(Clone, Debug, Default)]
pub struct Survivors {
    /// The file system could be mounted; whether its journal had to be replayed.
    pub mounted: Option<bool>,
    /// Numbers of intact records; `None` if the verification did not report.
    pub records: Option<BTreeSet<u64>>,
    /// Records that are neither intact nor absent.
    pub torn: u64,
    /// Records that are absent though a later one, written after their acknowledgement, is there.
    pub order_violations: u64,
    /// The databases, in the order of [`Journal::ALL`]; `None` where SQLite could not read one.
    pub banks: [Option<Bank>; 2],
    /// The exit status of `e2fsck -fn` after the replay.
    pub e2fsck: Option<i64>,
    /// The exit status of postmark on the recovered file system.
    pub postmark: Option<i64>,
}

impl Survivors {
    /// Reads the reports of the examining boot.
    ///
    /// # Errors
    /// A line cannot be read.
    pub fn read(lines: &[Arrival]) -> Result<Survivors> {
        let mut found = Survivors::default();
        let mut numbers = BTreeSet::new();
        for line in lines {
            match Line::read(line)? {
                Line::Agent(Agent::VerifyFile(file)) => numbers.extend(file.records().map(|(_, n)| n)),
                Line::Agent(Agent::Verify(end)) => {
                    found.records = Some(std::mem::take(&mut numbers));
                    found.torn = end.torn;
                    found.order_violations = end.order_violations;
                }
                Line::Demo(Demo::Mounted { needed_replay }) => found.mounted = Some(needed_replay),
                Line::Demo(Demo::Sqlite { mode, integrity, rows, newest, sum, unexplained }) => {
                    found.banks[mode as usize] = Some(Bank { integrity, rows, newest, sum, unexplained });
                }
                Line::Demo(Demo::E2fsck { code }) => found.e2fsck = Some(code),
                Line::Demo(Demo::PostmarkAfter { code }) => found.postmark = Some(code),
                _ => {}
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORTS: [&str; 6] = [
        r#"{"demo":"mounted","needed_replay":true}"#,
        r#"{"agent":"verify-file","thread":0,"size":4096,"bytes":0,"empty":0,"present":[[0,1,2],[2,5,1]],"torn":[]}"#,
        r#"{"agent":"verify-file","thread":1,"size":4096,"bytes":0,"empty":0,"present":[[0,3,2]],"torn":[2]}"#,
        r#"{"agent":"verify","files":2,"intact":5,"torn":1,"order_violations":2,"shown":[]}"#,
        r#"{"demo":"sqlite","mode":"rollback","integrity":"ok","rows":4,"newest":4,"sum":100000,"unexplained":0}"#,
        r#"{"demo":"e2fsck","code":0}"#,
    ];

    fn arrivals(lines: impl IntoIterator<Item = impl Into<String>>) -> Vec<Arrival> {
        lines.into_iter().map(|line| Arrival { at_ns: 0, line: line.into() }).collect()
    }

    /// Whatever is renamed, missing or strange is not taken for nothing.
    #[test]
    fn every_word_of_a_report_counts() {
        let all = REPORTS.join("\n");
        for word in all.split('"').skip(1).step_by(2).filter(|word| *word != "ok") {
            let renamed = all.replace(&format!("\"{word}\""), &format!("\"{word}s\""));
            assert!(Survivors::read(&arrivals(renamed.lines())).is_err(), "{word}: {renamed}");
        }
        for strange in
            ["wal", "", "{}", r#"{"demo":"e2fsck","code":0"#, r#"{"demo":"e2fsck","code":0,"more":1}"#]
        {
            assert!(Survivors::read(&arrivals([REPORTS[0], strange, REPORTS[5]])).is_err(), "{strange}");
        }
    }

    #[test]
    fn reads_what_a_boot_reports() {
        let found = Survivors::read(&arrivals(REPORTS)).unwrap();
        assert_eq!(found.mounted, Some(true));
        assert_eq!(found.records.unwrap().into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!((found.torn, found.order_violations, found.e2fsck), (1, 2, Some(0)));
        assert!(found.banks[0].is_none());
        let mut bank = found.banks[1].clone().unwrap();
        assert_eq!(bank.fault(), None);
        bank.sum += 1;
        assert!(bank.fault().unwrap().contains("100001"));
    }
}
