//! The marks of images: who used an image last, and which log it is incomplete without.
//!
//! ```text
//! opened for writing ─► mark set, synced ─► first write is taken ... everything home and synced ─► mark removed, synced
//! ```
//!
//! So an image without a mark was closed in order, or was never opened by a program that knows marks, or is on a file
//! system that has none. Under `power-window` the mark names the log; `redo::dependency` has the order of the steps.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use afterimage_block::Disk as _;
use afterimage_format::mark::{
    Mark, MarkedLog, CONTRACT_GUEST_CRASH, CONTRACT_POWER, CONTRACT_POWER_WINDOW, MARK_NAME,
    MARK_PATH_BYTES_MAX,
};
use afterimage_format::FormatError;
use afterimage_store::{read_attribute, Attributes, ImageStore};

use crate::{Contract, OpenError};

/// A mark that this contract sets.
fn of(contract: Contract, log: Option<MarkedLog>) -> Mark {
    let contract = match contract {
        Contract::Power => CONTRACT_POWER,
        Contract::PowerWindow { .. } => CONTRACT_POWER_WINDOW,
        Contract::GuestCrash => CONTRACT_GUEST_CRASH,
    };
    Mark { contract, log }
}

/// The path of a mark's log.
pub(crate) fn log_path(log: &MarkedLog) -> PathBuf {
    PathBuf::from(OsString::from_vec(log.path.clone()))
}

/// The mark of an image: `Some` where its last user has not closed it in order. `None` says nothing where the file
/// system has no extended attributes, nor of what used it before there were marks.
pub fn mark_of(image: &Path) -> Result<Option<Mark>, OpenError> {
    let value = read_attribute(image, MARK_NAME).map_err(OpenError::io("reading the mark of", image))?;
    let Some(value) = value else { return Ok(None) };
    Mark::parse(&value).map(Some).map_err(|e| match e {
        FormatError::Version { version, known } => {
            OpenError::NewerMark { image: image.to_owned(), version, known }
        }
        e => OpenError::BadReference {
            image: image.to_owned(),
            what: format!("its mark (the extended attribute {MARK_NAME})"),
            why: e.to_string(),
        },
    })
}

/// Says durably that an image depends on a log, where its file system can.
pub(crate) fn depend(
    image: &ImageStore,
    contract: Contract,
    uuid: [u8; 16],
    disk: u16,
    log: &Path,
) -> Result<Attributes, OpenError> {
    let path = log.as_os_str().as_bytes().to_vec();
    let bytes = of(contract, Some(MarkedLog { group_uuid: uuid, disk, path })).to_bytes();
    let bytes =
        bytes.ok_or_else(|| OpenError::LogPathTooLong { log: log.to_owned(), max: MARK_PATH_BYTES_MAX })?;
    match set(image, &bytes)? {
        Attributes::NoRoom => Err(OpenError::NoRoomForMark { image: image.path().to_owned() }),
        marked => Ok(marked),
    }
}

/// Says of images that are served without a log that they are in use. No promise rests on it, so an image that has no
/// room for a mark is served all the same.
pub(crate) fn use_images<'a>(
    images: impl Iterator<Item = &'a ImageStore>,
    contract: Contract,
) -> Result<(), OpenError> {
    let bytes = of(contract, None).to_bytes().unwrap_or_default();
    for image in images.filter(|image| !image.geometry().read_only) {
        if set(image, &bytes)? == Attributes::NoRoom {
            tracing::warn!(image = %image.path().display(), "no room for a mark: served without one");
        }
    }
    Ok(())
}

fn set(image: &ImageStore, bytes: &[u8]) -> Result<Attributes, OpenError> {
    image.set_attribute(MARK_NAME, bytes).map_err(OpenError::io("marking", image.path()))
}

/// Durably.
pub(crate) fn remove(image: &ImageStore) -> Result<(), OpenError> {
    image.remove_attribute(MARK_NAME).map_err(OpenError::io("removing the mark of", image.path()))
}
