//! One connection: messages in, the `vhost` crate's decoder, answers out, and a copy of what matters to the keeper.
//!
//! Each message is read whole from the peer, corrected where a known peer needs it ([`crate::wire`]), handed to the decoder
//! through a private socket pair, and the decoder's answer is passed on. The keeper gets what set state and was accepted. Nothing waits for the peer without also waiting for the order to stop,
//! but for the rest of a message that has begun, and that not for long.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use afterimage_block::Bell;
use afterimage_seldom::{Lines, Seldom};
use nix::sys::socket::MsgFlags;
use rustix::fs::{fcntl_get_seals, statx, AtFlags, FileType, StatxFlags};
use rustix::net::sockopt::socket_domain;
use rustix::net::AddressFamily;
use tracing::{debug, info, warn};
use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures};
use vhost::vhost_user::BackendReqHandler;

use crate::config::{protocol_features, Features, WRITEBACK_OFFSET};
use crate::device::Device;
use crate::error::SessionError;
use crate::keep::{Entry, KeepError, KeepHandle};
use crate::notify::poll_readable;
use crate::peer;
use crate::wire::{self, Frame, Reader, Received};

/// How a session ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The peer closed the connection.
    Closed,
    /// We were asked to stop.
    Stopped,
}

/// The order to stop.
#[derive(Debug)]
pub(crate) struct StopOrder {
    pub wake: Bell,
    pub given: AtomicBool,
}

impl StopOrder {
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }
}

type Reply = (Vec<u8>, Vec<OwnedFd>);

/// What became of a message that did not end the connection.
struct Applied {
    replies: Vec<Reply>,
    /// Otherwise it was refused, and the peer knows.
    accepted: bool,
}

impl Applied {
    fn accepted(replies: Vec<Reply>) -> Self {
        Self { replies, accepted: true }
    }
}

/// How long connections are left waiting where one could not be accepted: out of descriptors, mostly.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long a VMM's successor waits for one that is dying. It holds its connection until its memory was taken down.
const DEATH_PATIENCE: Duration = Duration::from_secs(30);

/// How long an order to stop waits for the rest of a message that has begun. Peers send theirs at once.
const REST_PATIENCE: Duration = Duration::from_millis(100);

/// Serves one connection to its end. `kept` is what a dead daemon left, for a takeover.
pub(crate) struct Session<'a> {
    pub device: &'a Arc<Mutex<Device>>,
    pub socket: &'a UnixStream,
    pub listener: Option<&'a UnixListener>,
    pub stop: &'a StopOrder,
    decoder: BackendReqHandler<Mutex<Device>>,
    near: UnixStream,
    name: String,
    lines: Arc<Lines>,
    /// `None` also where the keeper could not be told something: half a state is worse than none.
    keep: Option<KeepHandle>,
    /// Kept entries that other messages than their own make untrue: queues' kick and enable, regions that were added.
    held: BTreeSet<String>,
    /// The peer has asked what is offered. One that has not goes on by what an earlier connection had agreed.
    introduced: bool,
    turned_away: Seldom,
    deaf: Seldom,
    /// Since when somebody waits for a peer that is dying.
    awaited: Option<Instant>,
}

impl<'a> Session<'a> {
    pub fn new(
        device: &'a Arc<Mutex<Device>>,
        socket: &'a UnixStream,
        listener: Option<&'a UnixListener>,
        stop: &'a StopOrder,
    ) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let decoder = BackendReqHandler::from_stream(far, Arc::clone(device));
        let (name, lines, keep) = {
            let device = device.lock().unwrap_or_else(PoisonError::into_inner);
            (device.name().to_owned(), device.lines(), device.keep().cloned())
        };
        Ok(Self {
            device,
            socket,
            listener,
            stop,
            decoder,
            near,
            name,
            lines,
            keep,
            held: BTreeSet::new(),
            introduced: false,
            turned_away: Seldom::default(),
            deaf: Seldom::default(),
            awaited: None,
        })
    }

    /// A new connection, to a guest that is shown this.
    pub fn begin(&mut self, shown: &[u8]) {
        let socket = self.socket;
        self.tell_keeper(|keep, prefix, _| {
            keep.delete_prefix(prefix)?;
            keep.put(&format!("{prefix}shown"), shown, &[])?;
            keep.put(&format!("{prefix}socket"), &[], &[socket.as_fd()])
        });
    }

    /// Sets the device up from what a dead daemon had put, so that it goes on where it stopped. `over` is dropped when the disk has what was in
    /// flight.
    pub fn take_over(&mut self, kept: Vec<Entry>, over: Sender<Infallible>) -> Result<(), SessionError> {
        info!("{}: taking over from an earlier daemon", self.name);
        self.introduce()?;
        self.device().take_over(over);
        let mut messages = Vec::new();
        for mut entry in kept {
            let key = entry.key.rsplit('/').next().unwrap_or_default();
            self.held.insert(key.to_owned());
            match key {
                "shown" | "socket" => {}
                "own-inflight" => {
                    let fd = entry.fds.pop().ok_or_else(|| broken("the kept in-flight region is missing"))?;
                    self.device().adopt_own_inflight(&entry.value, fd).map_err(|e| broken(&e.to_string()))?;
                }
                _ => {
                    let frame = parse(&entry.value).ok_or_else(|| broken("a kept message is malformed"))?;
                    messages.push((replay_rank(&frame), entry.key, frame, entry.fds));
                }
            }
        }
        messages.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        for (_, _, frame, fds) in messages {
            self.apply(&frame.without_reply(), &fds)?;
        }
        self.device().taken_over();
        Ok(())
    }

    /// What a peer asks first, asked in its place.
    fn introduce(&mut self) -> Result<(), SessionError> {
        self.introduced = true;
        for code in [FrontendReq::GET_FEATURES, FrontendReq::GET_PROTOCOL_FEATURES] {
            self.decode(&Frame::new(code, &[]), &[])?;
        }
        Ok(())
    }

    /// QEMU 7.2 does not notice that the daemon was another one meanwhile where its guest's device was stopped (in firmware, or rebooting). It
    /// goes on by the protocol features of its first connection: all that we offer, since no version of it that does this knows fewer.
    fn go_on_unasked(&mut self) -> Result<(), SessionError> {
        if self.lines.may() {
            info!("{}: the VMM goes on by what it had agreed with an earlier daemon", self.name);
        }
        self.introduce()?;
        let agreed = protocol_features().bits().to_ne_bytes();
        let agreed = Frame::new(FrontendReq::SET_PROTOCOL_FEATURES, &agreed);
        self.put(&agreed, &[], &[]);
        self.apply(&agreed, &[]).map(drop)
    }

    /// Serves until the peer leaves, breaks the protocol or takes its memory away, or we are told to stop.
    pub fn serve(&mut self) -> Result<SessionEnd, SessionError> {
        let mut reader = Reader::default();
        let alarms = Arc::clone(self.device().alarms());
        let mut deaf_until: Option<Instant> = None;
        loop {
            let deaf = deaf_until.map(|until| until.saturating_duration_since(Instant::now()));
            let deaf = deaf.filter(|left| !left.is_zero());
            let listener = self.listener.map(AsFd::as_fd).filter(|_| deaf.is_none());
            let fds =
                [Some(self.socket.as_fd()), Some(self.stop.wake.fd()), Some(alarms.wake.fd()), listener];
            let [message, _, alarm, another] = poll_readable(fds, deaf)?;
            if self.stop.is_given() {
                return self.finish(&mut reader);
            }
            if alarm {
                alarms.wake.drain();
                if alarms.memory_gone() {
                    return Err(SessionError::MemoryGone);
                }
                if alarms.is_to_be_told() {
                    self.device().tell_errors();
                }
            }
            if another && !self.has_message()? && !self.turn_away() {
                deaf_until = Some(Instant::now() + ACCEPT_RETRY);
            }
            if message {
                if let Some(end) = self.hear(&mut reader)? {
                    return Ok(end);
                }
            }
        }
    }

    /// One read, and what it completes. The end, if it has come.
    fn hear(&mut self, reader: &mut Reader) -> Result<Option<SessionEnd>, SessionError> {
        Ok(match reader.receive(self.socket.as_fd()).map_err(as_session_error)? {
            Received::Partial => None,
            Received::Closed => Some(SessionEnd::Closed),
            Received::Message(frame, fds) => (!self.message(&frame, &fds)?).then_some(SessionEnd::Stopped),
        })
    }

    /// The end by order. A message that has begun is served first: the next daemon would take its rest for a header. Where the
    /// rest does not come, there is nothing that could be handed over.
    fn finish(&mut self, reader: &mut Reader) -> Result<SessionEnd, SessionError> {
        let deadline = Instant::now() + REST_PATIENCE;
        while reader.is_inside() {
            let left = deadline.saturating_duration_since(Instant::now());
            let [more] = poll_readable([Some(self.socket.as_fd())], Some(left))?;
            if more {
                if let Some(end) = self.hear(reader)? {
                    return Ok(end);
                }
            } else if left.is_zero() {
                return Err(broken("a message that had not ended when the server stopped"));
            }
        }
        Ok(SessionEnd::Stopped)
    }

    /// One message: applied, kept, answered. `false` when the order to stop came before the answer could go.
    pub fn message(&mut self, frame: &Frame, fds: &[OwnedFd]) -> Result<bool, SessionError> {
        match frame.code() {
            Some(FrontendReq::GET_FEATURES) => self.introduced = true,
            Some(FrontendReq::SET_FEATURES) if !self.introduced && knows_protocol_features(frame) => {
                self.go_on_unasked()?;
            }
            _ => {}
        }
        // Whoever asked for no answer has gone on, and would never say it again: it is kept first. If it is refused, that
        // is the connection's end, and nothing of it is kept. But a descriptor of another kind than the message is to carry
        // must not get there before it is accepted.
        let asks = matches!(frame.code(), Some(FrontendReq::GET_VRING_BASE | FrontendReq::GET_CONFIG));
        let answered = frame.needs_reply() || asks;
        let carried = carried(frame, fds);
        let first = !answered && carried.iter().all(|fd| may_carry(frame, fd.as_fd()));
        if first {
            self.put(frame, carried, &[]);
        }
        let applied = self.apply(frame, fds)?;
        if !first && applied.accepted {
            self.put(frame, carried, &applied.replies);
        }
        self.forget_the_untrue();
        for (bytes, fds) in applied.replies {
            if !self.send(&bytes, &fds)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looked at after a second connection was seen: if this one's end is not there by then, the second is not its
    /// successor.
    fn has_message(&self) -> io::Result<bool> {
        Ok(poll_readable([Some(self.socket.as_fd())], Some(Duration::ZERO))? == [true])
    }

    /// One guest at a time: another connection is closed at once. `false` where it waits, because it cannot be accepted, or this one's
    /// end is near.
    fn turn_away(&mut self) -> bool {
        if peer::is_dying(self.socket)
            && self.awaited.get_or_insert_with(Instant::now).elapsed() < DEATH_PATIENCE
        {
            return false;
        }
        match self.listener.map(UnixListener::accept) {
            Some(Ok(_)) => {
                if let Some(times) = self.turned_away.note(Instant::now()) {
                    let name = &self.name;
                    warn!("{name}: a second connection was closed: a guest is already attached (times: {times})");
                }
                true
            }
            Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => {
                if let Some(times) = self.deaf.note(Instant::now()) {
                    warn!("{}: a second connection cannot be turned away: {e} (times: {times})", self.name);
                }
                false
            }
            _ => true,
        }
    }

    fn apply(&mut self, frame: &Frame, fds: &[OwnedFd]) -> Result<Applied, SessionError> {
        debug!("{}: {}, {} bytes, {} descriptors", self.name, frame.name(), frame.body.len(), fds.len());
        let status = VhostUserProtocolFeatures::STATUS.bits();
        match frame.code() {
            // The `vhost` crate does not know these two.
            Some(code @ (FrontendReq::SET_STATUS | FrontendReq::GET_STATUS)) => {
                let mut device = self.device();
                if device.protocol & status == 0 || !fds.is_empty() {
                    return Err(broken("a device status message without its feature"));
                }
                if code == FrontendReq::GET_STATUS {
                    let reply = Frame::reply(code, u64::from(device.status())).encode();
                    return Ok(Applied::accepted(vec![(reply, Vec::new())]));
                }
                let &[value, _, _, _, _, _, _, _] = frame.body.as_slice() else {
                    return Err(broken("a device status of the wrong size"));
                };
                device.set_status(value);
                let acknowledges = device.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
                let reply = (Frame::reply(code, 0).encode(), Vec::new());
                let asked = acknowledges && frame.needs_reply();
                Ok(Applied::accepted(if asked { vec![reply] } else { Vec::new() }))
            }
            None => Err(broken(&format!("unknown {}", frame.name()))),
            Some(_) => self.decode(frame, fds),
        }
    }

    /// Hands a message to the decoder and collects its answer.
    fn decode(&mut self, frame: &Frame, fds: &[OwnedFd]) -> Result<Applied, SessionError> {
        let bytes = frame.encode();
        let sent = wire::send(self.near.as_fd(), &bytes, fds, MsgFlags::empty()).map_err(io::Error::from)?;
        if sent != bytes.len() {
            return Err(io::Error::other("the private socket pair took only a part of a message").into());
        }
        let handled = self.decoder.handle_request();
        let mut replies = Vec::new();
        let mut buffer = [0; 2 * vhost::vhost_user::message::MAX_MSG_SIZE];
        loop {
            match wire::receive(self.near.as_fd(), &mut buffer) {
                Ok((0, _)) | Err(nix::Error::EAGAIN) => break,
                Ok((n, fds)) => replies.push((buffer[..n].to_vec(), fds.unwrap_or_default())),
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        match handled {
            // The peer was told by its acknowledgement and decides what to do.
            Err(error) if !replies.is_empty() => {
                if self.lines.may() {
                    warn!("{}: {} refused: {error}", self.name, frame.name());
                }
                Ok(Applied { replies, accepted: false })
            }
            Err(error) => Err(broken(&format!("{}: {error}", frame.name()))),
            Ok(()) => Ok(Applied::accepted(replies)),
        }
    }

    /// Sends an answer; `false` when the order to stop came first.
    fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> Result<bool, SessionError> {
        let (mut rest, mut fds) = (bytes, fds);
        while !rest.is_empty() {
            match wire::send(self.socket.as_fd(), rest, fds, MsgFlags::MSG_DONTWAIT) {
                Ok(n) => {
                    rest = &rest[n..];
                    fds = &[];
                }
                Err(nix::Error::EINTR) => {}
                // A peer that does not read its answers: look again soon, and for the order to stop meanwhile.
                Err(nix::Error::EAGAIN) => {
                    poll_readable([Some(self.stop.wake.fd())], Some(Duration::from_millis(10)))?;
                    if self.stop.is_given() {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(true)
    }

    /// Keeps what a message sets.
    fn put(&mut self, frame: &Frame, fds: &[OwnedFd], replies: &[Reply]) {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        match frame.code() {
            // A stopped queue stays stopped after a takeover, and starts again where it stopped.
            Some(FrontendReq::GET_VRING_BASE) => {
                let Some(reply) = replies.first().and_then(|(reply, _)| parse(reply)) else { return };
                let base = Frame::new(FrontendReq::SET_VRING_BASE, &reply.body);
                self.put(&base, &[], &[]);
            }
            // What a peer has read of the write cache it goes by as by what it said, whatever the next daemon would show.
            Some(FrontendReq::GET_CONFIG) if !self.held.contains("config") => {
                let Some(on) = self.device().known_write_cache() else { return };
                let body = [WRITEBACK_OFFSET, 1, 0].map(u32::to_ne_bytes).concat();
                let choice = Frame::new(FrontendReq::SET_CONFIG, &[&body[..], &[u8::from(on)]].concat());
                self.put(&choice, &[], &[]);
            }
            Some(code @ (FrontendReq::SET_OWNER | FrontendReq::RESET_DEVICE | FrontendReq::RESET_OWNER)) => {
                // Not what was said of the write cache: see `Device::reset`.
                let reset = ["queue-", "features", "status"];
                // Beside it: see `Device::begin`.
                let begun = ["table", "region-", "removed-", "inflight", "own-inflight", "config"];
                let begun = if code == FrontendReq::SET_OWNER { &begun[..] } else { &[] };
                self.tell_keeper(|keep, prefix, held| {
                    reset.iter().chain(begun).try_for_each(|forgotten| {
                        held.retain(|key| !key.starts_with(forgotten));
                        keep.delete_prefix(&format!("{prefix}{forgotten}"))
                    })
                })
            }
            Some(FrontendReq::REM_MEM_REG) => {
                let Some(region) = region_of(frame) else { return };
                self.tell_keeper(|keep, prefix, held| {
                    let added = format!("region-{region:016x}");
                    if held.remove(&added) {
                        return keep.delete(&format!("{prefix}{added}"));
                    }
                    // One of the table's, which is kept as one message: removed again after it.
                    keep.put(&format!("{prefix}removed-{region:016x}"), &frame.encode(), &[])
                });
            }
            _ => {
                let Some(key) = keep_key(frame) else { return };
                self.tell_keeper(|keep, prefix, held| {
                    if frame.code() == Some(FrontendReq::SET_MEM_TABLE) {
                        // A whole new table replaces the regions that were added one by one.
                        held.retain(|key| !key.starts_with("region-"));
                        keep.delete_prefix(&format!("{prefix}region-"))?;
                        keep.delete_prefix(&format!("{prefix}removed-"))?;
                    }
                    keep.put(&format!("{prefix}{key}"), &frame.encode(), &fds)?;
                    held.insert(key);
                    Ok(())
                });
            }
        }
    }

    /// A kick descriptor that is no longer in force, since its queue was stopped for good or could not start.
    fn forget_the_untrue(&mut self) {
        if self.keep.is_none() {
            return;
        }
        let untrue: Vec<String> = {
            let device = self.device();
            (0..device.queues.len() as u32)
                .flat_map(|queue| {
                    let kick = (!device.has_kick(queue)).then(|| queue_key(queue, "kick"));
                    let enable = (!device.is_enabled(queue)).then(|| queue_key(queue, "enable"));
                    [kick, enable]
                })
                .flatten()
                .filter(|key| self.held.contains(key))
                .collect()
        };
        if !untrue.is_empty() {
            self.tell_keeper(|keep, prefix, held| {
                untrue.iter().try_for_each(|key| {
                    held.remove(key);
                    keep.delete(&format!("{prefix}{key}"))
                })
            });
        }
    }

    /// Where the keeper does not take something, it is to hold nothing of this connection: a takeover would go on with a
    /// state that is not the guest's.
    fn tell_keeper(
        &mut self,
        tell: impl FnOnce(&KeepHandle, &str, &mut BTreeSet<String>) -> Result<(), KeepError>,
    ) {
        let Some(keep) = &self.keep else { return };
        let prefix = format!("{}/session/", self.name);
        if let Err(error) = tell(keep, &prefix, &mut self.held) {
            if self.lines.may() {
                warn!("{}: this connection will not survive the daemon: {error}", self.name);
            }
            if let Err(error) = keep.delete_prefix(&prefix) {
                if self.lines.may() {
                    warn!("{}: the keeper still holds a part of it: {error}", self.name);
                }
            }
            self.keep = None;
        }
    }
}

/// Whether the features of SET_FEATURES are those of a peer that negotiates protocol features, too.
fn knows_protocol_features(frame: &Frame) -> bool {
    frame.body.first_chunk().is_some_and(|bytes| Features(u64::from_ne_bytes(*bytes)).protocol_features())
}

fn is_doorbell(frame: &Frame) -> bool {
    use FrontendReq::{SET_VRING_CALL, SET_VRING_ERR, SET_VRING_KICK};
    matches!(frame.code(), Some(SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR))
}

/// The descriptors that are a message's. Beside the word that there is none (bit 8) the decoder lets several by unseen.
fn carried<'f>(frame: &Frame, fds: &'f [OwnedFd]) -> &'f [OwnedFd] {
    let none = is_doorbell(frame) && frame.word(0).is_some_and(|word| word & 0x100 != 0);
    if none {
        &[]
    } else {
        fds
    }
}

/// Whether a descriptor looks like what the message is to carry, by calls that cannot wait. The keeper closes it in the end, for which
/// a FUSE server can let it wait, and all disks with it. The device itself looks more closely (`notify`, `memory`): what
/// passes here and is refused there is the kernel's own, or on a block device.
fn may_carry(frame: &Frame, fd: BorrowedFd<'_>) -> bool {
    let is_unix_socket = socket_domain(fd) == Ok(AddressFamily::UNIX);
    let status = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    let kind = status.map(|status| (FileType::from_raw_mode(status.stx_mode.into()), status.stx_dev_major));
    match frame.code() {
        // Eventfds are among the anonymous inodes, which have no type.
        Some(_) if is_doorbell(frame) => is_unix_socket || matches!(kind, Ok((FileType::Unknown, _))),
        Some(FrontendReq::SET_MEM_TABLE | FrontendReq::ADD_MEM_REG | FrontendReq::SET_INFLIGHT_FD) => {
            fcntl_get_seals(fd).is_ok() || matches!(kind, Ok((FileType::RegularFile, 1..)))
        }
        Some(FrontendReq::SET_BACKEND_REQ_FD) => is_unix_socket,
        _ => false,
    }
}

fn queue_key(index: u32, what: &str) -> String {
    format!("queue-{index:03}-{what}")
}

/// The guest address of ADD_MEM_REG and REM_MEM_REG, whose body is: padding, guest address, size, user address, offset.
fn region_of(frame: &Frame) -> Option<u64> {
    Some(u64::from(frame.word(2)?) | u64::from(frame.word(3)?) << 32)
}

/// Under which key a message is kept, if it sets state.
fn keep_key(frame: &Frame) -> Option<String> {
    let queue = |what: &str| {
        let mask = if matches!(what, "kick" | "call" | "err") { 0xff } else { u32::MAX };
        Some(queue_key(frame.word(0)? & mask, what))
    };
    let put = |key: &str| Some(key.to_owned());
    match frame.code()? {
        FrontendReq::SET_FEATURES => put("features"),
        FrontendReq::SET_PROTOCOL_FEATURES => put("protocol-features"),
        FrontendReq::SET_BACKEND_REQ_FD => put("backend-channel"),
        FrontendReq::SET_MEM_TABLE => put("table"),
        FrontendReq::ADD_MEM_REG => Some(format!("region-{:016x}", region_of(frame)?)),
        FrontendReq::SET_INFLIGHT_FD => put("inflight"),
        FrontendReq::SET_CONFIG => put("config"),
        FrontendReq::SET_STATUS => put("status"),
        FrontendReq::SET_VRING_NUM => queue("num"),
        FrontendReq::SET_VRING_ADDR => queue("addr"),
        FrontendReq::SET_VRING_BASE => queue("base"),
        FrontendReq::SET_VRING_KICK => queue("kick"),
        FrontendReq::SET_VRING_CALL => queue("call"),
        FrontendReq::SET_VRING_ERR => queue("err"),
        FrontendReq::SET_VRING_ENABLE => queue("enable"),
        _ => None,
    }
}

/// The order of replay: what others stand on first, and what starts a queue last.
fn replay_rank(frame: &Frame) -> u8 {
    match frame.code() {
        Some(FrontendReq::SET_PROTOCOL_FEATURES) => 0,
        Some(FrontendReq::SET_FEATURES) => 1,
        Some(FrontendReq::SET_BACKEND_REQ_FD) => 2,
        Some(FrontendReq::SET_MEM_TABLE) => 3,
        Some(FrontendReq::REM_MEM_REG) => 4,
        Some(FrontendReq::ADD_MEM_REG) => 5,
        Some(FrontendReq::SET_CONFIG) => 6,
        Some(FrontendReq::SET_INFLIGHT_FD) => 7,
        Some(FrontendReq::SET_STATUS) => 8,
        Some(FrontendReq::SET_VRING_NUM) => 9,
        Some(FrontendReq::SET_VRING_ADDR | FrontendReq::SET_VRING_BASE) => 10,
        Some(FrontendReq::SET_VRING_CALL | FrontendReq::SET_VRING_ERR) => 11,
        Some(FrontendReq::SET_VRING_ENABLE) => 12,
        _ => 13,
    }
}

/// One whole message, as kept.
fn parse(bytes: &[u8]) -> Option<Frame> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let body = bytes.get(wire::HEADER_BYTES..)?;
    (word(8)? as usize == body.len()).then_some(Frame {
        request: word(0)?,
        flags: word(4)?,
        body: body.to_vec(),
    })
}

fn broken(reason: &str) -> SessionError {
    SessionError::Protocol(reason.to_owned())
}

fn as_session_error(error: io::Error) -> SessionError {
    match error.kind() {
        io::ErrorKind::InvalidData => SessionError::Protocol(error.to_string()),
        _ => SessionError::Io(error),
    }
}
