//! Claims on block devices: one writer of a device, whatever node leads to it, and none beside a mount.
//!
//! A lock is on a node's inode, and a device has as many nodes as somebody makes. `O_EXCL` is on the device itself: the kernel
//! refuses it where a mount, LVM, a RAID or another such opening has the device, the whole disk around it, or a partition
//! in it; and refuses those where we have it. Who only reads claims nothing, since readers share, but is refused where a writer has it.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{major, minor};

use crate::{lock, OpenError};

/// Opens a block device for writing, claimed. Whoever has it is waited for as the holder of a lock is.
pub(crate) fn open_claimed(
    path: &Path,
    found: &Metadata,
    wait: Duration,
    open: impl Fn() -> io::Result<File>,
) -> Result<io::Result<File>, OpenError> {
    let mut opened = open();
    if is_busy(&opened) {
        refuse_mounted(path, found, false)?;
        lock::take(path, found, wait, || {
            opened = open();
            Ok(!is_busy(&opened))
        })?;
    }
    Ok(opened)
}

/// Refuses a block device, open for reading, that somebody has claimed, unless that is a mount that only reads, too.
pub(crate) fn refuse_claimed(path: &Path, found: &Metadata, wait: Duration) -> Result<(), OpenError> {
    // Given back at once: it is only to be known whether it can be had.
    let attempt =
        || fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(path);
    if !is_busy(&attempt()) || refuse_mounted(path, found, true)? {
        return Ok(());
    }
    lock::take(path, found, wait, || Ok(!is_busy(&attempt())))
}

/// Refuses a file that a loop device writes to: it was attached, and perhaps mounted, before. What is attached later nobody asks us about.
pub(crate) fn refuse_attached(path: &Path, found: &Metadata) -> Result<(), OpenError> {
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(backing) = fs::read(device.path().join("loop/backing_file")) else { continue };
        let backing = Path::new(OsStr::from_bytes(backing.trim_ascii_end()));
        let same = fs::metadata(backing).is_ok_and(|b| (b.dev(), b.ino()) == (found.dev(), found.ino()));
        let writes = fs::read(device.path().join("ro")).is_ok_and(|ro| ro.trim_ascii() == b"0");
        if same && writes {
            let name = device.file_name();
            let holder = format!("the loop device /dev/{}", name.to_string_lossy());
            return Err(OpenError::InUse { path: path.to_owned(), holder });
        }
    }
    Ok(())
}

fn is_busy(opened: &io::Result<File>) -> bool {
    opened.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
}

/// Refuses a device that is mounted, itself or a part of it or the whole that it is a part of. Whether all that is mounted of it
/// only reads; mounts count as writers unless `reading`.
fn refuse_mounted(path: &Path, found: &Metadata, reading: bool) -> Result<bool, OpenError> {
    let devices = relatives(found.rdev());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut is_mounted = false;
    for mount in mounts.lines().filter_map(Mount::parse) {
        if !devices.contains(mount.device) && mount.source_device().is_none_or(|d| !devices.contains(&d)) {
            continue;
        }
        if !(reading && mount.read_only) {
            let holder = format!("the file system that is mounted on {}", mount.place);
            return Err(OpenError::InUse { path: path.to_owned(), holder });
        }
        is_mounted = true;
    }
    Ok(is_mounted)
}

/// A device, its partitions, and the disk that it is a partition of, as "major:minor".
struct Relatives(Vec<String>);

impl Relatives {
    fn contains(&self, device: &str) -> bool {
        self.0.iter().any(|own| own == device)
    }
}

fn relatives(device: u64) -> Relatives {
    let own = format!("{}:{}", major(device), minor(device));
    let folder = PathBuf::from("/sys/dev/block").join(&own);
    let number = |folder: PathBuf| fs::read_to_string(folder.join("dev")).ok().map(|n| n.trim().to_owned());
    let partitions = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let partitions = partitions.filter(|path| path.join("partition").exists()).filter_map(number);
    let whole = folder.join("partition").exists().then(|| number(folder.join(".."))).flatten();
    Relatives(partitions.chain(whole).chain([own]).collect())
}

/// A line of mountinfo (proc(5)).
struct Mount<'a> {
    device: &'a str,
    place: &'a str,
    source: &'a str,
    read_only: bool,
}

impl<'a> Mount<'a> {
    /// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue": the last is the file system's own.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, fs) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let (device, place) = (mount.next()?, mount.nth(1)?);
        let mut fs = fs.split(' ').skip(1);
        let (source, options) = (fs.next()?, fs.next()?);
        Some(Self { device, place, source, read_only: options.split(',').any(|option| option == "ro") })
    }

    /// btrfs and others have a number of their own.
    fn source_device(&self) -> Option<String> {
        let found = fs::metadata(self.source).ok().filter(|found| found.file_type().is_block_device())?;
        Some(format!("{}:{}", major(found.rdev()), minor(found.rdev())))
    }
}
