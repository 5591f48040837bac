//! What a peer holds may block: full eventfds, sockets that nobody reads, files whose server never answers. Its disk goes
//! on, a queue stops when told to, and an orderly end ends.

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/fuse.rs"]
mod fuse;
#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use afterimage_frontend::ServeOptions;
use daemon::{serve, Served};
use memory_disk::MemoryDisk;
use raw::*;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

fn served() -> Served {
    serve(Arc::new(MemoryDisk::new(8 << 20, false)), ServeOptions::default())
}

/// The orderly end, which must not take longer than anything else here.
fn ends(served: Served) {
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        served.server.stop();
        let _ = sender.send(());
    });
    ended.recv_timeout(PATIENCE).expect("the orderly end ends");
}

/// Makes an eventfd full, and whoever writes to it wait.
fn fill(fd: &OwnedFd) {
    let flags = fcntl_getfl(fd).unwrap();
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).unwrap();
    // The daemon may add to it at any time.
    while rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(fd, &mut [0u8; 8]);
    }
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
}

#[test]
fn a_full_call_that_blocks_stops_neither_its_disk_nor_the_end() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 1);
    let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    guest.polls = true;
    guest.send(SET_VRING_CALL, &0u64.to_ne_bytes(), &[call.as_raw_fd()]);
    guest.check_io(8, 2);
    fill(&call);
    guest.check_io(16, 3);
    // Not with the descriptor's next life either: a start and a new call both notify.
    let base = guest.stop_queue();
    guest.send(SET_VRING_BASE, &words([0, base]), &[]);
    guest.send(SET_VRING_KICK, &0u64.to_ne_bytes(), &[guest.kick.as_raw_fd()]);
    guest.send(SET_VRING_CALL, &0u64.to_ne_bytes(), &[call.as_raw_fd()]);
    guest.check_io(24, 4);
    fill(&call);
    guest.check_io(32, 5);
    ends(served);
}

#[test]
fn a_full_err_that_blocks_does_not_stop_the_session() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    let err = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    guest.send(SET_VRING_ERR, &0u64.to_ne_bytes(), &[err.as_raw_fd()]);
    guest.check_io(0, 1);
    fill(&err);
    guest.set_avail_idx(1000);
    guest.ring_kick();
    // The queue's end is known a moment before the session is told.
    while guest.ask_u64(GET_STATUS) & 0x40 == 0 {
        std::thread::yield_now();
    }
    for _ in 0..100 {
        guest.ask_u64(GET_STATUS);
    }
    guest.stop_queue();
    ends(served);
}

#[test]
fn sockets_that_nobody_reads_stop_nothing() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    guest.polls = true;
    guest.send(SET_VRING_CALL, &0u64.to_ne_bytes(), &[near.as_raw_fd()]);
    near.set_nonblocking(true).unwrap();
    while rustix::io::write(&near, &[1; 4096]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    guest.check_io(0, 1);
    // The answers fill this connection until the daemon can send no more, and then it must hear of its end.
    guest.socket.set_nonblocking(true).unwrap();
    let question = words([GET_FEATURES, 1, 0]).repeat(64);
    let mut refused = 0;
    while refused < 100 {
        match guest.send_bytes(&question, &[]) {
            Ok(_) => refused = 0,
            Err(_) => {
                refused += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
    ends(served);
}

#[test]
fn a_doorbell_is_an_eventfd_or_a_unix_socket() {
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 1);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let device: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap().into();
    let network: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    for request in [SET_VRING_CALL, SET_VRING_ERR, SET_VRING_KICK] {
        for fd in [&reader, &writer, &file, &device, &network] {
            assert!(!guest.ask_ack(request, &0u64.to_ne_bytes(), &[fd.as_raw_fd()]), "{request} {fd:?}");
            guest.check_io(0, 2);
        }
    }
    ends(served);
}

#[test]
fn a_file_whose_server_never_answers_is_refused_untouched() {
    let stalled = match fuse::StalledFile::mount() {
        Ok(stalled) => stalled,
        Err(why) => return afterimage_testing::skip(why),
    };
    let file = stalled.open();
    let served = served();
    let mut guest = RawGuest::start(&served.socket);
    guest.check_io(0, 1);
    let fd = [file.as_raw_fd()];
    for request in [SET_VRING_CALL, SET_VRING_ERR, SET_VRING_KICK] {
        assert!(!guest.ask_ack(request, &0u64.to_ne_bytes(), &fd), "{request}");
    }
    let table = [1u64, MEMORY_START, MEMORY_BYTES, USER_START, 0].map(u64::to_ne_bytes).concat();
    assert!(!guest.ask_ack(SET_MEM_TABLE, &table, &fd));
    let mut inflight = [4096u64, 0].map(u64::to_ne_bytes).concat();
    inflight.extend([1u16, QUEUE_SIZE, 0, 0].map(u16::to_ne_bytes).concat());
    assert!(!guest.ask_ack(SET_INFLIGHT_FD, &inflight, &fd));
    guest.check_io(0, 2);
    ends(served);
}
