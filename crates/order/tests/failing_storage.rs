//! Storage fails, the daemon is killed, the storage is mended, the next daemon starts: what that one calls durable is.
//! On a real ext4 over a loop device, whose pages stay in the cache as if they had been written.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, FlushKind, Sector};
use afterimage_order::{offline, Contract, Group, GroupOptions};
use afterimage_store::{create_image, DirectMode, ImageStore, OpenOptions};
use afterimage_testing::{is_inside, on_a_device, skip, FailingStorage};

const MIB: usize = 1 << 20;

fn open(folder: &Path, contract: Contract, direct: DirectMode) -> Arc<Group> {
    let path = folder.join("a.raw");
    if !path.exists() {
        create_image(&path, 4 << 20).expect("a new image");
    }
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(contract) };
    let image = ImageStore::open(&OpenOptions { direct, any_content: true, ..OpenOptions::new(&path) });
    Group::open(vec![image.expect("an image")], options).expect("a group")
}

fn window() -> Contract {
    // Nothing is synced that nobody asks for, within this test.
    Contract::PowerWindow { window: Duration::from_secs(60) }
}

fn lane(group: &Group) -> Blocking {
    Blocking::new(group.disks()[0].open_lane().expect("a lane"))
}

fn content(group: &Group) -> Vec<u8> {
    let mut content = vec![0; MIB];
    lane(group).read(Sector(0), &mut content).expect("a read");
    content
}

#[test]
fn the_logs_sync_fails() {
    on_a_device("log_sync_fails");
}

#[test]
#[ignore = "run in a namespace by the_logs_sync_fails"]
fn log_sync_fails() {
    if !is_inside() {
        return skip("run by the_logs_sync_fails");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let storage = FailingStorage::new(folder.path(), 40 << 20);
    let group = open(storage.folder(), window(), DirectMode::Off);
    storage.fail_under(&storage.folder().join("a.raw.aflog"));
    lane(&group).write(Sector(0), &[0x22; MIB]).expect("the page cache takes it");
    group.flush().expect_err("the log's storage has failed");
    drop(group);
    storage.mend();

    let group = open(storage.folder(), window(), DirectMode::Off);
    assert!(content(&group) == [0x22; MIB], "the cache still has what was acknowledged");
    let durable = group.flush().expect("the storage is mended");
    drop(group);
    storage.remount();

    let group = open(storage.folder(), window(), DirectMode::Off);
    assert!(
        group.status().acknowledged >= durable,
        "{:?} instead of {durable:?}",
        group.status().acknowledged
    );
    assert!(content(&group) == [0x22; MIB], "what was called durable is gone");
}

#[test]
fn an_images_sync_fails() {
    on_a_device("image_sync_fails");
}

#[test]
#[ignore = "run in a namespace by an_images_sync_fails"]
fn image_sync_fails() {
    if !is_inside() {
        return skip("run by an_images_sync_fails");
    }
    // What comes after the failure: the same contract, another, one with O_DIRECT, or a log that begins on this image.
    let nexts = [
        (Contract::Power, DirectMode::Off),
        (Contract::GuestCrash, DirectMode::Off),
        (Contract::Power, DirectMode::On),
        (window(), DirectMode::Off),
    ];
    for (next, direct) in nexts {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = FailingStorage::new(folder.path(), 40 << 20);
        let group = open(storage.folder(), Contract::Power, DirectMode::Off);
        lane(&group).write(Sector(0), &[0x11; 4 * MIB]).expect("a write");
        group.flush().expect("a sync");
        storage.fail_under_first(&storage.folder().join("a.raw"), MIB as u64);
        lane(&group).write(Sector(0), &[0x22; MIB]).expect("the page cache takes it");
        lane(&group).flush(FlushKind::Order).expect_err("the image's storage has failed");
        drop(group);
        storage.mend();

        let group = open(storage.folder(), next, direct);
        assert!(content(&group) == [0x22; MIB], "{next} {direct:?}: what had completed is gone");
        lane(&group).flush(FlushKind::Durable).expect("the storage is mended");
        drop(group);
        storage.remount();
        let group = open(storage.folder(), Contract::Power, direct);
        assert!(content(&group) == [0x22; MIB], "{next} {direct:?}: what was called durable is gone");
    }
}

#[test]
fn going_home_fails() {
    on_a_device("home_sync_fails");
}

#[test]
#[ignore = "run in a namespace by going_home_fails"]
fn home_sync_fails() {
    if !is_inside() {
        return skip("run by going_home_fails");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let storage = FailingStorage::new(folder.path(), 40 << 20);
    let path = storage.folder().join("a.raw");
    let group = open(storage.folder(), Contract::Power, DirectMode::Off);
    lane(&group).write(Sector(0), &[0x11; 4 * MIB]).expect("a write");
    group.close().expect("an orderly end");
    drop(group);
    let group = open(storage.folder(), window(), DirectMode::Off);
    lane(&group).write(Sector(0), &[0x22; MIB]).expect("a write");
    group.flush().expect("the log is sound");
    storage.fail_under(&path);
    group.pause(None).expect_err("the image's storage has failed");
    drop(group);
    storage.mend();

    let recovered = offline::recover(&path, &offline::RecoverOptions::default()).expect("a recovery");
    assert!(recovered.replayed.is_some_and(|replayed| replayed.records > 0));
    storage.remount();
    let group = open(storage.folder(), Contract::Power, DirectMode::Off);
    assert!(content(&group) == [0x22; MIB], "what was brought home is gone");
}
