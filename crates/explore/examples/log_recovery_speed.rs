//! How many crash states a second the daemon's own recovery takes: a synthetic guest stream on a 64 MiB disk, through a
//! redo log of 64 pages, without any recording file.
//!
//! `cargo run --release -p afterimage-explore --example log_recovery_speed [STATES [THREADS]]`

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_explore::enumerate::Enumeration;
use afterimage_explore::layers::{replay, synthetic, LayersOptions, Synthetic};
use afterimage_explore::log_recovery::{LogRecovery, RecoveryOptions};
use afterimage_explore::model::{cuts, Cut, Model};
use afterimage_explore::own::OwnRecovery as _;
use afterimage_explore::prefix::Prefixes;
use afterimage_explore::stream::Stream;
use afterimage_trace::Layer;
use rustix::time::{clock_gettime, ClockId};

/// What this thread has computed so far: on a machine with other work, the only time that says something.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let states = arguments.next().unwrap_or(100_000);
    let threads = arguments.next().unwrap_or(2);
    let shape = Synthetic {
        disk_sectors: vec![64 << 11],
        rounds: 400,
        write_sectors_max: 64,
        hot_sectors: 16 << 11,
        align_sectors: 8,
        ..Synthetic::default()
    };
    let guest = synthetic(&shape, 1);
    let options = LayersOptions { log_area_bytes: 64 * 4096, ..LayersOptions::default() };
    let recording = replay(&guest, &options).expect("a replay");
    let stream = Stream::new(&recording, Layer::Storage).expect("a storage layer");
    let cuts = cuts(&stream, Model::Disk);
    let prefixes = Arc::new(Prefixes::of(&recording).expect("prefixes"));
    println!("{} requests, {} storage writes, {} cuts", prefixes.last(), stream.writes.len(), cuts.len());
    let plans: Vec<(&Cut, Enumeration<'_>)> =
        cuts.iter().map(|cut| (cut, Enumeration::new(&stream, cut, 1))).collect();
    let recovery = LogRecovery::new(prefixes, options.window, true, RecoveryOptions::default());
    let next = AtomicU64::new(0);
    let (building_ns, recovering_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (mut building, mut recovering) = (Duration::ZERO, Duration::ZERO);
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= states {
                        break;
                    }
                    let (cut, plan) = &plans[(n % plans.len() as u64) as usize];
                    let Some(choice) = plan.choice(n / plans.len() as u64) else { continue };
                    let started = computed();
                    let media = cut.state(&stream, &choice);
                    let built = computed();
                    let found = recovery.recover(media).expect("an honest run leaves nothing broken");
                    recovery
                        .promised(found.prefix, cut.event..=cut.event)
                        .expect("an honest run keeps the window rule");
                    drop(found);
                    building += built - started;
                    recovering += computed() - built;
                }
                building_ns.fetch_add(building.as_nanos() as u64, Ordering::Relaxed);
                recovering_ns.fetch_add(recovering.as_nanos() as u64, Ordering::Relaxed);
            });
        }
    });
    let took = begun.elapsed();
    let each = |total: AtomicU64| total.into_inner() as f64 / 1000.0 / states as f64;
    let (building_us, recovering_us) = (each(building_ns), each(recovering_ns));
    println!(
        "{states} states on {threads} threads in {:.2} s: {:.0} a second. Computing time of a state: {building_us:.1} µs to \
         build, {recovering_us:.1} µs to recover and judge: {:.0} a second on {threads} cores that do nothing else",
        took.as_secs_f64(),
        states as f64 / took.as_secs_f64(),
        threads as f64 * 1e6 / (building_us + recovering_us),
    );
}
