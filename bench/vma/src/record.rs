//! What one cell leaves: one file, `cells/NAME.json`, written beside and renamed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use afterimage_protocol::lines;
use afterimage_protocol::status::FileSystemStatus;
use afterimage_results::of_version;
use serde::{Deserialize, Serialize};

use crate::catalog::{Device, Kind, Mode, Setup, Workload};
use crate::error::{BenchError, Context, Result};
use crate::scale::Scale;

/// Raised when a record of an older program would mean something else.
pub const RECORD_VERSION: u32 = 3;

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

impl CellKey {
    /// `workload/device/mode/guests` and what is not ordinary, for people and for `--only`.
    pub fn path(&self) -> String {
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

    /// The file's name without its ending.
    pub fn file_name(&self) -> String {
        format!("{}.r{}", self.path().replace(['/', '='], "_"), self.round)
    }

    /// The same in every round.
    pub fn without_round(&self) -> CellKey {
        CellKey { round: 0, ..self.clone() }
    }
}

/// A guest's own count of what it sent, from `/sys/block/vda/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestIo {
    /// Read requests.
    pub reads: u64,
    /// Bytes in them.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes in them.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// What jbd2 says of itself (`/proc/fs/jbd2/*/info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jbd2 {
    /// Transactions since the mount.
    pub transactions: u64,
    /// Blocks logged in each, on average.
    pub logged_blocks: f64,
}

/// One guest's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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
}

/// What reached storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageIo {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl StorageIo {
    /// What came after `earlier`.
    pub fn since(&self, earlier: &StorageIo) -> StorageIo {
        StorageIo {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }

    /// Adds another's.
    pub fn add(&mut self, other: &StorageIo) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.flushes += other.flushes;
    }

    /// Bytes in both directions.
    pub fn traffic_bytes(&self) -> u64 {
        self.read_bytes + self.write_bytes
    }
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
}

/// One finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`RECORD_VERSION`]
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
    /// Processor time of all guests until the last program's end, in seconds.
    pub guest_cpu_s: f64,
    /// Processor time of all daemons, the same.
    pub daemon_cpu_s: f64,
    /// The first daemon's `file_systems` at the last program's end, as it said it.
    pub file_systems: Vec<FileSystemStatus>,
    /// After a kill.
    pub recovery: Option<Recovery>,
    /// The whole cell, in seconds.
    pub wall_s: f64,
    /// The machine's load average (1 min) when the cell began.
    pub load: f64,
}

impl Record {
    /// The mean over the guests, as the paper reports it.
    pub fn elapsed_s(&self) -> f64 {
        self.mean(|guest| guest.elapsed_s)
    }

    /// The mean of the work and the sync after it.
    pub fn synced_s(&self) -> f64 {
        self.mean(|guest| guest.elapsed_s + guest.sync_s)
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

/// The finished cells of earlier runs and this one.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    records: BTreeMap<CellKey, Record>,
    samples: BTreeMap<CellKey, Vec<Sample>>,
}

fn samples_of(folder: &Path, key: &CellKey) -> Result<Vec<Sample>> {
    let path = folder.join(format!("{}.samples.jsonl", key.file_name()));
    match fs::read_to_string(&path) {
        Ok(text) => lines::read(&text).map_err(|(line, error)| BenchError::Io {
            what: format!("{} line {line} cannot be read", path.display()),
            source: error.into(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).context(|| format!("read {}", path.display())),
    }
}

impl Store {
    /// Opens the folder of one scale. Files of another scale or version stay, unread.
    ///
    /// # Errors
    /// The folder can not be read or made.
    pub fn open(folder: &Path, scale: &Scale) -> Result<Store> {
        fs::create_dir_all(folder).context(|| format!("make {}", folder.display()))?;
        let (mut records, mut samples) = (BTreeMap::new(), BTreeMap::new());
        for entry in fs::read_dir(folder).context(|| format!("read {}", folder.display()))? {
            let path = entry.context(|| format!("read {}", folder.display()))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).context(|| format!("read {}", path.display()))?;
            let record = of_version::<Record>(&text, RECORD_VERSION)
                .map_err(std::io::Error::from)
                .context(|| format!("{} cannot be read: remove it", path.display()))?;
            if let Some(record) = record.filter(|record| record.scale == *scale) {
                samples.insert(record.key.clone(), samples_of(folder, &record.key)?);
                records.insert(record.key.clone(), record);
            }
        }
        Ok(Store { folder: folder.to_owned(), records, samples })
    }

    /// Of results that were read elsewhere; nothing is to be added.
    pub fn of(cells: impl Iterator<Item = (Record, Vec<Sample>)>) -> Store {
        let (mut records, mut samples) = (BTreeMap::new(), BTreeMap::new());
        for (record, sampled) in cells {
            samples.insert(record.key.clone(), sampled);
            records.insert(record.key.clone(), record);
        }
        Store { folder: PathBuf::new(), records, samples }
    }

    /// All, in the order of their keys.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// One.
    pub fn get(&self, key: &CellKey) -> Option<&Record> {
        self.records.get(key)
    }

    /// The mean time of a cell over its rounds.
    pub fn elapsed_s(&self, key: &CellKey) -> Option<f64> {
        let times: Vec<f64> = self
            .records
            .values()
            .filter(|record| record.key.without_round() == key.without_round())
            .map(Record::elapsed_s)
            .collect();
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    /// Keeps a cell, at once.
    ///
    /// # Errors
    /// It can not be written.
    pub fn add(&mut self, record: Record, samples: &[Sample]) -> Result<()> {
        let name = record.key.file_name();
        if !samples.is_empty() {
            let lines: Vec<String> = samples.iter().map(|s| serde_json::json!(s).to_string()).collect();
            self.put(&format!("{name}.samples.jsonl"), &(lines.join("\n") + "\n"))?;
        }
        let text = serde_json::to_string_pretty(&record)
            .map_err(std::io::Error::from)
            .context(|| "a record".to_owned())?;
        self.put(&format!("{name}.json"), &text)?;
        self.samples.insert(record.key.clone(), samples.to_vec());
        self.records.insert(record.key.clone(), record);
        Ok(())
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let fresh = self.folder.join(format!("{name}.new"));
        fs::write(&fresh, text).context(|| format!("write {}", fresh.display()))?;
        fs::rename(&fresh, self.folder.join(name)).context(|| format!("write {name}"))
    }

    /// What was sampled during a cell: nothing of most.
    pub fn samples(&self, key: &CellKey) -> &[Sample] {
        self.samples.get(key).map_or(&[], Vec::as_slice)
    }

    /// Forgets cells, so that they are run again.
    ///
    /// # Errors
    /// A file can not be removed.
    pub fn forget(&mut self, keys: &[CellKey]) -> Result<()> {
        for key in keys {
            if self.records.remove(key).is_some() {
                let path = self.folder.join(format!("{}.json", key.file_name()));
                fs::remove_file(&path).context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }
}
