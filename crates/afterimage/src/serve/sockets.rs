//! Unix sockets to listen on: a path in use by a living process is refused, what a dead one left is replaced.
//!
//! A socket file says nothing about its owner, so it is probed with a connection. A process that is just dying may
//! still accept one: the probe then sees it hang up and asks again. Daemons that do so in one folder take turns, so that none
//! replaces what another one has just made.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use afterimage_compose::folder_of;
use afterimage_frontend::Endpoint;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::fs::{flock, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::Failure;

/// Longest path of a Unix socket: `sun_path` has 108 bytes with its terminator (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How long a socket that accepts a probe is given to turn out dying.
const DYING_WAIT: Duration = Duration::from_millis(300);
/// How long others may take at a folder's names, each a few times `DYING_WAIT` at most.
const TURN_WAIT: Duration = Duration::from_secs(5);
const TURN_POLL: Duration = Duration::from_millis(5);

/// Device, inode and time of creation: inode numbers are used again.
type Identity = (u64, u64, i64, i64);

fn identity(file: &std::fs::Metadata) -> Identity {
    // Binding sets the modification time, and nothing changes a socket file's "content" afterwards.
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())
}

/// A listening socket file that is removed again, if it is still the same file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// `None` where the file is left to somebody else.
    identity: Option<Identity>,
}

impl SocketFile {
    /// Where it stands.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tells it from others for as long as its socket lives, which keeps the inode.
    pub fn to_bytes(&self) -> Vec<u8> {
        let file = self.identity.map(|(device, inode, ..)| (device, inode));
        serde_json::to_vec(&file).unwrap_or_default()
    }

    /// Takes responsibility for a socket file that an earlier daemon made. `made` is what that one called it, if it said.
    ///
    /// # Errors
    /// It stands there no more: what has become of it.
    pub fn adopt(path: &Path, made: Option<&[u8]>) -> Result<Self, &'static str> {
        let found = std::fs::symlink_metadata(path).map_err(|_| "is gone")?;
        let made: Option<(u64, u64)> = made.and_then(|bytes| serde_json::from_slice(bytes).ok());
        let same = made.is_none_or(|made| made == (found.dev(), found.ino()));
        if !found.file_type().is_socket() || !same {
            return Err("is another one's now");
        }
        Ok(Self { path: path.to_owned(), identity: Some(identity(&found)) })
    }

    /// Leaves the file to a successor.
    pub fn leave(mut self) {
        self.identity = None;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let same = std::fs::symlink_metadata(&self.path).is_ok_and(|m| Some(identity(&m)) == self.identity);
        if same {
            if let Err(error) = std::fs::remove_file(&self.path) {
                tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket file");
            }
        }
    }
}

/// Checks that a socket can stand at `path`, for `what`.
///
/// # Errors
/// It is too long.
pub fn check_path(path: &Path, what: &str) -> Result<(), Failure> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        return Err(Failure::usage(format!(
            "the path of {what}, {}, has {length} bytes, and a Unix socket's at most {SOCKET_PATH_BYTES_MAX}: \
             choose a shorter one",
            path.display()
        )));
    }
    Ok(())
}

/// Listens on `path` for `what` (`the control socket`, `disk a.img`). `private` gives it mode 0600.
///
/// # Errors
/// Somebody listens there, or something else stands there.
pub fn listen(path: &Path, what: &str, private: bool) -> Result<(UnixListener, SocketFile), Failure> {
    check_path(path, what)?;
    // Until it listens: before that it would be as good as stale to another one.
    let _turn = take_turn(path);
    clear_stale(path, what)?;
    // The mode must be right from the first instant; no other thread runs yet that could create files meanwhile.
    let mask = private.then(|| rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177)));
    let bound = UnixListener::bind(path);
    if let Some(mask) = mask {
        rustix::process::umask(mask);
    }
    let listener = bound.map_err(|e| {
        Failure::failed(format!(
            "cannot listen on {} for {what}: {e}; check that its folder exists and is writable",
            path.display()
        ))
    })?;
    let made = std::fs::symlink_metadata(path)
        .map_err(|e| Failure::failed(format!("cannot look at the new socket {}: {e}", path.display())))?;
    Ok((listener, SocketFile { path: path.to_owned(), identity: Some(identity(&made)) }))
}

/// The lock of the folder of `path`, among daemons that make sockets there. One that cannot be had keeps nobody from serving: the
/// folder may not be this user's to read, and a stranger who may could hold it for ever.
fn take_turn(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder_of(path), flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + TURN_WAIT;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(TURN_POLL)
            }
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "the socket's folder cannot be locked");
                return None;
            }
        }
    }
}

/// Removes a socket file whose process is gone; refuses anything else.
fn clear_stale(path: &Path, what: &str) -> Result<(), Failure> {
    let found = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Failure::failed(format!("cannot look at {} for {what}: {e}", path.display()))),
        Ok(found) => found,
    };
    if !found.file_type().is_socket() {
        return Err(Failure::failed(format!(
            "{} exists and is not a socket: choose another path for {what}",
            path.display()
        )));
    }
    let deadline = Instant::now() + DYING_WAIT;
    loop {
        match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => break,
            // A full backlog has a living owner.
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
                return Err(Failure::failed(format!(
                    "cannot find out whether {} is in use: {e}; choose another path for {what}",
                    path.display()
                )));
            }
            Err(_) => return Err(in_use(path, what, None)),
            Ok(probe) => {
                let owner = getsockopt(&probe, sockopt::PeerCredentials).ok().map(|c| c.pid());
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() || !hangs_up_within(&probe, left) {
                    return Err(in_use(path, what, owner));
                }
            }
        }
    }
    std::fs::remove_file(path).map_err(|e| {
        Failure::failed(format!("cannot replace the stale socket {} for {what}: {e}", path.display()))
    })
}

fn in_use(path: &Path, what: &str, owner: Option<i32>) -> Failure {
    let owner = owner.filter(|pid| *pid > 0).map_or(String::new(), |pid| format!(" by process {pid}"));
    Failure::failed(format!(
        "the socket {} is in use{owner}: stop that process or choose another path for {what}",
        path.display()
    ))
}

fn hangs_up_within(probe: &UnixStream, wait: Duration) -> bool {
    // Whatever the peer says is of no interest, only whether it goes away.
    afterimage_block::wait_readable(&[probe.as_fd()], Some(wait)).is_ok()
        && rustix::net::recv(
            probe,
            &mut [0u8; 1],
            rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT,
        )
        .is_ok_and(|(n, _)| n == 0)
}

/// Descriptors that mean something else in any program.
const STANDARD_STREAMS: std::ops::RangeInclusive<RawFd> = 0..=2;

/// Takes over an inherited descriptor: a listening or a connected Unix stream socket.
///
/// # Errors
/// It is none.
pub fn inherited(fd: RawFd) -> Result<Endpoint, Failure> {
    if STANDARD_STREAMS.contains(&fd) {
        return Err(Failure::usage(format!(
            "--fd {fd}: descriptors 0 to 2 are the standard streams; pass the socket under another number"
        )));
    }
    let owned = take_fd(fd).ok_or_else(|| {
        Failure::usage(format!(
            "--fd {fd}: this descriptor is not open; pass a Unix socket to the program under this number"
        ))
    })?;
    let is_stream =
        getsockopt(&owned, sockopt::SockType).is_ok_and(|t| t == nix::sys::socket::SockType::Stream);
    let is_unix = rustix::net::getsockname(&owned)
        .is_ok_and(|a| a.address_family() == rustix::net::AddressFamily::UNIX);
    if !is_stream || !is_unix {
        return Err(Failure::usage(format!("--fd {fd}: this descriptor is not a Unix stream socket")));
    }
    let listening = getsockopt(&owned, sockopt::AcceptConn)
        .map_err(|e| Failure::failed(format!("cannot ask descriptor {fd} whether it listens: {e}")))?;
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| Failure::failed(format!("cannot take over descriptor {fd}: {e}")))?;
    Ok(if listening { Endpoint::Listen(owned.into()) } else { Endpoint::Connected(owned.into()) })
}

/// Takes ownership of a descriptor that this process inherited, if it is open.
#[allow(unsafe_code)]
pub fn take_fd(fd: RawFd) -> Option<OwnedFd> {
    if fd < 0 || STANDARD_STREAMS.contains(&fd) {
        return None;
    }
    // SAFETY: the borrow ends with this statement and is only used to ask the kernel about the number; a closed
    // number gives EBADF, nothing else.
    let open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
    // SAFETY: the number was passed in by our parent for exactly this use and is above the standard streams; start-up
    // takes each number once (`Settings::check` refuses repetitions) and before this process opened anything that
    // could have got the same number: an inherited number was occupied since exec.
    open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_sockets_are_replaced_and_living_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, file) = listen(&path, "a test", true).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = listen(&path, "another", false).unwrap_err().to_string();
        assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
        drop(listener);
        // The first one's file is stale now; its guard must not remove the successor's.
        let (_listener, second) = listen(&path, "another", false).unwrap();
        drop(file);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_is_adopted_where_it_is_still_the_one_that_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, first) = listen(&path, "a test", false).unwrap();
        let made = first.to_bytes();
        first.leave();
        SocketFile::adopt(&path, Some(&made)).unwrap().leave();
        SocketFile::adopt(&path, None).unwrap().leave();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(SocketFile::adopt(&path, Some(&made)).unwrap_err(), "is gone");
        let (_other, file) = listen(&path, "another", false).unwrap();
        assert_eq!(SocketFile::adopt(&path, Some(&made)).unwrap_err(), "is another one's now");
        assert!(path.exists());
        drop((listener, file));
    }

    /// Between the look at a stale file and its end, and between a socket's name and its ear, another one may come.
    #[test]
    fn of_two_that_replace_a_stale_socket_one_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for _ in 0..10 {
            drop(UnixListener::bind(&path).unwrap());
            let both = std::thread::scope(|scope| {
                let listens = || scope.spawn(|| listen(&path, "a test", false));
                [listens(), listens()].map(|thread| thread.join().unwrap())
            });
            assert_eq!(both.iter().filter(|listens| listens.is_ok()).count(), 1, "{both:?}");
            assert!(UnixStream::connect(&path).is_ok(), "{both:?}");
            drop(both);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_standard_stream_is_no_socket_to_take_over() {
        for fd in 0..3 {
            let error = inherited(fd).unwrap_err();
            assert!(matches!(&error, Failure::Usage(said) if said.contains("standard streams")), "{error}");
        }
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let error = listen(&path, "a test", false).unwrap_err().to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn long_paths_are_usage_errors() {
        let path = PathBuf::from(format!("/{}", "x".repeat(107)));
        assert!(matches!(check_path(&path, "a test"), Err(Failure::Usage(_))));
        assert!(check_path(Path::new(&path.to_str().unwrap()[..107]), "a test").is_ok());
    }
}
