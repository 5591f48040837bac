//! What is measured: SQLite's logs and transactions, the file system's journaling, the device.

use serde::{Deserialize, Serialize};

use afterimage_bench_kit::{chosen, CellIdentity, Result, Turn};

/// What protects the database's own transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// `PRAGMA journal_mode=wal`
    Wal,
    /// `PRAGMA journal_mode=delete`
    Rollback,
    /// Nothing, and nothing is synced: Fig. 4's *no protection*.
    Off,
    /// No database: one file, 4 KiB a write, each synced.
    File,
}

impl Log {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Log::Wal => "wal",
            Log::Rollback => "rollback",
            Log::Off => "off",
            Log::File => "file",
        }
    }

    /// What is done in a round, one after the other.
    pub fn phases(self) -> &'static [&'static str] {
        match self {
            Log::File => &["append", "overwrite"],
            _ => &["insert", "update", "delete"],
        }
    }
}

/// What protects the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Stock ext4 made without a journal, and a flush with each sync that is SQLite's (`flush.c`): what the others are compared with.
    NoJournal,
    /// Stock ext4 made without a journal, which sends no flush where only data was written: it promises less than all the others.
    Unflushed,
    /// Stock ext4, `data=ordered`. (The paper has `journal_async_commit` everywhere; today's kernel refuses it here.)
    Ordered,
    /// Stock ext4, `data=journal,journal_async_commit`.
    Data,
    /// vext4, the same: one write and one flush a sync.
    SingleIo,
    /// vext4, `data=ordered,journal_async_commit`, and SQLite's extension: database and rollback journal are journaled, the
    /// write-ahead log is ordered.
    Adaptive,
    /// vext4, `data=vma`, above a daemon that retains the journal: commits are handed over to memory. It promises less than the
    /// others, and as much as VMA: the host's power is trusted.
    Vma,
}

impl Arm {
    /// All.
    pub const ALL: [Arm; 7] =
        [Arm::NoJournal, Arm::Unflushed, Arm::Ordered, Arm::Data, Arm::SingleIo, Arm::Adaptive, Arm::Vma];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Arm::NoJournal => "no-journal",
            Arm::Unflushed => "unflushed",
            Arm::Ordered => "ordered",
            Arm::Data => "data",
            Arm::SingleIo => "single-io",
            Arm::Adaptive => "adaptive",
            Arm::Vma => "vma",
        }
    }

    /// Whether its disk has no journal.
    pub fn is_bare(self) -> bool {
        matches!(self, Arm::NoJournal | Arm::Unflushed)
    }

    /// What is mounted: type, options.
    pub fn mount(self) -> (&'static str, &'static str) {
        match self {
            Arm::NoJournal | Arm::Unflushed => ("ext4", "noatime,nodiratime,barrier=1"),
            Arm::Ordered => ("ext4", "noatime,nodiratime,barrier=1,data=ordered"),
            Arm::Data => ("ext4", "noatime,nodiratime,barrier=1,data=journal,journal_async_commit"),
            Arm::SingleIo => ("vext4", "noatime,nodiratime,barrier=1,data=journal,journal_async_commit"),
            Arm::Adaptive => ("vext4", "noatime,nodiratime,barrier=1,data=ordered,journal_async_commit"),
            Arm::Vma => ("vext4", "noatime,nodiratime,barrier=1,data=vma"),
        }
    }
}

/// Operations in a transaction.
pub const SIZES: [u32; 2] = [1, 1000];
/// The devices: like the paper's tablet, like its SSD, and the disk that its discussion asks about.
pub const MODELS: [&str; 3] = ["emmc", "ssd", "hdd15k"];
/// A disk of the machine's, in real time.
pub const MACHINE: [&str; 1] = ["machine"];

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// `full`, `part` or `quick`
    pub name: &'static str,
    /// The same on a disk of the machine's.
    pub machine_name: &'static str,
    /// Records in the table.
    many: u32,
    /// The same where each has a transaction of its own.
    single: u32,
    /// Writes to the file in each phase.
    file_writes: u32,
}

impl Scale {
    /// The paper's.
    pub const FULL: Scale =
        Scale { name: "full", machine_name: "full-machine", many: 10_000, single: 10_000, file_writes: 1000 };
    /// A twentieth of the transactions of one operation, which take most of the time.
    pub const PART: Scale =
        Scale { name: "part", machine_name: "part-machine", many: 10_000, single: 500, file_writes: 1000 };
    /// A look.
    pub const QUICK: Scale =
        Scale { name: "quick", machine_name: "quick-machine", many: 1000, single: 200, file_writes: 100 };

    /// Records in the table, or writes to the file.
    pub fn records(self, log: Log, operations: u32) -> u32 {
        match (log, operations) {
            (Log::File, _) => self.file_writes,
            (_, 1) => self.single,
            _ => self.many,
        }
    }
}

/// Which cell: one round.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The database's.
    pub log: Log,
    /// In each transaction.
    pub operations: u32,
    /// The device: a model, or [`MACHINE`].
    pub model: String,
    /// The file system's.
    pub arm: Arm,
    /// Of the orders in which records are updated and deleted, and of everything random in the guest.
    pub seed: u64,
}

impl CellIdentity for Key {
    /// `log/operations/model/arm`
    fn path(&self) -> String {
        format!("{}/{}/{}/{}", self.log.name(), self.operations, self.model, self.arm.name())
    }

    fn turn(&self) -> Turn {
        Turn::Seed(self.seed)
    }
}

/// The cells, all of one seed before the next: whatever has to be broken off has every row. The patterns are of [`Key::path`].
///
/// # Errors
/// A pattern matches no cell.
pub fn keys(scale: Scale, on_machine: bool, seeds: u64, only: &[String]) -> Result<Vec<Key>> {
    let models = match (on_machine, scale == Scale::QUICK) {
        (true, _) => &MACHINE[..],
        (_, true) => &MODELS[1..2],
        _ => &MODELS,
    };
    let mut keys = Vec::new();
    for seed in 1..=seeds {
        for (log, operations) in [
            (Log::File, 1),
            (Log::Wal, SIZES[1]),
            (Log::Rollback, SIZES[1]),
            (Log::Off, SIZES[1]),
            (Log::Off, SIZES[0]),
            (Log::Wal, SIZES[0]),
            (Log::Rollback, SIZES[0]),
        ] {
            for model in models {
                // `dd` asks the kernel for its syncs, and nothing can be put behind them.
                let arms = match log {
                    Log::Off => &[Arm::Unflushed][..],
                    Log::File => &Arm::ALL[1..],
                    _ => &Arm::ALL,
                };
                keys.extend(arms.iter().map(|arm| Key {
                    log,
                    operations,
                    model: (*model).to_owned(),
                    arm: *arm,
                    seed,
                }));
            }
        }
    }
    chosen(keys, only, "log/operations/model/arm, as in wal/1/ssd/adaptive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_one_seed_come_before_the_next() {
        let all = keys(Scale::FULL, false, 2, &[]).unwrap();
        assert_eq!(all.len(), 2 * 3 * (4 * 7 + 6 + 2));
        assert!(all.iter().map(|key| key.seed).is_sorted_by_key(|seed| seed));
        let quick = keys(Scale::QUICK, false, 1, &["*/*/*/data".to_owned()]).unwrap();
        assert_eq!(quick.len(), 5);
        let machine = keys(Scale::QUICK, true, 1, &[]).unwrap();
        assert!(machine.len() == 4 * 7 + 6 + 2 && machine.iter().all(|key| key.model == MACHINE[0]));
        assert!(keys(Scale::QUICK, false, 1, &["*/*/emmc".to_owned()]).is_err());
    }

    #[test]
    fn names_are_those_of_results() {
        for arm in Arm::ALL {
            assert_eq!(serde_json::to_string(&arm).unwrap(), format!("\"{}\"", arm.name()));
        }
        for log in [Log::Wal, Log::Rollback, Log::Off, Log::File] {
            assert_eq!(serde_json::to_string(&log).unwrap(), format!("\"{}\"", log.name()));
        }
    }
}
