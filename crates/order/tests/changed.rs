//! An image that somebody has changed since its log was written: what only the log holds stays within reach.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, FlushKind, Sector};
use afterimage_order::offline::{self, RecoverOptions};
use afterimage_order::{Contract, Group, GroupOptions};
use afterimage_store::{create_image, mark_of, DirectMode, ImageStore, OpenOptions};
use afterimage_testing::{command, is_inside, on_a_device};

const WINDOW: Contract = Contract::PowerWindow { window: Duration::from_millis(50) };
const PLAIN: RecoverOptions =
    RecoverOptions { dry_run: false, accept_loss: false, trust_image: false, apply_anyway: false };
const ANYWAY: RecoverOptions = RecoverOptions { apply_anyway: true, ..PLAIN };
const ACCEPT_LOSS: RecoverOptions = RecoverOptions { accept_loss: true, ..PLAIN };
const SECTOR: Sector = Sector(8 << 11);
const CONTENT: [u8; 8192] = [7; 8192];

fn open(path: &Path) -> Result<Arc<Group>, afterimage_order::OpenError> {
    let image = OpenOptions { direct: DirectMode::Off, any_content: true, ..OpenOptions::new(path) };
    let options = GroupOptions { log_max_bytes: GroupOptions::LOG_MIN_BYTES, ..GroupOptions::new(WINDOW) };
    Group::open(vec![ImageStore::open(&image).expect("an image")], options)
}

/// An ext4 of 16 MiB, whose daemon died with a write and a discard that are only in the log.
fn died(folder: &Path) -> (PathBuf, PathBuf) {
    let path = folder.join("disk.raw");
    create_image(&path, 16 << 20).expect("an image");
    command("mkfs.ext4", &["-q", "-F", path.to_str().expect("text")]);
    let group = open(&path).expect("a group");
    let mut lane = Blocking::new(group.disks()[0].open_lane().expect("a lane"));
    lane.write(SECTOR, &[1; 4096]).expect("a write");
    lane.write(SECTOR, &CONTENT).expect("a write");
    lane.write_zeroes(Sector(SECTOR.0 + 4096), 16, true).expect("zeroes");
    lane.flush(FlushKind::Durable).expect("a flush");
    drop((lane, group));
    (path, folder.join("disk.raw.aflog"))
}

fn holds_the_write(path: &Path) -> bool {
    fs::read(path).expect("an image")[SECTOR.0 as usize * 512..][..CONTENT.len()] == CONTENT
}

/// `mount -o loop`, which asks nobody.
fn mount_and_unmount(image: &Path, folder: &Path) {
    let mounted = folder.join("mounted");
    fs::create_dir_all(&mounted).expect("a folder");
    command("mount", &["-o", "loop", image.to_str().expect("text"), mounted.to_str().expect("text")]);
    fs::write(mounted.join("new"), "from the host").expect("a file");
    command("umount", &[mounted.to_str().expect("text")]);
}

#[test]
fn a_mount_behind_the_logs_back_is_said_and_its_content_is_had() {
    on_a_device("mounted_behind_the_logs_back");
}

#[test]
#[ignore = "mounts; run by a_mount_behind_the_logs_back_is_said_and_its_content_is_had"]
fn mounted_behind_the_logs_back() {
    if !is_inside() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (image, log) = died(folder.path());
    mount_and_unmount(&image, folder.path());
    let error = open(&image).err().expect("refused").to_string();
    assert!(error.contains("was changed since") && error.contains("--apply-anyway"), "{error}");
    assert!(error.contains("3 requests"), "{error}");
    for options in [PLAIN, RecoverOptions { trust_image: true, ..PLAIN }] {
        let error = offline::recover(&image, &options).expect_err("refused").to_string();
        assert!(error.contains("was changed since"), "{error}");
    }
    let dry = offline::recover(&image, &RecoverOptions { dry_run: true, ..ANYWAY }).expect("a dry run");
    assert_eq!(dry.replayed.expect("in the log").records, 3);
    assert!(!holds_the_write(&image) && log.exists());
    offline::recover(&image, &ANYWAY).expect("applied");
    assert!(holds_the_write(&image) && !log.exists());
    assert!(mark_of(&image).expect("readable").is_none());
    open(&image).expect("a group").close().expect("an end");
}

#[test]
fn what_a_log_would_change_is_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let (image, log) = died(folder.path());
    let before = (fs::read(&image).expect("an image"), fs::read(&log).expect("a log"));
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("a folder");
    for (path, n) in [(&image, 0), (&log, 1)] {
        let out = out.join(n.to_string());
        fs::create_dir(&out).expect("a folder");
        let report = offline::export(path, &out).expect("an export");
        let exported = &report.images[0];
        assert_eq!((exported.data_bytes, exported.zero_bytes), (8192, 8192), "{report}");
        let ranges = fs::read_to_string(&exported.ranges).expect("ranges");
        assert_eq!(ranges, "8388608 8192 data\n10485760 8192 zeroes\n");
        assert!(holds_the_write(&exported.content));
        assert_eq!(fs::metadata(&exported.content).expect("a file").len(), 16 << 20);
        assert!(offline::export(path, &out).is_err(), "nothing is overwritten");
    }
    assert!(before == (fs::read(&image).expect("an image"), fs::read(&log).expect("a log")));
    // Without the image, too.
    fs::remove_file(&image).expect("removed");
    fs::create_dir(out.join("2")).expect("a folder");
    offline::export(&log, &out.join("2")).expect("an export");
}

#[test]
fn the_log_of_a_changed_image_may_be_given_up_and_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (image, log) = died(folder.path());
    let mut changed = fs::read(&image).expect("an image");
    changed[1024 + 0x34] ^= 1;
    fs::write(&image, &changed).expect("changed");
    let would =
        offline::recover(&image, &RecoverOptions { dry_run: true, ..ACCEPT_LOSS }).expect("a dry run");
    assert!(would.given_up.is_some() && log.exists());
    let gave = offline::recover(&image, &ACCEPT_LOSS).expect("given up");
    let kept = gave.log_kept.clone().expect("a log");
    assert!(kept.exists() && !log.exists() && gave.to_string().contains("is kept as"), "{gave}");
    assert!(fs::read(&image).expect("an image") == changed);
    open(&image).expect("a group").close().expect("an end");
}
