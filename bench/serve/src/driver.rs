//! The driver side: one thread a queue keeps a fixed number of requests in flight, as a guest's block layer would.
//!
//! ```text
//! fill the ring ─► kick if asked to ─► take completions ─┬─ some: refill
//!        ▲                                               └─ none: sleep on the call descriptor
//!        └───────────────────────────────────────────────────┘
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::tape::{Ask, Step, Tape};
use hdrhistogram::Histogram;
use virtio_driver::{
    ByteValued, EventFd, QueueNotifier, VhostUser, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

/// Descriptors in each queue: enough for the deepest cell.
const QUEUE_SIZE: u16 = 256;

/// Descriptors that a request takes at most.
const DESCRIPTORS: usize = 3;

/// Silence for this long is a lost request or a lost interrupt, in milliseconds.
const STALLED_MS: i32 = 5000;

/// What a cell asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Writes, or reads.
    pub write: bool,
    /// At random places, or one after the other.
    pub random: bool,
    /// Bytes of one request.
    pub bytes: usize,
    /// Requests in flight on each queue.
    pub depth: usize,
    /// Queues, each with a thread of its own.
    pub queues: usize,
}

/// What one run reached.
#[derive(Debug)]
pub struct Reached {
    /// Requests completed by all queues.
    pub requests: u64,
    /// How long it took.
    pub wall: Duration,
    /// Latency of each request, in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

/// A connection to a server, with its queues and their memory.
pub struct Connection {
    plugged: Plugged,
    load: Load,
}

/// A device with its queues, and memory that it maps too.
pub struct Plugged {
    // Queues before the transport: they point into its memory.
    queues: Vec<QueueEnd>,
    _transport: Box<VirtioBlkTransport>,
    memory: Shared,
    capacity: u64,
}

struct QueueEnd {
    queue: VirtioBlkQueue<'static, Tag>,
    notifier: Box<dyn QueueNotifier>,
    called: Arc<EventFd>,
}

/// A request in flight: its slot of memory or its number, and since when.
type Tag = (usize, Instant);

// SAFETY: a queue end is moved to one thread at a time; the pointers in it lead into the transport's shared mapping, which
// `Connection` keeps, and the notifier holds a reference-counted eventfd.
unsafe impl Send for QueueEnd {}

impl Plugged {
    /// Connects and sets the queues up, with so many bytes of memory, touched beforehand.
    pub fn new(socket: &Path, queues: usize, memory_bytes: usize) -> io::Result<Self> {
        let features = VirtioFeatureFlags::VERSION_1
            | VirtioFeatureFlags::RING_EVENT_IDX
            | VirtioFeatureFlags::RING_INDIRECT_DESC;
        // VIRTIO_BLK_F_MQ, FLUSH, CONFIG_WCE, SEG_MAX, DISCARD, WRITE_ZEROES.
        let wanted = features.bits() | 1 << 12 | 1 << 9 | 1 << 11 | 1 << 2 | 1 << 13 | 1 << 14;
        let path = socket.to_str().ok_or_else(|| io::Error::other("a socket's path must be text"))?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(connect(path, wanted)?);
        let config = transport.get_config()?;
        let capacity = u64::from(config.capacity) * 512;
        let queues = VirtioBlkQueue::setup_queues(transport.as_mut(), queues, QUEUE_SIZE)?;
        let memory = Shared::new(memory_bytes)?;
        transport.map_mem_region(memory.base as usize, memory.len, memory.file.as_raw_fd(), 0)?;
        let queues = queues
            .into_iter()
            .enumerate()
            .map(|(n, queue)| QueueEnd {
                queue,
                notifier: transport.get_submission_notifier(n),
                called: transport.get_completion_fd(n),
            })
            .collect();
        Ok(Self { queues, _transport: transport, memory, capacity })
    }
}

impl Connection {
    /// Connects and sets the queues up, with memory for `load`, touched beforehand.
    pub fn new(socket: &Path, load: Load) -> io::Result<Self> {
        let plugged = Plugged::new(socket, load.queues, load.queues * load.depth * load.bytes)?;
        Ok(Self { plugged, load })
    }

    /// Keeps the load up for `time` and reports.
    pub fn run(&mut self, time: Duration, seed: u64) -> io::Result<Reached> {
        let barrier = Barrier::new(self.load.queues);
        let Plugged { queues, memory, capacity, .. } = &mut self.plugged;
        let (load, capacity, base) = (self.load, *capacity, memory.base as usize);
        let ends = std::thread::scope(|scope| {
            let threads: Vec<_> = queues
                .iter_mut()
                .enumerate()
                .map(|(n, end)| {
                    let barrier = &barrier;
                    let first = base + n * load.depth * load.bytes;
                    scope.spawn(move || {
                        let part = capacity / load.queues as u64;
                        let places = Places::new(load, n as u64 * part, part, seed.wrapping_add(n as u64));
                        barrier.wait();
                        end.drive(load, first, places, time)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().expect("a driver thread")).collect::<io::Result<Vec<_>>>()
        })?;
        let mut sum = Reached { requests: 0, wall: Duration::ZERO, latency_ns: histogram() };
        for end in ends {
            sum.requests += end.requests;
            sum.wall = sum.wall.max(end.wall);
            sum.latency_ns.add(&end.latency_ns).map_err(io::Error::other)?;
        }
        Ok(sum)
    }
}

impl Plugged {
    /// Puts what a tape writes where [`Plugged::replay`] writes it from.
    pub fn load(&mut self, tape: &Tape) {
        self.memory.fill(&tape.data);
    }

    /// Gives the device what a guest asked for, as soon as everything is answered that was answered before it then
    /// and the queue has room.
    pub fn replay(&mut self, tape: &Tape) -> io::Result<()> {
        let end = self.queues.first_mut().ok_or_else(|| io::Error::other("the device has no queue"))?;
        let mut answered = vec![false; tape.requests];
        let mut finished = Vec::new();
        let (mut request, mut flying, now) = (0, 0, Instant::now());
        for step in &tape.steps {
            match step {
                Step::Ask(ask) => {
                    while flying == usize::from(QUEUE_SIZE) / DESCRIPTORS {
                        end.kick()?;
                        end.wait(&mut finished)?;
                        flying -= finished.len();
                        finished.drain(..).for_each(|(request, _)| answered[request] = true);
                    }
                    match *ask {
                        Ask::Write { offset, at, len } => {
                            let buffer = self.memory.base.wrapping_add(at);
                            // SAFETY: the tape's bytes are in the shared memory, which outlives the connection, and nobody
                            // writes to them again.
                            unsafe { end.queue.write_raw(offset, buffer, len, (request, now))? };
                        }
                        Ask::Zero { offset, len, unmap } => {
                            end.queue.write_zeroes(offset, len, unmap, (request, now))?;
                        }
                        Ask::Flush => end.queue.flush((request, now))?,
                    }
                    request += 1;
                    flying += 1;
                }
                Step::Answered(earlier) => {
                    while !answered[*earlier] {
                        end.kick()?;
                        end.wait(&mut finished)?;
                        flying -= finished.len();
                        finished.drain(..).for_each(|(request, _)| answered[request] = true);
                    }
                }
            }
        }
        end.kick()
    }
}

impl QueueEnd {
    fn drive(
        &mut self,
        load: Load,
        memory: usize,
        mut places: Places,
        time: Duration,
    ) -> io::Result<Reached> {
        let start = Instant::now();
        let mut latency_ns = histogram();
        let mut requests = 0;
        let mut now = start;
        let mut flying = 0;
        let mut free: Vec<usize> = (0..load.depth).collect();
        let mut finished: Vec<Tag> = Vec::with_capacity(load.depth);
        loop {
            if now - start < time {
                let refilled = !free.is_empty();
                while let Some(slot) = free.pop() {
                    let buffer = (memory + slot * load.bytes) as *mut u8;
                    // SAFETY: slot `slot` of this queue's part of the shared memory, which outlives the connection;
                    // it is in `free`, so no other request uses it.
                    unsafe {
                        if load.write {
                            self.queue.write_raw(places.next(), buffer, load.bytes, (slot, now))?;
                        } else {
                            self.queue.read_raw(places.next(), buffer, load.bytes, (slot, now))?;
                        }
                    }
                    flying += 1;
                }
                if refilled {
                    self.kick()?;
                }
            } else if flying == 0 {
                return Ok(Reached { requests, wall: now - start, latency_ns });
            }
            self.wait(&mut finished)?;
            now = Instant::now();
            for (slot, since) in finished.drain(..) {
                latency_ns.saturating_record((now - since).as_nanos() as u64);
                requests += 1;
                flying -= 1;
                free.push(slot);
            }
        }
    }

    fn kick(&mut self) -> io::Result<()> {
        if self.queue.avail_notif_needed() {
            self.notifier.notify()?;
        }
        Ok(())
    }

    /// Takes what is answered; sleeps once where nothing is.
    fn wait(&mut self, finished: &mut Vec<Tag>) -> io::Result<()> {
        self.take(finished)?;
        if finished.is_empty() {
            // Ask for an interrupt, look once more, sleep.
            self.queue.set_used_notif_enabled(true);
            self.take(finished)?;
            if finished.is_empty() {
                sleep(&self.called)?;
            }
            self.queue.set_used_notif_enabled(false);
            self.take(finished)?;
        }
        Ok(())
    }

    fn take(&mut self, finished: &mut Vec<Tag>) -> io::Result<()> {
        for completion in self.queue.completions() {
            if completion.ret != 0 {
                return Err(io::Error::from_raw_os_error(-completion.ret));
            }
            finished.push(completion.context);
        }
        Ok(())
    }
}

/// Connects. A socket's name appears a moment before somebody listens there.
fn connect<C: ByteValued, R: Copy>(path: &str, features: u64) -> io::Result<VhostUser<C, R>> {
    let start = Instant::now();
    loop {
        match VhostUser::new(path, features) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && start.elapsed().as_secs() < 5 => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Waits for an interrupt and takes it. Looks first, for every server alike: some make the descriptor non-blocking, and
/// then reading alone would fail.
fn sleep(called: &EventFd) -> io::Result<()> {
    let mut polled = [libc::pollfd { fd: called.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one entry, which lives across the call.
    match unsafe { libc::poll(polled.as_mut_ptr(), 1, STALLED_MS) } {
        1.. => called.read().map(drop),
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "the server answers nothing any more")),
        _ => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                Ok(())
            } else {
                Err(error)
            }
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("constant bounds")
}

/// Where the next request goes.
struct Places {
    load: Load,
    first: u64,
    blocks: u64,
    next: u64,
    random: u64,
}

impl Places {
    fn new(load: Load, first: u64, len: u64, seed: u64) -> Self {
        let blocks = len / load.bytes as u64;
        // A xorshift state is never zero.
        Self { load, first, blocks, next: 0, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    fn next(&mut self) -> u64 {
        let block = if self.load.random {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % self.blocks
        } else {
            self.next = (self.next + 1) % self.blocks;
            self.next
        };
        self.first + block * self.load.bytes as u64
    }
}

/// Memory that the server maps too, filled with something that does not compress.
struct Shared {
    file: std::fs::File,
    base: *mut u8,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(4096);
        let file = std::fs::File::from(rustix::fs::memfd_create("bench", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        // SAFETY: a new shared mapping of a file of this length at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        let mut random = 0x1234_5678_9abc_def1u64;
        for n in 0..len / 8 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // SAFETY: inside the mapping, aligned, and nobody else has it yet.
            unsafe { base.cast::<u64>().add(n).write(random) };
        }
        Ok(Self { file, base, len })
    }

    /// Puts bytes at the beginning.
    fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "the memory was made for them");
        // SAFETY: inside the mapping, which nobody else writes to while it is borrowed.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, bytes.len()) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
