//! Where a cell's image lies: the lab's file system, or a folder on the machine's disk; for `nested`, in an
//! ext4 of its own on a loop device above that.
//!
//! ```text
//!   image ─────────────────────────────────► device (model in FUSE, or the machine's disk)
//!   nested: image ─► ext4 ─► loop ─► outer image ─► device
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use afterimage_lab::daemon::{Daemon, Nested};
use afterimage_lab::powerfs::{ModelName, MountOptions, PowerMount};
use afterimage_lab::process::Workdir;

use crate::catalog::{Device, Row};
use crate::daemon;
use crate::scale::DISK_BYTES;
use afterimage_bench_kit::io::{settle, CountedBy, StorageIo};
use afterimage_bench_kit::process::copy_sparse;
use afterimage_bench_kit::{BenchError, Context, Result};

enum Ground {
    Model(PowerMount),
    Disk(Workdir),
}

/// A place for one cell.
pub struct Stage {
    // In the order in which they go.
    nested: Option<Nested>,
    ground: Ground,
    image: PathBuf,
}

impl Stage {
    /// Puts a copy of `template` on the device. `scratch` is the folder for the machine's disk; `cold`: nothing of
    /// it in the host's page cache.
    ///
    /// # Errors
    /// The file system can not be mounted, or there is no space.
    pub fn new(device: Device, row: Row, template: &Path, scratch: &Path, cold: bool) -> Result<Stage> {
        let model = match device {
            Device::Hdd15k | Device::Hdd15kExt4 => Some(ModelName::Hdd15k),
            Device::Ssd => Some(ModelName::Ssd),
            Device::Disk => None,
        };
        let ground = match model {
            Some(model) => {
                Ground::Model(PowerMount::mount(&MountOptions { model, ..MountOptions::default() })?)
            }
            None => Ground::Disk(Workdir::new_in(scratch, "bench-image")?),
        };
        let folder = match &ground {
            Ground::Model(mount) => mount.path().to_owned(),
            Ground::Disk(folder) => folder.path().to_owned(),
        };
        let nested = match (device, row) {
            (Device::Hdd15kExt4, _) | (_, Row::Nested) => {
                Some(Nested::mount(&folder.join("outer.img"), DISK_BYTES + DISK_BYTES / 4)?)
            }
            _ => None,
        };
        let image = nested.as_ref().map_or_else(|| folder.join("disk.img"), |inner| inner.join("disk.img"));
        copy_sparse(template, &image)?;
        settle(&image, cold)?;
        if nested.is_some() {
            // The loop device's own view of it, too.
            settle(&folder.join("outer.img"), cold)?;
        }
        Ok(Stage { nested, ground, image })
    }

    /// What the daemon serves.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// What has reached storage so far. On a model: everything, counted below everything. On the machine's
    /// disk: what the daemon knows (of `nested`: what the loop device got).
    ///
    /// # Errors
    /// Somebody who has to answer does not.
    pub fn storage(&self, row: Row, daemon: Option<&Daemon>) -> Result<Option<StorageIo>> {
        match (&self.ground, &self.nested, daemon) {
            (Ground::Model(mount), _, _) => Ok(Some(StorageIo::of_model(&mount.counters()?))),
            (Ground::Disk(_), Some(nested), _) => loop_storage(nested).map(Some),
            (Ground::Disk(_), None, Some(daemon)) => daemon::storage(row, daemon).map(Some),
            (Ground::Disk(_), None, None) => Ok(None),
        }
    }
}

/// What the host's ext4 sent to its loop device.
fn loop_storage(nested: &Nested) -> Result<StorageIo> {
    let mountpoint = nested.join("");
    let mounts = fs::read_to_string("/proc/mounts").context(|| "read /proc/mounts".to_owned())?;
    let device = mounts.lines().find_map(|line| {
        let (device, rest) = line.split_once(' ')?;
        (Path::new(rest.split(' ').next()?) == mountpoint)
            .then(|| device.trim_start_matches("/dev/").to_owned())
    });
    let device = device
        .ok_or_else(|| BenchError::Workload(format!("nothing is mounted on {}", mountpoint.display())))?;
    let path = format!("/sys/block/{device}/stat");
    let text = fs::read_to_string(&path).context(|| format!("read {path}"))?;
    let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    Ok(StorageIo {
        counted_by: Some(CountedBy::LoopDevice),
        reads: Some(word(0)),
        read_bytes: Some(word(2) * 512),
        writes: Some(word(4)),
        write_bytes: word(6) * 512,
        flushes: Some(word(15)),
        seeks: None,
    })
}
