//! Runs that no kernel writes, over a sound file system: what comes of them is sound, too.

mod common;

use std::panic::{catch_unwind, AssertUnwindSafe};

use afterimage_ijournal::fuzz::{disk_of, fuzz_recover, reseal};
use afterimage_ijournal::recover;
use common::*;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Bytes of the runs' headers and records, changed at random, with right checksums.
fn spoil(disk: &mut Disk, random: &mut ChaCha8Rng) {
    let starts: Vec<usize> = (0..disk.0.len() / 4096)
        .map(|i| i * 4096)
        .filter(|&at| disk.0[at..].starts_with(b"AFIJTX"))
        .collect();
    for _ in 0..random.random_range(1..5) {
        let start = starts[random.random_range(0..starts.len())];
        // Header, inode and what follows it; mostly the extents in `i_block`.
        let within = match random.random_range(0..4) {
            // Not the length: what makes checksums right would write over the file system then.
            0 => random.random_range(16..64),
            1 => random.random_range(64..400),
            _ => 72 + 0x28 + random.random_range(0..60),
        };
        let byte = &mut disk.0[start + within];
        *byte = match random.random_range(0..3) {
            0 => byte.wrapping_add(1),
            1 => byte.wrapping_sub(1),
            _ => random.random(),
        };
    }
    reseal(&mut disk.0);
}

#[test]
fn a_sound_file_system_stays_sound() {
    let committed = Disk::mkfs(16, &[], &[("kept", pattern(1, 30_000)), ("folder/old", pattern(2, 100_000))]);
    let mut running = committed.clone();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pattern(9, 20_000)).unwrap();
    let write = |path: &str| format!("write {} /{path}", file.path().display());
    running.debugfs(&["mkdir /new".into(), write("new/a"), write("b"), "punch /folder/old 3 9".into()]);
    let mut writer = Writer::new(committed.clone());
    writer.fsync(&running, "new/a", true, 1, 0);
    writer.fsync(&running, "b", true, 1, 1);
    writer.fsync(&running, "folder/old", false, 1, 1);
    let (mut refused, mut recovered) = (0, 0);
    for seed in 0..150 {
        let mut disk = writer.disk.clone();
        spoil(&mut disk, &mut ChaCha8Rng::seed_from_u64(seed));
        let outcome = catch_unwind(AssertUnwindSafe(|| recover(&mut disk, 0)));
        match outcome.unwrap_or_else(|_| panic!("seed {seed} panics")) {
            Ok(report) => {
                recovered += 1;
                refused += report.refused.len();
                if let Err(said) = disk.check() {
                    panic!("seed {seed}: {report}\n{said}");
                }
            }
            // Of a later version.
            Err(error) => {
                assert!(matches!(error, afterimage_ijournal::Error::Unsupported(_)), "seed {seed}: {error}")
            }
        }
    }
    assert!(recovered > 100 && refused > 20, "{recovered} recovered, {refused} refused");
}

/// What fuzzing begins with is what it should be.
#[test]
fn the_fuzzers_seed_has_runs() {
    let seed = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/fuzz_ijournal/crashed"))
        .unwrap();
    let mut disk = disk_of(&seed);
    let report = recover(&mut disk, 0).unwrap();
    assert_eq!((report.valid, report.created, report.directories, report.updated), (6, 2, 1, 1), "{report}");
    fuzz_recover(&seed);
}

/// What the fuzzer found once.
#[test]
fn what_failed_once_does_not() {
    let seeds =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/fuzz_ijournal")).unwrap();
    let seeds: Vec<_> = seeds.map(|seed| std::fs::read(seed.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() > 1, "{}", seeds.len());
    seeds.iter().for_each(|seed| fuzz_recover(seed));
}

/// A bitmap that says so does not make the file system's own blocks a directory's.
#[test]
fn metadata_is_not_free() {
    let committed = Disk::mkfs(16, &["-O", "^metadata_csum"], &[("kept", pattern(1, 30_000))]);
    let mut running = committed.clone();
    running.debugfs(&["mkdir /new".into(), "write /etc/hostname /new/a".into()]);
    let mut writer = Writer::new(committed);
    writer.fsync(&running, "new/a", true, 1, 0);
    let mut disk = writer.disk;
    let descriptor = disk.block(1);
    let (bitmap, table) = (u32_at(descriptor, 0) as usize, u32_at(descriptor, 8) as usize);
    disk.0[bitmap * 4096 + table / 8] &= !(1 << (table % 8));
    let before = disk.clone();
    let report = recover(&mut disk, 0).unwrap();
    let refused: Vec<_> = report.refused.iter().map(|refused| refused.why.as_str()).collect();
    assert!(
        report.committed == 0 && matches!(refused[..], [why] if why.contains("can be nobody's")),
        "{refused:?}"
    );
    assert!(disk.block(table as u64) == before.block(table as u64));
}

/// A few of the fuzzer's rounds in every test run: anything may be damaged, the file system, too.
#[test]
fn damage_anywhere_is_an_error_or_is_left_out() {
    let seed = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/fuzz_ijournal/crashed"))
        .unwrap();
    for round in 0..300 {
        let mut random = ChaCha8Rng::seed_from_u64(round);
        let mut input = seed.clone();
        for _ in 0..random.random_range(1..12) {
            let at = random.random_range(1..input.len());
            input[at] = match random.random_range(0..3) {
                0 => random.random(),
                1 => input[at] ^ 1 << random.random_range(0..8),
                _ => 0xFF,
            };
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| fuzz_recover(&input)));
        assert!(outcome.is_ok(), "round {round}");
    }
}
