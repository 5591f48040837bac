//! Random chains against a naive model of virtio 1.2 § 2.7.5: a map of bytes and a recursion without any care for speed.

use std::sync::Arc;

use proptest::prelude::*;

use crate::chain::{Chain, DESCRIPTORS_MAX};
use crate::memory::{GuestAddress, GuestMemory, Mapping, Region, UserAddress, Window};

const PAGE: u64 = 4096;
const TABLE_ENTRIES: u16 = 16;
/// Regions as (first page, pages): two that touch, one behind a hole.
const REGIONS: [(u64, u64); 3] = [(0, 1), (1, 2), (5, 1)];
const INDIRECT: u64 = 0x800;

#[derive(Clone, Copy, Debug)]
struct D {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

fn encode(d: D) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&d.address.to_le_bytes());
    bytes[8..12].copy_from_slice(&d.len.to_le_bytes());
    bytes[12..14].copy_from_slice(&d.flags.to_le_bytes());
    bytes[14..].copy_from_slice(&d.next.to_le_bytes());
    bytes
}

/// What the model says: the guest addresses read and written, where the status goes, whether anything is wrong.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    readable: u64,
    writable: u64,
    status: Option<u64>,
    faulty: bool,
}

fn is_memory(address: u64, len: u64) -> bool {
    (0..len).all(|i| {
        let Some(at) = address.checked_add(i) else { return false };
        REGIONS.iter().any(|(first, pages)| at / PAGE >= *first && at / PAGE < first + pages)
    })
}

fn model(ring: &[D], indirect: &[D], head: u16) -> Model {
    let mut order = Vec::new();
    let (mut table, mut index, mut inside) = (ring, head, false);
    let mut left = ring.len();
    let ended = loop {
        if left == 0 || usize::from(index) >= table.len() {
            break false;
        }
        left -= 1;
        let d = table[usize::from(index)];
        if d.flags & 4 != 0 {
            let bytes = indirect.len() as u64 * 16;
            let fits = is_memory(d.address, u64::from(d.len)) && one_region(d.address, u64::from(d.len));
            if inside || d.flags & 1 != 0 || d.len == 0 || d.len % 16 != 0 || !fits {
                break false;
            }
            // The generator points at the table or at garbage; only the table has content.
            assert!(d.address == INDIRECT && u64::from(d.len) <= bytes);
            table = &indirect[..d.len as usize / 16];
            left = table.len();
            inside = true;
            index = 0;
            continue;
        }
        order.push(d);
        if d.flags & 1 == 0 {
            break true;
        }
        index = d.next;
    };
    let mut m = Model { faulty: !ended, ..Model::default() };
    let mut wrote = false;
    let mut status = None;
    for d in order {
        let write = d.flags & 2 != 0;
        m.faulty |= wrote && !write;
        if write && d.len > 0 {
            wrote = true;
            status = d.address.checked_add(u64::from(d.len) - 1);
        }
        if is_memory(d.address, u64::from(d.len)) {
            *(if write { &mut m.writable } else { &mut m.readable }) += u64::from(d.len);
        } else {
            m.faulty = true;
        }
    }
    m.status = status.filter(|at| ended && is_memory(*at, 1));
    m
}

fn one_region(address: u64, len: u64) -> bool {
    REGIONS.iter().any(|(first, pages)| address >= first * PAGE && address + len <= (first + pages) * PAGE)
}

fn run(ring: &[D], indirect: &[D], head: u16) -> (Model, usize) {
    let mut memory = GuestMemory::default();
    let mut windows = Vec::new();
    for (first, pages) in REGIONS {
        let mapping = Arc::new(Mapping::anonymous((pages * PAGE) as usize).unwrap());
        windows.push(Window::new(&mapping, 0, (pages * PAGE) as usize, 16).unwrap());
        let (guest, user) = (GuestAddress(first * PAGE), UserAddress(first * PAGE));
        memory = memory.with_region(Region { guest, user, len: pages * PAGE, mapping }).unwrap();
    }
    for (at, table) in [(0, ring), (INDIRECT as usize, indirect)] {
        for (index, d) in table.iter().enumerate() {
            windows[0].write(at + 16 * index, &encode(*d));
        }
    }
    let memory = Arc::new(memory);
    let table = memory.window(GuestAddress(0), ring.len() * 16).unwrap();
    let mut chain = Chain::new(&memory);
    chain.walk(&memory, &table, head);
    let found = Model {
        readable: chain.readable.len(),
        writable: chain.writable.len(),
        status: chain.status.map(|at| at.0),
        faulty: chain.fault.is_some(),
    };
    (found, chain.readable.pieces() + chain.writable.pieces())
}

fn plain() -> impl Strategy<Value = D> {
    let address = prop_oneof![
        6 => 0..7 * PAGE,
        1 => Just(u64::MAX - 10),
        1 => (0..7u64).prop_map(|page| page * PAGE + PAGE - 5),
    ];
    let len = prop_oneof![4 => 0u32..600, 1 => Just(0), 1 => 4000u32..9000];
    (address, len, 0u16..4, 0..TABLE_ENTRIES + 1).prop_map(|(address, len, flags, next)| D {
        address,
        len,
        flags: flags | u16::from(next % 3 != 0),
        next,
    })
}

fn any_descriptor() -> impl Strategy<Value = D> {
    let indirect = (1u32..17, 0u16..8, 0..TABLE_ENTRIES).prop_map(|(entries, odd, next)| D {
        address: INDIRECT,
        len: entries * 16 - if odd == 0 { 1 } else { 0 },
        flags: 4 | u16::from(odd == 1),
        next,
    });
    prop_oneof![5 => plain(), 1 => indirect]
}

fn table() -> impl Strategy<Value = Vec<D>> {
    proptest::collection::vec(any_descriptor(), usize::from(TABLE_ENTRIES))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn a_walk_finds_what_the_model_finds(ring in table(), indirect in table(), head in 0..TABLE_ENTRIES) {
        let (found, pieces) = run(&ring, &indirect, head);
        prop_assert_eq!(found, model(&ring, &indirect, head));
        prop_assert!(pieces <= 3 * DESCRIPTORS_MAX);
    }

    #[test]
    fn no_memory_image_upsets_the_walker(mut image in proptest::collection::vec(any::<u8>(), 0..20_000), heads in 0u8..17) {
        if image.len() > 0x424 {
            // A few heads that exist, so that chains are walked and not only refused.
            image[0x402] = heads;
            image[0x403] = 0;
            (0..16).for_each(|i| {
                image[0x404 + 2 * i] %= 16;
                image[0x405 + 2 * i] = 0;
                image[16 * i + 14] %= 20;
                image[16 * i + 15] = 0;
                image[16 * i + 12] %= 8;
                image[16 * i + 10..16 * i + 12].fill(0);
                image[16 * i + 2..16 * i + 8].fill(0);
            });
        }
        crate::fuzz::chains(&image);
    }

    #[test]
    fn no_in_flight_region_upsets_recovery(mut image in proptest::collection::vec(any::<u8>(), 0..400)) {
        if image.len() > 18 {
            image[10] %= 3;
            image[11] = 0;
            image[12..14].copy_from_slice(&[16, 0]);
        }
        crate::fuzz::inflight(&image);
    }

    #[test]
    fn no_bytes_upset_framing_or_the_keeper(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz::frames(&bytes);
        crate::fuzz::keep(&bytes);
    }
}

proptest! {
    // Each case is a connection with its queues.
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn no_session_upsets_the_device(steps in proptest::collection::vec(any::<u8>(), 0..400)) {
        crate::fuzz::session(&steps, false);
        crate::fuzz::takeover(&steps, false);
    }
}

/// A guest that sets a queue up and is served, so that the lane above reaches what lies behind.
#[test]
fn a_well_behaved_session_is_served() {
    // Set queue 0 up, offer a write and a read, wait a little, stop. A busy machine may take longer to serve them.
    let steps = [0, 0, 3, 0, 1, 3, 3, 0, 0, 5, 8, 250, 8, 250, 5, 0];
    assert!((0..10_000).any(|_| crate::fuzz::session(&steps, false) == 2));
    // The same queue, as a keeper holds it.
    let steps = [1, 0, 0, 3, 0, 1, 3, 3, 0, 0, 5, 8, 250, 8, 250, 5, 0];
    assert!((0..10_000).any(|_| crate::fuzz::takeover(&steps, false) == 2));
}

/// What stock clients say, as `./x fuzz` begins with it: each has its one request answered.
#[test]
fn the_fuzzers_stock_clients_are_served() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/fuzz_session");
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|seed| seed.unwrap().path()).collect();
    assert_eq!(seeds.len(), 5);
    for seed in seeds {
        let steps = std::fs::read(&seed).unwrap();
        // A busy machine may take longer to serve it.
        assert!((0..1000).any(|_| crate::fuzz::session(&steps, false) == 1), "{}", seed.display());
    }
}
