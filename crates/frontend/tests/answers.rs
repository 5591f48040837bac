//! What a lane has answered is in the used ring before the lane is called again, for then it may take its time: by the window rule
//! a flush counts as acknowledged since the lane said so.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterimage_block::{Admitted, BlockError, Completion, Disk, Front, Geometry, Lane, Operation};
use afterimage_frontend::ServeOptions;
use daemon::serve;
use memory_disk::MemoryDisk;
use raw::*;

/// A disk whose lane answers a flush when it is reaped for the n-th time, and then stands still until it is let go.
struct StandingDisk {
    inner: MemoryDisk,
    reaps: u32,
    goes_on: Mutex<Option<Receiver<()>>>,
}

struct StandingLane {
    inner: Box<dyn Lane>,
    flush: Option<Admitted>,
    reaps_left: u32,
    goes_on: Option<Receiver<()>>,
    stands: bool,
}

impl Front for StandingDisk {
    fn lower(&self) -> &dyn Disk {
        &self.inner
    }

    fn open_front(&self, inner: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        let goes_on = self.goes_on.lock().unwrap().take();
        Ok(Box::new(StandingLane { inner, flush: None, reaps_left: self.reaps, goes_on, stands: false }))
    }
}

impl Lane for StandingLane {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.inner.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        match request.operation {
            Operation::Flush(_) => self.flush = Some(request),
            _ => self.inner.take(request),
        }
    }

    fn dispatch(&mut self) {
        self.inner.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if let Some(goes_on) = self.goes_on.take_if(|_| self.stands) {
            let _ = goes_on.recv_timeout(3 * PATIENCE);
        }
        self.reaps_left -= u32::from(self.flush.is_some());
        if self.reaps_left == 0 {
            self.flush.take().into_iter().for_each(|flush| self.inner.take(flush));
            (self.stands, self.reaps_left) = (true, 1);
        }
        self.inner.reap(completions);
    }

    fn in_flight(&self) -> usize {
        usize::from(self.flush.is_some()) + self.inner.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        match self.flush {
            Some(_) => Ok(()),
            None => self.inner.wait(also, timeout),
        }
    }
}

#[test]
fn an_answer_reaches_the_used_ring_before_the_lane_is_called_again() {
    // Reaped in a turn, after a wait, while the queue's thread spins.
    for spin_us in [0, 1000] {
        for reaps in 1..6 {
            let (let_go, goes_on) = channel();
            let inner = MemoryDisk::new(8 << 20, false);
            let disk = StandingDisk { inner, reaps, goes_on: Mutex::new(Some(goes_on)) };
            let served = serve(Arc::new(disk), ServeOptions { spin_us, ..ServeOptions::default() });
            let mut guest = RawGuest::start(&served.socket);
            let (header, status) = (guest.header(0, T_FLUSH, 0), guest.status(0));
            guest.set_desc(0, header);
            guest.set_desc(1, status);
            guest.offer(0);
            guest.ring_kick();
            let answer = guest.next_used(PATIENCE);
            drop(let_go);
            assert_eq!(answer, Some((0, 1)), "answered by reap {reaps}, spinning for {spin_us} µs");
            assert_eq!(guest.status_value(0), 0);
        }
    }
}
