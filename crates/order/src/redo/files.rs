//! Where the log and its sidecars are, and how they come and go.
//!
//! Creating: log written and synced under a name of its own ─► renamed ─► directory synced ─► sidecars ─► directories
//! synced ─► the first write. Removing: everything home ─► log marked clean ─► sidecars removed ─► directories synced
//! ─► log removed ─► directory synced. So a sidecar without a log means that the log was taken away by somebody else,
//! and a clean log is a leftover that may go.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{Disk as _, Medium};
use afterimage_format::log::{ImageEntry, ImageName, LogHeader, NAMES_OFFSET, RECORDS_OFFSET, STATE_CLEAN};
use afterimage_format::reference::Reference;
use afterimage_format::FormatError;
use afterimage_store::{sync_directory, FileMedium, ImageStore};
use rustix::fs::{flock, FlockOperation};
use zerocopy::IntoBytes as _;

use super::open::{create_medium, log_file_bytes};
use super::scan::{read_header, ScanError};
use crate::OpenError;

const ZERO_CHUNK_BYTES: usize = 1 << 20;

/// `path` with an ending added to its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(ending);
    PathBuf::from(name)
}

/// Where an image's log is unless told otherwise.
pub(crate) fn default_log_path(image: &Path) -> PathBuf {
    beside(image, ".aflog")
}

pub(crate) fn sidecar_path(image: &Path) -> PathBuf {
    beside(image, ".afref")
}

/// The path without symbolic links, so that everybody finds the same neighbours.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf, OpenError> {
    fs::canonicalize(path).map_err(OpenError::io("resolving", path))
}

/// A device's neighbours in /dev do not survive a reboot.
pub(crate) fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

/// The live log of an image, if there is one.
pub(crate) fn find_log(image: &Path) -> Result<Option<PathBuf>, OpenError> {
    let image = real_path(image)?;
    let log = default_log_path(&image);
    if is_live(&log)? {
        return Ok(Some(log));
    }
    let sidecar = sidecar_path(&image);
    let bytes = match fs::read(&sidecar) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(OpenError::io("reading", &sidecar)(e)),
    };
    let reference = match Reference::parse(&bytes) {
        Ok(reference) => reference,
        Err(FormatError::Version { version, known }) => {
            return Err(OpenError::NewerVersion { path: sidecar, version, known })
        }
        Err(_) => return Err(OpenError::BadSidecar { sidecar, image }),
    };
    let log = PathBuf::from(OsString::from_vec(reference.log_path().to_vec()));
    match LogFile::peek(&log)? {
        None => Err(OpenError::LogMissing { image, log, sidecar }),
        // A clean log, or the log of another group, has nothing of this image.
        Some(header) if header.state.get() == STATE_CLEAN || header.group_uuid != reference.group_uuid => {
            Ok(None)
        }
        Some(_) => Ok(Some(log)),
    }
}

/// Whether there is a log with something in it.
pub(crate) fn is_live(log: &Path) -> Result<bool, OpenError> {
    Ok(LogFile::peek(log)?.is_some_and(|header| header.state.get() != STATE_CLEAN))
}

/// What identifies an image in a header. Device nodes have no inode that lasts.
pub(crate) fn image_entry(image: &ImageStore) -> Result<ImageEntry, OpenError> {
    let size_bytes = image.geometry().bytes();
    if is_device(image.path()) {
        return Ok(ImageEntry {
            device: 0.into(),
            inode: 0.into(),
            size_bytes: size_bytes.into(),
            mtime_ns: i64::MIN.into(),
        });
    }
    let identity = image.identity().map_err(OpenError::io("looking at", image.path()))?;
    Ok(ImageEntry {
        device: identity.dev.into(),
        inode: identity.ino.into(),
        size_bytes: size_bytes.into(),
        mtime_ns: identity.mtime_ns.into(),
    })
}

/// An open, locked log file.
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    pub(crate) medium: Arc<FileMedium>,
}

impl LogFile {
    /// Opens and locks an existing log.
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self, OpenError> {
        let medium = FileMedium::open(path, read_only).map_err(OpenError::io("opening", path))?;
        Self::lock(path, medium, read_only)
    }

    fn lock(path: &Path, medium: FileMedium, shared: bool) -> Result<Self, OpenError> {
        let how = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match flock(medium.file(), how) {
            Ok(()) => Ok(Self { path: path.to_owned(), medium: Arc::new(medium) }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::LogInUse(path.to_owned())),
            Err(e) => Err(OpenError::io("locking", path)(e.into())),
        }
    }

    /// The header of a log that may not be there. Takes no lock.
    pub(crate) fn peek(path: &Path) -> Result<Option<LogHeader>, OpenError> {
        match FileMedium::open(path, true) {
            Ok(medium) => read_header(&medium).map(Some).map_err(|e| scan_error(path, e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(OpenError::io("opening", path)(e)),
        }
    }

    /// Creates the log of these images, with its whole space written, and their sidecars.
    pub(crate) fn create(
        path: &Path,
        images: &[Arc<ImageStore>],
        log_max_bytes: u64,
        incarnation: u64,
    ) -> Result<Self, OpenError> {
        let bytes = log_file_bytes(log_max_bytes);
        let draft = beside(path, ".new");
        let created = Self::write_draft(path, &draft, bytes, images, incarnation);
        let (file, uuid) = created.inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })?;
        fs::rename(&draft, path).map_err(OpenError::io("naming", path))?;
        sync_directory(path).map_err(OpenError::io("syncing the directory of", path))?;
        for (image, disk) in images.iter().zip(0u16..) {
            let image = real_path(image.path())?;
            if default_log_path(&image) != path && !is_device(&image) {
                write_sidecar(&image, disk, path, uuid)?;
            }
        }
        Ok(file)
    }

    fn write_draft(
        path: &Path,
        draft: &Path,
        bytes: u64,
        images: &[Arc<ImageStore>],
        incarnation: u64,
    ) -> Result<(Self, [u8; 16]), OpenError> {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::StorageFull => OpenError::NoSpace { path: path.to_owned(), bytes },
            _ => OpenError::io("writing", draft)(e),
        };
        match fs::remove_file(draft) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(OpenError::io("removing", draft)(e)),
            _ => {}
        }
        let medium = FileMedium::create(draft, bytes).map_err(OpenError::io("creating", draft))?;
        let file = Self::lock(path, medium, false)?;
        file.medium.preallocate().map_err(failed)?;
        // Really written: otherwise the first lap's syncs would each pay for turning reserved blocks into written ones.
        let zeroes = vec![0; ZERO_CHUNK_BYTES];
        let mut at = RECORDS_OFFSET;
        while at < bytes {
            let n = (bytes - at).min(ZERO_CHUNK_BYTES as u64);
            file.medium.write_at(&zeroes[..n as usize], at).map_err(failed)?;
            at += n;
        }
        // The times that are written down have to be on storage, or a power cut would make every image look like an
        // older copy.
        for image in images.iter().filter(|image| !is_device(image.path())) {
            let synced = File::open(image.path()).and_then(|file| file.sync_all());
            synced.map_err(OpenError::io("syncing", image.path()))?;
        }
        let entries = images.iter().map(|image| image_entry(image)).collect::<Result<Vec<_>, _>>()?;
        let names = names_of(images)?;
        let homes: Vec<_> = images.iter().map(|image| image.medium()).collect();
        let uuid = *uuid::Uuid::new_v4().as_bytes();
        let log: Arc<dyn Medium> = Arc::clone(&file.medium) as Arc<dyn Medium>;
        create_medium(&log, &homes, &entries, &names, uuid, incarnation).map_err(failed)?;
        Ok((file, uuid))
    }

    /// Removes a clean log and its sidecars.
    pub(crate) fn remove(&self, images: &[PathBuf]) -> Result<(), OpenError> {
        for image in images {
            let sidecar = sidecar_path(image);
            match fs::remove_file(&sidecar) {
                Ok(()) => {
                    sync_directory(&sidecar).map_err(OpenError::io("syncing the directory of", &sidecar))?
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(OpenError::io("removing", &sidecar)(e)),
            }
        }
        fs::remove_file(&self.path).map_err(OpenError::io("removing", &self.path))?;
        sync_directory(&self.path).map_err(OpenError::io("syncing the directory of", &self.path))
    }

    /// Where the images were when the log was opened last; empty where unknown.
    pub(crate) fn names(&self, count: usize) -> Vec<PathBuf> {
        let name = |i: usize| {
            let mut bytes = [0; size_of::<ImageName>()];
            let offset = NAMES_OFFSET + (i * size_of::<ImageName>()) as u64;
            self.medium.read_at(&mut bytes, offset).ok()?;
            Some(PathBuf::from(OsString::from_vec(ImageName::parse(&bytes)?)))
        };
        (0..count).map(|i| name(i).unwrap_or_default()).collect()
    }

    /// Notes where the images are now.
    pub(crate) fn write_names(&self, images: &[Arc<ImageStore>]) -> Result<(), OpenError> {
        for (i, name) in names_of(images)?.iter().enumerate() {
            let offset = NAMES_OFFSET + (i * size_of::<ImageName>()) as u64;
            self.medium
                .write_at(ImageName::new(name).as_bytes(), offset)
                .map_err(OpenError::io("writing", &self.path))?;
        }
        Ok(())
    }
}

fn names_of(images: &[Arc<ImageStore>]) -> Result<Vec<Vec<u8>>, OpenError> {
    images.iter().map(|image| Ok(real_path(image.path())?.as_os_str().as_bytes().to_vec())).collect()
}

fn write_sidecar(image: &Path, disk: u16, log: &Path, uuid: [u8; 16]) -> Result<(), OpenError> {
    let sidecar = sidecar_path(image);
    let too_long = || io::Error::from(rustix::io::Errno::NAMETOOLONG);
    let reference = Reference::new(uuid, disk, log.as_os_str().as_bytes())
        .ok_or_else(|| OpenError::io("naming the log in", &sidecar)(too_long()))?;
    let draft = beside(&sidecar, ".new");
    let written = File::create(&draft).and_then(|mut file| {
        file.write_all(reference.as_bytes())?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&draft, &sidecar))
        .and_then(|()| sync_directory(&sidecar))
        .map_err(OpenError::io("writing", &sidecar))
}

/// A log's failure as a sentence for the user.
pub(crate) fn scan_error(path: &Path, error: ScanError) -> OpenError {
    let path = path.to_owned();
    match error {
        ScanError::Format(FormatError::Magic { .. }) => OpenError::NotALog(path),
        ScanError::Format(FormatError::Version { version, known }) => {
            OpenError::NewerVersion { path, version, known }
        }
        ScanError::Format(FormatError::Old { version, oldest }) => {
            OpenError::OlderVersion { path, version, oldest }
        }
        ScanError::Format(FormatError::Features(flags)) => OpenError::UnknownFeatures { path, flags },
        ScanError::Format(FormatError::Corrupt(what)) => OpenError::Corrupt { path, what: what.to_owned() },
        ScanError::Corrupt(what) => OpenError::Corrupt { path, what },
        ScanError::Io(e) => OpenError::io("reading", &path)(e),
    }
}
