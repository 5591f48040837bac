//! Where the log is, how its images say so, and how log and marks come and go.
//!
//! The order of the steps, and what a cut between them leaves, is in [`super::dependency`]. A file system without
//! extended attributes has a sidecar (`<image>.afref`) in the mark's place: it says the same, but not of a renamed image.

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
use afterimage_store::{sync_directory, Attributes, FileMedium, ImageStore};
use rustix::fs::{flock, FlockOperation};
use zerocopy::IntoBytes as _;

use super::dependency::{beginning, end, judge, Found, Step, Verdict};
use super::open::{create_medium, log_file_bytes};
use super::scan::{read_header, ScanError};
use crate::mark::{self, mark_of};
use crate::{Contract, OpenError};

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

/// The live log of an image, if there is one: the one that the image names, or one beside it of a program that knew no
/// marks.
pub(crate) fn find_log(image: &Path) -> Result<Option<PathBuf>, OpenError> {
    let image = real_path(image)?;
    if let Some(log) = mark_of(&image)?.and_then(|mark| mark.log) {
        let named = find_named(&image, &mark::log_path(&log), log.group_uuid)?;
        if named.is_some() {
            return Ok(named);
        }
    }
    let beside = default_log_path(&image);
    if is_live(&beside)? {
        return Ok(Some(beside));
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
        Err(e) => {
            let what = format!("its sidecar {}", sidecar.display());
            return Err(OpenError::BadReference { image, what, why: e.to_string() });
        }
    };
    let log = PathBuf::from(OsString::from_vec(reference.log_path().to_vec()));
    find_named(&image, &log, reference.group_uuid)
}

/// The log that an image names; `None` where it is clean.
fn find_named(image: &Path, named: &Path, group_uuid: [u8; 16]) -> Result<Option<PathBuf>, OpenError> {
    // The folder may have been renamed with all that is in it, or image and log alike.
    let mut places = vec![named.to_owned()];
    places.extend(image.parent().zip(named.file_name()).map(|(folder, name)| folder.join(name)));
    places.push(default_log_path(image));
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
        Verdict::Lost => Err(unreadable.unwrap_or_else(|| OpenError::LogMissing {
            image: image.to_owned(),
            log: named.to_owned(),
            other,
        })),
    }
}

/// Whether there is a log with something in it.
pub(crate) fn is_live(log: &Path) -> Result<bool, OpenError> {
    Ok(LogFile::peek(log)?.is_some_and(|header| header.state.get() != STATE_CLEAN))
}

/// The path a log has or will have: its directory exists, it need not.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, OpenError> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(OpenError::io("resolving the directory of", path))?;
    match path.file_name() {
        Some(name) => Ok(parent.join(name)),
        None => Err(OpenError::NotALog(path.to_owned())),
    }
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

    /// Creates the log of these images, with its whole space written.
    pub(crate) fn create(
        path: &Path,
        images: &[Arc<ImageStore>],
        log_max_bytes: u64,
        incarnation: u64,
    ) -> Result<Self, OpenError> {
        let bytes = log_file_bytes(log_max_bytes);
        let draft = beside(path, ".new");
        let file = Self::write_draft(path, &draft, bytes, images, incarnation).inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })?;
        fs::rename(&draft, path).map_err(OpenError::io("naming", path))?;
        sync_directory(path).map_err(OpenError::io("syncing the directory of", path))?;
        Ok(file)
    }

    /// Makes the images say that they depend on this log. Before the first write is taken.
    pub(crate) fn mark(&self, contract: Contract, images: &[Arc<ImageStore>]) -> Result<(), OpenError> {
        let Some(header) = Self::peek(&self.path)? else { return Err(OpenError::NotALog(self.path.clone())) };
        for step in beginning(images.len()) {
            let Step::Mark(disk) = step else { continue };
            let image = &images[disk];
            let (uuid, path) = (header.group_uuid, image.path());
            let marked = mark::depend(image, contract, uuid, disk as u16, &self.path)?;
            if marked == Attributes::Unsupported && !is_device(path) {
                tracing::warn!(
                    image = %path.display(),
                    "its file system has no extended attributes: that it depends on its redo log stands in a file beside \
                     it, so do not rename it while the log is there"
                );
                write_sidecar(&real_path(path)?, disk as u16, &self.path, uuid)?;
            }
        }
        Ok(())
    }

    fn write_draft(
        path: &Path,
        draft: &Path,
        bytes: u64,
        images: &[Arc<ImageStore>],
        incarnation: u64,
    ) -> Result<Self, OpenError> {
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
        Ok(file)
    }

    /// Removes a clean log, and before it whatever says that its images depend on it.
    pub(crate) fn remove(&self, images: &[Owner]) -> Result<(), OpenError> {
        for step in end(images.len()) {
            match step {
                Step::Unmark(disk) => images[disk].release()?,
                Step::LogGoes => remove_durably(&self.path)?,
                // The core has marked the log clean, and nothing begins here.
                Step::LogClean | Step::LogAppears | Step::Mark(_) | Step::Serve => {}
            }
        }
        Ok(())
    }

    /// Finishes the end of a log that was cut short, so that another may take its place: an image that still named it
    /// would look as if its log had been taken away.
    pub(crate) fn clear_leftover(path: &Path, images: &[Arc<ImageStore>]) -> Result<(), OpenError> {
        let Some(header) = Self::peek(path)? else { return Ok(()) };
        let names = |image: &Path| -> Result<bool, OpenError> {
            let log = mark_of(image)?.and_then(|mark| mark.log);
            Ok(log.is_some_and(|log| log.group_uuid == header.group_uuid))
        };
        let owners = owners(images)?;
        let file = Self::open(path, false)?;
        for name in file.names(header.images().len()).into_iter().filter(|name| name.exists()) {
            if owners.iter().all(|owner| owner.path != name) && names(&name)? {
                return Err(OpenError::Unfinished { log: path.to_owned(), image: name });
            }
        }
        let ours: Result<Vec<_>, _> = owners
            .into_iter()
            .filter_map(|owner| match names(&owner.path) {
                Ok(named) => named.then_some(Ok(owner)),
                Err(e) => Some(Err(e)),
            })
            .collect();
        file.remove(&ours?)
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

/// An image of a log, and where its neighbours are, which may be out of reach later on.
pub(crate) struct Owner {
    pub(crate) image: Arc<ImageStore>,
    pub(crate) path: PathBuf,
}

/// The images of a log, in its order.
pub(crate) fn owners(images: &[Arc<ImageStore>]) -> Result<Vec<Owner>, OpenError> {
    let owner =
        |image: &Arc<ImageStore>| Ok(Owner { image: Arc::clone(image), path: real_path(image.path())? });
    images.iter().map(owner).collect()
}

impl Owner {
    /// The image says, durably, that it depends on no log any more.
    pub(crate) fn release(&self) -> Result<(), OpenError> {
        mark::remove(&self.image)?;
        remove_durably(&sidecar_path(&self.path))
    }
}

fn remove_durably(path: &Path) -> Result<(), OpenError> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path).map_err(OpenError::io("syncing the directory of", path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(OpenError::io("removing", path)(e)),
    }
}

fn write_sidecar(image: &Path, disk: u16, log: &Path, uuid: [u8; 16]) -> Result<(), OpenError> {
    let sidecar = sidecar_path(image);
    let too_long = || io::Error::from(rustix::io::Errno::NAMETOOLONG);
    let reference = Reference::new(uuid, disk, log.as_os_str().as_bytes())
        .ok_or_else(|| OpenError::io("naming the log in", &sidecar)(too_long()))?;
    let draft = beside(&sidecar, ".new");
    remove_durably(&draft)?;
    // Never through a link that somebody has put there.
    let written = File::options().write(true).create_new(true).open(&draft).and_then(|mut file| {
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
