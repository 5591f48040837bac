//! Recovery against two independent oracles: a guest kernel's own replay, and e2fsck's.
//!
//! ```text
//!   guest frozen ─┬─► image, arena, state copied ─► both killed ─► put back ─► `afterimage recover` ─► e2fsck ─► tree ─┐
//!                 └─► paused, materialised: copied ─┬─► e2fsck -fy ─────────────────────────────────────────► tree ─┤ same
//!                                                   └─► mounted by a guest's kernel, without any daemon ────► tree ─┘
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::rig::{self, copy, extract, judge_end, Rig, Snapshot};
use super::tree::Tree;
use crate::error::{Context, LabError, Result};
use crate::fsck;
use crate::guest::{Guest, Vmm};
use crate::process::Workdir;

/// The disk at the instant at which everybody dies.
pub(super) struct Moment {
    snapshot: Snapshot,
    folder: Workdir,
}

impl Moment {
    /// Takes it. The guest must stand still.
    pub fn take(rig: &Rig) -> Result<Moment> {
        let snapshot = rig.snapshot()?;
        let folder = Workdir::new("oracles")?;
        rig.materialised(&folder.join("materialised"))?;
        Ok(Moment { snapshot, folder })
    }

    /// Puts the disk back into the state of that instant.
    pub fn put_back(&self) -> Result<()> {
        self.snapshot.put_back()
    }

    /// For evidence.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = self.snapshot.files();
        files.push(self.folder.join("materialised"));
        files
    }

    /// Compares what `recover` made, a bare file system, with what the oracles make; returns how many names there are.
    pub fn compare(&self, rig: &Rig, recovered: &Path) -> Result<usize> {
        let ours = self.folder.join("ours");
        copy(recovered, &ours)?;
        fsck::mend(&ours)?;
        let ours = Tree::of(&ours)?;

        let theirs = self.folder.join("e2fsck");
        let format = rig.setup.format;
        extract(&self.folder.join("materialised"), &theirs, format)?;
        fsck::mend(&theirs)?;
        let told = "what `recover` made is not what e2fsck makes of the materialised journal";
        same(told, &ours, &Tree::of(&theirs)?, None)?;

        let kernel = self.folder.join("kernel");
        extract(&self.folder.join("materialised"), &kernel, format)?;
        let since_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        replay_in_guest(rig, &kernel)?;
        fsck::clean(&kernel, 0)?;
        let told = "what `recover` made is not what the guest's kernel makes of the materialised journal";
        same(told, &ours, &Tree::of(&kernel)?, Some(since_s))?;
        for name in ["ours", "e2fsck", "kernel"] {
            let path = self.folder.join(name);
            fs::remove_file(&path).context(|| format!("remove {}", path.display()))?;
        }
        Ok(ours.names())
    }
}

fn same(told: &str, ours: &Tree, theirs: &Tree, changed_since_s: Option<i64>) -> Result<()> {
    let found = ours.differences(theirs, changed_since_s);
    if found.is_empty() {
        return Ok(());
    }
    let shown = &found[..found.len().min(6)];
    Err(LabError::Broken(format!("{told}: {} differences:\n  {}", found.len(), shown.join("\n  "))))
}

/// Mounts and unmounts the image in a guest whose kernel reads the file itself.
fn replay_in_guest(rig: &Rig, image: &Path) -> Result<()> {
    let format = rig.setup.format;
    let script = format!(
        "{} || {{ dmesg | tail -n 20; exit {}; }}\numount /mnt\n",
        format.mount_of("/dev/ubda"),
        rig::NO_MOUNT
    );
    let mut guest = Guest::builder(Vmm::Uml)
        .memory_mib(96)
        .kernel_argument(&format!("ubd0={}", image.display()))
        .limit(crate::suite::GUEST_LIMIT)
        .start(&script)?;
    judge_end(&mut guest)
}
