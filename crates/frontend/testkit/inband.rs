//! A guest's vhost-user connection whose notifications are messages, too (vhost-user, `VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS`):
//! what User Mode Linux speaks in virtual time, where a kick has to be answered before the guest goes on. One queue, and no thread:
//! whoever owns it reads a message when there is one, and steps the queue ([`Stepped`]).
//!
//! A peer outlives the queue that serves it, and so the daemon, as what a keeper holds does: its memory, its ring and the requests
//! in flight go on in the next [`Peer::serve`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use afterimage_block::{Disk, Geometry, Lane};
use nix::sys::socket::MsgFlags;
use parking_lot::Mutex;
use vhost::vhost_user::message::{FrontendReq, VhostUserMemoryRegion, VhostUserProtocolFeatures};

use crate::config::{config_space, Features};
use crate::handler::map;
use crate::inflight::{region_bytes, Region as InflightRegion};
use crate::memory::{GuestMemory, Mapping, UserAddress};
use crate::notify::{Call, Doorbell, Ringer};
use crate::queue::CallSlot;
use crate::ring::{Ring, RingAddresses};
use crate::stepped::{Setup, Stepped};
use crate::wire::{self, Frame, Reader, Received};
use crate::QueueStats;

/// VIRTIO_BLK_F_CONFIG_WCE and VIRTIO_BLK_F_MQ, which one queue and a write cache that stays do without.
const LEFT_OUT: u64 = 1 << 11 | 1 << 12;
const QUEUE_SIZE_MAX: u16 = 1024;
/// VHOST_USER_BACKEND_VRING_CALL, and the flags of a message that wants an answer.
const VRING_CALL: u32 = 4;
const F_VERSION_NEED_REPLY: u32 = 1 | 8;
/// The answer to it: a header and 8 bytes.
const CALL_ANSWER_BYTES: usize = wire::HEADER_BYTES + 8;

/// What a message was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The set-up, and nothing follows from it.
    SetUp,
    /// The queue may be served from here on.
    Enabled,
    /// The queue may not be served any more.
    Disabled,
    /// The driver has made requests available; it waits for [`Peer::answer_kick`].
    Kick,
    /// The peer has gone.
    Closed,
}

/// How far a driver's queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many requests the driver has made available.
    pub available: u16,
    /// How many of them were answered.
    pub used: u16,
    /// How many answers the driver has taken, where it says so.
    pub taken: Option<u16>,
}

impl Progress {
    /// Whether somebody waits.
    pub fn waits(self) -> bool {
        self.available != self.used || self.taken.is_some_and(|taken| taken != self.used)
    }
}

/// See the module.
pub struct Peer {
    socket: UnixStream,
    reader: Reader,
    backend: Option<OwnedFd>,
    geometry: Geometry,
    features: Features,
    memory: Arc<GuestMemory>,
    size: u16,
    base: u16,
    addresses: Option<RingAddresses>,
    inflight: InflightRegion,
    call: CallSlot,
    /// What the queue rings.
    bell: UnixStream,
}

impl Peer {
    /// A connection of a disk's guest.
    ///
    /// # Errors
    /// The machine has no memory, descriptors or io_uring.
    pub fn new(socket: UnixStream, geometry: Geometry) -> io::Result<Self> {
        let tracked = Arc::new(Mapping::anonymous(region_bytes(1, QUEUE_SIZE_MAX))?);
        let inflight = InflightRegion::new(tracked, 1, QUEUE_SIZE_MAX).map_err(io::Error::other)?;
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let mut call = Call::new()?;
        let doorbell = Doorbell::new(rung.into(), &mut Ringer::new()?).map_err(io::Error::other)?;
        call.set(Some(doorbell)).map_err(io::Error::other)?;
        Ok(Self {
            socket,
            reader: Reader::default(),
            backend: None,
            geometry,
            features: Features::default(),
            memory: Arc::default(),
            size: 0,
            base: 0,
            addresses: None,
            inflight,
            call: Arc::new(Mutex::new(call)),
            bell,
        })
    }

    /// Where its messages come from.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Where it answers calls.
    pub fn backend(&self) -> Option<BorrowedFd<'_>> {
        self.backend.as_ref().map(AsFd::as_fd)
    }

    fn offered(&self) -> Features {
        Features(Features::offered(&self.geometry).0 & !LEFT_OUT)
    }

    /// The next message, if there is one. It is answered where it wants an answer, a kick by [`Peer::answer_kick`].
    ///
    /// # Errors
    /// The peer broke the protocol, or its memory cannot be mapped.
    pub fn hear(&mut self) -> io::Result<Option<Heard>> {
        loop {
            let asked = self.reader.receive(self.socket.as_fd())?;
            return match asked {
                Received::Message(frame, fds) => self.message(&frame, fds).map(Some),
                Received::Closed => Ok(Some(Heard::Closed)),
                // The rest of a message that has begun is on its way.
                Received::Partial if self.reader.is_inside() => continue,
                Received::Partial => Ok(None),
            };
        }
    }

    fn message(&mut self, frame: &Frame, fds: Vec<OwnedFd>) -> io::Result<Heard> {
        let strange =
            |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", frame.name()));
        let word = |n: usize| frame.word(n).ok_or_else(|| strange("too short"));
        let long = |n: usize| Ok::<_, io::Error>(u64::from(word(n)?) | u64::from(word(n + 1)?) << 32);
        let code = frame.code().ok_or_else(|| strange("not known"))?;
        let mut heard = Heard::SetUp;
        match code {
            FrontendReq::GET_FEATURES => return self.answer(code, &self.offered().0.to_ne_bytes()),
            FrontendReq::GET_PROTOCOL_FEATURES => {
                let features = VhostUserProtocolFeatures::REPLY_ACK
                    | VhostUserProtocolFeatures::BACKEND_REQ
                    | VhostUserProtocolFeatures::CONFIG
                    | VhostUserProtocolFeatures::INBAND_NOTIFICATIONS;
                return self.answer(code, &features.bits().to_ne_bytes());
            }
            FrontendReq::GET_CONFIG => {
                let (offset, bytes) = (word(0)? as usize, word(1)? as usize);
                let space = config_space(&self.geometry, 1, true);
                let found = space.get(offset..offset + bytes).ok_or_else(|| strange("past the end"))?;
                let head = frame.body.get(..12).ok_or_else(|| strange("too short"))?;
                return self.answer(code, &[head, found].concat());
            }
            FrontendReq::SET_FEATURES => {
                let features = Features(long(0)?);
                if !features.within(self.offered()) {
                    return Err(strange("features that were not offered"));
                }
                self.features = features;
            }
            FrontendReq::SET_MEM_TABLE => {
                let mut memory = GuestMemory::default();
                for (region, fd) in fds.into_iter().enumerate() {
                    let at = 2 + 8 * region;
                    let (guest, bytes, user, offset) =
                        (long(at)?, long(at + 2)?, long(at + 4)?, long(at + 6)?);
                    let region = VhostUserMemoryRegion::new(guest, bytes, user, offset);
                    memory = map(&memory, &region, File::from(fd)).map_err(io::Error::other)?;
                }
                self.memory = Arc::new(memory);
            }
            FrontendReq::SET_VRING_NUM => {
                let size =
                    u16::try_from(word(1)?).ok().filter(|n| n.is_power_of_two() && *n <= QUEUE_SIZE_MAX);
                self.size = size.ok_or_else(|| strange("no size of a queue"))?;
            }
            FrontendReq::SET_VRING_ADDR => {
                self.addresses = Some(RingAddresses {
                    descriptors: UserAddress(long(2)?),
                    used: UserAddress(long(4)?),
                    available: UserAddress(long(6)?),
                });
            }
            FrontendReq::SET_VRING_BASE => {
                self.base = u16::try_from(word(1)?).map_err(|_| strange("no base of a queue"))?;
            }
            FrontendReq::SET_BACKEND_REQ_FD => self.backend = fds.into_iter().next(),
            FrontendReq::SET_VRING_ENABLE => {
                heard = if word(1)? == 1 { Heard::Enabled } else { Heard::Disabled };
            }
            FrontendReq::VRING_KICK => return Ok(Heard::Kick),
            // Notifications are messages: what their descriptors would be is not asked for.
            FrontendReq::SET_OWNER
            | FrontendReq::SET_PROTOCOL_FEATURES
            | FrontendReq::SET_VRING_KICK
            | FrontendReq::SET_VRING_CALL
            | FrontendReq::SET_VRING_ERR => {}
            _ => return Err(strange("not expected of a guest in virtual time")),
        }
        if frame.needs_reply() {
            self.answer(code, &0u64.to_ne_bytes())?;
        }
        Ok(heard)
    }

    fn answer(&self, code: FrontendReq, body: &[u8]) -> io::Result<Heard> {
        let frame = Frame { body: body.to_vec(), ..Frame::reply(code, 0) };
        send_all(self.socket.as_fd(), &frame)?;
        Ok(Heard::SetUp)
    }

    /// The guest goes on after its kick.
    ///
    /// # Errors
    /// The socket.
    pub fn answer_kick(&self) -> io::Result<()> {
        self.answer(FrontendReq::VRING_KICK, &0u64.to_ne_bytes()).map(drop)
    }

    /// Serves the queue. The lane is one of the disk's.
    ///
    /// # Errors
    /// The queue lies outside the memory, or what was in flight is damaged.
    pub fn serve(
        &self,
        disk: &dyn Disk,
        lane: Box<dyn Lane>,
        stats: &Arc<QueueStats>,
    ) -> Result<Stepped, String> {
        let addresses = self.addresses.as_ref().ok_or("a queue without addresses")?;
        let ring = Ring::new(&self.memory, addresses, self.size, self.features.event_idx());
        let setup = Setup {
            index: 0,
            ring: ring.ok_or("a queue outside the guest's memory")?,
            base: self.base,
            memory: Arc::clone(&self.memory),
            inflight: self.inflight.queue(0, self.size),
            call: Arc::clone(&self.call),
            features: self.features,
            flushed: !self.features.flush(),
        };
        Stepped::of(setup, disk, lane, Arc::clone(stats))
    }

    /// How far the queue has come, as the guest's memory says; `None` where there is no queue.
    pub fn progress(&self) -> Option<Progress> {
        let at = self.addresses.as_ref()?;
        let event = 4 + 2 * usize::from(self.size);
        let available = self.memory.user_window(at.available, event + 2, 2)?;
        let used = self.memory.user_window(at.used, 4, 4)?;
        let load = Ordering::Acquire;
        Some(Progress {
            available: available.load_u16(2, load),
            used: used.load_u16(2, load),
            // While it sleeps the driver wants to be interrupted behind the last answer that it has taken.
            taken: self.features.event_idx().then(|| available.load_u16(event, load)),
        })
    }

    /// Whether the queue has notified the driver since the last look.
    pub fn has_rung(&self) -> bool {
        let mut counts = [0; 64];
        let mut rung = false;
        while matches!(io::Read::read(&mut &self.bell, &mut counts), Ok(n) if n > 0) {
            rung = true;
        }
        rung
    }

    /// Interrupts the driver, which answers on [`Peer::backend`].
    ///
    /// # Errors
    /// The socket, or there is none.
    pub fn call(&self) -> io::Result<()> {
        let frame = Frame { request: VRING_CALL, flags: F_VERSION_NEED_REPLY, body: vec![0; 8] };
        send_all(self.backend().ok_or(io::ErrorKind::NotConnected)?, &frame)
    }

    /// The driver's answer to a call, which is there.
    ///
    /// # Errors
    /// The socket.
    pub fn take_call_answer(&self) -> io::Result<()> {
        let backend = self.backend.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut answer = [0; CALL_ANSWER_BYTES];
        let mut at = 0;
        while at < answer.len() {
            match rustix::io::read(backend, &mut answer[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        Ok(())
    }
}

fn send_all(socket: BorrowedFd<'_>, frame: &Frame) -> io::Result<()> {
    let bytes = frame.encode();
    let mut at = 0;
    while at < bytes.len() {
        match wire::send(socket, &bytes[at..], &[], MsgFlags::empty()) {
            Ok(n) => at += n,
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
