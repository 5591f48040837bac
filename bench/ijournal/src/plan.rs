//! What is measured: how the file is synced, what runs beside it, on which device.

use serde::{Deserialize, Serialize};

use afterimage_bench_kit::{check_only, is_chosen, BenchError, Result};

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
        memory_mib: 1024,
        dirty_background_mib: 200,
    },
];

/// Which cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
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

    /// `model/stream/arm`
    pub fn path(&self) -> String {
        format!("{}/{}/{}", self.model, self.stream_mb_per_s, self.arm.name())
    }
}

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// `full` or `quick`
    pub name: &'static str,
    /// How long files are synced.
    pub seconds: u32,
}

impl Scale {
    /// For figures.
    pub const FULL: Scale = Scale { name: "full", seconds: 30 };
    /// A look.
    pub const QUICK: Scale = Scale { name: "quick", seconds: 5 };
}

/// The cells, all of one seed before the next: whatever has to be broken off has every row. The patterns are of [`Key::path`].
///
/// # Errors
/// A pattern matches no cell.
pub fn keys(scale: Scale, seeds: u64, only: &[String]) -> Result<Vec<Key>> {
    let models = if scale == Scale::QUICK { &MODELS[..1] } else { &MODELS };
    let mut keys = Vec::new();
    for seed in 1..=seeds {
        for model in models {
            for stream in model.streams_mb_per_s {
                let key = |arm| Key { model: model.name.to_owned(), stream_mb_per_s: *stream, arm, seed };
                keys.extend(Arm::ALL.map(key));
            }
        }
    }
    let paths: Vec<String> = keys.iter().map(Key::path).collect();
    check_only(only, &paths, "model/stream/arm, as in ssd/300/normal")?;
    keys.retain(|key| is_chosen(only, &key.path()));
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_one_seed_come_before_the_next() {
        let all = keys(Scale::FULL, 2, &[]).unwrap();
        assert_eq!(all.len(), 2 * 2 * 5 * 6);
        assert!(all.iter().map(|key| key.seed).is_sorted());
        assert_eq!(keys(Scale::QUICK, 1, &["*/300".to_owned()]).unwrap().len(), 6);
        assert!(keys(Scale::QUICK, 1, &["emmc".to_owned()]).is_err());
    }

    #[test]
    fn names_are_those_of_results() {
        for arm in Arm::ALL {
            assert_eq!(serde_json::to_string(&arm).unwrap(), format!("\"{}\"", arm.name()));
        }
    }
}
