//! A log is read as hostile bytes: whatever they are, nothing panics, and memory stays within bounds.

use std::sync::Arc;

use afterimage_block::sim::SimWorld;
use afterimage_block::{Blocking, Disk as _, Medium, MediumDisk, Sector};
use afterimage_format::log::{ImageEntry, LogHeader, RecordHeader, PAGE_BYTES, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, fuzz_log, scan, Config, Core, RedoDisk};
use afterimage_order::VirtualClock;
use proptest::prelude::*;

const AREA_PAGES: usize = 8;
const DISK_BYTES: usize = 32 << 10;

/// A small log with records of every kind in it, over one image.
fn log_with_records() -> Vec<u8> {
    let world = SimWorld::new(vec![
        vec![0; RECORDS_OFFSET as usize + AREA_PAGES * PAGE_BYTES as usize],
        vec![0; DISK_BYTES],
    ]);
    let (log, home): (Arc<dyn Medium>, Arc<dyn Medium>) = (world.medium(0), world.medium(1));
    let image = ImageEntry { size_bytes: (DISK_BYTES as u64).into(), ..ImageEntry::default() };
    create_medium(&log, &[Arc::clone(&home)], &[image], &[], [1; 16], 2).expect("a log");
    let core = Core::open(Config {
        window: std::time::Duration::from_millis(50),
        clock: Arc::new(VirtualClock::default()),
        log,
        homes: vec![Arc::clone(&home)],
        incarnation: 3,
        mutation: None,
    })
    .expect("a core");
    let disk = RedoDisk::new(Arc::clone(&core), 0, Arc::new(MediumDisk::new(home)));
    let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
    for i in 0..6u64 {
        lane.write(Sector(i * 4), &[i as u8; 1024]).expect("a write");
        lane.discard(Sector(i), 2).expect("a discard");
        core.sync_once().expect("a sync");
        if i == 2 {
            core.checkpoint_once(5000).expect("a checkpoint");
        }
    }
    world.cached(0)
}

#[test]
fn the_undamaged_log_is_read() {
    let world = SimWorld::new(vec![log_with_records()]);
    let log: Arc<dyn Medium> = world.medium(0);
    let found = scan(&log).expect("sound");
    assert_eq!(found.sequence, 12);
    assert!(!found.records.is_empty());
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Fill(usize, usize, u8),
    /// Changes a field of a header and seals it again: what a checksum does not catch.
    Header(usize, u8),
    /// The same for the n-th record.
    Record(usize, usize, u8),
    Truncate(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let file = RECORDS_OFFSET as usize + AREA_PAGES * PAGE_BYTES as usize;
    prop_oneof![
        (0..file, any::<u8>()).prop_map(|(at, by)| Damage::Flip(at, by)),
        (0..file, 0..9000usize, any::<u8>()).prop_map(|(at, n, by)| Damage::Fill(at, n, by)),
        (16..120usize, any::<u8>()).prop_map(|(at, by)| Damage::Header(at, by)),
        (0..12usize, 12..64usize, any::<u8>()).prop_map(|(n, at, by)| Damage::Record(n, at, by)),
        (0..file).prop_map(Damage::Truncate),
    ]
}

fn apply(log: &mut Vec<u8>, damage: &Damage) {
    match *damage {
        Damage::Flip(at, by) if at < log.len() => log[at] ^= by,
        Damage::Fill(at, n, by) => {
            let end = (at + n).min(log.len());
            if at < end {
                log[at..end].fill(by);
            }
        }
        Damage::Header(at, by) => {
            for slot in [0, PAGE_BYTES as usize] {
                if log.len() < slot + PAGE_BYTES as usize {
                    continue;
                }
                log[slot + at] = by;
                let mut raw = [0; PAGE_BYTES as usize];
                raw.copy_from_slice(&log[slot..][..PAGE_BYTES as usize]);
                let header: LogHeader = zerocopy::transmute!(raw);
                log[slot..][..PAGE_BYTES as usize].copy_from_slice(&header.seal());
            }
        }
        Damage::Record(n, at, by) => {
            let start = RECORDS_OFFSET as usize;
            let found =
                (start..log.len().saturating_sub(64)).step_by(64).filter(|i| log[*i..][..4] == *b"AFIR");
            let Some(place) = found.collect::<Vec<_>>().get(n).copied() else { return };
            log[place + at] = by;
            let mut raw = [0; 64];
            raw.copy_from_slice(&log[place..][..64]);
            let mut record: RecordHeader = zerocopy::transmute!(raw);
            record.seal();
            log[place..][..64].copy_from_slice(zerocopy::IntoBytes::as_bytes(&record));
        }
        Damage::Truncate(len) => log.truncate(len),
        Damage::Flip(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn damaged_logs_never_panic(damages in proptest::collection::vec(damage(), 1..6)) {
        let mut log = log_with_records();
        damages.iter().for_each(|d| apply(&mut log, d));
        fuzz_log(&log);
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..40_000)) {
        fuzz_log(&noise);
    }
}
