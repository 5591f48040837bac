//! Full file systems, failing syncs, limits, vanishing memory, shortened files, dead holders: the real ones.
//!
//! Cases that need a file system of their own run in a child process with its own mount namespace, so that nothing
//! stays mounted whatever happens.
#![allow(unsafe_code)]

use std::io::{Read, Write as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use afterimage_block::{
    BlockError, Blocking, Buffers, Disk, ErrorKind, FlushKind, Medium, Operation, Request, Sector, Token,
};
use afterimage_store::{
    create_image, DirectMode, FileMedium, ImageStore, LogFile, NewLog, OpenError, OpenOptions,
};
use afterimage_testing::{command, in_namespace, is_inside, on_a_device, skip};

fn mount_tmpfs(size: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    command(
        "mount",
        &["-t", "tmpfs", "-o", &format!("size={size}"), "none", directory.path().to_str().unwrap()],
    );
    directory
}

/// An ext4 of `bytes` on a loop device whose backing file lies in `directory`.
fn mount_ext4(directory: &Path, bytes: u64) -> PathBuf {
    let backing = directory.join("ext4");
    let file = std::fs::File::create(&backing).unwrap();
    file.set_len(bytes).unwrap();
    let backing = backing.to_str().unwrap();
    command("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=1", backing]);
    let mounted = directory.join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    command("mount", &["-o", "loop", backing, mounted.to_str().unwrap()]);
    mounted
}

fn open(path: &Path, direct: DirectMode) -> Arc<ImageStore> {
    ImageStore::open(&OpenOptions { direct, ..OpenOptions::new(path) }).unwrap()
}

/// Where an image is, and how it is opened, for each kind of lane.
const LANES: [(&str, DirectMode); 3] = [
    ("/dev/shm", DirectMode::Auto),
    (env!("CARGO_TARGET_TMPDIR"), DirectMode::Off),
    (env!("CARGO_TARGET_TMPDIR"), DirectMode::Auto),
];

fn image(root: &str, direct: DirectMode) -> (tempfile::TempDir, PathBuf, Arc<ImageStore>) {
    let directory = tempfile::tempdir_in(root).unwrap();
    let path = directory.path().join("disk.img");
    create_image(&path, 1 << 20).unwrap();
    let disk = open(&path, direct);
    (directory, path, disk)
}

fn block(n: u64) -> Vec<u8> {
    (0..65536u64).map(|i| (i * 7 + n * 13 + 1) as u8).collect()
}

/// Writes until the file system is full, and checks what that leaves.
fn fill(directory: &Path, direct: DirectMode) {
    let path = directory.join("disk.img");
    create_image(&path, 64 << 20).unwrap();
    let disk = open(&path, direct);
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    let mut acknowledged = 0;
    let error = loop {
        match lane.write(Sector(acknowledged * 128), &block(acknowledged)) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1024, "the file system never got full");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let reason = disk.health().failure().expect("the disk stopped");
    assert!(reason.contains("full") && reason.contains("disk.img"), "{reason}");
    for answer in [lane.write(Sector(0), &[1; 512]), lane.flush(FlushKind::Order), lane.discard(Sector(0), 8)]
    {
        assert!(matches!(answer, Err(BlockError::Failed { .. })), "{answer:?}");
    }
    let mut other = Blocking::new(disk.open_lane().unwrap());
    assert!(other.write(Sector(0), &[1; 512]).is_err(), "all lanes stop");
    for n in 0..acknowledged {
        let mut content = vec![0; 65536];
        lane.read(Sector(n * 128), &mut content).unwrap();
        assert!(content == block(n), "acknowledged block {n} is damaged");
    }
    drop((lane, other, disk));
    // The next start finds everything that was acknowledged.
    let disk = open(&path, direct);
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    let mut content = vec![0; 65536];
    lane.read(Sector((acknowledged - 1) * 128), &mut content).unwrap();
    assert!(content == block(acknowledged - 1));
    lane.discard(Sector(0), 128 * acknowledged).unwrap();
    lane.write(Sector(0), &block(0)).unwrap();
    lane.flush(FlushKind::Durable).unwrap();
}

#[test]
fn a_full_file_system_in_memory() {
    in_namespace("full_tmpfs");
}

#[test]
#[ignore = "run in a namespace by a_full_file_system_in_memory"]
fn full_tmpfs() {
    if !is_inside() {
        return skip("run by a_full_file_system_in_memory");
    }
    fill(mount_tmpfs("4M").path(), DirectMode::Auto);
    let small = mount_tmpfs("1M");
    let log = FileMedium::create(&small.path().join("log"), 8 << 20).unwrap();
    assert_eq!(log.preallocate().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    std::fs::write(small.path().join("taken"), [1; 512 << 10]).unwrap();
    log.set_len(256 << 10).unwrap();
    drop(log);
    let holes = LogFile::open(&small.path().join("log"), false).unwrap();
    holes.reserve().unwrap();
    let blocks = std::fs::metadata(holes.path()).unwrap().blocks();
    assert_eq!(blocks * 512, 256 << 10, "a log that was copied with its holes has its space again");
    holes.medium().write_at(&[1; 8], 0).unwrap();
    holes.reserve().unwrap();
    let mut content = [0; 8];
    holes.medium().read_at(&mut content, 0).unwrap();
    assert_eq!(content, [1; 8]);
    drop(holes);
    std::fs::OpenOptions::new().write(true).open(small.path().join("log")).unwrap().set_len(8 << 20).unwrap();
    let error = LogFile::open(&small.path().join("log"), false).unwrap().reserve().unwrap_err();
    assert!(error.to_string().contains("no space for the redo log"), "{error}");
}

#[test]
fn a_full_file_system_on_a_device() {
    on_a_device("full_ext4");
}

#[test]
#[ignore = "run in a namespace by a_full_file_system_on_a_device"]
fn full_ext4() {
    if !is_inside() {
        return skip("run by a_full_file_system_on_a_device");
    }
    for direct in [DirectMode::Off, DirectMode::On] {
        let memory = mount_tmpfs("64M");
        fill(&mount_ext4(memory.path(), 16 << 20), direct);
    }
}

#[test]
fn a_log_does_not_run_out() {
    on_a_device("log_on_full_file_systems");
}

#[test]
#[ignore = "run in a namespace by a_log_does_not_run_out"]
fn log_on_full_file_systems() {
    if !is_inside() {
        return skip("run by a_log_does_not_run_out");
    }
    log_on_full("mkfs.ext4", &["-q", "-F"]);
    if Command::new("mkfs.btrfs").arg("--version").output().is_err() {
        return skip("no mkfs.btrfs here (Debian: btrfs-progs)");
    }
    log_on_full("mkfs.btrfs", &["-q", "-f"]);
}

fn log_on_full(mkfs: &str, options: &[&str]) {
    let memory = mount_tmpfs("192M");
    let (backing, mounted) = (memory.path().join("backing"), memory.path().join("mounted"));
    std::fs::File::create(&backing).unwrap().set_len(160 << 20).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    command(mkfs, &[options, &[backing.to_str().unwrap()]].concat());
    command("mount", &["-o", "loop", backing.to_str().unwrap(), mounted.to_str().unwrap()]);
    const BYTES: u64 = 8 << 20;
    let path = mounted.join("log");
    let fill = |log: &Arc<dyn Medium>, _: &[_], _: &[_]| log.sync();
    let log =
        LogFile::create(&path, &[], NewLog { bytes: BYTES, written_bytes: 1 << 20, fill: &fill }).unwrap();
    let mut filler = std::fs::File::create(mounted.join("filler")).unwrap();
    while filler.write_all(&block(1)).is_ok() {}
    let _ = filler.sync_all();
    assert!(std::fs::File::create(mounted.join("more")).and_then(|mut f| f.write_all(&block(2))).is_err());
    // Three times round, each block synced as it is written again.
    for n in 0..3 * BYTES / 65536 {
        log.medium().write_at(&block(n), n * 65536 % BYTES).unwrap();
        log.medium().sync().unwrap();
    }
    let beyond = log.medium().read_at(&mut [0], BYTES).unwrap_err().to_string();
    assert!(beyond.ends_with(path.to_str().unwrap()), "the name that it has, and not its draft's: {beyond}");
}

#[test]
fn a_sync_that_fails() {
    on_a_device("failing_sync");
}

#[test]
#[ignore = "run in a namespace by a_sync_that_fails"]
fn failing_sync() {
    if !is_inside() {
        return skip("run by a_sync_that_fails");
    }
    // The device promises 64 MiB and has 6.
    let memory = mount_tmpfs("6M");
    let path = mount_ext4(memory.path(), 64 << 20).join("disk.img");
    create_image(&path, 32 << 20).unwrap();
    let disk = open(&path, DirectMode::Off);
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    for n in 0..256 {
        // Into the page cache: that goes well.
        lane.write(Sector(n * 128), &block(n)).unwrap();
    }
    let answer = lane.flush(FlushKind::Order);
    assert!(answer.is_err(), "the device lost blocks and the flush said nothing");
    assert!(disk.health().failure().unwrap().contains("syncing"));
    // The kernel reports a lost block once. We do not forget it.
    for _ in 0..3 {
        assert!(matches!(lane.flush(FlushKind::Durable), Err(BlockError::Failed { .. })));
        assert!(matches!(lane.write_flushed(Sector(0), &[0; 512]), Err(BlockError::Failed { .. })));
    }
    lane.read(Sector(0), &mut [0; 512]).unwrap();
}

#[test]
fn a_file_size_limit() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk.img");
    create_image(&path, 4 << 20).unwrap();
    let output = Command::new("sh")
        .arg("-c")
        .arg("ulimit -f 2048; exec \"$0\" --exact limited --ignored --nocapture")
        .arg(std::env::current_exe().unwrap())
        .env("AFTERIMAGE_TEST_IMAGE", &path)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run with a limit by a_file_size_limit"]
fn limited() {
    let Some(path) = std::env::var_os("AFTERIMAGE_TEST_IMAGE") else {
        return skip("run by a_file_size_limit");
    };
    // SAFETY: installs the disposition "ignore", as the daemon does for this signal; no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for direct in [DirectMode::Off, DirectMode::Auto] {
        let disk = open(Path::new(&path), direct);
        let mut lane = Blocking::new(disk.open_lane().unwrap());
        lane.write(Sector(0), &[3; 4096]).unwrap();
        // In the unit of `sh`, 512 or 1024 bytes, the limit lies at 1 or 2 MiB.
        lane.write(Sector(6000), &[3; 4096]).unwrap_err();
        assert!(disk.health().failure().unwrap().contains("limit"));
        lane.write(Sector(0), &[4; 4096]).unwrap_err();
    }
}

/// Two pages of memory that another process may take away: here we do it ourselves.
struct Vanishing {
    file: std::fs::File,
    base: *mut libc::c_void,
}

impl Vanishing {
    fn new() -> Self {
        let file = std::fs::File::from(
            rustix::fs::memfd_create("vanishing", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.set_len(8192).unwrap();
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_fd().as_raw_fd(),
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { file, base }
    }

    fn buffers(&self) -> Buffers {
        // SAFETY: the mapping outlives the test's requests; only the kernel touches it.
        unsafe { Buffers::from_raw([libc::iovec { iov_base: self.base, iov_len: 8192 }], None) }
    }
}

#[test]
fn memory_that_vanishes_is_the_guests_own_fault() {
    for (root, direct) in LANES {
        let (_directory, _, disk) = image(root, direct);
        let mut lane = Blocking::new(disk.open_lane().unwrap());
        let memory = Vanishing::new();
        lane.request(Operation::Write { flushed: false }, Sector(0), 16, memory.buffers()).unwrap();
        memory.file.set_len(0).unwrap();
        for operation in [Operation::Write { flushed: false }, Operation::Read] {
            lane.request(operation, Sector(0), 16, memory.buffers()).unwrap_err();
            assert_eq!(disk.health().failure(), None, "{operation:?}");
        }
        lane.write(Sector(0), &[5; 8192]).unwrap();
        lane.flush(FlushKind::Order).unwrap();
    }
}

#[test]
fn a_shortened_file_fails_reads_cleanly() {
    for (root, direct) in LANES {
        let (_directory, path, disk) = image(root, direct);
        let mut lane = Blocking::new(disk.open_lane().unwrap());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        for (sector, sectors) in [(0, 2048), (16, 8), (100, 1)] {
            let error = lane.read(Sector(sector), &mut vec![0; sectors * 512]).unwrap_err();
            assert!(error.to_string().contains("shortened"), "{root} {direct:?}: {error}");
        }
        lane.read(Sector(0), &mut [0; 8192]).unwrap();
        assert_eq!(disk.health().failure(), None);
    }
}

#[test]
fn a_lane_may_change_threads_and_be_dropped_with_requests_in_flight() {
    let (_directory, _, disk) = image(env!("CARGO_TARGET_TMPDIR"), DirectMode::Auto);
    for finish in [true, false] {
        let mut lane = disk.open_lane().unwrap();
        let buffers = Buffers::from_bytes(&[9; 65536]);
        let shared = buffers.share();
        let worker = std::thread::spawn(move || {
            lane.submit(Request {
                token: Token(1),
                operation: Operation::Write { flushed: true },
                sector: Sector(0),
                sectors: 128,
                buffers: shared,
            });
            lane.dispatch();
            lane
        });
        let mut lane = worker.join().unwrap();
        let mut completions = Vec::new();
        while finish && completions.is_empty() {
            lane.wait(&[], Some(Duration::from_secs(60))).unwrap();
            lane.reap(&mut completions);
        }
        drop(lane);
        buffers.fill_zero(0, 65536);
        let mut content = vec![0; 65536];
        Blocking::new(disk.open_lane().unwrap()).read(Sector(0), &mut content).unwrap();
        assert!(content.iter().all(|b| *b == 9));
    }
}

/// Somebody who holds a lock as `flock` takes it, and leaves the descriptor to a `sleep`; killed when it is dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn holder(path: &Path) -> Holder {
    let mut holder = Command::new("flock")
        .args(["--exclusive", "--no-fork"])
        .arg(path)
        .args(["sh", "-c", "echo held; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut word = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    Holder(holder)
}

/// Kills it while something of it still has the file open, as the kernel has while I/O is in flight: we do, by a copy of its own
/// descriptor. Nothing where that cannot be had.
fn killed(holder: Holder, path: &Path) -> Option<OwnedFd> {
    let table = std::fs::read_dir(format!("/proc/{}/fd", holder.0.id())).unwrap();
    let number = table
        .flatten()
        .find(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
        .and_then(|fd| fd.file_name().to_str()?.parse::<i32>().ok())
        .expect("the holder has the file open");
    // SAFETY: pidfd_open and pidfd_getfd take plain numbers; a descriptor that they answer is ours alone.
    let copy = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, holder.0.id() as libc::pid_t, 0);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process, number, 0);
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy as i32))
    };
    let why = std::io::Error::last_os_error();
    drop(holder);
    if copy.is_none() {
        skip(format!("dead holders: no pidfd_getfd here: {why}"));
    }
    copy
}

/// Longer than a live holder is given.
const DYING: Duration = Duration::from_secs(2);

/// Meanwhile a process that lives has the file open for a moment, as a child between fork and exec has what its parent has.
fn close_later(copy: OwnedFd) -> JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(DYING / 2);
        let mut child = Command::new("sleep").arg("0.05").stdin(copy.try_clone().unwrap()).spawn().unwrap();
        child.wait().unwrap();
        std::thread::sleep(DYING / 2);
        drop(copy);
    })
}

#[test]
fn a_dead_holder_is_waited_for_and_a_live_one_is_not() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk.img");
    create_image(&path, 1 << 20).unwrap();
    let holder = holder(&path);
    let options = OpenOptions { lock_wait: Duration::from_secs(600), ..OpenOptions::new(&path) };
    let start = Instant::now();
    let Err(error) = ImageStore::open(&options) else { panic!("locked twice") };
    assert!(start.elapsed() < Duration::from_secs(300), "a live holder is not waited for");
    assert!(error.to_string().contains(&holder.0.id().to_string()), "{error}");

    let Some(copy) = killed(holder, &path) else { return };
    let hurried = OpenOptions { lock_wait: Duration::from_millis(20), ..OpenOptions::new(&path) };
    match ImageStore::open(&hurried) {
        Err(OpenError::StillDraining { .. } | OpenError::InUse { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened while a dead holder's I/O may be in flight"),
    }
    let closer = close_later(copy);
    ImageStore::open(&options).unwrap();
    closer.join().unwrap();
}

/// After a kill -9 the images' locks may be gone before the log's is.
#[test]
fn a_log_is_waited_for_as_an_image_is() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk.img.aflog");
    std::fs::write(&path, [0; 4096]).unwrap();
    let holder = holder(&path);
    let Err(error) = LogFile::open(&path, false) else { panic!("locked twice") };
    assert!(error.to_string().contains(&holder.0.id().to_string()), "{error}");
    let Some(copy) = killed(holder, &path) else { return };
    let closer = close_later(copy);
    LogFile::open(&path, false).unwrap();
    closer.join().unwrap();
}
