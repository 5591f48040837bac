//! Logs that lie.

use afterimage_journal::layout::superblock::Features;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::{parse, LogGeometry, Parsed};
use afterimage_journal::{AreaBlock, FsBlock, JournalError, Tid, BLOCK_BYTES};
use proptest::prelude::*;

use crate::generated::{chain, homes, log};

fn geometry(features: Features) -> LogGeometry {
    LogGeometry {
        first: AreaBlock(1),
        maxlen: 64,
        features,
        uuid: [7; 16],
        fs_blocks: 10_000,
        forbidden: vec![(FsBlock(500), FsBlock(564))],
    }
}

fn v3() -> Features {
    Features { csum_v3: true, bits64: true, revoke: true, ..Features::default() }
}

fn draft(homes: &[u64]) -> Draft {
    Draft {
        logged: homes.iter().map(|home| (FsBlock(*home), Box::new([*home as u8; BLOCK_BYTES]))).collect(),
        ..Draft::default()
    }
}

const TAIL: (AreaBlock, Tid) = (AreaBlock(1), Tid(9));

fn encoded(geometry: &LogGeometry, drafts: &[Draft]) -> Encoder {
    let mut encoder = Encoder::new(geometry, TAIL.0, TAIL.1);
    for draft in drafts {
        encoder.transaction(draft);
    }
    encoder
}

fn why(geometry: &LogGeometry, encoder: &mut Encoder) -> String {
    match parse(encoder, geometry, TAIL.0, TAIL.1) {
        Err(JournalError::Corrupt(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn homes_outside_the_file_system_or_inside_the_journal_are_refused() {
    for features in [Features::default(), v3()] {
        let geometry = geometry(features);
        for home in [500, 563, 10_000, u64::from(u32::MAX)] {
            let mut encoder = encoded(&geometry, &[draft(&[3, home, 4])]);
            assert!(why(&geometry, &mut encoder).contains("nobody's home"));
            assert!(replay(&mut encoder, &geometry, TAIL.0, TAIL.1).is_err());
            // Without its commit block it is nothing at all.
            let unfinished = Draft { uncommitted: true, ..draft(&[3, home, 4]) };
            let mut encoder = encoded(&geometry, &[unfinished]);
            assert_eq!(parse(&mut encoder, &geometry, TAIL.0, TAIL.1).unwrap(), Parsed::Incomplete);
        }
        for home in [499, 564, 9_999, 0] {
            let mut encoder = encoded(&geometry, &[draft(&[home])]);
            assert_eq!(chain(&mut encoder, &geometry, TAIL).0.len(), 1);
        }
        let revoked = Draft { revokes: vec![FsBlock(10_000)], ..Draft::default() };
        assert!(why(&geometry, &mut encoded(&geometry, &[revoked])).contains("revoked block 10000"));
    }
}

#[test]
fn descriptors_do_not_run_round_the_log() {
    for features in [Features::default(), v3()] {
        let geometry = geometry(features);
        // 62 logged blocks and a descriptor leave no room for the commit block.
        let homes: Vec<u64> = (0..62).collect();
        let mut encoder = encoded(&geometry, &[Draft { uncommitted: true, ..draft(&homes) }]);
        assert!(why(&geometry, &mut encoder).contains("length of the log"));
        let mut encoder = encoded(&geometry, &[draft(&homes[..61])]);
        let found = chain(&mut encoder, &geometry, TAIL).0;
        assert_eq!((found.len(), found[0].blocks, found[0].next), (1, 63, AreaBlock(1)));
    }
    // Nothing but revoke blocks of one transaction, round and round.
    let geometry = geometry(Features::default());
    let mut encoder = encoded(&geometry, &[Draft { revokes: vec![FsBlock(1)], ..draft(&[]) }]);
    let revoke = encoder.blocks[&AreaBlock(1)].clone();
    encoder.blocks = (1..64).map(|at| (AreaBlock(at), revoke.clone())).collect();
    assert!(why(&geometry, &mut encoder).contains("length of the log"));
    assert_eq!(replay(&mut encoder, &geometry, TAIL.0, TAIL.1).unwrap().transactions, 0);
}

#[test]
fn forged_checksums_are_refused() {
    let geometry = geometry(v3());
    let drafts = [Draft { revokes: vec![FsBlock(77)], ..draft(&[3, 4]) }];
    let whole = encoded(&geometry, &drafts);
    // Revoke block, descriptor, two logged blocks, commit block.
    for (at, offset) in [(1, 4095), (1, 20), (2, 4095), (2, 24), (3, 100), (4, 4095), (5, 16), (5, 50)] {
        let mut encoder = whole.clone();
        encoder.blocks.get_mut(&AreaBlock(at)).unwrap()[offset] ^= 1;
        assert!(why(&geometry, &mut encoder).contains("checksum"), "block {at}");
        assert!(replay(&mut encoder, &geometry, TAIL.0, TAIL.1).map_or(true, |r| r.writes.len() < 2));
    }
    // A log under another UUID is an earlier file system's, not a broken one.
    let other = LogGeometry { uuid: [8; 16], ..geometry.clone() };
    assert_eq!(parse(&mut whole.clone(), &other, TAIL.0, TAIL.1).unwrap(), Parsed::Incomplete);
    let mut alone = encoded(&geometry, &[Draft::default()]);
    assert_eq!(chain(&mut alone, &geometry, TAIL).0.len(), 1);
    assert_eq!(parse(&mut alone, &other, TAIL.0, TAIL.1).unwrap(), Parsed::Incomplete);
}

#[test]
fn impossible_positions_and_lengths_are_refused() {
    let geometry = geometry(Features::default());
    let mut encoder = encoded(&geometry, &[Draft { revokes: vec![FsBlock(5)], ..draft(&[3]) }]);
    for at in [0, 64, 65, u32::MAX] {
        assert!(matches!(
            parse(&mut encoder, &geometry, AreaBlock(at), TAIL.1),
            Err(JournalError::Corrupt(_))
        ));
        assert!(replay(&mut encoder, &geometry, AreaBlock(at), TAIL.1).is_err());
    }
    for (first, maxlen) in [(0, 0), (64, 64), (u32::MAX, u32::MAX), (9, 3)] {
        let geometry = LogGeometry { first: AreaBlock(first), maxlen, ..geometry.clone() };
        assert!(parse(&mut encoder, &geometry, AreaBlock(first), TAIL.1).is_err());
    }
    for count in [0u32, 15, 4097, u32::MAX] {
        let mut encoder = encoder.clone();
        encoder.blocks.get_mut(&AreaBlock(1)).unwrap()[12..16].copy_from_slice(&count.to_be_bytes());
        assert!(why(&geometry, &mut encoder).contains("no possible length"));
    }
    let both = Features { checksum: true, ..v3() };
    assert!(parse(&mut encoder, &LogGeometry { features: both, ..geometry }, TAIL.0, TAIL.1).is_err());
}

#[test]
fn a_revoke_and_a_tag_of_one_transaction() {
    let geometry = geometry(v3());
    let second = Draft { revokes: vec![FsBlock(3), FsBlock(4)], ..draft(&[3, 5]) };
    let mut encoder = encoded(&geometry, &[draft(&[3, 4]), second, draft(&[4])]);
    let (found, error) = chain(&mut encoder, &geometry, TAIL);
    assert!(error.is_none());
    let homes = homes(&mut encoder, &found);
    let mut blocks: Vec<u64> = homes.keys().map(|home| home.0).collect();
    blocks.sort_unstable();
    assert_eq!(blocks, [4, 5], "3 was revoked with its own transaction, 4 logged again after its revoke");
    assert_eq!(replay(&mut encoder, &geometry, TAIL.0, TAIL.1).unwrap().homes(), homes);
}

#[derive(Clone, Debug)]
enum Hit {
    Byte(u8),
    Copy(u32),
    Bit(u8),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// No panic, no home out of range (`chain` asserts that); and where parser and recovery both see a sound log, the
    /// same one.
    #[test]
    fn damaged_logs(
        log in log(),
        hits in prop::collection::vec((any::<u32>(), any::<prop::sample::Index>(), prop_oneof![
            any::<u8>().prop_map(Hit::Byte),
            any::<u32>().prop_map(Hit::Copy),
            (0u8..8).prop_map(Hit::Bit),
        ]), 1..5),
        end in prop_oneof![Just(64usize), Just(BLOCK_BYTES)],
    ) {
        let mut view = log.encoder.clone();
        let blocks = log.geometry.log_blocks();
        let place = |at: u32| AreaBlock(log.geometry.first.0 + at % blocks);
        for (at, offset, hit) in hits {
            let from = match hit {
                Hit::Copy(from) => view.blocks.get(&place(from)).cloned(),
                _ => None,
            };
            let block = view.blocks.entry(place(at)).or_insert_with(|| Box::new([0; BLOCK_BYTES]));
            match hit {
                Hit::Byte(byte) => block[offset.index(end)] = byte,
                Hit::Bit(bit) => block[offset.index(end)] ^= 1 << bit,
                Hit::Copy(_) => *block = from.unwrap_or_else(|| Box::new([0; BLOCK_BYTES])),
            }
        }
        let (found, error) = chain(&mut view, &log.geometry, log.tail);
        let replayed = replay(&mut view, &log.geometry, log.tail.0, log.tail.1);
        if let (None, Ok(replayed)) = (error, replayed) {
            let all: u32 = found.iter().map(|t| t.blocks).sum();
            let features = log.geometry.features;
            // With `async_commit` a logged block that does not fit its tag's checksum may not be here yet. Recovery does
            // not look at that of a revoked one.
            let unseen = features.async_commit && (features.csum_v2 || features.csum_v3);
            if unseen && found.len() < replayed.transactions as usize {
                return Ok(());
            }
            if replayed.damaged.is_empty() && all <= blocks {
                prop_assert_eq!(replayed.transactions as usize, found.len());
                prop_assert_eq!(replayed.homes(), homes(&mut view, &found));
            }
        }
    }
}
