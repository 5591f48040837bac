//! One processor for a run and all of its processes.
//!
//! At most one of them computes at a time: the calendar or the daemon, a guest's kernel, or a program in it. They wake each other
//! all the time (a system call of a guest's program does it twice), which on one processor is a switch, and on two an interrupt of
//! the other one. On a machine of two, in virtual time a cell of `bench vma` took 17 s where the kernel chose, and 6 s on one
//! processor; in real time a transaction of `bench joj --machine` 0.73 to 1.21 ms (six means of 500 each), and 0.60 to 0.70 on one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// A processor that no other run takes as long as this lives.
#[derive(Debug)]
pub struct Processor {
    /// A name that the kernel gives to one at a time, and takes back however its owner ends.
    _name: Option<UnixDatagram>,
}

impl Processor {
    /// Has this thread, and all threads and processes that it starts from now on, stay on one of the processors that they may have: one
    /// that no other run has taken, or the first where all are. What the kernel does not allow is left as it is: it would be slower, and no different.
    pub fn take() -> Processor {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let mut processors = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
        let first = processors.clone().next();
        let free = processors.find_map(|number| Some((number, taken(number)?)));
        if let Some(number) = free.as_ref().map(|(number, _)| *number).or(first) {
            let mut one = CpuSet::new();
            one.set(number);
            let _ = sched_setaffinity(None, &one);
        }
        Processor { _name: free.map(|(_, name)| name) }
    }
}

fn taken(number: usize) -> Option<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("afterimage/processor/{number}")).ok()?;
    UnixDatagram::bind_addr(&address).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
    }

    /// In threads of their own: the tests' own thread stays where it may be.
    #[test]
    fn two_runs_have_two_processors_where_there_are_two() {
        let all = allowed();
        let run = || {
            let processor = Processor::take();
            (processor, allowed())
        };
        let started = || std::thread::spawn(run).join().unwrap();
        let ((first, its), (second, theirs)) = (started(), started());
        assert_eq!((its.len(), theirs.len()), (1, 1));
        // Somebody else's runs may have them all.
        let both = first._name.is_some() && second._name.is_some();
        assert!(!both || its != theirs, "{its:?} and {theirs:?} of {all:?}");
        assert!(all.contains(&its[0]) && all.contains(&theirs[0]));
        // What has ended has none.
        let name = first._name.is_some();
        drop(first);
        assert!(!name || taken(its[0]).is_some());
    }
}
