//! Entry points for fuzzing, and for what the ordinary tests run of it: each takes any bytes, does bounded work and must not
//! panic. It looks into the crate, and is built for tests and with the feature `testkit` only.

mod session;

use std::sync::Arc;

use afterimage_block::Geometry;

use crate::chain::Chain;
use crate::config::Features;
use crate::inflight::{queue_bytes, Region as InflightRegion};
use crate::memory::{GuestAddress, GuestMemory, Mapping, Region, UserAddress, Window};
use crate::request::{classify, Shape, Verdict};
use crate::ring::{Ring, RingAddresses};
use crate::wire::Framer;

pub use session::{session, takeover};

const PAGE: usize = 4096;
const QUEUE_SIZE: u16 = 16;
/// Where the second region starts: a hole behind the first, then memory that touches it from above.
const SECOND: u64 = 3 * PAGE as u64;
const THIRD: u64 = 4 * PAGE as u64;

fn memory_image(data: &[u8]) -> Option<GuestMemory> {
    let mut memory = GuestMemory::default();
    let mut rest = data;
    for (start, pages) in [(0u64, 2usize), (SECOND, 1), (THIRD, 1)] {
        let mapping = Arc::new(Mapping::anonymous(pages * PAGE).ok()?);
        let (now, later) = rest.split_at(rest.len().min(pages * PAGE));
        Window::new(&mapping, 0, now.len(), 1)?.write(0, now);
        rest = later;
        let region = Region {
            guest: GuestAddress(start),
            user: UserAddress(start),
            len: (pages * PAGE) as u64,
            mapping,
        };
        memory = memory.with_region(region).ok()?;
    }
    Some(memory)
}

/// A memory image whose first page holds a ring (descriptors at 0, available ring at 0x400, used ring at 0x800): every
/// head that the ring offers is fetched, walked and classified. Returns how many heads there were.
pub fn chains(data: &[u8]) -> usize {
    let Some(memory) = memory_image(data) else { return 0 };
    let memory = Arc::new(memory);
    let addresses = RingAddresses {
        descriptors: UserAddress(0),
        available: UserAddress(0x400),
        used: UserAddress(0x800),
    };
    let Some(mut ring) = Ring::new(&memory, &addresses, QUEUE_SIZE, true) else { return 0 };
    let geometry = Geometry {
        sectors: 64,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        discard_granularity_bytes: 4096,
        read_only: false,
    };
    let shape = Shape::new(geometry, Features::offered(&geometry), "fuzz");
    let (mut chain, mut ranges) = (Chain::new(&memory), Vec::new());
    let mut heads = 0;
    while let Ok(Some(head)) = ring.fetch() {
        chain.walk(&memory, ring.descriptors(), head);
        let verdict = classify(&chain, &shape, false, &mut ranges);
        match verdict {
            Verdict::Unanswerable => {}
            // Whoever is answered has a status byte in memory.
            Verdict::Answer { status, .. } => {
                assert!(chain.status.is_some_and(|at| memory.store_u8(at, status)));
            }
            Verdict::Submit { sector, sectors, buffers, .. } => {
                assert!(chain.status.is_some());
                assert_eq!(buffers.len() as u64, sectors * 512);
                geometry.check_range(sector, sectors).expect("only requests inside the disk go on");
            }
            Verdict::Ranges { .. } => {
                for range in &ranges {
                    geometry
                        .check_range(range.sector, range.sectors)
                        .expect("only ranges inside the disk go on");
                }
            }
        }
        heads += 1;
        ring.push_used(head, chain.writable.len() as u32);
        ring.publish();
        ring.wants_interrupt();
    }
    heads
}

/// Two bytes of used index, then a queue's in-flight region. Returns how many requests it would submit again.
pub fn inflight(data: &[u8]) -> usize {
    let Some((index, image)) = data.split_first_chunk::<2>() else { return 0 };
    let bytes = queue_bytes(QUEUE_SIZE);
    let Ok(mapping) = Mapping::anonymous(bytes) else { return 0 };
    let mapping = Arc::new(mapping);
    let image = &image[..image.len().min(bytes)];
    let Some(window) = Window::new(&mapping, 0, bytes, 8) else { return 0 };
    window.write(0, image);
    let Ok(region) = InflightRegion::new(mapping, 1, QUEUE_SIZE) else { return 0 };
    region.write_cache();
    let Some(queue) = region.queue(0, QUEUE_SIZE) else { return 0 };
    let index = u16::from_le_bytes(*index);
    let Ok(recovered) = queue.recover(index) else { return 0 };
    assert!(recovered.resubmit.len() <= usize::from(QUEUE_SIZE));
    // What was settled once is settled: asking again changes nothing.
    assert_eq!(queue.recover(index).map(|again| again.resubmit), Ok(recovered.resubmit.clone()));
    recovered.resubmit.len()
}

/// One datagram for the keeper, the first byte being how many descriptors came with it.
pub fn keep(data: &[u8]) -> bool {
    let Some((fds, bytes)) = data.split_first() else { return false };
    match crate::keep::wire::decode(bytes, usize::from(*fds)) {
        Ok(message) => {
            let again =
                crate::keep::wire::encode(&message, usize::from(*fds)).expect("what was decoded encodes");
            assert_eq!(again, bytes);
            true
        }
        Err(_) => false,
    }
}

/// A stream of vhost-user bytes; the first byte is the size of the pieces they arrive in. Returns how many messages
/// came out.
pub fn frames(data: &[u8]) -> usize {
    let Some((piece, mut rest)) = data.split_first() else { return 0 };
    let piece = usize::from(*piece).max(1);
    let (mut framer, mut found) = (Framer::default(), 0);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(piece.min(framer.wanted()).min(rest.len()));
        rest = later;
        match framer.push(now) {
            Ok(Some(frame)) => {
                found += 1;
                let mut again = Framer::default();
                let bytes = frame.encode();
                let (header, body) = bytes.split_at(crate::wire::HEADER_BYTES);
                let parsed = again.push(header).and_then(|whole| match whole {
                    Some(frame) => Ok(Some(frame)),
                    None => again.push(body),
                });
                assert_eq!(parsed, Ok(Some(frame)));
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
    found
}
