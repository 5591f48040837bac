//! What stock VMMs say that the specification does not expect, each as that VMM says it.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use afterimage_frontend::ServeOptions;
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;
use rustix::fs::{memfd_create, MemfdFlags};

const INDIRECT: u64 = 1 << 28;
const CONFIG_AT: u32 = 0x100;
const WRITEBACK: u32 = 32;

fn served() -> Served {
    serve(Arc::new(MemoryDisk::new(8 << 20, false)), ServeOptions::default())
}

fn introduced(served: &Served, queue_size: u16) -> RawGuest {
    let mut guest = RawGuest::connect(&served.socket);
    guest.queue_size = queue_size;
    guest.negotiate(!0);
    guest
}

fn inflight(len: u64, queues: u16, size: u16) -> Vec<u8> {
    let mut body = [len, 0].map(u64::to_ne_bytes).concat();
    body.extend(queues.to_ne_bytes());
    body.extend(size.to_ne_bytes());
    body.extend([0; 4]);
    body
}

/// QEMU asks by its `queue-size`, and gives the region back with the size that it asked for and the length that it was told.
fn region_for(guest: &mut RawGuest, asked: u16) -> (u64, File) {
    guest.send(GET_INFLIGHT_FD, &inflight(0, 1, asked), &[]);
    let (region, file) = guest.receive_with_fd();
    let len = u64::from_ne_bytes(region[..8].try_into().unwrap());
    (len, file.into())
}

/// QEMU 10: `queue-size` is 128, SeaBIOS sets up 256 descriptors, Linux 1024.
#[test]
fn a_ring_is_larger_than_its_region_was_asked_for() {
    let served = served();
    for asked in [1, 128, 200, 1024] {
        let mut guest = introduced(&served, 128);
        let (len, file) = region_for(&mut guest, asked);
        assert!(guest.ask_ack(SET_INFLIGHT_FD, &inflight(len, 1, asked), &[file.as_raw_fd()]));
        for (round, size) in [256, 1024, 16].into_iter().enumerate() {
            guest.queue_size = size;
            guest.set_up_queue();
            guest.check_io(8, round as u8);
            guest.stop_queue();
        }
    }
}

/// A daemon that died had fetched a request with a head beyond the size that was asked for.
#[test]
fn what_was_in_flight_beyond_the_size_asked_for_is_submitted_again() {
    const HEAD: u16 = 200;
    let served = served();
    let mut guest = introduced(&served, 256);
    let (len, file) = region_for(&mut guest, 128);
    let chain = [guest.header(0, T_OUT, 8), desc(gpa(DATA), 4096, F_NEXT, 0), guest.status(0)];
    for (at, part) in chain.into_iter().enumerate() {
        let index = HEAD + at as u16;
        guest.set_desc(index, Desc { next: index + 1, ..part });
    }
    guest.write(DATA, &[7; 4096]);
    // Version 1, 256 descriptors, and the head in flight: see `inflight.rs`.
    file.write_all_at(&[1, 0, 0, 1], 8).unwrap();
    file.write_all_at(&[1], 16 + 16 * u64::from(HEAD)).unwrap();
    assert!(guest.ask_ack(SET_INFLIGHT_FD, &inflight(len, 1, 128), &[file.as_raw_fd()]));
    guest.set_up_queue();
    assert_eq!(guest.next_used(PATIENCE), Some((u32::from(HEAD), 1)));
    assert_eq!(guest.status_value(0), 0);
}

/// It is exactly as long as its rings needed, with and without the bytes behind them that are our own.
#[test]
fn a_region_of_an_earlier_daemon_is_as_large_as_it_was_said_to_be() {
    let served = served();
    for (len, held, room) in [(2112 + 64, 128, true), (2112, 128, true), (2112 + 64, 256, false)] {
        let file: File = memfd_create("earlier", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(len).unwrap();
        let mut guest = introduced(&served, held);
        assert!(guest.ask_ack(SET_INFLIGHT_FD, &inflight(len, 1, 128), &[file.as_raw_fd()]));
        guest.set_up_queue();
        if room {
            guest.check_io(8, 1);
            assert_eq!(file.metadata().unwrap().len(), len);
        } else {
            assert!(guest.is_closed(), "{len} bytes for {held}");
        }
    }
}

/// QEMU 7.2 does not notice that its daemon was another one meanwhile where its guest's device was stopped (in firmware, or
/// rebooting): it goes on by what it had agreed with the first.
#[test]
fn a_peer_goes_on_without_a_handshake() {
    let served = served();
    let features = introduced(&served, 16).features;
    assert_ne!(features >> 30 & 1, 0);
    for round in 0..2 {
        let mut guest = RawGuest::connect(&served.socket);
        guest.send(SET_FEATURES, &features.to_ne_bytes(), &[]);
        assert_eq!(guest.ask_u64(GET_STATUS), 0);
        guest.send(SET_STATUS, &8u64.to_ne_bytes(), &[]);
        guest.features = features;
        let (len, file) = region_for(&mut guest, 128);
        guest.send(SET_INFLIGHT_FD, &inflight(len, 1, 128), &[file.as_raw_fd()]);
        let table = [1u64, MEMORY_START, MEMORY_BYTES, USER_START, 0].map(u64::to_ne_bytes).concat();
        assert!(guest.ask_ack(SET_MEM_TABLE, &table, &[guest.memory.as_raw_fd()]), "REPLY_ACK was agreed on");
        guest.set_up_queue();
        guest.check_io(8, round);
        assert_eq!(guest.ask_u64(GET_STATUS), 8);
    }
    // One that never heard of protocol features is another matter: its rings need no SET_VRING_ENABLE.
    let mut guest = RawGuest::connect(&served.socket);
    guest.send(SET_FEATURES, &(features & !(1 << 30)).to_ne_bytes(), &[]);
    guest.send(GET_STATUS, &[], &[]);
    assert!(guest.is_closed());
}

/// QEMU 7.2 tells a new daemon only what has changed since it told the one that died, if it may tell its memory in parts. libblkio
/// must be able to.
#[test]
fn qemu_tells_all_of_its_memory() {
    let served = served();
    for owner_first in [false, true] {
        let mut guest = RawGuest::connect(&served.socket);
        let mut may_tell_in_parts = |owns: bool| {
            if owns {
                guest.send(SET_OWNER, &[], &[]);
            }
            guest.ask_u64(GET_FEATURES);
            guest.ask_u64(GET_PROTOCOL_FEATURES) & CONFIGURE_MEM_SLOTS != 0
        };
        assert_eq!(may_tell_in_parts(owner_first), owner_first);
        assert_eq!(may_tell_in_parts(true), owner_first, "another device on the same connection");
    }
}

/// QEMU offers ANY_LAYOUT to legacy drivers, whatever its back end does, and passes on that one took it (viostor does).
#[test]
fn a_legacy_driver_may_cut_buffers_anywhere() {
    let served = served();
    let mut guest = introduced(&served, 16);
    let legacy = guest.features & !(1 << 32) | 1 << 27;
    assert!(guest.ask_ack(SET_FEATURES, &legacy.to_ne_bytes(), &[]));
    guest.set_up_queue();
    guest.check_io(8, 1);
}

fn config(offset: u32, bytes: &[u8]) -> Vec<u8> {
    let mut body = words([offset, bytes.len() as u32, 1]);
    body.extend(bytes);
    body
}

fn get_config(guest: &mut RawGuest, offset: u32, len: usize) -> Vec<u8> {
    guest.send(GET_CONFIG, &config(offset, &vec![0; len]), &[]);
    guest.receive()[12..].to_vec()
}

/// Cloud Hypervisor up to v50 and Dragonball: where VIRTIO's memory-mapped transport has it.
#[test]
fn the_configuration_is_at_0x100_as_well() {
    let served = served();
    let mut guest = introduced(&served, 16);
    let whole = get_config(&mut guest, 0, 60);
    assert_eq!(whole[..8], (8u64 << 20 >> 9).to_le_bytes());
    assert_eq!(get_config(&mut guest, CONFIG_AT, 60), whole);
    assert_eq!(get_config(&mut guest, CONFIG_AT + WRITEBACK, 1), [1]);
    assert!(guest.ask_ack(SET_CONFIG, &config(CONFIG_AT + WRITEBACK, &[0]), &[]));
    assert_eq!(get_config(&mut guest, WRITEBACK, 1), [0]);
    assert_eq!(get_config(&mut guest, 2 * CONFIG_AT - 1, 9), [0; 9]);
}

/// Old Windows drivers put requests into tables wherever those were offered.
#[test]
fn indirect_tables_that_were_not_acknowledged_are_served() {
    let served = served();
    let mut guest = RawGuest::connect(&served.socket);
    guest.negotiate(!INDIRECT);
    guest.set_up_queue();
    guest.check_io(8, 3);
    guest.write(DATA, &[0; 4096]);
    let table = [guest.header(0, T_IN, 8), desc(gpa(DATA), 4096, F_NEXT | F_WRITE, 2), guest.status(0)];
    guest.write(TABLES, &table.into_iter().flat_map(encode).collect::<Vec<_>>());
    assert_eq!(guest.execute(&[desc(gpa(TABLES), 48, F_INDIRECT, 0)]), Some((4097, 0)));
    assert_eq!(guest.read(DATA, 1), [3]);
}
