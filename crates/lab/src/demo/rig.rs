//! One scenario's place: a folder for inputs, a server, and the image either on a plain file system or on the
//! lab's own, whose power can be cut. Everything goes when it is dropped, or when this program dies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::inside::Data;
use super::plan::GUEST_LIMIT;
use super::server::Kind;
use crate::daemon::Daemon;
use crate::error::{Context, LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Guest, GuestBuilder, Vmm};
use crate::locate;
use crate::powerfs::{ModelName, MountOptions, PowerMount};
use crate::process::{self, Workdir};

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
    /// Where retained journals are: in memory, and gone with this program.
    arena: Workdir,
    folder: Workdir,
    memory_mib: u32,
    data: Data,
    /// What servers said that are gone.
    messages: String,
}

impl Rig {
    /// An image in `images_in`.
    ///
    /// # Errors
    /// A folder or the image can not be made.
    pub fn plain(images_in: &Path, bytes: u64) -> Result<Rig> {
        Rig::on(Ground::Plain(Workdir::new_in(images_in, "demo-image")?), bytes)
    }

    /// An image on the lab's file system, on a drive with the physical sectors that the daemon reports: where a cut tears smaller ones, the guest's
    /// kernel may refuse its journal ("transaction is corrupt", before Linux 6.10), whoever serves the disk.
    ///
    /// # Errors
    /// It can not be mounted, or the image can not be made.
    pub fn power(model: ModelName, images_in: &Path, seed: u64, bytes: u64) -> Result<Rig> {
        let backing_in = images_in.to_path_buf();
        let options = MountOptions { model, seed, backing_in, sector_bytes: 4096, ..MountOptions::default() };
        Rig::on(Ground::Power(PowerMount::mount(&options)?), bytes)
    }

    fn on(ground: Ground, bytes: u64) -> Result<Rig> {
        let rig = Rig {
            server: None,
            ground,
            arena: Workdir::new_in(Path::new("/dev/shm"), "demo-arena")?,
            folder: Workdir::new("demo")?,
            memory_mib: 256,
            data: Data::Ordered,
            messages: String::new(),
        };
        let program = locate::product()?;
        process::run(Command::new(program).arg("create").arg(rig.image()).arg(bytes.to_string()))?;
        Ok(rig)
    }

    /// Guests with so much memory that mount the disk in this mode.
    pub fn for_guests(mut self, memory_mib: u32, data: Data) -> Rig {
        self.memory_mib = memory_mib;
        self.data = data;
        self
    }

    /// How guests mount the disk.
    pub fn data(&self) -> Data {
        self.data
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
        self.server = Some(kind.start(&self.image(), self.arena.path())?);
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
        let builder = Guest::builder(vmm).memory_mib(self.memory_mib).limit(GUEST_LIMIT);
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

    /// The files beside the image, and the memory of retained journals, that an orderly end should have removed.
    ///
    /// # Errors
    /// The folder can not be read.
    pub fn left_beside_image(&self) -> Result<Vec<String>> {
        let mut names = names_in(self.image_folder())?;
        names.retain(|name| name != IMAGE);
        names.extend(names_in(self.arena.path())?);
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
        process::run(&mut make)?;
        process::run(Command::new("sync").arg("-f").arg(self.image())).map(drop)
    }

    /// Makes the kernel begin to write back what it holds of the image and its log, without waiting and without a
    /// sync, as it may at any time: otherwise a cut would find nothing on its way to the device.
    ///
    /// # Errors
    /// A file can not be opened.
    pub fn nudge_write_back(&self) -> Result<()> {
        for path in names_in(self.image_folder())?.iter().map(|name| self.image_folder().join(name)) {
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
        let mut paths = Vec::new();
        for folder in [self.image_folder(), self.arena.path()] {
            paths.extend(names_in(folder).unwrap_or_default().iter().map(|name| folder.join(name)));
        }
        // An arena stands in a folder of its own.
        for path in paths.iter_mut().filter(|path| path.is_dir()) {
            path.push("arena");
        }
        evidence.text(&format!("{tag}-daemon.log"), &messages);
        evidence.files(&paths, &format!("{tag}-"));
    }
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    let failed = || format!("read {}", folder.display());
    fs::read_dir(folder)
        .context(failed)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).context(failed))
        .collect()
}
