//! A disk with retained journals is a disk: the suite of all layers, on a blank one and on one that holds an ext4.

mod common;

use std::sync::Arc;

use afterimage_block::{Disk, Medium, MediumDisk};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::RetainDisk;
use common::{wait_for_home, Memory};

fn retained(base: Vec<u8>, folder: &tempfile::TempDir) -> Arc<dyn Disk> {
    let identity = ArenaIdentity { uuid: [1; 16], inode: 2, size_bytes: base.len() as u64 };
    let arena = Arena::create(&folder.path().join("arena"), identity, 4 << 20).unwrap();
    let lower = Arc::new(MediumDisk::new(Memory::new(base) as Arc<dyn Medium>));
    Arc::new(RetainDisk::open(lower, arena, wait_for_home()).unwrap())
}

#[test]
fn a_blank_disk_conforms() {
    for seed in 0..8 {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        afterimage_block_conformance::run(seed, 400, || retained(vec![0; 8 << 20], &folder)).unwrap();
    }
}

/// Random requests go over the journal, its inode and the superblock: whatever the layer makes of that, what was
/// written is read.
#[test]
fn a_disk_with_a_file_system_conforms() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-J", "size=4"])
        .arg(image.path())
        .status()
        .unwrap();
    assert!(made.success());
    let base = std::fs::read(image.path()).unwrap();
    for seed in 0..8 {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        afterimage_block_conformance::run(seed, 400, || retained(base.clone(), &folder)).unwrap();
    }
}

#[test]
fn several_lanes_at_once_conform() {
    for seed in 0..4 {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        afterimage_block_conformance::run_threads(seed, 200, 3, || retained(vec![0; 8 << 20], &folder))
            .unwrap();
    }
}
