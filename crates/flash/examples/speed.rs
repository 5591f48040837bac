//! A fixed amount of work on one drive: the rate, and every counter, so that two builds can be compared in both.
//!
//! `cargo run --release --example speed -- FTL GB LOAD AGE WRITES`: `GB` of flash with 7 % to spare is filled in order,
//! then written under `uniform`, `skewed` or `sequential`: `AGE` million pages, then `WRITES` million that are timed.
//! Processor time, to 10 ms: other work on the machine slows it through caches and clock only.

use std::process::ExitCode;

use afterimage_flash::counts::Cause;
use afterimage_flash::geometry::Geometry;
use afterimage_flash::workload::{Pattern, Random};
use afterimage_flash::{Config, Ftl, FtlKind, Lpn};

/// Pages handed over at once.
const BATCH: usize = 8192;

/// Processor time of this process, seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime, in ticks of 1/100 s.
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [ftl, gb, load, age, writes] = &args[..] else {
        eprintln!("usage: speed FTL GB LOAD AGE WRITES");
        return ExitCode::from(2);
    };
    let kind = FtlKind::ALL.into_iter().find(|k| k.name() == ftl).expect("an FTL");
    let blocks = 8192 * gb.parse::<u32>().expect("GB");
    let pattern = match load.as_str() {
        "uniform" => Pattern::Uniform,
        "skewed" => Pattern::Skewed,
        _ => Pattern::Sequential,
    };
    let millions = |text: &str| (text.parse::<f64>().expect("millions of pages") * 1e6) as u64;
    let (age, writes) = (millions(age), millions(writes));
    let config = Config { geometry: Geometry::small(blocks, 64), spare: 0.07, ..Config::default() };
    let mut ftl = config.build(kind, config.drive_blocks()).expect("a drive");
    let pages = ftl.logical_pages();
    for lpn in 0..pages {
        ftl.write(Lpn(lpn)).expect("room");
    }
    let mut random = Random::new(1);
    let mut batch = Vec::new();
    let mut run = |ftl: &mut dyn Ftl, from: u64, to: u64| {
        for start in (from..to).step_by(BATCH) {
            batch.clear();
            batch.extend((start..to.min(start + BATCH as u64)).map(|i| pattern.page(&mut random, i, pages)));
            ftl.write_all(&batch).expect("room");
        }
    };
    run(&mut *ftl, 0, age);
    ftl.flash_mut().reset_counters();
    let start = processor_seconds();
    run(&mut *ftl, age, age + writes);
    let seconds = processor_seconds() - start;
    let flash = ftl.flash();
    let counts = flash.counts();
    let amplification = counts.total().programs as f64 / counts.of(Cause::Host).programs as f64;
    let rate = writes as f64 / seconds / 1e6;
    eprintln!(
        "{rate:.2} M page writes/s, {:.1} M programs/s, write amplification {amplification:.2}",
        rate * amplification
    );
    println!("{counts:?} {:?} {} {:?}", flash.wear(), flash.busy_ns(), ftl.details());
    ExitCode::SUCCESS
}
