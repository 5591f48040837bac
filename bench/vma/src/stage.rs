//! Where a cell's images lie: one modelled device, or a folder on the machine's disk, that all guests share.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use afterimage_lab::daemon::{Daemon, ServeOptions};
use afterimage_lab::powerfs::{ModelName, MountOptions, PowerMount};
use afterimage_lab::process::Workdir;
use rustix::fs::{major, minor};

use crate::catalog::{Device, JournalPolicy, Setup};
use crate::record::CellKey;
use crate::scale::{Scale, HOST_DIRTY_BYTES};
use afterimage_bench_kit::io::{settle, StorageIo};
use afterimage_bench_kit::process::copy_sparse;
use afterimage_bench_kit::{Context, Result};

enum Ground {
    Model(PowerMount),
    Disk(Workdir),
}

/// A place for one cell.
pub struct Stage {
    ground: Ground,
    images: Vec<PathBuf>,
}

impl Stage {
    /// Puts a copy of `template` for each guest on the device. `scratch` is the folder for the machine's disk.
    ///
    /// # Errors
    /// The file system can not be mounted, or there is no space.
    pub fn new(device: Device, guests: u32, template: &Path, scratch: &Path) -> Result<Stage> {
        let model = match device {
            Device::Hdd15k => Some(ModelName::Hdd15k),
            Device::Ssd => Some(ModelName::Ssd),
            Device::Disk => None,
        };
        let ground = match model {
            Some(model) => {
                // Nobody cuts the power here: what a cut could take need not be remembered.
                let options = MountOptions { model, cache_mib: 64, ..MountOptions::default() };
                Ground::Model(PowerMount::mount(&options)?)
            }
            None => Ground::Disk(Workdir::new_in(scratch, "vma-images")?),
        };
        let folder = match &ground {
            Ground::Model(mount) => {
                limit_dirty_pages(mount.path())?;
                mount.path().to_owned()
            }
            Ground::Disk(folder) => folder.path().to_owned(),
        };
        let mut images = Vec::new();
        for guest in 0..guests {
            let image = folder.join(format!("disk{guest}.img"));
            copy_sparse(template, &image)?;
            images.push(image);
        }
        let stage = Stage { ground, images };
        stage.settle()?;
        Ok(stage)
    }

    /// The images, one for each guest.
    pub fn images(&self) -> &[PathBuf] {
        &self.images
    }

    /// Brings what the host's page cache holds of the images to the device, and out of the cache: whoever reads next
    /// reads from the device.
    ///
    /// # Errors
    /// The device fails.
    pub fn settle(&self) -> Result<()> {
        self.images.iter().try_for_each(|path| settle(path, true))
    }

    /// What has reached storage so far: counted below everything on a model, by the daemons (those that still live)
    /// on the machine's disk.
    ///
    /// # Errors
    /// Somebody who has to answer does not.
    pub fn storage(&self, daemons: &[Daemon]) -> Result<StorageIo> {
        match &self.ground {
            Ground::Model(mount) => Ok(StorageIo::of_model(&mount.counters()?).unsigned()),
            Ground::Disk(_) => written_by(daemons),
        }
    }
}

/// What the daemons themselves count: files and logs, before any page cache.
///
/// # Errors
/// One does not answer.
pub fn written_by(daemons: &[Daemon]) -> Result<StorageIo> {
    let add = |sum: StorageIo, daemon| Ok(sum.and(&StorageIo::of_daemon(daemon)?));
    daemons.iter().try_fold(StorageIo::default(), add)
}

/// Starts a daemon on an image.
///
/// # Errors
/// It would not start.
pub fn serve(key: &CellKey, image: &Path, scale: &Scale) -> Result<Daemon> {
    let mut options = ServeOptions::new(&key.contract, &[image.to_owned()]);
    let retain_max = scale.retain_max_mib.map(|mib| format!("{mib}M"));
    let mut extra: Vec<&str> = match key.mode.policy() {
        JournalPolicy::Passthrough => Vec::new(),
        JournalPolicy::Retain => vec!["--journal", "retain"],
        JournalPolicy::Drop => vec!["--journal", "drop-for-bench"],
    };
    if let (JournalPolicy::Retain, Some(bound)) = (key.mode.policy(), &retain_max) {
        extra.extend(["--retain-max", bound]);
    }
    if key.setup == Setup::Vflush {
        extra.push("--vflush-at-truncation");
    }
    options.extra = extra.into_iter().map(str::to_owned).collect();
    Ok(Daemon::serve(&options)?)
}

/// Lets the host hold only [`HOST_DIRTY_BYTES`] of the mount dirty, see there.
fn limit_dirty_pages(mountpoint: &Path) -> Result<()> {
    let device = fs::metadata(mountpoint).context(|| format!("look at {}", mountpoint.display()))?.dev();
    let folder = format!("/sys/class/bdi/{}:{}", major(device), minor(device));
    for (name, value) in [("strict_limit", "1".to_owned()), ("max_bytes", HOST_DIRTY_BYTES.to_string())] {
        let path = format!("{folder}/{name}");
        fs::write(&path, value).context(|| {
            format!("write {path} (Linux 6.2 or newer, as root: the host's share of dirty pages)")
        })?;
    }
    Ok(())
}
