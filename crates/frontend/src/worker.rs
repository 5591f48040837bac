//! The thread that owns one virtqueue's lane. It lives as long as the server, so that nothing has to be created
//! once the process is sandboxed; a queue is handed to it to run and comes back when it is stopped.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use afterimage_block::{wait_readable, Bell, BlockError, Disk};
use tracing::{error, warn};

use crate::queue::{Ended, Queue, Run};
use crate::{FrontendError, FrontendStats};

/// How long a queue may take to stop before those are told who may hold its requests back.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// What queue threads tell the session thread.
#[derive(Debug)]
pub(crate) struct Alarms {
    pub wake: Bell,
    memory_gone: AtomicBool,
    /// One bit per queue that broke.
    broken: AtomicU64,
    /// Of which of them the guest was told.
    told: AtomicU64,
}

impl Alarms {
    pub fn new() -> std::io::Result<Self> {
        let (memory_gone, broken, told) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { wake: Bell::new()?, memory_gone, broken, told })
    }

    pub fn raise(&self, queue: u16, ended: &Ended) {
        match ended {
            Ended::Stopped => return,
            Ended::MemoryGone => self.memory_gone.store(true, Ordering::Release),
            Ended::Broken(_) => {
                self.broken.fetch_or(1 << (queue % 64), Ordering::AcqRel);
            }
        }
        self.wake.ring();
    }

    pub fn memory_gone(&self) -> bool {
        self.memory_gone.load(Ordering::Acquire)
    }

    pub fn any_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) != 0
    }

    /// Whether the guest is to be told that a queue broke: once of each, until it resets the device.
    pub fn is_to_be_told(&self) -> bool {
        let broken = self.broken.load(Ordering::Acquire);
        broken & !self.told.swap(broken, Ordering::AcqRel) != 0
    }

    /// Forgets all alarms, when a connection ends or the device is reset.
    pub fn reset(&self) {
        self.memory_gone.store(false, Ordering::Release);
        self.broken.store(0, Ordering::Release);
        self.told.store(0, Ordering::Release);
        self.wake.drain();
    }
}

struct Shared {
    stopping: AtomicBool,
    wake: Bell,
}

/// A queue thread as the session thread sees it.
pub(crate) struct Worker {
    index: u16,
    shared: Arc<Shared>,
    runs: Option<Sender<Run>>,
    stopped: Receiver<(u16, Ended)>,
    running: bool,
    /// See [`ServeOptions`](crate::ServeOptions).
    hurry: Option<Arc<Bell>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread; returns when its lane is open.
    pub fn start(
        name: &str,
        index: u16,
        disk: Arc<dyn Disk>,
        stats: Arc<FrontendStats>,
        alarms: Arc<Alarms>,
        hurry: Option<Arc<Bell>>,
    ) -> Result<Self, FrontendError> {
        let wake = Bell::new().map_err(|e| FrontendError::io("cannot create an eventfd", e))?;
        let shared = Arc::new(Shared { stopping: AtomicBool::new(false), wake });
        let (runs, run_queue) = channel();
        let (stop_sender, stopped) = channel();
        let (opened_sender, opened) = channel();
        let in_thread = Arc::clone(&shared);
        let label = format!("{name} queue {index}");
        let thread = std::thread::Builder::new()
            .name(format!("{name}/q{index}"))
            .spawn(move || {
                let context = Context { label, index, disk, stats, alarms, shared: in_thread };
                context.run(&opened_sender, &run_queue, &stop_sender);
            })
            .map_err(|e| FrontendError::io("cannot start a queue's thread", e))?;
        let (runs, thread) = (Some(runs), Some(thread));
        let worker = Self { index, shared, runs, stopped, running: false, hurry, thread };
        match opened.recv() {
            Ok(Ok(())) => Ok(worker),
            Ok(Err(source)) => Err(FrontendError::Lane { queue: index, source }),
            Err(_) => Err(FrontendError::io(
                "cannot start a queue's thread",
                std::io::Error::other("the disk panicked while it opened a lane"),
            )),
        }
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Hands a queue to the thread; `false` where it has ended because the disk did not open again.
    #[must_use]
    pub fn run(&mut self, run: Run) -> bool {
        assert!(!self.running, "queue {} runs already", self.index);
        self.shared.stopping.store(false, Ordering::Release);
        self.shared.wake.drain();
        if let Some(runs) = &self.runs {
            self.running = runs.send(run).is_ok();
        }
        self.running
    }

    /// Stops the queue and waits until nothing of it is in flight. Returns the next available index.
    pub fn stop(&mut self) -> Option<(u16, Ended)> {
        if !std::mem::take(&mut self.running) {
            return None;
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake.ring();
        loop {
            match self.stopped.recv_timeout(STOP_PATIENCE) {
                Ok(stopped) => return Some(stopped),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => self.hurry.iter().for_each(|hurry| hurry.ring()),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        self.runs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Context {
    label: String,
    index: u16,
    disk: Arc<dyn Disk>,
    stats: Arc<FrontendStats>,
    alarms: Arc<Alarms>,
    shared: Arc<Shared>,
}

impl Context {
    fn run(
        self,
        opened: &Sender<Result<(), BlockError>>,
        runs: &Receiver<Run>,
        stopped: &Sender<(u16, Ended)>,
    ) {
        let mut lane = match self.disk.open_lane() {
            Ok(lane) => lane,
            Err(error) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let _ = opened.send(Ok(()));
        let Some(stats) = self.stats.queue(self.index) else { return };
        while let Ok(run) = runs.recv() {
            // Kept across a panic: requests in flight may still point into it.
            let memory = Arc::clone(&run.memory);
            let lines = Arc::clone(&run.lines);
            let mut next_avail = run.ring.next_avail();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let mut queue = Queue::new(run, &mut *lane, stats);
                let ended = queue.serve(&self.shared.stopping, &self.shared.wake);
                next_avail = queue.next_avail();
                ended
            }));
            let ended = outcome.unwrap_or_else(|_| {
                error!("{}: internal error, the queue stops", self.label);
                Ended::Broken("internal error".into())
            });
            if let Ended::Broken(reason) = &ended {
                if lines.may() {
                    warn!("{}: stopped until the guest resets it: {reason}", self.label);
                }
            }
            if lane.in_flight() > 0 {
                // Only after a failure of the lane itself: dropping it waits until it lets go of the buffers.
                drop(lane);
                lane = match self.disk.open_lane() {
                    Ok(lane) => lane,
                    Err(error) => {
                        error!("{}: cannot open the disk again: {error}", self.label);
                        let _ = stopped.send((next_avail, ended));
                        return;
                    }
                };
            }
            drop(memory);
            self.alarms.raise(self.index, &ended);
            while !self.shared.stopping.load(Ordering::Acquire) {
                let _ = wait_readable(&[self.shared.wake.fd()], None);
            }
            if stopped.send((next_avail, ended)).is_err() {
                return;
            }
        }
    }
}
