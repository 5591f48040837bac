//! What the keeper holds of a guest is what the daemon accepted, within bounds, and another daemon goes on with it.

#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use afterimage_frontend::keep::{KeepError, Keeper};
use afterimage_frontend::{Endpoint, FrontendStats, KeepHandle, ServeOptions, Server};
use memory_disk::MemoryDisk;
use raw::*;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

/// A keeper, and one daemon after another.
struct Kept {
    keeper: Arc<Mutex<Keeper>>,
    disk: Arc<MemoryDisk>,
    socket: PathBuf,
    queues: u16,
    _directory: tempfile::TempDir,
}

/// One daemon; its end is like a kill for the keeper: nothing is taken back.
struct Life {
    server: Option<Server>,
    keep: Option<KeepHandle>,
    serving: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.server = None;
        self.keep = None;
        let served = self.serving.take().unwrap().join();
        assert!(served.is_ok() || std::thread::panicking());
    }
}

impl Kept {
    fn new(queues: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            keeper: Arc::default(),
            disk: Arc::new(MemoryDisk::new(8 << 20, false)),
            socket: directory.path().join("socket"),
            queues,
            _directory: directory,
        }
    }

    fn connect(&self) -> (KeepHandle, std::thread::JoinHandle<()>) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let keeper = Arc::clone(&self.keeper);
        let serving = std::thread::spawn(move || keeper.lock().unwrap().serve(ours.as_fd()).unwrap());
        (KeepHandle::connect(theirs).unwrap(), serving)
    }

    fn start(&self) -> Life {
        self.start_with(true)
    }

    fn start_with(&self, write_cache: bool) -> Life {
        let (keep, serving) = self.connect();
        let listener = keep.listener("vda").unwrap();
        let listener = listener.unwrap_or_else(|| UnixListener::bind(&self.socket).unwrap());
        let options = ServeOptions {
            keep: Some(keep.clone()),
            queues: self.queues,
            write_cache,
            ..ServeOptions::default()
        };
        let stats = Arc::new(FrontendStats::new(self.queues));
        let server =
            Server::start("vda", Arc::clone(&self.disk) as _, Endpoint::Listen(listener), options, stats);
        Life { server: Some(server.unwrap()), keep: Some(keep), serving: Some(serving) }
    }

    /// What is held, by key. Only while no daemon lives.
    fn entries(&self) -> Vec<String> {
        let (keep, serving) = self.connect();
        let keys = keep.list("vda/").unwrap().into_iter().map(|entry| entry.key).collect();
        drop(keep);
        serving.join().unwrap();
        keys
    }
}

fn region(start: u64, len: u64, user: u64) -> Vec<u8> {
    [0, start, len, user, 0].map(u64::to_ne_bytes).concat()
}

#[test]
fn refused_messages_are_not_kept() {
    let kept = Kept::new(1);
    let life = kept.start();
    let mut guest = RawGuest::start(&kept.socket);
    guest.check_io(0, 1);
    drop(life);
    let before = kept.entries();
    let life = kept.start();
    guest.check_io(0, 2);

    let memory = [guest.memory.as_raw_fd()];
    let pipe: OwnedFd = rustix::pipe::pipe().unwrap().1;
    let zero = 0u64.to_ne_bytes();
    for round in 0..1200 {
        // Overlapping, and each under a key of its own.
        let start = MEMORY_START + 4096 * (round % 256);
        assert!(!guest.ask_ack(ADD_MEM_REG, &region(start, 4096, 0), &memory));
    }
    assert!(!guest.ask_ack(SET_VRING_NUM, &words([0, 3]), &[]));
    assert!(!guest.ask_ack(SET_VRING_NUM, &words([7, 16]), &[]));
    assert!(!guest.ask_ack(SET_VRING_BASE, &words([0, 1 << 16]), &[]));
    assert!(!guest.ask_ack(SET_VRING_ADDR, &guest.ring_address(MEMORY_BYTES, 0, 0), &[]));
    assert!(!guest.ask_ack(SET_VRING_CALL, &zero, &[pipe.as_raw_fd()]));
    assert!(!guest.ask_ack(SET_VRING_KICK, &zero, &[pipe.as_raw_fd()]));
    assert!(!guest.ask_ack(SET_CONFIG, &[words([32, 1, 0]), vec![2]].concat(), &[]));
    assert!(!guest.ask_ack(REM_MEM_REG, &region(0, 4096, 0), &[]));
    let elsewhere = [1u64, 0, 4096, USER_START + MEMORY_BYTES, 0].map(u64::to_ne_bytes).concat();
    assert!(!guest.ask_ack(SET_MEM_TABLE, &elsewhere, &memory), "the ring lies outside");
    guest.check_io(8, 3);
    drop(life);
    assert_eq!(kept.entries(), before);
    let _life = kept.start();
    guest.check_io(8, 4);
}

#[test]
fn regions_come_back_as_they_were() {
    let kept = Kept::new(1);
    let life = kept.start();
    let mut guest = RawGuest::start(&kept.socket);
    let memory = [guest.memory.as_raw_fd()];
    let other = |n: u64| region(MEMORY_START + (n << 20), 4096, USER_START + (n << 20));
    let table: Vec<u8> = [
        2u64,
        MEMORY_START,
        MEMORY_BYTES,
        USER_START,
        0,
        MEMORY_START + (1 << 20),
        4096,
        USER_START + (1 << 20),
        0,
    ]
    .map(u64::to_ne_bytes)
    .concat();
    assert!(guest.ask_ack(SET_MEM_TABLE, &table, &[memory[0], memory[0]]));
    assert!(guest.ask_ack(ADD_MEM_REG, &other(2), &memory));
    assert!(guest.ask_ack(ADD_MEM_REG, &other(3), &memory));
    assert!(guest.ask_ack(REM_MEM_REG, &other(3), &[]));
    assert!(guest.ask_ack(REM_MEM_REG, &other(1), &[]), "one of the table's");
    drop(life);
    let _life = kept.start();
    guest.check_io(0, 1);
    for (n, there) in [(1, false), (2, true), (3, false)] {
        assert_eq!(guest.ask_ack(ADD_MEM_REG, &other(n), &memory), !there, "region {n}");
    }
    drop(_life);
    let _life = kept.start();
    guest.check_io(0, 2);
    for n in 1..4 {
        assert!(!guest.ask_ack(ADD_MEM_REG, &other(n), &memory), "region {n}");
    }
}

/// See `a_new_owner_begins_anew_on_the_same_connection` in protocol.rs.
#[test]
fn of_what_was_before_a_new_owner_only_the_connection_is_kept() {
    let kept = Kept::new(1);
    let life = kept.start();
    let mut guest = RawGuest::start(&kept.socket);
    assert!(guest.ask_ack(ADD_MEM_REG, &region(0, 4096, 0), &[guest.memory.as_raw_fd()]));
    guest.stop_queue();
    assert!(guest.ask_ack(REM_MEM_REG, &region(MEMORY_START, MEMORY_BYTES, USER_START), &[]));
    assert!(guest.ask_ack(SET_CONFIG, &[words([32, 1, 0]), vec![0]].concat(), &[]));
    assert!(guest.ask_ack(SET_OWNER, &[], &[]));
    drop(life);
    let left = ["listener", "session/protocol-features", "session/shown", "session/socket"];
    assert_eq!(kept.entries(), left.map(|key| format!("vda/{key}")));
    let _life = kept.start();
    guest.send(SET_FEATURES, &guest.features.to_ne_bytes(), &[]);
    assert!(guest.ask_ack(
        ADD_MEM_REG,
        &region(MEMORY_START, MEMORY_BYTES, USER_START),
        &[guest.memory.as_raw_fd()]
    ));
    guest.set_up_queue();
    guest.check_io(0, 1);
}

/// A guest reads whether it has a write cache once, perhaps long before its queues run.
#[test]
fn what_was_read_of_the_write_cache_is_what_the_next_daemon_goes_by() {
    for (first, second, flushed) in [(true, true, 0), (false, true, 1), (true, false, 0)] {
        let kept = Kept::new(1);
        let life = kept.start_with(first);
        let mut guest = RawGuest::connect(&kept.socket);
        guest.negotiate(!0);
        guest.send(GET_CONFIG, &[words([0, 60, 0]), vec![0; 60]].concat(), &[]);
        assert_eq!(guest.receive()[12 + 32], u8::from(first));
        drop(life);
        let life = kept.start_with(second);
        guest.set_up_queue();
        guest.check_io(0, 1);
        assert_eq!(kept.disk.flushes().1, flushed, "{first}, then {second}");
        drop(life);
        let _life = kept.start_with(second);
        guest.check_io(0, 2);
        assert_eq!(kept.disk.flushes().1, 2 * flushed, "{first}, then {second}, twice");
    }
}

/// A stopped queue stays stopped, whatever stopped it.
#[test]
fn a_queue_that_was_stopped_does_not_run_after_a_takeover() {
    type Stop = (&'static str, fn(&mut RawGuest));
    let stops: [Stop; 4] = [
        ("GET_VRING_BASE", |guest| assert_eq!(guest.stop_queue(), 2)),
        ("a reset by status", |guest| assert!(guest.ask_ack(SET_STATUS, &0u64.to_ne_bytes(), &[]))),
        ("a new size", |guest| assert!(guest.ask_ack(SET_VRING_NUM, &words([0, 8]), &[]))),
        ("disabling", |guest| assert!(guest.ask_ack(SET_VRING_ENABLE, &words([0, 0]), &[]))),
    ];
    for (name, stop) in stops {
        let kept = Kept::new(1);
        let life = kept.start();
        let mut guest = RawGuest::start(&kept.socket);
        guest.check_io(0, 1);
        stop(&mut guest);
        drop(life);
        let _life = kept.start();
        let (header, status) = (guest.header(0, T_FLUSH, 0), guest.status(0));
        guest.set_desc(0, header);
        guest.set_desc(1, status);
        guest.offer(0);
        guest.ring_kick();
        // Answered when the takeover is through.
        guest.ask_u64(GET_FEATURES);
        assert!(guest.next_used(std::time::Duration::from_millis(50)).is_none(), "{name}");
    }
}

/// One queue that cannot start again is that queue's loss.
#[test]
fn a_queue_that_cannot_start_leaves_the_others_running() {
    let kept = Kept::new(2);
    let life = kept.start();
    let mut guest = RawGuest::start(&kept.socket);
    // The second queue begins behind the first one's memory; its region goes, and the ring with it.
    let second = region(MEMORY_START + (1 << 20), 1 << 16, USER_START + (1 << 20));
    let file: OwnedFd = rustix::fs::memfd_create("second", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 16).unwrap();
    assert!(guest.ask_ack(ADD_MEM_REG, &second, &[file.as_raw_fd()]));
    let (descriptors, used, available) = RawGuest::ring_offsets();
    let mut addresses = guest.ring_address(descriptors + (1 << 20), used + (1 << 20), available + (1 << 20));
    addresses[0] = 1;
    assert!(guest.ask_ack(SET_VRING_NUM, &words([1, u32::from(QUEUE_SIZE)]), &[]));
    assert!(guest.ask_ack(SET_VRING_ADDR, &addresses, &[]));
    assert!(guest.ask_ack(SET_VRING_KICK, &0x101u64.to_ne_bytes(), &[]));
    assert!(guest.ask_ack(SET_VRING_ENABLE, &words([1, 1]), &[]));
    guest.check_io(0, 1);
    // Refused while both run: and then both run on.
    assert!(!guest.ask_ack(REM_MEM_REG, &second, &[]));
    guest.check_io(0, 2);
    // Stopped by the guest's own breach, it does not count any more; the region may go.
    rustix::io::pwrite(&file, &1000u16.to_le_bytes(), available + 2).unwrap();
    while guest.ask_u64(GET_STATUS) & 0x40 == 0 {
        std::thread::yield_now();
    }
    drop(life);
    let _life = kept.start();
    guest.check_io(0, 3);
}

#[test]
fn one_disk_s_excess_is_refused_and_another_disk_s_entries_are_not() {
    let kept = Kept::new(1);
    let (keep, serving) = kept.connect();
    let file: OwnedFd = rustix::fs::memfd_create("any", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let fds = vec![file.as_fd(); 32];
    let put = |disk: &str, n: usize, fds: &[_]| keep.put(&format!("{disk}/session/{n}"), b"", fds);
    let refused = (0..1000).find(|n| matches!(put("vda", *n, &fds), Err(KeepError::Refused(_))));
    assert_eq!(refused, Some(12), "384 descriptors");
    let refused = (1000..3000).find(|n| matches!(put("vda", *n, &[]), Err(KeepError::Refused(_))));
    assert_eq!(refused, Some(1000 + 768 - 12), "768 entries");
    put("vda", 0, &fds).expect("in the place of another");
    put("vdb", 0, &fds).expect("another disk's");
    put("vd", 0, &fds).expect("a disk whose name begins another's");
    drop(keep);
    serving.join().unwrap();
}
