//! What the redo log costs: 4 KiB random writes at depth 32 through each contract's layer, with a flush every 1,000.
//!
//! `cargo run --release -p afterimage-order --example append_cost -- FOLDER [SECONDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Buffers, FlushKind, Operation, Request, Sector, Token};
use afterimage_order::{Contract, Group, GroupOptions};
use afterimage_store::{create_image, DirectMode, ImageStore, OpenOptions};

const IMAGE_BYTES: u64 = 1 << 30;
const DEPTH: u64 = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = tempfile::tempdir_in(arguments.next().ok_or("which folder?")?)?;
    let seconds: f64 = arguments.next().map_or(Ok(3.0), |s| s.parse())?;
    let window = Contract::PowerWindow { window: Duration::from_millis(50) };
    for round in 0..2 {
        for contract in [Contract::GuestCrash, window, Contract::Power] {
            let path = folder.path().join("image");
            if !path.exists() {
                create_image(&path, IMAGE_BYTES)?;
            }
            let options =
                OpenOptions { direct: DirectMode::Off, any_content: true, ..OpenOptions::new(&path) };
            let image = ImageStore::open(&options)?;
            let group = Group::open(vec![image], GroupOptions::new(contract))?;
            for (kind, operation) in
                [("write", Operation::Write { flushed: false }), ("read", Operation::Read)]
            {
                let (ns, cpu_ns) = drive(&group, operation, seconds)?;
                let status = group.status();
                println!(
                    "round {round} {contract:>18} {kind:>5}: {ns:7.0} ns a request, {cpu_ns:6.0} ns of the queue thread's CPU; log syncs {}, throttled {}, home {} MiB",
                    status.log_syncs,
                    status.throttled,
                    status.home_written_bytes >> 20
                );
            }
            group.close()?;
        }
    }
    Ok(())
}

fn drive(
    group: &Arc<Group>,
    operation: Operation,
    seconds: f64,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let mut lane = group.disks()[0].open_lane()?;
    let buffers: Vec<Buffers> = (0..DEPTH).map(|i| Buffers::from_bytes(&[i as u8; 4096])).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut completions = Vec::new();
    let (mut submitted, mut done) = (0u64, 0u64);
    let mut free: Vec<u64> = (0..DEPTH).collect();
    let started = Instant::now();
    let cpu_started = cpu_time();
    while started.elapsed().as_secs_f64() < seconds {
        while let Some(token) = free.pop() {
            submitted += 1;
            let flush = submitted % 1000 == 0 && operation != Operation::Read;
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (state >> 33) % (IMAGE_BYTES / 4096);
            lane.submit(Request {
                token: Token(token),
                operation: if flush { Operation::Flush(FlushKind::Order) } else { operation },
                sector: Sector(if flush { 0 } else { block * 8 }),
                sectors: if flush { 0 } else { 8 },
                buffers: if flush { Buffers::empty() } else { buffers[token as usize].share() },
            });
        }
        lane.dispatch();
        lane.reap(&mut completions);
        if completions.is_empty() {
            lane.wait(&[], Some(Duration::from_millis(100)))?;
        }
        for completion in completions.drain(..) {
            completion.result?;
            done += 1;
            free.push(completion.token.0);
        }
    }
    let ns = started.elapsed().as_nanos() as f64 / done as f64;
    let cpu_ns = (cpu_time() - cpu_started).as_nanos() as f64 / done as f64;
    while lane.in_flight() > 0 {
        lane.wait(&[], Some(Duration::from_millis(100)))?;
        lane.reap(&mut completions);
    }
    Ok((ns, cpu_ns))
}

fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
