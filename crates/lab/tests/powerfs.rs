//! The power-cut file system through the kernel: what a program that syncs keeps, and one that does not loses.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use afterimage_lab::powerfs::{Faults, MountOptions, PowerMount};

fn mount(seed: u64) -> PowerMount {
    PowerMount::mount(&MountOptions { seed, ..MountOptions::default() }).unwrap()
}

fn create_synced(mount: &PowerMount, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    let file = options.open(mount.join(name)).unwrap();
    file.sync_all().unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    file
}

fn cycle(mount: &PowerMount, seed: u64, kept_per_mille: u64, torn_per_mille: u64) {
    mount.cut_keeping(seed, kept_per_mille, torn_per_mille).unwrap();
    mount.restore().unwrap();
}

/// The canary: a harness that can not catch a missing sync is worth nothing.
#[test]
fn a_forgotten_sync_loses_data_and_a_sync_does_not() {
    let mount = mount(1);
    let careful = create_synced(&mount, "careful");
    let careless = create_synced(&mount, "careless");
    careful.write_all_at(&[1; 8192], 0).unwrap();
    careful.sync_all().unwrap();
    careless.write_all_at(&[1; 8192], 0).unwrap();
    cycle(&mount, 7, 0, 0);
    assert_eq!(fs::read(mount.join("careful")).unwrap(), [1; 8192]);
    assert!(fs::read(mount.join("careless")).unwrap().is_empty());
}

/// Data that has reached the drive but was not flushed is just as volatile.
#[test]
fn what_reached_the_drive_unsynced_is_a_lottery() {
    let mount = mount(2);
    for (seed, kept) in [(1, 0), (2, 1000)] {
        let name = format!("file{seed}");
        create_synced(&mount, &name);
        let file =
            OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(mount.join(&name)).unwrap();
        let layout = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
        // An aligned block, as O_DIRECT wants it, without unsafe: cut out of a larger vector.
        let space = vec![9; 8192];
        let skip = space.as_ptr().align_offset(layout.align());
        file.write_all_at(&space[skip..skip + 4096], 0).unwrap();
        assert_eq!(mount.status().unwrap().volatile_bytes, 4096);
        cycle(&mount, seed, kept, 0);
        let expected = if kept == 0 { Vec::new() } else { vec![9; 4096] };
        assert_eq!(fs::read(mount.join(&name)).unwrap(), expected);
    }
}

#[test]
fn a_write_that_is_durable_by_itself_survives() {
    let mount = mount(3);
    create_synced(&mount, "log");
    let mut log =
        OpenOptions::new().append(true).custom_flags(libc::O_DSYNC).open(mount.join("log")).unwrap();
    log.write_all(b"one").unwrap();
    log.write_all(b"two").unwrap();
    cycle(&mount, 1, 0, 0);
    assert_eq!(fs::read(mount.join("log")).unwrap(), b"onetwo");
}

#[test]
fn syncing_one_file_does_not_save_another() {
    let mount = mount(4);
    let a = create_synced(&mount, "a");
    let b = create_synced(&mount, "b");
    a.write_all_at(b"aaaa", 0).unwrap();
    b.write_all_at(b"bbbb", 0).unwrap();
    b.sync_all().unwrap();
    cycle(&mount, 1, 0, 0);
    assert_eq!(fs::read(mount.join("a")).unwrap(), b"");
    assert_eq!(fs::read(mount.join("b")).unwrap(), b"bbbb");
}

#[test]
fn an_extended_attribute_needs_an_fsync() {
    let mount = mount(17);
    let file = create_synced(&mount, "image");
    let name = "user.afterimage.test";
    let value = || {
        let mut value = [0; 16];
        let path = mount.join("image");
        rustix::fs::getxattr(path, name, &mut value).ok().map(|len| value[..len].to_vec())
    };
    let set = |file: &File, value: &[u8]| {
        rustix::fs::fsetxattr(file, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set(&file, b"lost");
    rustix::fs::fdatasync(&file).unwrap();
    assert_eq!(value().unwrap(), b"lost");
    cycle(&mount, 1, 0, 0);
    assert_eq!(value(), None, "fdatasync does not cover it");

    let file = File::options().write(true).open(mount.join("image")).unwrap();
    set(&file, b"kept");
    file.sync_all().unwrap();
    fs::rename(mount.join("image"), mount.join("other")).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    fs::rename(mount.join("other"), mount.join("image")).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    cycle(&mount, 2, 0, 0);
    assert_eq!(value().unwrap(), b"kept", "it goes with the inode");

    let file = File::options().write(true).open(mount.join("image")).unwrap();
    rustix::fs::fremovexattr(&file, name).unwrap();
    cycle(&mount, 3, 0, 0);
    assert_eq!(value().unwrap(), b"kept", "an unsynced removal is undone");
}

#[test]
fn torn_sectors_appear() {
    let mount = mount(5);
    let file = create_synced(&mount, "image");
    file.write_all_at(&[b'o'; 1 << 16], 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&[b'n'; 1 << 16], 0).unwrap();
    // Writes back without a flush: what `sync_file_range` is for.
    rustix_writeback(&file);
    let cut = mount.cut_keeping(1, 1000, 500).unwrap();
    assert!(cut.report.content.sectors_torn > 20, "{:?}", cut.report);
    mount.restore().unwrap();
    let left = fs::read(mount.join("image")).unwrap();
    let torn = left.chunks(512).filter(|s| s.contains(&b'o') && s.contains(&b'n')).count() as u64;
    assert_eq!(torn, cut.report.content.sectors_torn);
}

/// Starts write-back of a file's dirty pages and waits for it, without any flush: reading through O_DIRECT
/// does exactly that.
fn rustix_writeback(file: &File) {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut space = vec![0; 8192];
    let skip = space.as_ptr().align_offset(4096);
    let _ = direct.read(&mut space[skip..skip + 4096]).unwrap();
}

#[test]
fn a_rename_without_a_sync_of_its_directory_may_vanish() {
    let mount = mount(6);
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let name = format!("state{seed}");
        let mut old = create_synced(&mount, &name);
        old.write_all(b"old").unwrap();
        old.sync_all().unwrap();
        let fresh_path = mount.join("fresh");
        let mut fresh = File::create(&fresh_path).unwrap();
        fresh.write_all(b"new").unwrap();
        fresh.sync_all().unwrap();
        fs::rename(&fresh_path, mount.join(&name)).unwrap();
        cycle(&mount, seed, 500, 0);
        outcomes.insert(fs::read(mount.join(&name)).unwrap());
        let _ = fs::remove_file(&fresh_path);
    }
    assert_eq!(outcomes, [b"new".to_vec(), b"old".to_vec()].into());

    let fresh_path = mount.join("fresh");
    create_synced(&mount, "state");
    fs::write(&fresh_path, "new").unwrap();
    File::open(&fresh_path).unwrap().sync_all().unwrap();
    fs::rename(&fresh_path, mount.join("state")).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    cycle(&mount, 1, 0, 0);
    assert_eq!(fs::read(mount.join("state")).unwrap(), b"new");
}

#[test]
fn without_power_everything_fails_and_old_handles_stay_dead() {
    let mount = mount(7);
    let file = create_synced(&mount, "file");
    file.write_all_at(b"durable", 0).unwrap();
    file.sync_all().unwrap();
    mount.cut(3, 0).unwrap();
    assert!(file.sync_all().is_err() || file.read_at(&mut [0; 1 << 16], 1 << 20).is_err());
    assert!(File::open(mount.join("file")).is_err());
    mount.restore().unwrap();
    let _ = file.write_all_at(b"ghost", 0);
    assert!(file.sync_all().is_err(), "a write from before the cut must not land after it");
    drop(file);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"durable");
}

/// Disks keep their inode numbers over a power cut, and programs rely on it; of the time of last change only
/// what an fsync made durable is sure.
#[test]
fn numbers_stay_and_times_may_go_back() {
    let mount = mount(13);
    let file = create_synced(&mount, "file");
    let born = file.metadata().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_all_at(b"later", 0).unwrap();
    rustix::fs::fdatasync(&file).unwrap();
    let before = fs::metadata(mount.join("file")).unwrap();
    assert!((before.mtime(), before.mtime_nsec()) > (born.mtime(), born.mtime_nsec()));
    cycle(&mount, 1, 0, 0);
    let after = fs::metadata(mount.join("file")).unwrap();
    assert_eq!(after.ino(), born.ino());
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"later");
    assert!((after.mtime(), after.mtime_nsec()) < (before.mtime(), before.mtime_nsec()));

    let file = OpenOptions::new().write(true).open(mount.join("file")).unwrap();
    file.write_all_at(b"again", 0).unwrap();
    file.sync_all().unwrap();
    let before = fs::metadata(mount.join("file")).unwrap();
    cycle(&mount, 2, 0, 0);
    let after = fs::metadata(mount.join("file")).unwrap();
    assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
}

#[test]
fn an_armed_cut_comes_at_its_operation() {
    let mount = mount(8);
    let file = create_synced(&mount, "file");
    mount.arm(6, 11, 0).unwrap();
    let mut acknowledged = 0;
    for index in 0..10_u64 {
        let written = file.write_all_at(&[index as u8 + 1; 4096], index * 4096);
        if written.and_then(|()| file.sync_all()).is_err() {
            break;
        }
        acknowledged = index + 1;
    }
    assert!(acknowledged > 0 && acknowledged < 6, "{acknowledged}");
    let status = mount.status().unwrap();
    assert!(!status.powered && status.last_cut.unwrap().seed == 11);
    mount.restore().unwrap();
    let left = fs::read(mount.join("file")).unwrap();
    for index in 0..acknowledged as usize {
        assert_eq!(left[index * 4096..(index + 1) * 4096], [index as u8 + 1; 4096]);
    }
}

#[test]
fn an_armed_cut_comes_at_its_time() {
    let mount = mount(14);
    let file = create_synced(&mount, "file");
    let arm = |ms: u64| serde_json::json!({ "command": "arm", "after_ms": ms, "seed": 5 });
    mount.request(&arm(3_600_000)).unwrap();
    mount.request(&arm(30)).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while file.sync_all().is_ok() && std::time::Instant::now() < end {}
    assert_eq!(mount.status().unwrap().last_cut.unwrap().seed, 5);
}

#[test]
fn counters_are_exact() {
    let mount = mount(9);
    let file = create_synced(&mount, "file");
    mount.reset_counters().unwrap();
    for index in 0..5 {
        file.write_all_at(&[1; 4096], index * 4096).unwrap();
        file.sync_all().unwrap();
    }
    let counters = mount.counters().unwrap();
    let counted = counters.files["/file"];
    assert_eq!((counted.writes, counted.write_bytes, counted.syncs), (5, 5 * 4096, 5));
    assert_eq!(counters.total, counted);
}

#[test]
fn holes_stay_holes_and_punching_works() {
    let mount = mount(10);
    let mut file = create_synced(&mount, "image");
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&[7; 1 << 20], 1 << 20).unwrap();
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 <= 2 << 20);
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        1 << 19,
    )
    .unwrap();
    let mut byte = [1];
    file.seek(SeekFrom::Start(1 << 20)).unwrap();
    file.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0]);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap(), (1 << 20) + (1 << 19));
    file.sync_all().unwrap();
    cycle(&mount, 1, 0, 0);
    assert_eq!(fs::metadata(mount.join("image")).unwrap().len(), 1 << 30);
    assert_eq!(
        rustix::fs::seek(File::open(mount.join("image")).unwrap(), rustix::fs::SeekFrom::Data(0)).unwrap(),
        (1 << 20) + (1 << 19)
    );
}

#[test]
fn faults_fail_what_they_were_asked_to() {
    let mount = mount(11);
    let file = create_synced(&mount, "victim");
    let other = create_synced(&mount, "other");
    let only = Some("victim".to_owned());
    mount.set_faults(&Faults { sync_errors: 1, path_suffix: only.clone(), ..Faults::default() }).unwrap();
    other.sync_all().unwrap();
    file.write_all_at(b"x", 0).unwrap();
    assert!(file.sync_all().is_err());
    file.sync_all().unwrap();

    mount.set_faults(&Faults { write_errors: 1, ..Faults::default() }).unwrap();
    file.write_all_at(b"y", 4096).unwrap();
    assert!(file.sync_all().is_err(), "the write error comes with the sync, as from a local file system");

    mount.set_faults(&Faults { space_left_bytes: Some(8192), ..Faults::default() }).unwrap();
    let direct =
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(mount.join("other")).unwrap();
    let space = vec![9; 8192];
    let skip = space.as_ptr().align_offset(4096);
    let block = &space[skip..skip + 4096];
    direct.write_all_at(block, 0).unwrap();
    direct.write_all_at(block, 4096).unwrap();
    let full = direct.write_all_at(block, 8192).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    direct.write_all_at(block, 0).unwrap();
}

#[test]
fn locks_work() {
    let mount = mount(12);
    let first = create_synced(&mount, "image");
    let second = File::open(mount.join("image")).unwrap();
    first.try_lock().unwrap();
    assert!(second.try_lock().is_err());
    // Unlocked, not dropped: a child that another test is about to start holds a copy for a moment.
    first.unlock().unwrap();
    second.try_lock().unwrap();
}
