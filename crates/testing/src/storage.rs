//! Storage that fails and is mended: an ext4 on a loop device, whose backing file lies on a tmpfs that can be filled.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{fallocate, FallocateFlags};

use crate::{is_root, own_mounts, skip};

/// Set where [`is_inside`].
pub const INSIDE: &str = "AFTERIMAGE_TEST_NAMESPACE";

/// Runs another test of the same program, one of the ignored ones, in a mount namespace of its own, so that nothing stays
/// mounted whatever happens. It begins with [`is_inside`].
///
/// # Panics
///
/// Where that test fails.
#[track_caller]
pub fn in_namespace(test: &str) {
    let mut command = match own_mounts() {
        Ok(command) => command,
        Err(why) => return skip(why),
    };
    // With a `/dev/shm` of its own, too: what is noted there of files that go with the namespace goes with it.
    let output = command
        .args(["sh", "-c", "mount -t tmpfs none /dev/shm && exec \"$@\"", "sh"])
        .arg(std::env::current_exe().expect("this program's path"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// As [`in_namespace`], for a test that mounts a loop device.
#[track_caller]
pub fn on_a_device(test: &str) {
    if is_root() {
        in_namespace(test);
    } else {
        skip("loop devices need root");
    }
}

/// Whether this is the child that [`in_namespace`] started: `--ignored` alone must not mount anything.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs a program that has to succeed.
///
/// # Panics
///
/// Where it does not.
pub fn command(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// See the module. Only inside [`on_a_device`]; everything goes with the namespace.
pub struct FailingStorage {
    memory: PathBuf,
    mounted: PathBuf,
    sector_bytes: u32,
    /// What it is mounted with.
    options: &'static str,
}

impl FailingStorage {
    /// An ext4 of `bytes` without a journal, mounted. It allocates when a file is written (`nodelalloc`), so that a full
    /// tmpfs shows as a failed write-back of blocks that are there, as a failing disk does.
    ///
    /// # Panics
    ///
    /// Where it cannot be set up, as everywhere below.
    pub fn new(folder: &Path, bytes: u64) -> Self {
        Self::with_sectors(folder, bytes, 512)
    }

    /// As [`FailingStorage::new`], on a device with logical sectors of so many bytes.
    ///
    /// # Panics
    ///
    /// Where it cannot be set up.
    pub fn with_sectors(folder: &Path, bytes: u64, sector_bytes: u32) -> Self {
        Self::set_up(folder, bytes, sector_bytes, &[])
    }

    /// As [`FailingStorage::new`], with more options for mkfs.ext4.
    ///
    /// # Panics
    ///
    /// Where it cannot be set up.
    pub fn made_by(folder: &Path, bytes: u64, mkfs: &[&str]) -> Self {
        Self::set_up(folder, bytes, 512, mkfs)
    }

    /// As [`FailingStorage::new`], with a file system that this makes: XFS or btrfs, of 320 MiB. `options`: of its mount.
    ///
    /// # Panics
    ///
    /// Where it cannot be set up.
    pub fn other(folder: &Path, mkfs: &str, arguments: &[&str], options: &'static str) -> Self {
        const BYTES: u64 = 320 << 20;
        let storage = Self::with_memory(folder, BYTES, 512, options);
        let backing = File::options().write(true).open(storage.backing()).expect("the backing file");
        command(mkfs, &[arguments, &[text(&storage.backing())]].concat());
        // What it writes elsewhere, its log for one, is not to fail.
        fallocate(&backing, FallocateFlags::empty(), 0, BYTES).expect("room");
        storage.mount();
        storage
    }

    fn set_up(folder: &Path, bytes: u64, sector_bytes: u32, mkfs: &[&str]) -> Self {
        let storage = Self::with_memory(folder, bytes, sector_bytes, "nodelalloc");
        let features = ["-q", "-F", "-b", "4096", "-O", "^has_journal", "-m", "0"];
        command("mkfs.ext4", &[&features[..], mkfs, &[text(&storage.backing())]].concat());
        storage.mount();
        storage
    }

    fn with_memory(folder: &Path, bytes: u64, sector_bytes: u32, options: &'static str) -> Self {
        let (memory, mounted) = (folder.join("memory"), folder.join("mounted"));
        fs::create_dir(&memory).expect("a folder");
        fs::create_dir(&mounted).expect("a folder");
        let size = format!("size={}", bytes + (8 << 20));
        command("mount", &["-t", "tmpfs", "-o", &size, "none", text(&memory)]);
        let storage = Self { memory, mounted, sector_bytes, options };
        File::create(storage.backing()).and_then(|file| file.set_len(bytes)).expect("a backing file");
        storage
    }

    /// Where the file system is.
    pub fn folder(&self) -> &Path {
        &self.mounted
    }

    /// From now on what is written back to the blocks that `file` has fails, and they hold zeroes. The file has to be
    /// written and synced.
    pub fn fail_under(&self, file: &Path) {
        self.fail_under_first(file, u64::MAX);
    }

    /// As [`FailingStorage::fail_under`], of its first bytes: the rest stays as it is.
    ///
    /// # Panics
    ///
    /// Where it cannot be done.
    pub fn fail_under_first(&self, file: &Path, bytes: u64) {
        self.fail_at(&blocks_of(file, bytes.div_ceil(4096)));
    }

    /// As [`FailingStorage::fail_under`], of all blocks that hold nothing but that byte: some file systems do not tell a file's blocks.
    ///
    /// # Panics
    ///
    /// Where there are none.
    pub fn fail_where(&self, byte: u8) {
        let content = fs::read(self.backing()).expect("the backing file");
        let blocks = content.chunks_exact(4096).enumerate().filter(|(_, block)| *block == [byte; 4096]);
        self.fail_at(&blocks.map(|(block, _)| (block as u64, 1)).collect::<Vec<_>>());
    }

    /// As [`FailingStorage::fail_under`], of the blocks of an ext4's journal behind its superblock. They must not be needed: see
    /// [`FailingStorage::remount`].
    ///
    /// # Panics
    ///
    /// Where that cannot be done.
    pub fn fail_journal(&self) {
        let listed = command("debugfs", &["-R", "blocks <8>", text(&self.backing())]);
        let blocks = listed.split_whitespace().skip(1).map(|block| (block.parse().expect("a block"), 1));
        self.fail_at(&blocks.collect::<Vec<_>>());
    }

    fn fail_at(&self, blocks: &[(u64, u64)]) {
        let backing = File::options().write(true).open(self.backing()).expect("the backing file");
        for (block, blocks) in blocks {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&backing, punch, block * 4096, blocks * 4096).expect("a hole");
        }
        let mut filler = File::create(self.filler()).expect("a file that fills the tmpfs");
        while filler.write_all(&[1; 4096]).is_ok() {}
        // A new page of the backing file finds no memory any more.
        assert!(backing.write_at(&[0], blocks[0].0 * 4096).is_err(), "the tmpfs is full");
    }

    /// The storage works again; what was lost stays lost.
    pub fn mend(&self) {
        fs::remove_file(self.filler()).expect("room");
    }

    /// What a power cut leaves where nothing is in a drive's cache: the page cache is gone. Nobody may have a file open.
    pub fn remount(&self) {
        // The kernel takes an io_uring apart in its own time, and the file with it.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !Command::new("umount").arg(&self.mounted).output().is_ok_and(|o| o.status.success()) {
            assert!(Instant::now() < deadline, "{} stays busy", self.mounted.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.mount();
    }

    fn mount(&self) {
        let (sector, backing) = (self.sector_bytes.to_string(), self.backing());
        let device = command("losetup", &["--find", "--show", "--sector-size", &sector, text(&backing)]);
        command("mount", &["-o", self.options, device.trim_end(), text(&self.mounted)]);
        // It goes with the mount.
        command("losetup", &["--detach", device.trim_end()]);
    }

    fn backing(&self) -> PathBuf {
        self.memory.join("backing")
    }

    fn filler(&self) -> PathBuf {
        self.memory.join("filler")
    }
}

/// First block and number of blocks of each extent of a file's first blocks, in the file system's blocks of 4 KiB.
fn blocks_of(file: &Path, first: u64) -> Vec<(u64, u64)> {
    let listed = command("filefrag", &["-e", "-b4096", text(file)]);
    // "   0:        0..     255:      34816..     35071:    256:             last,eof"
    let extents = listed.lines().filter_map(|line| {
        let mut fields = line.split(':').map(str::trim).skip(1);
        let (logical, physical, blocks) = (fields.next()?, fields.next()?, fields.next()?);
        let begin = |range: &str| range.split("..").next()?.trim().parse::<u64>().ok();
        Some((begin(logical)?, begin(physical)?, blocks.parse::<u64>().ok()?))
    });
    let extents = extents.filter(|(logical, ..)| *logical < first);
    let extents: Vec<_> = extents.map(|(at, physical, blocks)| (physical, blocks.min(first - at))).collect();
    assert!(!extents.is_empty(), "no extents of {}: {listed}", file.display());
    extents
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
