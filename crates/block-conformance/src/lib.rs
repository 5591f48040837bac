//! The suite that every [`Disk`] passes, whatever layer it is.
//!
//! Seeded random reads, writes, discards, zeroings and flushes of all sizes go to several lanes at once, from memory
//! split and misaligned in all ways; requests in flight overlap; bad requests must be refused and change nothing; lanes
//! are dropped with requests in flight. What reads return is compared with the [`Oracle`] all the
//! time, and the whole disk now and then and at the end. A test of the suite itself runs it on broken disks.

mod bytes;
mod engine;
mod memory;
pub mod oracle;
mod plan;
pub mod sim;

pub use bytes::Bytes;

use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::oracle::Oracle;
use afterimage_block::{BlockError, Blocking, Disk, ErrorKind, FlushKind, Sector};

use engine::Engine;
use plan::Plan;

/// The largest disk the suite takes, in sectors: it reads all of it often.
pub const SECTORS_MAX: u64 = 1 << 17;

/// How a disk broke its contract; the seed reproduces it.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed}, step {step}: {what}")]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// The step that noticed, from 0.
    pub step: usize,
    /// What was wrong.
    pub what: String,
}

/// Runs `steps` random steps on a writable disk with any content. Returns what the disk must hold afterwards, so that a
/// caller can compare it after closing and opening it again ([`compare`]).
///
/// # Errors
/// The disk did what no disk may.
///
/// # Panics
/// Where the disk is read-only or larger than [`SECTORS_MAX`].
pub fn run(seed: u64, steps: usize, make_disk: impl FnOnce() -> Arc<dyn Disk>) -> Result<Oracle, Violation> {
    let disk = make_disk();
    let sectors = disk.geometry().sectors;
    check_size(&disk);
    let mut engine =
        Engine::new(disk, seed, Plan { range: 0..sectors, disk_sectors: sectors, grain: 0, drops: true })?;
    engine.run(steps)?;
    engine.finish()
}

/// The same from `threads` threads at once, each with lanes of its own and its own part of the disk.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// As [`run`], and where a part would be empty.
pub fn run_threads(
    seed: u64,
    steps: usize,
    threads: u64,
    make_disk: impl FnOnce() -> Arc<dyn Disk>,
) -> Result<(), Violation> {
    let disk = make_disk();
    check_size(&disk);
    let sectors = disk.geometry().sectors;
    let grain = u64::from(disk.geometry().logical_block_bytes) / 512;
    let share = sectors / threads / grain * grain;
    assert!(share > 0, "a part for every thread");
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                let disk = Arc::clone(&disk);
                scope.spawn(move || {
                    let range = n * share..(n + 1) * share;
                    let plan = Plan { range, disk_sectors: sectors, grain: 0, drops: true };
                    let mut engine = Engine::new(disk, seed.wrapping_add(n), plan)?;
                    engine.run(steps)?;
                    engine.finish().map(|_| ())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().expect("a worker of the suite does not panic"))
    })
}

/// A read-only disk answers reads with its content, refuses every change, and lets flushes pass.
///
/// # Errors
/// The disk did what no read-only disk may.
pub fn run_read_only(seed: u64, disk: &Arc<dyn Disk>) -> Result<(), Violation> {
    let violation = |what: String| Violation { seed, step: 0, what };
    let failed = |what: &'static str| move |e: BlockError| violation(format!("{what}: {e}"));
    if !disk.geometry().read_only {
        return Err(violation("the disk does not say that it is read-only".into()));
    }
    check_size(disk);
    let mut lane = Blocking::new(disk.open_lane().map_err(failed("opening a lane"))?);
    let mut before = vec![0; disk.geometry().bytes() as usize];
    lane.read(Sector(0), &mut before).map_err(failed("reading"))?;
    let block = disk.geometry().logical_block_bytes as usize;
    let sectors = block as u64 / 512;
    let answers = [
        ("a write", lane.write(Sector(0), &vec![0x5a; block])),
        ("a flushed write", lane.write_flushed(Sector(0), &vec![0x5a; block])),
        ("a discard", lane.discard(Sector(0), sectors)),
        ("a zeroing", lane.write_zeroes(Sector(0), sectors, false)),
    ];
    for (what, answer) in answers {
        match answer {
            Err(e) if e.kind() == ErrorKind::ReadOnly => {}
            other => {
                return Err(violation(format!("{what} to a read-only disk was answered with {other:?}")))
            }
        }
    }
    for kind in [FlushKind::Order, FlushKind::Durable] {
        lane.flush(kind).map_err(failed("flushing a read-only disk"))?;
    }
    compare(seed, disk, &mut Oracle::new(0, &before))
}

/// Reads a quiet disk and compares it with what it must hold.
///
/// # Errors
/// It holds something else, or does not answer.
pub fn compare(seed: u64, disk: &Arc<dyn Disk>, oracle: &mut Oracle) -> Result<(), Violation> {
    let violation = |what: String| Violation { seed, step: 0, what };
    let range = oracle.range();
    let lane = disk.open_lane().map_err(|e| violation(format!("opening a lane: {e}")))?;
    let mut content = vec![0; ((range.end - range.start) * 512) as usize];
    let read = Blocking::new(lane).read(Sector(range.start), &mut content);
    read.map_err(|e| violation(format!("reading everything: {e}")))?;
    let now = oracle.now();
    oracle.check_read(range.start, &content, now).map_err(violation)
}

fn check_size(disk: &Arc<dyn Disk>) {
    let sectors = disk.geometry().sectors;
    assert!(sectors <= SECTORS_MAX, "the suite reads the whole disk often: {sectors} sectors are too many");
}

fn generator(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}
