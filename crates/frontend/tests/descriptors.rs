//! A process without descriptors to spare. A test program of its own: the limit is the process's.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::sync::Arc;
use std::time::Duration;

use afterimage_frontend::ServeOptions;
use memory_disk::MemoryDisk;
use raw::*;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use rustix::time::{clock_gettime, ClockId};

/// Processor time of this process.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_second_connection_that_cannot_be_accepted_waits_and_costs_nothing() {
    let served = daemon::serve(Arc::new(MemoryDisk::new(8 << 20, false)), ServeOptions::default());
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 1);
    let mut second = RawGuest::connect(&served.socket);
    assert!(second.is_closed());
    let limit = getrlimit(Resource::Nofile);
    let waiting =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    let waiting = waiting.unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: limit.maximum }).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| rustix::io::dup(&waiting).ok()).collect();
    let address = rustix::net::SocketAddrUnix::new(&served.socket).unwrap();
    rustix::net::connect(&waiting, &address).unwrap();
    let before = busy();
    std::thread::sleep(Duration::from_millis(500));
    let spent = busy() - before;
    guest.check_io(8, 2);
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(taken);
    assert!(spent < Duration::from_millis(30), "{spent:?} of processor time in 500 ms");
    // And is turned away once it can be.
    let mut byte = [0];
    afterimage_block::wait_readable(&[std::os::fd::AsFd::as_fd(&waiting)], Some(PATIENCE)).unwrap();
    assert_eq!(rustix::io::read(&waiting, &mut byte), Ok(0));
    guest.check_io(16, 3);
}
