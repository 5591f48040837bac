//! After a daemon's death the queues of a disk start one by one. What was in flight on any of them comes before what any takes
//! anew.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_frontend::ServeOptions;
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;
use rustix::event::{eventfd, EventfdFlags};

const SECTOR: u64 = 8;
/// Where the second queue's rings are, in the guest's memory.
const AVAILABLE: u64 = 0x4800;
const USED: u64 = 0x6800;
/// What each queue writes to the same place.
const OLD: u8 = 1;
const NEW: u8 = 2;
/// Long enough for a queue that waits for nobody.
const MEANWHILE: Duration = Duration::from_millis(100);

/// A guest whose second queue had a write in flight when an earlier daemon died; its first one has one in the ring, to the
/// same place, that no daemon has seen. Nothing has been started.
struct Guest {
    raw: RawGuest,
    served: Served,
    second_kick: OwnedFd,
}

impl Guest {
    fn new() -> Self {
        let options = ServeOptions { queues: 2, queue_size_max: QUEUE_SIZE, ..ServeOptions::default() };
        let served = serve(Arc::new(MemoryDisk::new(1 << 20, false)), options);
        let mut raw = RawGuest::connect(&served.socket);
        raw.negotiate(!0);
        for (slot, content) in [(0, NEW), (1, OLD)] {
            let (n, first) = (u64::from(slot), 3 * slot);
            raw.write(DATA + 512 * n, &[content; 512]);
            let header = raw.header(n, T_OUT, SECTOR);
            raw.set_desc(first, Desc { next: first + 1, ..header });
            raw.set_desc(first + 1, desc(gpa(DATA + 512 * n), 512, F_NEXT, first + 2));
            let status = raw.status(n);
            raw.set_desc(first + 2, status);
        }
        raw.offer(0);
        raw.write(AVAILABLE + 2, &[1, 0, 3, 0]);
        let (region, fd) = in_flight_on_the_second(&mut raw);
        raw.send(SET_INFLIGHT_FD, &region, &[fd.as_raw_fd()]);
        let second_kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self { raw, served, second_kick }
    }

    fn start_first(&mut self) {
        self.raw.set_up_queue_at(0);
        self.raw.ring_kick();
    }

    fn start_second(&self) {
        let raw = &self.raw;
        raw.send(SET_VRING_NUM, &words([1, u32::from(QUEUE_SIZE)]), &[]);
        raw.send(SET_VRING_BASE, &words([1, 0]), &[]);
        let (descriptors, _, _) = RawGuest::ring_offsets();
        let mut address = raw.ring_address(descriptors, USED, AVAILABLE);
        address[..4].copy_from_slice(&1u32.to_ne_bytes());
        raw.send(SET_VRING_ADDR, &address, &[]);
        raw.send(SET_VRING_KICK, &1u64.to_ne_bytes(), &[self.second_kick.as_raw_fd()]);
        raw.send(SET_VRING_ENABLE, &words([1, 1]), &[]);
    }

    /// What is there when the first queue's write is answered.
    fn content(&mut self) -> u8 {
        assert_eq!(self.raw.next_used(PATIENCE), Some((0, 1)));
        self.content_again()
    }

    fn content_again(&mut self) -> u8 {
        assert_eq!(self.raw.request(T_IN, SECTOR, 512), (513, 0));
        self.raw.read(DATA, 1)[0]
    }
}

/// A region as the first daemon left it.
fn in_flight_on_the_second(raw: &mut RawGuest) -> (Vec<u8>, OwnedFd) {
    let wanted = [[0; 16].as_slice(), &2u16.to_ne_bytes(), &QUEUE_SIZE.to_ne_bytes(), &[0; 4]].concat();
    raw.send(GET_INFLIGHT_FD, &wanted, &[]);
    let (region, fd) = raw.receive_with_fd();
    let file = File::from(fd.try_clone().unwrap());
    let queue = (16 + 16 * u64::from(QUEUE_SIZE)).next_multiple_of(64);
    // Version and size, and that head 3 was fetched.
    file.write_all_at(&[[1, 0].as_slice(), &QUEUE_SIZE.to_ne_bytes()].concat(), queue + 8).unwrap();
    file.write_all_at(&[1], queue + 16 + 16 * 3).unwrap();
    (region, fd)
}

#[test]
fn what_was_in_flight_on_a_later_queue_comes_first() {
    let mut guest = Guest::new();
    guest.start_first();
    std::thread::sleep(MEANWHILE);
    assert_eq!(guest.raw.used_idx(), 0, "nothing is taken before the second queue has its own again");
    guest.start_second();
    assert_eq!(guest.content(), NEW);
    assert_eq!(guest.raw.read(USED + 2, 2), [1, 0]);
    guest.served.server.stop();
}

#[test]
fn a_queue_that_is_stopped_for_good_keeps_nobody_waiting() {
    let mut guest = Guest::new();
    guest.start_first();
    std::thread::sleep(MEANWHILE);
    assert_eq!(guest.raw.used_idx(), 0);
    guest.raw.send(GET_VRING_BASE, &words([1, 0]), &[]);
    guest.raw.receive();
    assert_eq!(guest.content(), NEW);
}

#[test]
fn a_queue_that_is_never_started_does_not_keep_others_for_ever() {
    let mut guest = Guest::new();
    guest.start_first();
    assert_eq!(guest.content(), NEW);
    // The disk has waited once: not again where its queues begin anew on other memory.
    guest.raw.send_memory_table();
    let begun = Instant::now();
    assert_eq!(guest.content_again(), NEW);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn a_queue_that_waits_can_be_stopped() {
    let mut guest = Guest::new();
    guest.start_first();
    assert_eq!(guest.raw.stop_queue(), 0, "what it had not taken is still in the ring");
    guest.start_second();
    guest.start_first();
    assert_eq!(guest.content(), NEW);
}
