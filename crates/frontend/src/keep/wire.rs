//! The keeper's wire format: one datagram of an `AF_UNIX` `SOCK_SEQPACKET` socket is one message.
//!
//! ```text
//! offset size field      (little endian)
//!      0    4 magic      "AIKP"
//!      4    2 version    1
//!      6    1 operation  see `Operation`
//!      7    1 reserved   0
//!      8    2 key_len    at most 255
//!     10    2 fd_count   descriptors attached, at most 64
//!     12    4 value_len  at most 16384
//!     16      key, then value, nothing behind them
//! ```
//!
//! The daemon asks (`Hello`, `Put`, `Delete`, `DeletePrefix`, `List`), one request at a time; the keeper answers
//! `Ack` or `Refused` (its value says why), and `List` with one `Entry` per match in key order and then `End`.
//! An unknown version is refused, never guessed at.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr};

/// First bytes of every message.
pub const MAGIC: [u8; 4] = *b"AIKP";
/// The format described above.
pub const VERSION: u16 = 1;
/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 255;
/// Longest value in bytes: a vhost-user message fits with room to spare.
pub const VALUE_BYTES_MAX: usize = 16 * 1024;
/// Most descriptors of one entry.
pub const FDS_MAX: usize = 64;
/// Most entries of one disk, whose keys begin with the same word before a slash: what one guest does is none of the
/// others' business. A daemon keeps what it accepted: 128 regions, as many removed ones of a table, six messages for each
/// of 64 queues, and about ten more.
pub const DISK_ENTRIES_MAX: usize = 768;
/// Most descriptors of one disk: a table's 32 regions, 128 that were added, three for each of 64 queues, and five more.
pub const DISK_FDS_MAX: usize = 384;
const HEADER_BYTES: usize = 16;
/// Longest datagram.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX;

/// Why the keeper's socket could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The socket failed.
    #[error("the keeper's socket failed: {0}")]
    Io(#[from] io::Error),
    /// A message is not what this format says.
    #[error("malformed keeper message: {0}")]
    Corrupt(&'static str),
    /// The other side speaks another version.
    #[error("the keeper speaks version {0}, this program version {VERSION}: restart `afterimage keep` with the same version")]
    Version(u16),
    /// A message whose descriptors this process has no room for. The connection is as good as before.
    #[error("no room for the descriptors of a message: raise the limit of open files (RLIMIT_NOFILE)")]
    Descriptors,
    /// The keeper said no.
    #[error("the keeper refused: {0}")]
    Refused(String),
    /// The other side is gone.
    #[error("the keeper is gone")]
    Closed,
}

/// What a message asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Are you there, and do you speak this version?
    Hello = 1,
    /// Store value and descriptors under the key, replacing what was there.
    Put = 2,
    /// Forget the key; a key that is not there is no error.
    Delete = 3,
    /// Forget every key that starts with this one.
    DeletePrefix = 4,
    /// Send every entry whose key starts with this one.
    List = 5,
    /// Done.
    Ack = 128,
    /// One entry of a list.
    Entry = 129,
    /// The list is complete.
    End = 130,
    /// Not done; the value says why.
    Refused = 131,
}

impl Operation {
    fn from_code(code: u8) -> Option<Self> {
        [
            Self::Hello,
            Self::Put,
            Self::Delete,
            Self::DeletePrefix,
            Self::List,
            Self::Ack,
            Self::Entry,
            Self::End,
            Self::Refused,
        ]
        .into_iter()
        .find(|operation| *operation as u8 == code)
    }
}

/// A message without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What is asked or answered.
    pub operation: Operation,
    /// UTF-8 by construction on our side, bytes to the keeper.
    pub key: Vec<u8>,
    /// Opaque to the keeper.
    pub value: Vec<u8>,
}

/// One stored thing.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// Its bytes.
    pub value: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

/// Encodes a message that will carry `fd_count` descriptors.
///
/// # Errors
/// `Corrupt` where a part is longer than the format allows.
pub fn encode(message: &Message, fd_count: usize) -> Result<Vec<u8>, KeepError> {
    if message.key.len() > KEY_BYTES_MAX {
        return Err(KeepError::Corrupt("the key is too long"));
    }
    if message.value.len() > VALUE_BYTES_MAX {
        return Err(KeepError::Corrupt("the value is too long"));
    }
    if fd_count > FDS_MAX {
        return Err(KeepError::Corrupt("too many descriptors"));
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + message.key.len() + message.value.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[message.operation as u8, 0]);
    bytes.extend_from_slice(&(message.key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(fd_count as u16).to_le_bytes());
    bytes.extend_from_slice(&(message.value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&message.key);
    bytes.extend_from_slice(&message.value);
    Ok(bytes)
}

/// Decodes one datagram that arrived with `fd_count` descriptors.
///
/// # Errors
/// `Version` for another version, `Corrupt` for everything else that the format does not allow.
pub fn decode(bytes: &[u8], fd_count: usize) -> Result<Message, KeepError> {
    let header: &[u8; HEADER_BYTES] =
        bytes.first_chunk().ok_or(KeepError::Corrupt("shorter than its header"))?;
    if header[..4] != MAGIC {
        return Err(KeepError::Corrupt("the magic is wrong"));
    }
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if u16_at(4) != VERSION {
        return Err(KeepError::Version(u16_at(4)));
    }
    if header[7] != 0 {
        return Err(KeepError::Corrupt("a reserved byte is set"));
    }
    let operation = Operation::from_code(header[6]).ok_or(KeepError::Corrupt("unknown operation"))?;
    let key_len = usize::from(u16_at(8));
    let value_len = u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize;
    if key_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
        return Err(KeepError::Corrupt("key or value is too long"));
    }
    if usize::from(u16_at(10)) != fd_count || fd_count > FDS_MAX {
        return Err(KeepError::Corrupt("the number of descriptors is wrong"));
    }
    if bytes.len() != HEADER_BYTES + key_len + value_len {
        return Err(KeepError::Corrupt("the lengths do not add up"));
    }
    let (key, value) = bytes[HEADER_BYTES..].split_at(key_len);
    Ok(Message { operation, key: key.to_vec(), value: value.to_vec() })
}

/// Sends one message with its descriptors.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &Message,
    fds: &[BorrowedFd<'_>],
) -> Result<(), KeepError> {
    let bytes = encode(message, fds.len())?;
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    loop {
        let iov = [io::IoSlice::new(&bytes)];
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EPIPE | nix::Error::ECONNRESET) => return Err(KeepError::Closed),
            Err(e) => return Err(KeepError::Io(e.into())),
        }
    }
}

/// Receives one message with its descriptors.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<(Message, Vec<OwnedFd>), KeepError> {
    let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
    let mut control = cmsg_space!([std::os::fd::RawFd; FDS_MAX]);
    let (len, fds, flags) = loop {
        let mut iov = [io::IoSliceMut::new(&mut bytes)];
        let received =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC);
        match received {
            Ok(message) => {
                let mut fds = Vec::new();
                for control in message.cmsgs().map_err(io::Error::from)? {
                    if let ControlMessageOwned::ScmRights(raw) = control {
                        fds.extend(raw.into_iter().map(own));
                    }
                }
                break (message.bytes, fds, message.flags);
            }
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::ECONNRESET) => return Err(KeepError::Closed),
            Err(e) => return Err(KeepError::Io(e.into())),
        }
    };
    if len == 0 {
        return Err(KeepError::Closed);
    }
    if flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(KeepError::Corrupt("the message was cut off"));
    }
    if flags.contains(MsgFlags::MSG_CTRUNC) {
        return Err(KeepError::Descriptors);
    }
    Ok((decode(&bytes[..len], fds.len())?, fds))
}

#[allow(unsafe_code)]
pub(crate) fn own(raw: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: `recvmsg` has just installed this descriptor for us; nobody else knows its number.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Borrows all of `fds`.
pub(crate) fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_golden_bytes_of_a_put() {
        let message = Message { operation: Operation::Put, key: b"vda/k".to_vec(), value: vec![7, 8] };
        let bytes = encode(&message, 3).unwrap();
        assert_eq!(bytes, b"AIKP\x01\x00\x02\x00\x05\x00\x03\x00\x02\x00\x00\x00vda/k\x07\x08");
        assert_eq!(decode(&bytes, 3).unwrap(), message);
        assert!(matches!(decode(&bytes, 2), Err(KeepError::Corrupt(_))));
        assert!(matches!(decode(&bytes[..22], 3), Err(KeepError::Corrupt(_))));
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(matches!(decode(&other, 3), Err(KeepError::Version(9))));
    }

    proptest! {
        #[test]
        fn whatever_decodes_encodes_to_itself(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), fds in 0usize..4) {
            if bytes.len() >= 16 {
                bytes[..6].copy_from_slice(b"AIKP\x01\x00");
                bytes[7] = 0;
                bytes[9] = 0;
                bytes[10..12].copy_from_slice(&(fds as u16).to_le_bytes());
                bytes[13..16].fill(0);
            }
            if let Ok(message) = decode(&bytes, fds) {
                prop_assert_eq!(encode(&message, fds).unwrap(), bytes);
            }
        }
    }
}
