//! Random valid logs in every format.

use std::collections::HashMap;

use afterimage_journal::layout::superblock::Features;
use afterimage_journal::log::encode::{Draft, Encoder, MAGIC_BYTES};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::{commit_tid, parse, AreaView, LogGeometry, Parsed, Transaction};
use afterimage_journal::versions::unescape;
use afterimage_journal::{AreaBlock, Block, FsBlock, JournalError, Tid, BLOCK_BYTES};
use proptest::prelude::*;

pub const FS_BLOCKS: u64 = 1 << 33;

/// Every format that a kernel writes.
pub fn features() -> impl Strategy<Value = Features> {
    (0..4, any::<bool>(), any::<bool>()).prop_map(|(checksums, bits64, async_commit)| Features {
        checksum: checksums == 1,
        revoke: true,
        bits64,
        async_commit,
        csum_v2: checksums == 2,
        csum_v3: checksums == 3,
    })
}

fn draft(bits64: bool) -> impl Strategy<Value = Draft> {
    // Few blocks, so that they are logged and revoked again; some past 32 bits.
    let high = if bits64 { 1u64 << 32 } else { 0 };
    let home = (0u64..12, prop_oneof![Just(0), Just(high)]).prop_map(|(low, high)| FsBlock(low | high));
    let content = (any::<u8>(), any::<bool>()).prop_map(|(fill, magic)| {
        let mut block: Box<Block> = Box::new([fill; BLOCK_BYTES]);
        if magic {
            block[..4].copy_from_slice(&MAGIC_BYTES);
        }
        block
    });
    (
        prop::collection::vec((home.clone(), content), 0..12),
        prop::collection::vec(home, 0..5),
        (any::<u32>(), any::<bool>(), prop::option::of(1usize..5), prop::option::of(1usize..3)),
    )
        .prop_map(|(logged, revokes, (sec, repeats_uuid, tags_max, revokes_max))| Draft {
            logged,
            revokes,
            commit_sec: u64::from(sec) << 8,
            tags_max,
            revokes_max,
            repeats_uuid,
            uncommitted: false,
        })
}

/// A log: geometry, tail, what was written.
#[derive(Clone, Debug)]
pub struct Log {
    pub geometry: LogGeometry,
    pub tail: (AreaBlock, Tid),
    pub drafts: Vec<Draft>,
    pub encoder: Encoder,
}

pub fn log() -> impl Strategy<Value = Log> {
    features().prop_flat_map(|features| {
        let drafts = prop::collection::vec(draft(features.bits64), 0..7);
        let tid = prop_oneof![any::<u32>(), Just(u32::MAX - 2)];
        (drafts, tid, 40u32..150, any::<u32>(), any::<[u8; 16]>()).prop_map(
            move |(mut drafts, tid, blocks, at, uuid)| {
                let first = AreaBlock(1 + at % 3);
                let geometry = LogGeometry {
                    first,
                    maxlen: first.0 + blocks,
                    features,
                    uuid,
                    fs_blocks: FS_BLOCKS,
                    forbidden: vec![(FsBlock(5000), FsBlock(6000))],
                };
                let tail = (AreaBlock(first.0 + at % blocks), Tid(tid));
                let mut encoder = Encoder::new(&geometry, tail.0, tail.1);
                let mut used = 0;
                let mut count = 0;
                for draft in &drafts {
                    let mut next = encoder.clone();
                    used += next.transaction(draft);
                    // As the kernel: the log never meets its own tail.
                    if used >= blocks {
                        break;
                    }
                    encoder = next;
                    count += 1;
                }
                drafts.truncate(count);
                Log { geometry, tail, drafts, encoder }
            },
        )
    })
}

/// Transactions from the tail on, as far as they are complete, and what stopped them.
pub fn chain(
    view: &mut dyn AreaView,
    geometry: &LogGeometry,
    tail: (AreaBlock, Tid),
) -> (Vec<Transaction>, Option<JournalError>) {
    let (mut at, mut tid, mut walked) = (tail.0, tail.1, 0);
    let mut all = Vec::new();
    loop {
        match parse(view, geometry, at, tid) {
            Ok(Parsed::Complete(found)) => {
                assert_eq!((found.start, found.tid), (at, tid));
                for tag in &found.tags {
                    assert!(tag.home.0 < geometry.fs_blocks && geometry.contains(tag.at));
                    assert!(!geometry.forbidden.iter().any(|(a, b)| (*a..*b).contains(&tag.home)));
                }
                walked += found.blocks;
                (at, tid) = (found.next, tid.next());
                if walked > geometry.log_blocks() {
                    return (all, None);
                }
                all.push(found);
            }
            Ok(Parsed::Incomplete) => return (all, None),
            Err(e) => return (all, Some(e)),
        }
    }
}

/// What the transactions bring home, by the rule that [`Transaction`] states.
pub fn homes(view: &mut dyn AreaView, transactions: &[Transaction]) -> HashMap<FsBlock, Box<Block>> {
    let mut homes = HashMap::new();
    for transaction in transactions {
        for tag in &transaction.tags {
            let mut scratch = [0; BLOCK_BYTES];
            let mut content = Box::new(*view.block(tag.at, &mut scratch).unwrap());
            if tag.escaped {
                unescape(&mut content);
            }
            homes.insert(tag.home, content);
        }
        for revoked in &transaction.revokes {
            homes.remove(revoked);
        }
    }
    homes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(log in log()) {
        let mut view = log.encoder.clone();
        let (found, error) = chain(&mut view, &log.geometry, log.tail);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(found.len(), log.drafts.len());
        let mut expected = HashMap::new();
        let mut end = log.tail.0;
        for (found, draft) in found.iter().zip(&log.drafts) {
            prop_assert_eq!(&found.revokes, &draft.revokes);
            prop_assert_eq!(found.commit_sec, draft.commit_sec);
            prop_assert_eq!(found.start, end);
            end = found.next;
            let homes: Vec<FsBlock> = found.tags.iter().map(|t| t.home).collect();
            let wanted: Vec<FsBlock> = draft.logged.iter().map(|l| l.0).collect();
            prop_assert_eq!(homes, wanted);
            for (home, content) in &draft.logged {
                expected.insert(*home, content.clone());
            }
            for revoked in &draft.revokes {
                expected.remove(revoked);
            }
            let commit = AreaBlock(if found.next == log.geometry.first { log.geometry.maxlen } else { found.next.0 } - 1);
            prop_assert_eq!(commit_tid(&log.encoder.blocks[&commit][..]), Some(found.tid));
        }
        prop_assert_eq!(end, log.encoder.at);
        prop_assert_eq!(&homes(&mut view, &found), &expected);
        let replayed = replay(&mut view, &log.geometry, log.tail.0, log.tail.1).unwrap();
        prop_assert_eq!(replayed.end, log.encoder.tid);
        prop_assert_eq!(replayed.next, log.encoder.at);
        prop_assert_eq!(replayed.transactions as usize, log.drafts.len());
        prop_assert!(replayed.damaged.is_empty());
        prop_assert_eq!(replayed.homes(), expected);
    }

    /// A guest that is killed while it commits: any block of the last transaction not yet there.
    #[test]
    fn a_missing_block_is_not_yet_there(log in log(), which in any::<prop::sample::Index>()) {
        prop_assume!(!log.drafts.is_empty());
        let mut view = log.encoder.clone();
        let (found, _) = chain(&mut view, &log.geometry, log.tail);
        let last = found.last().unwrap().clone();
        let mut at = last.start;
        for _ in 0..which.index(last.blocks as usize) {
            at = log.geometry.after(at);
        }
        view.blocks.remove(&at);
        let features = log.geometry.features;
        let parsed = parse(&mut view, &log.geometry, last.start, last.tid);
        let logged = last.tags.iter().any(|tag| tag.at == at);
        if !logged {
            prop_assert_eq!(parsed.unwrap(), Parsed::Incomplete);
        } else if log.encoder.blocks[&at].iter().all(|byte| *byte == 0) {
            prop_assert_eq!(parsed.unwrap(), Parsed::Complete(last));
        } else if features.csum_v2 || features.csum_v3 || features.checksum {
            if features.async_commit {
                prop_assert_eq!(parsed.unwrap(), Parsed::Incomplete);
            } else {
                prop_assert!(matches!(parsed, Err(JournalError::Corrupt(_))));
            }
        } else {
            // Nothing could tell; the kernel cannot either.
            prop_assert_eq!(parsed.unwrap(), Parsed::Complete(last));
        }
    }
}
