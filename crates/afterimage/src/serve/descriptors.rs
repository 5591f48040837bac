//! The limit of open files: raised as far as it goes, and checked against what the guests may need at once.
//!
//! A process that runs out of descriptors under a guest cannot take its next message, and a daemon that takes over under
//! `keep` cannot even read what is held for it. So what cannot fit is refused at the start, in a sentence.

use std::io;

use afterimage_frontend::keep::wire::DISK_FDS_MAX;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use super::settings::Settings;
use crate::failure::Failure;

/// For the process itself: standard streams, signals, log, control and metrics sockets with their clients.
const PROCESS: u64 = 256;
/// For a disk: image, state, arena and journal files, listening and connected sockets, the decoder's socket pair, and two
/// messages' descriptors (32 each), as one is received while it is handed on.
const DISK: u64 = 32 + 2 * 32;
/// For a queue: its wake-ups, its lane's and its bell's io_uring, and kick, call and err descriptor, old and new.
const QUEUE: u64 = 16;
/// For a disk whose commits may be handed over: the ways in to it of the control disk's queue and session, each a lane of an io_uring and the bells
/// of its layers.
const WAYS_IN: u64 = 2 * 8;

/// Raises this process's limit as far as it may.
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        if let Err(error) = raised.map_err(io::Error::from) {
            tracing::warn!("cannot raise the limit of open files: {error}");
        }
    }
    getrlimit(Resource::Nofile).current
}

/// How many descriptors these disks may need at once. `kept`: what the keeper holds is taken over at the start, and is
/// held by the keeper, whose limit is the same.
fn needed(disks: u64, queues: u64, kept: bool, control_disk: bool, retain: bool) -> u64 {
    let held = if kept { DISK_FDS_MAX as u64 } else { 0 };
    let of = |disks: u64, queues: u64| disks * (DISK + held + (queues + 1) * QUEUE);
    let ways_in = if control_disk && retain { disks * WAYS_IN } else { 0 };
    PROCESS + of(disks, queues) + of(control_disk.into(), 1) + ways_in
}

/// Raises the limit, and refuses what does not fit.
///
/// # Errors
/// Too many disks or queues.
pub fn prepare(settings: &Settings, kept: bool) -> Result<(), Failure> {
    let (disks, queues) = (settings.disks.len() as u64, u64::from(settings.queues));
    let needed = needed(disks, queues, kept, settings.control_disk.is_some(), settings.journal.retain);
    match raise() {
        Some(limit) if limit < needed => Err(Failure::failed(format!(
            "{disks} disks of {queues} queues may need {needed} open files, and the limit is {limit}: raise it \
             (ulimit -Hn, LimitNOFILE=), or serve fewer disks or queues"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disk_fits_into_the_usual_limit_and_many_do_not() {
        assert!(needed(1, 1, true, false, false) <= 1024);
        assert!(needed(4, 4, false, false, true) <= 1024 && needed(2, 4, false, true, true) <= 1024);
        assert!(needed(16, 64, true, false, false) > 4096);
    }

    #[test]
    fn what_is_handed_over_has_a_way_in_to_each_disk() {
        let more = |disks| needed(disks, 1, false, true, true) - needed(disks, 1, false, true, false);
        assert_eq!((more(1), more(16)), (16, 256));
        assert_eq!(needed(9, 1, false, false, true), needed(9, 1, false, false, false));
    }
}
