//! A disk whose guest's journal is retained, and the guests that come and go on it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use afterimage_protocol::status::{ArenaStatus, FileSystemStatus};
use rustix::process::Signal;

use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{Context, LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::{Ended, Guest, GuestBuilder, Vmm};
use crate::locate;
use crate::powerfs::{ModelName, MountOptions, PowerMount};
use crate::process::{self, Workdir};

use super::format::Format;

/// Long enough for what is in flight when a guest is frozen to reach the image.
const SETTLE: Duration = Duration::from_millis(80);

/// How a rig is made.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub format: Format,
    pub image_bytes: u64,
    /// `--journal`.
    pub journal: &'static str,
    pub survives: &'static str,
    pub keep: bool,
    pub retain_max: Option<&'static str>,
    /// What the image stands on; the machine's own disk for [`ModelName::None`].
    pub storage: ModelName,
    /// `--accept-loss`.
    pub accept_loss: bool,
}

impl Setup {
    /// `--journal retain` under `guest-crash`, on a small disk.
    pub fn new(format: Format) -> Setup {
        Setup {
            format,
            image_bytes: 96 << 20,
            journal: "retain",
            survives: "guest-crash",
            keep: false,
            retain_max: None,
            storage: ModelName::None,
            accept_loss: false,
        }
    }
}

/// See the module.
pub(super) struct Rig {
    pub setup: Setup,
    pub image: PathBuf,
    pub daemon: Daemon,
    arena: PathBuf,
    /// What the last death of everybody left, before anybody went on from it.
    left: Option<Snapshot>,
    // Declared last: the folders go after whoever uses them.
    _folder: Folder,
    _memory: Workdir,
}

/// Where the image is.
enum Folder {
    Plain(Workdir),
    Modelled(PowerMount),
}

impl Folder {
    fn new(storage: ModelName) -> Result<Folder> {
        if storage == ModelName::None {
            return Workdir::new("retain").map(Folder::Plain);
        }
        let options = MountOptions { model: storage, ..MountOptions::default() };
        PowerMount::mount(&options).map(Folder::Modelled)
    }

    fn join(&self, name: &str) -> PathBuf {
        match self {
            Folder::Plain(folder) => folder.join(name),
            Folder::Modelled(mount) => mount.join(name),
        }
    }
}

/// A disk, its arena and the file between the two, as they stood at one moment.
pub(super) struct Snapshot {
    image: PathBuf,
    others: Vec<(PathBuf, PathBuf)>,
    folder: Workdir,
}

impl Snapshot {
    /// Its files, for evidence.
    pub fn files(&self) -> Vec<PathBuf> {
        let others = self.others.iter().map(|(_, copy)| copy.clone());
        std::iter::once(self.folder.join("image")).chain(others).collect()
    }

    /// Puts everything back: the image's file stays the same one, since its state file says which it is.
    pub fn put_back(&self) -> Result<()> {
        copy_into(&self.folder.join("image"), &self.image)?;
        for (place, copy) in &self.others {
            // An arena's folder goes with it.
            let folder = place.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder).context(|| format!("make {}", folder.display()))?;
            copy_into(copy, place)?;
        }
        Ok(())
    }
}

/// What the image is once nobody uses it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A clean file system.
    Clean,
    /// Whatever was made of it.
    Any,
}

/// Does something on a fresh disk, and ends its daemon in order. What there is to see if that fails is saved.
pub(super) fn on<T>(
    setup: &Setup,
    evidence: &Evidence,
    end: End,
    work: impl FnOnce(&mut Rig) -> Result<T>,
) -> Result<T> {
    let mut rig = Rig::new(setup.clone())?;
    let done = work(&mut rig).inspect_err(|_| rig.save(evidence))?;
    rig.daemon.end()?;
    if end == End::Clean {
        fsck::clean(&rig.image, setup.format.offset_bytes())?;
    }
    Ok(done)
}

impl Rig {
    /// Makes the image, partitioned but not formatted, and serves it.
    fn new(setup: Setup) -> Result<Rig> {
        let folder = Folder::new(setup.storage)?;
        let memory = Workdir::new_in(Path::new("/dev/shm"), "arena")?;
        let image = folder.join("disk.raw");
        daemon::create_image(&image, setup.image_bytes)?;
        let mut file = File::options().write(true).open(&image).context(|| "open the image".to_owned())?;
        file.write_all(&setup.format.first_sector(setup.image_bytes))
            .context(|| "write a partition table".to_owned())?;
        let arena = memory.path().to_path_buf();
        let daemon = Daemon::serve(&Rig::options(&setup, &image, &arena))?;
        Ok(Rig { setup, image, daemon, arena, left: None, _folder: folder, _memory: memory })
    }

    fn options(setup: &Setup, image: &Path, arena: &Path) -> ServeOptions {
        let mut extra = vec!["--journal".to_owned(), setup.journal.to_owned()];
        if setup.journal != "passthrough" {
            extra.extend(["--arena".to_owned(), arena.display().to_string()]);
        }
        if let Some(most) = setup.retain_max {
            extra.extend(["--retain-max".to_owned(), most.to_owned()]);
        }
        if setup.accept_loss {
            extra.push("--accept-loss".to_owned());
        }
        ServeOptions {
            keep: setup.keep,
            extra,
            ..ServeOptions::new(setup.survives, std::slice::from_ref(&image.to_path_buf()))
        }
    }

    /// The next daemon, with other options: as [`Daemon::restart_as`].
    pub fn restart_as(&mut self, setup: &Setup) -> Result<()> {
        self.daemon.restart_as(&Rig::options(setup, &self.image, &self.arena))
    }

    /// A guest on this disk.
    pub fn guest(&self, vmm: Vmm) -> GuestBuilder {
        Rig::guest_of(&self.daemon, vmm)
    }

    /// A guest on this disk, whoever serves it.
    pub fn guest_of(server: &Daemon, vmm: Vmm) -> GuestBuilder {
        let memory = if vmm == Vmm::Uml { 128 } else { 256 };
        Guest::builder(vmm).disk(server.socket()).memory_mib(memory).limit(crate::suite::GUEST_LIMIT)
    }

    /// What the daemon says of the first file system on the disk.
    pub fn file_system(&self) -> Result<Option<FileSystemStatus>> {
        self.daemon.file_system()
    }

    /// What the daemon says of the arena.
    ///
    /// # Errors
    /// It says nothing, or there is none.
    pub fn arena(&self) -> Result<ArenaStatus> {
        let arena = self.daemon.disk()?.arena;
        arena.ok_or_else(|| LabError::Broken("the daemon has no arena for its disk".to_owned()))
    }

    /// A case that is about retention must not run without it.
    ///
    /// # Errors
    /// [`LabError::Broken`], which says why it is passed through.
    pub fn expect_retained(&self) -> Result<()> {
        if self.setup.journal == "passthrough" {
            return Ok(());
        }
        expect_retained(&self.daemon)
    }

    /// Memory of the host that arenas take, in bytes.
    pub fn arena_file_bytes(&self) -> u64 {
        self.arenas().iter().filter_map(|path| path.metadata().ok()).map(|found| found.blocks() * 512).sum()
    }

    /// The arenas, each of which stands in a folder of its own.
    pub fn arenas(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.arena).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("arena")).filter(|path| path.exists()).collect()
    }

    /// `afterimage arenas --remove`, of those that are still there.
    pub fn give_up(&self, arenas: &[PathBuf]) -> Result<()> {
        for arena in arenas.iter().filter(|arena| arena.exists()) {
            let mut command = Command::new(locate::product()?);
            process::run(command.args(["arenas", "--accept-loss", "--remove"]).arg(arena))?;
        }
        Ok(())
    }

    /// Everything that a daemon which died now would leave. The guest must stand still.
    pub fn snapshot(&self) -> Result<Snapshot> {
        std::thread::sleep(SETTLE);
        self.daemon.signal(Signal::STOP)?;
        let copied = self.copy_all();
        self.daemon.signal(Signal::CONT)?;
        copied
    }

    fn copy_all(&self) -> Result<Snapshot> {
        let folder = Workdir::new("snapshot")?;
        copy(&self.image, &folder.join("image"))?;
        let mut others = Vec::new();
        // The arena; and beside the image its state file and the redo log, where there is one.
        let listed = |folder: &Path| -> Result<Vec<PathBuf>> {
            let entries = fs::read_dir(folder).context(|| format!("list {}", folder.display()))?;
            let files = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
            Ok(files.map(|entry| entry.path()).collect())
        };
        let beside = listed(self.image.parent().unwrap_or(Path::new(".")))?;
        let name = format!("{}.", self.image.display());
        let beside = beside.into_iter().filter(|path| path.to_string_lossy().starts_with(&name));
        for place in self.arenas().into_iter().chain(beside) {
            let copied = folder.join(format!("other{}", others.len()));
            copy(&place, &copied)?;
            others.push((place, copied));
        }
        Ok(Snapshot { image: self.image.clone(), others, folder })
    }

    /// Whether the daemon retains the journal now: it may pass it through, or have given it back to the disk.
    pub fn is_retained(&self) -> Result<bool> {
        Ok(self.file_system()?.is_some_and(|found| found.mode == "retain"))
    }

    /// Everything as it is. Nobody may be at work.
    pub fn remembered(&self) -> Result<Snapshot> {
        self.copy_all()
    }

    /// A copy of the served image, as its users make one, in a folder.
    pub fn back_up(&self) -> Result<Workdir> {
        let socket = self.daemon.control_socket();
        let socket =
            socket.ok_or_else(|| LabError::Missing("the daemon has no control socket".to_owned()))?;
        let folder = Workdir::new("backup")?;
        process::run(Command::new(locate::product()?).arg("ctl").arg(socket).arg("copy").arg(folder.path()))?;
        Ok(folder)
    }

    /// Puts a copy in the image's place: over it, or as another file of its name. Nobody may be at work.
    pub fn put(&self, copied: &Path, as_another_file: bool) -> Result<()> {
        // What was set aside for an earlier copy is nobody's any more.
        let _ = fs::remove_file(self.aside());
        if !as_another_file {
            return copy_into(copied, &self.image);
        }
        rename(&self.image, &self.aside())?;
        copy(copied, &self.image)
    }

    /// Undoes it: with a snapshot from before where the image was overwritten.
    pub fn put_back(&self, before: &Snapshot) -> Result<()> {
        if self.aside().exists() {
            return rename(&self.aside(), &self.image);
        }
        before.put_back()
    }

    /// Where the image is while another file has its name.
    fn aside(&self) -> PathBuf {
        self.image.with_extension("aside")
    }

    /// Makes the image what it was before anybody used it, in the same file.
    pub fn blank(&self) -> Result<()> {
        let failed = || format!("write {}", self.image.display());
        let mut file = File::options().write(true).open(&self.image).context(failed)?;
        file.set_len(0).context(failed)?;
        file.set_len(self.setup.image_bytes).context(failed)?;
        file.write_all(&self.setup.format.first_sector(self.setup.image_bytes)).context(failed)
    }

    /// Remembers what is there, for evidence. Nobody may be at work.
    pub fn remember(&mut self) -> Result<()> {
        self.left = Some(self.copy_all()?);
        Ok(())
    }

    /// The image as a guest's own recovery would find it. The guest must stand still.
    pub fn materialised(&self, to: &Path) -> Result<()> {
        let hold = self.daemon.hold()?;
        let copied = copy(&self.image, to);
        drop(hold);
        copied
    }

    /// `afterimage recover`; what `--dry-run` and the real run say.
    ///
    /// # Errors
    /// It refuses, or leaves something beside the image.
    pub fn recover(&self) -> Result<String> {
        let program = locate::product()?;
        let run = |more: &[&str]| {
            process::run(Command::new(&program).args(["recover", "--json"]).args(more).arg(&self.image))
        };
        let would = run(&["--dry-run"])?;
        let did = run(&[])?;
        self.expect_alone("`recover`")?;
        Ok(format!("{would}\n{did}"))
    }

    /// Nothing belongs to the image any more but itself.
    ///
    /// # Errors
    /// [`LabError::Broken`].
    pub fn expect_alone(&self, after: &str) -> Result<()> {
        let state = state_of(&self.image);
        let left = fs::read_dir(&self.arena).is_ok_and(|mut entries| entries.next().is_some());
        if state.exists() || left {
            return Err(LabError::Broken(format!("a state file or an arena is left after {after}")));
        }
        Ok(())
    }

    /// Saves what there is to see if a case fails.
    fn save(&self, evidence: &Evidence) {
        if let Ok(status) = self.daemon.status() {
            evidence.text("status.txt", &format!("{status:#?}"));
        }
        evidence.daemon(&self.daemon, "retain");
        let mut files = vec![self.image.clone()];
        files.extend(self.arenas());
        files.extend(self.left.iter().flat_map(Snapshot::files));
        evidence.files(&files, "");
    }
}

/// The first disk's first file system is retained.
///
/// # Errors
/// [`LabError::Broken`], which says what it is instead.
pub fn expect_retained(daemon: &Daemon) -> Result<()> {
    match daemon.file_system()? {
        Some(found) if found.mode == "retain" => Ok(()),
        found => Err(LabError::Broken(format!("the journal is not retained: {found:?}"))),
    }
}

/// What says which arena belongs to an image.
fn state_of(image: &Path) -> PathBuf {
    let mut state = image.as_os_str().to_owned();
    state.push(".state");
    PathBuf::from(state)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).context(|| format!("rename {}", from.display()))
}

/// Copies a file, holes kept.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    process::run(Command::new("cp").arg("--sparse=always").arg(from).arg(to)).map(drop)
}

/// Copies the file system out of an image: e2fsck, having replayed a journal, forgets where in the file it began.
pub(super) fn extract(from: &Path, to: &Path, format: Format) -> Result<()> {
    let mib = format.offset_bytes() >> 20;
    if mib == 0 {
        return copy(from, to);
    }
    let mut command = Command::new("dd");
    command.args(["bs=1M", "conv=sparse", "status=none"]).arg(format!("skip={mib}"));
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    process::run(&mut command).map(drop)
}

/// Overwrites a file in place: it stays the same inode.
fn copy_into(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).context(|| format!("put {} back", to.display()))
}

/// What a guest's script says with its exit status.
pub(super) const NO_MOUNT: i32 = 61;
pub(super) const NO_VERIFY: i32 = 62;
pub(super) const NO_UMOUNT: i32 = 63;
pub(super) const DAMAGED: i32 = 64;
pub(super) const FOREIGN: i32 = 65;
pub(super) const DIFFERENT: i32 = 66;

/// Puts the end of a guest that should have gone on, or have succeeded, into words.
pub(super) fn judge_end(guest: &mut Guest) -> Result<()> {
    let broken = |what: &str, guest: &Guest| Err(LabError::Broken(format!("{what}{}", guest.last_words())));
    match guest.wait()? {
        Ended::Exited(0) => Ok(()),
        Ended::Exited(NO_MOUNT) => broken("the file system does not mount any more", guest),
        Ended::Exited(DAMAGED) => broken("the file system is damaged after its replay", guest),
        Ended::Exited(FOREIGN) => broken("files hold blocks that are not their own", guest),
        Ended::Exited(DIFFERENT) => broken("what is read is not what was written", guest),
        // It depends on which block is damaged who stumbles over it first.
        Ended::Exited(_) if guest.console().contains("EXT4-fs error") => {
            broken("the guest's kernel finds its file system damaged", guest)
        }
        other => Err(LabError::Guest(format!("a guest ended with {other:?}{}", guest.last_words()))),
    }
}
