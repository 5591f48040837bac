//! Whether a connection's other end still lives: asked at an orderly end, and when somebody else wants its place.
//!
//! ```text
//! hung up? ──yes──► gone
//!    └no─► the process that connected: is it dying? ──no──► lives (stopped with SIGSTOP as well)
//!                                      └yes, or unknown─► wait for the hangup ──► gone │ still open: lives
//! ```
//!
//! The socket is the truth: it hangs up when the last process that holds its other end is gone. But a process that was
//! killed closes its files only after its memory was taken down, which takes a VMM with much memory long. `kill`
//! marks it before it returns, though, and the kernel tells: `process_mrelease` refuses (EINVAL) every process that is
//! not already bound to end, and takes nothing from it. For one that is, it takes the private memory down ahead, which
//! hastens the hangup. That a process of that name connected does not mean that it alone holds the socket (a VMM may
//! have been handed it), so a dying process is a reason to wait, not an answer.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// How long a hangup is waited for where nobody can tell whether the process is dying: a kernel before 5.15 or 6.5, or
/// a sandbox in between.
const UNKNOWN_WAIT: Duration = Duration::from_millis(200);

/// What is known of the process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Lives,
    /// It is bound to end, or has ended.
    Dying,
    Unknown,
}

/// Whether the other end lives. Waits for one that is dying, for no longer than `patience`.
pub(crate) fn lives(socket: &UnixStream, patience: Duration) -> bool {
    if hung_up(socket, Duration::ZERO) {
        return false;
    }
    match process(socket) {
        Process::Lives => true,
        Process::Dying => !hung_up(socket, patience),
        Process::Unknown => !hung_up(socket, UNKNOWN_WAIT.min(patience)),
    }
}

/// Whether the process that connected is bound to end, or has ended, whoever else holds the connection.
pub(crate) fn is_dying(socket: &UnixStream) -> bool {
    process(socket) == Process::Dying
}

/// Whether the other end is closed, or is closed while we wait.
fn hung_up(socket: &UnixStream, wait: Duration) -> bool {
    let deadline = Instant::now() + wait;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
        match poll(&mut polled, Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return false,
            Ok(_) => return true,
        }
    }
}

fn process(socket: &UnixStream) -> Process {
    let Ok(process) = process_of(socket) else { return Process::Unknown };
    // SAFETY: two integers, a descriptor that is open until the call returns and flags; no memory of ours is reached.
    let released = unsafe { libc::syscall(libc::SYS_process_mrelease, process.as_raw_fd(), 0) };
    if released == 0 {
        return Process::Dying;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL) => Process::Lives,
        // Without memory already, or gone; or interrupted while its memory was taken down.
        Some(libc::ESRCH | libc::EAGAIN | libc::EINTR) => Process::Dying,
        _ => Process::Unknown,
    }
}

/// The process that made the other end (SO_PEERPIDFD, Linux 6.5).
fn process_of(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` and `bytes` live through the call, and `bytes` says how much of `fd` may be written.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut bytes,
        )
    };
    if got != 0 || fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_end_of_a_living_process_lives_and_a_closed_one_does_not() {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(lives(&near, Duration::from_secs(60)));
        drop(far);
        assert!(!lives(&near, Duration::ZERO));
    }

    #[test]
    fn what_was_said_before_the_end_does_not_hide_it() {
        let (near, mut far) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut far, b"a last message").unwrap();
        assert!(lives(&near, Duration::ZERO));
        drop(far);
        assert!(!lives(&near, Duration::ZERO));
    }
}
