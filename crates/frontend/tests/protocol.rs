//! Peers that break the vhost-user protocol lose their connection; the daemon takes the next one.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::os::fd::AsRawFd;
use std::sync::Arc;

use afterimage_frontend::ServeOptions;
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;
use rustix::event::{eventfd, EventfdFlags};

fn served() -> Served {
    serve(Arc::new(MemoryDisk::new(8 << 20, false)), ServeOptions::default())
}

/// A guest that has said everything but its queue.
fn introduced(served: &Served) -> RawGuest {
    let mut guest = RawGuest::connect(&served.socket);
    guest.negotiate(!0);
    guest
}

#[test]
fn malformed_messages_end_the_connection_only() {
    let served = served();
    let other = self::served();
    let mut bystander = RawGuest::start(&other.socket);
    type Attack = Box<dyn Fn(&mut RawGuest)>;
    let message = |request: u32, body: Vec<u8>, fds: usize| -> Attack {
        Box::new(move |g: &mut RawGuest| g.send(request, &body, &vec![g.kick.as_raw_fd(); fds]))
    };
    let addresses = |descriptors: u64, used: u64, available: u64| -> Attack {
        Box::new(move |g: &mut RawGuest| {
            g.send(SET_VRING_ADDR, &g.ring_address(descriptors, used, available), &[]);
            g.send_unless_closed(SET_VRING_NUM, &words([0, 16]), &[]);
            g.send_unless_closed(SET_VRING_ENABLE, &words([0, 1]), &[]);
            g.send_unless_closed(SET_VRING_KICK, &0u64.to_ne_bytes(), &[g.kick.as_raw_fd()]);
        })
    };
    let bytes = |bytes: Vec<u8>| -> Attack {
        Box::new(move |g: &mut RawGuest| g.send_bytes(&bytes, &[]).map(|_| ()).unwrap())
    };
    let region = |start: u64, len: u64, offset: u64| {
        let body = [1u64, start, len, USER_START, offset].map(u64::to_ne_bytes).concat();
        Box::new(move |g: &mut RawGuest| g.send(SET_MEM_TABLE, &body, &[g.memory.as_raw_fd()])) as Attack
    };
    let (d, u, a) = RawGuest::ring_offsets();
    let attacks: Vec<(&str, Attack)> = vec![
        ("unknown request", message(99, vec![], 0)),
        ("request 0", message(0, vec![], 0)),
        ("wrong version", bytes(words([GET_FEATURES, 2, 0]))),
        ("a reply", bytes(words([GET_FEATURES, 5, 0]))),
        ("reserved flags", bytes(words([GET_FEATURES, 0x11, 0]))),
        ("4 GiB body", bytes(words([SET_FEATURES, 1, u32::MAX]))),
        ("short SET_FEATURES", message(SET_FEATURES, vec![0; 7], 0)),
        ("features that were not offered", message(SET_FEATURES, (!0u64).to_ne_bytes().to_vec(), 0)),
        ("VHOST_F_LOG_ALL", message(SET_FEATURES, (1u64 << 26).to_ne_bytes().to_vec(), 0)),
        ("protocol features not offered", message(SET_PROTOCOL_FEATURES, (!0u64).to_ne_bytes().to_vec(), 0)),
        ("descriptor where none belongs", message(GET_FEATURES, vec![], 1)),
        ("memory table without descriptors", message(SET_MEM_TABLE, vec![1, 0, 0, 0, 0, 0, 0, 0], 0)),
        ("memory table of 2^32-1 regions", message(SET_MEM_TABLE, vec![0xff; 40], 1)),
        ("too many descriptors", message(SET_MEM_TABLE, vec![0; 40], 33)),
        ("far too many descriptors", message(SET_MEM_TABLE, vec![0; 40], 200)),
        ("memory beyond its file", region(0, MEMORY_BYTES + 4096, 0)),
        ("memory at an offset beyond its file", region(0, 4096, MEMORY_BYTES)),
        ("memory that wraps around", region(u64::MAX - 4095, MEMORY_BYTES, 0)),
        ("empty memory", region(0, 0, 0)),
        ("memory at an odd offset", region(0, 4096, 77)),
        ("queue size 0", message(SET_VRING_NUM, words([0, 0]), 0)),
        ("queue size 3", message(SET_VRING_NUM, words([0, 3]), 0)),
        ("queue size 2048", message(SET_VRING_NUM, words([0, 2048]), 0)),
        ("queue size 2^31", message(SET_VRING_NUM, words([0, 1 << 31]), 0)),
        ("queue 1 of 1", message(SET_VRING_NUM, words([1, 16]), 0)),
        ("queue 2^32-1", message(SET_VRING_ENABLE, words([u32::MAX, 1]), 0)),
        ("kick of queue 255", message(SET_VRING_KICK, 255u64.to_ne_bytes().to_vec(), 1)),
        ("kick without descriptor", message(SET_VRING_KICK, 0u64.to_ne_bytes().to_vec(), 0)),
        ("two kicks", message(SET_VRING_KICK, 0u64.to_ne_bytes().to_vec(), 2)),
        ("base beyond 16 bits", message(SET_VRING_BASE, words([0, 1 << 16]), 0)),
        ("enable 2", message(SET_VRING_ENABLE, words([0, 2]), 0)),
        ("descriptors outside memory", addresses(MEMORY_BYTES, u, a)),
        ("used ring across the end", addresses(d, MEMORY_BYTES - 8, a)),
        ("available ring that overflows", addresses(d, u, u64::MAX - USER_START - 1)),
        ("available ring below", addresses(d, u, u64::MAX - 4095)),
        ("misaligned descriptors", addresses(d + 8, u, a)),
        ("misaligned used ring", addresses(d, u + 2, a)),
        ("status of the wrong size", message(SET_STATUS, vec![1], 0)),
        ("in-flight region for 9 queues", message(GET_INFLIGHT_FD, inflight(4096, 0, 9, 16), 0)),
        ("in-flight region shorter than its queues", message(SET_INFLIGHT_FD, inflight(64, 0, 1, 128), 1)),
        ("in-flight region of 2^63 bytes", message(SET_INFLIGHT_FD, inflight(1 << 63, 0, 1, 16), 1)),
        ("in-flight region without descriptor", message(SET_INFLIGHT_FD, inflight(4096, 0, 1, 16), 0)),
        ("half a message, then nothing", bytes(vec![1, 0, 0, 0, 1])),
        ("half a body", bytes([words([SET_FEATURES, 1, 8]), vec![0; 3]].concat())),
    ];
    for (round, (name, attack)) in attacks.into_iter().enumerate() {
        let mut guest = introduced(&served);
        attack(&mut guest);
        if name.starts_with("half") {
            guest.socket.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert!(guest.is_closed(), "{name}");
        RawGuest::start(&served.socket).check_io(8, round as u8);
        bystander.check_io(0, round as u8);
    }
}

fn inflight(len: u64, offset: u64, queues: u16, size: u16) -> Vec<u8> {
    let mut body = [len, offset].map(u64::to_ne_bytes).concat();
    body.extend(queues.to_ne_bytes());
    body.extend(size.to_ne_bytes());
    body.extend([0; 4]);
    body
}

#[test]
fn refusals_are_told_where_an_answer_was_asked_for() {
    let served = served();
    let mut guest = introduced(&served);
    assert!(!guest.ask_ack(SET_VRING_NUM, &words([0, 3]), &[]));
    assert!(guest.ask_ack(SET_VRING_NUM, &words([0, 16]), &[]));
    assert!(!guest.ask_ack(SET_CONFIG, &config(32, &[2]), &[]));
    guest.set_up_queue();
    guest.check_io(0, 1);
}

/// A region that the daemon allocated, filled with something else, and given back.
fn with_garbage(guest: &mut RawGuest, garbage: &[(u64, &[u8])]) -> (Vec<u8>, std::fs::File) {
    guest.send(GET_INFLIGHT_FD, &inflight(0, 0, 1, QUEUE_SIZE), &[]);
    let (region, fd) = guest.receive_with_fd();
    let file = std::fs::File::from(fd);
    for (offset, bytes) in garbage {
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, *offset).unwrap();
    }
    guest.send(SET_INFLIGHT_FD, &region, &[file.as_raw_fd()]);
    guest.set_up_queue();
    (region, file)
}

#[test]
fn a_damaged_in_flight_region_is_refused_and_an_odd_one_survived() {
    let served = served();
    let one = [1u8].as_slice();
    let version = (8, [1u8, 0].as_slice());
    let size = (10, [QUEUE_SIZE as u8, 0].as_slice());
    type Bytes<'a> = (u64, &'a [u8]);
    let refused: [(&str, Vec<Bytes<'_>>); 4] = [
        ("unknown version", vec![(8, &[9, 0])]),
        ("another size", vec![version, (10, &[3, 0]), (16, one)]),
        ("an index far away", vec![version, size, (14, &[0, 0x80]), (16, one)]),
        ("a link outside", vec![version, size, (12, &[0xff, 0xff]), (14, &[0xff, 0xff]), (16, one)]),
    ];
    for (name, garbage) in refused {
        let mut guest = introduced(&served);
        with_garbage(&mut guest, &garbage);
        assert!(guest.is_closed(), "{name}");
    }
    // Heads in flight that were never offered: executed as whatever the table holds, here nothing sensible.
    let mut guest = introduced(&served);
    with_garbage(&mut guest, &[version, size, (16, one), (32, one), (16 + 16 * 15, one)]);
    for _ in 0..3 {
        assert_eq!(guest.next_used(PATIENCE).expect("an answer").1, 0);
    }
    drop(guest);
    RawGuest::start(&served.socket).check_io(0, 1);
}

#[test]
fn odd_kick_and_call_descriptors_do_not_stop_a_queue() {
    let served = served();
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(far);
    // Always readable: each read takes one of very many.
    let full = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let mut guest = RawGuest::start(&served.socket);
    guest.polls = true;
    guest.send(SET_VRING_KICK, &0u64.to_ne_bytes(), &[full.as_raw_fd()]);
    guest.send(SET_VRING_CALL, &0u64.to_ne_bytes(), &[near.as_raw_fd()]);
    guest.check_io(0, 1);
    // No descriptor at all: both sides poll.
    guest.send(SET_VRING_KICK, &0x100u64.to_ne_bytes(), &[]);
    guest.send(SET_VRING_CALL, &0x100u64.to_ne_bytes(), &[]);
    guest.check_io(8, 2);
}

#[test]
fn leaving_in_the_middle_of_requests() {
    let served = served();
    for round in 0..30u8 {
        let mut guest = RawGuest::start(&served.socket);
        guest.begin_writes();
        if round % 2 == 0 {
            guest.send(GET_VRING_BASE, &words([0, 0]), &[]);
        }
    }
    RawGuest::start(&served.socket).check_io(0, 1);
    assert!(!served.server.finished());
}

fn config(offset: u32, bytes: &[u8]) -> Vec<u8> {
    let mut body = words([offset, bytes.len() as u32, 0]);
    body.extend(bytes);
    body
}

fn get_config(guest: &mut RawGuest, offset: u32, len: usize) -> Vec<u8> {
    guest.send(GET_CONFIG, &config(offset, &vec![0; len]), &[]);
    guest.receive()[12..].to_vec()
}

#[test]
fn one_guest_at_a_time_and_the_next_one_after_it() {
    let served = served();
    let mut first = RawGuest::start(&served.socket);
    first.check_io(0, 1);
    let mut second = RawGuest::connect(&served.socket);
    assert!(second.is_closed());
    first.check_io(0, 2);
    drop(first);
    RawGuest::start(&served.socket).check_io(0, 3);
    assert_eq!(served.stats.snapshot().connections, 2);
}

#[test]
fn a_queue_stops_where_it_is_and_goes_on_there() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 1);
    assert_eq!(guest.stop_queue(), 2);
    // Stopped: nothing is served, also not with a kick.
    let (header, status) = (guest.header(0, T_FLUSH, 0), guest.status(0));
    guest.set_desc(0, header);
    guest.set_desc(1, status);
    guest.offer(0);
    guest.ring_kick();
    assert!(guest.next_used(std::time::Duration::from_millis(50)).is_none());
    guest.send(SET_VRING_BASE, &words([0, 2]), &[]);
    guest.send(SET_VRING_KICK, &0u64.to_ne_bytes(), &[guest.kick.as_raw_fd()]);
    assert_eq!(guest.next_used(PATIENCE), Some((0, 1)));
    // Disabled and enabled again; the memory table sent again under a running queue; a reset.
    guest.send(SET_VRING_ENABLE, &words([0, 0]), &[]);
    guest.send(SET_VRING_ENABLE, &words([0, 1]), &[]);
    guest.check_io(8, 2);
    guest.send_memory_table();
    guest.check_io(8, 3);
    assert_eq!(guest.ask_u64(GET_STATUS), 0);
    guest.send(SET_STATUS, &7u64.to_ne_bytes(), &[]);
    assert_eq!(guest.ask_u64(GET_STATUS), 7);
    guest.send(RESET_DEVICE, &[], &[]);
    assert_eq!(guest.ask_u64(GET_STATUS), 0);
}

/// QEMU's vhost-user device is unplugged without a word. The next one on its chardev comes over the same connection and gives its
/// memory region by region, from nothing.
#[test]
fn a_new_owner_begins_anew_on_the_same_connection() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    let memory = [guest.memory.as_raw_fd()];
    let region = [0u64, MEMORY_START, MEMORY_BYTES, USER_START, 0].map(u64::to_ne_bytes).concat();
    assert!(guest.ask_ack(SET_CONFIG, &config(32, &[0]), &[]));
    for round in 1..4u8 {
        guest.check_io(0, round);
        assert!(!guest.ask_ack(ADD_MEM_REG, &region, &memory), "its own memory still");
        guest.stop_queue();
        assert!(guest.ask_ack(SET_OWNER, &[], &[]), "protocol features come before and stay");
        assert_eq!(get_config(&mut guest, 32, 1), [1], "another device has chosen nothing");
        guest.send(SET_FEATURES, &guest.features.to_ne_bytes(), &[]);
        assert!(guest.ask_ack(ADD_MEM_REG, &region, &memory));
        guest.set_up_queue();
    }
    guest.check_io(8, 4);
}

#[test]
fn the_cache_rule() {
    let disk = Arc::new(MemoryDisk::new(8 << 20, false));
    let served = serve(Arc::clone(&disk) as _, ServeOptions::default());
    let mut guest = RawGuest::start(&served.socket);
    assert_eq!(get_config(&mut guest, 32, 1), [1]);
    guest.check_io(0, 1);
    assert_eq!(disk.flushes(), (0, 0));
    // Switching the cache off flushes what was written before, and every write from then on.
    assert!(guest.ask_ack(SET_CONFIG, &config(32, &[0]), &[]));
    assert_eq!(disk.flushes(), (1, 0));
    assert_eq!(get_config(&mut guest, 32, 1), [0]);
    guest.check_io(0, 2);
    assert_eq!(disk.flushes(), (1, 1));
    assert!(guest.ask_ack(SET_CONFIG, &config(32, &[1]), &[]));
    guest.check_io(0, 3);
    assert_eq!(disk.flushes(), (1, 1));
    // A VMM goes on to show what was chosen when the device is reset, so a cache that is off stays off.
    assert!(guest.ask_ack(SET_CONFIG, &config(32, &[0]), &[]));
    guest.send(RESET_DEVICE, &[], &[]);
    assert_eq!(get_config(&mut guest, 32, 1), [0]);
    guest.send(SET_FEATURES, &guest.features.to_ne_bytes(), &[]);
    guest.set_up_queue();
    guest.check_io(0, 4);
    assert_eq!(disk.flushes(), (2, 2));
    drop(guest);
    // A driver that does not know FLUSH.
    let mut guest = RawGuest::connect(&served.socket);
    guest.negotiate(!(1 << 9));
    assert_eq!(get_config(&mut guest, 32, 1), [1], "another guest has chosen nothing");
    guest.set_up_queue();
    guest.check_io(0, 5);
    assert_eq!(disk.flushes(), (2, 3));
}

/// QEMU reads the byte when it connects first, never again, and shows its guest what it read or was told then. Its in-flight region
/// goes when the guest is reset, also while nobody is connected.
#[test]
fn a_peer_that_has_not_read_the_write_cache_may_go_by_one_that_is_off() {
    let disk = Arc::new(MemoryDisk::new(8 << 20, false));
    let served = serve(Arc::clone(&disk) as _, ServeOptions::default());
    let mut guest = RawGuest::start(&served.socket);
    assert!(guest.ask_ack(SET_CONFIG, &config(32, &[0]), &[]));
    assert_eq!(disk.flushes(), (1, 0));
    drop(guest);
    let mut guest = introduced(&served);
    with_garbage(&mut guest, &[]);
    guest.check_io(0, 1);
    assert_eq!(disk.flushes(), (1, 1), "it sends no flush");
    get_config(&mut guest, 0, 32);
    get_config(&mut guest, 33, 8);
    guest.check_io(0, 2);
    assert_eq!(disk.flushes(), (1, 2));
    // What it is shown now is what it goes by, over a reset and with another region, too.
    assert_eq!(get_config(&mut guest, 0, 60)[32], 1);
    guest.check_io(0, 3);
    guest.stop_queue();
    guest.send(RESET_DEVICE, &[], &[]);
    guest.send(SET_FEATURES, &guest.features.to_ne_bytes(), &[]);
    with_garbage(&mut guest, &[]);
    guest.check_io(0, 4);
    assert_eq!(disk.flushes(), (1, 2));
    drop(guest);
    // As is what it says itself, and what its region says is older than that.
    let mut guest = introduced(&served);
    assert!(guest.ask_ack(SET_CONFIG, &config(32, &[1]), &[]));
    let region = with_garbage(&mut guest, &[]);
    guest.check_io(0, 5);
    assert_eq!(disk.flushes(), (1, 2));
    drop(guest);
    for (says_off, flushed) in [(false, 2), (true, 3)] {
        let mut guest = introduced(&served);
        if says_off {
            assert!(guest.ask_ack(SET_CONFIG, &config(32, &[0]), &[]));
        }
        guest.send(SET_INFLIGHT_FD, &region.0, &[region.1.as_raw_fd()]);
        guest.set_up_queue();
        guest.check_io(0, 6);
        assert_eq!(disk.flushes(), (1 + u64::from(says_off), flushed));
        drop(guest);
    }
}

/// Another reader of a socket may hold up whoever reads it for ever.
#[test]
fn a_kick_is_an_eventfd() {
    let served = serve(Arc::new(MemoryDisk::new(1 << 20, false)), ServeOptions::default());
    let mut guest = RawGuest::connect(&served.socket);
    guest.negotiate(!0);
    let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(!guest.ask_ack(SET_VRING_KICK, &0u64.to_ne_bytes(), &[near.as_raw_fd()]));
    assert!(guest.ask_ack(SET_VRING_CALL, &0u64.to_ne_bytes(), &[near.as_raw_fd()]));
}

/// What is left of it is every disk's.
#[test]
fn guests_take_no_more_than_half_of_what_a_process_can_address() {
    let served = serve(Arc::new(MemoryDisk::new(1 << 20, false)), ServeOptions::default());
    let mut guest = RawGuest::start(&served.socket);
    let sparse = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&sparse, 1 << 46).unwrap();
    let mut add = |bytes: u64| {
        let region = [0, 1 << 46, bytes, USER_START - (1 << 46), 0].map(u64::to_ne_bytes).concat();
        guest.ask_ack(ADD_MEM_REG, &region, &[sparse.as_raw_fd()])
    };
    assert!(!add(1 << 46));
    assert!(add(1 << 45));
    guest.check_io(0, 1);
}
