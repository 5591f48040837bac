//! The driver side: one queue, one request at a time, over a real vhost-user connection.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

use super::DEADLINE;

/// Bytes of shared memory: the largest request.
const MEMORY_BYTES: usize = 1 << 20;

/// A connected driver.
pub struct Guest {
    transport: Box<VirtioBlkTransport>,
    queue: VirtioBlkQueue<'static, ()>,
    memory: *mut u8,
    _file: File,
}

impl Guest {
    /// Connects and sets up one queue.
    pub fn connect(socket: &Path) -> Self {
        let features = VirtioFeatureFlags::VERSION_1.bits()
            | (VirtioBlkFeatureFlags::FLUSH
                | VirtioBlkFeatureFlags::DISCARD
                | VirtioBlkFeatureFlags::WRITE_ZEROES
                | VirtioBlkFeatureFlags::RO
                | VirtioBlkFeatureFlags::CONFIG_WCE
                | VirtioBlkFeatureFlags::MQ)
                .bits();
        let transport = VhostUser::new(socket.to_str().unwrap(), features).unwrap();
        let mut transport = Box::new(transport) as Box<VirtioBlkTransport>;
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        file.set_len(MEMORY_BYTES as u64).unwrap();
        // SAFETY: a fresh mapping of our own file at an address that the kernel chooses; it stays until the process ends.
        let memory = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                MEMORY_BYTES,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }
        .unwrap()
        .cast::<u8>();
        transport.map_mem_region(memory as usize, MEMORY_BYTES, file.as_raw_fd(), 0).unwrap();
        let queue = VirtioBlkQueue::setup_queues(transport.as_mut(), 1, 64).unwrap().remove(0);
        Self { transport, queue, memory, _file: file }
    }

    /// Whether the device says that it is read-only.
    pub fn read_only(&self) -> bool {
        self.transport.get_features() & VirtioBlkFeatureFlags::RO.bits() != 0
    }

    /// The disk's size in sectors.
    pub fn sectors(&self) -> u64 {
        self.transport.get_config().unwrap().capacity.into()
    }

    /// Starts a write without waiting for it.
    pub fn start_write(&mut self, offset: u64, data: &[u8]) {
        assert!(data.len() <= MEMORY_BYTES);
        // SAFETY: the mapping has this many bytes and no reference to it exists; the device only reads it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory, data.len()) };
        // SAFETY: the memory stays mapped until the process ends.
        unsafe { self.queue.write_raw(offset, self.memory, data.len(), ()) }.unwrap();
        self.kick();
    }

    /// Writes; the device's answer, 0 for success.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> i32 {
        self.start_write(offset, data);
        self.complete().expect("the device answers")
    }

    /// Writes.
    #[track_caller]
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.try_write(offset, data), 0);
    }

    /// Reads.
    #[track_caller]
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        // SAFETY: as in `start_write`; the device fills it.
        unsafe { self.queue.read_raw(offset, self.memory, len, ()) }.unwrap();
        self.kick();
        assert_eq!(self.complete(), Some(0));
        let mut data = vec![0; len];
        // SAFETY: the device is done with it; the mapping has this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.memory, data.as_mut_ptr(), len) };
        data
    }

    /// Starts a read into memory that holds this: what it does meanwhile is seen by [`Guest::word`].
    pub fn lend(&mut self, offset: u64, memory: &[u8]) {
        self.store(0, memory);
        // SAFETY: as in `start_write`; the device may fill it until it has answered.
        unsafe { self.queue.read_raw(offset, self.memory, memory.len(), ()) }.unwrap();
        self.kick();
    }

    /// Changes memory while the device has it.
    pub fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MEMORY_BYTES);
        // SAFETY: the mapping has this many bytes and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Looks at memory while the device has it.
    pub fn word(&self, at: usize) -> u32 {
        assert!(at % 4 == 0 && at < MEMORY_BYTES);
        // SAFETY: in the mapping, and aligned.
        unsafe { self.memory.add(at).cast::<u32>().read_volatile() }
    }

    /// Flushes; the device's answer.
    pub fn try_flush(&mut self) -> i32 {
        self.queue.flush(()).unwrap();
        self.kick();
        self.complete().expect("the device answers")
    }

    /// Flushes.
    #[track_caller]
    pub fn flush(&mut self) {
        assert_eq!(self.try_flush(), 0);
    }

    /// Discards.
    #[track_caller]
    pub fn discard(&mut self, offset: u64, len: u64) {
        self.queue.discard(offset, len, ()).unwrap();
        self.kick();
        assert_eq!(self.complete(), Some(0));
    }

    fn kick(&mut self) {
        self.transport.get_submission_notifier(0).notify().unwrap();
    }

    /// Makes the call eventfd full and whoever writes to it wait, as a hostile VMM can.
    pub fn block_the_call(&self) {
        use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
        let fd = self.transport.get_completion_fd(0);
        // SAFETY: the descriptor belongs to the transport, which lives longer than this borrow.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.as_raw_fd()) };
        let flags = fcntl_getfl(fd).unwrap();
        fcntl_setfl(fd, flags | OFlags::NONBLOCK).unwrap();
        while rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
            let _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
        fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
    }

    /// The next answer, looked for without the call descriptor.
    pub fn complete_unnotified(&mut self) -> i32 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(completion) = self.queue.completions().next() {
                return completion.ret;
            }
            assert!(Instant::now() < deadline, "no answer");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next answer within the deadline.
    pub fn complete(&mut self) -> Option<i32> {
        self.complete_within(DEADLINE)
    }

    /// The next answer, if it comes in time.
    pub fn complete_within(&mut self, wait: Duration) -> Option<i32> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(completion) = self.queue.completions().next() {
                return Some(completion.ret);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let fd = self.transport.get_completion_fd(0);
            // SAFETY: the descriptor belongs to the transport, which lives longer than this borrow.
            let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.as_raw_fd()) };
            // Short waits: whatever else is being tested, a lost interrupt must not hang a test that is not about it.
            afterimage_block::wait_readable(&[borrowed], Some(left.min(Duration::from_millis(500)))).unwrap();
            // The driver's eventfd blocks who reads it in vain.
            let mut polled = [rustix::event::PollFd::new(&borrowed, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut polled, Some(&now)) == Ok(1) {
                drop(fd.read());
            }
        }
    }
}
