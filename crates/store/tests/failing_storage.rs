//! What is acknowledged on storage that fails: a real ext4 on a loop device that loses what is written back.

use std::path::Path;
use std::sync::{Arc, Barrier};

use afterimage_block::{Blocking, Disk as _, FlushKind, Medium as _, Sector};
use afterimage_store::{create_image, DirectMode, FileMedium, Image as _, ImageStore, OpenOptions};
use afterimage_testing::{is_inside, on_a_device, skip, FailingStorage};

const MIB: usize = 1 << 20;

fn open(path: &Path) -> Arc<ImageStore> {
    ImageStore::open(&OpenOptions { direct: DirectMode::Off, ..OpenOptions::new(path) }).unwrap()
}

/// An image all of whose blocks are written, on storage that is about to fail.
fn written_image(storage: &FailingStorage) -> std::path::PathBuf {
    let path = storage.folder().join("disk.img");
    create_image(&path, 4 << 20).unwrap();
    let disk = open(&path);
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    lane.write(Sector(0), &vec![0x11; 4 * MIB]).unwrap();
    lane.flush(FlushKind::Durable).unwrap();
    path
}

#[test]
fn flushes_of_two_queues_at_once() {
    on_a_device("two_queues");
}

#[test]
#[ignore = "run in a namespace by flushes_of_two_queues_at_once"]
fn two_queues() {
    if !is_inside() {
        return skip("run by flushes_of_two_queues_at_once");
    }
    for round in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let storage = FailingStorage::new(folder.path(), 24 << 20);
        let path = written_image(&storage);
        storage.fail_under(&path);
        let disk = open(&path);
        let together = Barrier::new(2);
        let answers = std::thread::scope(|threads| {
            let queues = [0u64, 1].map(|queue| {
                let (disk, together) = (&disk, &together);
                threads.spawn(move || {
                    let mut lane = Blocking::new(disk.open_lane().unwrap());
                    // The page cache takes it.
                    lane.write(Sector(queue * 2048), &vec![0x22; MIB]).unwrap();
                    together.wait();
                    // The second round's other side is what `ctl flush` does.
                    if queue == 1 && round % 2 == 1 {
                        return disk.medium().sync().is_ok();
                    }
                    lane.flush(FlushKind::Order).is_ok()
                })
            });
            queues.map(|queue| queue.join().unwrap())
        });
        assert!(disk.health().failure().is_some(), "the disk goes on");
        drop(disk);
        storage.mend();
        storage.remount();
        let content = std::fs::read(&path).unwrap();
        for (queue, answered) in answers.into_iter().enumerate() {
            let kept = content[queue * MIB..][..MIB] == vec![0x22; MIB];
            assert!(
                kept || !answered,
                "round {round}: queue {queue} was told that its data is durable, and it is gone"
            );
        }
    }
}

#[test]
fn syncs_of_one_log_at_once() {
    on_a_device("two_syncs");
}

#[test]
#[ignore = "run in a namespace by syncs_of_one_log_at_once"]
fn two_syncs() {
    if !is_inside() {
        return skip("run by syncs_of_one_log_at_once");
    }
    for round in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let storage = FailingStorage::new(folder.path(), 24 << 20);
        let path = storage.folder().join("log");
        let log = FileMedium::create(&path, 4 << 20).unwrap();
        log.write_at(&vec![0x11; 4 * MIB], 0).unwrap();
        log.sync().unwrap();
        storage.fail_under(&path);
        let together = Barrier::new(2);
        let answers = std::thread::scope(|threads| {
            let syncs = [0u64, 1].map(|half| {
                let (log, together) = (&log, &together);
                threads.spawn(move || {
                    log.write_at(&vec![0x22; MIB], half * MIB as u64).unwrap();
                    together.wait();
                    log.sync().is_ok()
                })
            });
            syncs.map(|sync| sync.join().unwrap())
        });
        assert_eq!(answers, [false, false], "round {round}: the log was declared durable, and it is gone");
        assert!(log.sync().is_err(), "round {round}: a later sync forgets the failure");
    }
}
