//! What the boot after the death found on the disk.

use std::collections::BTreeSet;

use serde_json::Value;

use super::sql::{Journal, ACCOUNTS, OPENING_BALANCE};
use crate::channel::Arrival;

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
    pub fn read(lines: &[Arrival]) -> Survivors {
        let mut found = Survivors::default();
        let mut numbers = BTreeSet::new();
        for json in lines.iter().filter_map(Arrival::json) {
            let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
            let number = |key: &str| json.get(key).and_then(Value::as_u64).unwrap_or_default();
            match (text("agent"), text("demo")) {
                ("verify-file", _) => numbers.extend(present(&json["present"])),
                ("verify", _) => {
                    found.records = Some(std::mem::take(&mut numbers));
                    found.torn = number("torn");
                    found.order_violations = number("order_violations");
                }
                (_, "mounted") => found.mounted = json["needed_replay"].as_bool(),
                (_, "sqlite") => {
                    if let Some(at) = Journal::ALL.iter().position(|j| j.name() == text("mode")) {
                        found.banks[at] = Some(Bank {
                            integrity: text("integrity").to_owned(),
                            rows: number("rows"),
                            newest: number("newest"),
                            sum: number("sum"),
                            unexplained: number("unexplained"),
                        });
                    }
                }
                (_, "e2fsck") => found.e2fsck = json["code"].as_i64(),
                (_, "postmark-after") => found.postmark = json["code"].as_i64(),
                _ => {}
            }
        }
        found
    }
}

/// The numbers in the agent's `[[slot, number, count], ...]`.
fn present(runs: &Value) -> impl Iterator<Item = u64> + '_ {
    runs.as_array().into_iter().flatten().flat_map(|run| {
        let part = |at: usize| run.get(at).and_then(Value::as_u64).unwrap_or_default();
        part(1)..part(1) + part(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_boot_reports() {
        let lines: Vec<Arrival> = [
            r#"{"demo":"mounted","needed_replay":true}"#,
            r#"{"agent":"verify-file","thread":0,"size":4096,"bytes":0,"empty":0,"present":[[0,1,2],[2,5,1]],"torn":[]}"#,
            r#"{"agent":"verify-file","thread":1,"size":4096,"bytes":0,"empty":0,"present":[[0,3,2]],"torn":[2]}"#,
            r#"{"agent":"verify","files":2,"intact":5,"torn":1,"order_violations":2,"shown":[]}"#,
            r#"{"demo":"sqlite","mode":"rollback","integrity":"ok","rows":4,"newest":4,"sum":100000,"unexplained":0}"#,
            r#"{"demo":"e2fsck","code":0}"#,
        ]
        .iter()
        .map(|line| Arrival { at_ns: 0, line: (*line).to_owned() })
        .collect();
        let found = Survivors::read(&lines);
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
