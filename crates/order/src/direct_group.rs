//! The groups of `power` and `guest-crash`: several pass-through disks that pause, flush and close together.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{advice, BlockError, Disk, DiskIndex, Medium, SequenceNumber};
use afterimage_store::ImageStore;

use crate::clock::SystemClock;
use crate::events::{Events, Subscription};
use crate::home::no_disk;
use crate::home_lane::LaneHome;
use crate::mark;
use crate::passthrough::{PassThroughDisk, Shared};
use crate::redo::takeover::{bring_home, live_logs, refuse_read_only, settle, Trust};
use crate::{Contract, Event, GroupOptions, GroupStatus, HomeWriter, OpenError, Replayed};

pub(crate) struct DirectGroup {
    images: Vec<Arc<ImageStore>>,
    /// By image: what is synced when the whole group is.
    media: Vec<Arc<dyn Medium>>,
    disks: Vec<Arc<dyn Disk>>,
    shared: Arc<Shared>,
    events: Events,
    contract: Contract,
    replayed: Option<Replayed>,
}

impl DirectGroup {
    pub(crate) fn open(images: Vec<Arc<ImageStore>>, options: &GroupOptions) -> Result<Self, OpenError> {
        let replayed = bring_logs_home(&images, options.log_path.as_deref())?;
        mark::use_images(images.iter().map(Arc::as_ref), options.contract)?;
        let shared = Shared::new(options.contract == Contract::GuestCrash, Arc::new(SystemClock));
        let only_disk = images.len() == 1;
        let (mut media, mut disks) = (Vec::new(), Vec::new());
        for (index, image) in (0..).map(DiskIndex).zip(&images) {
            let mut medium = image.medium();
            let mut lower: Arc<dyn Disk> = Arc::clone(image) as Arc<dyn Disk>;
            if let Some(tap) = &options.tap {
                let failed = || OpenError::io("reading, for a recording,", image.path());
                if image.geometry().read_only {
                    lower = tap.only_read(index, lower).map_err(failed())?;
                } else {
                    medium = tap.home(index, medium).map_err(failed())?;
                    lower = tap.lower(index, lower).map_err(failed())?;
                }
            }
            media.push(medium);
            disks
                .push(Arc::new(PassThroughDisk::new(lower, Arc::clone(&shared), only_disk)) as Arc<dyn Disk>);
        }
        Ok(Self {
            images,
            media,
            disks,
            shared,
            events: Events::default(),
            contract: options.contract,
            replayed,
        })
    }

    pub(crate) fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.disks.clone()
    }

    pub(crate) fn home_writer(&self, disk: usize) -> Result<Arc<dyn HomeWriter>, BlockError> {
        let disk = self.disks.get(disk).ok_or_else(|| no_disk(disk))?;
        if disk.geometry().read_only {
            return Err(BlockError::ReadOnly);
        }
        Ok(Arc::new(LaneHome::new(disk.as_ref())?))
    }

    pub(crate) fn status(&self) -> GroupStatus {
        let acknowledged = SequenceNumber(self.shared.acknowledged.load(Ordering::SeqCst));
        let durable = SequenceNumber(self.shared.durable.load(Ordering::SeqCst));
        let age = self.shared.oldest_not_durable_age();
        GroupStatus {
            contract: self.contract,
            acknowledged,
            durable,
            home: durable,
            oldest_not_durable_age: age,
            oldest_not_durable_age_max: age.unwrap_or_default(),
            held_flushes: 0,
            log_deleted: None,
            throttled: 0,
            log_bytes: 0,
            log_max_bytes: 0,
            log_appended_bytes: 0,
            log_syncs: 0,
            home_written_bytes: 0,
            failure: self.images.iter().find_map(|image| image.health().failure()),
            paused: self.shared.paused(),
            replayed: self.replayed,
        }
    }

    pub(crate) fn flush(&self) -> Result<SequenceNumber, BlockError> {
        let covers = self.shared.acknowledged.load(Ordering::SeqCst);
        let all = self.images.iter().zip(&self.media);
        for (image, medium) in all.filter(|(image, _)| !image.geometry().read_only) {
            image.health().check()?;
            if let Err(e) = medium.sync() {
                let reason = format!("syncing {}: {e}{}", image.path().display(), advice(&e));
                image.health().fail(reason.as_str());
                self.events.publish(&Event::Failed { reason });
                return Err(BlockError::io(format!("syncing {}", image.path().display()), e));
            }
            image.health().check()?;
        }
        self.shared.synced_all(covers);
        self.events.publish(&Event::Durable { sequence: covers });
        Ok(SequenceNumber(covers))
    }

    pub(crate) fn wait_durable(&self, sequence: SequenceNumber) -> Result<bool, BlockError> {
        if self.shared.durable.load(Ordering::SeqCst) >= sequence.0 {
            return Ok(true);
        }
        Ok(self.flush()? >= sequence)
    }

    pub(crate) fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) -> Subscription {
        self.events.subscribe(wake)
    }

    pub(crate) fn pause(&self, deadline: Option<Instant>) -> Result<SequenceNumber, BlockError> {
        self.shared.set_paused(true);
        let paused = self.wait_quiet(deadline).and_then(|()| self.flush());
        match &paused {
            Ok(sequence) => self.events.publish(&Event::Paused { sequence: sequence.0 }),
            Err(_) => self.shared.set_paused(false),
        }
        paused
    }

    fn wait_quiet(&self, deadline: Option<Instant>) -> Result<(), BlockError> {
        while self.shared.signals.writes_in_flight() > 0 {
            if deadline.is_some_and(|d| Instant::now() >= d) {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(BlockError::io("waiting for writes in flight to complete before a pause", late));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    pub(crate) fn resume(&self) {
        self.shared.set_paused(false);
        self.events.publish(&Event::Resumed);
    }

    pub(crate) fn close(&self) -> Result<(), BlockError> {
        let sequence = self.flush()?;
        for image in self.images.iter().filter(|image| !image.geometry().read_only) {
            mark::remove(image).map_err(|e| {
                BlockError::io("ending the use of an image", std::io::Error::other(e.to_string()))
            })?;
            image.note_settled();
        }
        self.events.publish(&Event::Closed { sequence: sequence.0 });
        Ok(())
    }
}

/// A live log beside an image comes from another contract: what is in it goes home before anything is served. Then the
/// images are looked at past the cache.
fn bring_logs_home(
    images: &[Arc<ImageStore>],
    log_path: Option<&Path>,
) -> Result<Option<Replayed>, OpenError> {
    refuse_read_only(images)?;
    let writable: Vec<_> = images.iter().filter(|i| !i.geometry().read_only).map(Arc::clone).collect();
    let mut replayed = None;
    for log in live_logs(&writable, log_path)? {
        replayed = bring_home(&log, &writable, Trust::Nothing)?.or(replayed);
    }
    settle(&writable)?;
    Ok(replayed)
}
