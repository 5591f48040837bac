//! One scenario's place: a folder for inputs, a server, and the image either on a plain file system or on the
//! lab's own, whose power can be cut. Everything goes when it is dropped, or when this program dies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::evidence::Evidence;
use super::plan::{DISK_BYTES, GUEST_LIMIT};
use super::server::Kind;
use crate::daemon::{self, Daemon};
use crate::error::{Context, LabError, Result};
use crate::guest::{Guest, GuestBuilder, Vmm};
use crate::locate;
use crate::powerfs::{ModelName, MountOptions, PowerMount};
use crate::process::Workdir;

/// The image's name.
const IMAGE: &str = "disk.img";

/// Where the image lies.
enum Ground {
    Plain(Workdir),
    Power(PowerMount),
}

/// A place.
pub struct Rig {
    // Dropped first: nothing may serve an image that goes away.
    server: Option<Daemon>,
    ground: Ground,
    folder: Workdir,
    /// What servers said that are gone.
    messages: String,
}

impl Rig {
    /// An image in `images_in`.
    ///
    /// # Errors
    /// A folder or the image can not be made.
    pub fn plain(images_in: &Path) -> Result<Rig> {
        let ground = Ground::Plain(Workdir::new_in(images_in, "demo-image")?);
        Rig { server: None, ground, folder: Workdir::new("demo")?, messages: String::new() }.with_image()
    }

    /// An image on the lab's file system.
    ///
    /// # Errors
    /// It can not be mounted, or the image can not be made.
    pub fn power(model: ModelName, images_in: &Path, seed: u64) -> Result<Rig> {
        let options =
            MountOptions { model, seed, backing_in: images_in.to_path_buf(), ..MountOptions::default() };
        let ground = Ground::Power(PowerMount::mount(&options)?);
        Rig { server: None, ground, folder: Workdir::new("demo")?, messages: String::new() }.with_image()
    }

    fn with_image(self) -> Result<Rig> {
        let program = locate::own_program("afterimage")?;
        daemon::run(Command::new(program).arg("create").arg(self.image()).arg(DISK_BYTES.to_string()))?;
        Ok(self)
    }

    /// The image.
    pub fn image(&self) -> PathBuf {
        self.image_folder().join(IMAGE)
    }

    fn image_folder(&self) -> &Path {
        match &self.ground {
            Ground::Plain(folder) => folder.path(),
            Ground::Power(mount) => mount.path(),
        }
    }

    /// The folder for inputs; guests see it under the same name.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The lab's file system.
    ///
    /// # Errors
    /// The image is not on it.
    pub fn mount(&self) -> Result<&PowerMount> {
        match &self.ground {
            Ground::Power(mount) => Ok(mount),
            Ground::Plain(_) => Err(LabError::Missing("this image is on a plain file system".to_owned())),
        }
    }

    /// Starts a server of the image; the one before, if it still runs, is killed.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    pub fn serve(&mut self, kind: Kind) -> Result<()> {
        self.kill_server();
        self.server = Some(kind.start(&self.image())?);
        Ok(())
    }

    /// The server.
    ///
    /// # Errors
    /// There is none.
    pub fn server(&mut self) -> Result<&mut Daemon> {
        self.server.as_mut().ok_or_else(|| LabError::Missing("nothing serves the image".to_owned()))
    }

    /// Kills the server with SIGKILL, its keeper included.
    pub fn kill_server(&mut self) {
        if let Some(server) = self.server.take() {
            self.messages.push_str(&server.log());
            drop(server);
        }
    }

    /// Ends the server in order.
    ///
    /// # Errors
    /// It did not: for ours, a broken promise.
    pub fn stop_server(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        self.messages.push_str(&server.log());
        match server.stop() {
            Err(LabError::Peer(text)) => Err(LabError::Broken(format!("it did not end in order: {text}"))),
            outcome => outcome,
        }
    }

    /// A guest with the image as its disk.
    pub fn guest(&self, vmm: Vmm) -> GuestBuilder {
        let builder = Guest::builder(vmm).memory_mib(256).limit(GUEST_LIMIT);
        match &self.server {
            Some(server) => builder.disk(server.socket()),
            None => builder,
        }
    }

    /// `e2fsck -fn` of the image as a plain file, on the host: after an orderly end nothing else is needed.
    ///
    /// # Errors
    /// It could not be run.
    pub fn e2fsck(&self) -> Result<(bool, String)> {
        let program = locate::system_program("e2fsck", "e2fsprogs")?;
        let output = Command::new(program)
            .arg("-fn")
            .arg(self.image())
            .output()
            .context(|| "run e2fsck".to_owned())?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok((output.status.success(), text))
    }

    /// The files beside the image that an orderly end should have removed.
    ///
    /// # Errors
    /// The folder can not be read.
    pub fn left_beside_image(&self) -> Result<Vec<String>> {
        let folder = self.image_folder();
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).context(|| format!("read {}", folder.display()))? {
            let entry = entry.context(|| format!("read {}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != IMAGE {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Makes an ext4 in the image from the host, and lets nothing of that wait to be written.
    ///
    /// # Errors
    /// mkfs or sync failed.
    pub fn make_file_system(&self) -> Result<()> {
        let mkfs = locate::system_program("mkfs.ext4", "e2fsprogs")?;
        let mut make = Command::new(mkfs);
        make.args(["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"])
            .arg(self.image());
        daemon::run(&mut make)?;
        daemon::run(Command::new("sync").arg("-f").arg(self.image())).map(drop)
    }

    /// Makes the kernel begin to write back what it holds of the image and its log, without waiting and without a
    /// sync, as it may at any time: otherwise a cut would find nothing on its way to the device.
    ///
    /// # Errors
    /// A file can not be opened.
    pub fn nudge_write_back(&self) -> Result<()> {
        let mut names = self.left_beside_image()?;
        names.push(IMAGE.to_owned());
        for path in names.iter().map(|name| self.image_folder().join(name)) {
            let file = fs::File::open(&path).context(|| format!("open {}", path.display()))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .context(|| format!("begin to write back {}", path.display()))?;
        }
        Ok(())
    }

    /// Copies the image and its log, and what the servers said, to the evidence.
    pub fn keep(&self, evidence: &Evidence, tag: &str) {
        let mut messages = self.messages.clone();
        if let Some(server) = &self.server {
            messages.push_str(&server.log());
        }
        let mut paths = vec![self.image()];
        if let Ok(names) = self.left_beside_image() {
            paths.extend(names.iter().map(|name| self.image_folder().join(name)));
        }
        let said = evidence.text(&format!("{tag}-daemon.log"), &messages);
        let copied = paths.iter().try_for_each(|path| evidence.copy(path, tag));
        if let Err(error) = said.and(copied) {
            tracing::warn!(%error, "evidence is incomplete");
        }
    }
}
