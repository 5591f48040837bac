//! The group of `power-window`: opens or takes over the log, runs the threads, closes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, Disk, DiskIndex, Medium, Sector, SequenceNumber};
use afterimage_format::log::IMAGES_MAX;
use afterimage_store::ImageStore;

use super::core::{lock, Config, Core};
use super::files::{absolute, default_log_path, is_device, is_live, owners, real_path, LogFile, Owner};
use super::lane::RedoDisk;
use super::takeover::{
    bring_home, live_logs, match_images, refuse_read_only, settle, take_over_error, Match, Trust,
};
use super::threads::Threads;
use crate::clock::{Clock, SystemClock};
use crate::home::no_disk;
use crate::{
    Closing, Contract, GroupOptions, GroupStatus, HomeError, HomeWriter, OpenError, Replayed, Subscription,
};

pub(crate) struct RedoGroup {
    core: Arc<Core>,
    disks: Vec<Arc<dyn Disk>>,
    /// By disk: its index in the log; `None` for a read-only one.
    logged: Vec<Option<usize>>,
    threads: Mutex<Threads>,
    log: LogFile,
    /// The writable images.
    owners: Vec<Owner>,
    contract: Contract,
    replayed: Option<Replayed>,
}

/// The way of a disk's sets into the log.
struct RedoHome {
    core: Arc<Core>,
    disk: usize,
}

impl HomeWriter for RedoHome {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        self.core.write_set(self.disk, blocks).map(|_| ())
    }

    fn atomic_bytes_max(&self) -> u64 {
        self.core.set_bytes_max()
    }
}

/// A number that no earlier process has used, and no guest can guess.
fn draw_incarnation() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

impl RedoGroup {
    /// At least one image is writable. Read-only ones are served as they are.
    pub(crate) fn open(
        images: Vec<Arc<ImageStore>>,
        window: Duration,
        options: &GroupOptions,
    ) -> Result<Self, OpenError> {
        if options.log_max_bytes < GroupOptions::LOG_MIN_BYTES {
            let (bytes, min_bytes) = (options.log_max_bytes, GroupOptions::LOG_MIN_BYTES);
            return Err(OpenError::LogTooSmall { bytes, min_bytes });
        }
        refuse_read_only(&images)?;
        let writable: Vec<_> = images.iter().filter(|i| !i.geometry().read_only).map(Arc::clone).collect();
        if writable.len() > IMAGES_MAX {
            return Err(OpenError::TooManyImages { count: writable.len(), max: IMAGES_MAX });
        }
        let log_path = match &options.log_path {
            Some(path) => absolute(path)?,
            None if is_device(writable[0].path()) => {
                return Err(OpenError::LogPathNeeded(writable[0].path().to_owned()))
            }
            None => default_log_path(&real_path(writable[0].path())?),
        };
        let mut brought_home = None;
        for log in live_logs(&writable, Some(&log_path))? {
            let same_size = LogFile::peek(&log)?.is_some_and(|h| {
                h.area_bytes.get() + afterimage_format::log::RECORDS_OFFSET
                    == super::log_file_bytes(options.log_max_bytes)
            });
            if log == log_path && same_size && match_images(&log, &writable, Trust::Nothing)? == Match::Same {
                continue;
            }
            brought_home = bring_home(&log, &writable, Trust::Nothing)?.or(brought_home);
        }
        let incarnation = draw_incarnation();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let fresh = !is_live(&log_path)?;
        let log = if !fresh {
            let log = LogFile::open(&log_path, false)?;
            log.write_names(&writable)?;
            log
        } else {
            LogFile::clear_leftover(&log_path, &writable)?;
            // What is home is durable from here on: what is not will be in the log.
            settle(&writable)?;
            // The header's incarnation is never this process's own: the first record says so, as after any death.
            LogFile::create(&log_path, &writable, options.log_max_bytes, draw_incarnation())?
        };
        let (log_medium, homes) = below(&images, &log, options)?;
        let config = Config {
            window,
            clock,
            log: log_medium,
            homes,
            incarnation,
            #[cfg(feature = "mutations")]
            mutation: None,
        };
        let core = Core::open(config).map_err(|e| take_over_error(&log.path, &writable, e))?;
        let replayed = core.replayed().filter(|r| r.records > 0).or(brought_home);
        if let Some(Replayed { records, bytes, sequence, torn_tail }) = replayed {
            let log = log.path.display();
            tracing::info!(records, bytes, sequence, torn_tail, %log, "took over what an earlier process left in the log");
        }
        let mut indices = 0..;
        let logged: Vec<Option<usize>> = images
            .iter()
            .map(|image| if image.geometry().read_only { None } else { indices.next() })
            .collect();
        let disks = images
            .iter()
            .zip(&logged)
            .zip((0..).map(DiskIndex))
            .map(|((image, logged), index)| {
                let mut lower: Arc<dyn Disk> = Arc::clone(image) as Arc<dyn Disk>;
                if let Some(tap) = &options.tap {
                    let failed = OpenError::io("reading, for a recording,", image.path());
                    lower = tap.only_read(index, lower).map_err(failed)?;
                }
                Ok(match *logged {
                    None => lower,
                    Some(index) => Arc::new(RedoDisk::new(Arc::clone(&core), index, lower)) as Arc<dyn Disk>,
                })
            })
            .collect::<Result<_, OpenError>>()?;
        let contract = Contract::PowerWindow { window };
        let owners = owners(&writable)?;
        log.mark(contract, &writable).inspect_err(|_| {
            if fresh {
                // Nothing was written to it; whatever cannot be undone is a log without content.
                drop(log.remove(&owners));
            }
        })?;
        let threads = Threads::start(&core).map_err(OpenError::io("starting threads for", &log.path))?;
        Ok(Self { core, disks, logged, threads: Mutex::new(threads), log, owners, contract, replayed })
    }

    pub(crate) fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.disks.clone()
    }

    pub(crate) fn home_writer(&self, disk: usize) -> Result<Arc<dyn HomeWriter>, BlockError> {
        let logged = self.logged.get(disk).ok_or_else(|| no_disk(disk))?;
        let disk = logged.ok_or(BlockError::ReadOnly)?;
        Ok(Arc::new(RedoHome { core: Arc::clone(&self.core), disk }))
    }

    pub(crate) fn status(&self) -> GroupStatus {
        let core = &self.core;
        let (age, age_max) = core.not_durable_ages();
        let counters = &core.counters;
        GroupStatus {
            contract: self.contract,
            acknowledged: core.acknowledged(),
            durable: core.durable(),
            home: core.home(),
            oldest_not_durable_age: age,
            oldest_not_durable_age_max: age_max,
            held_flushes: counters.held_flushes.load(Ordering::Relaxed),
            log_deleted: self.log.medium.is_deleted().then(|| self.log.path.clone()),
            throttled: counters.throttled.load(Ordering::Relaxed),
            log_bytes: core.log_bytes(),
            log_max_bytes: core.area_bytes(),
            log_appended_bytes: counters.appended_bytes.load(Ordering::Relaxed),
            log_syncs: counters.log_syncs.load(Ordering::Relaxed),
            home_written_bytes: counters.home_written_bytes.load(Ordering::Relaxed),
            failure: core.health.failure(),
            paused: core.paused(),
            replayed: self.replayed,
        }
    }

    pub(crate) fn flush(&self) -> Result<SequenceNumber, BlockError> {
        self.core.flush_durable()
    }

    pub(crate) fn wait_durable(
        &self,
        sequence: SequenceNumber,
        timeout: Option<Duration>,
    ) -> Result<bool, BlockError> {
        self.core.wait_durable(sequence, timeout.and_then(|t| Instant::now().checked_add(t)))
    }

    pub(crate) fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Subscription {
        self.core.events.subscribe(wake)
    }

    pub(crate) fn pause(&self, deadline: Option<Instant>) -> Result<SequenceNumber, BlockError> {
        self.core.pause(deadline)
    }

    pub(crate) fn resume(&self) {
        self.core.resume();
    }

    pub(crate) fn close_within(&self, limit: Duration) -> Result<Closing, BlockError> {
        let closing = self.core.close_within(limit)?;
        lock(&self.threads).stop(&self.core);
        if closing != Closing::Clean {
            return Ok(closing);
        }
        self.log.remove(&self.owners).map_err(|e| {
            BlockError::io("removing the redo log, which is clean", std::io::Error::other(e.to_string()))
        })?;
        self.owners.iter().for_each(|owner| owner.image.note_settled());
        Ok(closing)
    }
}

impl Drop for RedoGroup {
    fn drop(&mut self) {
        lock(&self.threads).stop(&self.core);
    }
}

/// Images, by disk index.
type Homes = Vec<Arc<dyn Medium>>;

/// What the core works on: the log and the writable images, through the tap where there is one.
fn below(
    images: &[Arc<ImageStore>],
    log: &LogFile,
    options: &GroupOptions,
) -> Result<(Arc<dyn Medium>, Homes), OpenError> {
    let mut log_medium = Arc::clone(&log.medium) as Arc<dyn Medium>;
    let failed = |path| OpenError::io("reading, for a recording,", path);
    if let Some(tap) = &options.tap {
        log_medium = tap.log(log_medium).map_err(failed(&log.path))?;
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
