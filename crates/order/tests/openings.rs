//! Starts that fail one after another, and a power cut behind them: what was durable before stays so.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Disk as _, Medium, MediumDisk, Sector};
use afterimage_block_conformance::sim::{CrashOptions, SimWorld};
use afterimage_format::log::{ImageEntry, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, Config, Mutation, Redo, RedoDisk, TakeOverError};
use afterimage_order::{LoggedDisk, VirtualClock};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const DISK_BYTES: usize = 64 << 10;
/// As many blocks as fill the log behind the record that a process begins with.
const AREA_PAGES: usize = 8;
const WRITES: u8 = 5;

fn open(world: &SimWorld, incarnation: u64, mutation: Option<Mutation>) -> Result<Arc<Redo>, TakeOverError> {
    let homes: Vec<Arc<dyn Medium>> = vec![world.medium(1)];
    let (window, clock) = (Duration::from_millis(50), Arc::new(VirtualClock::default()));
    let config = Config::new(window, clock, world.medium(0), homes, incarnation);
    Redo::open(Config { mutation, ..config })
}

fn lane(core: &Arc<Redo>, world: &SimWorld) -> Blocking {
    let disk = RedoDisk::new(Arc::clone(core), LoggedDisk(0), Arc::new(MediumDisk::new(world.medium(1))));
    Blocking::new(disk.open_lane().expect("a lane"))
}

/// A full log whose records are durable, and a disk on which nothing of them is; and what guests read.
fn full() -> (SimWorld, Arc<Redo>, Vec<u8>) {
    let log_bytes = RECORDS_OFFSET as usize + AREA_PAGES * 4096;
    let world = SimWorld::new(vec![vec![0; log_bytes], vec![0; DISK_BYTES]]);
    let log: Arc<dyn Medium> = world.medium(0);
    let image = ImageEntry { size_bytes: (DISK_BYTES as u64).into(), ..ImageEntry::default() };
    create_medium(&log, &[world.medium(1)], &[image], &[], [1; 16], 1).expect("a log");
    let core = open(&world, 2, None).expect("a core");
    let mut lane = lane(&core, &world);
    for n in 0..WRITES {
        lane.write(Sector(u64::from(n) * 20), &[n + 1; 4096]).expect("a write");
    }
    core.syncer.sync().expect("healthy");
    let mut content = vec![0; DISK_BYTES];
    lane.read(Sector(0), &mut content).expect("a read");
    (world, core, content)
}

/// The first process dies within a round that gives space up; the next ones die at every operation of their starts, or live. None was
/// served by, so that each may be started again; then the power goes.
fn survives(mutation: Option<Mutation>) -> Result<(), String> {
    let mut died = 0;
    for round_ops in 0..12 {
        for (first, second) in (0..8).flat_map(|first| (0..8).map(move |second| (first, second))) {
            let (world, core, expected) = full();
            world.halt_after(round_ops);
            died += u32::from(core.going_home.round(core.log.area_bytes() / 2).is_err());
            drop(core);
            for (incarnation, ops) in [(3, first), (4, second)] {
                world.revive();
                world.halt_after(ops);
                drop(open(&world, incarnation, mutation));
            }
            for seed in 0..12 {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let left = world.crash(world.ops(), CrashOptions { torn: false }, &mut rng);
                let of =
                    format!("a round of {round_ops}, starts of {first} and {second} operations, cut {seed}");
                let core = open(&left, 5, None).map_err(|error| format!("{of}: {error}"))?;
                let mut found = vec![0; DISK_BYTES];
                lane(&core, &left).read(Sector(0), &mut found).expect("a read");
                if core.board.sequence.acknowledged.get().0 != u64::from(WRITES) || found != expected {
                    return Err(format!("{of}: something durable is lost"));
                }
            }
        }
    }
    assert!(died > 0);
    Ok(())
}

#[test]
fn what_was_durable_outlives_starts_that_fail() {
    assert_eq!(survives(None), Ok(()));
}

#[test]
fn a_start_that_believes_the_cache_is_found() {
    assert!(survives(Some(Mutation::SkipOpenSync)).is_err());
}
