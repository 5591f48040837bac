//! `target/demo/report.json`: everything that the demo found. The fields are explained in `docs/demo.md`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Context, LabError, Result};

/// The version of the layout; it grows when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// The whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`]
    pub schema: u32,
    /// The version of these programs.
    pub version: String,
    /// What `--seed` was or would have to be.
    pub seed: u64,
    /// Whether every promise held and everything could be checked.
    pub held: bool,
    /// Seconds in all.
    pub elapsed_s: f64,
    /// Where it ran.
    pub machine: Machine,
    /// The same work with and without a retained journal.
    pub retain: Option<RetainReport>,
    /// Each death.
    pub scenarios: Vec<ScenarioReport>,
    /// Each server's times and costs.
    pub speed: Vec<SpeedRow>,
}

/// The host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Processors.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Runnable processes on average over the minute before the start.
    pub load: f64,
    /// Where images lie that are not on a model.
    pub images_in: String,
}

/// How a scenario ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every promise held.
    Held,
    /// At least one did not.
    Broken,
    /// It could not be found out: something failed on the way.
    Failed,
}

/// One death of something, and what was left.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioReport {
    /// As `--only` takes it.
    pub name: String,
    /// What was served with.
    pub contract: String,
    /// What happened, for people.
    pub event: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, if it did not hold.
    pub reason: Option<String>,
    /// What the image lay on.
    pub medium: String,
    /// The machine that ran the guest.
    pub guest: String,
    /// Seconds.
    pub elapsed_s: f64,
    /// Milliseconds of acknowledgements that may be lost; absent if nothing may.
    pub bound_ms: Option<f64>,
    /// Not a promise of ours: the checks must see a loss here, or they can not see any.
    pub expects_loss: bool,
    /// Each workload's acknowledgements: sums over the rounds, the longest time.
    pub streams: Vec<StreamReport>,
    /// The same for each round, where there were several.
    pub rounds: Vec<Vec<StreamReport>>,
    /// Rounds of postmark completed before the death.
    pub postmark_rounds: u64,
    /// How often the daemon was killed and started again.
    pub daemon_restarts: u64,
    /// What the daemon brought home of a dead guest's retained journal.
    pub recovery: Option<Recovery>,
    /// Each promise.
    pub checks: Vec<Check>,
    /// The folder with what is left for a person to look at, if something was wrong.
    pub evidence: Option<String>,
}

/// One workload of one scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamReport {
    /// `records`, `sqlite wal`, `sqlite rollback`
    pub name: String,
    /// Reported to the host as safe before the death.
    pub acknowledged: u64,
    /// Of these, not there afterwards.
    pub lost: u64,
    /// The first of them.
    pub lost_numbers: Vec<u64>,
    /// From the oldest lost acknowledgement to the newest one, as the guest saw it; 0 if none was lost.
    pub lost_ms: f64,
    /// The part of it that can be proved from outside the daemon.
    pub lost_ms_proved: f64,
}

/// One promise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What was promised.
    pub promise: String,
    /// Whether it held.
    pub held: bool,
    /// What was seen.
    pub detail: String,
}

impl Check {
    /// A check with its finding.
    pub fn new(promise: impl Into<String>, held: bool, detail: impl Into<String>) -> Check {
        Check { promise: promise.into(), held, detail: detail.into() }
    }
}

/// What a daemon did with the retained journal of a guest that had been killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recovery {
    /// Committed transactions that it held just before the kill.
    pub transactions: u64,
    /// Blocks of them that were in memory only.
    pub blocks_pending: u64,
    /// Blocks that it wrote home after the kill.
    pub blocks_home: u64,
    /// From the kill until nothing was in memory only, in milliseconds, as seen by asking every few.
    pub home_ms: f64,
}

/// The same guest and the same work with different journals.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainReport {
    /// What lies below.
    pub medium: String,
    /// The guest's memory, in MiB.
    pub guest_mib: u32,
    /// What the guest does, for people.
    pub work: String,
    /// How many of them are made safe one by one.
    pub files: u32,
    /// Each way to keep a journal.
    pub modes: Vec<RetainRow>,
}

/// One way to keep a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainRow {
    /// For people.
    pub mode: String,
    /// How the guest mounts.
    pub mount: String,
    /// What `--journal` is given.
    pub journal: String,
    /// What the guest's kernel sent.
    pub guest: Traffic,
    /// What the daemon wrote to the image's file.
    pub storage: Traffic,
    /// What of that the host's page cache passed on to the device.
    pub device: Traffic,
    /// Seconds in the guest for the long file, not synced.
    pub append_s: f64,
    /// Seconds in the guest for the short files.
    pub files_s: f64,
    /// Seconds from the beginning until everything was on the device.
    pub elapsed_s: f64,
    /// Journal writes that did not reach storage, in bytes.
    pub absorbed_bytes: u64,
    /// Transactions that the daemon saw the guest commit; 0 where it does not look.
    pub commits: u64,
}

/// One server at the same work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedRow {
    /// `afterimage power`, `qemu-storage-daemon writeback`, ...
    pub server: String,
    /// What lies below: a model, so that every machine shows the same costs.
    pub medium: String,
    /// Latency of fsync after a 4 KiB append, inside the guest, in microseconds.
    pub fsync_p50_us: f64,
    /// The 99th percentile.
    pub fsync_p99_us: f64,
    /// How many were measured.
    pub fsyncs: u64,
    /// SQLite transactions a second with a write-ahead log.
    pub sqlite_wal_per_s: f64,
    /// SQLite transactions a second with a rollback journal.
    pub sqlite_rollback_per_s: f64,
    /// Seconds that postmark took, sync included.
    pub postmark_s: f64,
    /// What the guest's kernel sent.
    pub guest: Traffic,
    /// What reached storage, the orderly end of the server included.
    pub storage: Traffic,
}

/// Requests of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Flushes (of the guest) or syncs (of files).
    pub flushes: u64,
}

impl Report {
    /// The report as JSON text.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| LabError::io("write the report as JSON", std::io::Error::from(error)))
    }

    /// Writes `report.json`, and the same as `demo.json.zst`, as raw results are committed, into the folder; a reader sees the old
    /// one or the new one.
    ///
    /// # Errors
    /// The folder can not be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        afterimage_report::raw::write(&folder.join("demo.json.zst"), "demo", self)
            .map_err(|error| LabError::Peer(error.to_string()))?;
        replace(&folder.join("report.json"), &(self.json()? + "\n"))
    }

    /// A scenario's entry, by its name.
    pub fn scenario(&self, name: &str) -> Option<&ScenarioReport> {
        self.scenarios.iter().find(|entry| entry.name == name)
    }
}

impl ScenarioReport {
    /// Acknowledgements before the death, and those of them that are lost.
    pub fn totals(&self) -> (u64, u64) {
        self.streams.iter().fold((0, 0), |(acknowledged, lost), stream| {
            (acknowledged + stream.acknowledged, lost + stream.lost)
        })
    }

    /// Checks that held, and all.
    pub fn checks_held(&self) -> (usize, usize) {
        (self.checks.iter().filter(|check| check.held).count(), self.checks.len())
    }
}

/// Writes a file so that a reader sees the old one or the new one.
///
/// # Errors
/// The folder can not be written.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    afterimage_report::replace(path, text.as_bytes()).context(|| format!("write {}", path.display()))
}
