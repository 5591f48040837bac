//! What one cell leaves: one file, `cells/NAME.json`, written beside and renamed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterimage_protocol::lines;
use afterimage_protocol::status::FileSystemStatus;
use serde::{Deserialize, Serialize};

use crate::catalog::{Device, Kind, Mode, Setup, Workload};
use crate::handed_over::HandedOver;
use crate::scale::Scale;
use afterimage_bench_kit::io::{GuestIo, StorageIo};
use afterimage_bench_kit::{BenchError, CellIdentity, Context, Jbd2, Result, Resume, Turn};

/// Which cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellKey {
    /// What becomes of the guest.
    pub kind: Kind,
    /// Below the daemons.
    pub device: Device,
    /// How many guests run at once.
    pub guests: u32,
    /// `--survives`
    pub contract: String,
    /// The disk and the journal.
    pub setup: Setup,
    /// Inside each guest.
    pub workload: Workload,
    /// The journal.
    pub mode: Mode,
    /// Counted from 1.
    pub round: u32,
}

impl CellIdentity for CellKey {
    /// `workload/device/mode/guests` and what is not ordinary, for people and for `--only`.
    fn path(&self) -> String {
        let mut path = format!(
            "{}/{}/{}/x{}/{}",
            self.workload.name(),
            self.device.name(),
            self.mode.name(),
            self.guests,
            self.contract
        );
        if self.setup != Setup::Plain {
            path.push_str(&format!("/{}", self.setup.name()));
        }
        if self.kind != Kind::Run {
            path.push_str(&format!("/{}", self.kind.name()));
        }
        path
    }

    fn turn(&self) -> Turn {
        Turn::Round(self.round)
    }
}

impl CellKey {
    /// The same in every round.
    pub fn without_round(&self) -> CellKey {
        CellKey { round: 0, ..self.clone() }
    }
}

/// One guest's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestResult {
    /// What the workload's program took, in seconds.
    pub elapsed_s: f64,
    /// The sync after it.
    pub sync_s: f64,
    /// The unmount after that.
    pub umount_s: f64,
    /// Until the program's end.
    pub measured: GuestIo,
    /// Until after the unmount.
    pub whole: GuestIo,
    /// At the program's end.
    pub jbd2: Option<Jbd2>,
    /// During the work; of `data=vma` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<HandedOver>,
}

/// What a recovery took (Table III).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recovery {
    /// When the guest was killed, in seconds of its work.
    pub killed_at_s: f64,
    /// The daemon's part: from the kill to its orderly end, or `afterimage recover`.
    pub daemon_s: f64,
    /// What that left in the host's page cache, to the device.
    pub settle_s: f64,
    /// The next guest's mount, with its own replay.
    pub mount_s: f64,
    /// What that left in the host's page cache, to the device.
    pub settle_mount_s: f64,
    /// The daemon's part of the traffic.
    pub daemon_io: StorageIo,
    /// The mount's part.
    pub mount_io: StorageIo,
    /// `e2fsck -fn` on the disk after the unmount found nothing but what a replay leaves (orphans, counts).
    pub clean: bool,
}

impl Recovery {
    /// From the kill to a mounted file system whose repaired state is on the device.
    pub fn total_s(&self) -> f64 {
        self.daemon_s + self.settle_s + self.mount_s + self.settle_mount_s
    }

    /// Bytes in both directions.
    pub fn traffic_bytes(&self) -> u64 {
        self.daemon_io.traffic_bytes() + self.mount_io.traffic_bytes()
    }

    /// Bytes read.
    pub fn read_bytes(&self) -> u64 {
        self.daemon_io.read_bytes.unwrap_or(0) + self.mount_io.read_bytes.unwrap_or(0)
    }
}

/// What a guest that died left of the records that it updated (Fig. 19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// Of which there is an update.
    pub updated: u64,
    /// That mix versions.
    pub mixed: u64,
    /// Blocks that are no record's at all.
    pub foreign_blocks: u64,
}

/// One finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`afterimage_bench_kit::Record::VERSION`]
    pub version: u32,
    /// The sizes it was run with.
    pub scale: Scale,
    /// Which one.
    pub key: CellKey,
    /// Each guest's.
    pub guests: Vec<GuestResult>,
    /// Until the last program's end: below everything on a model, the daemons' own count on the machine's disk.
    pub storage_measured: StorageIo,
    /// Until everything was on the device.
    pub storage: StorageIo,
    /// What the daemons wrote to their files and logs until after the unmounts, as they count it.
    pub daemon_io: StorageIo,
    /// Journal writes that all daemons kept from storage until after the unmounts; `None` where they do not say.
    pub absorbed_bytes: Option<u64>,
    /// Processor time of all guests until the last program's end, in seconds; in real time only.
    pub guest_cpu_s: Option<f64>,
    /// Processor time of all daemons, the same.
    pub daemon_cpu_s: Option<f64>,
    /// In virtual time: the sum of all guests' requests. The same cell gives the same.
    pub trace: Option<String>,
    /// The first daemon's `file_systems` at the last program's end, as it said it.
    pub file_systems: Vec<FileSystemStatus>,
    /// After a kill.
    pub recovery: Option<Recovery>,
    /// Of Fig. 19: one of each guest that was killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Records>,
    /// The whole cell, in seconds.
    pub wall_s: f64,
    /// The machine's load average (1 min) when the cell began.
    pub load: f64,
}

impl Record {
    /// One of a cell that begins now.
    pub fn empty(key: &CellKey, scale: &Scale, load: f64) -> Record {
        Record {
            version: <Record as afterimage_bench_kit::Record>::VERSION,
            scale: scale.clone(),
            key: key.clone(),
            guests: Vec::new(),
            storage_measured: StorageIo::default(),
            storage: StorageIo::default(),
            daemon_io: StorageIo::default(),
            absorbed_bytes: None,
            guest_cpu_s: None,
            daemon_cpu_s: None,
            trace: None,
            file_systems: Vec::new(),
            recovery: None,
            records: Vec::new(),
            wall_s: 0.0,
            load,
        }
    }

    /// The mean over the guests, as the paper reports it.
    pub fn elapsed_s(&self) -> f64 {
        self.mean(|guest| guest.elapsed_s)
    }

    /// The mean of the work and the sync after it.
    pub fn synced_s(&self) -> f64 {
        self.mean(|guest| guest.elapsed_s + guest.sync_s)
    }

    /// The mean of the work, the sync after it and the unmount after that.
    pub fn unmounted_s(&self) -> f64 {
        self.mean(|guest| guest.elapsed_s + guest.sync_s + guest.umount_s)
    }

    /// What all guests wrote outside their journals: bound A of this very run.
    pub fn outside_journal_bytes(&self) -> Option<u64> {
        let written: u64 = self.guests.iter().map(|guest| guest.whole.write_bytes).sum();
        written.checked_sub(self.absorbed_bytes?)
    }

    fn mean(&self, value: impl Fn(&GuestResult) -> f64) -> f64 {
        self.guests.iter().map(value).sum::<f64>() / self.guests.len().max(1) as f64
    }
}

/// What the control socket said at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Since the work began, in milliseconds.
    pub at_ms: u64,
    /// The daemon's `file_systems`.
    pub file_systems: Vec<FileSystemStatus>,
}

impl afterimage_bench_kit::Record for Record {
    type Key = CellKey;
    const VERSION: u32 = 4;

    fn key(&self) -> &CellKey {
        &self.key
    }
}

/// The finished cells of earlier runs and this one, and what was sampled during them.
#[derive(Clone, Debug)]
pub struct Store {
    /// The cells.
    pub cells: afterimage_bench_kit::Store<Record>,
    samples: BTreeMap<CellKey, Vec<Sample>>,
}

impl Store {
    /// Opens the folder of one scale. Files of another scale or version stay, unread.
    ///
    /// # Errors
    /// The folder can not be read or made.
    pub fn open(folder: &Path, scale: &Scale) -> Result<Store> {
        let cells = afterimage_bench_kit::Store::<Record>::open(folder, |record| record.scale == *scale)?;
        let mut samples = BTreeMap::new();
        for record in cells.records() {
            samples.insert(record.key.clone(), samples_of(&samples_path(folder, &record.key))?);
        }
        Ok(Store { cells, samples })
    }

    /// Of results that were read elsewhere; nothing is to be added.
    pub fn of(cells: impl Iterator<Item = (Record, Vec<Sample>)>) -> Store {
        let (records, samples): (Vec<_>, _) =
            cells.map(|(record, samples)| (record.clone(), (record.key, samples))).unzip();
        Store { cells: afterimage_bench_kit::Store::of(records), samples }
    }

    /// Keeps a cell, at once.
    ///
    /// # Errors
    /// It can not be written.
    pub fn add(&mut self, record: Record, samples: Vec<Sample>) -> Result<()> {
        if !samples.is_empty() {
            let lines: Vec<String> = samples.iter().map(|s| serde_json::json!(s).to_string()).collect();
            let path = samples_path(self.cells.folder(), &record.key);
            afterimage_report::replace(&path, (lines.join("\n") + "\n").as_bytes())
                .context(|| format!("write {}", path.display()))?;
        }
        self.samples.insert(record.key.clone(), samples);
        self.cells.add(record)
    }

    /// Takes what another store holds of this scale, and this one does not; a run keeps it.
    ///
    /// # Errors
    /// A cell can not be written.
    pub fn adopt(&mut self, other: &Store, scale: &Scale, resume: &Resume) -> Result<()> {
        let missing = |record: &&Record| record.scale == *scale && self.cells.get(&record.key).is_none();
        let missing: Vec<Record> = other.cells.records().filter(missing).cloned().collect();
        missing.into_iter().try_for_each(|record| {
            let samples = other.samples(&record.key).to_vec();
            if resume.is_run() {
                return self.add(record, samples);
            }
            self.samples.insert(record.key.clone(), samples);
            self.cells.adopt([record], resume)
        })
    }

    /// What was sampled during a cell: nothing of most.
    pub fn samples(&self, key: &CellKey) -> &[Sample] {
        self.samples.get(key).map_or(&[], Vec::as_slice)
    }
}

fn samples_path(folder: &Path, key: &CellKey) -> PathBuf {
    folder.join(format!("{}.samples.jsonl", key.file_name()))
}

fn samples_of(path: &Path) -> Result<Vec<Sample>> {
    match std::fs::read_to_string(path) {
        Ok(text) => lines::read(&text).map_err(|(line, error)| BenchError::Io {
            what: format!("{} line {line} cannot be read", path.display()),
            source: error.into(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).context(|| format!("read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Scene;
    use afterimage_lab::process::Workdir;

    #[test]
    fn results_under_another_bound_are_apart() {
        let folder = Workdir::new_in(&std::env::temp_dir(), "vma-store").unwrap();
        let scale = |mib| Scale::quick().bounded(mib);
        let scene = Scene { device: Device::Hdd15k, contract: "guest-crash".to_owned(), guests: 1 };
        let key = CellKey { round: 1, ..scene.key(Workload::Untar, Mode::JournalRetain) };
        for usual in [None, Some(64)] {
            let folder = folder.path().join(scale(usual).name);
            let record = Record::empty(&key, &scale(usual), 0.0);
            Store::open(&folder, &scale(usual)).unwrap().add(record, Vec::new()).unwrap();
            for other in [None, Some(64), Some(65)] {
                let found = Store::open(&folder, &scale(other)).unwrap();
                assert_eq!(found.cells.get(&key).is_some(), other == usual, "{usual:?}, {other:?}");
            }
        }
        assert_eq!(scale(None), Scale::quick());
        assert_ne!(scale(Some(64)).name, scale(Some(65)).name);
        assert!(!serde_json::to_string(&scale(None)).unwrap().contains("retain"));
    }
}
