//! What FUSE, the clock and the control socket share: the core, the model, and the cut that comes by itself.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::client::Cut;
use super::clock::Clock;
use super::core::Core;
use crate::device::{Model, ModelName, Place};

/// The model, asked in real time.
pub(super) struct Timed {
    model: Model,
    origin: Instant,
}

impl Timed {
    /// A device at rest.
    pub fn new(name: ModelName) -> Timed {
        Timed { model: Model::new(name, Duration::ZERO), origin: Instant::now() }
    }

    /// When a read that arrives now is done.
    pub fn read(&mut self, place: Place, bytes: u64) -> Instant {
        self.origin + self.model.read(self.origin.elapsed(), place, bytes)
    }

    /// When a write that arrives now is in the device's cache.
    pub fn write(&mut self, place: Place, bytes: u64) -> Instant {
        self.origin + self.model.write(self.origin.elapsed(), place, bytes)
    }

    /// When a flush that arrives now is done.
    pub fn flush(&mut self) -> Instant {
        self.flush_at(Instant::now())
    }

    /// The same, of one that arrives at that time.
    pub fn flush_at(&mut self, at: Instant) -> Instant {
        self.origin + self.model.flush(at.saturating_duration_since(self.origin))
    }
}

/// Everything behind the mount.
pub(super) struct Inside {
    pub core: Core,
    pub model: Timed,
    /// The seed of the next cut that comes by itself, and its odds of torn sectors.
    pub next_seed: u64,
    pub torn_per_mille: u64,
    pub kept_per_mille: Option<u64>,
    /// Counts armings, so that a cut at a time knows whether it is still wanted.
    pub arming: u64,
    pub last_cut: Option<Cut>,
}

/// The part that FUSE, the clock and the control socket share.
pub(super) struct Shared {
    inside: Mutex<Inside>,
    clock: Clock,
}

impl Inside {
    /// The power goes now.
    pub fn cut(&mut self, seed: u64, kept_per_mille: Option<u64>, torn_per_mille: u64) -> io::Result<()> {
        let report = self.core.cut(seed, kept_per_mille, torn_per_mille)?;
        self.last_cut = Some(Cut { at_ns: crate::channel::monotonic_ns(), seed, report });
        Ok(())
    }

    /// The cut that was armed, if its time has come with this operation.
    pub fn cut_if(&mut self, due: bool) -> io::Result<()> {
        if due {
            self.cut(self.next_seed, self.kept_per_mille, self.torn_per_mille)?;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
}

impl Shared {
    pub fn new(inside: Inside) -> io::Result<Arc<Shared>> {
        Ok(Arc::new(Shared { inside: Mutex::new(inside), clock: Clock::start()? }))
    }

    pub fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock()
    }

    /// Runs `finish` at `due`; with an error if the power went meanwhile.
    pub fn at(
        self: &Arc<Self>,
        due: Instant,
        epoch: u64,
        finish: impl FnOnce(io::Result<&mut Inside>) + Send + 'static,
    ) {
        let shared = Arc::clone(self);
        self.clock.at(due, move || {
            let mut inside = shared.lock();
            if inside.core.epoch() == epoch {
                finish(Ok(&mut inside));
            } else {
                drop(inside);
                finish(Err(io::Error::from_raw_os_error(libc::EIO)));
            }
        });
    }
}
