//! The names of an image's neighbours: the one place that knows their endings.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::LogError;

/// `path` with an ending added to its name.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(ending);
    PathBuf::from(name)
}

/// Where an image's log is unless told otherwise.
pub fn log_beside(image: &Path) -> PathBuf {
    beside(image, ".aflog")
}

/// Where a group's log is: in the place that was named, or beside its first writable image.
///
/// # Errors
/// The image, or the directory of the log, is not there.
pub fn log_of(named: Option<&Path>, image: &Path) -> Result<PathBuf, LogError> {
    match named {
        Some(path) => absolute(path),
        None => Ok(log_beside(&real_path(image)?)),
    }
}

pub(super) fn sidecar_path(image: &Path) -> PathBuf {
    beside(image, ".afref")
}

/// The path without symbolic links, so that everybody finds the same neighbours.
///
/// # Errors
/// It leads nowhere.
pub fn real_path(path: &Path) -> Result<PathBuf, LogError> {
    fs::canonicalize(path).map_err(LogError::io("resolving", path))
}

/// The path a log has or will have: its directory exists, it need not.
///
/// # Errors
/// There is no such directory.
pub fn absolute(path: &Path) -> Result<PathBuf, LogError> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(LogError::io("resolving the directory of", path))?;
    match path.file_name() {
        Some(name) => Ok(parent.join(name)),
        None => Err(LogError::NotALog(path.to_owned())),
    }
}
