//! A commit block that comes before the others of its transaction (`journal_async_commit`, or a guest's whim): the log is read on, not
//! again and again, whatever the others' order.

mod common;

use std::sync::atomic::Ordering;

use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, Block, FsBlock, BLOCK_BYTES};
use common::{at_commit, ext4, journal_superblock, layouts, reads, wait_for_home, Served};

/// The superblock with those features, and with checksums of version 3 where they say so.
fn with_features(superblock: &JournalSuperblock, compat: u32, incompat: u32) -> JournalSuperblock {
    let mut block: Block = *superblock.bytes();
    block[0x24..0x28].copy_from_slice(&compat.to_be_bytes());
    block[0x28..0x2c].copy_from_slice(&incompat.to_be_bytes());
    block[0x50] = if incompat & 0x10 != 0 { 4 } else { 0 };
    block[0xfc..0x100].fill(0);
    let sum = !crc32c::crc32c(&block[..1024]);
    if incompat & 0x10 != 0 {
        block[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    }
    JournalSuperblock::parse(&block).unwrap()
}

#[test]
fn each_block_behind_an_early_commit_is_read_once() {
    const PLENTY: u64 = 32 << 20;
    const SHORT: u64 = 256 << 10;
    const ASYNC: u32 = 4;
    const CSUM_V3: u32 = 0x10;
    const REVOKE: u32 = 1;
    const CHECKSUM: u32 = 1;
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let sector = |at| layout.home_of(at).unwrap().sector(layout.start);
    let found = journal_superblock(&base, &layout).unwrap();
    for (what, compat, incompat, bytes_max) in [
        ("checksums", 0, ASYNC | CSUM_V3, PLENTY),
        ("checksums, and little memory", 0, ASYNC | CSUM_V3, SHORT),
        ("one checksum of all", CHECKSUM, ASYNC, PLENTY),
        ("revokes alone", 0, REVOKE, PLENTY),
        ("revokes alone, and little memory", 0, REVOKE, SHORT),
    ] {
        for order in 0..3 {
            // Logged blocks that no checksum is of are not looked at: they would be taken to be there.
            let alone = incompat & REVOKE != 0;
            let superblock = with_features(&found, compat, incompat);
            let geometry = LogGeometry::new(&superblock, &layout);
            let (first, tid) = (superblock.first(), superblock.sequence());
            let mut encoder = Encoder::new(&geometry, first, tid);
            encoder.transaction(&Draft {
                logged: (0..if alone { 0 } else { 400 })
                    .map(|n| (FsBlock(2500 + n), Box::new([n as u8 | 1; BLOCK_BYTES])))
                    .collect(),
                revokes: (0..if alone { 400 } else { 0 }).map(|n| FsBlock(2500 + n)).collect(),
                tags_max: Some(40),
                revokes_max: Some(1),
                ..Draft::default()
            });
            let mut blocks: Vec<(AreaBlock, Box<Block>)> = encoder.blocks.into_iter().collect();
            let commit = blocks.pop().unwrap();
            match order {
                0 => {}
                1 => blocks.reverse(),
                // One that is prime to their number.
                _ => blocks = (0..blocks.len()).map(|n| blocks[n * 337 % blocks.len()].clone()).collect(),
            }
            let (mut served, left) = reads(&base, bytes_max, wait_for_home());
            served
                .lane()
                .write(sector(AreaBlock(0)), superblock.with_tail(tid, Some(first)).bytes())
                .unwrap();
            let before = left.load(Ordering::SeqCst);
            for (at, block) in std::iter::once(&commit).chain(&blocks) {
                assert_eq!(
                    served.disk().status().file_systems[0].classes.journal_commits,
                    0,
                    "{what}, {order}"
                );
                served.lane().write(sector(*at), &block[..]).unwrap();
            }
            let count = before - left.load(Ordering::SeqCst);
            let status = &served.disk().status().file_systems[0];
            assert_eq!(
                (status.mode.as_str(), status.classes.journal_commits),
                ("retain", 1),
                "{what}, {order}"
            );
            let n = blocks.len() as u64;
            assert!(count <= 3 * n, "{what}, {order}: {count} reads for {n} blocks");
        }
    }
}

/// A daemon has taken the commit block, and dies before some of the others have come, which the next one gets: with the last of them the
/// transaction is committed, and home.
#[test]
fn a_commit_block_that_an_earlier_daemon_took_counts() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let sector = |at| layout.home_of(at).unwrap().sector(layout.start);
    let superblock = with_features(&journal_superblock(&base, &layout).unwrap(), 0, 0x14);
    let (first, tid) = (superblock.first(), superblock.sequence());
    for evicts in [false, true] {
        let mut encoder = Encoder::new(&LogGeometry::new(&superblock, &layout), first, tid);
        let logged = (0..8).map(|n| (FsBlock(2500 + n), Box::new([n as u8 | 1; BLOCK_BYTES]))).collect();
        encoder.transaction(&Draft { logged, ..Draft::default() });
        let mut served = Served::new(base.clone(), 32 << 20, at_commit());
        let tail = superblock.with_tail(tid, Some(first));
        served.lane().write(sector(AreaBlock(0)), tail.bytes()).unwrap();
        for (n, (at, block)) in encoder.blocks.iter().rev().enumerate() {
            if n == 4 {
                if evicts {
                    served.disk().make_room().unwrap();
                }
                served.restart();
            }
            served.lane().write(sector(*at), &block[..]).unwrap();
        }
        let home = FsBlock(2500).sector(layout.start).0 as usize * 512;
        let found = &served.below.bytes()[home..][..8 * BLOCK_BYTES];
        let expected = (0..8).flat_map(|n| [n as u8 | 1; BLOCK_BYTES]);
        assert!(expected.eq(found.iter().copied()), "evicts {evicts}: it is not home");
    }
}
