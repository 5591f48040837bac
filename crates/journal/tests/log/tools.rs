//! Logs that debugfs wrote, as logdump and e2fsck read them.

use std::collections::BTreeSet;
use std::fs;

use afterimage_journal::log::encode::MAGIC_BYTES;
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::{parse, Parsed, Transaction};
use afterimage_journal::{FsBlock, BLOCK_BYTES};

use crate::generated::{chain, homes};
use crate::image::{run, Image};

/// "FS block N logged at sequence T, journal block J" and "Revoke FS block N", as logdump says it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dump {
    logged: Vec<(u32, u64, u32)>,
    revoked: Vec<(u32, u64)>,
}

fn logdump(image: &Image) -> Dump {
    let said = image.ask("logdump -a");
    let (mut dump, mut tid) = (Dump::default(), 0);
    let number = |words: &[&str], after: &str| -> u64 {
        let at = words.iter().rposition(|word| *word == after).unwrap();
        words[at + 1].trim_end_matches([':', ',']).parse().unwrap()
    };
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with("Dumping") {
            tid = number(&words, "sequence") as u32;
        } else if line.trim_start().starts_with("FS block") {
            let home = words[2].parse().unwrap();
            dump.logged.push((tid, home, number(&words, "block") as u32));
        } else if line.trim_start().starts_with("Revoke FS block") {
            dump.revoked.push((tid, number(&words, "block")));
        }
    }
    dump
}

fn dump_of(transactions: &[Transaction]) -> Dump {
    let mut dump = Dump::default();
    for t in transactions {
        dump.logged.extend(t.tags.iter().map(|tag| (t.tid.0, tag.home.0, tag.at.0)));
        dump.revoked.extend(t.revokes.iter().map(|home| (t.tid.0, home.0)));
    }
    dump
}

/// All readers of an image's log: they say the same. Returns the transactions.
pub fn compare(image: &Image) -> Vec<Transaction> {
    let mut journal = image.journal();
    let (geometry, tail) = journal.superblock();
    let tail = tail.expect("a log with something in it");
    let (found, error) = chain(&mut journal, &geometry, tail);
    assert!(error.is_none(), "{error:?}");
    let replayed = replay(&mut journal, &geometry, tail.0, tail.1).unwrap();
    let homes = homes(&mut journal, &found);
    assert_eq!(replayed.homes(), homes);
    assert!(replayed.damaged.is_empty());
    assert_eq!(replayed.transactions as usize, found.len());

    // logdump also shows the descriptors of a last transaction without its commit block.
    let mut dump = logdump(image);
    let end = replayed.end.0;
    dump.logged.retain(|logged| logged.0 != end);
    dump.revoked.retain(|revoked| revoked.0 != end);
    assert_eq!(dump_of(&found), dump);

    let recovered = image.copy("recovered");
    run("e2fsck", &["-y", "-E", "journal_only", recovered.path.to_str().unwrap()], "");
    let (_, left) = recovered.journal().superblock();
    assert_eq!(left, None, "e2fsck replayed it");
    for (home, content) in &homes {
        // The superblock is written once more, for the state of the file system.
        if home.0 != 0 {
            assert!(recovered.block(*home) == *content, "block {home}");
        }
    }
    // What no transaction brings home stays.
    let revoked: Vec<FsBlock> = found.iter().flat_map(|t| t.revokes.clone()).collect();
    for home in revoked.into_iter().filter(|home| !homes.contains_key(home)) {
        assert!(recovered.block(home) == image.block(home), "revoked block {home}");
    }
    found
}

#[test]
fn debugfs_logs_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, blocks: &[u8]| {
        let bytes: Vec<u8> = blocks
            .iter()
            .flat_map(|fill| {
                let mut block = vec![*fill; BLOCK_BYTES];
                if *fill == 0 {
                    block[..4].copy_from_slice(&MAGIC_BYTES);
                }
                block
            })
            .collect();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // "0" begins with jbd2's magic and is logged with zeroes there.
    let (ab, escaped, c) = (file("ab", b"ab"), file("escaped", &[0]), file("c", b"c"));
    let many: Vec<u8> = (0..620).map(|n| (n % 250 + 1) as u8).collect();
    let many = file("many", &many);
    let blocks: Vec<String> = (10_000..10_620).map(|n| n.to_string()).collect();
    let mut formats = BTreeSet::new();
    for features in
        ["^64bit,^metadata_csum", "64bit,^metadata_csum", "^64bit,metadata_csum", "64bit,metadata_csum"]
    {
        // With checksums, debugfs takes the CRC-32 of all blocks without metadata_csum, version 2 or 3 with it.
        for checksums in ["", "-c -v 2", "-c -v 3"] {
            let image = Image::make(&folder.path().join("image"), features);
            // debugfs counts revoke blocks in that CRC-32. Neither the kernel nor e2fsck does: both stop there.
            let crc32 = !checksums.is_empty() && features.contains("^metadata_csum");
            let revoke = if crc32 { format!("jw -b 9011 {c}") } else { "jw -r 9001,9002".to_owned() };
            image.debugfs(&format!(
                "jo {checksums}\njw -b 9000,9001 {ab}\njw -b 9002,9003 {ab}\n{revoke}\njw -b 9000 {escaped}\n\
                 jw -b 9002 {c}\njw -b {} {many}\njc\n",
                blocks.join(",")
            ));
            let found = compare(&image);
            assert_eq!(found.len(), 6, "{features} {checksums}");
            assert!(found[3].tags[0].escaped && !found[4].tags[0].escaped);
            assert_eq!(found[5].tags.len(), 620, "more than one descriptor");
            let mut journal = image.journal();
            let (geometry, _) = journal.superblock();
            let homes = homes(&mut journal, &found);
            assert!(homes[&FsBlock(9000)][..4] == MAGIC_BYTES);
            assert!(homes[&FsBlock(9002)][..] == [b'c'; BLOCK_BYTES]);
            if !crc32 {
                assert_eq!(found[2].revokes, [FsBlock(9001), FsBlock(9002)]);
                assert!(!homes.contains_key(&FsBlock(9001)));
            }
            let f = geometry.features;
            formats.insert((f.bits64, f.checksum, f.csum_v2, f.csum_v3));
        }
    }
    assert_eq!(formats.len(), 8, "64bit, and none or one of three kinds of checksums: {formats:?}");
}

#[test]
fn an_unfinished_transaction_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::write(&data, [b'd'; BLOCK_BYTES]).unwrap();
    let data = data.display();
    let image = Image::make(&folder.path().join("image"), "64bit,metadata_csum");
    image.debugfs(&format!("jo -c -v 3\njw -b 9000 {data}\njw -c -b 9001 {data}\njc\n"));
    let found = compare(&image);
    assert_eq!(found.len(), 1);
    let mut journal = image.journal();
    let (geometry, _) = journal.superblock();
    let parsed = parse(&mut journal, &geometry, found[0].next, found[0].tid.next()).unwrap();
    assert_eq!(parsed, Parsed::Incomplete);
}
