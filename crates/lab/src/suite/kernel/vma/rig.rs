//! A disk whose journal is retained, its control disk, and the guests that hand commits over.

use std::path::{Path, PathBuf};

use super::Way;
use crate::acks::{Allowance, Ledger};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::{Guest, GuestBuilder};
use crate::process::Workdir;
use crate::suite::kernel::{self, Build};
use crate::suite::workload::{self, FileSystem, IMAGE_BYTES};

/// What the kernel says when it writes its journal to the disk.
pub(super) const FELL_BACK: &str = "the control disk did not take";

/// QEMU looks for its daemon once a second.
pub(super) const RECONNECT_S: u32 = 1;

/// Disks whose journals are retained, and their control disk, the guest's last device.
pub(super) struct Rig {
    images: Vec<PathBuf>,
    pub options: ServeOptions,
    pub daemon: Daemon,
    // Declared last: the folders go after the daemon.
    _folders: [Workdir; 2],
}

impl Rig {
    /// One disk.
    pub fn new(contract: &str, keep: bool) -> Result<Rig> {
        Rig::of(1, contract, keep)
    }

    /// So many.
    pub fn of(disks: u32, contract: &str, keep: bool) -> Result<Rig> {
        let (folder, memory) = (Workdir::new("vma")?, Workdir::new_in(Path::new("/dev/shm"), "arena")?);
        let images: Vec<PathBuf> = (0..disks).map(|disk| folder.join(format!("disk{disk}.raw"))).collect();
        images.iter().try_for_each(|image| daemon::create_image(image, IMAGE_BYTES))?;
        let arena = memory.path().display().to_string();
        let extra = ["--journal", "retain", "--arena", &arena].map(str::to_owned).to_vec();
        let options =
            ServeOptions { keep, control_disk: true, extra, ..ServeOptions::new(contract, &images) };
        let daemon = Daemon::serve(&options)?;
        Ok(Rig { images, options, daemon, _folders: [folder, memory] })
    }

    /// Blocks that this daemon was handed over.
    pub fn handed_over(&self) -> Result<u64> {
        let told = self.daemon.status()?.control_disk;
        Ok(told.map_or(0, |told| told.handed_over_blocks + told.published_blocks))
    }

    /// Commits that came in the way that they should.
    pub fn expect_commits(&self, way: Way) -> Result<()> {
        let told = self.daemon.status()?.control_disk;
        match told.map_or(0, |told| if way.published { told.published } else { told.mprotects }) {
            0 => Err(LabError::Broken("no commit was handed over to this daemon".to_owned())),
            _ => Ok(()),
        }
    }

    /// A stock kernel finds everything; and so does e2fsck when the daemon has ended.
    pub fn judge(self, evidence: &Evidence, ledger: &Ledger) -> Result<String> {
        self.judge_but_for(evidence, ledger, Allowance::Nothing)
    }

    /// The same, but for what may be lost.
    pub fn judge_but_for(self, evidence: &Evidence, ledger: &Ledger, lost: Allowance) -> Result<String> {
        let stock = FileSystem::Ext4Journal;
        let outcome = workload::remains(evidence, &self.daemon, stock.mount(), stock.check())
            .and_then(|remains| workload::judge(evidence, ledger, &remains, lost));
        if outcome.is_err() {
            evidence.daemon(&self.daemon, "daemon");
        }
        let told = outcome?;
        self.end()?;
        Ok(told)
    }

    /// The daemon ends in order, and e2fsck finds nothing on any disk.
    pub fn end(self) -> Result<()> {
        let Rig { images, daemon, _folders, .. } = self;
        daemon.stop()?;
        images.iter().try_for_each(|image| fsck::clean(image, 0))
    }
}

/// Everything here is emulated, and waits for several lives of a daemon.
pub(super) fn guest(daemon: &Daemon) -> GuestBuilder {
    kernel::guest(daemon).limit(kernel::EXCHANGE_LIMIT)
}

pub(super) fn writing(build: &Build, mount: &str) -> String {
    workload::writing(&format!("{}\nmkfs.ext4 -q -F -b 4096 /dev/vda", build.load()), mount)
}

/// Ends a guest, whatever became of it, and says what it had been promised if it has lived as it should.
pub(super) fn killed(evidence: &Evidence, mut guest: Guest, lived: Result<()>) -> Result<Ledger> {
    guest.kill();
    guest.wait()?;
    evidence.guest(&guest, "first");
    lived?;
    Ledger::of(guest.channel())
}
