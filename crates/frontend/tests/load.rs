//! What a guest has in flight is bounded whatever it is made of: a queue that has enough leaves the rest in the ring, sleeps,
//! and goes on when something is answered.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Admitted, BlockError, Completion, Disk, Front, Geometry, Lane};
use afterimage_frontend::ServeOptions;
use daemon::serve;
use memory_disk::MemoryDisk;
use raw::*;

/// A disk that answers nothing until it is told.
struct Gate {
    inner: MemoryDisk,
    held: Arc<AtomicUsize>,
    opened: Arc<rustix::fd::OwnedFd>,
}

struct GateLane {
    inner: Box<dyn Lane>,
    requests: Vec<Admitted>,
    held: Arc<AtomicUsize>,
    opened: Arc<rustix::fd::OwnedFd>,
}

impl Front for Gate {
    fn lower(&self) -> &dyn Disk {
        &self.inner
    }

    fn open_front(&self, inner: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        let (held, opened) = (Arc::clone(&self.held), Arc::clone(&self.opened));
        Ok(Box::new(GateLane { inner, requests: Vec::new(), held, opened }))
    }
}

impl GateLane {
    fn is_open(&self) -> bool {
        let mut polled = [rustix::event::PollFd::new(&*self.opened, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1))
    }
}

impl Lane for GateLane {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.inner.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.requests.push(request);
        self.held.fetch_max(self.requests.len(), Ordering::SeqCst);
    }

    fn dispatch(&mut self) {
        self.inner.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if self.is_open() {
            self.requests.drain(..).for_each(|request| self.inner.take(request));
        }
        self.inner.reap(completions);
    }

    fn in_flight(&self) -> usize {
        self.requests.len() + self.inner.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        let mut fds = also.to_vec();
        let opened = Arc::clone(&self.opened);
        if !self.requests.is_empty() {
            fds.push(opened.as_fd());
        }
        self.inner.wait(&fds, timeout)
    }
}

#[test]
fn ranges_in_flight_are_bounded_and_all_are_served() {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let opened = Arc::new(rustix::event::eventfd(0, flags).unwrap());
    let held = Arc::new(AtomicUsize::new(0));
    let disk =
        Gate { inner: MemoryDisk::new(8 << 20, false), held: Arc::clone(&held), opened: Arc::clone(&opened) };
    let served = serve(Arc::new(disk), ServeOptions::default());
    let mut guest = RawGuest::connect(&served.socket);
    guest.queue_size = 512;
    guest.polls = true;
    guest.negotiate(!0);
    guest.set_up_queue();
    // 511 discards of 32 ranges each, with one table of three descriptors each, one answer for all.
    let ranges: Vec<u8> = (0..32).flat_map(|i| range(i * 8, 1, 0)).collect();
    guest.write(DATA, &ranges);
    let header = guest.header(0, T_DISCARD, 0);
    let status = guest.status(0);
    let table = [header, desc(gpa(DATA), 512, F_NEXT, 2), status];
    guest.write(TABLES, &table.iter().flat_map(|d| encode(*d)).collect::<Vec<_>>());
    for head in 0..511 {
        guest.set_desc(head, desc(gpa(TABLES), 48, F_INDIRECT, 0));
        guest.offer(head);
        // Kicks that find a full queue are no reason to wake up.
        guest.ring_kick();
    }
    let mut seen = 0;
    while held.load(Ordering::SeqCst) > seen || seen == 0 {
        seen = held.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(seen > 1024 && seen < 8192, "{seen} of {} ranges at once", 511 * 32);
    rustix::io::write(&*opened, &1u64.to_ne_bytes()).unwrap();
    let mut answered: Vec<u32> = (0..511).map(|_| guest.next_used(PATIENCE).expect("an answer").0).collect();
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(0..511));
    assert_eq!(guest.status_value(0), 0);
}
