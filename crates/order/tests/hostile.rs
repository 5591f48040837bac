//! A log is read as hostile bytes: whatever they are, nothing panics, and memory stays within bounds.

use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_block_conformance::sim::SimWorld;
use afterimage_format::log::{LogHeader, RecordHeader, PAGE_BYTES, RECORDS_OFFSET};
use afterimage_fuzz_kit::redo_log::{fuzz_log, sample_log};
use afterimage_order::redo::scan;
use proptest::prelude::*;

const AREA_PAGES: usize = 8;

#[test]
fn the_undamaged_log_is_read() {
    let world = SimWorld::new(vec![sample_log()]);
    let log: Arc<dyn Medium> = world.medium(0);
    let found = scan(&log).expect("sound");
    assert_eq!(found.sequence.0, 24);
    assert!(found.header.has_sets() && found.records.iter().any(|r| r.more));
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
        (0..24usize, 12..64usize, any::<u8>()).prop_map(|(n, at, by)| Damage::Record(n, at, by)),
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
        let mut log = sample_log();
        damages.iter().for_each(|d| apply(&mut log, d));
        fuzz_log(&log);
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..40_000)) {
        fuzz_log(&noise);
    }
}
