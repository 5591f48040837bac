//! A daemon with a driver in the place of a guest: the same messages, memory and rings.

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use afterimage_frontend::inband::{Heard, Peer};
use afterimage_journal::group::JournalOptions;
use afterimage_lab::device::ModelName;
use afterimage_order::Contract;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::calendar::Ns;
use crate::daemon::{Daemon, KICK_NS};
use crate::guest::{GuestKernel, GuestOptions};
use crate::machine::Machine;
use crate::options::RunOptions;
use crate::page_cache::DirtyLimits;
use crate::site::{Files, Site};
use crate::storage::Storage;
use crate::trace::Trace;

const MEMORY_BYTES: u64 = 1 << 20;
const USER: u64 = 0x7000_0000_0000;
const SIZE: u16 = 64;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x3000;
const DATA: u64 = 0x10000;
const MS: Ns = 1_000_000;

/// SET_FEATURES, SET_MEM_TABLE, SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_ENABLE.
const SET_UP: [u32; 5] = [2, 5, 8, 9, 18];
const VRING_KICK: u32 = 35;

fn options(contract: Contract, model: ModelName) -> RunOptions {
    let guest = GuestOptions {
        kernel: GuestKernel { linux: PathBuf::new(), pin: PathBuf::new() },
        memory_mib: 0,
        seed: 1,
        script: String::new(),
        append: Vec::new(),
        reports: false,
    };
    RunOptions {
        model,
        limits: DirtyLimits::of_memory(1 << 30),
        image_bytes: 8 << 20,
        contract,
        direct: true,
        log_bytes: 16 << 20,
        settle_meetings: 1,
        limit: Duration::from_secs(60),
        ..RunOptions::of(guest)
    }
}

struct Driver {
    socket: UnixStream,
    memory: OwnedFd,
    available: u16,
    used: u16,
}

impl Driver {
    fn new() -> (Self, UnixStream) {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, MEMORY_BYTES).unwrap();
        let (socket, far) = UnixStream::pair().unwrap();
        (Self { socket, memory, available: 0, used: 0 }, far)
    }

    fn send(&self, request: u32, body: &[u8], fd: Option<BorrowedFd<'_>>) {
        let message =
            [&request.to_ne_bytes(), &1u32.to_ne_bytes(), &(body.len() as u32).to_ne_bytes(), body].concat();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let sent =
            sendmsg(&self.socket, &[std::io::IoSlice::new(&message)], &mut control, SendFlags::empty());
        assert_eq!(sent, Ok(message.len()));
    }

    /// VERSION_1, FLUSH, and the vhost-user bit; one region; one queue.
    fn set_up(&self) {
        let longs = |longs: &[u64]| longs.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>();
        let bodies = [
            longs(&[1 << 32 | 1 << 30 | 1 << 9]),
            longs(&[1, 0, MEMORY_BYTES, USER, 0]),
            longs(&[u64::from(SIZE) << 32]),
            longs(&[0, USER, USER + USED, USER + AVAILABLE, 0]),
            longs(&[1 << 32]),
        ];
        for (request, body) in SET_UP.into_iter().zip(&bodies) {
            self.send(request, body, (request == 5).then(|| self.memory.as_fd()));
        }
    }

    fn file(&self) -> std::fs::File {
        self.memory.try_clone().unwrap().into()
    }

    /// Makes a request available: a write of 4 KiB of that byte, or a flush.
    fn ask(&mut self, write: Option<(u64, u8)>) {
        let file = self.file();
        let slot = u64::from(self.available % (SIZE / 4));
        let (header, data) = (HEADERS + slot * 32, DATA + slot * 4096);
        let (kind, sector) = write.map_or((4u32, 0), |(sector, _)| (1, sector));
        let mut head = [0; 16];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[8..].copy_from_slice(&sector.to_le_bytes());
        file.write_all_at(&head, header).unwrap();
        file.write_all_at(&[0xff], header + 16).unwrap();
        let mut parts = vec![(header, 16u32, 1u16)];
        if let Some((_, byte)) = write {
            file.write_all_at(&[byte; 4096], data).unwrap();
            parts.push((data, 4096, 1));
        }
        parts.push((header + 16, 1, 2));
        for (part, (address, len, flags)) in (0u64..).zip(parts) {
            let index = slot * 4 + part;
            let mut descriptor = Vec::new();
            descriptor.write_all(&address.to_le_bytes()).unwrap();
            descriptor.write_all(&len.to_le_bytes()).unwrap();
            descriptor.write_all(&flags.to_le_bytes()).unwrap();
            descriptor.write_all(&(index as u16 + 1).to_le_bytes()).unwrap();
            file.write_all_at(&descriptor, index * 16).unwrap();
        }
        let at = AVAILABLE + 4 + 2 * u64::from(self.available % SIZE);
        file.write_all_at(&(slot as u16 * 4).to_le_bytes(), at).unwrap();
        self.available += 1;
        file.write_all_at(&self.available.to_le_bytes(), AVAILABLE + 2).unwrap();
    }

    /// How many requests were answered since, all of them well.
    fn answered(&mut self) -> u16 {
        let file = self.file();
        let mut index = [0; 2];
        file.read_exact_at(&mut index, USED + 2).unwrap();
        let index = u16::from_le_bytes(index);
        for answer in self.used..index {
            let mut head = [0; 2];
            file.read_exact_at(&mut head, USED + 4 + 8 * u64::from(answer % SIZE)).unwrap();
            let mut status = [0xff];
            file.read_exact_at(&mut status, HEADERS + u64::from(u16::from_le_bytes(head) / 4) * 32 + 16)
                .unwrap();
            assert_eq!(status, [0], "request {answer}");
        }
        let answered = index - self.used;
        self.used = index;
        answered
    }
}

/// One daemon and its driver.
struct Rig {
    driver: Driver,
    peer: Peer,
    daemon: Daemon,
}

impl Rig {
    /// Asks, kicks at that time, and steps until that many are answered; when they are.
    fn until(&mut self, at: Ns, asks: &[Option<(u64, u8)>]) -> Vec<Ns> {
        for ask in asks {
            self.driver.ask(*ask);
        }
        self.driver.send(VRING_KICK, &[0; 8], None);
        assert_eq!(self.peer.hear().unwrap(), Some(Heard::Kick));
        self.daemon.kick(at);
        let mut answers = Vec::new();
        while answers.len() < asks.len() {
            let now = self.daemon.next().expect("it has something to do");
            self.daemon.step(now, Some(&self.peer)).unwrap();
            answers.extend((0..self.driver.answered()).map(|_| now));
        }
        answers
    }
}

/// What a scenario answers, and the image after it.
fn with(options: &RunOptions, scenario: impl Fn(&mut Rig) -> Vec<Ns>) -> (Vec<Ns>, Vec<u8>) {
    let (answers, site) = on_a_site(options, scenario);
    (answers, site.files.image.cached().bytes())
}

/// What a scenario answers, and where it was.
fn on_a_site(options: &RunOptions, scenario: impl Fn(&mut Rig) -> Vec<Ns>) -> (Vec<Ns>, Site) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let storage = Storage::new(options.model, options.limits, options.host_fs);
    let trace = Trace::create(&folder.path().join("trace"), 1).unwrap();
    let files = Files::make(0, options, folder.path(), &storage).unwrap();
    let machine = match options.crashes {
        true => Machine::mortal(&storage, options.request_ns, 0),
        false => Machine::new(&storage, options.request_ns),
    };
    let site = Site::open(&files, options, &machine, &trace).unwrap();
    storage.lock().start();
    let mut daemon = Daemon::new(&site);
    let (driver, far) = Driver::new();
    let mut peer = Peer::new(far, site.disk.geometry()).unwrap();
    driver.set_up();
    for request in SET_UP {
        let heard = if request == 18 { Heard::Enabled } else { Heard::SetUp };
        assert_eq!(peer.hear().unwrap(), Some(heard), "message {request}");
    }
    assert_eq!(peer.hear().unwrap(), None);
    daemon.attach(&peer, 0).unwrap();
    daemon.step(KICK_NS, Some(&peer)).unwrap();
    let mut rig = Rig { driver, peer, daemon };
    let answers = scenario(&mut rig);
    let Rig { mut daemon, .. } = rig;
    daemon.detach(0).unwrap();
    (answers, site)
}

#[test]
fn under_power_a_flush_pays_the_device() {
    let run = || {
        with(&options(Contract::Power, ModelName::Hdd15k), |rig| {
            let mut answers = rig.until(MS, &[Some((8, 0xa1)), Some((4096, 0xa2))]);
            answers.extend(rig.until(2 * MS, &[None]));
            answers
        })
    };
    let (answers, image) = run();
    let [first, second, flush] = answers[..] else { panic!("{answers:?}") };
    // 50 µs a request, 4 KiB at 300 MB/s: one after another over the interface.
    let write = 50_000 + 4096 * 1_000 / 300;
    assert_eq!([first, second], [1, 2].map(|n| MS + KICK_NS + n * write));
    // A rotation for what is near the head, seek and rotation for what is 2 MB away.
    assert!((2 * MS + 8 * MS..2 * MS + 9 * MS).contains(&flush), "{flush}");
    assert!(image[8 * 512..][..4096].iter().all(|byte| *byte == 0xa1));
    assert!(image[4096 * 512..][..4096].iter().all(|byte| *byte == 0xa2));
    assert_eq!(run(), (answers, image), "and again");
}

#[test]
fn under_guest_crash_a_flush_costs_nothing() {
    let (answers, image) =
        with(&options(Contract::GuestCrash, ModelName::Hdd15k), |rig| rig.until(MS, &[Some((8, 1)), None]));
    assert_eq!(answers, [MS + KICK_NS; 2], "a copy into the page cache");
    assert_eq!(image[8 * 512], 1);
}

#[test]
fn under_a_window_flushes_are_answered_at_once_until_the_window_is_over() {
    let contract = Contract::PowerWindow { window: Duration::from_millis(20) };
    let run = |model| {
        with(&options(contract, model), |rig| {
            let mut now = MS;
            let mut waits = Vec::new();
            // As a program that syncs all the time.
            for index in 0..200 {
                let answer = rig.until(now, &[Some((8 * index, index as u8))])[0];
                let answer = rig.until(answer, &[None])[0];
                waits.push(answer - now);
                now = answer + 100_000;
            }
            waits
        })
    };
    let (waits, _) = run(ModelName::Hdd15k);
    let at_once = waits.iter().filter(|wait| **wait == 2 * KICK_NS).count();
    assert!(at_once > 100, "{at_once} of 200 at once");
    let slowest = waits.iter().max().copied().unwrap_or(0);
    assert!(slowest < 30 * MS, "a flush waited {slowest} ns");
    assert_eq!(run(ModelName::Hdd15k).0, waits, "and again");
}

/// A flush is held back, and what holds it will never end: seed 1004 of `./x simulate` stood still there.
#[test]
fn a_dead_daemon_waits_for_nobody() {
    let contract = Contract::PowerWindow { window: Duration::from_millis(20) };
    let journal = JournalOptions { retain: true, ..JournalOptions::passthrough() };
    let options = RunOptions { journal, crashes: true, ..options(contract, ModelName::Hdd15k) };
    with(&options, |rig| {
        rig.until(MS, &[Some((8, 1)), None]);
        rig.driver.ask(Some((16, 2)));
        rig.driver.ask(None);
        rig.driver.send(VRING_KICK, &[0; 8], None);
        assert_eq!(rig.peer.hear().unwrap(), Some(Heard::Kick));
        rig.daemon.kick(30 * MS);
        rig.daemon.step(30 * MS + KICK_NS, Some(&rig.peer)).unwrap();
        assert_eq!(rig.driver.answered(), 1, "the flush is held");
        rig.daemon.die();
        Vec::new()
    });
}

/// What a daemon does not do for its guest is no work of its own, nor its device's.
#[test]
fn who_waits_for_nothing_is_told_from_who_is_served() {
    let options = RunOptions { crashes: true, ..options(Contract::Power, ModelName::Hdd15k) };
    with(&options, |rig| {
        let stands = |rig: &Rig, at| rig.daemon.stands(at, Some(&rig.peer));
        let at = rig.until(MS, &[Some((8, 1)), None])[1];
        assert_eq!(stands(rig, at).map(|p| (p.available, p.used)), None, "all is answered");
        rig.driver.ask(None);
        rig.daemon.kick(at);
        assert_eq!(stands(rig, at), None, "it is told");
        rig.daemon.step(at + KICK_NS, Some(&rig.peer)).unwrap();
        assert_eq!(stands(rig, at + KICK_NS), None, "the device is asked");
        let done = rig.daemon.next().unwrap();
        rig.daemon.step(done, Some(&rig.peer)).unwrap();
        assert_eq!(rig.driver.answered(), 1);
        rig.driver.ask(None);
        rig.daemon.kick(done);
        rig.daemon.lose_kick();
        assert_eq!(stands(rig, done).map(|p| (p.available, p.used, p.taken)), Some((4, 3, None)));
        Vec::new()
    });
}

#[test]
fn what_reaches_the_files_is_traced_on_the_calendars_clock() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("guest0.trace");
    let traced = |contract| {
        let storage_traces = Some(folder.path().to_owned());
        let options = RunOptions { storage_traces, ..options(contract, ModelName::Hdd15k) };
        let (_, site) = on_a_site(&options, |rig| rig.until(MS, &[Some((8, 1)), None]));
        site.below.unwrap().write(&path, "by a test", 8 << 20, 1 << 20).unwrap();
        std::fs::read_to_string(&path).unwrap()
    };
    let text = traced(Contract::GuestCrash);
    assert!(text.contains("\n# begun 0 ns since 1970\n# file disk0 8388608 disk0\n# file log 1048576 log\n"));
    // Noted when the kick has arrived; this contract hands no flush on.
    let requests =
        |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    let lines: Vec<String> = requests(&text);
    assert_eq!(lines.last().unwrap(), &format!("{} disk0 write 4096 4096 home", MS + KICK_NS));
    assert_eq!(text.lines().last().unwrap(), format!("# end {} requests, 0 dropped", lines.len()));
    assert_eq!(traced(Contract::GuestCrash), text, "and again");
    let window = Contract::PowerWindow { window: Duration::from_millis(20) };
    let lines: Vec<String> = requests(&traced(window));
    assert!(lines.iter().any(|line| line.contains(" log write ") && line.ends_with(" log")), "{lines:?}");
}

#[test]
fn a_charge_is_paid_for_each_request() {
    let options = RunOptions { request_ns: 10_000, ..options(Contract::GuestCrash, ModelName::None) };
    let (answers, _) = with(&options, |rig| rig.until(MS, &[Some((8, 1)), Some((16, 1))]));
    assert!(answers.iter().all(|at| *at >= MS + KICK_NS), "{answers:?}");
    let slow = RunOptions { request_ns: 10 * MS, ..options };
    let (answers, _) = with(&slow, |rig| {
        let first = rig.until(MS, &[Some((8, 1))])[0];
        rig.until(first, &[Some((8, 2))])
    });
    assert!(answers[0] >= 11 * MS, "the second is not begun before the first is paid: {answers:?}");
}
