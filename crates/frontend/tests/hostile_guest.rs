//! A guest that breaks every rule of the ring and of virtio-blk gets the specification's status; the daemon and its
//! other disks go on.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::sync::Arc;
use std::time::Duration;

use afterimage_frontend::{RequestKind, ServeOptions};
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;

const DISK_BYTES: u64 = 8 << 20;
const DISK_SECTORS: u64 = DISK_BYTES / 512;
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;
const UNTOUCHED: u8 = 0xaa;

/// Two disks of one process: one for the hostile guest, one for a bystander.
struct Pair {
    hostile: Served,
    _other: Served,
    bystander: RawGuest,
    rounds: u8,
}

impl Pair {
    fn new() -> Self {
        let serve_one = || serve(Arc::new(MemoryDisk::new(DISK_BYTES, false)), ServeOptions::default());
        let (hostile, other) = (serve_one(), serve_one());
        let bystander = RawGuest::start(&other.socket);
        Self { hostile, _other: other, bystander, rounds: 0 }
    }

    /// The other disk works, and the hostile guest's own disk serves its next guest.
    fn all_alive(&mut self) {
        self.rounds += 1;
        self.bystander.check_io(8, self.rounds);
        RawGuest::start(&self.hostile.socket).check_io(64, self.rounds);
    }
}

#[test]
fn requests_that_cannot_be_served_get_their_status() {
    let mut pair = Pair::new();
    let mut guest = RawGuest::start(&pair.hostile.socket);
    guest.check_io(0, 1);
    // Sectors outside, and sectors whose sum overflows.
    for sector in [DISK_SECTORS - 7, DISK_SECTORS, u64::MAX, u64::MAX - 7, u64::MAX / 512] {
        assert_eq!(guest.request(T_IN, sector, 4096).1, IOERR, "read of {sector}");
        assert_eq!(guest.request(T_OUT, sector, 4096).1, IOERR, "write of {sector}");
    }
    assert_eq!(guest.request(T_IN, DISK_SECTORS - 8, 4096).1, OK);
    // Lengths that are not whole sectors; no data at all.
    assert_eq!(guest.request(T_IN, 0, 511).1, IOERR);
    assert_eq!(guest.request(T_OUT, 0, 513).1, IOERR);
    assert_eq!(guest.request(T_OUT, 0, 0).1, OK);
    // Types that do not exist, and the long way round GET_ID.
    for kind in [2, 3, 5, 6, 7, 9, 10, 12, 14, 15, 16, 24, u32::MAX] {
        assert_eq!(guest.request(kind, 0, 512), (1, UNSUPP), "type {kind}");
    }
    guest.write(DATA, &[0xff; 32]);
    assert_eq!(guest.request(T_GET_ID, 0, 20), (21, OK));
    assert_eq!(guest.read(DATA, 20), b"memory\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(guest.request(T_GET_ID, 0, 3), (4, OK));
    assert_eq!(guest.request(T_FLUSH, 0, 0), (1, OK));
    let stats = pair.hostile.stats.snapshot();
    assert_eq!(stats.total(RequestKind::Flush).requests, 1);
    assert_eq!(stats.total(RequestKind::Read).errors, 6);
    drop(guest);
    pair.all_alive();
}

#[test]
fn discards_and_zeroes_are_checked_range_by_range() {
    let mut pair = Pair::new();
    let mut guest = RawGuest::start(&pair.hostile.socket);
    guest.check_io(0, 3);
    let mut ask = |kind: u32, ranges: &[Vec<u8>]| {
        let bytes = ranges.concat();
        guest.write(DATA, &bytes);
        guest.request(kind, 0, bytes.len() as u32)
    };
    for kind in [T_DISCARD, T_WRITE_ZEROES] {
        let unmap = if kind == T_DISCARD { UNSUPP } else { OK };
        assert_eq!(ask(kind, &[range(100, 1, 1)]), (1, unmap));
        assert_eq!(ask(kind, &[range(100, 1, 2)]).1, UNSUPP);
        // An unknown flag decides, whatever else is wrong, and nothing is executed.
        assert_eq!(ask(kind, &[range(0, 8, 0), range(DISK_SECTORS, 8, 1 << 31)]).1, UNSUPP);
        assert_eq!(ask(kind, &[range(0, 8, 0), range(DISK_SECTORS - 1, 2, 0)]).1, IOERR);
        assert_eq!(ask(kind, &[range(u64::MAX, 2, 0)]).1, IOERR);
        assert_eq!(ask(kind, &[range(0, u32::MAX, 0)]).1, IOERR);
        assert_eq!(ask(kind, &vec![range(200, 1, 0); 33]).1, IOERR);
        assert_eq!(ask(kind, &[range(0, 8, 0)[..15].to_vec()]).1, IOERR);
        assert_eq!(ask(kind, &[]).1, IOERR);
        assert_eq!(ask(kind, &vec![range(200, 1, 0); 32]).1, OK);
        assert_eq!(ask(kind, &[range(200, 0, 0)]).1, OK);
    }
    // Nothing of the refused ones happened; an accepted one with two ranges does.
    guest.write(DATA, &[0; 4096]);
    assert_eq!(guest.request(T_IN, 0, 4096).1, OK);
    assert_eq!(guest.read(DATA, 1), [3]);
    guest.write(DATA, &[range(0, 1, 0), range(7, 1, 0)].concat());
    assert_eq!(guest.request(T_DISCARD, 0, 32), (1, OK));
    assert_eq!(guest.request(T_IN, 0, 4096).1, OK);
    let data = guest.read(DATA, 4096);
    assert!(data[..512].iter().chain(&data[3584..]).all(|b| *b == 0) && data[512] != 0 && data[3583] != 0);
    drop(guest);
    pair.all_alive();
}

#[test]
fn a_read_only_disk_takes_no_writes() {
    let served = serve(Arc::new(MemoryDisk::new(DISK_BYTES, true)), ServeOptions::default());
    let mut guest = RawGuest::start(&served.socket);
    assert_eq!(guest.features >> 5 & 1, 1, "VIRTIO_BLK_F_RO");
    assert_eq!(guest.request(T_OUT, 0, 4096).1, IOERR);
    guest.write(DATA, &range(0, 8, 0));
    assert_eq!(guest.request(T_DISCARD, 0, 16).1, UNSUPP);
    assert_eq!(guest.request(T_IN, 0, 4096).1, OK);
    assert_eq!(guest.request(T_FLUSH, 0, 0).1, OK);
}

#[test]
fn a_failed_disk_still_reads() {
    let disk = Arc::new(MemoryDisk::new(DISK_BYTES, false));
    let served = serve(Arc::clone(&disk) as _, ServeOptions::default());
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 9);
    afterimage_block::Disk::health(&*disk).fail("the device is gone");
    assert_eq!(guest.request(T_OUT, 0, 4096).1, IOERR);
    assert_eq!(guest.request(T_FLUSH, 0, 0).1, IOERR);
    assert_eq!(guest.request(T_IN, 0, 4096).1, OK);
    assert_eq!(guest.read(DATA, 1), [9]);
}

#[test]
fn malformed_chains_are_answered_as_far_as_they_can_be() {
    let mut pair = Pair::new();
    let mut guest = RawGuest::start(&pair.hostile.socket);
    let table = gpa(TABLES);
    let outside = MEMORY_START + MEMORY_BYTES;
    let (next_write, status_ok) = (F_NEXT | F_WRITE, IOERR);
    type Case<'a> = (&'a str, Vec<Desc>, Vec<Desc>, Option<u8>);
    let header = guest.header(0, T_IN, 0);
    let status = guest.status(0);
    let data = desc(gpa(DATA), 512, next_write, 2);
    // Name, descriptors in the ring, descriptors in the indirect table, status (`None`: length 0).
    let cases: Vec<Case<'_>> = vec![
        ("good", vec![header, data, status], vec![], Some(OK)),
        ("loop to the head", vec![header, Desc { next: 0, ..data }], vec![], None),
        ("loop to itself", vec![Desc { next: 0, ..header }], vec![], None),
        ("next outside", vec![Desc { next: QUEUE_SIZE, ..header }], vec![], None),
        ("no status", vec![Desc { flags: 0, ..header }], vec![], None),
        ("status read-only", vec![header, Desc { flags: 0, next: 0, ..status }], vec![], None),
        ("zero-length status", vec![header, Desc { len: 0, next: 0, ..status }], vec![], None),
        (
            "zero-length header",
            vec![Desc { len: 0, ..header }, Desc { next: 0, ..status }],
            vec![],
            Some(IOERR),
        ),
        ("short header", vec![Desc { len: 15, ..header }, Desc { next: 0, ..status }], vec![], Some(IOERR)),
        ("empty data buffer", vec![header, Desc { len: 0, ..data }, status], vec![], Some(OK)),
        ("data outside", vec![header, Desc { address: outside, ..data }, status], vec![], Some(status_ok)),
        (
            "data across the end",
            vec![header, Desc { address: outside - 511, ..data }, status],
            vec![],
            Some(IOERR),
        ),
        (
            "data overflows",
            vec![header, Desc { address: u64::MAX - 10, ..data }, status],
            vec![],
            Some(IOERR),
        ),
        ("data below", vec![header, Desc { address: 0, ..data }, status], vec![], Some(IOERR)),
        ("4 GiB", vec![header, Desc { len: u32::MAX, ..data }, status], vec![], Some(IOERR)),
        ("header outside", vec![Desc { address: outside, ..header }, data, status], vec![], Some(IOERR)),
        ("status outside", vec![header, Desc { address: outside, flags: F_WRITE, ..status }], vec![], None),
        ("status overflows", vec![header, desc(u64::MAX, u32::MAX, F_WRITE, 0)], vec![], None),
        (
            "readable after writable",
            vec![header, data, desc(gpa(DATA), 512, F_NEXT, 3), status],
            vec![],
            Some(IOERR),
        ),
        ("header in writable", vec![Desc { flags: next_write, ..header }, data, status], vec![], Some(IOERR)),
        ("indirect", vec![desc(table, 48, F_INDIRECT, 0)], vec![header, data, status], Some(OK)),
        (
            "indirect behind direct",
            vec![header, desc(table, 32, F_INDIRECT, 0)],
            vec![Desc { next: 1, ..data }, status],
            Some(OK),
        ),
        ("indirect length 0", vec![desc(table, 0, F_INDIRECT, 0)], vec![], None),
        ("indirect length odd", vec![desc(table, 47, F_INDIRECT, 0)], vec![header, data, status], None),
        ("indirect outside", vec![desc(outside, 48, F_INDIRECT, 0)], vec![], None),
        ("indirect overflows", vec![desc(u64::MAX - 15, 48, F_INDIRECT, 0)], vec![], None),
        ("indirect huge", vec![desc(table, 0xffff_fff0, F_INDIRECT, 0)], vec![], None),
        (
            "indirect with next",
            vec![desc(table, 48, F_INDIRECT | F_NEXT, 1), status],
            vec![header, data, status],
            None,
        ),
        (
            "indirect in indirect",
            vec![desc(table, 32, F_INDIRECT, 0)],
            vec![header, desc(table, 48, F_INDIRECT, 0)],
            None,
        ),
        ("indirect loop", vec![desc(table, 32, F_INDIRECT, 0)], vec![header, Desc { next: 0, ..data }], None),
        (
            "indirect next outside",
            vec![desc(table, 32, F_INDIRECT, 0)],
            vec![header, Desc { next: 2, ..data }],
            None,
        ),
    ];
    for (name, ring, indirect, expected) in cases {
        guest.write(TABLES, &[0; 256]);
        guest.header(0, T_IN, 0);
        guest.status(0);
        guest.write(TABLES, &indirect.iter().flat_map(|d| encode(*d)).collect::<Vec<_>>());
        let (len, status) = guest.execute(&ring).unwrap_or_else(|| panic!("{name}: no answer"));
        match expected {
            Some(expected) => assert!(status == expected && len > 0, "{name}: status {status}, length {len}"),
            None => assert!(status == UNTOUCHED && len == 0, "{name}: status {status}, length {len}"),
        }
    }
    guest.check_io(16, 5);
    drop(guest);
    pair.all_alive();
}

#[test]
fn thousands_of_segments_are_refused_and_hundreds_served() {
    let mut pair = Pair::new();
    let mut guest = RawGuest::start(&pair.hostile.socket);
    let mut ask = |segments: u64, len: u32| {
        let mut table = vec![guest.header(0, T_OUT, 0)];
        table.extend((0..segments).map(|i| desc(gpa(DATA), len, F_NEXT, i as u16 + 2)));
        table.push(guest.status(0));
        let bytes: Vec<u8> = table.iter().flat_map(|d| encode(*d)).collect();
        guest.write(0x8_0000, &bytes);
        let indirect = [desc(gpa(0x8_0000), bytes.len() as u32, F_INDIRECT, 0)];
        guest.execute(&indirect).expect("an answer")
    };
    assert_eq!(ask(1000, 512), (1, OK));
    assert_eq!(ask(1022, 512), (1, OK));
    // More descriptors than any chain may have: its end is not looked for.
    assert_eq!(ask(1500, 512), (0, UNTOUCHED));
    assert_eq!(ask(20_000, 0), (0, UNTOUCHED));
    // A total of more than 4 GiB cannot be: each buffer may be 512 KiB here.
    assert_eq!(ask(1000, 0x8_0000), (1, IOERR));
    drop(guest);
    pair.all_alive();
}

#[test]
fn a_guest_is_told_of_each_break_and_once() {
    let pair = Pair::new();
    let mut guest = RawGuest::start(&pair.hostile.socket);
    for _ in 0..3 {
        guest.set_avail_idx(QUEUE_SIZE + 1);
        guest.ring_kick();
        assert!(guest.is_told_error());
        guest.send(RESET_DEVICE, &[], &[]);
        guest.send(SET_FEATURES, &guest.features.to_ne_bytes(), &[]);
        guest.set_avail_idx(0);
        guest.set_up_queue_at(0);
        assert_eq!(guest.ask_u64(GET_STATUS) & 0x40, 0);
    }
}

/// The ring is whole again, and the memory another: it stays stopped until the driver sets the device up anew.
#[test]
fn a_queue_that_broke_stays_stopped_on_other_memory() {
    let pair = Pair::new();
    let mut guest = RawGuest::start(&pair.hostile.socket);
    guest.set_avail_idx(QUEUE_SIZE + 1);
    guest.ring_kick();
    assert!(guest.is_told_error());
    guest.set_avail_idx(0);
    guest.send_memory_table();
    let (header, status) = (guest.header(0, T_FLUSH, 0), guest.status(0));
    guest.set_desc(0, header);
    guest.set_desc(1, status);
    guest.offer(0);
    guest.ring_kick();
    assert_eq!(guest.ask_u64(GET_STATUS) & 0x40, 0x40, "NEEDS_RESET");
    assert_eq!(guest.next_used(Duration::from_millis(200)), None);
}

#[test]
fn rings_that_break_their_rules_stop_their_queue_and_nothing_else() {
    let mut pair = Pair::new();
    // The available index runs ahead of the queue.
    let guest = RawGuest::start(&pair.hostile.socket);
    guest.set_avail_idx(QUEUE_SIZE + 1);
    guest.ring_kick();
    assert!(guest.is_told_error());
    drop(guest);
    pair.all_alive();
    // A head outside the table.
    let mut guest = RawGuest::start(&pair.hostile.socket);
    guest.offer(QUEUE_SIZE);
    guest.ring_kick();
    assert!(guest.is_told_error());
    assert_eq!(guest.ask_u64(GET_STATUS) & 0x40, 0x40, "NEEDS_RESET");
    // A reset brings it back.
    guest.send(GET_VRING_BASE, &words([0, 0]), &[]);
    guest.receive();
    drop(guest);
    pair.all_alive();
    // The same head twice: the second while the first is not answered, or after; both must end.
    let mut guest = RawGuest::start(&pair.hostile.socket);
    let (header, status) = (guest.header(0, T_FLUSH, 0), guest.status(0));
    guest.set_desc(0, header);
    guest.set_desc(1, status);
    (0..QUEUE_SIZE).for_each(|_| guest.offer(0));
    guest.ring_kick();
    assert!(guest.is_told_error());
    drop(guest);
    pair.all_alive();
}

#[test]
fn memory_that_is_taken_away_ends_the_connection_and_nothing_else() {
    let mut pair = Pair::new();
    for round in 0..3 {
        let mut guest = RawGuest::start(&pair.hostile.socket);
        guest.check_io(0, round);
        let (header, status) = (guest.header(0, T_OUT, 0), guest.status(0));
        let data = desc(gpa(DATA), 4096, F_NEXT, 2);
        for (index, d) in [header, data, status].into_iter().enumerate() {
            guest.set_desc(index as u16, d);
        }
        guest.offer(0);
        // Cut off the data, then everything.
        guest.memory.set_len(if round == 0 { DATA } else { 0 }).unwrap();
        guest.ring_kick();
        assert!(guest.is_closed(), "round {round}");
        pair.all_alive();
    }
}
