//! Kick, call and err descriptors: doorbells.
//!
//! They are the peer's, and so is what they stand for: it may set or clear O_NONBLOCK on the shared description at any
//! instant, fill an eventfd's counter, or hand over a file whose server never answers (FUSE), on which even `fstat`,
//! `poll` and `close` wait. So a doorbell is an eventfd or a Unix socket and nothing else, which is found out without
//! touching it, and no call here relies on the description's flags:
//!
//! ```text
//!           eventfd                                          Unix socket (User Mode Linux's call descriptor)
//! read      preadv2 with RWF_NOWAIT                          never: kicks are eventfds
//! ring      by the kernel, for an empty request of a Ringer    send with MSG_DONTWAIT
//! ```
//!
//! Reading a socket can wait for whoever reads it as well: the kernel holds a lock of the socket, for which no signal ends the wait,
//! while it copies into that one's memory, which may be a page of a file whose server never answers.
//!
//! There is no write to an eventfd that a flag keeps from waiting: O_NONBLOCK can go between a look and the write. But
//! an io_uring rings the eventfd that is registered with it whenever it completes something, and the kernel's own way of
//! ringing (`eventfd_signal`) cannot wait: a full counter stays full, which is as rung as can be.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{opcode, IoUring};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::{preadv2, Errno, ReadWriteFlags};
use rustix::net::sockopt::socket_domain;
use rustix::net::{send, AddressFamily, SendFlags};

/// `IORING_REGISTER_EVENTFD` and its opposite (linux/io_uring.h): all that a ringer may register.
const REGISTER_EVENTFD: u8 = 4;
const UNREGISTER_EVENTFD: u8 = 5;
/// How often a request is submitted again where the kernel is short of memory for the moment.
const SUBMIT_TRIES: u32 = 1000;

/// A descriptor that cannot be a doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a descriptor that is neither an eventfd nor a Unix socket")]
pub(crate) struct NotADoorbell;

/// A ring whose only use is that its completions ring an eventfd. Made before the process is sandboxed; it can complete
/// empty requests and change its eventfd, and nothing else.
pub(crate) struct Ringer {
    ring: IoUring,
    hung: bool,
}

impl Ringer {
    /// # Errors
    /// The kernel makes no io_uring.
    pub fn new() -> io::Result<Self> {
        let ring: IoUring = IoUring::builder().setup_r_disabled().build(1)?;
        ring.submitter().register_restrictions(&mut [
            Restriction::register_op(REGISTER_EVENTFD),
            Restriction::register_op(UNREGISTER_EVENTFD),
            Restriction::sqe_op(opcode::Nop::CODE),
        ])?;
        ring.submitter().register_enable_rings()?;
        Ok(Self { ring, hung: false })
    }

    /// Rings this eventfd from now on. The ring keeps a reference to the counter: the descriptor itself may be closed.
    fn hang(&mut self, fd: BorrowedFd<'_>) -> Result<(), NotADoorbell> {
        self.take_down();
        self.ring.submitter().register_eventfd(fd.as_raw_fd()).map_err(|_| NotADoorbell)?;
        self.hung = true;
        Ok(())
    }

    fn take_down(&mut self) {
        if std::mem::take(&mut self.hung) {
            let _ = self.ring.submitter().unregister_eventfd();
        }
    }

    fn ring(&mut self) {
        // SAFETY: an empty request points to no memory. Where there is no room, an earlier one waits to be submitted.
        let _ = unsafe { self.ring.submission().push(&opcode::Nop::new().build()) };
        for _ in 0..SUBMIT_TRIES {
            if self.ring.submit().is_ok() {
                break;
            }
            std::thread::yield_now();
        }
        self.ring.completion().for_each(drop);
    }

    /// What a descriptor is, found out without doing anything to it that could wait.
    fn kind(&mut self, fd: BorrowedFd<'_>) -> Result<Kind, NotADoorbell> {
        match socket_domain(fd) {
            Ok(AddressFamily::UNIX) => Ok(Kind::Socket),
            Err(Errno::NOTSOCK) => {
                self.hang(fd)?;
                self.take_down();
                Ok(Kind::Eventfd)
            }
            _ => Err(NotADoorbell),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Eventfd,
    Socket,
}

/// A descriptor of which it is known what it is.
#[derive(Debug)]
pub(crate) struct Doorbell {
    fd: OwnedFd,
    kind: Kind,
}

impl Doorbell {
    /// # Errors
    /// It is none.
    pub fn new(fd: OwnedFd, ringer: &mut Ringer) -> Result<Self, NotADoorbell> {
        let kind = ringer.kind(fd.as_fd())?;
        Ok(Self { fd, kind })
    }

    /// Whether it can be read without waiting for anybody: as a kick has to be.
    pub fn can_be_cleared(&self) -> bool {
        self.kind == Kind::Eventfd
    }

    /// Takes the notification back, so that waiting for readability waits for a new one. Returns whether there was one.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        let mut target = [io::IoSliceMut::new(&mut count)];
        self.can_be_cleared()
            && matches!(preadv2(&self.fd, &mut target, u64::MAX, ReadWriteFlags::NOWAIT), Ok(n) if n > 0)
    }

    /// Notifies the driver once, with somebody's ringer.
    pub fn ring(&self, ringer: &mut Ringer) {
        match self.kind {
            Kind::Socket => ring_socket(&self.fd),
            Kind::Eventfd => {
                if ringer.hang(self.fd.as_fd()).is_ok() {
                    ringer.ring();
                    ringer.take_down();
                }
            }
        }
    }

    /// Whether waiting for it would not wait now.
    pub fn is_ready(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(1))
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn ring_socket(fd: &OwnedFd) {
    // A full buffer holds a notification already.
    let _ = send(fd, &1u64.to_ne_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Where the device notifies the driver of one queue, again and again: the call descriptor, if there is one.
pub(crate) struct Call {
    ringer: Ringer,
    socket: Option<OwnedFd>,
}

impl Call {
    /// # Errors
    /// The kernel makes no io_uring.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ringer: Ringer::new()?, socket: None })
    }

    /// Puts another descriptor, or none, in the place of the one there was.
    pub fn set(&mut self, doorbell: Option<Doorbell>) -> Result<(), NotADoorbell> {
        self.ringer.take_down();
        self.socket = None;
        match doorbell {
            None => {}
            Some(Doorbell { fd, kind: Kind::Socket }) => self.socket = Some(fd),
            Some(Doorbell { fd, kind: Kind::Eventfd }) => {
                // Nothing here needs it, but drivers exist that read theirs without a look, as QEMU makes its own and
                // qemu-storage-daemon its peers' non-blocking.
                let _ = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
                self.ringer.hang(fd.as_fd())?;
            }
        }
        Ok(())
    }

    /// Notifies the driver, without ever waiting. Returns whether there is a descriptor for it.
    pub fn notify(&mut self) -> bool {
        match &self.socket {
            Some(socket) => ring_socket(socket),
            None if self.ringer.hung => self.ringer.ring(),
            None => return false,
        }
        true
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
    use rustix::event::{eventfd, EventfdFlags};
    use rustix::io::{read, write};
    use std::os::unix::net::UnixStream;

    fn blocking_eventfd() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_kick_is_seen_once_on_a_blocking_eventfd_and_none_on_a_socket() {
        let mut ringer = Ringer::new().unwrap();
        let fd = blocking_eventfd();
        let kick = Doorbell::new(fd.try_clone().unwrap(), &mut ringer).unwrap();
        assert!(!kick.clear());
        write(&fd, &3u64.to_ne_bytes()).unwrap();
        assert!(kick.clear());
        assert!(!kick.clear());
        let (near, far) = UnixStream::pair().unwrap();
        let kick = Doorbell::new(near.into(), &mut ringer).unwrap();
        assert!(!kick.clear());
        write(&far, &[1; 8]).unwrap();
        assert!(!kick.can_be_cleared() && !kick.clear());
    }

    #[test]
    fn a_call_arrives_once_each_and_never_waits_for_a_full_descriptor() {
        let mut ringer = Ringer::new().unwrap();
        let mut call = Call::new().unwrap();
        assert!(!call.notify());
        let fd = blocking_eventfd();
        call.set(Some(Doorbell::new(fd.try_clone().unwrap(), &mut ringer).unwrap())).unwrap();
        let mut count = [0; 8];
        for notifications in 1..5u64 {
            (0..notifications).for_each(|_| assert!(call.notify()));
            assert!(fcntl_getfl(&fd).unwrap().contains(OFlags::NONBLOCK));
            read(&fd, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), notifications);
        }
        write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..3).for_each(|_| assert!(call.notify()));
        let err = Doorbell::new(fd.try_clone().unwrap(), &mut ringer).unwrap();
        err.ring(&mut ringer);
        read(&fd, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), u64::MAX, "full, and not reset");
        err.ring(&mut ringer);
        read(&fd, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        let (near, _far) = UnixStream::pair().unwrap();
        call.set(Some(Doorbell::new(near.into(), &mut ringer).unwrap())).unwrap();
        (0..100_000).for_each(|_| assert!(call.notify()));
        call.set(None).unwrap();
        assert!(!call.notify());
    }

    #[test]
    fn a_ringer_can_do_nothing_else() {
        let mut ringer = Ringer::new().unwrap();
        let fd = blocking_eventfd();
        assert!(ringer.ring.submitter().register_files(&[fd.as_raw_fd()]).is_err());
        let entry = opcode::Close::new(io_uring::types::Fd(fd.as_raw_fd())).build();
        // SAFETY: closing points to no memory, and is refused.
        unsafe { ringer.ring.submission().push(&entry).unwrap() };
        let _ = ringer.ring.submit();
        drop(ringer);
        write(&fd, &1u64.to_ne_bytes()).expect("still open");
    }
}
