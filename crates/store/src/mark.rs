//! The marks of images: who used an image last, and which log it is incomplete without.
//!
//! ```text
//! opened for writing ─► mark set, synced ─► first write is taken ... everything home and synced ─► mark removed, synced
//! ```
//!
//! So an image without a mark was closed in order, or was never opened by a program that knows marks, or is on a file
//! system that has none. Under `power-window` the mark names the log; `log::dependency` has the order of the steps.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use afterimage_format::mark::{Mark, MarkedLog, MARK_NAME};
use afterimage_format::FormatError;

use crate::{read_attribute, Attributes, Image, LogError};

/// The path of a mark's log.
pub(crate) fn log_path(log: &MarkedLog) -> PathBuf {
    PathBuf::from(OsString::from_vec(log.path.clone()))
}

/// The mark of an image: `Some` where its last user has not closed it in order. `None` says nothing where the file
/// system has no extended attributes, nor of what used it before there were marks.
///
/// # Errors
/// It cannot be read, or is damaged, or a newer program's.
pub fn mark_of(image: &Path) -> Result<Option<Mark>, LogError> {
    let value = read_attribute(image, MARK_NAME).map_err(LogError::io("reading the mark of", image))?;
    value.map(|value| parse_mark(image, &value)).transpose()
}

pub(crate) fn parse_mark(image: &Path, value: &[u8]) -> Result<Mark, LogError> {
    Mark::parse(value).map_err(|e| match e {
        FormatError::Version { version, known } => {
            LogError::NewerMark { image: image.to_owned(), version, known }
        }
        e => LogError::BadReference {
            image: image.to_owned(),
            what: format!("its mark (the extended attribute {MARK_NAME})"),
            why: e.to_string(),
        },
    })
}

/// The log that an image says it is incomplete without.
///
/// # Errors
/// As [`mark_of`].
pub fn marked_log(image: &Path) -> Result<Option<MarkedLog>, LogError> {
    Ok(mark_of(image)?.and_then(|mark| mark.log))
}

/// Says of images that are served without a log that they are in use. No promise rests on it, so an image that has no
/// room for a mark is served all the same.
///
/// # Errors
/// Storage failed.
pub fn mark_used<'a>(images: impl Iterator<Item = &'a dyn Image>, contract: u16) -> Result<(), LogError> {
    let bytes = Mark { contract, log: None }.to_bytes().unwrap_or_default();
    for image in images.filter(|image| !image.geometry().read_only) {
        let marked = image.set_mark(&bytes).map_err(LogError::io("marking", image.path()))?;
        if marked == Attributes::NoRoom {
            tracing::warn!(image = %image.path().display(), "no room for a mark: served without one");
        }
    }
    Ok(())
}

/// Removes a mark, durably.
///
/// # Errors
/// Storage failed.
pub fn remove_mark(image: &dyn Image) -> Result<(), LogError> {
    image.remove_mark().map_err(LogError::io("removing the mark of", image.path()))
}
