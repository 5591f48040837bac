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
    let output = command
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
        let (memory, mounted) = (folder.join("memory"), folder.join("mounted"));
        fs::create_dir(&memory).expect("a folder");
        fs::create_dir(&mounted).expect("a folder");
        let size = format!("size={}", bytes + (8 << 20));
        command("mount", &["-t", "tmpfs", "-o", &size, "none", text(&memory)]);
        let storage = Self { memory, mounted, sector_bytes };
        let backing = storage.backing();
        File::create(&backing).and_then(|file| file.set_len(bytes)).expect("a backing file");
        let features = ["-q", "-F", "-b", "4096", "-O", "^has_journal", "-m", "0"];
        command("mkfs.ext4", &[&features[..], &[text(&backing)]].concat());
        storage.mount();
        storage
    }

    /// Where the file system is.
    pub fn folder(&self) -> &Path {
        &self.mounted
    }

    /// From now on what is written back to the blocks that `file` has fails, and they hold zeroes. The file has to be
    /// written and synced.
    pub fn fail_under(&self, file: &Path) {
        let backing = File::options().write(true).open(self.backing()).expect("the backing file");
        for (block, blocks) in blocks_of(file) {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&backing, punch, block * 4096, blocks * 4096).expect("a hole");
        }
        let mut filler = File::create(self.filler()).expect("a file that fills the tmpfs");
        while filler.write_all(&[1; 4096]).is_ok() {}
        // A new page of the backing file finds no memory any more.
        assert!(backing.write_at(&[0], blocks_of(file)[0].0 * 4096).is_err(), "the tmpfs is full");
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
        command("mount", &["-o", "nodelalloc", device.trim_end(), text(&self.mounted)]);
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

/// First block and number of blocks of each extent of a file, in the file system's blocks of 4 KiB.
fn blocks_of(file: &Path) -> Vec<(u64, u64)> {
    let listed = command("filefrag", &["-e", "-b4096", text(file)]);
    // "   0:        0..     255:      34816..     35071:    256:             last,eof"
    let extents = listed.lines().filter_map(|line| {
        let mut fields = line.split(':').map(str::trim).skip(2);
        let (physical, blocks) = (fields.next()?, fields.next()?);
        Some((physical.split("..").next()?.trim().parse().ok()?, blocks.parse().ok()?))
    });
    let extents: Vec<_> = extents.collect();
    assert!(!extents.is_empty(), "no extents of {}: {listed}", file.display());
    extents
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
