//! The backend of `power-window`: opens or takes over the log, runs the threads, ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{BlockError, Disk, DiskIndex, FlushKind, Medium, SequenceNumber};
use afterimage_format::log::{ImageEntry, IMAGES_MAX, RECORDS_OFFSET};
use afterimage_store::{is_live, log_of, owners, Image, LogError, LogFile, NewLog, Owner};
use parking_lot::Mutex;

use super::engine::{Config, Redo, Threads};
use super::lane::RedoDisk;
use super::open::{create_medium, log_file_bytes};
use super::sets::RedoHome;
use super::space::ahead_bytes;
use super::takeover::{
    bring_home, is_left_over, live_logs, match_images, refuse_read_only, settle, take_over_error, Match,
    Trust,
};
use crate::backend::{too_late, Backend, Opened};
use crate::changes::Changes;
use crate::home::no_disk;
use crate::sequence::LoggedDisk;
use crate::{Contract, GroupOptions, GroupStatus, HomeWriter, OpenError, Replayed};

struct RedoBackend {
    redo: Arc<Redo>,
    disks: Vec<Arc<dyn Disk>>,
    /// By disk: its place in the log; `None` for a read-only one.
    logged: Vec<Option<LoggedDisk>>,
    threads: Mutex<Threads>,
    log: LogFile,
    /// The writable images.
    owners: Vec<Owner>,
}

impl Backend for RedoBackend {
    fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.disks.clone()
    }

    fn home_writer(&self, disk: DiskIndex) -> Result<Arc<dyn HomeWriter>, BlockError> {
        let logged = self.logged.get(usize::from(disk.0)).ok_or_else(|| no_disk(disk))?;
        let disk = logged.ok_or(BlockError::ReadOnly)?;
        Ok(Arc::new(RedoHome { redo: Arc::clone(&self.redo), disk }))
    }

    fn sync(&self, until: Option<Duration>) -> Result<SequenceNumber, BlockError> {
        let (covers, _) = self.redo.log.appended();
        self.redo.syncer.ask(FlushKind::Durable, covers)?;
        if self.redo.board.wait_durable(covers, until)? {
            return Ok(covers);
        }
        match self.redo.board.is_stopped() {
            true => Err(BlockError::Failed { reason: "the group is closing".into() }),
            false => Err(too_late("syncing the redo log")),
        }
    }

    fn changes(&self, disk: usize) -> Option<&Changes> {
        self.logged.get(disk).copied().flatten().map(|logged| self.redo.going_home.changes(logged))
    }

    fn holds_flushes(&self) -> bool {
        self.redo.syncer.holds(FlushKind::Order, self.redo.board.sequence.acknowledged.get())
    }

    fn syncs_by_itself(&self) -> bool {
        true
    }

    fn release(&self, parts: u64) -> Result<bool, BlockError> {
        self.redo.going_home.round(self.redo.log.area_bytes() / parts)
    }

    fn stop(&self) {
        self.threads.lock().stop(&self.redo);
    }

    fn end(&self) -> Result<(), BlockError> {
        self.redo.going_home.mark_clean()?;
        self.stop();
        self.log.remove(&self.owners).map_err(|e| {
            BlockError::io("removing the redo log, which is clean", std::io::Error::other(e.to_string()))
        })
    }

    fn describe(&self, status: &mut GroupStatus) {
        let Redo { log, syncer, going_home, .. } = &*self.redo;
        (status.oldest_not_durable_age, status.oldest_not_durable_age_max) = syncer.ages();
        status.held_flushes = syncer.held_flushes();
        status.log_deleted = self.log.is_deleted().then(|| self.log.path().to_owned());
        status.throttled = log.throttled();
        status.log_bytes = log.bytes_used();
        status.log_max_bytes = log.area_bytes();
        status.log_appended_bytes = log.appended_bytes.load(Ordering::Relaxed);
        status.log_syncs = syncer.log_syncs.load(Ordering::Relaxed);
        status.home_written_bytes = going_home.written_bytes.load(Ordering::Relaxed);
    }
}

impl Drop for RedoBackend {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A number that no earlier process has used, and no guest can guess.
fn draw_incarnation() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// At least one image is writable. Read-only ones are served as they are.
pub(crate) fn open(
    images: Vec<Arc<dyn Image>>,
    window: Duration,
    options: &GroupOptions,
) -> Result<Opened, OpenError> {
    if options.log_max_bytes < GroupOptions::LOG_MIN_BYTES {
        let (bytes, min_bytes) = (options.log_max_bytes, GroupOptions::LOG_MIN_BYTES);
        return Err(OpenError::LogTooSmall { bytes, min_bytes });
    }
    refuse_read_only(&images)?;
    let writable: Vec<_> = images.iter().filter(|i| !i.geometry().read_only).map(Arc::clone).collect();
    let log_path = log_to_use(&writable, options)?;
    let brought_home = bring_others_home(&log_path, &writable, options)?;
    let fresh = !is_live(&log_path)? || is_left_over(&log_path, &writable)?;
    let log = match fresh {
        true => create_log(&log_path, &writable, options)?,
        false => go_on_with(&log_path, &writable)?,
    };
    let (log_medium, homes) = below(&images, &log, options)?;
    #[cfg_attr(not(feature = "mutations"), allow(unused_mut))]
    let mut config = Config::new(window, options.host.clock(), log_medium, homes, draw_incarnation());
    #[cfg(feature = "mutations")]
    {
        config.mutation = options.mutation;
    }
    let redo = Redo::open(config).map_err(|e| take_over_error(log.path(), &writable, e))?;
    if !fresh {
        // Not before everything was checked: a start that is refused leaves the log as it was.
        log.write_names(&writable)?;
    }
    redo.log.written_out(log.written_bytes() - RECORDS_OFFSET);
    let replayed = redo.replayed().filter(|r| r.records > 0).or(brought_home);
    if let Some(Replayed { records, bytes, sequence, torn_tail }) = replayed {
        let log = log.path().display();
        tracing::info!(records, bytes, sequence, torn_tail, %log, "took over what an earlier process left in the log");
    }
    let (logged, disks) = above(&images, &redo, options)?;
    let owners = owners(&writable)?;
    log.mark(Contract::PowerWindow { window }.code(), &writable).inspect_err(|_| {
        if fresh {
            // Nothing was written to it; whatever cannot be undone is a log without content.
            drop(log.remove(&owners));
        }
    })?;
    let threads = match options.host.is_stepped() {
        true => {
            options.host.take(&redo);
            Threads::default()
        }
        false => Threads::start(&redo).map_err(OpenError::io("starting threads for", log.path()))?,
    };
    let board = Arc::clone(&redo.board);
    let backend = Box::new(RedoBackend { redo, disks, logged, threads: Mutex::new(threads), log, owners });
    Ok(Opened { backend, board, replayed })
}

/// Where the log of these writable images is to be.
fn log_to_use(writable: &[Arc<dyn Image>], options: &GroupOptions) -> Result<PathBuf, OpenError> {
    if writable.len() > IMAGES_MAX {
        return Err(OpenError::TooManyImages { count: writable.len(), max: IMAGES_MAX });
    }
    if options.log_path.is_none() && writable[0].is_device() {
        return Err(OpenError::LogPathNeeded(writable[0].path().to_owned()));
    }
    Ok(log_of(options.log_path.as_deref(), writable[0].path())?)
}

/// Brings home what live logs hold with which one in this place does not go on: others, and one of another size or group.
fn bring_others_home(
    log_path: &Path,
    writable: &[Arc<dyn Image>],
    options: &GroupOptions,
) -> Result<Option<Replayed>, OpenError> {
    let mut brought_home = None;
    for log in live_logs(writable, Some(log_path))? {
        let same_size = LogFile::peek(&log)?
            .is_some_and(|h| h.area_bytes.get() + RECORDS_OFFSET == log_file_bytes(options.log_max_bytes));
        if log == log_path && same_size && belongs_to(&LogFile::look(&log)?, writable)? {
            continue;
        }
        brought_home = bring_home(&log, writable, Trust::default())?.or(brought_home);
    }
    Ok(brought_home)
}

/// Whether a log is of exactly these images, in this order.
fn belongs_to(log: &LogFile, writable: &[Arc<dyn Image>]) -> Result<bool, OpenError> {
    Ok(match_images(log, writable, Trust::default())? == Match::Same)
}

fn go_on_with(log_path: &Path, writable: &[Arc<dyn Image>]) -> Result<LogFile, OpenError> {
    let log = LogFile::open(log_path, false)?;
    // What was judged is what is open: the name may lead elsewhere by now.
    if !belongs_to(&log, writable)? {
        return Err(LogError::NotALog(log_path.to_owned()).into());
    }
    log.reserve()?;
    log.sync_name()?;
    Ok(log)
}

fn create_log(
    log_path: &Path,
    writable: &[Arc<dyn Image>],
    options: &GroupOptions,
) -> Result<LogFile, OpenError> {
    LogFile::clear_leftover(log_path, writable)?;
    // What is home is durable from here on: what is not will be in the log.
    settle(writable)?;
    // The header's incarnation is never this process's own: the first record says so, as after any death.
    let fill = |log: &Arc<dyn Medium>, entries: &[ImageEntry], names: &[Vec<u8>]| {
        let homes: Vec<_> = writable.iter().map(|image| image.medium()).collect();
        let uuid = *uuid::Uuid::new_v4().as_bytes();
        create_medium(log, &homes, entries, names, uuid, draw_incarnation())
    };
    let bytes = log_file_bytes(options.log_max_bytes);
    let written_bytes = RECORDS_OFFSET + ahead_bytes(bytes - RECORDS_OFFSET);
    Ok(LogFile::create(log_path, writable, NewLog { bytes, written_bytes, fill: &fill })?)
}

/// By disk: its place in the log, and what is served of it.
type Served = (Vec<Option<LoggedDisk>>, Vec<Arc<dyn Disk>>);

fn above(images: &[Arc<dyn Image>], redo: &Arc<Redo>, options: &GroupOptions) -> Result<Served, OpenError> {
    let (mut indices, mut logged, mut disks) = ((0..).map(LoggedDisk), Vec::new(), Vec::new());
    for (image, index) in images.iter().zip((0..).map(DiskIndex)) {
        let mut lower: Arc<dyn Disk> = Arc::clone(image).as_disk();
        if let Some(tap) = &options.tap {
            let failed = OpenError::io("reading, for a recording,", image.path());
            lower = tap.only_read(index, lower).map_err(failed)?;
        }
        let place = if image.geometry().read_only { None } else { indices.next() };
        logged.push(place);
        disks.push(match place {
            None => lower,
            Some(index) => Arc::new(RedoDisk::new(Arc::clone(redo), index, lower)),
        });
    }
    Ok((logged, disks))
}

/// Images, by disk index.
type Homes = Vec<Arc<dyn Medium>>;

/// What the core works on: the log and the writable images, through the tap where there is one.
fn below(
    images: &[Arc<dyn Image>],
    log: &LogFile,
    options: &GroupOptions,
) -> Result<(Arc<dyn Medium>, Homes), OpenError> {
    let mut log_medium = log.medium();
    let failed = |path| OpenError::io("reading, for a recording,", path);
    if let Some(tap) = &options.tap {
        log_medium = tap.log(log_medium).map_err(failed(log.path()))?;
    }
    let mut homes = Vec::new();
    for (index, image) in (0..).map(DiskIndex).zip(images).filter(|(_, i)| !i.geometry().read_only) {
        homes.push(match &options.tap {
            Some(tap) => tap.home(index, image.medium()).map_err(failed(image.path()))?,
            None => image.medium(),
        });
    }
    Ok((log_medium, homes))
}
