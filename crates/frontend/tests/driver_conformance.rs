//! A well-behaved driver on several queues at depth 32: what it reads is what it wrote, in every operation.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/driver.rs"]
mod driver;
#[path = "support/memory_disk.rs"]
mod memory_disk;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use afterimage_frontend::{RequestKind, ServeOptions};
use daemon::serve;
use driver::{Ask, Driver, DriverQueue};
use memory_disk::MemoryDisk;

const BLOCK: usize = 4096;
const DEPTH: usize = 32;
const BLOCKS_PER_QUEUE: u64 = 512;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ z >> 27) % n
    }
}

/// Random operations on this queue's own blocks, never two at once on one block.
fn exercise(mut queue: DriverQueue, first: u64, seed: u64, operations: usize) -> DriverQueue {
    let mut random = Random(seed);
    let mut content = vec![0u8; BLOCKS_PER_QUEUE as usize];
    let mut slots: Vec<Option<(Ask, u64, u8)>> = vec![None; DEPTH];
    let mut busy = HashSet::new();
    let (mut asked, mut answered) = (0, 0);
    while answered < operations {
        for (slot, current) in slots.iter_mut().enumerate() {
            if current.is_some() || asked == operations {
                continue;
            }
            let block = random.below(BLOCKS_PER_QUEUE);
            if !busy.insert(block) {
                continue;
            }
            let ask = match random.below(10) {
                0 => Ask::Flush,
                1 => Ask::Discard,
                2 => Ask::WriteZeroes,
                3..=5 => Ask::Read,
                _ => Ask::Write,
            };
            let byte = random.below(255) as u8 + 1;
            queue.fill(slot, &[if ask == Ask::Write { byte } else { 0xee }; BLOCK]);
            queue.ask(ask, slot, (first + block) * BLOCK as u64, BLOCK);
            *current = Some((ask, block, byte));
            asked += 1;
        }
        queue.kick();
        for (slot, ret) in queue.wait() {
            let (ask, block, byte) = slots[slot].take().expect("answered once");
            assert_eq!(ret, 0, "{ask:?}");
            busy.remove(&block);
            answered += 1;
            let place = &mut content[block as usize];
            match ask {
                Ask::Write => *place = byte,
                Ask::Discard | Ask::WriteZeroes => *place = 0,
                Ask::Read => assert!(queue.take(slot, BLOCK).iter().all(|b| b == place), "block {block}"),
                Ask::Flush => {}
            }
        }
    }
    for block in 0..BLOCKS_PER_QUEUE {
        assert_eq!(queue.once(Ask::Read, 0, (first + block) * BLOCK as u64, BLOCK), 0);
        assert!(queue.take(0, BLOCK).iter().all(|b| *b == content[block as usize]));
    }
    queue
}

#[test]
fn four_queues_at_depth_32() {
    let queues = 4u16;
    let disk = Arc::new(MemoryDisk::new(u64::from(queues) * BLOCKS_PER_QUEUE * BLOCK as u64, false));
    let served = serve(disk, ServeOptions { queues, ..ServeOptions::default() });
    for connection in 0..2 {
        let driver = Driver::connect(&served.socket, usize::from(queues), 128, DEPTH, BLOCK);
        // The second connection finds what the first wrote, so it starts from zeroes again.
        let threads: Vec<_> = driver
            .queues
            .into_iter()
            .enumerate()
            .map(|(index, mut queue)| {
                std::thread::spawn(move || {
                    let first = index as u64 * BLOCKS_PER_QUEUE;
                    let bytes = BLOCKS_PER_QUEUE as usize * BLOCK;
                    assert_eq!(queue.once(Ask::WriteZeroes, 0, first * BLOCK as u64, bytes), 0);
                    exercise(queue, first, 100 * connection + index as u64, 4000)
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
    }
    let stats = served.stats.snapshot();
    assert!(stats.queues.iter().all(|q| q.interrupts > 0 && q.batches > 0));
    let asked: u64 = RequestKind::ALL.iter().map(|kind| stats.total(*kind).requests).sum();
    assert_eq!(asked, 2 * 4 * (4000 + 512 + 1));
    served.server.stop();
    assert!(served.server.finished() && !served.server.attached(Duration::ZERO));
}

#[test]
fn large_blocks_and_other_alignment_are_refused() {
    let disk = Arc::new(MemoryDisk::with_block(1 << 20, 4096, false));
    let served = serve(disk, ServeOptions::default());
    let mut driver = Driver::connect(&served.socket, 1, 128, 1, BLOCK);
    assert_eq!(u32::from(driver.transport.get_config().unwrap().blk_size), 4096);
    let queue = &mut driver.queues[0];
    assert_eq!(queue.once(Ask::Write, 0, 4096, 4096), 0);
    assert_eq!(queue.once(Ask::Write, 0, 512, 4096), -libc::EIO);
    assert_eq!(queue.once(Ask::Read, 0, 0, 512), -libc::EIO);
    assert_eq!(queue.once(Ask::Discard, 0, 0, 512), -libc::EIO);
}
