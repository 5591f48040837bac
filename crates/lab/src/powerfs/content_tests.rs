//! The content of a file against plain bytes.

use std::collections::BTreeSet;

use super::content::{Content, Lottery, PAGE_BYTES, SECTOR_BYTES};
use super::dice::Dice;

fn content() -> Content {
    Content::open(tempfile::tempfile().unwrap()).unwrap()
}

/// Random operations; readers must see what a byte vector would show, whatever has been settled meanwhile.
#[test]
fn readers_see_every_operation_at_once() {
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        let mut content = content();
        let mut oracle: Vec<u8> = Vec::new();
        for sequence in 1..200 {
            let offset = dice.below(40_000);
            let length = 1 + dice.below(9_000);
            let (from, to) = (offset as usize, (offset + length) as usize);
            match dice.below(8) {
                0..=3 => {
                    let data = vec![sequence as u8; length as usize];
                    content.write(sequence, offset, &data).unwrap();
                    if oracle.len() < to {
                        oracle.resize(to, 0);
                    }
                    oracle[from..to].copy_from_slice(&data);
                }
                4 => {
                    content.zero(sequence, offset, length).unwrap();
                    let end = to.min(oracle.len());
                    if from < end {
                        oracle[from..end].fill(0);
                    }
                }
                5 => {
                    content.set_length(sequence, offset).unwrap();
                    oracle.resize(from, 0);
                }
                6 => content.settle(sequence - dice.below(10).min(sequence)).unwrap(),
                _ => content.settle_single(sequence.saturating_sub(dice.below(5))).unwrap(),
            }
            assert_eq!(content.length(), oracle.len() as u64, "seed {seed} step {sequence}");
            let seen = content.read(0, 1 << 20).unwrap();
            let wrong = seen.iter().zip(&oracle).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "seed {seed} step {sequence}: the first wrong byte");
        }
        content.settle(u64::MAX).unwrap();
        assert!(content.read(0, 1 << 20).unwrap() == oracle, "seed {seed}: settled");
        assert_eq!(content.volatile_bytes(), 0);
        let nothing_kept = Lottery { kept_per_mille: 0, torn_per_mille: 0, sector_bytes: SECTOR_BYTES };
        content.cut(nothing_kept, &mut dice).unwrap();
        assert!(content.read(0, 1 << 20).unwrap() == oracle, "seed {seed}: a cut took something settled");
    }
}

#[test]
fn a_cut_keeps_what_was_settled_and_mixes_the_rest() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let mut content = content();
        content.write(1, 0, &[b'a'; 2 * SECTOR_BYTES as usize]).unwrap();
        content.settle(1).unwrap();
        content.write(2, 0, &[b'b'; 2 * SECTOR_BYTES as usize]).unwrap();
        content.write(3, 0, &[b'c'; 2 * SECTOR_BYTES as usize]).unwrap();
        content
            .cut(Lottery { kept_per_mille: 500, torn_per_mille: 0, sector_bytes: SECTOR_BYTES }, &mut dice)
            .unwrap();
        let left = content.read(0, 4096).unwrap();
        assert_eq!(left.len(), 2 * SECTOR_BYTES as usize);
        for sector in left.chunks(SECTOR_BYTES as usize) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector was torn that should not be");
        }
        outcomes.insert((left[0], left[SECTOR_BYTES as usize]));
    }
    assert_eq!(outcomes.len(), 9, "every mixture of two sectors can happen: {outcomes:?}");
}

#[test]
fn torn_sectors_appear_and_are_new_then_old() {
    let mut torn_seen = 0;
    for seed in 0..50 {
        let mut dice = Dice::new(seed);
        let mut content = content();
        content.write(1, 0, &[b'o'; PAGE_BYTES as usize]).unwrap();
        content.settle(1).unwrap();
        content.write(2, 0, &[b'n'; PAGE_BYTES as usize]).unwrap();
        let tally = content
            .cut(Lottery { kept_per_mille: 1000, torn_per_mille: 300, sector_bytes: SECTOR_BYTES }, &mut dice)
            .unwrap();
        torn_seen += tally.sectors_torn;
        for sector in content.read(0, PAGE_BYTES).unwrap().chunks(SECTOR_BYTES as usize) {
            let first_old = sector.iter().position(|byte| *byte == b'o').unwrap_or(sector.len());
            assert!(first_old > 0 && sector[first_old..].iter().all(|byte| *byte == b'o'));
        }
    }
    assert!(torn_seen > 20);
}

#[test]
fn an_unsynced_length_may_be_lost_with_its_data() {
    let mut lengths = BTreeSet::new();
    for seed in 0..100 {
        let mut dice = Dice::new(seed);
        let mut content = content();
        content.write(1, 0, &[1; 100]).unwrap();
        content.settle(1).unwrap();
        content.write(2, 100, &[2; 100]).unwrap();
        content.set_length(3, 50).unwrap();
        content
            .cut(Lottery { kept_per_mille: 500, torn_per_mille: 0, sector_bytes: SECTOR_BYTES }, &mut dice)
            .unwrap();
        lengths.insert(content.length());
    }
    assert_eq!(lengths, BTreeSet::from([50, 100, 200]));
}

#[test]
fn holes_are_found() {
    let mut content = content();
    content.set_length(1, 10 * PAGE_BYTES).unwrap();
    content.write(2, 4 * PAGE_BYTES, &[1; PAGE_BYTES as usize]).unwrap();
    assert_eq!(content.seek(0, true).unwrap(), Some(4 * PAGE_BYTES));
    assert_eq!(content.seek(4 * PAGE_BYTES, false).unwrap(), Some(5 * PAGE_BYTES));
    content.settle(2).unwrap();
    assert_eq!(content.seek(0, true).unwrap(), Some(4 * PAGE_BYTES));
    content.zero(3, 4 * PAGE_BYTES, PAGE_BYTES).unwrap();
    assert_eq!(content.seek(0, true).unwrap(), None);
    assert_eq!(content.seek(0, false).unwrap(), Some(0));
}

#[test]
fn a_sector_of_four_kib_is_kept_whole_or_not_at_all() {
    let mut dice = Dice::new(7);
    let mut kept = [0; 2];
    for _ in 0..64 {
        let mut content = content();
        content.write(1, 0, &[b'o'; 2 * 4096]).unwrap();
        content.settle(1).unwrap();
        content.write(2, 0, &[b'n'; 2 * 4096]).unwrap();
        content
            .cut(Lottery { kept_per_mille: 500, torn_per_mille: 0, sector_bytes: 4096 }, &mut dice)
            .unwrap();
        for sector in content.read(0, 2 * 4096).unwrap().chunks(4096) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector was torn");
            kept[usize::from(sector[0] == b'n')] += 1;
        }
    }
    assert!(kept[0] > 20 && kept[1] > 20, "{kept:?}");
}
