//! Loads a vhost-user-blk socket without a guest: `drive SOCKET read|write DEPTH SECONDS [QUEUES]`, 4 KiB random.
//!
//! Prints requests per second, the CPU time of this process per request, and the mean latency.

use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../tests/support/driver.rs"]
mod driver;

use driver::{Ask, Driver, DriverQueue};

const BLOCK_BYTES: usize = 4096;

fn run(mut queue: DriverQueue, ask: Ask, depth: usize, time: Duration, blocks: u64, seed: u64) -> u64 {
    let mut state = seed;
    let mut next = move || {
        // SplitMix64: any spread of offsets will do.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ z >> 31) % blocks * BLOCK_BYTES as u64
    };
    for slot in 0..depth {
        queue.ask(ask, slot, next(), BLOCK_BYTES);
    }
    queue.kick();
    let (start, mut done) = (Instant::now(), 0);
    let mut in_flight = depth;
    while in_flight > 0 {
        let more = start.elapsed() < time;
        for (slot, ret) in queue.wait() {
            assert_eq!(ret, 0, "a request failed");
            done += 1;
            in_flight -= 1;
            if more {
                queue.ask(ask, slot, next(), BLOCK_BYTES);
                in_flight += 1;
            }
        }
        queue.kick();
    }
    done
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, kind, depth, seconds, rest @ ..] = args.as_slice() else {
        return Err("usage: drive SOCKET read|write DEPTH SECONDS [QUEUES]".into());
    };
    let ask = if kind == "read" { Ask::Read } else { Ask::Write };
    let (depth, time) = (depth.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let queues = rest.first().map_or(Ok(1), |q| q.parse())?;
    let driver = Driver::connect(Path::new(socket), queues, 128, depth, BLOCK_BYTES);
    let capacity = u64::from(driver.transport.get_config()?.capacity);
    let blocks = capacity / 8;
    let start = Instant::now();
    let threads: Vec<_> = driver
        .queues
        .into_iter()
        .enumerate()
        .map(|(seed, queue)| std::thread::spawn(move || run(queue, ask, depth, time, blocks, seed as u64)))
        .collect();
    let done: u64 = threads.into_iter().map(|t| t.join().expect("a driver thread")).sum();
    let elapsed = start.elapsed().as_secs_f64();
    let rate = done as f64 / elapsed;
    println!(
        "{kind} depth {depth} queues {queues}: {rate:.0} IOPS, mean latency {:.2} µs",
        (depth * queues) as f64 / rate * 1e6
    );
    Ok(())
}
