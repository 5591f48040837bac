//! Where one guest's daemon is: its files, which outlive it, its machine, and its layers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{Disk, Medium, Tap};
use afterimage_compose::{ComposeError, Prepared};
use afterimage_journal::group::{JournalOptions, RetainGroup};
use afterimage_order::redo::{create_medium, log_file_bytes};
use afterimage_order::{Contract, GroupOptions};
use afterimage_store::Image as _;
use parking_lot::Mutex;

use crate::beside::{Beside, HearPublished};
use crate::content::Content;
use crate::error::{io_error, RunError};
use crate::image::{Around, VirtualImage};
use crate::machine::{Machine, OnMachine};
use crate::options::RunOptions;
use crate::storage::{File, Storage};
use crate::storage_trace::StorageTrace;
use crate::timed::TimedMedium;
use crate::trace::Trace;
use crate::volatile::Volatile;

/// What a daemon finds when it begins, and leaves when it dies.
#[derive(Clone, Debug)]
pub struct Files {
    guest: usize,
    /// Of the image; only the name is a file.
    path: PathBuf,
    /// Where arenas are.
    pub arenas: PathBuf,
    /// What the image holds.
    pub image: Arc<Volatile>,
    /// What the redo log holds; nothing where there is none.
    pub log: Arc<Volatile>,
}

impl Files {
    /// An image, an empty log, and a folder for arenas.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn make(
        guest: usize,
        options: &RunOptions,
        folder: &Path,
        storage: &Arc<Mutex<Storage>>,
    ) -> Result<Self, RunError> {
        let image = match options.images.get(guest) {
            Some(image) => Volatile::new(image),
            None if options.crashes => Volatile::zeroes(options.image_bytes),
            None => Volatile::new(&Content::new(options.image_bytes)),
        };
        let path: PathBuf = folder.join(format!("image{guest}"));
        let name = fs::File::create(&path).and_then(|file| file.set_len(image.len()));
        name.map_err(io_error(format!("make {}", path.display())))?;
        let arenas = folder.join(format!("arenas{guest}"));
        fs::create_dir_all(&arenas).map_err(io_error(format!("make {}", arenas.display())))?;
        let log = Self::log(options, &image, &path, storage)
            .map_err(io_error(format!("make the log of {}", path.display())))?;
        {
            let mut storage = storage.lock();
            let there = image.cached().data().chain(options.laid_out.iter().cloned());
            there.for_each(|range| storage.lay_out(2 * guest as u64, range));
            // A new log is written out before it is used.
            storage.lay_out(2 * guest as u64 + 1, 0..log.len());
        }
        Ok(Self { guest, path, arenas, image, log })
    }

    /// The content of a log of which only the name is a file: empty.
    fn log(
        options: &RunOptions,
        image: &Arc<Volatile>,
        path: &Path,
        storage: &Arc<Mutex<Storage>>,
    ) -> io::Result<Arc<Volatile>> {
        if !matches!(options.contract, Contract::PowerWindow { .. }) {
            return Ok(Volatile::new(&Content::new(0)));
        }
        let bytes = log_file_bytes(options.log_bytes);
        let log = match options.crashes {
            true => Volatile::zeroes(bytes),
            false => Volatile::new(&Content::new(bytes)),
        };
        let machine = Machine::new(storage, 0);
        let named = VirtualImage::new(&machine, TimedMedium::new(image, File::buffered(0), &machine), path);
        let homes: [Arc<dyn Medium>; 1] = [Arc::clone(image) as _];
        let medium: Arc<dyn Medium> = Arc::clone(&log) as _;
        create_medium(&medium, &homes, &[named.log_entry()?], &[], [7; 16], options.guest.seed)?;
        log.synced(0, 0);
        log.settle(0);
        Ok(log)
    }

    /// Whose.
    pub fn guest(&self) -> usize {
        self.guest
    }

    /// Size of the log.
    pub fn log_bytes(&self) -> u64 {
        self.log.len()
    }

    /// The host's memory is lost.
    ///
    /// # Errors
    /// The folder of arenas cannot be made anew.
    pub fn forget_memory(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.arenas)?;
        fs::create_dir(&self.arenas)
    }
}

/// See the module.
pub struct Site {
    pub files: Files,
    pub machine: Arc<Machine>,
    pub disk: Arc<dyn Disk>,
    pub group: Arc<RetainGroup>,
    /// What the daemon asks of its files, where that is asked for.
    pub below: Option<Arc<StorageTrace>>,
    /// Where the guest has a control disk.
    beside: Option<Arc<Beside>>,
}

/// Somebody who listens to a site's layers.
pub struct Listener {
    /// To what is asked of them.
    pub tap: Arc<dyn Tap>,
    /// To what is published.
    pub published: Option<HearPublished>,
}

impl Site {
    /// A daemon's, which goes on with what it finds.
    ///
    /// # Errors
    /// The layers cannot be built.
    pub fn open(
        files: &Files,
        options: &RunOptions,
        machine: &Arc<Machine>,
        trace: &Arc<Trace>,
    ) -> Result<Self, ComposeError> {
        let listens = options.storage_traces.is_some();
        let below = listens.then(|| StorageTrace::new(machine, Arc::clone(&files.image) as _)).transpose();
        let unread = |e| ComposeError::Tap { disk: 0, source: io::Error::other(e) };
        let below = below.map_err(unread)?;
        let listener = |below: &Arc<StorageTrace>| Listener { tap: below.tap(), published: None };
        let also = below.as_ref().map(listener);
        Ok(Self { below, ..Self::open_heard(files, options, machine, trace, also)? })
    }

    /// As [`Site::open`], where somebody else listens to the layers, too.
    ///
    /// # Errors
    /// As [`Site::open`].
    pub fn open_heard(
        files: &Files,
        options: &RunOptions,
        machine: &Arc<Machine>,
        trace: &Arc<Trace>,
        also: Option<Listener>,
    ) -> Result<Self, ComposeError> {
        let files = files.clone();
        let (image_file, log_file) = (2 * files.guest as u64, 2 * files.guest as u64 + 1);
        let under_power = options.contract == Contract::Power;
        let file = File {
            id: image_file,
            direct: options.direct && under_power,
            write_through: options.write_through && under_power,
        };
        let medium = TimedMedium::new(&files.image, file, machine);
        let image = VirtualImage::new(machine, medium, &files.path);
        let host = Arc::new(OnMachine(Arc::clone(machine)));
        let (also, published) = also.map_or((None, None), |also| (Some(also.tap), also.published));
        let around = Around { machine: Arc::clone(machine), log: (Arc::clone(&files.log), log_file), also };
        let mut group =
            GroupOptions { log_max_bytes: options.log_bytes, host, ..GroupOptions::new(options.contract) };
        let mut journal = JournalOptions { arena_folder: files.arenas.clone(), ..options.journal.clone() };
        options.canary.plant(&mut group, &mut journal);
        let prepared = Prepared::of(vec![image], group, journal)?;
        let mut stack = prepared.open(Some(Arc::new(around)))?;
        let heard = stack.disks.remove(0).disk;
        let mut disk: Arc<dyn Disk> = Arc::new(trace.listen(files.guest, machine, Arc::clone(&heard)));
        let mut beside = None;
        if options.control_disk {
            let made = Beside::new(disk, heard, &stack.group, options.contract, machine, published);
            let made = Arc::new(made.map_err(|source| ComposeError::Tap { disk: 0, source })?);
            disk = Arc::clone(&made) as _;
            beside = Some(made);
        }
        let (machine, group) = (Arc::clone(machine), stack.group);
        Ok(Self { files, machine, disk, group, below: None, beside })
    }

    /// Has whoever listens hear what the guest has published by now. Nothing of it is taken.
    pub fn listen(&self) {
        if let Some(beside) = &self.beside {
            beside.listen();
        }
    }
}
