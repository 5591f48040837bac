//! iJournaling's bytes, spelled out; the same in C; and a parser that takes anything.

mod common;

use afterimage_format::ijournal::*;
use afterimage_format::{checksum, FormatError};
use common::{hex, printed_by_c};
use proptest::prelude::*;
use zerocopy::IntoBytes as _;

const EPOCH: [u8; 16] = *b"0123456789abcdef";

fn inode(bytes: usize) -> Vec<u8> {
    let mut inode: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
    inode[100..104].copy_from_slice(&0x7172_7374u32.to_le_bytes());
    inode
}

fn directory() -> RunBuilder {
    RunBuilder::new(KIND_DIRECTORY, 0x4142_4344, &inode(256), 0x3132_3334, 0x2122_2324_2526_2728).entry(
        0x5152_5354,
        0x6162_6364,
        1,
        b"name",
    )
}

/// A node of a tree with that many entries, all of them zeroes.
fn node(entries: u16) -> Vec<u8> {
    let mut node = vec![0; EXTENT_ENTRY_BYTES * (1 + usize::from(entries))];
    node[..2].copy_from_slice(&0xf30a_u16.to_le_bytes());
    node[2..4].copy_from_slice(&entries.to_le_bytes());
    node
}

fn file(extent_blocks: u64) -> RunBuilder {
    let file = RunBuilder::new(KIND_FILE, 0x4142_4344, &inode(256), 0x3132_3334, 0x2122_2324_2526_2728);
    (0..extent_blocks).fold(file, |file, i| file.extent_block(0x8182_8384_8586_8788 + i, &node(340)))
}

#[test]
fn areas_and_runs_are_these_bytes() {
    let areas = Areas::new(4, 1024, EPOCH, 0x0102_0304);
    let golden = "4146494a41520d0a01000000CRC0000030313233343536373839616263646566\
                  04000000000400000010000004030201";
    let bytes = areas.as_bytes();
    assert_eq!(hex(&bytes[..48]), golden.replace("CRC00000", &hex(&bytes[12..16])));
    assert!(bytes[48..].iter().all(|byte| *byte == 0));
    assert_eq!(Areas::parse(bytes), Ok(areas));
    assert_eq!((areas.blocks(), areas.area_start(3)), (4097, 3073));

    let bytes = directory().seal(EPOCH, 3, 17);
    assert_eq!(bytes.len(), BLOCK_BYTES);
    let golden = "4146494a54580d0a010002000100000030313233343536373839616263646566\
                  2827262524232221343332314443424174737271200100000300000011000000\
                  0100000000010000";
    assert_eq!(hex(&bytes[..72]), golden);
    assert_eq!(bytes[72..328], inode(256));
    let golden = "0300000010000000545352516463626101040000";
    assert_eq!(hex(&bytes[328..352]), format!("{golden}{}", hex(b"name")));
    assert!(bytes[352..4064].iter().all(|byte| *byte == 0));
    let golden = "4146494a434d0d0a2827262524232221000000000000000000000000";
    assert_eq!(hex(&bytes[4064..4092]), golden);
    assert_eq!(bytes[4092..], checksum(&bytes[..4092]).to_le_bytes());

    let run = Run::parse(&bytes).unwrap();
    assert_eq!((run.inode(), run.records().count()), (&inode(256)[..], 2));
    assert_eq!(Header::sniff(&bytes, &Areas::new(4, 1024, EPOCH, 0), 3, 17), Some(run.header));
    for (epoch, area, at) in [([0; 16], 3, 17), (EPOCH, 2, 17), (EPOCH, 3, 18)] {
        assert_eq!(
            Header::sniff(&bytes, &Areas::new(4, 1024, epoch, 0), area, at),
            None,
            "it is of elsewhere"
        );
    }
}

#[test]
fn a_run_that_fits_is_one_block_and_any_other_ends_with_a_commit_block() {
    let blocks: Vec<u32> = (0..4).map(|n| file(n).blocks()).collect();
    assert_eq!(blocks, [1, 3, 4, 5]);
    let bytes = file(1).seal(EPOCH, 0, 0);
    assert_eq!(bytes.len(), 3 * BLOCK_BYTES);
    assert!(bytes[2 * BLOCK_BYTES..][..4064].iter().all(|byte| *byte == 0));
    let records: Vec<_> = Run::parse(&bytes).map(|run| run.records().collect()).unwrap();
    assert_eq!(records[1], Record::ExtentBlock(0x8182_8384_8586_8788, &node(340)));
}

/// What the C header's structures are when they are filled in with the same values.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <endian.h>
#include "ijournal_format.h"
int main(void)
{
    struct ijournal_areas a;
    struct ijournal_header h;
    struct ijournal_commit c;
    struct ijournal_record r;
    struct ijournal_extent_block b;
    struct ijournal_entry e;
    memset(&a, 0, sizeof(a));
    memset(&h, 0, sizeof(h));
    memset(&c, 0, sizeof(c));
    memset(&r, 0, sizeof(r));
    memset(&e, 0, sizeof(e));
    memcpy(a.magic, IJOURNAL_AREAS_MAGIC, 8);
    a.version = htole16(IJOURNAL_VERSION);
    memcpy(a.epoch, "0123456789abcdef", 16);
    a.areas = htole32(4);
    a.area_blocks = htole32(1024);
    a.block_bytes = htole32(IJOURNAL_BLOCK_BYTES);
    a.first_tid = htole32(0x01020304);
    memcpy(h.magic, IJOURNAL_RUN_MAGIC, 8);
    h.version = htole16(IJOURNAL_VERSION);
    h.kind = htole16(IJOURNAL_DIRECTORY);
    h.blocks = htole32(1);
    memcpy(h.epoch, a.epoch, 16);
    h.sub_id = htole64(0x2122232425262728);
    h.tid = htole32(0x31323334);
    h.ino = htole32(0x41424344);
    h.generation = htole32(0x71727374);
    h.records_len = htole32(288);
    h.area = htole32(3);
    h.at = htole32(17);
    memcpy(c.magic, IJOURNAL_COMMIT_MAGIC, 8);
    c.sub_id = h.sub_id;
    r.kind = htole16(IJOURNAL_ENTRY);
    r.len = htole32(sizeof(e) + 4);
    b.home = htole64(0x8182838485868788);
    e.ino = htole32(0x51525354);
    e.generation = htole32(0x61626364);
    e.file_type = 1;
    e.name_len = 4;
    fwrite(&a, 1, sizeof(a), stdout);
    fwrite(&h, 1, sizeof(h), stdout);
    fwrite(&r, 1, sizeof(r), stdout);
    fwrite(&e, 1, sizeof(e), stdout);
    fwrite(&c, 1, sizeof(c), stdout);
    fwrite(&b, 1, sizeof(b), stdout);
    printf("%s %#x %d %d %d %d %d %d %d %d", IJOURNAL_FILE_NAME, IJOURNAL_INCOMPAT, IJOURNAL_RUN_BLOCKS_MAX, IJOURNAL_AREAS_MAX,
        IJOURNAL_AREA_BLOCKS_MIN, IJOURNAL_AREAS_BLOCKS_MAX, IJOURNAL_INODE_BYTES_MIN, IJOURNAL_INODE_BYTES_MAX, IJOURNAL_FILE, IJOURNAL_EXTENT_BLOCK);
    for (__u32 len = 0; len < 20000; len += 8)
        printf(" %u", ijournal_run_blocks(len));
    return 0;
}
"#;

#[test]
fn the_c_header_has_the_same_bytes() {
    let Some(printed) = printed_by_c("ijournal_bytes", "guest/kernel/src", PROGRAM) else { return };

    let run = directory().seal(EPOCH, 3, 17);
    let mut areas = Areas::new(4, 1024, EPOCH, 0x0102_0304);
    areas.crc = 0.into();
    let numbers = format!(
        "{FILE_NAME} {INCOMPAT_IJOURNAL:#x} {RUN_BLOCKS_MAX} {AREAS_MAX} {AREA_BLOCKS_MIN} {AREAS_BLOCKS_MAX} \
         {INODE_BYTES_MIN} {INODE_BYTES_MAX} {KIND_FILE} {RECORD_EXTENT_BLOCK}"
    );
    let lengths: String = (0..20000).step_by(8).map(|len| format!(" {}", run_blocks(len))).collect();
    let tag = ExtentBlock { home: 0x8182_8384_8586_8788.into() };
    let commit = [&run[4064..4092], &[0; 4]].concat();
    let ours = [
        areas.as_bytes(),
        &run[..64],
        &run[328..348],
        &commit,
        tag.as_bytes(),
        numbers.as_bytes(),
        lengths.as_bytes(),
    ];
    assert_eq!(hex(&printed), hex(&ours.concat()));
}

/// The run with something changed and its checksum right again.
fn changed(bytes: &[u8], change: impl Fn(&mut [u8])) -> Result<(), FormatError> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let at = bytes.len() - 4;
    let crc = checksum(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
    Run::parse(&bytes).map(|_| ())
}

#[test]
fn what_is_no_run_is_refused() {
    let (directory, file) = (directory().seal(EPOCH, 0, 0), file(1).seal(EPOCH, 0, 0));
    assert_eq!(changed(&directory, |_| {}), Ok(()));
    assert!(matches!(changed(&directory, |b| b[0] = 0), Err(FormatError::Magic { .. })));
    assert_eq!(changed(&directory, |b| b[8] = 2), Err(FormatError::Version { version: 2, known: 1 }));
    type Case<'a> = (&'a [u8], fn(&mut [u8]));
    let cases: [Case<'_>; 17] = [
        (&directory, |b| b[10] = 1), // a file has no entries
        (&directory, |b| b[10] = 3), // a kind that nobody has
        (&directory, |b| b[12] = 2), // longer than it is
        (&directory, |b| b[32..40].fill(0)),
        (&directory, |b| b[44..48].fill(0)),
        (&directory, |b| b[52] = 0x18), // without the entry
        (&directory, |b| b[52] = 0x21), // no multiple of 8
        (&directory, |b| b[53] = 0xf),  // beyond the block
        (&directory, |b| b[68] = 8),    // an inode of another length
        (&directory, |b| b[64] = 3),    // an entry before the inode
        (&directory, |b| b[328] = 1),   // two inodes
        (&directory, |b| b[336..340].fill(0)),
        (&directory, |b| b[345] = 3),
        (&directory, |b| b[348..352].copy_from_slice(b"a/bc")),
        (&directory, |b| b[348] = 0),
        (&file, |b| b[10] = 2),     // a directory has no extent blocks
        (&file, |b| b[346] = 0xff), // not as many entries
    ];
    for (i, (bytes, change)) in cases.into_iter().enumerate() {
        assert!(matches!(changed(bytes, change), Err(FormatError::Corrupt(_))), "case {i}");
    }
    assert!(Run::parse(&file[..2 * BLOCK_BYTES]).is_err());
    for wrong in [(0, 64), (AREAS_MAX + 1, 64), (1, AREA_BLOCKS_MIN - 1), (AREAS_MAX, 4097), (1, u32::MAX)] {
        let areas = Areas::new(wrong.0, wrong.1, EPOCH, 0);
        assert!(matches!(Areas::parse(areas.as_bytes()), Err(FormatError::Corrupt(_))), "{wrong:?}");
    }
    for most in [(AREAS_MAX, 4096), (1, AREAS_BLOCKS_MAX)] {
        Areas::parse(Areas::new(most.0, most.1, EPOCH, 0).as_bytes()).unwrap();
    }
}

proptest! {
    #[test]
    fn one_wrong_bit_is_noticed(at in 0usize..BLOCK_BYTES, bit in 0u32..8) {
        let mut bytes = directory().seal(EPOCH, 0, 0);
        bytes[at] ^= 1 << bit;
        prop_assert!(Run::parse(&bytes).is_err());
        let mut bytes = Areas::new(1, 64, EPOCH, 1).as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        prop_assert!(Areas::parse(&bytes).is_err());
    }

    /// Behind a right magic, version and checksum.
    #[test]
    fn anything_may_come(records in proptest::collection::vec(any::<u8>(), 0..900), kind in 0u16..4) {
        let mut bytes = file(0).seal(EPOCH, 0, 0);
        bytes[10..12].copy_from_slice(&kind.to_le_bytes());
        let len = records.len() as u32 / 8 * 8;
        bytes[52..56].copy_from_slice(&len.to_le_bytes());
        bytes[64..][..records.len()].copy_from_slice(&records);
        let _ = changed(&bytes, |_| {});
    }
}
