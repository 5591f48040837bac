//! What a start believes: the cache is not right because it differs from storage.
//!
//! On storage whose cache may be older than itself (devices, FUSE), and on storage that fails and is mended.

#[path = "starts/fuse.rs"]
mod fuse;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Blocking, FlushKind, Sector};
use afterimage_order::{offline, Contract, Group, GroupOptions, OpenError};
use afterimage_store::{create_image, give_up_looking_when, DirectMode, ImageStore, OpenOptions};
use afterimage_testing::{command, in_namespace, is_inside, is_root, on_a_device, skip, FailingStorage};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const MIB: usize = 1 << 20;

fn try_open(path: &Path, direct: DirectMode) -> Result<Arc<Group>, OpenError> {
    let options = OpenOptions { direct, any_content: true, ..OpenOptions::new(path) };
    Group::open(vec![ImageStore::open(&options)?], GroupOptions::new(Contract::Power))
}

fn open(path: &Path, direct: DirectMode) -> Arc<Group> {
    try_open(path, direct).expect("a group")
}

fn lane(group: &Group) -> Blocking {
    Blocking::new(group.disks()[0].open_lane().expect("a lane"))
}

fn content(group: &Group) -> Vec<u8> {
    let mut content = vec![0; MIB];
    lane(group).read(Sector(0), &mut content).expect("a read");
    content
}

/// A loop device that goes with its last user.
struct Device {
    backing: PathBuf,
    name: PathBuf,
    /// Keeps it, and what is in its cache.
    _held: File,
}

impl Device {
    fn new(folder: &Path, sector_bytes: &str) -> Self {
        let backing = folder.join("backing");
        fs::write(&backing, vec![0x11; MIB]).expect("a backing file");
        let made = ["--find", "--show", "--sector-size", sector_bytes, backing.to_str().expect("a name")];
        let name = command("losetup", &made).trim_end().to_owned();
        let held = File::open(&name).expect("the device");
        command("losetup", &["--detach", &name]);
        Self { backing, name: name.into(), _held: held }
    }

    /// What any program leaves that reads the device as a file: its pages in the cache.
    fn is_looked_at(&self) {
        let mut all = Vec::new();
        File::open(&self.name).and_then(|mut device| device.read_to_end(&mut all)).expect("a look");
    }

    /// Storage changes, and the cache of the device does not.
    fn changes_below_the_cache(&self) {
        self.is_looked_at();
        File::options()
            .write(true)
            .open(&self.backing)
            .and_then(|file| file.write_all_at(&vec![0x22; MIB], 0))
            .expect("room");
    }

    fn holds(&self, byte: u8) -> bool {
        fs::read(&self.backing).expect("the backing file") == vec![byte; MIB]
    }
}

#[test]
fn a_device_is_right_and_its_cache_is_not() {
    on_a_device("stale_device");
}

#[test]
#[ignore = "run in a namespace by a_device_is_right_and_its_cache_is_not"]
fn stale_device() {
    if !is_inside() {
        return skip("run by a_device_is_right_and_its_cache_is_not");
    }
    // The third has sectors of 4 KiB, for which a guest's disk is buffered.
    for (direct, sector) in [(DirectMode::Auto, "512"), (DirectMode::Off, "512"), (DirectMode::Auto, "4096")]
    {
        for ends in [true, false] {
            let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
            let device = Device::new(folder.path(), sector);
            let group = open(&device.name, direct);
            if ends {
                group.close().expect("an orderly end");
            }
            drop(group);
            device.changes_below_the_cache();
            let group = open(&device.name, direct);
            assert!(device.holds(0x22), "{direct:?} {ends}: a start wrote the cache over storage");
            assert!(content(&group) == [0x22; MIB], "{direct:?} {ends}: the guest is shown what is gone");
            lane(&group).flush(FlushKind::Durable).expect("a sync");
            assert!(device.holds(0x22), "{direct:?} {ends}: a sync wrote the cache over storage");
        }
    }
}

#[test]
fn another_host_has_written() {
    if !is_root() {
        return skip("mounting needs root");
    }
    in_namespace("stale_fuse");
}

#[test]
#[ignore = "run in a namespace by another_host_has_written"]
fn stale_fuse() {
    if !is_inside() {
        return skip("run by another_host_has_written");
    }
    for ends in [true, false] {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = fuse::Shared::mount(folder.path(), vec![0x11; MIB]);
        let group = open(&shared.file(), DirectMode::Off);
        assert!(content(&group) == [0x11; MIB]);
        if ends {
            group.close().expect("an orderly end");
        }
        drop(group);
        // The other host's file has the same times here: nothing makes this kernel look again.
        shared.set(vec![0x22; MIB]);
        drop(try_open(&shared.file(), DirectMode::Off));
        assert!(shared.get() == [0x22; MIB], "ended {ends}: a start wrote over what another host had stored");
    }
}

/// Without a way past the cache that can be relied upon, the only copy stays where it is.
#[test]
fn the_only_copy_outlives_starts_that_fail() {
    if !is_root() {
        return skip("mounting needs root");
    }
    in_namespace("only_copy");
}

#[test]
#[ignore = "run in a namespace by the_only_copy_outlives_starts_that_fail"]
fn only_copy() {
    if !is_inside() {
        return skip("run by the_only_copy_outlives_starts_that_fail");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let shared = fuse::Shared::mount(folder.path(), vec![0x11; MIB]);
    let group = open(&shared.file(), DirectMode::Off);
    shared.fail(true);
    lane(&group).write(Sector(0), &[0x22; MIB]).expect("the page cache takes it");
    lane(&group).flush(FlushKind::Order).expect_err("the server fails");
    drop(group);
    assert!(try_open(&shared.file(), DirectMode::Off).is_err(), "the server still fails");
    shared.fail(false);
    drop(try_open(&shared.file(), DirectMode::Off));
    assert!(fs::read(shared.file()).expect("a read") == [0x22; MIB], "what had completed is gone");
}

/// The image's storage fails below a daemon that is told, and killed.
///
/// On btrfs a file is written in place only where it is not copied on write, which the folder says.
fn fails(storage: &FailingStorage, path: &Path) {
    create_image(path, 4 << 20).expect("an image");
    let group = open(path, DirectMode::Off);
    lane(&group).write(Sector(0), &[0x11; 4 * MIB]).expect("a write");
    group.close().expect("an orderly end");
    drop(group);
    let group = open(path, DirectMode::Off);
    lane(&group).flush(FlushKind::Order).expect("a sync");
    storage.fail_where(0x11);
    drop(group);
    is_killed(path, Killed::Told);
    // The error was told, and is not told again: the next starts have to know it.
    for _ in 0..2 {
        if let Ok(group) = try_open(path, DirectMode::Off) {
            panic!("the storage still fails, and this was called durable: {:?}", group.status());
        }
    }
}

fn goes_on_when_mended(storage: &FailingStorage, path: &Path) {
    storage.mend();
    let group = open(path, DirectMode::Off);
    assert!(content(&group) == [0x22; MIB], "what had completed is gone");
    lane(&group).flush(FlushKind::Durable).expect("the storage is mended");
}

const KILLED: &str = "AFTERIMAGE_STARTS_IMAGE";
const SYNCS: &str = "AFTERIMAGE_STARTS_SYNCS";

/// When a daemon is killed whose storage has failed.
#[derive(PartialEq)]
enum Killed {
    BeforeItSyncs,
    Told,
}

/// A daemon's end that nothing can be done in: it has written, and perhaps been told that its sync failed.
fn is_killed(path: &Path, when: Killed) {
    let mut child = Command::new(std::env::current_exe().expect("this program's path"))
        .args(["--exact", "killed", "--ignored", "--nocapture"])
        .env(KILLED, path)
        .envs((when == Killed::Told).then_some((SYNCS, "1")))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let came_so_far = lines.map_while(Result::ok).any(|line| line == "so far");
    child.kill().and_then(|()| child.wait()).expect("killed");
    assert!(came_so_far, "the child has ended by itself");
}

/// Not a test of its own: what [`is_killed`] kills.
#[test]
#[ignore = "the process that is_killed kills"]
fn killed() {
    let Some(path) = std::env::var_os(KILLED) else {
        return skip("run by is_killed");
    };
    let group = open(Path::new(&path), DirectMode::Off);
    lane(&group).write(Sector(0), &[0x22; MIB]).expect("the page cache takes it");
    if std::env::var_os(SYNCS).is_some() {
        lane(&group).flush(FlushKind::Order).expect_err("the image's storage has failed");
    }
    println!("\nso far");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_failure_outlives_its_process_on_every_file_system() {
    on_a_device("file_systems");
}

#[test]
#[ignore = "run in a namespace by a_failure_outlives_its_process_on_every_file_system"]
fn file_systems() {
    if !is_inside() {
        return skip("run by a_failure_outlives_its_process_on_every_file_system");
    }
    on_every_file_system();
}

/// Linux before 6.5, and filters of containers, have no `cachestat`.
#[test]
fn a_failure_outlives_its_process_without_cachestat() {
    on_a_device("no_cachestat");
}

#[test]
#[ignore = "run in a namespace by a_failure_outlives_its_process_without_cachestat"]
fn no_cachestat() {
    if !is_inside() {
        return skip("run by a_failure_outlives_its_process_without_cachestat");
    }
    const SYS_CACHESTAT: i64 = 451;
    let (others, this) = (SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
    let arch = std::env::consts::ARCH.try_into().expect("a known processor");
    let filter = SeccompFilter::new([(SYS_CACHESTAT, Vec::new())].into(), others, this, arch);
    let filter: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
    // Of this thread, and of all threads and processes that it starts.
    seccompiler::apply_filter(&filter).expect("a filter");
    on_every_file_system();
}

fn on_every_file_system() {
    // The second has times of whole seconds. What O_DIRECT reads of btrfs is not relied upon.
    for make in [
        |folder: &Path| FailingStorage::new(folder, 40 << 20),
        |folder: &Path| FailingStorage::made_by(folder, 40 << 20, &["-I", "128"]),
        |folder: &Path| FailingStorage::other(folder, "mkfs.xfs", &["-q", "-K"], "defaults"),
        |folder: &Path| FailingStorage::other(folder, "mkfs.btrfs", &["-q", "-K"], "nodatacow"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = make(folder.path());
        let path = storage.folder().join("a.raw");
        fails(&storage, &path);
        goes_on_when_mended(&storage, &path);
        storage.remount();
        assert!(content(&open(&path, DirectMode::Off)) == [0x22; MIB], "what was called durable is gone");
    }
}

/// What nobody was told before a start, the kernel tells it: then it is noted.
#[test]
fn an_error_that_nobody_has_seen() {
    on_a_device("unseen");
}

#[test]
#[ignore = "run in a namespace by an_error_that_nobody_has_seen"]
fn unseen() {
    if !is_inside() {
        return skip("run by an_error_that_nobody_has_seen");
    }
    let (storage, path, _folder) = fails_unseen();
    for _ in 0..2 {
        assert!(try_open(&path, DirectMode::Off).is_err(), "the storage still fails");
    }
    goes_on_when_mended(&storage, &path);
    storage.remount();
    assert!(content(&open(&path, DirectMode::Off)) == [0x22; MIB], "what was called durable is gone");
}

/// A write completes, and its process dies before it syncs; the storage fails.
fn fails_unseen() -> (FailingStorage, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = FailingStorage::new(folder.path(), 40 << 20);
    let path = storage.folder().join("a.raw");
    create_image(&path, 4 << 20).expect("an image");
    let group = open(&path, DirectMode::Off);
    lane(&group).write(Sector(0), &[0x11; 4 * MIB]).expect("a write");
    lane(&group).flush(FlushKind::Order).expect("a sync");
    drop(group);
    storage.fail_under(&path);
    is_killed(&path, Killed::BeforeItSyncs);
    (storage, path, folder)
}

/// The limits of what can be known, as docs/crash-rules.md has them: these starts call durable what is not.
#[test]
fn what_nobody_knows_is_lost() {
    on_a_device("unknown");
}

#[test]
#[ignore = "run in a namespace by what_nobody_knows_is_lost"]
fn unknown() {
    if !is_inside() {
        return skip("run by what_nobody_knows_is_lost");
    }
    let goes_on = |storage: &FailingStorage, path: &Path| {
        storage.mend();
        let group = open(path, DirectMode::Off);
        assert!(content(&group) == [0x22; MIB]);
        lane(&group).flush(FlushKind::Durable).expect("the storage is mended");
        drop(group);
        storage.remount();
        content(&open(path, DirectMode::Off)) == [0x22; MIB]
    };
    // Another program syncs the file of a daemon that was killed, and is told.
    let (storage, path, _folder) = fails_unseen();
    File::open(&path).and_then(|file| file.sync_all()).expect_err("the storage fails");
    assert!(!goes_on(&storage, &path));
    // The note is lost: `/dev/shm` went with the container.
    let (storage, path, _folder) = fails_unseen();
    assert!(try_open(&path, DirectMode::Off).is_err(), "the storage still fails");
    command("mount", &["-t", "tmpfs", "none", "/dev/shm"]);
    assert!(!goes_on(&storage, &path));
    command("umount", &["/dev/shm"]);
}

/// What a failed sync has lost is not shown any more once its pages have left the cache: as after a power cut.
#[test]
fn what_has_left_the_cache_is_not_shown() {
    on_a_device("left_the_cache");
}

#[test]
#[ignore = "run in a namespace by what_has_left_the_cache_is_not_shown"]
fn left_the_cache() {
    if !is_inside() {
        return skip("run by what_has_left_the_cache_is_not_shown");
    }
    // The kernel needs their memory, or the file system is unmounted.
    for unmounts in [false, true] {
        let (storage, path, _folder) = fails_unseen();
        assert!(try_open(&path, DirectMode::Off).is_err(), "the storage still fails");
        storage.mend();
        match unmounts {
            true => storage.remount(),
            false => drop(command("dd", &[&format!("if={}", path.display()), "iflag=nocache", "count=0"])),
        }
        for _ in 0..2 {
            let group = open(&path, DirectMode::Off);
            assert!(content(&group) == [0; MIB], "unmounts {unmounts}: what storage does not hold is shown");
            lane(&group).flush(FlushKind::Durable).expect("the storage is mended");
            drop(group);
            storage.remount();
        }
    }
}

/// With `data=journal` it is the journal that fails, and with it the file system, until it is mounted anew.
#[test]
fn a_journal_of_data_fails() {
    on_a_device("data_journal");
}

#[test]
#[ignore = "run in a namespace by a_journal_of_data_fails"]
fn data_journal() {
    if !is_inside() {
        return skip("run by a_journal_of_data_fails");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let storage =
        FailingStorage::other(folder.path(), "mkfs.ext4", &["-q", "-F", "-b", "4096"], "data=journal");
    let path = storage.folder().join("a.raw");
    create_image(&path, 4 << 20).expect("an image");
    let group = open(&path, DirectMode::Off);
    lane(&group).write(Sector(0), &[0x11; 4 * MIB]).expect("a write");
    lane(&group).flush(FlushKind::Order).expect("a sync");
    drop(group);
    storage.remount();
    storage.fail_journal();
    is_killed(&path, Killed::Told);
    assert!(try_open(&path, DirectMode::Off).is_err(), "the journal still fails");
    storage.mend();
    assert!(try_open(&path, DirectMode::Off).is_err(), "the file system takes nothing any more");
    storage.remount();
    let group = open(&path, DirectMode::Off);
    assert!(content(&group) == [0x11; MIB], "what the last good sync covered is gone");
    lane(&group).write(Sector(0), &[0x22; MIB]).expect("a write");
    lane(&group).flush(FlushKind::Durable).expect("the storage is mended");
    drop(group);
    storage.remount();
    assert!(content(&open(&path, DirectMode::Off)) == [0x22; MIB], "what was called durable is gone");
}

/// A start in doubt about all of a file looks at what is cached of it, and ends when it is told to.
#[test]
fn a_sparse_image_of_7_eib() {
    on_a_device("huge");
}

#[test]
#[ignore = "run in a namespace by a_sparse_image_of_7_eib"]
fn huge() {
    if !is_inside() {
        return skip("run by a_sparse_image_of_7_eib");
    }
    const BYTES: u64 = 7 << 60;
    let folder = tempfile::tempdir().expect("a folder");
    let storage = FailingStorage::other(folder.path(), "mkfs.xfs", &["-q", "-K"], "defaults");
    let path = storage.folder().join("a.raw");
    create_image(&path, BYTES).expect("an image");
    let at = Sector((BYTES - MIB as u64) / 512);
    let group = open(&path, DirectMode::Off);
    lane(&group).write(at, &[0x11; MIB]).expect("a write");
    lane(&group).flush(FlushKind::Order).expect("a sync");
    storage.fail_where(0x11);
    lane(&group).write(at, &[0x22; MIB]).expect("the page cache takes it");
    drop(group);
    // The kernel tells this one, which does not know where the loss is.
    assert!(try_open(&path, DirectMode::Off).is_err(), "the storage still fails");
    storage.mend();
    let told_to_end = Arc::new(AtomicBool::new(true));
    give_up_looking_when(Arc::clone(&told_to_end));
    let ended = try_open(&path, DirectMode::Off).err().expect("it was told to end").to_string();
    assert!(ended.contains("told to end"), "{ended}");
    told_to_end.store(false, Ordering::Relaxed);
    let begin = Instant::now();
    let group = open(&path, DirectMode::Off);
    // About a second on an idle machine. Window by window it would be days.
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    drop(group);
    storage.remount();
    let mut held = vec![0; MIB];
    lane(&open(&path, DirectMode::Off)).read(at, &mut held).expect("a read");
    assert!(held == [0x22; MIB], "what was called durable is gone");
}

/// Neither side is taken; whoever knows says so.
#[test]
fn storage_counts_where_somebody_says_so() {
    if !is_root() {
        return skip("mounting needs root");
    }
    in_namespace("told_to_trust_storage");
}

#[test]
#[ignore = "run in a namespace by storage_counts_where_somebody_says_so"]
fn told_to_trust_storage() {
    if !is_inside() {
        return skip("run by storage_counts_where_somebody_says_so");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let shared = fuse::Shared::mount(folder.path(), vec![0x11; MIB]);
    let path = shared.file();
    let group = open(&path, DirectMode::Off);
    shared.fail(true);
    lane(&group).write(Sector(0), &[0x22; MIB]).expect("the page cache takes it");
    lane(&group).flush(FlushKind::Order).expect_err("the server fails");
    drop(group);
    shared.fail(false);
    let refused = try_open(&path, DirectMode::Off).err().expect("cache and storage differ").to_string();
    assert!(refused.contains("--accept-loss"), "{refused}");
    let accepted = offline::RecoverOptions { accept_loss: true, ..Default::default() };
    offline::recover(&path, &accepted).expect("a recovery");
    assert!(content(&open(&path, DirectMode::Off)) == [0x11; MIB], "what storage holds");
}

#[test]
fn a_failure_outlives_its_process_on_an_overlay() {
    on_a_device("overlay");
}

#[test]
#[ignore = "run in a namespace by a_failure_outlives_its_process_on_an_overlay"]
fn overlay() {
    if !is_inside() {
        return skip("run by a_failure_outlives_its_process_on_an_overlay");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let storage = FailingStorage::new(folder.path(), 40 << 20);
    let merged = overlay_on(&storage, folder.path());
    let path = merged.join("a.raw");
    fails(&storage, &path);
    goes_on_when_mended(&storage, &path);
    // The kernel takes an io_uring apart in its own time, and the file with it.
    let busy = || !Command::new("umount").arg(&merged).output().is_ok_and(|output| output.status.success());
    (0..2000).take_while(|_| busy()).for_each(|_| std::thread::sleep(Duration::from_millis(5)));
    storage.remount();
    let group = open(&storage.folder().join("upper/a.raw"), DirectMode::Off);
    assert!(content(&group) == [0x22; MIB], "what was called durable is gone");
}

fn overlay_on(storage: &FailingStorage, folder: &Path) -> PathBuf {
    let on_it = |name: &str| storage.folder().join(name);
    let merged = folder.join("merged");
    [merged.clone(), on_it("upper"), on_it("work"), on_it("lower")]
        .iter()
        .for_each(|folder| fs::create_dir(folder).expect("a folder"));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        on_it("lower").display(),
        on_it("upper").display(),
        on_it("work").display()
    );
    command("mount", &["-t", "overlay", "-o", &options, "none", merged.to_str().expect("a name")]);
    merged
}

/// As in a container, whose mounts are not the host's: which file system it is cannot be known.
#[test]
fn an_overlay_whose_upper_folder_is_not_seen_takes_neither_side() {
    on_a_device("hidden_upper");
}

#[test]
#[ignore = "run in a namespace by an_overlay_whose_upper_folder_is_not_seen_takes_neither_side"]
fn hidden_upper() {
    if !is_inside() {
        return skip("run by an_overlay_whose_upper_folder_is_not_seen_takes_neither_side");
    }
    for make in [
        |folder: &Path| FailingStorage::new(folder, 40 << 20),
        |folder: &Path| FailingStorage::other(folder, "mkfs.btrfs", &["-q", "-K"], "nodatacow"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = make(folder.path());
        let merged = overlay_on(&storage, folder.path());
        let (path, upper) = (merged.join("a.raw"), storage.folder().to_str().expect("a name"));
        fails(&storage, &path);
        storage.mend();
        command("mount", &["-t", "tmpfs", "none", upper]);
        for _ in 0..2 {
            let refused = try_open(&path, DirectMode::Off).err().expect("a doubt").to_string();
            assert!(refused.contains("--accept-loss"), "{refused}");
        }
        command("umount", &[upper]);
        let group = open(&path, DirectMode::Off);
        assert!(content(&group) == [0x22; MIB], "what had completed is gone");
        lane(&group).flush(FlushKind::Durable).expect("the storage is mended");
    }
}
