//! What is measured: who syncs and how, what runs beside it, on which device.

use serde::{Deserialize, Serialize};

use afterimage_bench_kit::{chosen, BenchError, CellIdentity, Result, Turn};

use crate::scale::Scale;
use crate::task::Task;

/// The paper's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Figures {
    /// Figs. 6 to 8: how long an fsync takes beside a stream.
    #[value(name = "6-8")]
    Sixth,
    /// Fig. 10: SQLite, beside the paper's 30 MB/s.
    #[value(name = "10")]
    Tenth,
    /// Fig. 11: applications, beside as much; TPC-C, YCSB and varmail beside 200 MB/s.
    #[value(name = "11")]
    Eleventh,
}

impl Figures {
    /// All.
    pub const ALL: [Figures; 3] = [Figures::Sixth, Figures::Tenth, Figures::Eleventh];

    /// What is run for them.
    pub fn tasks(self) -> &'static [Task] {
        match self {
            Figures::Sixth => &[Task::Append],
            Figures::Tenth => &[Task::SqliteRollback, Task::SqliteWal],
            Figures::Eleventh => &[Task::Photos, Task::Install, Task::Tpcc, Task::Ycsb, Task::Varmail],
        }
    }
}

/// How the file system journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Stock ext4, `data=ordered`.
    Normal,
    /// The same with the paper's *boosting*, as a user of today has it: mq-deadline, and who syncs (and jbd2) in its real-time class.
    Boosted,
    /// The same without delayed allocation, as the paper runs its logical logging; that itself exists nowhere.
    Nodelalloc,
    /// Stock ext4 with the feature `fast_commit`: logical logging as there is today.
    FastCommit,
    /// vext4 with the mount option `ijournal`.
    Ijournal,
    /// The same, boosted.
    IjournalBoosted,
}

impl Arm {
    /// All.
    pub const ALL: [Arm; 6] =
        [Arm::Normal, Arm::Boosted, Arm::Nodelalloc, Arm::FastCommit, Arm::Ijournal, Arm::IjournalBoosted];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Normal => "normal",
            Arm::Boosted => "boosted",
            Arm::Nodelalloc => "nodelalloc",
            Arm::FastCommit => "fast-commit",
            Arm::Ijournal => "ijournal",
            Arm::IjournalBoosted => "ijournal-boosted",
        }
    }

    /// What is mounted: type, options.
    pub fn mount(self) -> (&'static str, &'static str) {
        match self {
            Arm::Normal | Arm::Boosted | Arm::FastCommit => ("ext4", "noatime,data=ordered"),
            Arm::Nodelalloc => ("ext4", "noatime,data=ordered,nodelalloc"),
            Arm::Ijournal | Arm::IjournalBoosted => ("vext4", "noatime,data=ordered,ijournal"),
        }
    }

    /// Whether whoever syncs is in the real-time class.
    pub fn is_boosted(self) -> bool {
        matches!(self, Arm::Boosted | Arm::IjournalBoosted)
    }
}

/// A device, and the streams beside which files are synced on it, in megabytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// A model of the lab's.
    pub name: &'static str,
    /// What it writes in sequence, in megabytes a second.
    pub mb_per_s: u32,
    /// How many requests it takes at once; the rest waits in the guest, where a scheduler can put others first.
    pub queue_depth: u32,
    /// How many the scheduler may hold: as Linux has it for such a device, whose driver takes more than the device does.
    pub scheduler_requests: u32,
    /// The longest request: Linux's own limit, and that of most eMMC hosts.
    pub request_kib: u32,
    /// Fig. 7's streams.
    pub streams_mb_per_s: &'static [u32],
    /// What runs beside a phone's applications.
    pub phone_mb_per_s: u32,
    /// What runs beside a desktop's.
    pub desktop_mb_per_s: u32,
    /// The guest's memory.
    pub memory_mib: u32,
    /// So much of it may be dirty before the kernel writes: Linux's tenth. Above twice as much writers wait.
    pub dirty_background_mib: u32,
}

/// Like the paper's desktop (16 GB, of which half as much as there may be dirty here, because the disk is in memory, too; Samsung 850 Pro: some
/// 520 MB/s, streams up to 500) and its phone (2 GB, streams up to 50).
pub const MODELS: [Model; 2] = [
    Model {
        name: "ssd",
        mb_per_s: 400,
        // SATA's.
        queue_depth: 32,
        scheduler_requests: 64,
        request_kib: 1280,
        streams_mb_per_s: &[0, 100, 200, 300, 400],
        phone_mb_per_s: 30,
        desktop_mb_per_s: 200,
        memory_mib: 4096,
        dirty_background_mib: 800,
    },
    Model {
        name: "emmc",
        mb_per_s: 20,
        // Before eMMC 5.1 it had no queue.
        queue_depth: 1,
        scheduler_requests: 128,
        request_kib: 512,
        streams_mb_per_s: &[0, 5, 10, 15, 20],
        // As 30 is to the phone's 50.
        phone_mb_per_s: 12,
        desktop_mb_per_s: 12,
        memory_mib: 1024,
        dirty_background_mib: 200,
    },
];

impl Model {
    /// The streams beside which a task runs.
    pub fn streams(&self, task: Task) -> Vec<u32> {
        match task {
            Task::Append => self.streams_mb_per_s.to_vec(),
            Task::Tpcc | Task::Ycsb | Task::Varmail => vec![0, self.desktop_mb_per_s],
            _ => vec![0, self.phone_mb_per_s],
        }
    }
}

/// Which cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Who syncs.
    #[serde(default, skip_serializing_if = "Task::is_append")]
    pub task: Task,
    /// The device.
    pub model: String,
    /// What is written beside it, in megabytes a second.
    pub stream_mb_per_s: u32,
    /// The file system's.
    pub arm: Arm,
    /// Of everything random in the guest.
    pub seed: u64,
}

impl Key {
    /// Its device.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn model(&self) -> Result<Model> {
        let found = MODELS.into_iter().find(|model| model.name == self.model);
        found.ok_or_else(|| BenchError::Usage(format!("there is no device {}", self.model)))
    }
}

impl CellIdentity for Key {
    /// `model/stream/arm`, and the task in front but for Figs. 6 to 8.
    fn path(&self) -> String {
        let task = if self.task.is_append() { String::new() } else { format!("{}/", self.task.name()) };
        format!("{task}{}/{}/{}", self.model, self.stream_mb_per_s, self.arm.name())
    }

    fn turn(&self) -> Turn {
        Turn::Seed(self.seed)
    }
}

/// The cells, all of one seed before the next: whatever has to be broken off has every row. The patterns are of [`Key::path`].
///
/// # Errors
/// A pattern matches no cell.
pub fn keys(scale: Scale, figures: &[Figures], seeds: u64, only: &[String]) -> Result<Vec<Key>> {
    let models = if scale == Scale::QUICK { &MODELS[..1] } else { &MODELS };
    let tasks = || figures.iter().flat_map(|figures| figures.tasks());
    let mut keys = Vec::new();
    for seed in 1..=seeds {
        for (task, model) in tasks().flat_map(|task| models.iter().map(|model| (*task, model))) {
            for stream_mb_per_s in model.streams(task) {
                let key = |arm| Key { task, model: model.name.to_owned(), stream_mb_per_s, arm, seed };
                keys.extend(Arm::ALL.map(key));
            }
        }
    }
    chosen(keys, only, "model/stream/arm, as in ssd/300/normal, or task/model/stream/arm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_one_seed_come_before_the_next() {
        let all = keys(Scale::FULL, &Figures::ALL, 2, &[]).unwrap();
        assert_eq!(all.len(), 2 * 2 * (5 + 7 * 2) * 6);
        assert!(all.iter().map(|key| key.seed).is_sorted());
        assert_eq!(keys(Scale::FULL, &[Figures::Tenth], 1, &[]).unwrap().len(), 2 * 2 * 2 * 6);
        assert_eq!(keys(Scale::QUICK, &[Figures::Sixth], 1, &["*/300".to_owned()]).unwrap().len(), 6);
        assert!(keys(Scale::QUICK, &Figures::ALL, 1, &["emmc".to_owned()]).is_err());
    }

    // Raw results of Figs. 6 to 8 were there before there were tasks.
    #[test]
    fn a_key_without_a_task_is_of_the_first_figures() {
        let text = r#"{"model":"ssd","stream_mb_per_s":0,"arm":"normal","seed":1}"#;
        let key: Key = serde_json::from_str(text).unwrap();
        assert_eq!((key.task, serde_json::to_string(&key).unwrap().as_str()), (Task::Append, text));
    }

    #[test]
    fn names_are_those_of_results() {
        for arm in Arm::ALL {
            assert_eq!(serde_json::to_string(&arm).unwrap(), format!("\"{}\"", arm.name()));
        }
    }
}
