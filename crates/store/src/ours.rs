//! Whose a file is that stands beside an image, or that an image names: the one rule for logs, sidecars, state files and arenas.
//!
//! Folders are shared. A file counts only if its owner could have written the image anyway: root, the image's owner, or
//! the user of this process. It has one name, and is no link: a stranger can put a link to somebody else's file, but not a
//! file of somebody else's. Everything is asked of the open descriptor, so that no name can change in between.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::geteuid;

use crate::open::unfit;

/// Why a file is not ours to act on: the predicate of a sentence whose subject is its path.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotOurs(String);

impl NotOurs {
    /// What an opening was refused for, if it was this.
    pub(crate) fn of(error: &io::Error) -> Option<String> {
        error.get_ref()?.downcast_ref::<Self>().map(ToString::to_string)
    }
}

impl From<NotOurs> for io::Error {
    fn from(error: NotOurs) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// Opens a regular file with one name, never through a symbolic link in its place. Whose it is, [`check_owner`] says.
///
/// # Errors
/// What the file system says; a [`NotOurs`] for a link and whatever is no regular file.
pub fn open_unlinked(path: &Path, read_only: bool) -> io::Result<File> {
    // O_NONBLOCK: to open a pipe would wait for its other end. Regular files do not know it.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path);
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => NotOurs("is a symbolic link".to_owned()).into(),
        Some(libc::ENXIO) => NotOurs("is a pipe, a socket or a device".to_owned()).into(),
        _ => e,
    })?;
    let found = file.metadata()?;
    match unfit(found.file_type()) {
        Some(what) => return Err(NotOurs(format!("is {what}")).into()),
        None if !found.is_file() => return Err(NotOurs("is a block device".to_owned()).into()),
        None => {}
    }
    if found.nlink() > 1 {
        return Err(NotOurs(format!("has {} names (hard links)", found.nlink())).into());
    }
    Ok(file)
}

/// Whether an open file may be acted on for an image of this owner; `None` where there is no image.
///
/// # Errors
/// It belongs to a stranger.
pub fn check_owner(found: &Metadata, image_uid: Option<u32>) -> Result<(), NotOurs> {
    let (uid, own) = (found.uid(), geteuid().as_raw());
    if uid == own || uid == 0 || (image_uid == Some(uid) && Some(uid) != unmapped_uid()) {
        return Ok(());
    }
    let image = image_uid.map(|uid| format!(" nor the image's owner {uid}")).unwrap_or_default();
    Err(NotOurs(format!("belongs to user {uid}, who is neither root nor this program's user {own}{image}")))
}

/// In a user namespace all users that it does not know look like this one, so that two of them being equal says nothing.
fn unmapped_uid() -> Option<u32> {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    *UNMAPPED.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if map.split_whitespace().eq(["0", "0", "4294967295"]) {
            return None;
        }
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        Some(overflow.and_then(|uid| uid.trim().parse().ok()).unwrap_or(65534))
    })
}

/// Opens a file that stands beside an image, or that the image names, if it is ours.
///
/// # Errors
/// As [`open_unlinked`] and [`check_owner`].
pub fn open_ours(path: &Path, image_uid: Option<u32>) -> io::Result<File> {
    let file = open_unlinked(path, true)?;
    check_owner(&file.metadata()?, image_uid)?;
    Ok(file)
}
