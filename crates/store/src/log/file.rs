//! A log's file, and how log and marks come and go.
//!
//! The order of the steps, and what a cut between them leaves, is in [`super::dependency`]. A file system without
//! extended attributes has a sidecar (`<image>.afref`) in the mark's place: it says the same, but not of a renamed image.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_format::log::{ImageEntry, ImageName, LogHeader, NAMES_OFFSET};
use afterimage_format::mark::{Mark, MarkedLog, MARK_PATH_BYTES_MAX};
use afterimage_format::reference::Reference;
use rustix::fs::{renameat_with, RenameFlags, CWD};
use rustix::io::Errno;
use zerocopy::IntoBytes as _;

use super::dependency::{beginning, end, Step};
use super::error::LogError;
use super::find::read_sidecar;
use super::header::read_header;
use super::names::{absolute, beside, real_path, sidecar_path};
use crate::mark::{marked_log, remove_mark};
use crate::{check_owner, lock_file, sync_directory, Attributes, FileIdentity, FileMedium, Image, OpenError};

/// What identifies an image in a header. Device nodes have no inode that lasts.
fn image_entry(image: &dyn Image) -> Result<ImageEntry, LogError> {
    image.log_entry().map_err(LogError::io("looking at", image.path()))
}

/// Gets the file, what identifies its images, and their names.
pub type Fill<'a> = dyn Fn(&Arc<dyn Medium>, &[ImageEntry], &[Vec<u8>]) -> io::Result<()> + 'a;

/// A log that is to be created.
pub struct NewLog<'a> {
    /// The file's size.
    pub bytes: u64,
    /// As much from its begin on is written out, and the rest reserved.
    pub written_bytes: u64,
    /// Writes and syncs its header and the names of its images into a file of zeroes.
    pub fill: &'a Fill<'a>,
}

/// An open, locked log file.
pub struct LogFile {
    path: PathBuf,
    medium: Arc<FileMedium>,
    written_bytes: u64,
}

impl LogFile {
    /// Opens and locks an existing log.
    ///
    /// # Errors
    /// It is not there, or another process has it.
    pub fn open(path: &Path, read_only: bool) -> Result<Self, LogError> {
        let medium = FileMedium::open_unlinked(path, read_only).map_err(LogError::opening(path))?;
        Self::of(path, medium).locked(read_only)
    }

    fn locked(self, read_only: bool) -> Result<Self, LogError> {
        lock_file(self.medium.file(), &self.path, read_only).map_err(|error| match error {
            OpenError::Io { doing, path, source } => LogError::Io { doing, path, source },
            held => LogError::LogInUse(held),
        })?;
        if !read_only {
            self.medium.keep_note().map_err(LogError::io("keeping a note of the syncs of", &self.path))?;
        }
        Ok(self)
    }

    fn of(path: &Path, medium: FileMedium) -> Self {
        let written_bytes = medium.len();
        Self { path: path.to_owned(), medium: Arc::new(medium), written_bytes }
    }

    /// How much of it, from its begin on, is written out, and not only reserved, as far as is known.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub fn medium(&self) -> Arc<dyn Medium> {
        Arc::clone(&self.medium) as Arc<dyn Medium>
    }

    /// Whether somebody has deleted it: the file itself goes with this process.
    pub fn is_deleted(&self) -> bool {
        self.medium.is_deleted()
    }

    /// As [`LogFile::open`] for reading only, but takes no lock: for a sentence about a log that may be another daemon's.
    ///
    /// # Errors
    /// It is not there.
    pub fn look(path: &Path) -> Result<Self, LogError> {
        let medium = FileMedium::open_unlinked(path, true).map_err(LogError::opening(path))?;
        Ok(Self::of(path, medium))
    }

    /// The header of a log that may not be there. Takes no lock.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn peek(path: &Path) -> Result<Option<LogHeader>, LogError> {
        match FileMedium::open_unlinked(path, true) {
            Ok(medium) => Self::of(path, medium).header().map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(LogError::opening(path)(e)),
        }
    }

    /// Whether it may be acted on for an image of this owner.
    ///
    /// # Errors
    /// It is a stranger's: see [`check_owner`].
    pub fn check_owner(&self, image_uid: Option<u32>) -> Result<(), LogError> {
        let found = self.medium.file().metadata().map_err(LogError::io("looking at", &self.path))?;
        check_owner(&found, image_uid)
            .map_err(|e| LogError::NotOurs { path: self.path.clone(), why: e.to_string() })
    }

    /// As [`LogFile::check_owner`], for each of these.
    ///
    /// # Errors
    /// As there.
    pub fn check_owners(&self, images: &[Arc<dyn Image>]) -> Result<(), LogError> {
        images.iter().try_for_each(|image| {
            let image = image.identity().map_err(LogError::io("looking at", image.path()))?;
            self.check_owner(Some(image.uid))
        })
    }

    /// Creates a log, with its whole space reserved. It has its name when this returns, and not before.
    ///
    /// # Errors
    /// There is no room, storage failed, or another start makes or has made a log of this name: nothing of ours is left then.
    pub fn create(path: &Path, images: &[Arc<dyn Image>], new: NewLog<'_>) -> Result<Self, LogError> {
        let draft = beside(path, ".new");
        let mut file = Self::lock_draft(path, &draft, images, new.bytes)?;
        let named = file
            .write_draft(&draft, images, new)
            .and_then(|()| name_new(&draft, path).map_err(LogError::io("naming", path)));
        named.inspect_err(|_| drop(fs::remove_file(&draft)))?;
        file.sync_name()?;
        Ok(file)
    }

    /// Makes the name durable: a process that died may have left one that is not.
    ///
    /// # Errors
    /// Storage failed.
    pub fn sync_name(&self) -> Result<(), LogError> {
        sync_directory(&self.path).map_err(LogError::io("syncing the directory of", &self.path))
    }

    /// A new file of this name, in place of what a start that died has left. Only who holds the lock of what has the name takes it
    /// away, so that nobody takes that of a start which is at work.
    fn lock_draft(
        path: &Path,
        draft: &Path,
        images: &[Arc<dyn Image>],
        bytes: u64,
    ) -> Result<Self, LogError> {
        match FileMedium::open_unlinked(draft, false) {
            Ok(left) => {
                let left = Self::of(draft, left);
                left.check_owners(images)?;
                let left = left.locked(false)?;
                left.remove_name()?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(LogError::opening(draft)(e)),
        }
        let medium = FileMedium::create_as(draft, path, bytes).map_err(LogError::io("creating", draft))?;
        let file = Self::of(path, medium).locked(false)?;
        if file.is_deleted() {
            // Before it had its lock.
            let taken = io::Error::new(io::ErrorKind::AlreadyExists, "another start writes it");
            return Err(LogError::io("creating", draft)(taken));
        }
        Ok(file)
    }

    /// Reserves the space of a log that is written again: a copy from another file system may have holes.
    ///
    /// # Errors
    /// There is no room, or storage failed.
    pub fn reserve(&self) -> Result<(), LogError> {
        if !self.medium.is_written_in_place() {
            let log = self.path.display();
            tracing::warn!(%log, "btrfs does not write this log in place: a full file system can fail it until a new one is made");
        }
        self.medium.reserve().map(drop).map_err(no_space(&self.path, self.medium.len(), &self.path))
    }

    /// Makes the images say that they depend on this log. Before the first write is taken.
    ///
    /// # Errors
    /// An image cannot be marked.
    pub fn mark(&self, contract: u16, images: &[Arc<dyn Image>]) -> Result<(), LogError> {
        let header = self.header()?;
        for step in beginning(images.len()) {
            let Step::Mark(disk) = step else { continue };
            self.mark_one(contract, header.group_uuid, disk as u16, images[disk].as_ref())?;
        }
        Ok(())
    }

    fn mark_one(
        &self,
        contract: u16,
        group_uuid: [u8; 16],
        disk: u16,
        image: &dyn Image,
    ) -> Result<(), LogError> {
        let (log, path) = (self.path.as_os_str().as_bytes().to_vec(), image.path());
        let mark = Mark { contract, log: Some(MarkedLog { group_uuid, disk, path: log }) };
        let max = MARK_PATH_BYTES_MAX;
        let bytes =
            mark.to_bytes().ok_or_else(|| LogError::LogPathTooLong { log: self.path.clone(), max })?;
        match image.set_mark(&bytes).map_err(LogError::io("marking", path))? {
            Attributes::NoRoom => return Err(LogError::NoRoomForMark { image: path.to_owned() }),
            Attributes::Unsupported if !image.is_device() => {
                tracing::warn!(
                    image = %path.display(),
                    "its file system has no extended attributes: that it depends on its redo log stands in a file beside \
                     it, so do not rename it while the log is there"
                );
                write_sidecar(&real_path(path)?, disk, &self.path, group_uuid)?;
            }
            Attributes::Unsupported | Attributes::Kept => {}
        }
        Ok(())
    }

    fn write_draft(
        &mut self,
        draft: &Path,
        images: &[Arc<dyn Image>],
        new: NewLog<'_>,
    ) -> Result<(), LogError> {
        let (file, bytes) = (self, new.bytes);
        let failed = no_space(&file.path, bytes, draft);
        if file.medium.preallocate().map_err(&failed)? {
            // Really written: otherwise the first syncs would each pay for turning reserved blocks into written ones. Whoever
            // appends goes on with that.
            file.written_bytes = new.written_bytes.min(bytes);
            let zeroes = vec![0; file.written_bytes as usize];
            file.medium.write_at(&zeroes, 0).map_err(&failed)?;
        }
        // The times that are written down are on storage, since the images were settled: or a power cut would make every image look
        // like an older copy.
        let entries =
            images.iter().map(|image| image_entry(image.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let names = names_of(images)?;
        let log: Arc<dyn Medium> = Arc::clone(&file.medium) as Arc<dyn Medium>;
        (new.fill)(&log, &entries, &names).map_err(&failed)
    }

    /// The header in force.
    ///
    /// # Errors
    /// It is no log, or cannot be read.
    pub fn header(&self) -> Result<LogHeader, LogError> {
        read_header(self.medium.as_ref()).map_err(|e| LogError::reading(&self.path, e))
    }

    /// Removes a clean log, and before it whatever says that its images depend on it. What has taken their names meanwhile is
    /// left alone.
    ///
    /// # Errors
    /// Storage failed: whoever finds the clean log goes on.
    pub fn remove(&self, images: &[Owner]) -> Result<(), LogError> {
        let group_uuid = self.header()?.group_uuid;
        for step in end(images.len()) {
            match step {
                Step::Unmark(disk) => images[disk].release(Some(group_uuid))?,
                Step::LogGoes => self.remove_name()?,
                // The log was marked clean before, and nothing begins here.
                Step::LogClean | Step::LogAppears | Step::Mark(_) | Step::Serve => {}
            }
        }
        Ok(())
    }

    /// Gives up what only this log holds: its images do not name it any more, and it is kept under another name, which is returned.
    ///
    /// # Errors
    /// Storage failed, or that name is taken.
    pub fn set_aside(&self, images: &[Owner]) -> Result<PathBuf, LogError> {
        let (group_uuid, kept) = (self.header()?.group_uuid, beside(&self.path, ".given-up"));
        name_new(&self.path, &kept).map_err(LogError::io("keeping the log as", &kept))?;
        sync_directory(&kept).map_err(LogError::io("syncing the directory of", &kept))?;
        images.iter().try_for_each(|image| image.release(Some(group_uuid)))?;
        Ok(kept)
    }

    fn remove_name(&self) -> Result<(), LogError> {
        let looking = LogError::io("looking at", &self.path);
        let there = match FileIdentity::at(&self.path) {
            Ok((there, _)) => there,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(looking(e)),
        };
        let own = self.medium.identity().map_err(looking)?;
        if (there.dev, there.ino) != (own.dev, own.ino) {
            tracing::warn!(path = %self.path.display(), "another log has taken this one's name: it was renamed, and is not removed");
            return Ok(());
        }
        remove_durably(&self.path)
    }

    /// Finishes the end of a log that was cut short, so that another may take its place: an image that still named it
    /// would look as if its log had been taken away.
    ///
    /// # Errors
    /// An image still names it that is not among these.
    pub fn clear_leftover(path: &Path, images: &[Arc<dyn Image>]) -> Result<(), LogError> {
        let file = match Self::open(path, false) {
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        file.check_owners(images)?;
        let (header, owners) = (file.header()?, owners(images)?);
        for name in file.names(header.images().len()).into_iter().filter(|name| name.exists()) {
            let log = marked_log(&name)?;
            let named = log.is_some_and(|log| log.group_uuid == header.group_uuid);
            if named && owners.iter().all(|owner| owner.path != name) {
                return Err(LogError::Unfinished { log: path.to_owned(), image: name });
            }
        }
        file.remove(&owners)
    }

    /// Where the images were when the log was opened last; empty where unknown.
    pub fn names(&self, count: usize) -> Vec<PathBuf> {
        let name = |i: usize| {
            let mut bytes = [0; size_of::<ImageName>()];
            let offset = NAMES_OFFSET + (i * size_of::<ImageName>()) as u64;
            self.medium.read_at(&mut bytes, offset).ok()?;
            Some(PathBuf::from(OsString::from_vec(ImageName::parse(&bytes)?)))
        };
        (0..count).map(|i| name(i).unwrap_or_default()).collect()
    }

    /// Notes where the images are now.
    ///
    /// # Errors
    /// Storage failed.
    pub fn write_names(&self, images: &[Arc<dyn Image>]) -> Result<(), LogError> {
        for (i, name) in names_of(images)?.iter().enumerate() {
            let offset = NAMES_OFFSET + (i * size_of::<ImageName>()) as u64;
            self.medium
                .write_at(ImageName::new(name).as_bytes(), offset)
                .map_err(LogError::io("writing", &self.path))?;
        }
        Ok(())
    }
}

/// What a failed write to `file` says, which is the log at `path` or becomes it.
fn no_space<'a>(path: &'a Path, bytes: u64, file: &'a Path) -> impl Fn(io::Error) -> LogError + 'a {
    move |e| match e.kind() {
        io::ErrorKind::StorageFull => LogError::NoSpace { path: path.to_owned(), bytes },
        _ => LogError::io("writing", file)(e),
    }
}

fn names_of(images: &[Arc<dyn Image>]) -> Result<Vec<Vec<u8>>, LogError> {
    // What a device is called by the kernel is another one's name after a restart of the host.
    let name = |image: &Arc<dyn Image>| match image.is_device() {
        true => absolute(image.path()),
        false => real_path(image.path()),
    };
    images.iter().map(|image| Ok(name(image)?.into_os_string().into_vec())).collect()
}

/// An image of a log, and where its neighbours are, which may be out of reach later on.
pub struct Owner {
    image: Arc<dyn Image>,
    path: PathBuf,
}

/// The images of a log, in its order.
///
/// # Errors
/// A path leads nowhere.
pub fn owners(images: &[Arc<dyn Image>]) -> Result<Vec<Owner>, LogError> {
    let owner =
        |image: &Arc<dyn Image>| Ok(Owner { image: Arc::clone(image), path: real_path(image.path())? });
    images.iter().map(owner).collect()
}

impl Owner {
    /// The image.
    pub fn image(&self) -> &dyn Image {
        self.image.as_ref()
    }

    /// The image says, durably, that it depends on no log any more; or, with `group_uuid`, not on that one.
    ///
    /// # Errors
    /// Storage failed.
    pub fn release(&self, group_uuid: Option<[u8; 16]>) -> Result<(), LogError> {
        let is_meant = |named: Option<[u8; 16]>| group_uuid.is_none() || named == group_uuid;
        let mark = self.image.mark().map_err(LogError::io("reading the mark of", self.image.path()))?;
        if is_meant(mark.and_then(|bytes| Some(Mark::parse(&bytes).ok()?.log?.group_uuid))) {
            remove_mark(self.image.as_ref())?;
        }
        let sidecar = sidecar_path(&self.path);
        let referenced = read_sidecar(&self.path).ok().flatten();
        if is_meant(referenced.map(|reference| reference.group_uuid)) {
            remove_durably(&sidecar)?;
        }
        Ok(())
    }
}

/// Gives a log its name, which nothing else has.
fn name_new(draft: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
        // File systems that cannot promise it: nothing had the name when the start looked.
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(draft, path),
        renamed => Ok(renamed?),
    }
}

fn remove_durably(path: &Path) -> Result<(), LogError> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path).map_err(LogError::io("syncing the directory of", path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(LogError::io("removing", path)(e)),
    }
}

fn write_sidecar(image: &Path, disk: u16, log: &Path, uuid: [u8; 16]) -> Result<(), LogError> {
    let sidecar = sidecar_path(image);
    let too_long = || io::Error::from(Errno::NAMETOOLONG);
    let reference = Reference::new(uuid, disk, log.as_os_str().as_bytes())
        .ok_or_else(|| LogError::io("naming the log in", &sidecar)(too_long()))?;
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
        .map_err(LogError::io("writing", &sidecar))
}
