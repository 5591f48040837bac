//! A vhost-user frontend made by hand, which can say anything: for hostile peers and hostile guests.
#![allow(dead_code)]

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr};
use rustix::event::{eventfd, EventfdFlags};

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const SET_VRING_ENABLE: u32 = 18;
pub const GET_CONFIG: u32 = 24;
pub const SET_CONFIG: u32 = 25;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const RESET_DEVICE: u32 = 34;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;
pub const SET_STATUS: u32 = 39;
pub const GET_STATUS: u32 = 40;

pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

pub const F_NEXT: u16 = 1;
pub const F_WRITE: u16 = 2;
pub const F_INDIRECT: u16 = 4;

pub const T_IN: u32 = 0;
pub const T_OUT: u32 = 1;
pub const T_FLUSH: u32 = 4;
pub const T_GET_ID: u32 = 8;
pub const T_DISCARD: u32 = 11;
pub const T_WRITE_ZEROES: u32 = 13;

/// Guest-physical start of the memory and its size.
pub const MEMORY_START: u64 = 0x10_0000;
pub const MEMORY_BYTES: u64 = 1 << 20;
/// The same in the fake VMM's address space.
pub const USER_START: u64 = 0x7000_0000_0000;
pub const QUEUE_SIZE: u16 = 16;

/// Offsets into the memory.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
pub const HEADERS: u64 = 0x8000;
pub const STATUSES: u64 = 0xa000;
pub const TABLES: u64 = 0xc000;
pub const DATA: u64 = 0x1_0000;

pub const PATIENCE: Duration = Duration::from_secs(10);

/// A connection and its memory.
pub struct RawGuest {
    pub socket: UnixStream,
    pub memory: File,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
    pub features: u64,
    /// Set before the queue: how many entries it has.
    pub queue_size: u16,
    /// Look at the used ring without waiting for interrupts.
    pub polls: bool,
    next_avail: u16,
    seen_used: u16,
}

/// A descriptor.
#[derive(Clone, Copy)]
pub struct Desc {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

pub fn desc(address: u64, len: u32, flags: u16, next: u16) -> Desc {
    Desc { address, len, flags, next }
}

/// Guest-physical address of an offset into the memory.
pub fn gpa(offset: u64) -> u64 {
    MEMORY_START + offset
}

fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

impl RawGuest {
    /// Connects and says nothing.
    pub fn connect(path: &Path) -> Self {
        let memory: File = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        memory.set_len(MEMORY_BYTES).unwrap();
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            memory,
            kick: new_eventfd(),
            call: new_eventfd(),
            err: new_eventfd(),
            features: 0,
            queue_size: QUEUE_SIZE,
            polls: false,
            next_avail: 0,
            seen_used: 0,
        }
    }

    /// Connects and sets queue 0 up and running.
    pub fn start(path: &Path) -> Self {
        let mut guest = Self::connect(path);
        guest.negotiate(!0);
        guest.set_up_queue();
        guest
    }

    /// Owner, features, protocol features, memory table.
    pub fn negotiate(&mut self, features: u64) {
        self.send(SET_OWNER, &[], &[]);
        // Without EVENT_IDX, so that every batch interrupts.
        self.features = self.ask_u64(GET_FEATURES) & features & !(1 << 29);
        self.send(SET_FEATURES, &self.features.to_ne_bytes(), &[]);
        let protocol = self.ask_u64(GET_PROTOCOL_FEATURES);
        self.send(SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes(), &[]);
        self.send_memory_table();
    }

    pub fn send_memory_table(&self) {
        let body = [1u64, MEMORY_START, MEMORY_BYTES, USER_START, 0].map(u64::to_ne_bytes).concat();
        self.send(SET_MEM_TABLE, &body, &[self.memory.as_raw_fd()]);
    }

    pub fn set_up_queue(&mut self) {
        self.set_up_queue_at(u32::from(self.next_avail));
    }

    /// With a base of one's own.
    pub fn set_up_queue_at(&mut self, base: u32) {
        self.send(SET_VRING_NUM, &words([0, u32::from(self.queue_size)]), &[]);
        self.send(SET_VRING_BASE, &words([0, base]), &[]);
        self.send(SET_VRING_ADDR, &self.ring_address(DESCRIPTORS, USED, AVAILABLE), &[]);
        self.send(SET_VRING_CALL, &0u64.to_ne_bytes(), &[self.call.as_raw_fd()]);
        self.send(SET_VRING_ERR, &0u64.to_ne_bytes(), &[self.err.as_raw_fd()]);
        self.send(SET_VRING_KICK, &0u64.to_ne_bytes(), &[self.kick.as_raw_fd()]);
        // A queue that is refused is refused at its kick.
        self.send_unless_closed(SET_VRING_ENABLE, &words([0, 1]), &[]);
    }

    /// The body of SET_VRING_ADDR for offsets into the memory.
    pub fn ring_address(&self, descriptors: u64, used: u64, available: u64) -> Vec<u8> {
        let mut body = words([0, 0]);
        for offset in [descriptors, used, available] {
            body.extend(USER_START.wrapping_add(offset).to_ne_bytes());
        }
        body.extend(0u64.to_ne_bytes());
        body
    }

    pub fn ring_offsets() -> (u64, u64, u64) {
        (DESCRIPTORS, USED, AVAILABLE)
    }

    pub fn send(&self, request: u32, body: &[u8], fds: &[i32]) {
        self.send_flags(request, 1, body, fds);
    }

    pub fn send_flags(&self, request: u32, flags: u32, body: &[u8], fds: &[i32]) {
        self.send_bytes(&framed(request, flags, body), fds).expect("send");
    }

    /// As [`RawGuest::send`], where what was sent before may have made the backend close the connection: if it has already
    /// is a matter of luck.
    pub fn send_unless_closed(&self, request: u32, body: &[u8], fds: &[i32]) {
        match self.send_bytes(&framed(request, 1, body), fds) {
            Err(nix::Error::EPIPE | nix::Error::ECONNRESET) => {}
            sent => assert!(sent.is_ok(), "send: {sent:?}"),
        }
    }

    pub fn send_bytes(&self, bytes: &[u8], fds: &[i32]) -> nix::Result<usize> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
        let iov = [IoSlice::new(bytes)];
        sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL, None)
    }

    /// The body of the next answer.
    pub fn receive(&mut self) -> Vec<u8> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).expect("an answer");
        let len = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let mut body = vec![0; len as usize];
        self.socket.read_exact(&mut body).expect("an answer's body");
        body
    }

    pub fn receive_with_fd(&mut self) -> (Vec<u8>, OwnedFd) {
        let mut bytes = [0; 256];
        let mut control = nix::cmsg_space!([i32; 4]);
        let mut iov = [std::io::IoSliceMut::new(&mut bytes)];
        let message = recvmsg::<UnixAddr>(
            self.socket.as_raw_fd(),
            &mut iov,
            Some(&mut control),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )
        .expect("an answer");
        let fd = message
            .cmsgs()
            .unwrap()
            .find_map(|c| match c {
                ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                _ => None,
            })
            .expect("a descriptor");
        let len = message.bytes;
        let path = format!("/proc/self/fd/{fd}");
        let file = File::options().read(true).write(true).open(path).unwrap();
        nix::unistd::close(fd).unwrap();
        (bytes[12..len].to_vec(), file.into())
    }

    pub fn ask_u64(&mut self, request: u32) -> u64 {
        self.send(request, &[], &[]);
        u64::from_ne_bytes(self.receive().try_into().expect("8 bytes"))
    }

    /// Sends with NEED_REPLY; whether it was accepted.
    pub fn ask_ack(&mut self, request: u32, body: &[u8], fds: &[i32]) -> bool {
        self.send_flags(request, 9, body, fds);
        u64::from_ne_bytes(self.receive().try_into().expect("8 bytes")) == 0
    }

    /// Whether the backend has closed the connection, waiting for it.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0; 1];
        loop {
            match self.socket.read(&mut byte) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return true,
                Err(_) => return false,
            }
        }
    }

    pub fn stop_queue(&mut self) -> u32 {
        self.send(GET_VRING_BASE, &words([0, 0]), &[]);
        let body = self.receive();
        u32::from_ne_bytes(body[4..8].try_into().unwrap())
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, offset).unwrap();
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub fn set_desc(&self, index: u16, desc: Desc) {
        self.write(DESCRIPTORS + 16 * u64::from(index), &encode(desc));
    }

    /// Makes a head available, without a kick.
    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.next_avail % self.queue_size);
        self.write(AVAILABLE + 4 + 2 * slot, &head.to_le_bytes());
        self.next_avail = self.next_avail.wrapping_add(1);
        self.set_avail_idx(self.next_avail);
    }

    pub fn set_avail_idx(&self, index: u16) {
        self.write(AVAILABLE + 2, &index.to_le_bytes());
    }

    pub fn ring_kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Offers five writes and kicks.
    pub fn begin_writes(&mut self) {
        for slot in 0..5u16 {
            let first = 3 * slot;
            let header = self.header(u64::from(slot), T_OUT, 8 * u64::from(slot));
            self.set_desc(first, Desc { next: first + 1, ..header });
            self.set_desc(first + 1, desc(gpa(DATA), 4096, F_NEXT, first + 2));
            let status = self.status(u64::from(slot));
            self.set_desc(first + 2, status);
            self.offer(first);
        }
        self.ring_kick();
    }

    pub fn used_idx(&self) -> u16 {
        u16::from_le_bytes(self.read(USED + 2, 2).try_into().unwrap())
    }

    /// Waits for the next used element: (head, length). `None` where it does not come.
    pub fn next_used(&mut self, patience: Duration) -> Option<(u32, u32)> {
        let start = Instant::now();
        while self.used_idx() == self.seen_used {
            let left = patience.checked_sub(start.elapsed())?;
            let wait = if self.polls { left.min(Duration::from_millis(1)) } else { left };
            afterimage_block::wait_readable(&[self.call.as_fd()], Some(wait)).unwrap();
            let _ = rustix::io::read(&self.call, &mut [0u8; 8]);
        }
        let at = USED + 4 + 8 * u64::from(self.seen_used % self.queue_size);
        self.seen_used = self.seen_used.wrapping_add(1);
        let element = self.read(at, 8);
        Some((
            u32::from_le_bytes(element[..4].try_into().unwrap()),
            u32::from_le_bytes(element[4..].try_into().unwrap()),
        ))
    }

    /// Whether the err descriptor is notified.
    pub fn is_told_error(&self) -> bool {
        afterimage_block::wait_readable(&[self.err.as_fd()], Some(PATIENCE)).unwrap();
        rustix::io::read(&self.err, &mut [0u8; 8]).is_ok()
    }

    /// Writes a request header for slot `n`.
    pub fn header(&self, n: u64, kind: u32, sector: u64) -> Desc {
        let mut bytes = words([kind.to_le(), 0]);
        bytes.extend(sector.to_le_bytes());
        self.write(HEADERS + 16 * n, &bytes);
        desc(gpa(HEADERS + 16 * n), 16, F_NEXT, 1)
    }

    /// A status descriptor for slot `n`, the status preset to 0xaa.
    pub fn status(&self, n: u64) -> Desc {
        self.write(STATUSES + n, &[0xaa]);
        desc(gpa(STATUSES + n), 1, F_WRITE, 0)
    }

    pub fn status_value(&self, n: u64) -> u8 {
        self.read(STATUSES + n, 1)[0]
    }

    /// Lays descriptors from index 0, linked as given, offers head 0, kicks and waits: (length, status of slot 0).
    pub fn execute(&mut self, descs: &[Desc]) -> Option<(u32, u8)> {
        for (index, desc) in descs.iter().enumerate() {
            self.set_desc(index as u16, *desc);
        }
        self.offer(0);
        self.ring_kick();
        let (head, len) = self.next_used(PATIENCE)?;
        assert_eq!(head, 0);
        Some((len, self.status_value(0)))
    }

    /// An ordinary request on slot 0: header, optional data at DATA, status.
    pub fn request(&mut self, kind: u32, sector: u64, data_len: u32) -> (u32, u8) {
        let header = self.header(0, kind, sector);
        let write = if kind == T_IN || kind == T_GET_ID { F_WRITE } else { 0 };
        let status = self.status(0);
        let chain = if data_len == 0 {
            vec![header, status]
        } else {
            vec![header, desc(gpa(DATA), data_len, F_NEXT | write, 2), status]
        };
        self.execute(&chain).expect("an answer")
    }

    /// Writes and reads back, for real.
    pub fn check_io(&mut self, sector: u64, seed: u8) {
        let pattern: Vec<u8> = (0..4096u32).map(|i| seed.wrapping_add((i / 7) as u8)).collect();
        self.write(DATA, &pattern);
        assert_eq!(self.request(T_OUT, sector, 4096), (1, 0));
        self.write(DATA, &[0; 4096]);
        assert_eq!(self.request(T_IN, sector, 4096), (4097, 0));
        assert_eq!(self.read(DATA, 4096), pattern);
    }
}

pub fn encode(desc: Desc) -> Vec<u8> {
    let mut bytes = desc.address.to_le_bytes().to_vec();
    bytes.extend(desc.len.to_le_bytes());
    bytes.extend(desc.flags.to_le_bytes());
    bytes.extend(desc.next.to_le_bytes());
    bytes
}

fn framed(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = words([request, flags, body.len() as u32]);
    bytes.extend(body);
    bytes
}

pub fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.map(u32::to_ne_bytes).concat()
}

/// One discard or write-zeroes range.
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}
