//! `kill -9` of the daemon with requests in flight: every request is answered exactly once, with its data on the
//! disk, whether the VMM reconnects with the in-flight region (QEMU) or the keeper holds the connection (User Mode
//! Linux, which has neither). The daemon is a process of its own: this test program, started again.

#[path = "support/raw.rs"]
mod raw;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use afterimage_block::{
    wait_readable, Admitted, BlockError, Completion, Disk, Geometry, Health, Lane, MediumDisk,
};
use afterimage_frontend::keep::Keeper;
use afterimage_frontend::{Endpoint, FrontendStats, KeepHandle, ServeOptions, Server};
use afterimage_store::FileMedium;
use raw::*;

const SLOTS: u16 = 5;
const DISK_SECTORS: u64 = 4096;
/// A daemon started for it dies while this sector is submitted.
const FATAL_SECTOR: u64 = 4095;

/// A disk whose requests complete late and out of order: the last submitted first, a batch behind.
struct LateDisk(MediumDisk);

struct LateLane {
    inner: Box<dyn Lane>,
    held: Vec<Admitted>,
    turns: u32,
}

impl Disk for LateDisk {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn serial(&self) -> &str {
        "late"
    }

    fn health(&self) -> &Health {
        self.0.health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(LateLane { inner: self.0.open_lane()?, held: Vec::new(), turns: 0 }))
    }
}

impl Lane for LateLane {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.inner.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        if request.sector.0 == FATAL_SECTOR && std::env::var_os("TAKEOVER_FATAL").is_some() {
            std::process::abort();
        }
        self.held.push(request);
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.turns += 1;
        // One request each time, so that most batches end with others in flight.
        if self.turns % 3 != 0 {
            if let Some(request) = self.held.pop() {
                self.inner.take(request);
                self.inner.reap(completions);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn wait(
        &mut self,
        also: &[std::os::fd::BorrowedFd<'_>],
        timeout: Option<std::time::Duration>,
    ) -> std::io::Result<()> {
        if self.held.is_empty() {
            wait_readable(also, timeout)
        } else {
            Ok(())
        }
    }
}

/// Not a test of its own: the daemon that the others kill.
#[test]
#[ignore = "the daemon that the others kill"]
fn child_daemon() {
    let directory = std::env::var("TAKEOVER_DIRECTORY").expect("started by the test that kills it");
    let directory = PathBuf::from(directory);
    let medium = FileMedium::open(&directory.join("image"), false).unwrap();
    let disk = Arc::new(LateDisk(MediumDisk::new(Arc::new(medium))));
    let keep = std::env::var("TAKEOVER_KEEP").ok().map(|fd| {
        // SAFETY: the parent leaves this descriptor open for us; nobody else here knows its number.
        #[allow(unsafe_code)]
        let fd = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
        KeepHandle::connect(fd).unwrap()
    });
    let listener = match keep.as_ref().and_then(|keep| keep.listener("vda").unwrap()) {
        Some(listener) => listener,
        None => {
            let socket = directory.join("socket");
            let _ = std::fs::remove_file(&socket);
            UnixListener::bind(socket).unwrap()
        }
    };
    let options = ServeOptions { keep, queue_size_max: 16, ..ServeOptions::default() };
    let stats = Arc::new(FrontendStats::new(1));
    Server::start("vda", disk, Endpoint::Listen(listener), options, stats).unwrap().join();
}

struct Daemon(Child);

impl Daemon {
    fn start(directory: &Path, keep: Option<&OwnedFd>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child_daemon", "--ignored", "--test-threads=1"])
            .env("TAKEOVER_DIRECTORY", directory);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(keep) = keep {
            rustix::io::fcntl_setfd(keep, rustix::io::FdFlags::empty()).unwrap();
            command.env("TAKEOVER_KEEP", keep.as_raw_fd().to_string());
        }
        Self(command.spawn().unwrap())
    }

    /// One that dies at [`FATAL_SECTOR`].
    fn doomed(directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child_daemon", "--ignored", "--test-threads=1"])
            .env("TAKEOVER_DIRECTORY", directory);
        command.env("TAKEOVER_FATAL", "1").stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(path: &Path) -> UnixStream {
    let start = std::time::Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(socket) => return socket,
            Err(e) => assert!(start.elapsed() < PATIENCE, "no daemon: {e}"),
        }
        std::thread::yield_now();
    }
}

/// A guest that keeps some writes in flight and knows what each block must hold.
struct Writer {
    guest: RawGuest,
    /// Per slot: sector and content of the request in flight.
    in_flight: [Option<(u64, u8)>; SLOTS as usize],
    expected: Vec<u8>,
    state: u64,
    answered: u64,
}

impl Writer {
    fn new(guest: RawGuest, seed: u64) -> Self {
        Self {
            guest,
            in_flight: Default::default(),
            expected: vec![0; DISK_SECTORS as usize],
            state: seed,
            answered: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ z >> 27) % below
    }

    fn fill(&mut self) {
        for slot in 0..SLOTS {
            if self.in_flight[usize::from(slot)].is_some() {
                continue;
            }
            let sector = loop {
                let sector = self.random(DISK_SECTORS);
                // Requests in flight together have no order, so they must not overlap.
                if !self.in_flight.iter().flatten().any(|(s, _)| *s == sector) {
                    break sector;
                }
            };
            let content = self.random(255) as u8 + 1;
            let (n, first) = (u64::from(slot), 3 * slot);
            let data = DATA + 512 * n;
            self.guest.write(data, &[content; 512]);
            let header = self.guest.header(n, T_OUT, sector);
            self.guest.set_desc(first, Desc { next: first + 1, ..header });
            self.guest.set_desc(first + 1, desc(gpa(data), 512, F_NEXT, first + 2));
            let status = self.guest.status(n);
            self.guest.set_desc(first + 2, status);
            self.in_flight[usize::from(slot)] = Some((sector, content));
            self.guest.offer(first);
        }
        self.guest.ring_kick();
    }

    fn reap_one(&mut self) {
        let (head, len) = self.guest.next_used(PATIENCE).expect("an answer");
        let slot = head / 3;
        let (sector, content) = self.in_flight[slot as usize].take().expect("answered once");
        assert_eq!((head % 3, len, self.guest.status_value(u64::from(slot))), (0, 1, 0));
        self.expected[sector as usize] = content;
        self.answered += 1;
    }

    fn run(&mut self, answers: u64) {
        for _ in 0..answers {
            self.fill();
            self.reap_one();
        }
        // Leave the ring full, so that the daemon dies with work in hand.
        self.fill();
    }

    fn drain(&mut self) {
        while self.in_flight.iter().any(Option::is_some) {
            self.reap_one();
        }
    }

    fn check(&self, image: &Path) {
        let image = std::fs::read(image).unwrap();
        for (sector, content) in self.expected.iter().enumerate() {
            let held = &image[512 * sector..512 * (sector + 1)];
            assert!(held.iter().all(|b| b == content), "sector {sector}");
        }
    }
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let image = std::fs::File::create(directory.path().join("image")).unwrap();
    image.set_len(DISK_SECTORS * 512).unwrap();
    directory
}

fn get_inflight(guest: &mut RawGuest) -> (Vec<u8>, OwnedFd) {
    let mut body = vec![0; 16];
    body.extend(1u16.to_ne_bytes());
    body.extend(QUEUE_SIZE.to_ne_bytes());
    body.extend([0; 4]);
    guest.send(GET_INFLIGHT_FD, &body, &[]);
    guest.receive_with_fd()
}

fn vmm_reconnects() {
    let directory = directory();
    let socket = directory.path().join("socket");
    let mut daemon = Daemon::start(directory.path(), None);
    connect(&socket);
    let mut guest = RawGuest::connect(&socket);
    guest.negotiate(!0);
    let (inflight, inflight_fd) = get_inflight(&mut guest);
    // The cache is switched off: a daemon that comes back must still know.
    assert!(guest.ask_ack(SET_CONFIG, &[words([32, 1, 0]), vec![0]].concat(), &[]));
    guest.send(SET_INFLIGHT_FD, &inflight, &[inflight_fd.as_raw_fd()]);
    guest.set_up_queue();
    let mut writer = Writer::new(guest, 1);
    let mut cache = 0;
    for round in 0..12 {
        let answers = writer.random(40);
        writer.run(answers);
        daemon.kill();
        daemon = Daemon::start(directory.path(), None);
        // The first connection only waits for the daemon.
        let guest = &mut writer.guest;
        guest.socket = connect(&socket);
        guest.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        guest.negotiate(!0);
        guest.send(SET_INFLIGHT_FD, &inflight, &[inflight_fd.as_raw_fd()]);
        guest.send(GET_CONFIG, &[words([32, 1, 0]), vec![0]].concat(), &[]);
        assert_eq!(guest.receive()[12..], [cache], "write cache in round {round}");
        if round % 2 == 0 {
            cache = 1 - cache;
            assert!(guest.ask_ack(SET_CONFIG, &[words([32, 1, 0]), vec![cache]].concat(), &[]));
        }
        guest.set_up_queue();
    }
    writer.drain();
    daemon.kill();
    writer.check(&directory.path().join("image"));
    assert!(writer.answered > 100);
}

fn keeper_holds_the_connection() {
    let directory = directory();
    let socket = directory.path().join("socket");
    let keeper = Arc::new(std::sync::Mutex::new(Keeper::new()));
    let start = || {
        use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let daemon = Daemon::start(directory.path(), Some(&theirs));
        drop(theirs);
        let keeper = Arc::clone(&keeper);
        let serving = std::thread::spawn(move || keeper.lock().unwrap().serve(ours.as_fd()).unwrap());
        (daemon, serving)
    };
    let (mut daemon, mut serving) = start();
    let mut guest = {
        connect(&socket);
        RawGuest::connect(&socket)
    };
    guest.negotiate(!0);
    guest.set_up_queue();
    let mut writer = Writer::new(guest, 2);
    for _ in 0..12 {
        let answers = writer.random(40);
        writer.run(answers);
        daemon.kill();
        serving.join().unwrap();
        // While nobody is there the guest goes on, and its kick is not lost.
        writer.guest.ring_kick();
        (daemon, serving) = start();
    }
    writer.drain();
    // The device is as the guest left it, control messages included, and stops where it should.
    assert_eq!(u64::from(writer.guest.stop_queue()), writer.answered % (1 << 16));
    writer.guest.send(SET_VRING_KICK, &0u64.to_ne_bytes(), &[writer.guest.kick.as_raw_fd()]);
    writer.run(10);
    daemon.kill();
    serving.join().unwrap();
    (daemon, serving) = start();
    writer.drain();
    // When the guest leaves, nothing of it is kept but the listening socket.
    drop(writer.guest.socket.shutdown(std::net::Shutdown::Both));
    let next = RawGuest::start(&socket);
    drop(next);
    daemon.kill();
    serving.join().unwrap();
    writer.check(&directory.path().join("image"));
    let left = keeper.lock().unwrap().len();
    assert!(left >= 1, "the listener at least");
}

/// The first request of a batch is answered when the second one kills the daemon, before the used index moves: the
/// first is still in flight and answered by the next daemon, once.
fn between_answer_and_publication() {
    let directory = directory();
    let socket = directory.path().join("socket");
    let mut daemon = Daemon::doomed(directory.path());
    connect(&socket);
    let mut guest = RawGuest::connect(&socket);
    guest.negotiate(!0);
    let (inflight, inflight_fd) = get_inflight(&mut guest);
    guest.send(SET_INFLIGHT_FD, &inflight, &[inflight_fd.as_raw_fd()]);
    for (slot, kind) in [T_GET_ID, T_OUT].into_iter().enumerate() {
        let (n, first) = (slot as u64, 3 * slot as u16);
        let write = if kind == T_GET_ID { F_WRITE } else { 0 };
        let header = guest.header(n, kind, FATAL_SECTOR);
        guest.set_desc(first, Desc { next: first + 1, ..header });
        guest.set_desc(first + 1, desc(gpa(DATA + 512 * n), 512, F_NEXT | write, first + 2));
        let status = guest.status(n);
        guest.set_desc(first + 2, status);
        guest.offer(first);
    }
    guest.set_up_queue_at(0);
    daemon.0.wait().unwrap();
    assert_eq!(guest.used_idx(), 0);
    assert_eq!(guest.status_value(0), 0, "the first request was answered");
    let _second = Daemon::start(directory.path(), None);
    guest.socket = connect(&socket);
    guest.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    guest.negotiate(!0);
    guest.send(SET_INFLIGHT_FD, &inflight, &[inflight_fd.as_raw_fd()]);
    guest.set_up_queue_at(0);
    let answers = [guest.next_used(PATIENCE), guest.next_used(PATIENCE)].map(|a| a.expect("an answer").0);
    assert_eq!(answers, [0, 3]);
    assert_eq!(guest.stop_queue(), 2);
}

/// One test, so that no other process inherits this one's keeper sockets.
#[test]
fn no_request_is_lost_or_answered_twice() {
    if std::env::var_os("TAKEOVER_DIRECTORY").is_none() {
        between_answer_and_publication();
        vmm_reconnects();
        keeper_holds_the_connection();
    }
}
