//! Locks on the description that carries the I/O, so that they are held until its last request is over.
//!
//! ```text
//! O_EXCL  of a writer's                               against everybody: block devices (see claim.rs)
//! flock   exclusive, or shared for read-only          against another afterimage: images, logs, arenas
//! OFD     write lock on the whole file, or QEMU's     against QEMU and its tools: images
//!         bytes of a reader
//! ```
//!
//! A daemon that was killed leaves the kernel with its requests in flight: the file description, and so the
//! locks, live until they are done, and the kernel closes one file after the other. A new daemon therefore waits for a *dead* holder of
//! any of them, and gives a live one a moment only.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};
use rustix::io::{retry_on_intr, Errno};

use crate::holder::{self, Holder};
use crate::OpenError;

/// QEMU locks byte 100 + p while it uses permission p and 200 + p while it shares p with nobody
/// (QEMU block/file-posix.c; the permissions in include/block/block-common.h).
const QEMU_USES: i64 = 100;
const QEMU_FORBIDS: i64 = 200;
const QEMU_CONSISTENT_READ: i64 = 0;
const QEMU_WRITE: i64 = 1;
const QEMU_RESIZE: i64 = 3;

/// How long a dead holder is waited for where nothing else is said.
pub(crate) const WAIT: Duration = Duration::from_secs(30);
/// How often a lock is tried again.
const RETRY: Duration = Duration::from_millis(2);
/// At most what a live holder gets: a child process between fork and exec has copies of all descriptors of its parent, a dead one's
/// as well, and with them the locks.
const LIVE_HOLDER: Duration = Duration::from_millis(500);
/// Of the time for a dead holder, the part that a lock without a visible one gets: its holder may well be alive elsewhere.
const HIDDEN_HOLDER_PART: u32 = 6;

/// Takes both locks of an image.
pub(crate) fn take_image(file: &File, path: &Path, read_only: bool, wait: Duration) -> Result<(), OpenError> {
    let found = file.metadata().map_err(OpenError::io("examining", path))?;
    take(path, &found, wait, || Ok(try_flock(file, path, read_only)? && try_ofd(file, path, read_only)?))
}

/// Takes both locks of an image, to write it. A dead holder is waited for.
///
/// # Errors
/// Somebody has one of them, or they cannot be taken.
pub fn lock_image(file: &File, path: &Path) -> Result<(), OpenError> {
    take_image(file, path, false, WAIT)
}

/// Takes the lock of a file that daemons keep beside an image, such as its log: exclusive, or shared for who only reads it. A dead
/// holder is waited for.
///
/// # Errors
/// Somebody has it, or the lock cannot be taken.
pub fn lock_file(file: &File, path: &Path, read_only: bool) -> Result<(), OpenError> {
    let found = file.metadata().map_err(OpenError::io("examining", path))?;
    take(path, &found, WAIT, || try_flock(file, path, read_only))
}

/// Tries until the lock is there, as long as its holder may be waited for.
pub(crate) fn take(
    path: &Path,
    found: &Metadata,
    wait: Duration,
    mut attempt: impl FnMut() -> io::Result<bool>,
) -> Result<(), OpenError> {
    let start = Instant::now();
    // Whom the lock was seen with, and since when: a dead daemon's may be seen with a child of somebody's for a moment, or with nobody.
    let mut seen = (None, start);
    loop {
        if attempt().map_err(OpenError::io("locking", path))? {
            return Ok(());
        }
        let holder = holder::find(found);
        let kind = holder.as_ref().map(|holder| holder.dead);
        if seen.0 != kind {
            seen = (kind, Instant::now());
        }
        let patience = match &holder {
            Some(Holder { dead: true, .. }) => wait,
            Some(_) => wait.min(LIVE_HOLDER),
            // Nobody to be seen: the lock went between the two looks, its holder is another user's or in another
            // container, or it is a dead daemon whose process is gone already but not its I/O.
            None => wait / HIDDEN_HOLDER_PART,
        };
        if seen.1.elapsed() >= patience || start.elapsed() >= wait {
            let (path, waited_ms) = (path.to_owned(), start.elapsed().as_millis());
            let holder = match holder {
                Some(Holder { pid, dead: true, .. }) => {
                    return Err(OpenError::StillDraining { path, pid, waited_ms })
                }
                Some(Holder { pid, .. }) if pid == std::process::id() as i32 => {
                    "this very process".to_owned()
                }
                Some(Holder { pid, name, .. }) => {
                    format!("process {pid}{}", name.map(|n| format!(" ({n})")).unwrap_or_default())
                }
                None => "another process".to_owned(),
            };
            return Err(OpenError::InUse { path, holder });
        }
        std::thread::sleep(RETRY);
    }
}

/// Gives both locks back. Only for an image that nobody does I/O on any more; closing the descriptor would not do while
/// a child process that was just forked still holds a copy, or the kernel takes a ring apart.
pub(crate) fn release(file: &File) {
    let released = ofd(file, libc::F_UNLCK, 0, 0).map(|_| ());
    let released = released.and(flock(file, FlockOperation::NonBlockingUnlock).map_err(io::Error::from));
    if let Err(error) = released {
        tracing::debug!(%error, "giving an image's locks back");
    }
}

/// Whether the lock was free.
fn try_flock(file: &File, path: &Path, read_only: bool) -> io::Result<bool> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match retry_on_intr(|| flock(file, operation)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        // A file system without locks cannot have another holder's either; an OFD lock may still work.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {
            let path = path.display();
            tracing::warn!("the file system of {path} has no flock: a second daemon would go unnoticed");
            Ok(true)
        }
        Err(e) => Err(e.into()),
    }
}

/// Whether the lock that QEMU sees was free. Gives the other one back where it was not.
fn try_ofd(file: &File, path: &Path, read_only: bool) -> io::Result<bool> {
    let taken = if read_only { try_reader(file) } else { ofd(file, libc::F_WRLCK, 0, 0) };
    match taken {
        Ok(true) => Ok(true),
        Ok(false) => {
            ofd(file, libc::F_UNLCK, 0, 0)?;
            flock(file, FlockOperation::NonBlockingUnlock)?;
            Ok(false)
        }
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
            ) =>
        {
            let path = path.display();
            tracing::warn!(
                "the file system of {path} has no byte-range locks: QEMU would not see that it is in use"
            );
            Ok(true)
        }
        Err(e) => Err(e),
    }
}

/// What a QEMU reader of a raw image does: use "consistent read", share neither "write" nor "resize".
fn try_reader(file: &File) -> io::Result<bool> {
    for byte in [QEMU_USES + QEMU_CONSISTENT_READ, QEMU_FORBIDS + QEMU_WRITE, QEMU_FORBIDS + QEMU_RESIZE] {
        if !ofd(file, libc::F_RDLCK, byte, 1)? {
            return Ok(false);
        }
    }
    // Nobody may already use what this reader forbids, or forbid what it uses.
    for byte in [QEMU_FORBIDS + QEMU_CONSISTENT_READ, QEMU_USES + QEMU_WRITE, QEMU_USES + QEMU_RESIZE] {
        if held(file, byte)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        // Zero for open file description locks (fcntl_locking(2)).
        l_pid: 0,
    }
}

/// Sets or clears an open-file-description lock; `false` where another description conflicts. Length 0 is "to the end".
fn ofd(file: &File, kind: libc::c_int, start: i64, len: i64) -> io::Result<bool> {
    let lock = range(kind, start, len);
    // SAFETY: F_OFD_SETLK reads one `flock`, which lives across the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether another description holds any lock on this byte.
fn held(file: &File, byte: i64) -> io::Result<bool> {
    let mut lock = range(libc::F_WRLCK, byte, 1);
    // SAFETY: F_OFD_GETLK reads and fills one `flock`, which lives across the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}
