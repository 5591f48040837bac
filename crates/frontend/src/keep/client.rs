//! The daemon's side of the keeper.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::wire::{self, Entry, KeepError, Message, Operation, FDS_MAX, VALUE_BYTES_MAX};
use super::CONNECTION;

/// How long a keeper may take to answer before it is given up.
const ANSWER_S: u64 = 10;

/// A daemon's connection to its keeper, shared by all its disks. Every put and delete is acknowledged.
#[derive(Clone, Debug)]
pub struct KeepHandle {
    socket: Arc<Mutex<Asked>>,
}

#[derive(Debug)]
struct Asked {
    socket: OwnedFd,
    /// An answer may be on its way that nobody waited for: whoever asks next would take it for his own.
    out_of_step: bool,
}

impl Asked {
    /// Asks, and reads answers as long as `read` wants more.
    fn ask(
        &mut self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
        mut read: impl FnMut(Message, Vec<OwnedFd>) -> Result<bool, KeepError>,
    ) -> Result<(), KeepError> {
        if self.out_of_step {
            return Err(KeepError::Closed);
        }
        self.out_of_step = true;
        wire::send(self.socket.as_fd(), message, fds)?;
        loop {
            let (answer, fds) = wire::receive(self.socket.as_fd())?;
            if answer.operation == Operation::Refused {
                self.out_of_step = false;
                return Err(KeepError::Refused(String::from_utf8_lossy(&answer.value).into()));
            }
            if !read(answer, fds)? {
                self.out_of_step = false;
                return Ok(());
            }
        }
    }
}

impl KeepHandle {
    /// Takes the inherited socket and asks whether a keeper of this version is there.
    ///
    /// # Errors
    /// Nobody answers, or in another version.
    pub fn connect(socket: OwnedFd) -> Result<Self, KeepError> {
        use parking_lot::Mutex;
        use rustix::net::sockopt::{set_socket_timeout, Timeout};
        let limit = Some(Duration::from_secs(ANSWER_S));
        set_socket_timeout(&socket, Timeout::Recv, limit).map_err(std::io::Error::from)?;
        set_socket_timeout(&socket, Timeout::Send, limit).map_err(std::io::Error::from)?;
        let handle = Self { socket: Arc::new(Mutex::new(Asked { socket, out_of_step: false })) };
        handle.ask(Operation::Hello, "", Vec::new(), &[])?;
        Ok(handle)
    }

    /// Stores `value` and duplicates of `fds` under `key`, replacing what was there.
    ///
    /// # Errors
    /// The value or its descriptors are more than an entry holds, or the keeper refuses, is gone, or does not answer.
    pub fn put(&self, key: &str, value: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), KeepError> {
        if value.len() > VALUE_BYTES_MAX || fds.len() > FDS_MAX {
            return Err(KeepError::Corrupt("the value or its list of descriptors is too long to keep"));
        }
        self.ask(Operation::Put, key, value.to_vec(), fds)
    }

    /// Forgets `key`.
    ///
    /// # Errors
    /// The keeper refuses, is gone, or does not answer.
    pub fn delete(&self, key: &str) -> Result<(), KeepError> {
        self.ask(Operation::Delete, key, Vec::new(), &[])
    }

    /// Forgets every key that starts with `prefix`.
    ///
    /// # Errors
    /// As [`KeepHandle::delete`].
    pub fn delete_prefix(&self, prefix: &str) -> Result<(), KeepError> {
        self.ask(Operation::DeletePrefix, prefix, Vec::new(), &[])
    }

    /// Everything whose key starts with `prefix`, in key order.
    ///
    /// # Errors
    /// As [`KeepHandle::delete`], or what it answers is corrupt.
    pub fn list(&self, prefix: &str) -> Result<Vec<Entry>, KeepError> {
        let mut entries = Vec::new();
        let list = message(Operation::List, prefix, Vec::new());
        self.socket.lock().ask(&list, &[], |answer, fds| match answer.operation {
            Operation::Entry => {
                let key =
                    String::from_utf8(answer.key).map_err(|_| KeepError::Corrupt("a key is not UTF-8"))?;
                entries.push(Entry { key, value: answer.value, fds });
                Ok(true)
            }
            Operation::End => Ok(false),
            _ => Err(KeepError::Corrupt("an answer that was not asked for")),
        })?;
        Ok(entries)
    }

    /// The listening socket that an earlier daemon served `disk` on, if one is kept.
    ///
    /// # Errors
    /// As [`KeepHandle::list`].
    pub fn listener(&self, disk: &str) -> Result<Option<UnixListener>, KeepError> {
        Ok(self.first_fd(&format!("{disk}/listener"))?.map(UnixListener::from))
    }

    /// Keeps the listening socket of `disk`.
    ///
    /// # Errors
    /// As [`KeepHandle::put`].
    pub fn keep_listener(&self, disk: &str, listener: &UnixListener) -> Result<(), KeepError> {
        self.put(&format!("{disk}/listener"), &[], &[listener.as_fd()])
    }

    /// The connected socket of `disk`'s guest, if one is kept.
    ///
    /// # Errors
    /// As [`KeepHandle::list`].
    pub fn connection(&self, disk: &str) -> Result<Option<UnixStream>, KeepError> {
        Ok(self.first_fd(&format!("{disk}{CONNECTION}"))?.map(UnixStream::from))
    }

    /// What an earlier daemon said with `disk`'s connection ([`crate::ServeOptions::shown`]).
    ///
    /// # Errors
    /// As [`KeepHandle::list`].
    pub fn shown(&self, disk: &str) -> Result<Option<Vec<u8>>, KeepError> {
        let key = format!("{disk}/session/shown");
        Ok(self.list(&key)?.into_iter().find(|entry| entry.key == key).map(|entry| entry.value))
    }

    /// The disks of which a guest's connection is kept.
    ///
    /// # Errors
    /// As [`KeepHandle::list`].
    pub fn connected(&self) -> Result<Vec<String>, KeepError> {
        let all = self.list("")?;
        Ok(all.iter().filter_map(|entry| entry.key.strip_suffix(CONNECTION)).map(str::to_owned).collect())
    }

    fn first_fd(&self, key: &str) -> Result<Option<OwnedFd>, KeepError> {
        Ok(self.list(key)?.into_iter().find(|entry| entry.key == key).and_then(|mut e| e.fds.pop()))
    }

    fn ask(
        &self,
        operation: Operation,
        key: &str,
        value: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), KeepError> {
        self.socket.lock().ask(&message(operation, key, value), fds, |answer, _| match answer.operation {
            Operation::Ack => Ok(false),
            _ => Err(KeepError::Corrupt("an answer that was not asked for")),
        })
    }
}

fn message(operation: Operation, key: &str, value: Vec<u8>) -> Message {
    Message { operation, key: key.as_bytes().to_vec(), value }
}

#[cfg(test)]
mod tests {
    use super::super::{Handled, Keeper};
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
    use std::io::{Read, Write};

    #[test]
    fn a_second_daemon_finds_what_the_first_put() {
        let mut keeper = Keeper::new();
        let (mut guest, daemon_end) = UnixStream::pair().unwrap();
        for generation in 0..2 {
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            let daemon_end = daemon_end.try_clone().unwrap();
            let daemon = std::thread::spawn(move || {
                let keep = KeepHandle::connect(theirs).unwrap();
                if generation == 0 {
                    assert!(keep.connection("vda").unwrap().is_none());
                    keep.put("vda/session/socket", b"", &[daemon_end.as_fd()]).unwrap();
                    keep.put("vda/session/x", b"one", &[]).unwrap();
                    keep.put("vda/session/x", b"two", &[]).unwrap();
                    keep.put("vdb/y", b"", &[]).unwrap();
                    keep.delete_prefix("vdb").unwrap();
                } else {
                    let found = keep.list("vda/session/").unwrap();
                    assert_eq!(found.len(), 2);
                    assert_eq!(found[1].value, b"two");
                    keep.connection("vda").unwrap().unwrap().write_all(b"hello").unwrap();
                }
            });
            keeper.serve(ours.as_fd()).unwrap();
            daemon.join().unwrap();
        }
        drop(daemon_end);
        let mut hello = [0; 5];
        guest.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        assert_eq!(keeper.len(), 2);
    }

    /// An answer that comes when nobody waits any more is nobody's.
    #[test]
    fn who_asks_after_an_answer_that_was_late_gets_none_of_another_one() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut keeper = Keeper::new();
        std::thread::scope(|scope| {
            let keep = scope.spawn(|| KeepHandle::connect(theirs).unwrap());
            keeper.handle(ours.as_fd()).unwrap();
            let keep = keep.join().unwrap();
            let limit = Some(Duration::from_millis(20));
            rustix::net::sockopt::set_socket_timeout(
                &keep.socket.lock().socket,
                rustix::net::sockopt::Timeout::Recv,
                limit,
            )
            .unwrap();
            assert!(matches!(keep.put("a", b"", &[]), Err(KeepError::Io(_))));
            keeper.handle(ours.as_fd()).unwrap();
            assert!(matches!(keep.put("b", b"", &[]), Err(KeepError::Closed)));
        });
        assert_eq!(keeper.len(), 1);
    }

    #[test]
    fn garbage_is_refused_and_changes_nothing() {
        let mut keeper = Keeper::new();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::io::write(&theirs, b"not a message at all").unwrap();
        assert!(keeper.handle(ours.as_fd()).is_err());
        assert!(keeper.is_empty());
        drop(theirs);
        assert_eq!(keeper.handle(ours.as_fd()).unwrap(), Handled::Closed);
    }
}
