//! What all daemons of a host share: one device, and the page cache in front of it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use afterimage_lab::device::{Model, ModelName, Place, Work};
use parking_lot::Mutex;

use crate::calendar::Ns;
use crate::host_fs::HostFs;
use crate::page_cache::{DirtyLimits, PageCache};

/// What all daemons share: the device, and the host's page cache in front of it.
#[derive(Debug)]
pub struct Storage {
    model: Model,
    cache: PageCache,
    /// What daemons have asked of their files.
    asked: Work,
    /// Daemons are ready before time begins.
    runs: bool,
    /// The device answers nothing between these times, but later.
    stalls: Option<(Duration, Duration)>,
}

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
pub enum Io {
    /// Reads so many bytes from there.
    Read(u64, u64),
    /// Writes so many bytes there.
    Write(u64, u64),
    /// Syncs.
    Sync,
}

impl Storage {
    /// A device at rest, which takes no time yet.
    pub fn new(model: ModelName, limits: DirtyLimits, host: HostFs) -> Arc<Mutex<Self>> {
        let model = Model::new(model, Duration::ZERO);
        Arc::new(Mutex::new(Self {
            model,
            cache: PageCache::new(limits, host),
            asked: Work::default(),
            runs: false,
            stalls: None,
        }))
    }

    /// Time begins.
    pub fn start(&mut self) {
        self.runs = true;
    }

    /// The power failed: what was cached is gone, and the device is at rest.
    pub fn restart(&mut self, model: ModelName, limits: DirtyLimits, host: HostFs, now: Ns) {
        let now = Duration::from_nanos(now);
        (self.model, self.cache) = (Model::new(model, now), PageCache::new(limits, host));
        self.cache.begin(now);
    }

    /// The device answers nothing for a while.
    pub fn stall(&mut self, from: Ns, until: Ns) {
        self.stalls = Some((Duration::from_nanos(from), Duration::from_nanos(until)));
    }

    /// When something that is begun now is done.
    pub fn serve(&mut self, now: Duration, file: &File, io: Io) -> Duration {
        if !self.runs {
            return now;
        }
        match io {
            Io::Read(_, bytes) => {
                self.asked.reads += 1;
                self.asked.read_bytes += bytes;
            }
            Io::Write(_, bytes) => {
                self.asked.writes += 1;
                self.asked.write_bytes += bytes;
            }
            Io::Sync => self.asked.flushes += 1,
        }
        let now = self
            .stalls
            .filter(|(from, until)| (*from..*until).contains(&now))
            .map_or(now, |(_, until)| until);
        let (model, cache, id) = (&mut self.model, &mut self.cache, file.id);
        match (io, file.direct) {
            (Io::Read(offset, bytes), true) => model.read(now, Place::of(id, offset), bytes),
            (Io::Write(offset, bytes), true) => cache.write_direct(model, now, id, offset, bytes),
            (Io::Read(offset, bytes), false) => cache.read(model, now, id, offset, bytes),
            (Io::Write(offset, bytes), false) => cache.write(model, now, id, offset, bytes),
            (Io::Sync, _) => cache.sync(model, now, id),
        }
    }

    /// What daemons have asked of their files, and what of it has reached the device so far.
    pub fn work(&self) -> (Work, Work) {
        (self.asked, self.model.work())
    }

    /// All that is cached goes to the device, and is forgotten; when that is done.
    pub fn settle(&mut self, now: Ns) -> Ns {
        ns(self.cache.settle(&mut self.model, Duration::from_nanos(now)))
    }

    /// A range of a file has blocks on the host's file system from the beginning.
    pub fn lay_out(&mut self, file: u64, range: Range<u64>) {
        self.cache.lay_out(file, range);
    }

    /// When the host's flusher looks next.
    pub fn next(&self) -> Option<Ns> {
        self.cache.next_look().map(ns)
    }

    /// The flusher looks.
    pub fn turn(&mut self, now: Ns) {
        self.cache.look(&mut self.model, Duration::from_nanos(now));
    }
}

/// One file of the host's.
#[derive(Clone, Debug)]
pub struct File {
    /// Which, on the device.
    pub id: u64,
    /// Opened with O_DIRECT.
    pub direct: bool,
    /// Each write of a guest's is synced before it is answered.
    pub write_through: bool,
}

impl File {
    /// One that nothing special is done with.
    pub fn buffered(id: u64) -> Self {
        Self { id, direct: false, write_through: false }
    }
}

/// A time of a model's.
pub fn ns(at: Duration) -> Ns {
    at.as_nanos() as Ns
}
