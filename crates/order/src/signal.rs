//! Waking lanes that hold requests back, and counting the writes they have in flight.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use afterimage_block::Bell;
use parking_lot::Mutex;

/// One lane's bell. The lane sets `parked`, looks at the condition again, and only then sleeps on the descriptor;
/// the other side changes the condition and then looks at `parked`. So no wake-up is lost.
#[derive(Debug)]
pub(crate) struct LaneSignal {
    bell: Bell,
    pub(crate) parked: AtomicBool,
    /// Writes handed to the layer below and not completed.
    pub(crate) writes_in_flight: AtomicUsize,
}

impl LaneSignal {
    fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, parked: AtomicBool::new(false), writes_in_flight: AtomicUsize::new(0) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn drain(&self) {
        self.bell.drain();
    }
}

/// All lanes of a group.
#[derive(Debug, Default)]
pub(crate) struct Signals(Mutex<Vec<Weak<LaneSignal>>>);

impl Signals {
    pub(crate) fn register(&self) -> io::Result<Arc<LaneSignal>> {
        let signal = Arc::new(LaneSignal::new()?);
        let mut lanes = self.0.lock();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&signal));
        Ok(signal)
    }

    /// Wakes every lane that holds something back.
    pub(crate) fn wake_parked(&self) {
        for lane in self.0.lock().iter().filter_map(Weak::upgrade) {
            if lane.parked.load(Ordering::SeqCst) {
                lane.bell.ring();
            }
        }
    }

    /// Writes that the layers below have not answered yet.
    pub(crate) fn writes_in_flight(&self) -> usize {
        let lanes = self.0.lock();
        lanes.iter().filter_map(Weak::upgrade).map(|lane| lane.writes_in_flight.load(Ordering::SeqCst)).sum()
    }
}
