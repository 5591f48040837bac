//! Every contract's layer keeps the Disk contract, over real files and with the real threads.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, Blocking, Disk, DiskIndex, FlushKind, Sector, SequenceNumber};
use afterimage_order::{Closing, Contract, Group, GroupOptions, HomeError, UNFLUSHED_MAX};
use afterimage_store::{create_image, DirectMode, ImageStore, OpenOptions};

const IMAGE_BYTES: u64 = 4 << 20;

fn image(folder: &Path, name: &str, direct: DirectMode) -> Arc<ImageStore> {
    let path = folder.join(name);
    if !path.exists() {
        create_image(&path, IMAGE_BYTES).expect("a new image");
    }
    ImageStore::open(&OpenOptions { direct, any_content: true, ..OpenOptions::new(&path) }).expect("an image")
}

fn open(folder: &Path, contract: Contract) -> Arc<Group> {
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
    let images = vec![image(folder, "a.raw", DirectMode::Off), image(folder, "b.raw", DirectMode::Off)];
    Group::open(images, options).expect("a group")
}

fn window(millis: u64) -> Contract {
    Contract::PowerWindow { window: Duration::from_millis(millis) }
}

#[test]
fn every_contract_conforms() {
    for contract in [Contract::Power, Contract::GuestCrash, window(50), window(1)] {
        for seed in 1..=4 {
            let folder = tempfile::tempdir().expect("a folder");
            let group = open(folder.path(), contract);
            let disk = Arc::clone(&group.disks()[0]);
            let mut oracle = afterimage_block_conformance::run(seed, 1500, || Arc::clone(&disk))
                .unwrap_or_else(|e| panic!("{contract} seed {seed}: {e}"));
            // What was promised is there after an orderly end, too, in a plain raw file.
            drop(disk);
            group.close().expect("an orderly end");
            drop(group);
            let names: Vec<_> = std::fs::read_dir(folder.path()).expect("list").flatten().collect();
            assert_eq!(names.len(), 2, "only the images are left: {names:?}");
            let plain: Arc<dyn Disk> = image(folder.path(), "a.raw", DirectMode::Off);
            afterimage_block_conformance::compare(seed, &plain, &mut oracle)
                .unwrap_or_else(|e| panic!("{contract} {seed}: {e}"));
        }
    }
}

#[test]
fn lanes_on_several_threads_conform() {
    for contract in [Contract::Power, Contract::GuestCrash, window(5)] {
        let folder = tempfile::tempdir().expect("a folder");
        let group = open(folder.path(), contract);
        let disk = Arc::clone(&group.disks()[1]);
        afterimage_block_conformance::run_threads(7, 5000, 4, || Arc::clone(&disk))
            .unwrap_or_else(|e| panic!("{contract}: {e}"));
        let status = group.status();
        let laps = status.log_appended_bytes / status.log_max_bytes.max(1);
        assert!(
            contract != window(5) || laps >= 2 && status.home > status.acknowledged.min(SequenceNumber(1000)),
            "the log has to wrap: {status:?}"
        );
        group.close().expect("an orderly end");
    }
}

/// Dropping a group without closing it is what a process's death leaves.
#[test]
fn a_log_is_taken_over_after_a_death() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = open(folder.path(), window(50));
    let mut oracle = afterimage_block_conformance::run(3, 800, || Arc::clone(&group.disks()[0]))
        .unwrap_or_else(|e| panic!("{e}"));
    let acknowledged = group.status().acknowledged;
    drop(group);
    for _ in 0..3 {
        let group = open(folder.path(), window(20));
        let status = group.status();
        assert_eq!(status.acknowledged, acknowledged, "the same prefix every time");
        let disk = Arc::clone(&group.disks()[0]);
        afterimage_block_conformance::compare(3, &disk, &mut oracle).unwrap_or_else(|e| panic!("{e}"));
    }
    // Another contract brings the log home first.
    let group = open(folder.path(), Contract::Power);
    assert!(!folder.path().join("a.raw.aflog").exists() && !folder.path().join("b.raw.afref").exists());
    let disk = Arc::clone(&group.disks()[0]);
    afterimage_block_conformance::compare(3, &disk, &mut oracle).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn writes_reach_past_the_logs_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = open(folder.path(), window(50));
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    let mut expected = vec![0u8; IMAGE_BYTES as usize];
    // Four laps of the smallest log, with requests larger than a record.
    for round in 0..16u8 {
        let bytes: Vec<u8> = (0..IMAGE_BYTES as usize).map(|i| (i / 512) as u8 ^ round).collect();
        lane.write(Sector(0), &bytes).expect("a large write");
        expected.copy_from_slice(&bytes);
    }
    lane.flush(FlushKind::Order).expect("a flush");
    let mut found = vec![0; IMAGE_BYTES as usize];
    lane.read(Sector(0), &mut found).expect("a read");
    assert!(found == expected);
    let status = group.status();
    assert!(status.log_appended_bytes > 3 * status.log_max_bytes && status.home < status.acknowledged.next());
    drop(lane);
    group.close().expect("an orderly end");
    assert!(std::fs::read(folder.path().join("a.raw")).expect("the image") == expected);
}

#[test]
fn a_pause_leaves_a_complete_image_and_holds_writes_back() {
    for contract in [Contract::Power, Contract::GuestCrash, window(50)] {
        let folder = tempfile::tempdir().expect("a folder");
        let group = open(folder.path(), contract);
        let events = group.subscribe(Box::new(|| {}));
        let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
        lane.write(Sector(8), &[7; 4096]).expect("a write");
        let paused = group.pause(Some(Duration::from_secs(20))).expect("a pause");
        assert_eq!(paused, group.status().acknowledged);
        assert!(group.status().paused);
        let copy = std::fs::read(folder.path().join("a.raw")).expect("the image");
        assert!(copy[4096..8192] == [7; 4096]);
        let mut found = [0; 4096];
        lane.read(Sector(8), &mut found).expect("reads go on");
        lane.flush(FlushKind::Order).expect("nothing to flush");
        let writer = std::thread::spawn(move || lane.write(Sector(8), &[9; 4096]).map(|()| lane));
        assert_eq!(group.status().acknowledged, paused, "held back");
        assert!(
            std::iter::from_fn(|| events.next()).any(|e| matches!(e, afterimage_order::Event::Paused { .. }))
        );
        group.resume();
        // Whoever makes sure that nothing is paused tells nobody.
        group.resume();
        let resumed =
            std::iter::from_fn(|| events.next()).filter(|e| matches!(e, afterimage_order::Event::Resumed));
        assert_eq!(resumed.count(), 1, "{contract}");
        let mut lane = writer.join().expect("the writer").expect("it goes on");
        lane.read(Sector(8), &mut found).expect("a read");
        assert_eq!(found, [9; 4096]);
        drop(lane);
        group.close().expect("an orderly end");
    }
}

#[test]
fn durability_can_be_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    for contract in [Contract::Power, Contract::GuestCrash, window(50)] {
        let group = open(folder.path(), contract);
        let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
        lane.write(Sector(0), &[1; 512]).expect("a write");
        lane.flush(FlushKind::Order).expect("a flush");
        let sequence = group.status().acknowledged;
        assert!(group.wait_durable(sequence, Some(Duration::from_secs(20))).expect("healthy"));
        assert!(group.status().durable >= sequence);
        lane.write(Sector(0), &[2; 512]).expect("a write");
        assert!(group.flush().expect("a flush") > sequence);
        lane.write_flushed(Sector(0), &[3; 512]).expect("a write without a cache");
        lane.flush(FlushKind::Durable).expect("a durable flush");
        drop(lane);
        group.close().expect("an orderly end");
        drop(group);
    }
}

/// Who appends again and again leaves the log no idle moment, and little that it holds is no reason for a round home.
#[test]
fn what_nobody_flushes_becomes_durable() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = open(folder.path(), window(60_000));
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    let begun = Instant::now();
    while group.status().durable == SequenceNumber(0) {
        assert!(begun.elapsed() < 10 * UNFLUSHED_MAX, "{:?}", group.status());
        lane.write(Sector(0), &[1; 512]).expect("a write");
        std::thread::sleep(UNFLUSHED_MAX / 50);
    }
    assert_eq!(group.status().home, SequenceNumber(0), "nothing went home");
}

#[test]
fn an_end_that_may_not_take_long_leaves_the_rest_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("a.raw.aflog");
    // 3 MiB of records in a log of 16: more than one piece of the way home, less than what makes anything go home.
    let content = |i: u64| [i as u8 + 1; 65536];
    let group = open(folder.path(), window(50));
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    for i in 0..48 {
        lane.write(Sector(i * 128), &content(i)).expect("a write");
    }
    drop(lane);
    let closing = group.close_within(Duration::ZERO).expect("an end");
    assert!(matches!(closing, Closing::LogKept { log_bytes } if log_bytes > 1 << 20), "{closing:?}");
    drop(group);
    assert!(log.exists(), "the log stays");

    let group = open(folder.path(), window(50));
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    let mut found = vec![0; 65536];
    for i in 0..48 {
        lane.read(Sector(i * 128), &mut found).expect("a read");
        assert_eq!(found, content(i), "write {i}");
    }
    drop(lane);
    assert_eq!(group.close_within(Duration::from_secs(60)).expect("an end"), Closing::Clean);
    drop(group);
    assert!(!log.exists(), "everything is home");
    let raw = std::fs::read(folder.path().join("a.raw")).expect("the image");
    assert!((0..48).all(|i| raw[i as usize * 65536..][..65536] == content(i)));
}

#[test]
fn sets_of_home_writes_reach_every_contracts_image() {
    for contract in [Contract::Power, Contract::GuestCrash, window(5)] {
        let folder = tempfile::tempdir().expect("a folder");
        let group = open(folder.path(), contract);
        let home = group.home_writer(DiskIndex(1)).expect("a writer");
        let mut expected = vec![0u8; IMAGE_BYTES as usize];
        let mut lane = Blocking::new(group.disks()[1].open_lane().expect("a lane"));
        let mut found = vec![0; IMAGE_BYTES as usize];
        // Laps of the smallest log, each set close to the largest.
        assert!(home.atomic_bytes_max().is_none_or(|bytes| bytes >= IMAGE_BYTES));
        assert_eq!(home.atomic_bytes_max().is_some(), contract == window(5));
        for round in 0..12u8 {
            let contents: Vec<Vec<u8>> = (0..512u64).map(|n| vec![round ^ n as u8; 4096]).collect();
            // Every other block, and then all of them, backwards.
            let step = if round % 3 == 2 { 1 } else { 2 };
            let blocks: Vec<(Sector, &[u8])> = (0..1024u64 / step)
                .rev()
                .map(|n| (Sector(n * step * 8), &contents[n as usize % 512][..]))
                .collect();
            home.write_home(&blocks).expect("written");
            for (sector, bytes) in &blocks {
                expected[sector.0 as usize * 512..][..bytes.len()].copy_from_slice(bytes);
            }
            lane.read(Sector(0), &mut found).expect("a read");
            assert!(found == expected, "{contract}, round {round}");
        }
        let covered = group.flush().expect("a flush");
        assert_eq!(covered, group.status().acknowledged);
        if contract == window(5) {
            assert!(group.status().log_appended_bytes > 2 * group.status().log_max_bytes);
            let large = vec![0u8; home.atomic_bytes_max().expect("a log's") as usize + 512];
            let parts: Vec<(Sector, &[u8])> = large.chunks(4096).map(|c| (Sector(0), c)).collect();
            assert!(matches!(home.write_home(&parts), Err(HomeError::TooLarge { .. })));
        }
        assert!(matches!(
            home.write_home(&[(Sector(IMAGE_BYTES / 512), &[0; 512])]),
            Err(HomeError::Block(_))
        ));
        assert!(matches!(group.home_writer(DiskIndex(2)), Err(BlockError::Unsupported(_))));
        drop((home, lane));
        group.close().expect("an orderly end");
        assert!(std::fs::read(folder.path().join("b.raw")).expect("the image") == expected);
    }
}

#[test]
fn a_pause_holds_sets_back_and_an_end_refuses_them() {
    for contract in [Contract::Power, Contract::GuestCrash, window(50)] {
        let folder = tempfile::tempdir().expect("a folder");
        let group = open(folder.path(), contract);
        let home = group.home_writer(DiskIndex(0)).expect("a writer");
        home.write_home(&[(Sector(0), &[1; 4096])]).expect("written");
        for round in 2..20u8 {
            let paused = group.pause(None).expect("a pause");
            assert!(
                std::fs::read(folder.path().join("a.raw")).expect("the image")[..4096] == [round - 1; 4096]
            );
            let writer = {
                let home = Arc::clone(&home);
                std::thread::spawn(move || home.write_home(&[(Sector(0), &[round; 4096])]))
            };
            assert_eq!(group.status().acknowledged, paused, "held back");
            group.resume();
            writer.join().expect("the writer").expect("it goes on");
        }
        if contract == window(50) {
            group.close().expect("an orderly end");
            assert!(matches!(home.write_home(&[(Sector(0), &[1; 512])]), Err(HomeError::Block(_))));
        }
    }
}

#[test]
fn a_read_only_disk_takes_no_sets() {
    let folder = tempfile::tempdir().expect("a folder");
    let writable = image(folder.path(), "a.raw", DirectMode::Off);
    create_image(&folder.path().join("r.raw"), IMAGE_BYTES).expect("a new image");
    let path = folder.path().join("r.raw");
    let read_only = OpenOptions { read_only: true, any_content: true, ..OpenOptions::new(&path) };
    let read_only = ImageStore::open(&read_only).expect("an image");
    for contract in [Contract::GuestCrash, window(50)] {
        let options =
            GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
        let images = vec![Arc::clone(&read_only), Arc::clone(&writable)];
        let group = Group::open(images, options).expect("a group");
        assert!(matches!(group.home_writer(DiskIndex(0)), Err(BlockError::ReadOnly)));
        let home = group.home_writer(DiskIndex(1)).expect("a writer");
        home.write_home(&[(Sector(8), &[3; 4096])]).expect("written");
        drop(home);
        group.close().expect("an orderly end");
        let raw = std::fs::read(folder.path().join("a.raw")).expect("the image");
        assert!(raw[4096..8192] == [3; 4096], "{contract}: the disk of that index");
    }
}
