//! vhost-user messages on the socket (vhost-user, "Message Specification"): framing, and the corrections that stand
//! between real peers and the `vhost` crate.
//!
//! A message is 12 bytes of header (request, flags, size; native endian) and `size` bytes of body; its descriptors
//! come with its first byte. A read never reaches past one message's end, or descriptors would be attached to
//! the wrong one.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr};
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 12;
/// Version 1, no flags.
const F_VERSION: u32 = 1;
const F_VERSION_MASK: u32 = 3;
const F_REPLY: u32 = 4;
const F_NEED_REPLY: u32 = 8;
/// Number of regions and padding in front of the regions of SET_MEM_TABLE.
const MEM_TABLE_HEADER_BYTES: usize = 8;
const MEM_REGION_BYTES: usize = 32;

/// Bytes that are not a vhost-user message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a message of {0} bytes, longer than any that is defined")]
    TooLong(u32),
    #[error("a header with flags {0:#x}")]
    Flags(u32),
    #[error("more descriptors than any message may carry")]
    TooManyFds,
}

/// One message without its descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub request: u32,
    pub flags: u32,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn new(request: FrontendReq, body: &[u8]) -> Self {
        Self { request: request.into(), flags: F_VERSION, body: body.to_vec() }
    }

    pub fn reply(request: FrontendReq, value: u64) -> Self {
        Self { request: request.into(), flags: F_VERSION | F_REPLY, body: value.to_ne_bytes().to_vec() }
    }

    pub fn code(&self) -> Option<FrontendReq> {
        FrontendReq::try_from(self.request).ok()
    }

    /// Its name in the specification, for people.
    pub fn name(&self) -> String {
        self.code().map_or_else(|| format!("message {}", self.request), |code| format!("{code:?}"))
    }

    pub fn needs_reply(&self) -> bool {
        self.flags & F_NEED_REPLY != 0
    }

    /// The same message, unanswered: for replaying.
    pub fn without_reply(mut self) -> Self {
        self.flags &= !F_NEED_REPLY;
        self
    }

    /// The `n`th 32-bit word of the body.
    pub fn word(&self, n: usize) -> Option<u32> {
        let bytes = self.body.get(4 * n..4 * n + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.body.len());
        bytes.extend_from_slice(&self.request.to_ne_bytes());
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
        bytes.extend_from_slice(&(self.body.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Cuts SET_MEM_TABLE to the regions it counts: User Mode Linux always sends 72 bytes, room for two, and counts
    /// one; the specification's other implementations read as many as are counted.
    fn trim(&mut self) {
        if self.request != u32::from(FrontendReq::SET_MEM_TABLE) {
            return;
        }
        let Some(regions) = self.word(0) else { return };
        let len = (regions as usize).saturating_mul(MEM_REGION_BYTES).saturating_add(MEM_TABLE_HEADER_BYTES);
        self.body.truncate(len);
    }
}

/// Puts messages together from a stream of bytes.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    bytes: Vec<u8>,
    body_len: Option<usize>,
}

impl Framer {
    /// How many bytes may be read now without reaching into the next message; never 0.
    pub fn wanted(&self) -> usize {
        HEADER_BYTES + self.body_len.unwrap_or(0) - self.bytes.len()
    }

    /// Whether a message has begun and not ended.
    pub fn is_inside(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes at most [`Framer::wanted`] bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        assert!(bytes.len() <= self.wanted(), "read past the message");
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let word = |at: usize| {
            u32::from_ne_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
        };
        let (request, flags, size) = (word(0), word(4), word(8));
        if self.body_len.is_none() {
            if size as usize > MAX_MSG_SIZE {
                return Err(FrameError::TooLong(size));
            }
            if flags & F_VERSION_MASK != F_VERSION || flags & !(F_VERSION_MASK | F_NEED_REPLY) != 0 {
                return Err(FrameError::Flags(flags));
            }
            self.body_len = Some(size as usize);
        }
        if self.wanted() > 0 {
            return Ok(None);
        }
        let mut frame = Frame { request, flags, body: self.bytes.split_off(HEADER_BYTES) };
        frame.trim();
        self.bytes.clear();
        self.body_len = None;
        Ok(Some(frame))
    }
}

/// What one read brought.
#[derive(Debug)]
pub(crate) enum Received {
    /// A whole message.
    Message(Frame, Vec<OwnedFd>),
    /// Part of one, or nothing yet.
    Partial,
    /// The peer closed the socket.
    Closed,
}

/// Reads messages from a socket without ever waiting.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    framer: Framer,
    fds: Vec<OwnedFd>,
}

impl Reader {
    /// Whether a message has begun and not ended.
    pub fn is_inside(&self) -> bool {
        self.framer.is_inside()
    }

    /// One read.
    ///
    /// # Errors
    /// `InvalidData` with a [`FrameError`] for a broken peer, anything else from the socket.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Received> {
        let mut bytes = vec![0; self.framer.wanted()];
        let (n, fds) = match receive(socket, &mut bytes) {
            Ok(received) => received,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(Received::Partial),
            Err(nix::Error::ECONNRESET) => return Ok(Received::Closed),
            Err(e) => return Err(e.into()),
        };
        let invalid = |e| io::Error::new(io::ErrorKind::InvalidData, e);
        self.fds.extend(fds.ok_or(invalid(FrameError::TooManyFds))?);
        if self.fds.len() > MAX_ATTACHED_FD_ENTRIES {
            return Err(invalid(FrameError::TooManyFds));
        }
        if n == 0 {
            if self.framer.is_inside() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return Ok(Received::Closed);
        }
        match self.framer.push(&bytes[..n]).map_err(invalid)? {
            Some(frame) => Ok(Received::Message(frame, std::mem::take(&mut self.fds))),
            None => Ok(Received::Partial),
        }
    }
}

/// `recvmsg` without waiting; the descriptors are `None` where some were cut off (those received are closed).
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> nix::Result<(usize, Option<Vec<OwnedFd>>)> {
    let mut control = cmsg_space!([std::os::fd::RawFd; MAX_ATTACHED_FD_ENTRIES]);
    let mut iov = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut iov, Some(&mut control), flags)?;
    let cut_off = message.flags.contains(MsgFlags::MSG_CTRUNC);
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            fds.extend(raw.into_iter().map(crate::keep::wire::own));
        }
    }
    Ok((message.bytes, (!cut_off).then_some(fds)))
}

/// One `sendmsg`; returns how many bytes went, the descriptors with the first of them.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[OwnedFd],
    wait: MsgFlags,
) -> nix::Result<usize> {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let iov = [IoSlice::new(bytes)];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL | wait, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let first = Frame::new(FrontendReq::SET_FEATURES, &7u64.to_ne_bytes());
        let second = Frame::new(FrontendReq::SET_OWNER, &[]);
        let stream = [first.encode(), second.encode()].concat();
        for chunk in 1..stream.len() {
            let mut framer = Framer::default();
            let mut rest = &stream[..];
            let mut found = Vec::new();
            while !rest.is_empty() {
                let n = chunk.min(framer.wanted()).min(rest.len());
                found.extend(framer.push(&rest[..n]).unwrap());
                rest = &rest[n..];
            }
            assert_eq!(found, [first.clone(), second.clone()]);
        }
    }

    #[test]
    fn user_mode_linux_s_memory_table_is_cut_to_its_count() {
        let mut body = vec![0u8; 72];
        body[0] = 1;
        let frame = Frame::new(FrontendReq::SET_MEM_TABLE, &body);
        let bytes = frame.encode();
        let mut framer = Framer::default();
        assert_eq!(framer.push(&bytes[..12]).unwrap(), None);
        assert_eq!(framer.push(&bytes[12..]).unwrap().unwrap().body.len(), 40);
    }

    #[test]
    fn hostile_headers_are_refused() {
        let header = |flags: u32, size: u32| [1u32, flags, size].map(u32::to_ne_bytes).concat();
        let push = |bytes: &[u8]| Framer::default().push(bytes);
        assert_eq!(push(&header(1, u32::MAX)), Err(FrameError::TooLong(u32::MAX)));
        assert_eq!(push(&header(2, 0)), Err(FrameError::Flags(2)));
        assert_eq!(push(&header(5, 0)), Err(FrameError::Flags(5)));
    }
}
