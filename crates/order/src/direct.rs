//! The backend of `power` and `guest-crash`: several pass-through disks that pause, sync and end together.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{advice, BlockError, Disk, DiskIndex, Medium, SequenceNumber};
use afterimage_store::{mark_used, remove_mark, Image};

use crate::backend::{too_late, Backend, Opened};
use crate::changes::Changes;
use crate::home::no_disk;
use crate::home_lane::LaneHome;
use crate::passthrough::{Failure, PassThroughDisk, Shared};
use crate::redo::takeover::{bring_home, live_logs, refuse_read_only, settle, Trust};
use crate::{Contract, GroupOptions, GroupStatus, HomeWriter, OpenError, Replayed};

struct DirectBackend {
    images: Vec<Arc<dyn Image>>,
    /// By image: what is synced when the whole group is, and what becomes known of it.
    media: Vec<(Arc<dyn Medium>, Failure)>,
    disks: Vec<Arc<dyn Disk>>,
    /// By disk.
    changes: Vec<Arc<Changes>>,
    shared: Arc<Shared>,
}

pub(crate) fn open(images: Vec<Arc<dyn Image>>, options: &GroupOptions) -> Result<Opened, OpenError> {
    let replayed = bring_logs_home(&images, options.log_path.as_deref())?;
    mark_used(images.iter().map(Arc::as_ref), options.contract.code())?;
    let shared = Shared::new(options.contract == Contract::GuestCrash, options.host.clock());
    let only_disk = images.len() == 1;
    let changes: Vec<Arc<Changes>> = images.iter().map(|_| Arc::default()).collect();
    let (mut media, mut disks) = (Vec::new(), Vec::new());
    for (index, image) in (0..).map(DiskIndex).zip(&images) {
        let changes = Arc::clone(&changes[usize::from(index.0)]);
        let mut medium = image.medium();
        let mut lower: Arc<dyn Disk> = Arc::clone(image).as_disk();
        if let Some(tap) = &options.tap {
            let failed = || OpenError::io("reading, for a recording,", image.path());
            if image.geometry().read_only {
                lower = tap.only_read(index, lower).map_err(failed())?;
            } else {
                medium = tap.home(index, medium).map_err(failed())?;
                lower = tap.lower(index, lower).map_err(failed())?;
            }
        }
        let failure = Failure::new(image.health(), &shared.board);
        media.push((medium, failure.clone()));
        let disk = PassThroughDisk::new(lower, Arc::clone(&shared), failure, only_disk, changes);
        disks.push(Arc::new(disk) as Arc<dyn Disk>);
    }
    let board = Arc::clone(&shared.board);
    Ok(Opened { backend: Box::new(DirectBackend { images, media, disks, changes, shared }), board, replayed })
}

impl Backend for DirectBackend {
    fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.disks.clone()
    }

    fn home_writer(&self, disk: DiskIndex) -> Result<Arc<dyn HomeWriter>, BlockError> {
        let disk = self.disks.get(usize::from(disk.0)).ok_or_else(|| no_disk(disk))?;
        if disk.geometry().read_only {
            return Err(BlockError::ReadOnly);
        }
        Ok(Arc::new(LaneHome::new(disk.as_ref())?))
    }

    fn sync(&self, until: Option<Duration>) -> Result<SequenceNumber, BlockError> {
        if self.shared.board.gate.is_paused() {
            self.wait_quiet(until)?;
        }
        let covers = self.shared.begin_sync();
        let all = self.images.iter().zip(&self.media);
        let writable = all.filter(|(image, _)| !image.geometry().read_only);
        // Each, also where another one fails: it keeps what it can.
        let synced: Vec<_> = writable
            .map(|(image, (medium, failure))| sync_one(image, medium).inspect_err(|_| failure.tell()))
            .collect();
        synced.into_iter().collect::<Result<(), _>>()?;
        self.shared.synced_all(covers);
        self.shared.board.tell_durable(covers.acknowledged);
        Ok(covers.acknowledged)
    }

    fn pass(&self, until: Option<Duration>) -> Result<SequenceNumber, BlockError> {
        if self.shared.board.gate.is_paused() {
            self.wait_quiet(until)?;
        }
        self.images.iter().try_for_each(|image| image.health().check())?;
        Ok(self.shared.board.sequence.acknowledged.get())
    }

    fn changes(&self, disk: usize) -> Option<&Changes> {
        self.changes.get(disk).map(Arc::as_ref)
    }

    fn syncs_by_itself(&self) -> bool {
        false
    }

    fn release(&self, _parts: u64) -> Result<bool, BlockError> {
        Ok(false)
    }

    fn stop(&self) {}

    fn end(&self) -> Result<(), BlockError> {
        for image in self.images.iter().filter(|image| !image.geometry().read_only) {
            remove_mark(image.as_ref()).map_err(|e| {
                BlockError::io("ending the use of an image", std::io::Error::other(e.to_string()))
            })?;
        }
        Ok(())
    }

    fn describe(&self, status: &mut GroupStatus) {
        (status.oldest_not_durable_age, status.oldest_not_durable_age_max) = self.shared.ages();
        // Or what failed the group as a whole.
        let image = self.images.iter().find_map(|image| image.health().failure());
        status.failure = image.or_else(|| status.failure.take());
    }
}

fn sync_one(image: &Arc<dyn Image>, medium: &Arc<dyn Medium>) -> Result<(), BlockError> {
    image.health().check()?;
    if let Err(e) = medium.sync() {
        image.health().fail(format!("syncing {}: {e}{}", image.path().display(), advice(&e)));
        return Err(BlockError::io(format!("syncing {}", image.path().display()), e));
    }
    image.health().check()
}

impl DirectBackend {
    /// Waits for the writes that had passed the gate before it was closed: below a lane they are nobody else's.
    fn wait_quiet(&self, until: Option<Duration>) -> Result<(), BlockError> {
        while self.shared.board.signals.writes_in_flight() > 0 {
            if until.is_some_and(|until| until <= self.shared.board.now()) {
                return Err(too_late("waiting for writes in flight to complete before a pause"));
            }
            if !self.shared.board.pass() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }
}

/// A live log beside an image comes from another contract: what is in it goes home before anything is served. Then it is made sure of
/// that what the images show is durable.
fn bring_logs_home(
    images: &[Arc<dyn Image>],
    log_path: Option<&Path>,
) -> Result<Option<Replayed>, OpenError> {
    refuse_read_only(images)?;
    let writable: Vec<_> = images.iter().filter(|i| !i.geometry().read_only).map(Arc::clone).collect();
    let mut replayed = None;
    for log in live_logs(&writable, log_path)? {
        replayed = bring_home(&log, &writable, Trust::default())?.or(replayed);
    }
    settle(&writable)?;
    Ok(replayed)
}
