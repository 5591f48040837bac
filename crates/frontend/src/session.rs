//! One connection: messages in, the `vhost` crate's decoder, answers out, and a copy of what matters to the keeper.
//!
//! Each message is read whole from the peer, corrected where a known peer needs it ([`crate::wire`]), put in the keeper
//! if it sets state, handed to the decoder through a private socket pair, and the decoder's answer is passed on.
//! Nothing waits for the peer without also waiting for the order to stop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::socket::MsgFlags;
use tracing::{debug, info, warn};
use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures};
use vhost::vhost_user::BackendReqHandler;

use crate::device::Device;
use crate::error::SessionError;
use crate::keep::{Entry, KeepHandle};
use crate::notify::{poll_readable, Wake};
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
    pub wake: Wake,
    pub given: AtomicBool,
}

impl StopOrder {
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }
}

type Reply = (Vec<u8>, Vec<OwnedFd>);

/// Serves one connection to its end. `kept` is what a dead daemon left, for a takeover.
pub(crate) struct Session<'a> {
    pub device: &'a Arc<Mutex<Device>>,
    pub socket: &'a UnixStream,
    pub listener: Option<&'a UnixListener>,
    pub stop: &'a StopOrder,
    decoder: BackendReqHandler<Mutex<Device>>,
    near: UnixStream,
    name: String,
    keep: Option<KeepHandle>,
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
        let (name, keep) = {
            let device = device.lock().unwrap_or_else(PoisonError::into_inner);
            (device.name().to_owned(), device.keep().cloned())
        };
        Ok(Self { device, socket, listener, stop, decoder, near, name, keep })
    }

    /// A new connection.
    pub fn begin(&self) {
        if let Some(keep) = &self.keep {
            let prefix = format!("{}/session/", self.name);
            let kept = keep
                .delete_prefix(&prefix)
                .and_then(|()| keep.put(&format!("{prefix}socket"), &[], &[self.socket.as_fd()]));
            if let Err(error) = kept {
                warn!("{}: this connection will not survive the daemon: {error}", self.name);
            }
        }
    }

    /// Sets the device up from what a dead daemon had put, so that it goes on where it stopped.
    pub fn take_over(&mut self, kept: Vec<Entry>) -> Result<(), SessionError> {
        info!("{}: taking over from an earlier daemon", self.name);
        for code in [FrontendReq::GET_FEATURES, FrontendReq::GET_PROTOCOL_FEATURES] {
            self.decode(&Frame::new(code, &[]), &[])?;
        }
        let mut messages = Vec::new();
        for mut entry in kept {
            match entry.key.rsplit('/').next().unwrap_or_default() {
                "socket" => {}
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
            self.apply(frame.without_reply(), &fds)?;
        }
        Ok(())
    }

    /// Serves until the peer leaves, breaks the protocol or takes its memory away, or we are told to stop.
    pub fn serve(&mut self) -> Result<SessionEnd, SessionError> {
        let mut reader = Reader::default();
        let alarms = Arc::clone(self.device().alarms());
        let mut told = false;
        loop {
            let listener = self.listener.map(AsFd::as_fd);
            let fds = [
                Some(self.socket.as_fd()),
                Some(self.stop.wake.as_fd()),
                Some(alarms.wake.as_fd()),
                listener,
            ];
            let [message, _, alarm, another] = poll_readable(fds, None)?;
            if self.stop.is_given() {
                return Ok(SessionEnd::Stopped);
            }
            if alarm {
                alarms.wake.clear();
                if alarms.memory_gone() {
                    return Err(SessionError::MemoryGone);
                }
                if alarms.any_broken() && !std::mem::replace(&mut told, true) {
                    self.device().tell_errors();
                }
            }
            if another && !self.has_message()? {
                self.turn_away();
            }
            if message {
                match reader.receive(self.socket.as_fd()).map_err(as_session_error)? {
                    Received::Partial => {}
                    Received::Closed => return Ok(SessionEnd::Closed),
                    Received::Message(frame, fds) => {
                        self.put(&frame, &fds);
                        let replies = self.apply(frame, &fds)?;
                        for (bytes, fds) in replies {
                            if !self.send(&bytes, &fds)? {
                                return Ok(SessionEnd::Stopped);
                            }
                        }
                    }
                }
            }
        }
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looked at after a second connection was seen: if this one's end is not there by then, the second is not its
    /// successor.
    fn has_message(&self) -> io::Result<bool> {
        Ok(poll_readable([Some(self.socket.as_fd())], Some(Duration::ZERO))? == [true])
    }

    /// One guest at a time: another connection is closed at once.
    fn turn_away(&self) {
        if let Some(Ok(_)) = self.listener.map(UnixListener::accept) {
            warn!("{}: a second connection was closed: a guest is already attached", self.name);
        }
    }

    fn apply(&mut self, frame: Frame, fds: &[OwnedFd]) -> Result<Vec<Reply>, SessionError> {
        debug!("{}: {:?}, {} bytes, {} descriptors", self.name, frame.code(), frame.body.len(), fds.len());
        let status = VhostUserProtocolFeatures::STATUS.bits();
        match frame.code() {
            // The `vhost` crate does not know these two.
            Some(code @ (FrontendReq::SET_STATUS | FrontendReq::GET_STATUS)) => {
                let mut device = self.device();
                if device.protocol & status == 0 || !fds.is_empty() {
                    return Err(broken("a device status message without its feature"));
                }
                if code == FrontendReq::GET_STATUS {
                    return Ok(vec![(Frame::reply(code, u64::from(device.status())).encode(), Vec::new())]);
                }
                let &[value, _, _, _, _, _, _, _] = frame.body.as_slice() else {
                    return Err(broken("a device status of the wrong size"));
                };
                device.set_status(value);
                let acknowledges = device.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
                let reply = (Frame::reply(code, 0).encode(), Vec::new());
                Ok(if acknowledges && frame.needs_reply() { vec![reply] } else { Vec::new() })
            }
            None => Err(broken(&format!("unknown message {}", frame.request))),
            Some(FrontendReq::GET_VRING_BASE) => {
                let replies = self.decode(&frame, fds)?;
                self.note_stopped(&frame, &replies);
                Ok(replies)
            }
            Some(FrontendReq::RESET_DEVICE | FrontendReq::RESET_OWNER) => {
                let replies = self.decode(&frame, fds)?;
                self.forget_queues();
                Ok(replies)
            }
            Some(_) => self.decode(&frame, fds),
        }
    }

    /// Hands a message to the decoder and collects its answer.
    fn decode(&mut self, frame: &Frame, fds: &[OwnedFd]) -> Result<Vec<Reply>, SessionError> {
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
            Err(error @ vhost::vhost_user::Error::ReqHandlerError(_)) if !replies.is_empty() => {
                warn!("{}: {:?} refused: {error}", self.name, frame.code());
                Ok(replies)
            }
            Err(error) => {
                let code = frame.code().map_or_else(|| frame.request.to_string(), |code| format!("{code:?}"));
                Err(broken(&format!("{code}: {error}")))
            }
            Ok(()) => Ok(replies),
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
                    poll_readable([Some(self.stop.wake.as_fd())], Some(Duration::from_millis(10)))?;
                    if self.stop.is_given() {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(true)
    }

    /// Keeps a state-setting message, before it takes effect.
    fn put(&self, frame: &Frame, fds: &[OwnedFd]) {
        let (Some(keep), Some(key)) = (&self.keep, keep_key(frame)) else { return };
        let prefix = format!("{}/session/", self.name);
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let kept = match key {
            Keyed::Put(key) => {
                // A whole new table replaces the regions that were added one by one.
                let replaced = match frame.code() {
                    Some(FrontendReq::SET_MEM_TABLE) => keep.delete_prefix(&format!("{prefix}region")),
                    _ => Ok(()),
                };
                replaced.and_then(|()| keep.put(&format!("{prefix}{key}"), &frame.encode(), &borrowed))
            }
            Keyed::Delete(key) => keep.delete(&format!("{prefix}{key}")),
        };
        self.log_keep(kept);
    }

    /// A stopped queue stays stopped after a takeover, and starts again where it stopped.
    fn note_stopped(&self, frame: &Frame, replies: &[Reply]) {
        let (Some(keep), Some(index), Some((reply, _))) = (&self.keep, frame.word(0), replies.first()) else {
            return;
        };
        let Some(reply) = parse(reply) else { return };
        let base = Frame::new(FrontendReq::SET_VRING_BASE, &reply.body);
        let key = |what| format!("{}/session/queue-{index:03}-{what}", self.name);
        self.log_keep(keep.put(&key("base"), &base.encode(), &[]).and_then(|()| keep.delete(&key("kick"))));
    }

    fn forget_queues(&self) {
        if let Some(keep) = &self.keep {
            let prefix = format!("{}/session/", self.name);
            self.log_keep(keep.delete_prefix(&format!("{prefix}queue-")));
            self.log_keep(keep.delete(&format!("{prefix}config")));
        }
    }

    fn log_keep(&self, result: Result<(), crate::keep::KeepError>) {
        if let Err(error) = result {
            warn!("{}: the guest's state is not kept: {error}", self.name);
        }
    }
}

enum Keyed {
    Put(String),
    Delete(String),
}

/// Under which key a message is kept, if it sets state.
fn keep_key(frame: &Frame) -> Option<Keyed> {
    let queue = |what: &str| {
        let index =
            frame.word(0)? & if what == "kick" || what == "call" || what == "err" { 0xff } else { u32::MAX };
        Some(Keyed::Put(format!("queue-{index:03}-{what}")))
    };
    // Body of ADD_MEM_REG and REM_MEM_REG: padding, guest address, size, user address, offset.
    let region = || {
        let half = |n: usize| Some(u64::from(frame.word(n)?) | u64::from(frame.word(n + 1)?) << 32);
        Some(format!("region-{:016x}", half(2)?))
    };
    let put = |key: &str| Some(Keyed::Put(key.to_owned()));
    match frame.code()? {
        FrontendReq::SET_FEATURES => put("features"),
        FrontendReq::SET_PROTOCOL_FEATURES => put("protocol-features"),
        FrontendReq::SET_BACKEND_REQ_FD => put("backend-channel"),
        FrontendReq::SET_MEM_TABLE => put("table"),
        FrontendReq::ADD_MEM_REG => region().map(Keyed::Put),
        FrontendReq::REM_MEM_REG => region().map(Keyed::Delete),
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
        Some(FrontendReq::ADD_MEM_REG) => 4,
        Some(FrontendReq::SET_CONFIG) => 5,
        Some(FrontendReq::SET_INFLIGHT_FD) => 6,
        Some(FrontendReq::SET_STATUS) => 7,
        Some(FrontendReq::SET_VRING_NUM) => 8,
        Some(FrontendReq::SET_VRING_ADDR | FrontendReq::SET_VRING_BASE) => 9,
        Some(FrontendReq::SET_VRING_CALL | FrontendReq::SET_VRING_ERR) => 10,
        Some(FrontendReq::SET_VRING_ENABLE) => 11,
        _ => 12,
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
