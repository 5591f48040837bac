//! The arena's file: made, opened, locked, given memory and relieved of it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use afterimage_store::{lock_file, OpenError};
use rustix::fs::{fallocate, seek, unlinkat, AtFlags, FallocateFlags, SeekFrom, CWD};
use rustix::io::{retry_on_intr, Errno};

use super::map::{file_bytes, group_at, slot_at, GROUP, GROUP_SLOTS, HEAD, PAGE, SLOTS_MAX};
use crate::error::JournalError;

/// An operating-system error about this arena.
pub(super) fn io_error(path: &Path, doing: &str) -> impl Fn(io::Error) -> JournalError {
    let context = format!("{doing} the arena {}", path.display());
    move |source| JournalError::io(context.as_str(), source)
}

/// A contradiction in this arena's file.
pub(super) fn corrupt(path: &Path, what: impl std::fmt::Display) -> JournalError {
    JournalError::Corrupt(format!("the arena {}: {what}", path.display()))
}

/// Slots for so many bytes of content, in whole groups. One more than the content needs: a store over a full arena's
/// block publishes the new content before it frees the old.
pub(super) fn slots_for(path: &Path, bytes_max: u64) -> Result<u32, JournalError> {
    let slots = (bytes_max / PAGE + 1).div_ceil(GROUP_SLOTS.into()) * u64::from(GROUP_SLOTS);
    u32::try_from(slots).ok().filter(|slots| *slots <= SLOTS_MAX).ok_or_else(|| {
        JournalError::Unsupported(format!(
            "the arena {} of {bytes_max} bytes: at most {} are possible, choose a smaller --retain-max",
            path.display(),
            super::BYTES_MAX
        ))
    })
}

/// What the name of an arena's own folder begins with, and the file's name in it.
const OWN_FOLDER: &str = "afterimage-";
const NAME: &str = "arena";

/// Where the arena of this number stands below the folder that all daemons share: in a folder of its own, so that
/// another daemon's sandbox does not reach it.
pub(crate) fn place(shared: &Path, number: uuid::Uuid) -> PathBuf {
    shared.join(format!("{OWN_FOLDER}{number}")).join(NAME)
}

/// The folder that an arena has for itself. Those of earlier versions have none.
pub fn own_folder(path: &Path) -> Option<&Path> {
    let folder = path.parent().filter(|_| path.file_name().is_some_and(|name| name == NAME))?;
    let number = folder.file_name()?.to_str()?.strip_prefix(OWN_FOLDER)?;
    uuid::Uuid::parse_str(number).is_ok().then_some(folder)
}

/// Removes an arena's name, and its folder.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = fs::remove_file(path);
    if let Some(folder) = own_folder(path) {
        // Somebody may have put something else there; that is not ours.
        // Not rmdir(2), which the daemon's filter does not know.
        if let Err(error) = unlinkat(CWD, folder, AtFlags::REMOVEDIR) {
            tracing::warn!(%error, folder = %folder.display(), "the folder of an arena stays");
        }
    }
    removed
}

/// Makes the file, sparse but for its head, and locks it.
pub(super) fn create(path: &Path, slots: u32) -> Result<File, JournalError> {
    if let Some(folder) = own_folder(path) {
        fs::DirBuilder::new().mode(0o700).create(folder).map_err(io_error(path, "creating the folder of"))?;
    }
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    // Somebody else's file of that name stays; a folder made for nothing does not.
    let file = made.map_err(io_error(path, "creating")).inspect_err(|_| {
        if let Some(folder) = own_folder(path) {
            let _ = unlinkat(CWD, folder, AtFlags::REMOVEDIR);
        }
    })?;
    let prepared = lock(&file, path).and_then(|()| {
        file.set_len(file_bytes(slots)).map_err(io_error(path, "creating"))?;
        allocate(&file, 0, HEAD).map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull => JournalError::io(
                format!(
                    "getting memory for the arena {} (free some, or name another folder with --arena)",
                    path.display()
                ),
                e,
            ),
            _ => io_error(path, "getting memory for")(e),
        })
    });
    prepared.map(|()| file).inspect_err(|_| {
        let _ = remove(path);
    })
}

/// Opens and locks the file; says how many slots it has.
pub(super) fn open(path: &Path) -> Result<(File, u32), JournalError> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error(path, "opening"))?;
    let metadata = file.metadata().map_err(io_error(path, "opening"))?;
    if !metadata.is_file() {
        return Err(corrupt(path, "it is not a regular file"));
    }
    lock(&file, path)?;
    // Its length counts only now: who held the lock may have let it grow.
    let bytes = file.metadata().map_err(io_error(path, "opening"))?.len();
    let groups =
        bytes.checked_sub(HEAD).filter(|rest| *rest > 0 && rest % GROUP == 0).map(|rest| rest / GROUP);
    let slots = groups.and_then(|groups| groups.checked_mul(GROUP_SLOTS.into()));
    match slots.and_then(|slots| u32::try_from(slots).ok()).filter(|slots| *slots <= SLOTS_MAX) {
        Some(slots) => Ok((file, slots)),
        None => Err(corrupt(path, format_args!("no arena is {bytes} bytes long"))),
    }
}

fn lock(file: &File, path: &Path) -> Result<(), JournalError> {
    let locked = lock_file(file, path, false).map_err(|error| match error {
        OpenError::Io { source, .. } => source,
        held => io::Error::new(io::ErrorKind::ResourceBusy, held),
    });
    locked.map_err(io_error(path, "locking"))
}

/// Gives a range of the file memory, so that touching it in the mapping cannot fail.
pub(super) fn allocate(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    // A signal makes tmpfs give up in the middle.
    Ok(retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at, bytes))?)
}

/// Takes the memory of a run of free slots away. Their tags stay.
pub(super) fn punch(file: &File, path: &Path, run: (u32, u32)) {
    let (mut first, end) = (run.0, run.0 + run.1);
    while first < end {
        let here = (GROUP_SLOTS - first % GROUP_SLOTS).min(end - first);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = u64::from(here) * PAGE;
        match retry_on_intr(|| fallocate(file, flags, slot_at(first), bytes)) {
            Ok(()) => {}
            // Memory that is kept is not wrong, only not saved.
            Err(error) => {
                tracing::warn!(%error, arena = %path.display(), "memory of free slots is not given back");
                return;
            }
        }
        first += here;
    }
}

/// Memory that the file takes, in bytes.
pub(super) fn resident_bytes(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.blocks() * 512)
}

/// Reads words.
pub(super) fn read_words(file: &File, at: u64, words: &mut [u64]) -> io::Result<()> {
    // Not through the mapping: reading a hole there takes memory, and where there is none, is a SIGBUS.
    let mut bytes = vec![0; words.len() * 8];
    file.read_exact_at(&mut bytes, at)?;
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    Ok(())
}

/// The first group at or after `group` that holds any memory.
pub(super) fn next_group(file: &File, group: u32, groups: u32) -> io::Result<Option<u32>> {
    if group >= groups {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(group_at(group * GROUP_SLOTS))) {
        Ok(at) => {
            let found = (at.saturating_sub(HEAD) / GROUP) as u32;
            Ok((found < groups).then_some(found.max(group)))
        }
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Whether every page of a run of slots within one group is there.
pub(super) fn is_whole(file: &File, run: (u32, u32)) -> io::Result<bool> {
    let (at, end) = (slot_at(run.0), slot_at(run.0) + u64::from(run.1) * PAGE);
    match seek(file, SeekFrom::Hole(at)) {
        Ok(hole) => Ok(hole >= end),
        Err(e) => Err(e.into()),
    }
}
