//! Page writes simulated per second of processor time (other work on the machine does not count). `cargo run --release --example speed -- FTL BLOCKS SECONDS [PATTERN] [SPARE] [local]`

use std::time::Instant;

use afterimage_flash::geometry::Geometry;
use afterimage_flash::workload::{Pattern, Random};
use afterimage_flash::{Config, FtlKind, Lpn};

/// Processor time of this process, seconds, to 10 ms.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime, in ticks of 1/100 s.
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let get = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.to_owned());
    let kind = FtlKind::ALL.into_iter().find(|k| k.name() == get(0, "page")).expect("an FTL");
    let blocks: u32 = get(1, "8192").parse().expect("blocks");
    let seconds: f64 = get(2, "3").parse().expect("seconds");
    let patterns: Vec<Pattern> = match get(3, "all").as_str() {
        "uniform" => vec![Pattern::Uniform],
        "skewed" => vec![Pattern::Skewed],
        "sequential" => vec![Pattern::Sequential],
        _ => Pattern::ALL.to_vec(),
    };
    for pattern in patterns {
        let mut config = Config {
            geometry: Geometry::small(blocks, 64),
            spare: get(4, "0.07").parse().expect("a share"),
            ..Config::default()
        };

        config.superblock.local_first = get(5, "") == "local";
        let mut ftl = config.build(kind, config.drive_blocks()).expect("a drive");
        let pages = ftl.logical_pages();
        for lpn in 0..pages {
            ftl.write(Lpn(lpn)).expect("room");
        }
        let mut random = Random::new(1);
        let mut writes = 0_u64;
        // Ageing: until the write amplification has settled, a third of the time.
        let mut rate = 0.0;
        for share in [0.33, 0.67] {
            ftl.flash_mut().reset_counters();
            let (start, busy) = (Instant::now(), processor_seconds());
            let before = writes;
            while start.elapsed().as_secs_f64() < seconds * share {
                for _ in 0..4096 {
                    ftl.write(pattern.page(&mut random, writes, pages)).expect("room");
                    writes += 1;
                }
            }
            rate = (writes - before) as f64 / (processor_seconds() - busy);
        }
        let counts = ftl.flash().counts();
        let wa =
            counts.total().programs as f64 / counts.of(afterimage_flash::counts::Cause::Host).programs as f64;
        println!("{kind} {blocks} blocks {pattern:?}: {:.2} M page writes/s, {:.1} M programs/s, write amplification {wa:.2}", rate / 1e6, rate * wa / 1e6);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("no VmHWM"));
}
