//! `inspect`, `check` and `recover` for retained journals, while nobody serves the image.
//!
//! ```text
//! inspect, dry run   arena ─ copied into memory ─┐
//!                    image ─ below an overlay ───┴─► FileSystems ─► what is retained, what recovery writes
//! recover            arena, image (locked) ─► FileSystems::finish ─► image closed ─► FILE.state gone ─► arena gone
//! ```
//!
//! Outcomes of a recovery that is cut off: until the state file is gone, arena and image are as they were or further; it can
//! be done again.

mod arenas;
mod overlay;
mod report;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::MediumDisk;
use afterimage_order::{Contract, Group, GroupOptions};
use afterimage_store::{DirectMode, FileMedium, ImageStore};
use rustix::fs::{flock, memfd_create, seek, FlockOperation, MemfdFlags, SeekFrom};

use crate::error::JournalError;
use crate::ext4::{self, FileSystems, Options};
use crate::group::{
    arena_of, is_behind_its_log, is_own, judge, open_arena, stray, Earlier, JournalOptions, RetainError,
};
use crate::mutation::Mistake;
use crate::state_file::{self, State, StateError};
use crate::status::DiskStatus;
use crate::versions::arena::Arena;
use crate::versions::Below;

pub use arenas::{arenas, remove_arena, ArenaReport, Need};
pub use report::{InspectReport, RecoverReport, WouldWrite};

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

/// The image that a path means: the path itself, or what a state file stands beside.
fn image_of(path: &Path) -> PathBuf {
    let name = path.as_os_str().as_encoded_bytes();
    let stem = name
        .strip_suffix(b".state")
        .map(|stem| PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(stem)));
    stem.filter(|image| image.is_file()).unwrap_or_else(|| path.to_owned())
}

/// Says what is retained of an image; `None` where nothing is. Changes nothing, in use or not.
///
/// # Errors
/// Something cannot be read. A damaged state file, or an arena that is gone, is an answer.
pub fn inspect(path: &Path) -> Result<Option<InspectReport>, RetainError> {
    let image = image_of(path);
    let state_path = state_file::state_path(&image)?;
    let mut report = InspectReport::new(image.clone(), state_path.clone());
    let state = match State::read(&state_path) {
        Ok(None) => {
            let stray = stray(&image, Path::new(JournalOptions::ARENA_FOLDER))?;
            return Ok(stray.map(|why| {
                report.problem = Some(RetainError::Stray { image, why }.to_string());
                report
            }));
        }
        Ok(Some(state)) => state,
        Err(e @ (StateError::Corrupt { .. } | StateError::Unsupported { .. })) => {
            report.problem = Some(e.to_string());
            return Ok(Some(report));
        }
        Err(e) => return Err(e.into()),
    };
    report.state = Some(state.clone());
    report.problem = match look(&image, &state, false) {
        Ok(Looked::InUse) => {
            report.in_use = true;
            None
        }
        Ok(Looked::Free(status, _)) => {
            report.retained = Some(status);
            None
        }
        Err(Problem::Gone(why)) if state.survives_power() => {
            report.gone = Some(why);
            None
        }
        Err(Problem::Foreign(_)) if is_behind_its_log(&image) => None,
        Err(Problem::Gone(why) | Problem::Other(why)) => Some(why),
        Err(Problem::Foreign(why)) => Some(why.to_string()),
    };
    Ok(Some(report))
}

/// Whether an image is complete by itself, for a program that knows of no arena and no redo log. Changes nothing.
///
/// # Errors
/// It is not: where the rest is. It cannot be told.
pub fn is_complete(image: &Path) -> Result<(), RetainError> {
    if is_behind_its_log(image) {
        return Err(RetainError::Logged { image: image.to_owned() });
    }
    judge(image, Path::new(JournalOptions::ARENA_FOLDER), false, false).map(drop)
}

/// What [`look`] found.
enum Looked {
    /// A daemon has the arena open.
    InUse,
    /// What is retained, and how many bytes its recovery writes to the image.
    Free(DiskStatus, u64),
}

/// Why nothing was found, in words.
enum Problem {
    /// The arena is not there, or damaged: as `serve` sees it, it is gone.
    Gone(String),
    /// The arena belongs to another state of the image.
    Foreign(RetainError),
    /// Anything else.
    Other(String),
}

impl<E: std::error::Error> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::Other(error.to_string())
    }
}

/// Recovers into memory.
fn look(image: &Path, state: &State, accept_loss: bool) -> Result<Looked, Problem> {
    if !is_own(image, state)? {
        return Err(Problem::Other(format!(
            "the state file belongs to another image (inode {}, {} bytes)",
            state.image.inode, state.image.size_bytes
        )));
    }
    arena_of(image, state)?.map_err(Problem::Gone)?;
    let copy = copy_arena(&state.arena)
        .map_err(|e| Problem::Other(format!("cannot read {}: {e}", state.arena.display())))?;
    let Some(copy) = copy else { return Ok(Looked::InUse) };
    let name = format!("/proc/self/fd/{}", copy.as_raw_fd());
    // The copy's name would mislead.
    let renamed = |what: String| what.replace(&name, &state.arena.display().to_string());
    let arena = Arena::open(Path::new(&name), Some(state.arena_identity())).map_err(|e| match e {
        JournalError::Corrupt(what) => Problem::Gone(renamed(what)),
        JournalError::Unsupported(what) => Problem::Other(renamed(what)),
        e => Problem::from(e),
    })?;
    let medium = FileMedium::open(image, true)
        .map_err(|e| Problem::Other(format!("cannot open {}: {e}", image.display())))?;
    let overlay = Arc::new(overlay::Overlay::new(medium));
    let disk = MediumDisk::new(Arc::clone(&overlay) as Arc<dyn afterimage_block::Medium>);
    let mut retainer =
        FileSystems::open_unsettled(&disk, arena, plain_options(image, accept_loss), Mistake::default())
            .map_err(|error| match RetainError::of(error, image, &state.arena) {
                foreign @ RetainError::Foreign { .. } => Problem::Foreign(foreign),
                other => Problem::from(other),
            })?;
    let status = retainer.status();
    retainer.finish(false)?;
    Ok(Looked::Free(status, overlay.written_bytes()))
}

/// Home writes are plain ones: what makes them atomic has been recovered before.
fn plain_options(image: &Path, accept_loss: bool) -> Options {
    Options { name: image.display().to_string(), accept_loss, ..Options::default() }
}

/// A copy in memory, holes and all; `None` where a daemon has the arena open.
fn copy_arena(path: &Path) -> io::Result<Option<File>> {
    let from = OpenOptions::new().read(true).open(path)?;
    match flock(&from, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    let to = File::from(memfd_create("arena-copy", MemfdFlags::CLOEXEC)?);
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < length {
        let data = match seek(&from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = seek(&from, SeekFrom::Hole(data))?.min(length);
        at = data;
        while at < end {
            let here = &mut buffer[..CHUNK.min((end - at) as usize)];
            from.read_exact_at(here, at)?;
            to.write_all_at(here, at)?;
            at += here.len() as u64;
        }
    }
    Ok(Some(to))
}

/// Brings what is retained of an image home and removes state file and arena: the image is a plain raw file then. `None`
/// where nothing is retained. A redo log must have been brought home before. With `dry_run` nothing is changed. With
/// `accept_loss` a state file whose arena is gone is removed, and what is retained of a file system that somebody else has
/// changed is given up.
///
/// # Errors
/// See [`RetainError`]; what is retained stays.
pub fn recover(path: &Path, dry_run: bool, accept_loss: bool) -> Result<Option<RecoverReport>, RetainError> {
    let image = image_of(path);
    let state_path = state_file::state_path(&image)?;
    let arena_folder = Path::new(JournalOptions::ARENA_FOLDER);
    if !state_path.exists() && stray(&image, arena_folder)?.is_none() {
        return Ok(None);
    }
    let opened = open_image(&image, dry_run)?;
    let mut report = RecoverReport::new(image.clone(), state_path.clone(), dry_run);
    // As `serve` would judge it. A dry run must not even tidy the arena up, as opening it does.
    let state = match (judge(&image, arena_folder, !dry_run, accept_loss), State::read(&state_path)) {
        (Err(RetainError::Retained { .. }), Ok(Some(state))) if dry_run => state,
        (Ok(Earlier::Arena(state, _)), _) => state,
        (Ok(Earlier::Nothing), _) => return Ok(None),
        (Ok(Earlier::Gone(_)), _) => {
            report.lost = true;
            if !dry_run {
                let group = Group::open(vec![opened], GroupOptions::new(Contract::GuestCrash))
                    .map_err(RetainError::Group)?;
                let disk = &group.disks()[0];
                ext4::give_up(&mut Below::new(&**disk)?, disk.geometry().sectors)?;
                group.close()?;
                state_file::remove(&state_path)?;
            }
            return Ok(Some(report));
        }
        (Err(e), _) => return Err(e),
    };
    report.arena = Some(state.arena.clone());
    let mut looked = look(&image, &state, false);
    if accept_loss && matches!(looked, Err(Problem::Foreign(_))) {
        report.lost = true;
        looked = look(&image, &state, true);
    }
    match looked {
        Ok(Looked::Free(status, written_bytes)) => report.found(&status, written_bytes),
        Ok(Looked::InUse) => {
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open");
            return Err(JournalError::io(format!("opening the arena {}", state.arena.display()), busy).into());
        }
        Err(Problem::Foreign(_)) if dry_run && is_behind_its_log(&image) => {}
        Err(Problem::Foreign(e)) => return Err(e),
        // A dry run finds out only here: it has not opened the arena before.
        Err(Problem::Gone(_)) if state.survives_power() || accept_loss => report.lost = true,
        Err(Problem::Gone(why)) => return Err(RetainError::Lost { image, why }),
        Err(Problem::Other(why)) => return Err(JournalError::Corrupt(why).into()),
    }
    if dry_run {
        return Ok(Some(report));
    }
    let arena = open_arena(&image, &state)?;
    let group =
        Group::open(vec![opened], GroupOptions::new(Contract::GuestCrash)).map_err(RetainError::Group)?;
    let mut retainer =
        FileSystems::open(&*group.disks()[0], arena, plain_options(&image, accept_loss), Mistake::default())
            .map_err(|e| RetainError::of(e, &image, &state.arena))?;
    retainer.finish(false)?;
    drop(retainer);
    group.close()?;
    state_file::remove(&state_path)?;
    crate::versions::arena::remove(&state.arena).map_err(StateError::io("remove the arena", &state.arena))?;
    Ok(Some(report))
}

fn open_image(image: &Path, read_only: bool) -> Result<Arc<ImageStore>, RetainError> {
    let options = afterimage_store::OpenOptions {
        read_only,
        direct: DirectMode::Off,
        any_content: true,
        ..afterimage_store::OpenOptions::new(image)
    };
    ImageStore::open(&options).map_err(|e| RetainError::Group(e.into()))
}
