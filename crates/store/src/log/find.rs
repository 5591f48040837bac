//! Finding the log of an image.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use afterimage_block::Medium as _;
use afterimage_format::log::{HEADER_MAGIC, PAGE_BYTES, STATE_CLEAN};
use afterimage_format::mark::MarkedLog;
use afterimage_format::reference::Reference;
use afterimage_format::FormatError;

use super::dependency::{judge, Found, Verdict};
use super::error::LogError;
use super::file::LogFile;
use super::names::{log_beside, real_path, sidecar_path};
use crate::mark::{log_path, marked_log, parse_mark};
use crate::{check_owner, open_ours, FileIdentity, FileMedium, Image};

/// The live log that an image names, by its mark or by its sidecar; `None` where it names none, or is complete.
///
/// # Errors
/// The log that the image needs is gone, is a stranger's, or cannot be read.
pub fn find_log(image: &Path) -> Result<Option<PathBuf>, LogError> {
    let image = real_path(image)?;
    let marked = marked_log(&image)?;
    let of_mark = |log: MarkedLog| find_named(&image, &log_path(&log), log.group_uuid);
    if let Some(log) = marked.map(of_mark).transpose()?.flatten() {
        return Ok(Some(log));
    }
    let Some(reference) = read_sidecar(&image)? else { return Ok(None) };
    find_named(&image, &sidecar_log(&reference), reference.group_uuid)
}

/// The live log of an image: the one that it names, or else one of ours that stands beside it. Whether the latter belongs to
/// the image nobody has said.
///
/// # Errors
/// As [`find_log`].
pub fn find_any_log(image: &Path) -> Result<Option<PathBuf>, LogError> {
    match find_log(image)? {
        Some(log) => Ok(Some(log)),
        None => live_beside(image),
    }
}

/// A live log of ours beside an image. A stranger's counts for nothing: whoever may write to the folder can put one there.
///
/// # Errors
/// It cannot be read.
pub fn live_beside(image: &Path) -> Result<Option<PathBuf>, LogError> {
    let beside = log_beside(&real_path(image)?);
    match open_of(&beside, image).and_then(|log| log.map(|log| log.header()).transpose()) {
        Ok(header) => Ok(header.filter(|header| header.state.get() != STATE_CLEAN).map(|_| beside)),
        Err(error @ LogError::NotOurs { .. }) => {
            let uid = owner_of(image)?;
            let found = fs::symlink_metadata(&beside).map_err(LogError::io("looking at", &beside))?;
            if check_owner(&found, Some(uid)).is_ok() {
                return Err(error);
            }
            tracing::warn!(%error, "not looked at");
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// What an image says of the log that it needs: by the mark on its inode, or by its sidecar.
///
/// # Errors
/// It cannot be read, or is damaged.
pub fn named_by(image: &dyn Image) -> Result<Option<MarkedLog>, LogError> {
    let path = image.path();
    let mark = image.mark().map_err(LogError::io("reading the mark of", path))?;
    if let Some(log) = mark.map(|value| parse_mark(path, &value)).transpose()?.and_then(|mark| mark.log) {
        return Ok(Some(log));
    }
    let reference = read_sidecar(&real_path(path)?)?;
    Ok(reference.map(|reference| MarkedLog {
        group_uuid: reference.group_uuid,
        disk: reference.disk.get(),
        path: reference.log_path().to_vec(),
    }))
}

/// A file in a log's place, if it is ours; `None` where there is none.
fn open_of(log: &Path, image: &Path) -> Result<Option<LogFile>, LogError> {
    match LogFile::look(log) {
        Ok(file) => file.check_owner(Some(owner_of(image)?)).map(|()| Some(file)),
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn owner_of(image: &Path) -> Result<u32, LogError> {
    Ok(FileIdentity::at(image).map_err(LogError::io("looking at", image))?.0.uid)
}

/// The sidecar of an image whose path has no links.
pub(super) fn read_sidecar(image: &Path) -> Result<Option<Reference>, LogError> {
    let sidecar = sidecar_path(image);
    // Its image may have been renamed.
    let bytes = match open_ours(&sidecar, owner_of(image).ok()) {
        Ok(file) => {
            let mut bytes = Vec::new();
            let read = file.take(size_of::<Reference>() as u64 + 1).read_to_end(&mut bytes);
            read.map_err(LogError::io("reading", &sidecar))?;
            bytes
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(LogError::opening(&sidecar)(e)),
    };
    match Reference::parse(&bytes) {
        Ok(reference) => Ok(Some(reference)),
        Err(FormatError::Version { version, known }) => {
            Err(LogError::NewerVersion { path: sidecar, version, known })
        }
        Err(e) => {
            let what = format!("its sidecar {}", sidecar.display());
            Err(LogError::BadReference { image: image.to_owned(), what, why: e.to_string() })
        }
    }
}

fn sidecar_log(reference: &Reference) -> PathBuf {
    PathBuf::from(OsString::from_vec(reference.log_path().to_vec()))
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
        match open_of(&place, image).and_then(|log| log.map(|log| log.header()).transpose()) {
            Ok(Some(header)) if header.group_uuid == group_uuid => {
                let clean = header.state.get() == STATE_CLEAN;
                found = if clean { Found::Clean } else { Found::Live };
                live = Some(place);
                break;
            }
            Ok(Some(_)) => other = true,
            Ok(None) => {}
            // What stands where the log should be and cannot be read, or is a stranger's, may be the log.
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
