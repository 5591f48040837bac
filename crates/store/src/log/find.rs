//! Finding the log of an image.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use afterimage_block::Medium as _;
use afterimage_format::log::{HEADER_MAGIC, PAGE_BYTES, STATE_CLEAN};
use afterimage_format::reference::Reference;
use afterimage_format::FormatError;

use super::dependency::{judge, Found, Verdict};
use super::error::LogError;
use super::file::LogFile;
use super::names::{log_beside, real_path, sidecar_path};
use crate::mark::{log_path, marked_log};
use crate::{FileIdentity, FileMedium};

/// The live log of an image, if there is one: the one that the image names, or one beside it of a program that knew no
/// marks.
///
/// # Errors
/// The log that the image needs is gone, or cannot be read.
pub fn find_log(image: &Path) -> Result<Option<PathBuf>, LogError> {
    let image = real_path(image)?;
    if let Some(log) = marked_log(&image)? {
        let named = find_named(&image, &log_path(&log), log.group_uuid)?;
        if named.is_some() {
            return Ok(named);
        }
    }
    let beside = log_beside(&image);
    if is_live(&beside)? {
        return Ok(Some(beside));
    }
    let sidecar = sidecar_path(&image);
    let bytes = match fs::read(&sidecar) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(LogError::io("reading", &sidecar)(e)),
    };
    let reference = match Reference::parse(&bytes) {
        Ok(reference) => reference,
        Err(FormatError::Version { version, known }) => {
            return Err(LogError::NewerVersion { path: sidecar, version, known })
        }
        Err(e) => {
            let what = format!("its sidecar {}", sidecar.display());
            return Err(LogError::BadReference { image, what, why: e.to_string() });
        }
    };
    let log = PathBuf::from(OsString::from_vec(reference.log_path().to_vec()));
    find_named(&image, &log, reference.group_uuid)
}

/// The log that an image names; `None` where it is clean.
fn find_named(image: &Path, named: &Path, group_uuid: [u8; 16]) -> Result<Option<PathBuf>, LogError> {
    // The folder may have been renamed with all that is in it, or image and log alike. What lies beside the image comes first: where both
    // are a snapshot's, the path that the image names leads to the log of what the snapshot was made of.
    let mut places = vec![log_beside(image)];
    places.extend(image.parent().zip(named.file_name()).map(|(folder, name)| folder.join(name)));
    places.push(named.to_owned());
    let (mut found, mut other, mut unreadable) = (Found::Missing, false, None);
    let mut live = None;
    for place in places {
        match LogFile::peek(&place) {
            Ok(Some(header)) if header.group_uuid == group_uuid => {
                let clean = header.state.get() == STATE_CLEAN;
                found = if clean { Found::Clean } else { Found::Live };
                live = Some(place);
                break;
            }
            Ok(Some(_)) => other = true,
            Ok(None) => {}
            // What stands where the log should be and cannot be read may be the log.
            Err(e) => unreadable = unreadable.or(Some(e)),
        }
    }
    match judge(found) {
        Verdict::Depends => Ok(live),
        Verdict::Complete => Ok(None),
        Verdict::Lost => Err(unreadable.unwrap_or_else(|| LogError::LogMissing {
            image: image.to_owned(),
            log: named.to_owned(),
            other,
        })),
    }
}

/// Whether an image says that it is incomplete without this very file, which is no copy of its log.
///
/// # Errors
/// What it says cannot be read.
pub fn needs(image: &Path, log: &Path) -> Result<bool, LogError> {
    let Some(named) = marked_log(image)? else { return Ok(false) };
    let of_group = LogFile::peek(log)?.is_some_and(|header| header.group_uuid == named.group_uuid);
    Ok(of_group && same_file(&log_path(&named), log))
}

/// Whether two paths lead to one file.
pub fn same_file(one: &Path, other: &Path) -> bool {
    let at = |path| FileIdentity::at(path).map(|(file, _)| (file.dev, file.ino));
    at(one).is_ok_and(|one| at(other).is_ok_and(|other| one == other))
}

/// Whether there is a log with something in it.
///
/// # Errors
/// It is there and cannot be read.
pub fn is_live(log: &Path) -> Result<bool, LogError> {
    Ok(LogFile::peek(log)?.is_some_and(|header| header.state.get() != STATE_CLEAN))
}

/// Whether a file is a log, sound or not.
///
/// # Errors
/// It cannot be opened.
pub fn is_log(path: &Path) -> Result<bool, LogError> {
    let medium = FileMedium::open(path, true).map_err(LogError::io("opening", path))?;
    let mut magic = [0; 8];
    let slots = [0, PAGE_BYTES];
    Ok(slots.iter().any(|slot| medium.read_at(&mut magic, *slot).is_ok() && magic == HEADER_MAGIC))
}
