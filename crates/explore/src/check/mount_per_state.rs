//! How the peers check a state: a whole image, mounted by the host's kernel (CrashMonkey; xfstests over dm-log-writes).
//!
//! ```text
//!   state ─► image file, in full ─► mount -o loop (the kernel recovers) ─► umount ─► e2fsck -fn: clean?
//! ```
//!
//! Here for the benchmark, which measures it beside our own way on the same states. Needs root and loop devices, and gives
//! every state to the host's own kernel: a state that kills a kernel kills this machine.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use afterimage_lab::locate::system_program;
use afterimage_lab::process::{quote, Cleanup, Workdir};
use afterimage_trace::PAGE_BYTES;

use super::fsck::words;
use super::{Checker, Observation};
use crate::state::{Scratch, SECTOR_BYTES};
use crate::{ExploreError, Result};

/// See the module. One per thread.
#[derive(Debug)]
pub struct MountPerState {
    image: PathBuf,
    pub(super) folder: PathBuf,
    options: String,
    mount: PathBuf,
    umount: PathBuf,
    e2fsck: PathBuf,
    // In the order in which they go: first the mount, then the folder that it is in.
    _cleanup: Cleanup,
    _workdir: Workdir,
}

impl MountPerState {
    /// For an ext4 on the first disk; `options` as mount(8) takes them. Images are made in `/dev/shm`.
    ///
    /// # Errors
    /// Not root, or a program is missing.
    pub fn new(options: &str) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(ExploreError::Usage(
                "mounting every state with the host's kernel needs root: run this benchmark as root"
                    .to_owned(),
            ));
        }
        let workdir = Workdir::new_in("/dev/shm".as_ref(), "mount-per-state")?;
        let (image, folder) = (workdir.join("image"), workdir.join("mounted"));
        fs::create_dir(&folder).map_err(ExploreError::io(format!("make {}", folder.display())))?;
        // umount frees the loop device too: mount has made it to be freed with its last user.
        let cleanup = Cleanup::arm(&format!(
            "umount {0} 2> /dev/null || umount -l {0}",
            quote(&folder.to_string_lossy())
        ))?;
        Ok(Self {
            image,
            folder,
            options: if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") },
            mount: system_program("mount", "mount")?,
            umount: system_program("umount", "mount")?,
            e2fsck: system_program("e2fsck", "e2fsprogs")?,
            _cleanup: cleanup,
            _workdir: workdir,
        })
    }

    fn materialise(&self, state: &Scratch) -> std::io::Result<()> {
        let file = File::create(&self.image)?;
        let image = state.image();
        file.set_len(image.len())?;
        for (index, page) in image.base().pages() {
            let at = index * PAGE_BYTES as u64;
            file.write_all_at(&page[..(image.len() - at).min(PAGE_BYTES as u64) as usize], at)?;
        }
        for (sector, content) in image.overlay() {
            let bytes = content.bytes().unwrap_or(&[0; SECTOR_BYTES]);
            file.write_all_at(bytes, sector * SECTOR_BYTES as u64)?;
        }
        let mut written = Ok(());
        state.changed(|index, page| {
            if written.is_ok() {
                written = file.write_all_at(page, index * PAGE_BYTES as u64);
            }
        });
        written
    }

    fn run(&self, command: &mut Command) -> Result<Output> {
        let what = format!("run {}", command.get_program().to_string_lossy());
        command.env("LC_ALL", "C").stdin(Stdio::null()).output().map_err(ExploreError::io(what))
    }
}

impl Checker for MountPerState {
    fn name(&self) -> &'static str {
        "mount-per-state"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> Result<Observation> {
        let state = disks.first().ok_or_else(|| ExploreError::Usage("no disk to mount".to_owned()))?;
        self.materialise(state)
            .map_err(ExploreError::io(format!("write a state to {}", self.image.display())))?;
        let bad = |what: &str, output: &Output| {
            Ok(Observation::Inconsistent { what: what.to_owned(), evidence: words(output) })
        };
        let mut mount = Command::new(&self.mount);
        mount.args(["-t", "ext4", "-o", &self.options]).arg(&self.image).arg(&self.folder);
        let mounted = self.run(&mut mount)?;
        if !mounted.status.success() {
            let words = words(&mounted);
            if words.contains("loop device") {
                return Err(ExploreError::Checker(format!("mount finds no loop device: {}", words.trim())));
            }
            return bad("the kernel refuses to mount the state", &mounted);
        }
        let unmounted = self.run(Command::new(&self.umount).arg(&self.folder))?;
        if !unmounted.status.success() {
            return Err(ExploreError::Checker(format!("umount failed: {}", words(&unmounted))));
        }
        let clean = self.run(Command::new(&self.e2fsck).arg("-fn").arg(&self.image))?;
        match clean.status.code() {
            Some(0) => Ok(Observation::Sound),
            _ => bad("e2fsck -fn finds errors after recovery", &clean),
        }
    }
}
