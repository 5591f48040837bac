//! A mount of the lab's file system, owned by a test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{umount2, MntFlags};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use super::core::{CutReport, Faults};
use super::counters::FileCounters;
use crate::ask::ask;
use crate::device::ModelName;
use crate::error::{Context, LabError, Result};
use crate::locate;
use crate::process::{quote, Group, Workdir};

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The modelled device.
    pub model: ModelName,
    /// Seed of cuts that are not given one.
    pub seed: u64,
    /// Where the backing folder goes; `/dev/shm` keeps the machine's own disk out of the figures.
    pub backing_in: PathBuf,
    /// How much can be volatile at once.
    pub cache_mib: u64,
    /// What a cut leaves whole: 512, or 4096 as on drives with physical sectors of 4 KiB.
    pub sector_bytes: u64,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            model: ModelName::None,
            seed: 1,
            backing_in: PathBuf::from("/dev/shm"),
            cache_mib: 512,
            sector_bytes: 512,
        }
    }
}

/// What reached storage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Per file, by path from the top of the mount (`/image.raw`).
    pub files: BTreeMap<String, FileCounters>,
    /// All files.
    pub total: FileCounters,
    /// Syncs of directories.
    pub directory_syncs: u64,
}

/// A cut.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cut {
    /// When, on CLOCK_MONOTONIC: comparable with [`crate::channel::Arrival::at_ns`].
    pub at_ns: u64,
    /// With which seed: the same seed and the same history give the same outcome.
    pub seed: u64,
    /// What it did.
    pub report: CutReport,
}

/// The mount's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Whether there is power.
    pub powered: bool,
    /// Operations that have arrived since the mount.
    pub operations: u64,
    /// Bytes that a cut could take.
    pub volatile_bytes: u64,
    /// Changes of names that a cut could take.
    pub volatile_names: u64,
    /// The last cut, if there was one.
    pub last_cut: Option<Cut>,
}

/// A mount; unmounted and removed when dropped, or when this program dies.
pub struct PowerMount {
    process: Group,
    mountpoint: PathBuf,
    control: PathBuf,
    // Declared last: removed when nothing is mounted in it any more.
    folder: Workdir,
    backing: PathBuf,
}

impl PowerMount {
    /// Mounts a fresh file system.
    ///
    /// # Errors
    /// FUSE is missing, or `afterimage-lab` is.
    pub fn mount(options: &MountOptions) -> Result<PowerMount> {
        let folder = Workdir::new("fuse")?;
        let mountpoint = folder.join("mnt");
        fs::create_dir(&mountpoint).context(|| format!("make {}", mountpoint.display()))?;
        let control = folder.join("control");
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let backing = options.backing_in.join(format!("{name}-backing"));
        let mut command = Command::new(locate::own_program("afterimage-lab")?);
        command
            .arg("fuse")
            .arg(&mountpoint)
            .arg("--backing")
            .arg(&backing)
            .args(["--model", options.model.as_str()])
            .args(["--seed", &options.seed.to_string()])
            .args(["--cache-mib", &options.cache_mib.to_string()])
            .args(["--sector-bytes", &options.sector_bytes.to_string()])
            .arg("--control")
            .arg(&control)
            .stdin(Stdio::null());
        let cleanup = format!(
            "fusermount3 -u -z {mount} || umount -l {mount}\nrm -rf {backing}",
            mount = quote(&mountpoint.to_string_lossy()),
            backing = quote(&backing.to_string_lossy())
        );
        let mut process = Group::spawn("the lab's file system", &mut command, Vec::new(), &cleanup)?;
        let limit = Duration::from_secs(10);
        let end = Instant::now() + limit;
        while UnixStream::connect(&control).is_err() {
            if let Some(status) = process.try_status() {
                return Err(LabError::Peer(format!("the lab's file system ended at once: {status}")));
            }
            if Instant::now() >= end {
                return Err(LabError::Deadline {
                    what: "the mount of the lab's file system".to_owned(),
                    limit,
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(PowerMount { process, mountpoint, control, folder, backing })
    }

    /// A file in the mount.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Sends one command of the control socket (see the module `control`) and returns its answer.
    ///
    /// # Errors
    /// The file system refuses, or has gone.
    pub fn request(&self, command: &Value) -> Result<Value> {
        ask(&self.control, "the lab's file system", command).map(|(_, answer)| answer)
    }

    fn typed<T: serde::de::DeserializeOwned>(&self, command: &Value) -> Result<T> {
        let answer = self.request(command)?;
        serde_json::from_value(answer).map_err(|error| {
            LabError::Peer(format!("the answer of the lab's file system to {command}: {error}"))
        })
    }

    /// What has reached storage.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn counters(&self) -> Result<Counters> {
        self.typed(&json!({ "command": "counters" }))
    }

    /// Sets every counter to zero.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn reset_counters(&self) -> Result<()> {
        self.request(&json!({ "command": "reset-counters" })).map(drop)
    }

    /// The state.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn status(&self) -> Result<Status> {
        self.typed(&json!({ "command": "status" }))
    }

    /// Cuts the power now; the odds of survival are drawn from the seed.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn cut(&self, seed: u64, torn_per_mille: u64) -> Result<Cut> {
        self.typed(&json!({ "command": "cut", "seed": seed, "torn_per_mille": torn_per_mille }))
    }

    /// Cuts the power so that of 1000 volatile things this many survive.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn cut_keeping(&self, seed: u64, kept_per_mille: u64, torn_per_mille: u64) -> Result<Cut> {
        self.typed(&json!({
            "command": "cut", "seed": seed, "kept_per_mille": kept_per_mille, "torn_per_mille": torn_per_mille,
        }))
    }

    /// The power goes by itself at the operation that is this many away.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn arm(&self, after_operations: u64, seed: u64, torn_per_mille: u64) -> Result<()> {
        self.request(&json!({
            "command": "arm", "after_operations": after_operations, "seed": seed, "torn_per_mille": torn_per_mille,
        }))
        .map(drop)
    }

    /// The power is back. Kill first whatever was running when it went: no open file survives.
    ///
    /// # Errors
    /// As [`PowerMount::request`]; there was power.
    pub fn restore(&self) -> Result<()> {
        self.request(&json!({ "command": "restore" })).map(drop)
    }

    /// Replaces the faults in force.
    ///
    /// # Errors
    /// As [`PowerMount::request`].
    pub fn set_faults(&self, faults: &Faults) -> Result<()> {
        let mut command = serde_json::to_value(faults).unwrap_or_default();
        command["command"] = json!("fault");
        self.request(&command).map(drop)
    }

    /// The process that holds the mount.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for PowerMount {
    fn drop(&mut self) {
        // In order if possible. A process that was killed leaves its mount behind.
        let _ = self.process.terminate(Duration::from_secs(10));
        let _ = umount2(&self.mountpoint, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir_all(&self.backing);
        let _ = self.folder.path();
    }
}
