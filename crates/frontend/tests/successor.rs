//! A VMM that was killed holds its connection until its memory was taken down, and the next one may be started at once. Alone in its
//! program: until a child has become another program it holds what other tests have closed.
#![allow(unsafe_code)]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afterimage_frontend::ServeOptions;
use daemon::serve;
use memory_disk::MemoryDisk;
use nix::sys::socket::{connect, socket, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::sys::wait::{waitid, Id, WaitPidFlag};
use nix::unistd::Pid;
use raw::*;

#[test]
fn whoever_takes_a_dying_vmms_place_waits_for_its_end() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|n| n.trim().parse().ok()).take(2).collect();
    if numbers < vec![6, 5] {
        return afterimage_testing::skip("the kernel does not say who connected (SO_PEERPIDFD, Linux 6.5)");
    }
    let served = serve(Arc::new(MemoryDisk::new(8 << 20, false)), ServeOptions::default());
    let held = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let (number, address) = (held.as_raw_fd(), UnixAddr::new(&served.socket).unwrap());
    let mut vmm = Command::new("true");
    // SAFETY: one async-signal-safe call between fork and exec, on a descriptor that is open there.
    unsafe { vmm.pre_exec(move || Ok(connect(number, &address)?)) };
    let mut vmm = vmm.spawn().unwrap();
    // Dead, but not buried; the connection is held here, as it is by the kernel then.
    let id = Id::Pid(Pid::from_raw(vmm.id() as i32));
    waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    let mut successor = RawGuest::connect(&served.socket);
    std::thread::sleep(Duration::from_millis(500));
    drop(held);
    successor.negotiate(!0);
    successor.set_up_queue();
    successor.check_io(8, 1);
    vmm.wait().unwrap();
}
