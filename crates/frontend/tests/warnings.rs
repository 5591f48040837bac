//! What the log says of peers that are no enemies, only set up wrongly.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::io::Write;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use afterimage_frontend::ServeOptions;
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static LOGGING: Once = Once::new();

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn served() -> Served {
    LOGGING.call_once(|| tracing_subscriber::fmt().with_writer(|| Log).init());
    serve(Arc::new(MemoryDisk::new(8 << 20, false)), ServeOptions::default())
}

fn logged(what: &str) -> usize {
    String::from_utf8_lossy(&LOG.lock().unwrap()).matches(what).count()
}

/// Kicks and waits until the daemon has taken it.
fn kick(served: &Served, guest: &RawGuest) {
    let kicks = || served.stats.snapshot().queues[0].kicks;
    let (before, start) = (kicks(), Instant::now());
    guest.ring_kick();
    while kicks() == before {
        assert!(start.elapsed() < PATIENCE, "the kick is not taken");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_that_the_guest_does_not_write_is_warned_of_once() {
    let warnings = || logged("share=on");
    let honest = served();
    let mut guest = RawGuest::start(&honest.socket);
    // As QEMU does at the start, before the guest has asked for anything.
    kick(&honest, &guest);
    (0..5).for_each(|round| guest.check_io(8, round));
    // Kicks for what was seen without them are ordinary.
    (0..5).for_each(|_| kick(&honest, &guest));
    guest.stop_queue();
    assert_eq!(warnings(), 0);

    let blind = served();
    let guest = RawGuest::start(&blind.socket);
    (0..5).for_each(|_| kick(&blind, &guest));
    drop(blind);
    assert_eq!(warnings(), 1);
}

/// A VMM with `reconnect=1` tries again for ever.
#[test]
fn further_connections_are_turned_away_and_logged_once() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    for _ in 0..20 {
        assert!(RawGuest::connect(&served.socket).is_closed());
    }
    guest.check_io(8, 1);
    assert_eq!(logged("a second connection was closed"), 1);
}

#[test]
fn a_queue_without_room_for_the_largest_request_is_warned_of_once() {
    const INDIRECT: u64 = 1 << 28;
    const FLUSH: u64 = 1 << 9;
    let warnings = || logged("none are indirect");
    let served = served();
    let start = |features: u64, size: u16| {
        let mut guest = RawGuest::connect(&served.socket);
        guest.queue_size = size;
        guest.negotiate(features);
        guest.set_up_queue();
        guest.check_io(8, 1);
    };
    start(!0, 16);
    start(!INDIRECT, 128);
    // Firmware.
    start(!(INDIRECT | FLUSH), 16);
    assert_eq!(warnings(), 0);
    (0..5).for_each(|_| start(!INDIRECT, 16));
    assert_eq!(warnings(), 1);
}

/// Nobody asks there who does not take it for the beginning.
#[test]
fn a_configuration_that_is_read_at_0x100_is_told_of() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    let mut ask = |offset| {
        guest.send(GET_CONFIG, &[words([offset, 60, 1]), vec![0; 60]].concat(), &[]);
        guest.receive();
    };
    ask(0);
    assert_eq!(logged("offset 0x100"), 0);
    (0..5).for_each(|_| ask(0x100));
    assert_eq!(logged("offset 0x100"), 1);
}

/// The same.
#[test]
fn connections_that_break_for_one_reason_are_logged_once() {
    let served = served();
    let breaks = |size: u32| {
        let mut guest = RawGuest::connect(&served.socket);
        guest.negotiate(!0);
        guest.send(SET_VRING_NUM, &words([0, size]), &[]);
        assert!(guest.is_closed());
    };
    (0..20).for_each(|_| breaks(100));
    breaks(200);
    breaks(100);
    drop(served);
    assert_eq!(logged("a queue of 100;"), 2);
    assert_eq!(logged("a queue of 200;"), 1);
}

/// Root in a guest, and a VMM with `reconnect=1`: the host's log is not theirs.
#[test]
fn what_a_guest_or_its_vmm_does_for_ever_does_not_fill_the_log() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    for round in 0..200 {
        assert!(guest.ask_ack(SET_CONFIG, &[words([32, 1, 0]), vec![round % 2]].concat(), &[]));
    }
    assert_eq!(logged("the guest switched its write cache"), 16);
    drop(guest);
    for size in 0..200 {
        let mut guest = RawGuest::connect(&served.socket);
        guest.negotiate(!0);
        guest.send(SET_VRING_NUM, &words([0, 3000 + size]), &[]);
        assert!(guest.is_closed());
    }
    assert_eq!(logged("a queue of 3"), 16, "each for a reason of its own");
    // The other tests have a few guests.
    assert!(logged("a guest is attached") < 100);
}
