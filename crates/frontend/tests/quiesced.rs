//! The disk learns when no queue runs any more: once for all queues, never with a request in flight, also when the peer
//! just vanishes.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterimage_block::{Admitted, BlockError, Completion, Disk, Geometry, Health, Lane, Quiesced};
use afterimage_frontend::ServeOptions;
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;

/// How many turns a request stays in flight.
const TURNS: u32 = 4;

/// A disk whose requests take several turns of their lane, and which tells what it was told: why, and how many requests
/// were in flight.
struct TellingDisk {
    inner: MemoryDisk,
    in_flight: Arc<AtomicUsize>,
    told: Mutex<Sender<(Quiesced, usize)>>,
}

impl Disk for TellingDisk {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn serial(&self) -> &str {
        self.inner.serial()
    }

    fn health(&self) -> &Health {
        self.inner.health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let in_flight = Arc::clone(&self.in_flight);
        Ok(Box::new(SlowLane { inner: self.inner.open_lane()?, held: Vec::new(), turns: 0, in_flight }))
    }

    fn quiesced(&self, why: Quiesced) {
        let _ = self.told.lock().unwrap().send((why, self.in_flight.load(Ordering::SeqCst)));
    }
}

struct SlowLane {
    inner: Box<dyn Lane>,
    held: Vec<Admitted>,
    turns: u32,
    in_flight: Arc<AtomicUsize>,
}

impl Lane for SlowLane {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.inner.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.held.push(request);
    }

    fn dispatch(&mut self) {
        self.inner.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.turns += 1;
        if self.turns % TURNS == 0 {
            self.held.drain(..).for_each(|request| self.inner.take(request));
        }
        let before = completions.len();
        self.inner.reap(completions);
        self.in_flight.fetch_sub(completions.len() - before, Ordering::SeqCst);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        if self.held.is_empty() {
            self.inner.wait(also, timeout)
        } else {
            Ok(())
        }
    }
}

fn served(queues: u16) -> (Served, Receiver<(Quiesced, usize)>) {
    let (told, hears) = channel();
    let inner = MemoryDisk::new(8 << 20, false);
    let disk = TellingDisk { inner, in_flight: Arc::default(), told: Mutex::new(told) };
    (serve(Arc::new(disk), ServeOptions { queues, ..ServeOptions::default() }), hears)
}

/// What the disk has been told and nobody has asked for yet. What a message to the session causes is there when the
/// session has answered a later one.
fn news(guest: &mut RawGuest, hears: &Receiver<(Quiesced, usize)>) -> Vec<(Quiesced, usize)> {
    guest.ask_u64(GET_STATUS);
    hears.try_iter().collect()
}

const STOPPED: [(Quiesced, usize); 1] = [(Quiesced::Stopped, 0)];

/// A second queue, with nothing in it.
fn set_up_second_queue(guest: &RawGuest) -> OwnedFd {
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let (d, u, a) = RawGuest::ring_offsets();
    let mut addresses = guest.ring_address(d + 0x1000, u + 0x1000, a + 0x1000);
    addresses[0] = 1;
    guest.send(SET_VRING_NUM, &words([1, u32::from(QUEUE_SIZE)]), &[]);
    guest.send(SET_VRING_BASE, &words([1, 0]), &[]);
    guest.send(SET_VRING_ADDR, &addresses, &[]);
    guest.send(SET_VRING_KICK, &1u64.to_ne_bytes(), &[kick.as_raw_fd()]);
    guest.send(SET_VRING_ENABLE, &words([1, 1]), &[]);
    kick
}

fn stop(guest: &mut RawGuest, queue: u32) {
    guest.send(GET_VRING_BASE, &words([queue, 0]), &[]);
    guest.receive();
}

#[test]
fn a_stop_is_told_when_the_last_queue_stops() {
    let (served, hears) = served(2);
    let mut guest = RawGuest::start(&served.socket);
    let _kick = set_up_second_queue(&guest);
    guest.check_io(0, 1);
    assert_eq!(news(&mut guest, &hears), []);
    stop(&mut guest, 1);
    assert_eq!(news(&mut guest, &hears), [], "queue 0 runs");
    guest.begin_writes();
    stop(&mut guest, 0);
    assert_eq!(news(&mut guest, &hears), STOPPED);
    stop(&mut guest, 0);
    stop(&mut guest, 1);
    assert_eq!(news(&mut guest, &hears), [], "told already");
}

#[test]
fn every_way_to_stop_is_told_once() {
    type Way = (&'static str, fn(&mut RawGuest));
    let ways: [Way; 4] = [
        ("GET_VRING_BASE", |g| stop(g, 0)),
        ("disabled", |g| g.send(SET_VRING_ENABLE, &words([0, 0]), &[])),
        ("status 0", |g| g.send(SET_STATUS, &0u64.to_ne_bytes(), &[])),
        ("RESET_DEVICE", |g| g.send(RESET_DEVICE, &[], &[])),
    ];
    let (served, hears) = served(1);
    for (name, way) in ways {
        for with_requests in [false, true] {
            let mut guest = RawGuest::start(&served.socket);
            guest.check_io(0, 1);
            if with_requests {
                guest.begin_writes();
            }
            way(&mut guest);
            assert_eq!(news(&mut guest, &hears), STOPPED, "{name}");
            way(&mut guest);
            assert_eq!(news(&mut guest, &hears), [], "{name}, again");
            // The end of the connection is told on top.
            drop(guest);
            assert_eq!(hears.recv_timeout(PATIENCE), Ok((Quiesced::Disconnected, 0)), "{name}");
        }
    }
}

#[test]
fn what_starts_again_at_once_is_no_stop() {
    let (served, hears) = served(1);
    let mut guest = RawGuest::start(&served.socket);
    for round in 0..3 {
        guest.begin_writes();
        guest.send_memory_table();
        guest.send(SET_FEATURES, &guest.features.to_ne_bytes(), &[]);
        guest.send(SET_VRING_KICK, &0u64.to_ne_bytes(), &[guest.kick.as_raw_fd()]);
        (0..5).for_each(|_| assert!(guest.next_used(PATIENCE).is_some()));
        assert_eq!(news(&mut guest, &hears), [], "round {round}");
    }
    // Stopped, started, stopped: each stop counts.
    for _ in 0..2 {
        let base = guest.stop_queue();
        assert_eq!(news(&mut guest, &hears), STOPPED);
        guest.set_up_queue_at(base);
        guest.check_io(0, 1);
    }
}

#[test]
fn a_vanished_peer_is_told_with_nothing_in_flight() {
    let (served, hears) = served(2);
    for round in 0..20 {
        let mut guest = RawGuest::start(&served.socket);
        let _kick = set_up_second_queue(&guest);
        guest.check_io(0, 1);
        guest.begin_writes();
        if round % 2 == 0 {
            guest.send(0, &[], &[]);
        }
        drop(guest);
        assert_eq!(hears.recv_timeout(PATIENCE), Ok((Quiesced::Disconnected, 0)), "round {round}");
    }
    // Our own stop is no sign of a guest's death.
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 1);
    served.server.stop();
    drop(served);
    assert_eq!(
        hears.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected),
        "and nothing was told before"
    );
}
