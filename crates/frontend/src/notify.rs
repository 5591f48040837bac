//! Kick and call descriptors.
//!
//! They are the peer's: mostly eventfds, but User Mode Linux's call descriptor is one end of a blocking stream
//! socketpair, and a peer may set or clear O_NONBLOCK on the shared description at any time. So nothing here relies on
//! that flag for reads, which are asked not to wait for this call only (RWF_NOWAIT, MSG_DONTWAIT), as are writes to
//! sockets. There is no such flag for writing to an eventfd, so a call eventfd is made non-blocking as QEMU makes its own
//! and qemu-storage-daemon its peer's; where that is refused, its room is looked at before each write.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_getfl, fcntl_setfl, fstat, FileType, OFlags};
use rustix::io::{preadv2, read, write, Errno, ReadWriteFlags};
use rustix::net::{recv, send, RecvFlags, SendFlags};

/// Our own wake-up: an eventfd that any thread may set.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn set(&self) {
        // Fails only where the counter is full, which is as set as can be.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn clear(&self) {
        let _ = read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn is_socket(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Socket)
}

/// The descriptor by which the driver says that something is available.
#[derive(Debug)]
pub(crate) struct Kick {
    fd: OwnedFd,
    socket: bool,
}

impl Kick {
    pub fn new(fd: OwnedFd) -> Self {
        let socket = is_socket(&fd);
        Self { fd, socket }
    }

    /// Takes the notification back, so that waiting for readability waits for a new one. Returns whether there was one.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        let result = if self.socket {
            recv(&self.fd, &mut count[..], RecvFlags::DONTWAIT).map(|(n, _)| n)
        } else {
            let mut target = [io::IoSliceMut::new(&mut count)];
            match preadv2(&self.fd, &mut target, u64::MAX, ReadWriteFlags::NOWAIT) {
                // Kernels and descriptor kinds without RWF_NOWAIT: look first.
                Err(Errno::OPNOTSUPP) if ready(&self.fd, PollFlags::IN) => read(&self.fd, &mut count),
                other => other,
            }
        };
        matches!(result, Ok(n) if n > 0)
    }
}

impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn ready(fd: &OwnedFd, wanted: PollFlags) -> bool {
    let mut polled = [PollFd::new(fd, wanted)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut polled, Some(&now)), Ok(1)) && polled[0].revents().contains(wanted)
}

/// A descriptor by which the device notifies the driver: `call` and `err`.
#[derive(Debug)]
pub(crate) struct Call {
    fd: OwnedFd,
    socket: bool,
    may_block: bool,
}

impl Call {
    pub fn new(fd: OwnedFd) -> Self {
        let socket = is_socket(&fd);
        let may_block =
            !socket && fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK)).is_err();
        Self { fd, socket, may_block }
    }

    /// Notifies the driver, without ever waiting: a full counter or socket buffer already holds a notification.
    pub fn notify(&self) {
        let one = 1u64.to_ne_bytes();
        let _ = if self.socket {
            send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        } else if !self.may_block || ready(&self.fd, PollFlags::OUT) {
            rustix::io::writev(&self.fd, &[IoSlice::new(&one)])
        } else {
            Ok(0)
        };
    }
}

/// `poll(2)` for readability with a deadline, telling which descriptors are readable or closed.
pub(crate) fn poll_readable<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    let mut found = polled.iter().map(|p| !p.revents().is_empty());
    Ok(fds.map(|fd| fd.is_some() && found.next().unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_kick_is_seen_once_on_a_blocking_eventfd_and_on_a_socket() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let kick = Kick::new(fd.try_clone().unwrap());
        assert!(!kick.clear());
        write(&fd, &3u64.to_ne_bytes()).unwrap();
        assert!(kick.clear());
        assert!(!kick.clear());
        let (near, far) = UnixStream::pair().unwrap();
        let kick = Kick::new(near.into());
        assert!(!kick.clear());
        write(&far, &[1; 8]).unwrap();
        assert!(kick.clear());
        assert!(!kick.clear());
    }

    #[test]
    fn a_call_never_waits_for_a_full_descriptor() {
        let (_read_end, write_end) = rustix::pipe::pipe().unwrap();
        let pipe = Call::new(write_end);
        (0..100_000).for_each(|_| pipe.notify());
        let (near, _far) = UnixStream::pair().unwrap();
        let call = Call::new(near.into());
        (0..100_000).for_each(|_| call.notify());
        let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        Call::new(full.try_clone().unwrap()).notify();
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Call::new(fd.try_clone().unwrap()).notify();
        let mut count = [0; 8];
        read(&fd, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}
