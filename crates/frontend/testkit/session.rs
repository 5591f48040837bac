//! The vhost-user session as a state machine, for fuzzing: messages with descriptors in any order, queues that serve
//! requests from guest memory in between, and a daemon that is handed any state by a keeper.
//!
//! The model: nothing panics (under libFuzzer a panic on any thread aborts), nothing hangs (a step is bounded, and
//! libFuzzer has a limit of time), a connection leaves no descriptor behind and never holds more than a bound, and guest
//! memory is touched inside the regions of the table only.
//!
//! ```text
//! data ─► steps ─► Session::message ─► Device ─► queue threads ─► a small disk in memory
//!          │                                        ▲
//!          └─► guest memory, kicks, truncation ─────┘
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use afterimage_block::{Bell, Medium, MediumDisk};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{memfd_create, MemfdFlags};
use vhost::vhost_user::message::FrontendReq;

use crate::device::Device;
use crate::keep::Entry;
use crate::session::{Session, StopOrder};
use crate::wire::Frame;
use crate::{FrontendStats, ServeOptions};

const PAGE: u64 = 4096;
/// The guest's memory: a region in the middle of a file whose ends nobody may touch.
const FILE_PAGES: u64 = 16;
const FIRST_PAGE: u64 = 4;
const PAGES: u64 = 8;
const CANARY: u8 = 0xc5;
const USER_START: u64 = 0x7000_0000_0000;
/// Guest addresses begin here.
const GUEST_START: u64 = 0x10_0000;
/// Where a queue's parts are, in the region: descriptors, available ring, used ring; data behind all queues.
const QUEUE_BYTES: u64 = 0x1000;
const QUEUE_SIZE: u16 = 16;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const HEADER: u64 = 0xc00;
const DATA: u64 = 4 * PAGE;

const QUEUES: u16 = 2;
const STEPS_MAX: usize = 64;
/// More than one message's descriptors, both ways, and what a device holds of a connection with two queues.
const DESCRIPTORS_MAX: usize = 160;
/// How long a served request is waited for: only one that is lost takes as long.
const PATIENCE: Duration = Duration::from_secs(5);

/// A disk of 64 KiB.
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for Memory {
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(&self.bytes()[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.bytes()[offset as usize..offset as usize + buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.bytes()[offset as usize..(offset + len) as usize].fill(0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One device for all inputs, as one device serves guest after guest; and what it has answered.
fn device() -> (&'static Arc<Mutex<Device>>, &'static Arc<FrontendStats>) {
    static DEVICE: OnceLock<(Arc<Mutex<Device>>, Arc<FrontendStats>)> = OnceLock::new();
    let (device, stats) = DEVICE.get_or_init(|| {
        let disk = Arc::new(MediumDisk::new(Arc::new(Memory(Mutex::new(vec![0; 1 << 16])))));
        let stats = Arc::new(FrontendStats::new(QUEUES));
        let options = ServeOptions { queues: QUEUES, queue_size_max: 64, ..ServeOptions::default() };
        let device = Device::new("fuzz", disk, options, Arc::clone(&stats)).expect("a device");
        (Arc::new(Mutex::new(device)), stats)
    });
    (device, stats)
}

/// How many descriptors this process has; always 0 where others open some meanwhile, as in a program of many tests.
fn descriptors(alone: bool) -> usize {
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    if alone {
        open()
    } else {
        0
    }
}

/// Bytes of the input, zeroes behind its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// The peer: a VMM and its guest.
struct Peer {
    near: UnixStream,
    memory: File,
    /// For messages that say anything about it; its content is nobody's.
    scratch: File,
    kick: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
    offered: [u16; QUEUES as usize],
    next_slot: u64,
    /// Whether the ends of the memory's file still hold what nobody may change.
    guarded: bool,
}

fn memfd(len: u64) -> File {
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(len).expect("its length");
    file
}

impl Peer {
    fn new(near: UnixStream) -> Self {
        near.set_nonblocking(true).expect("non-blocking");
        let memory = memfd(FILE_PAGES * PAGE);
        for page in (0..FIRST_PAGE).chain(FIRST_PAGE + PAGES..FILE_PAGES) {
            memory.write_all_at(&[CANARY; PAGE as usize], page * PAGE).expect("memory");
        }
        Self {
            near,
            memory,
            scratch: memfd(FILE_PAGES * PAGE),
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"),
            pipe: rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe"),
            offered: [0; QUEUES as usize],
            next_slot: 0,
            guarded: true,
        }
    }

    /// A descriptor of a kind, as it arrives.
    fn descriptor(&self, kind: u8) -> OwnedFd {
        let fd = match kind % 5 {
            0 => self.scratch.as_fd(),
            1 => self.kick.as_fd(),
            2 => self.near.as_fd(),
            3 => self.pipe.0.as_fd(),
            _ => self.pipe.1.as_fd(),
        };
        fd.try_clone_to_owned().expect("a descriptor")
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let offset = offset % (PAGES * PAGE);
        let room = (PAGES * PAGE - offset).min(bytes.len() as u64) as usize;
        self.memory.write_all_at(&bytes[..room], FIRST_PAGE * PAGE + offset).expect("memory");
    }

    /// One ordinary request on a queue: header, data, status; or one whose data or status reach over the memory's end.
    fn offer(&mut self, queue: u8, kind: u8, sector: u8) {
        let queue = u64::from(queue) % u64::from(QUEUES);
        let (ring, slot) = (queue * QUEUE_BYTES, self.next_slot % 5);
        self.next_slot += 1;
        let (data, status) = match kind / 64 {
            0 | 1 => (DATA + 1024 * slot, ring + HEADER + 32 * slot + 24),
            2 => (PAGES * PAGE - 256, ring + HEADER + 32 * slot + 24),
            _ => (DATA + 1024 * slot, PAGES * PAGE),
        };
        let kinds = [0u32, 1, 4, 8, 11, 13];
        let kind = kinds[usize::from(kind) % kinds.len()];
        let header = ring + HEADER + 32 * slot;
        self.write(header, &[kind.to_le_bytes(), [0; 4]].concat());
        self.write(header + 8, &u64::from(sector).to_le_bytes());
        let reads = matches!(kind, 0 | 8);
        let parts = [
            (header, 16u32, 1u16),
            (data, if kind == 8 { 20 } else { 512 }, if reads { 3 } else { 1 }),
            (status, 1, 2),
        ];
        for (n, (at, len, flags)) in parts.into_iter().enumerate() {
            let index = 3 * slot + n as u64;
            let mut descriptor = (GUEST_START + at).to_le_bytes().to_vec();
            descriptor.extend(len.to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            descriptor.extend((index as u16 + 1).to_le_bytes());
            self.write(ring + 16 * index, &descriptor);
        }
        let offered = &mut self.offered[queue as usize];
        let at = ring + AVAILABLE + 4 + 2 * u64::from(*offered % QUEUE_SIZE);
        *offered = offered.wrapping_add(1);
        let index = offered.to_le_bytes();
        self.write(at, &(3 * slot as u16).to_le_bytes());
        self.write(ring + AVAILABLE + 2, &index);
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Takes the answers, so that nobody waits.
    fn drain(&self) {
        let mut bytes = [0; 4096];
        while matches!(crate::wire::receive(self.near.as_fd(), &mut bytes), Ok((n, _)) if n > 0) {}
    }

    /// The messages that make queue `queue` run.
    fn set_up(&self, queue: u32) -> Vec<(Frame, Vec<OwnedFd>)> {
        let clone = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        let state = |code, n: u32| (Frame::new(code, &[queue, n].map(u32::to_ne_bytes).concat()), Vec::new());
        let ring = USER_START + u64::from(queue % u32::from(QUEUES)) * QUEUE_BYTES;
        let mut addresses = [queue, 0].map(u32::to_ne_bytes).concat();
        addresses.extend([ring, ring + USED, ring + AVAILABLE, 0].map(u64::to_ne_bytes).concat());
        let number = |code, n: u64| (Frame::new(code, &n.to_ne_bytes()), Vec::new());
        let bell = |code| (Frame::new(code, &u64::from(queue).to_ne_bytes()), vec![clone(&self.kick)]);
        let protocol = crate::config::protocol_features().bits();
        let features = device().0.lock().unwrap_or_else(PoisonError::into_inner).offered().0;
        let call = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        vec![
            (Frame::new(FrontendReq::GET_FEATURES, &[]), Vec::new()),
            number(FrontendReq::SET_FEATURES, features & !(1 << 29)),
            number(FrontendReq::SET_PROTOCOL_FEATURES, protocol),
            self.table(FIRST_PAGE, PAGES),
            state(FrontendReq::SET_VRING_NUM, QUEUE_SIZE.into()),
            state(FrontendReq::SET_VRING_BASE, 0),
            (Frame::new(FrontendReq::SET_VRING_ADDR, &addresses), Vec::new()),
            (Frame::new(FrontendReq::SET_VRING_CALL, &u64::from(queue).to_ne_bytes()), vec![call]),
            bell(FrontendReq::SET_VRING_ERR),
            bell(FrontendReq::SET_VRING_KICK),
            state(FrontendReq::SET_VRING_ENABLE, 1),
        ]
    }

    /// SET_MEM_TABLE with one region of the guarded file, never its ends.
    fn table(&self, first: u64, pages: u64) -> (Frame, Vec<OwnedFd>) {
        let skipped = PAGE * (first - FIRST_PAGE);
        let body = [1, GUEST_START + skipped, pages * PAGE, USER_START + skipped, first * PAGE]
            .map(u64::to_ne_bytes);
        let fd = self.memory.as_fd().try_clone_to_owned().expect("a descriptor");
        (Frame::new(FrontendReq::SET_MEM_TABLE, &body.concat()), vec![fd])
    }

    fn check_the_ends(&self) {
        let mut page = [0; PAGE as usize];
        for first in (0..FIRST_PAGE).chain(FIRST_PAGE + PAGES..FILE_PAGES).filter(|_| self.guarded) {
            self.memory.read_exact_at(&mut page, first * PAGE).expect("memory");
            assert!(page.iter().all(|byte| *byte == CANARY), "page {first} is outside all regions");
        }
    }
}

/// A message from the input, with anything in it.
fn any_message(peer: &Peer, input: &mut Input<'_>) -> (Frame, Vec<OwnedFd>) {
    let request = u32::from(input.byte() % 48);
    let (flags, len) = (input.byte(), usize::from(input.byte()));
    let body = input.bytes(len).to_vec();
    let kinds = input.byte();
    let fds = (0..kinds % 4).map(|n| peer.descriptor(kinds / 4 + n)).collect();
    (Frame { request, flags: 1 | u32::from(flags & 8), body }, fds)
}

/// One step. `false` when the connection is over.
fn step(session: &mut Session<'_>, peer: &mut Peer, input: &mut Input<'_>, alone: bool) -> bool {
    let mut messages = Vec::new();
    match input.byte() % 10 {
        0 => messages = peer.set_up(u32::from(input.byte())),
        1 => messages.push(any_message(peer, input)),
        2 => {
            // One of a set-up's messages out of its place, perhaps with other content.
            let (queue, which, change) = (input.byte(), usize::from(input.byte()), input.byte());
            let mut all = peer.set_up(u32::from(queue % 4));
            let (mut frame, fds) = all.swap_remove(which % all.len());
            // Regions stay what they are: only typed tables lead into the guarded file.
            let typed = frame.code() == Some(FrontendReq::SET_MEM_TABLE);
            if let Some(byte) = frame.body.get_mut(usize::from(change) / 4).filter(|_| !typed) {
                *byte ^= 1 << (change % 8);
            }
            frame.flags |= u32::from(change & 8);
            messages.push((frame, fds));
        }
        3 => peer.offer(input.byte(), input.byte(), input.byte()),
        4 => {
            let (at, len) = (u64::from(input.word()), usize::from(input.byte()));
            peer.write(at, input.bytes(len));
            let _ = rustix::io::write(&peer.kick, &1u64.to_ne_bytes());
        }
        5 => {
            let body = [u32::from(input.byte() % 4), 0].map(u32::to_ne_bytes).concat();
            messages.push((Frame::new(FrontendReq::GET_VRING_BASE, &body), Vec::new()));
        }
        6 => {
            let first = u64::from(input.byte()) % PAGES;
            let pages = u64::from(input.byte()) % (PAGES - first) + 1;
            messages.push(peer.table(FIRST_PAGE + first, pages));
        }
        7 => {
            // The memory is taken away, in part or as a whole, or comes back; its ends are zeroes then.
            let pages = u64::from(input.byte()) % (FILE_PAGES + 1);
            peer.memory.set_len(pages * PAGE).expect("memory");
            peer.guarded = false;
        }
        8 => {
            // What a queue was given is answered sooner or later, and most of what is to be seen happens then.
            let (answered, start) = (answers(device().1), Instant::now());
            let patience = Duration::from_micros(16 * u64::from(input.byte()));
            while answers(device().1) == answered && start.elapsed() < patience {
                std::thread::yield_now();
            }
        }
        _ => {
            let code = [FrontendReq::RESET_DEVICE, FrontendReq::RESET_OWNER, FrontendReq::SET_STATUS];
            let code = code[usize::from(input.byte()) % code.len()];
            let body = if code == FrontendReq::SET_STATUS { vec![0; 8] } else { Vec::new() };
            messages.push((Frame::new(code, &body), Vec::new()));
        }
    }
    for (frame, fds) in messages {
        if !session.message(&frame, &fds).unwrap_or(false) {
            return false;
        }
        peer.drain();
    }
    let gone = session.device.lock().unwrap_or_else(PoisonError::into_inner).alarms().memory_gone();
    assert!(descriptors(alone) <= DESCRIPTORS_MAX, "descriptors pile up");
    !gone
}

/// A connection from its begin, or from what a keeper held, to its end.
fn connection(
    kept: impl FnOnce(&Peer, &mut Input<'_>) -> Option<Vec<Entry>>,
    input: &mut Input<'_>,
    alone: bool,
) -> u64 {
    let (device, stats) = device();
    // One at a time, as connections are: several tests may ask for it.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (before, answered) = (descriptors(alone), answers(stats));
    {
        let stop = StopOrder { wake: Bell::new().expect("an eventfd"), given: AtomicBool::new(false) };
        let (near, far) = UnixStream::pair().expect("a socket pair");
        let mut peer = Peer::new(near);
        let mut session = Session::new(device, &far, None, &stop).expect("a session");
        let begun = match kept(&peer, input) {
            None => {
                session.begin(&[]);
                true
            }
            Some(entries) => session.take_over(entries, std::sync::mpsc::channel().0).is_ok(),
        };
        let mut steps = 0;
        while begun && steps < STEPS_MAX && !input.0.is_empty() && step(&mut session, &mut peer, input, alone)
        {
            steps += 1;
        }
        let start = Instant::now();
        device.lock().unwrap_or_else(PoisonError::into_inner).detach();
        assert!(start.elapsed() < PATIENCE, "an orderly end ends");
        peer.check_the_ends();
    }
    assert_eq!(descriptors(alone), before, "descriptors of a connection that has ended");
    answers(stats) - answered
}

fn answers(stats: &FrontendStats) -> u64 {
    let snapshot = stats.snapshot();
    snapshot.queues.iter().flat_map(|queue| queue.operations.iter()).map(|operation| operation.requests).sum()
}

/// Steps of a session. `alone`: nothing else in this process opens descriptors, so that they can be counted. Returns how
/// many requests were answered.
pub fn session(data: &[u8], alone: bool) -> u64 {
    connection(|_, _| None, &mut Input(data), alone)
}

/// A state as a keeper may hold it, whatever put it there, then steps. Returns how many requests were answered.
pub fn takeover(data: &[u8], alone: bool) -> u64 {
    let kept = |peer: &Peer, input: &mut Input<'_>| {
        let mut entries = Vec::new();
        let prefix = "fuzz/session/";
        for _ in 0..input.byte() % 32 {
            let (how, queue) = (input.byte(), input.byte());
            let name = [
                "queue-000-kick",
                "table",
                "region-0",
                "removed-0",
                "own-inflight",
                "socket",
                "features",
                "",
            ];
            let key = format!("{prefix}{}", name[usize::from(how / 4) % name.len()]);
            match how % 4 {
                // A whole set-up, under names that keep its order from mattering.
                0 => entries.extend(peer.set_up(u32::from(queue % 4)).into_iter().enumerate().map(
                    |(n, (frame, fds))| Entry { key: format!("{prefix}{n}"), value: frame.encode(), fds },
                )),
                1 => {
                    let (frame, fds) = any_message(peer, input);
                    entries.push(Entry { key, value: frame.encode(), fds });
                }
                2 => {
                    let len = usize::from(input.byte());
                    let fds = (0..queue % 4).map(|n| peer.descriptor(queue / 4 + n)).collect();
                    entries.push(Entry { key, value: input.bytes(len).to_vec(), fds });
                }
                _ => {
                    let numbers = [u64::from(queue % 4), u64::from(input.byte()), u64::from(input.word())];
                    let value = numbers.map(u64::to_le_bytes).concat();
                    let fds = vec![peer.descriptor(0)];
                    entries.push(Entry { key: format!("{prefix}own-inflight"), value, fds });
                }
            }
        }
        Some(entries)
    };
    connection(kept, &mut Input(data), alone)
}
