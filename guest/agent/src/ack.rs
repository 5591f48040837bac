//! `ack-write`: write, fsync, and only then say so.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use afterimage_protocol::report::{Ack, AckDone, AckWrite, Agent, Failed};

use crate::args::{invalid, Arguments, SIZE_BYTES_MAX};
use crate::record::{Record, SIZE_BYTES_MIN};
use crate::report::{Latencies, Report};
use crate::sys;

struct Plan {
    records_max: u64,
    end_ns: u64,
    size_bytes: usize,
    /// A ring of this many records per file; 0 appends.
    slots: u64,
    /// What a thread waits before it begins its next record.
    pause: Duration,
}

/// Where a thread's records go.
enum Place {
    /// All into one file.
    File(File),
    /// Each into a file of its own in this directory, with a name so long that few fill one of the directory's blocks.
    Directory(PathBuf),
}

/// The numbers that have been handed out and those that the host has been told.
struct Numbers {
    next: AtomicU64,
    acknowledged: Mutex<Acknowledged>,
}

struct Acknowledged {
    floor: u64,
    above: BTreeSet<u64>,
}

impl Numbers {
    fn floor(&self) -> u64 {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).floor
    }

    fn acknowledge(&self, number: u64) {
        let mut known = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        known.above.insert(number);
        while known.above.first() == Some(&(known.floor + 1)) {
            known.above.pop_first();
            known.floor += 1;
        }
    }
}

/// Runs the workload.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let directory = arguments.word("the directory to write in")?;
    let records = arguments.number("records")?;
    let seconds = arguments.number("seconds")?;
    let size_bytes = arguments.number_up_to("size", SIZE_BYTES_MAX)?.unwrap_or(4096) as usize;
    let threads = arguments.number("threads")?.unwrap_or(1).max(1);
    let slots = arguments.number("slots")?.unwrap_or(0);
    let a_file_each = arguments.flag("files")?;
    let pause = Duration::from_micros(arguments.number("pause-us")?.unwrap_or(0));
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    if size_bytes < SIZE_BYTES_MIN || size_bytes % 8 != 0 {
        return Err(invalid(format!("--size wants a multiple of 8, at least {SIZE_BYTES_MIN}")));
    }
    if a_file_each && slots > 0 {
        return Err(invalid(
            "--slots writes into the same files again, and --files into new ones: give one of them"
                .to_owned(),
        ));
    }
    if records.is_none() && seconds.is_none() {
        return Err(invalid("give --records or --seconds: the workload needs an end".to_owned()));
    }
    let start_ns = sys::monotonic_ns();
    let plan = Plan {
        records_max: records.unwrap_or(u64::MAX - 1),
        end_ns: seconds.map_or(u64::MAX, |s| start_ns.saturating_add(s.saturating_mul(1_000_000_000))),
        size_bytes,
        slots,
        pause,
    };
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    let mut places = Vec::new();
    for thread in 0..threads {
        if a_file_each {
            places.push(Place::Directory(directory.to_owned()));
            continue;
        }
        // A ring's name says so: there a later record takes an earlier one's place.
        let kind = if slots > 0 { "ring" } else { "records" };
        let path = directory.join(format!("{kind}-{thread}-{size_bytes}"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.sync_all()?;
        places.push(Place::File(file));
    }
    // The names must be as safe as the records that are going to be acknowledged in them.
    for ancestor in directory.ancestors().take(2).filter(|a| !a.as_os_str().is_empty()) {
        File::open(ancestor)?.sync_all()?;
    }
    report.say(&Agent::AckWrite(AckWrite { threads, size: size_bytes as u64, slots, ns: start_ns }))?;

    let numbers = Numbers {
        next: AtomicU64::new(1),
        acknowledged: Mutex::new(Acknowledged { floor: 0, above: BTreeSet::new() }),
    };
    let mut latencies = Latencies::default();
    let mut failure = None;
    thread::scope(|scope| {
        let workers: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(thread, place)| {
                let (plan, numbers, report) = (&plan, &numbers, &report);
                scope.spawn(move || write_records(thread as u32, place, plan, numbers, report))
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(Ok(part)) => latencies.merge(part),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(io::Error::other("a writer thread died")),
            }
        }
    });
    if let Some(error) = failure {
        report.say(&Agent::Failed(Failed { what: "ack-write".to_owned(), error: error.to_string() }))?;
        return Err(error);
    }
    let elapsed_ns = sys::monotonic_ns() - start_ns;
    let acknowledged = numbers.floor();
    report.say(&Agent::AckDone(AckDone { acknowledged, elapsed_ns, fsync: latencies.summary() }))
}

fn write_records(
    thread: u32,
    place: &Place,
    plan: &Plan,
    numbers: &Numbers,
    report: &Report,
) -> io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut buffer = vec![0; plan.size_bytes];
    for count in 0.. {
        if sys::monotonic_ns() >= plan.end_ns {
            break;
        }
        let slot = if plan.slots == 0 { count } else { count % plan.slots } as u32;
        // The floor is read before the number is taken: whatever it covers was reported before this write.
        let floor = numbers.floor();
        let number = numbers.next.fetch_add(1, Ordering::SeqCst);
        if number > plan.records_max {
            break;
        }
        Record { number, floor, thread, slot }.encode(&mut buffer);
        let of_its_own;
        let (file, at) = match place {
            Place::File(file) => (file, u64::from(slot) * plan.size_bytes as u64),
            Place::Directory(directory) => {
                let name = format!("record-{thread}-{}-{slot:0>180}", plan.size_bytes);
                of_its_own = File::create_new(directory.join(name))?;
                (&of_its_own, 0)
            }
        };
        file.write_all_at(&buffer, at)?;
        let before_ns = sys::monotonic_ns();
        file.sync_all()?;
        let after_ns = sys::monotonic_ns();
        latencies.add(after_ns - before_ns);
        let fsync_ns = after_ns - before_ns;
        report.say(&Agent::Ack(Ack {
            n: number,
            thread,
            slot: u64::from(slot),
            floor,
            ns: after_ns,
            fsync_ns,
        }))?;
        numbers.acknowledge(number);
        if !plan.pause.is_zero() {
            thread::sleep(plan.pause);
        }
    }
    Ok(latencies)
}
