//! What the keeper holds of a guest is what the daemon accepted, within bounds, and another daemon goes on with it.

#[path = "support/memory_disk.rs"]
mod memory_disk;
#[path = "support/raw.rs"]
mod raw;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterimage_frontend::keep::wire::{decode, encode, Message, Operation, FDS_MAX, MESSAGE_BYTES_MAX};
use afterimage_frontend::keep::{KeepError, Keeper};
use afterimage_frontend::{Endpoint, FrontendStats, KeepHandle, ServeOptions, Server};
use memory_disk::MemoryDisk;
use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags, UnixAddr};
use raw::*;
use rustix::event::{eventfd, EventfdFlags};
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

/// See `a_peer_goes_on_without_a_handshake` in stock_clients.rs: the next daemon goes by what the first took for agreed.
#[test]
fn what_was_taken_for_agreed_is_kept() {
    let kept = Kept::new(1);
    let life = kept.start();
    let mut guest = RawGuest::connect(&kept.socket);
    guest.negotiate(!0);
    let features = guest.features;
    drop(guest);
    let mut guest = RawGuest::connect(&kept.socket);
    guest.send(SET_FEATURES, &features.to_ne_bytes(), &[]);
    assert_eq!(guest.ask_u64(GET_STATUS), 0);
    guest.send_memory_table();
    guest.set_up_queue();
    guest.check_io(0, 1);
    drop(life);
    let _life = kept.start();
    assert_eq!(guest.ask_u64(GET_STATUS), 0);
    guest.check_io(0, 2);
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
        assert!(guest.next_used(Duration::from_millis(50)).is_none(), "{name}");
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

/// Sends the first bytes of a message and waits until the daemon has read them.
fn begin_message(guest: &RawGuest, life: &Life, bytes: &[u8], fds: &[i32]) {
    let theirs = life.keep.as_ref().unwrap().connection("vda").unwrap().unwrap();
    assert_eq!(guest.send_bytes(bytes, fds), Ok(bytes.len()));
    let start = Instant::now();
    while rustix::io::ioctl_fionread(&theirs).unwrap() != 0 {
        assert!(start.elapsed() < PATIENCE, "the beginning is read");
        std::thread::yield_now();
    }
}

/// The orderly end, on a thread of its own.
fn stop(life: &mut Life) -> std::thread::JoinHandle<()> {
    let server = life.server.take().unwrap();
    std::thread::spawn(move || server.stop())
}

#[test]
fn a_message_that_has_begun_ends_before_an_orderly_hand_over() {
    let body = 0u64.to_ne_bytes();
    for (flags, begun) in [(1, 12), (9, 12), (1, 4), (9, 16)] {
        // Once more where this machine was too slow for the daemon's patience.
        let in_time = (0..20).any(|_| {
            let kept = Kept::new(1);
            let mut life = kept.start();
            let mut guest = RawGuest::start(&kept.socket);
            guest.check_io(0, 1);
            let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let message = [words([SET_VRING_CALL, flags, 8]), body.to_vec()].concat();
            begin_message(&guest, &life, &message[..begun], &[call.as_raw_fd()]);
            let start = Instant::now();
            let stopping = stop(&mut life);
            std::thread::sleep(Duration::from_millis(10));
            let _ = guest.send_bytes(&message[begun..], &[]);
            let in_time = start.elapsed() < Duration::from_millis(90);
            stopping.join().unwrap();
            drop(life);
            if !in_time {
                return false;
            }
            let _life = kept.start();
            if flags == 9 {
                assert_eq!(guest.receive(), body, "the answer");
            }
            guest.call = call;
            let start = Instant::now();
            guest.check_io(8, 2);
            assert!(start.elapsed() < PATIENCE, "notified where the message says");
            guest.ask_u64(GET_FEATURES);
            true
        });
        assert!(in_time, "20 times");
    }
}

#[test]
fn a_message_that_does_not_end_holds_no_orderly_end_up() {
    let kept = Kept::new(1);
    let mut life = kept.start();
    let mut guest = RawGuest::start(&kept.socket);
    guest.check_io(0, 1);
    begin_message(&guest, &life, &words([SET_VRING_CALL, 1, 8]), &[guest.call.as_raw_fd()]);
    let start = Instant::now();
    stop(&mut life).join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    drop(life);
    assert_eq!(kept.entries(), ["vda/listener"], "nobody could go on with it");
    assert!(guest.is_closed());
    let _life = kept.start();
    RawGuest::start(&kept.socket).check_io(0, 2);
}

const SET_BACKEND_REQ_FD: u32 = 21;

/// What a keeper that holds nothing was given: the key and how many descriptors.
type Puts = Arc<Mutex<Vec<(String, usize)>>>;

fn recording_keeper() -> (KeepHandle, Puts) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let puts = Puts::default();
    let noted = Arc::clone(&puts);
    std::thread::spawn(move || loop {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut control = nix::cmsg_space!([i32; FDS_MAX]);
        let mut iov = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<UnixAddr>(ours.as_raw_fd(), &mut iov, Some(&mut control), flags).unwrap();
        let mut fds = Vec::new();
        for control in received.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(raw) = control {
                fds.extend(raw);
            }
        }
        let len = received.bytes;
        if len == 0 {
            return;
        }
        let message = decode(&bytes[..len], fds.len()).unwrap();
        if message.operation == Operation::Put {
            noted.lock().unwrap().push((String::from_utf8(message.key).unwrap(), fds.len()));
        }
        fds.into_iter().for_each(|fd| nix::unistd::close(fd).unwrap());
        let operation = if message.operation == Operation::List { Operation::End } else { Operation::Ack };
        let answer = encode(&Message { operation, key: Vec::new(), value: Vec::new() }, 0).unwrap();
        rustix::io::write(&ours, &answer).unwrap();
    });
    (KeepHandle::connect(theirs).unwrap(), puts)
}

/// The keeper closes what it is given, and a file's server can let it wait for that: see `StalledFile`.
#[test]
fn no_descriptor_of_a_kind_that_is_refused_reaches_the_keeper() {
    let (keep, puts) = recording_keeper();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let options = ServeOptions { keep: Some(keep), ..ServeOptions::default() };
    let stats = Arc::new(FrontendStats::new(options.queues));
    let disk = Arc::new(MemoryDisk::new(8 << 20, false));
    let _server = Server::start("vda", disk, Endpoint::Listen(listener), options, stats).unwrap();
    let with_descriptors = || {
        let puts = std::mem::take(&mut *puts.lock().unwrap());
        // The daemon's own comes with every kick.
        let theirs = puts.into_iter().filter(|(key, fds)| *fds > 0 && !key.ends_with("/own-inflight"));
        theirs.map(|(key, _)| key).collect::<Vec<_>>()
    };

    let pipe = rustix::pipe::pipe().unwrap();
    let device: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let network: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let memory: OwnedFd = rustix::fs::memfd_create("any", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let bell: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let zero = 0u64.to_ne_bytes().to_vec();
    let mut attacks = Vec::new();
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        for fd in [&pipe.0, &pipe.1, &device, &network, &memory] {
            attacks.push((request, zero.clone(), fd));
        }
    }
    let table = [1u64, MEMORY_START, MEMORY_BYTES, USER_START, 0].map(u64::to_ne_bytes).concat();
    let mut inflight = [4096u64, 0].map(u64::to_ne_bytes).concat();
    inflight.extend([1u16, QUEUE_SIZE, 0, 0].map(u16::to_ne_bytes).concat());
    for fd in [&pipe.0, &network, &bell] {
        attacks.push((SET_MEM_TABLE, table.clone(), fd));
        attacks.push((ADD_MEM_REG, region(0, 4096, 0), fd));
        attacks.push((SET_INFLIGHT_FD, inflight.clone(), fd));
        attacks.push((SET_BACKEND_REQ_FD, Vec::new(), fd));
    }
    for fd in [&pipe.0, &bell, &memory] {
        attacks.push((SET_VRING_NUM, words([0, 16]), fd));
        attacks.push((SET_FEATURES, zero.clone(), fd));
        attacks.push((SET_STATUS, zero.clone(), fd));
    }
    for (request, body, fd) in attacks {
        let mut guest = RawGuest::connect(&socket);
        guest.negotiate(!0);
        guest.ask_u64(GET_FEATURES);
        with_descriptors();
        guest.send(request, &body, &[fd.as_raw_fd()]);
        assert!(guest.is_closed(), "{request} {fd:?}");
        assert!(with_descriptors().is_empty(), "{request} {fd:?}");
    }

    // What nobody looks at is not kept either, whether an answer is asked for or not.
    let mut guest = RawGuest::connect(&socket);
    guest.negotiate(!0);
    guest.ask_u64(GET_FEATURES);
    with_descriptors();
    let unseen = [pipe.0.as_raw_fd(), pipe.1.as_raw_fd()];
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        guest.send(request, &0x100u64.to_ne_bytes(), &unseen);
        guest.ask_ack(request, &0x100u64.to_ne_bytes(), &unseen);
    }
    assert!(with_descriptors().is_empty());
    // And what is as it should be is.
    let (near, _far) = UnixStream::pair().unwrap();
    for (request, fd, key) in
        [(SET_VRING_KICK, bell.as_raw_fd(), "kick"), (SET_VRING_CALL, near.as_raw_fd(), "call")]
    {
        guest.send(request, &zero, &[fd]);
        guest.ask_u64(GET_FEATURES);
        assert_eq!(with_descriptors(), [format!("vda/session/queue-000-{key}")]);
    }
}
