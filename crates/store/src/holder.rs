//! Who holds an image: /proc/locks names the process of a flock, /proc/PID/fd those that have the file open.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt};

use rustix::fs::{major, minor};

/// `PF_EXITING` of /proc/PID/stat's flags (linux/sched.h).
const EXITING: u64 = 0x4;

/// A process that holds the image.
#[derive(Debug)]
pub(crate) struct Holder {
    pub pid: i32,
    pub name: Option<String>,
    /// Gone, a zombie, on its way out, or killed and not yet aware of it.
    pub dead: bool,
}

/// The holder of a lock on `file`, a live one if there is any; `None` where it cannot be told.
pub(crate) fn find(metadata: &fs::Metadata) -> Option<Holder> {
    let of_lock = flock_holders(metadata).into_iter().map(describe);
    let mut found: Option<Holder> = None;
    for holder in of_lock {
        if !holder.dead {
            return Some(holder);
        }
        found = Some(holder);
    }
    // An OFD lock (QEMU's) has no process in /proc/locks; and a dead daemon's child may have inherited the descriptor.
    openers(metadata).into_iter().map(describe).find(|h| !h.dead).or(found)
}

/// Looks at /proc/locks before a lock counts as not listed.
const LOOKS: usize = 16;

/// Processes with a flock on the file.
fn flock_holders(metadata: &fs::Metadata) -> Vec<i32> {
    let device = metadata.dev();
    let wanted = format!("{:02x}:{:02x}:{}", major(device), minor(device), metadata.ino());
    // The kernel counts its list's lines to go on where the last read ended, so a lock that is given back between two
    // reads takes another one out of sight. One read sees a page, some 70 locks, at once; of more, several looks do.
    for _ in 0..LOOKS {
        let holders = listed(&locks(), &wanted);
        if !holders.is_empty() {
            return holders;
        }
    }
    Vec::new()
}

/// What /proc/locks says, in as few reads as the kernel allows; empty where there is none.
fn locks() -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open("/proc/locks") {
        let mut page = [0; 1 << 14];
        while let Ok(len @ 1..) = file.read(&mut page) {
            text.extend_from_slice(&page[..len]);
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Who has a flock on the file "major:minor:inode" by that list.
fn listed(locks: &str, wanted: &str) -> Vec<i32> {
    // "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF"; a waiter has "->" in front.
    locks
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            match fields.as_slice() {
                [_, "FLOCK", _, _, pid, inode, ..] if *inode == wanted => pid.parse().ok(),
                _ => None,
            }
        })
        .filter(|pid| *pid > 0)
        .collect()
}

/// Other processes that have the file open, as far as we may look.
fn openers(metadata: &fs::Metadata) -> Vec<i32> {
    let me = std::process::id() as i32;
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != me)
        .filter(|pid| {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            descriptors
                .flatten()
                .any(|fd| fs::metadata(fd.path()).is_ok_and(|other| is_same(&other, metadata)))
        })
        .collect()
}

/// The same file, or the same device, whatever node leads to it.
fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    match (one.file_type().is_block_device(), other.file_type().is_block_device()) {
        (true, true) => one.rdev() == other.rdev(),
        (false, false) => one.ino() == other.ino() && one.dev() == other.dev(),
        _ => false,
    }
}

fn describe(pid: i32) -> Holder {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|n| n.trim().to_owned());
    Holder { pid, dead: name.is_none() || is_dying(pid), name }
}

/// Whether a process can do nothing any more, even if the kernel has not finished with it.
fn is_dying(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // "pid (name) state ppid pgrp session tty tpgid flags ..."; the name may hold anything, so start at its end.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = fields.first().copied().unwrap_or("");
    let flags: u64 = fields.get(6).and_then(|f| f.parse().ok()).unwrap_or(0);
    if matches!(state, "Z" | "X" | "x") || flags & EXITING != 0 {
        return true;
    }
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let kill = 1u64 << (libc::SIGKILL - 1);
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & kill != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{flock, FlockOperation};

    use super::*;

    #[test]
    fn a_holder_is_found_while_other_locks_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let locked = |name: &str| {
            let file = File::create(directory.path().join(name)).unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file
        };
        // The kernel lists the newest lock first: those that come and go stand before the one that is looked for.
        let held = locked("held");
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for churn in ["a", "b"] {
                let (locked, done) = (&locked, &done);
                threads.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        drop(locked(churn));
                    }
                });
            }
            let me = std::process::id() as i32;
            let missed = (0..3000)
                .filter(|_| find(&held.metadata().unwrap()).is_none_or(|holder| holder.pid != me))
                .count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
    }

    #[test]
    fn a_live_process_is_not_dying_and_a_zombie_is() {
        assert!(!is_dying(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        // Not reaped yet: it becomes a zombie and stays one.
        while !is_dying(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(describe(pid).dead);
    }
}
