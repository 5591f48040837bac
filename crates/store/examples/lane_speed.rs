//! Drives one lane at a fixed depth and prints what it reached: the store alone, without virtio.
//!
//! `lane_speed FILE read|write DEPTH SECONDS [BYTES]`

use std::time::{Duration, Instant};

use afterimage_block::{Buffers, Disk, Operation, Request, Sector, Token};
use afterimage_store::{ImageStore, OpenOptions};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, kind, depth, seconds, rest @ ..] = args.as_slice() else {
        eprintln!("usage: lane_speed FILE read|write DEPTH SECONDS [BYTES]");
        return;
    };
    let depth: u64 = depth.parse().expect("a depth");
    let seconds: f64 = seconds.parse().expect("seconds");
    let bytes: usize = rest.first().map_or(4096, |b| b.parse().expect("bytes"));
    let disk = ImageStore::open(&OpenOptions::new(path)).expect("an image");
    let mut lane = disk.open_lane().expect("a lane");
    let buffers: Vec<Buffers> = (0..depth).map(|_| Buffers::allocate(bytes)).collect();
    let blocks = disk.geometry().bytes() / bytes as u64;
    let sectors = bytes as u64 / 512;
    let write = kind == "write";
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |token: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        Request {
            token: Token(token),
            operation: if write { Operation::Write { flushed: false } } else { Operation::Read },
            sector: Sector(random % blocks * sectors),
            sectors,
            buffers: buffers[token as usize].share(),
        }
    };
    for token in 0..depth {
        lane.submit(next(token));
    }
    let start = Instant::now();
    let mut completions = Vec::new();
    let (mut finished, mut waits) = (0u64, 0u64);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        lane.dispatch();
        lane.reap(&mut completions);
        if completions.is_empty() {
            lane.wait(&[], None).expect("waiting");
            waits += 1;
            continue;
        }
        for completion in completions.drain(..) {
            completion.result.expect("a good answer");
            finished += 1;
            lane.submit(next(completion.token.0));
        }
    }
    let wall = start.elapsed().as_secs_f64();
    let usage = rustix_usage();
    println!(
        "direct={} {kind} depth {depth}: {:.0} IOPS, {:.2} µs CPU a request, {:.1} requests a wait",
        disk.is_direct(),
        finished as f64 / wall,
        usage * 1e6 / finished as f64,
        finished as f64 / waits.max(1) as f64
    );
}

/// CPU seconds of this process.
fn rustix_usage() -> f64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("rusage");
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}
