//! Builds the layers of one consistency group from options, in the one order that is right: for the daemon, and for whoever
//! hosts the same layers to listen to them.
//!
//! ```text
//! Plan ─► Prepared: images opened and locked, retained journals judged ─► Stack: order's group ─► retained journals
//!         (no thread, nothing changed: whoever locks himself in           │                         └─► tap above ─► disks
//!          does it here)                                                  └─ taps below                              to serve
//! ```
//!
//! A `Prepared` that is dropped leaves the images as they were. A [`Stack`] ends by [`RetainGroup::close_within`], after whoever
//! serves its disks has stopped.
#![warn(missing_docs)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{Disk, DiskIndex, Tap};
use afterimage_journal::group::{self, GroupImage, JournalOptions, RetainError, RetainGroup};
use afterimage_order::{Contract, Group, GroupOptions};
use afterimage_store::{find_log, real_path, Image, ImageStore, LogError, OpenOptions};

/// What a group is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The images, in the order of the disks.
    pub images: Vec<OpenOptions>,
    /// What an acknowledged flush survives.
    pub contract: Contract,
    /// Size of the redo log in bytes (`power-window` only); at least [`GroupOptions::LOG_MIN_BYTES`].
    pub log_bytes_max: u64,
    /// Where the redo log is; beside the first image where `None`.
    pub log: Option<PathBuf>,
    /// What becomes of the guest's journals.
    pub journal: JournalOptions,
}

/// Why a group cannot be built. Each is one sentence for a person.
#[derive(Debug, thiserror::Error)]
pub enum ComposeError {
    /// An image.
    #[error(transparent)]
    Image(#[from] afterimage_store::OpenError),
    /// The log that an image depends on.
    #[error(transparent)]
    Log(#[from] afterimage_store::LogError),
    /// The layer that keeps the contract.
    #[error(transparent)]
    Order(#[from] afterimage_order::OpenError),
    /// The retained journals.
    #[error(transparent)]
    Retain(#[from] RetainError),
    /// Whoever listens could not read what is there already.
    #[error("disk {disk} cannot be listened to: {source}")]
    Tap {
        /// Its position in the group.
        disk: u16,
        /// What failed.
        source: io::Error,
    },
}

/// Images that are open and locked, and what was decided about them. Nothing has been changed and no thread started.
pub struct Prepared<I = ImageStore> {
    images: Vec<Arc<I>>,
    journals: group::Prepared,
    options: GroupOptions,
}

/// What a group still reaches by name once its images are open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The images.
    pub images: Vec<PathBuf>,
    /// Folders in which the log, its side files and state files are created, renamed, synced and removed.
    pub folders: Vec<PathBuf>,
    /// Arenas: of this group, or of earlier ones that are of no use any more.
    pub arenas: Vec<PathBuf>,
}

/// The layers of one group, ready to be served.
pub struct Stack<I = ImageStore> {
    /// The group, and what is retained of its guest's journals.
    pub group: Arc<RetainGroup>,
    /// Its disks, in the order of the plan.
    pub disks: Vec<StackDisk<I>>,
}

/// One disk of a [`Stack`].
pub struct StackDisk<I = ImageStore> {
    /// The image.
    pub image: Arc<I>,
    /// What the guest sees.
    pub disk: Arc<dyn Disk>,
}

impl Prepared {
    /// Opens and locks the images, and judges what earlier daemons retained of their journals.
    ///
    /// # Errors
    /// An image cannot be opened, or what was retained of it is gone or does not fit the plan.
    pub fn new(plan: Plan) -> Result<Self, ComposeError> {
        let images = plan.images.iter().map(ImageStore::open).collect::<Result<Vec<_>, _>>()?;
        let options = GroupOptions {
            log_max_bytes: plan.log_bytes_max,
            log_path: plan.log,
            ..GroupOptions::new(plan.contract)
        };
        Self::of(images, options, plan.journal)
    }
}

impl<I: Image + 'static> Prepared<I> {
    /// As [`Prepared::new`], of images that are open and locked, on any host.
    ///
    /// # Errors
    /// What was retained of an image is gone or does not fit.
    pub fn of(
        images: Vec<Arc<I>>,
        options: GroupOptions,
        journal: JournalOptions,
    ) -> Result<Self, ComposeError> {
        let judged: Vec<GroupImage<'_>> = images
            .iter()
            .map(|image| GroupImage { path: image.path(), read_only: image.geometry().read_only })
            .collect();
        let journals = group::Prepared::new(&judged, &options.contract, journal)?;
        Ok(Self { images, journals, options })
    }

    /// The images, in the order of the plan.
    pub fn images(&self) -> &[Arc<I>] {
        &self.images
    }

    /// What the group will reach by name, for whoever allows nothing else.
    ///
    /// # Errors
    /// It cannot be read which log an image depends on.
    pub fn names(&self) -> Result<Names, ComposeError> {
        let paths = || self.images.iter().map(|image| image.path());
        // An image that was renamed names its log, wherever that is.
        let logs = paths().map(find_log).collect::<Result<Vec<_>, _>>()?;
        let beside = paths().chain(self.options.log_path.as_deref()).map(folder_of);
        // What is named after an image lies beside the file, not beside a symbolic link to it.
        let real = paths().map(|path| Ok(folder_of(&real_path(path)?)));
        let real = real.collect::<Result<Vec<_>, LogError>>()?;
        let named = logs.iter().flatten().map(|log| folder_of(log));
        Ok(Names {
            images: paths().map(Path::to_owned).collect(),
            folders: beside.chain(real).chain(named).chain(self.journals.state_folders()).collect(),
            arenas: self.journals.arenas(),
        })
    }

    /// Opens the group. Whoever listens by `tap` is asked to join in below the group and above everything; no guest may be
    /// served before.
    ///
    /// # Errors
    /// The log cannot be made or taken over, what was retained cannot go on, or the tap cannot read what is there. What had been
    /// opened by then is left as a death of the process would leave it.
    pub fn open(self, tap: Option<Arc<dyn Tap>>) -> Result<Stack<I>, ComposeError> {
        let options = GroupOptions { tap: tap.clone(), ..self.options };
        let group = Group::open(self.images.clone(), options)?;
        let group = Arc::new(RetainGroup::open(group, self.journals)?);
        let mut disks = Vec::new();
        for ((index, disk), image) in (0..).zip(group.disks()).zip(self.images) {
            let disk = match &tap {
                Some(tap) => tap
                    .guest(DiskIndex(index), disk)
                    .map_err(|source| ComposeError::Tap { disk: index, source })?,
                None => disk,
            };
            disks.push(StackDisk { image, disk });
        }
        Ok(Stack { group, disks })
    }
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
