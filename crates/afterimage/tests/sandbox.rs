//! The sandbox from inside. A program of its own without a test harness: the restrictions are for ever and for the
//! whole process, and must be put on while there is one thread.
//!
//! Every way out is tried twice: by a process that is free, which must get out (the canary), and by one that has locked
//! itself in as the daemon does, which must not.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use afterimage::sandbox::{restrict_calls, restrict_files, FileNeeds};
use afterimage_block::{Disk, Lane};
use afterimage_store::{ImageStore, OpenOptions};
use io_uring::{opcode, IoUring};
use nix::libc::{self, c_int, c_long};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, role, folder, victim] = args.as_slice() {
        let free = role == "free";
        let way = Way::prepare(Path::new(folder), victim.parse().expect("a process number"));
        if free {
            return tried(&way, true);
        }
        return inside(way);
    }
    let dir = tempfile::tempdir().expect("a folder");
    for name in [
        "image",
        "log/x",
        "arenas/afterimage-00000000-0000-4000-8000-000000000001/arena",
        "arenas/afterimage-00000000-0000-4000-8000-000000000001/gone",
        "arenas/afterimage-00000000-0000-4000-8000-000000000002/arena",
        "sockets/s",
        "secret",
    ] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, [b'x'; 4096]).expect("a file");
    }
    let _control = UnixListener::bind(dir.path().join("control")).expect("a socket");
    let mut victim = Victim(Command::new("sleep").arg("600").spawn().expect("a process"));
    let mut good = true;
    for role in ["free", "inside"] {
        let status = Command::new(std::env::current_exe().expect("this program"))
            .arg(role)
            .arg(dir.path())
            .arg(victim.0.id().to_string())
            .status()
            .expect("a child");
        println!("sandbox, {role}: {status}");
        good &= status.success();
    }
    good &= victim.0.try_wait().is_ok_and(|ended| ended.is_none());
    ExitCode::from(u8::from(!good))
}

/// A process that has done nothing.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What is there before the sandbox closes, as it is in a daemon.
struct Way {
    folder: PathBuf,
    victim: c_int,
    open_before: File,
    listener: std::net::TcpListener,
    /// A lane of an image, and its ring as an intruder would drive it.
    _lane: Box<dyn Lane>,
    lane_ring: IoUring,
    /// One that nobody restricted.
    free_ring: IoUring,
}

impl Way {
    fn prepare(folder: &Path, victim: c_int) -> Self {
        let image =
            ImageStore::open(&OpenOptions { any_content: true, ..OpenOptions::new(folder.join("image")) })
                .expect("an image");
        let before = rings();
        let lane = image.open_lane().expect("a lane");
        let made: Vec<RawFd> = rings().into_iter().filter(|fd| !before.contains(fd)).collect();
        let [lane_fd] = made[..] else { panic!("io_uring is needed here: a lane has the rings {made:?}") };
        // Of the same size, so that its parts lie in the same places.
        let free_ring: IoUring = IoUring::builder().setup_cqsize(4096).build(256).expect("a ring");
        // SAFETY: a copy of a ring's descriptor that is ours alone; the parameters are those of a ring of its size.
        let lane_ring = unsafe { IoUring::from_fd(libc::dup(lane_fd), free_ring.params().clone()) };
        Self {
            folder: folder.to_owned(),
            victim,
            open_before: File::open(folder.join("secret")).expect("open before"),
            listener: std::net::TcpListener::bind("127.0.0.1:0").expect("bound before"),
            _lane: lane,
            lane_ring: lane_ring.expect("the lane's ring"),
            free_ring,
        }
    }
}

/// The rings that this process has.
fn rings() -> Vec<RawFd> {
    let open = fs::read_dir("/proc/self/fd").expect("open files").flatten();
    let rings =
        open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|l| l.as_os_str() == "anon_inode:[io_uring]"));
    rings.map(|fd| fd.file_name().to_str().and_then(|n| n.parse().ok()).expect("a number")).collect()
}

/// What a system call answered, as an error number.
fn call(answer: c_long) -> Result<(), c_int> {
    if answer < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(())
}

fn ring_socket(ring: &IoUring) -> Result<(), c_int> {
    let entry = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).build();
    // SAFETY: the entry points to nothing, and nobody else drives this ring.
    unsafe {
        ring.submission_shared().push(&entry).expect("room");
        ring.submit_and_wait(1).map_err(|e| e.raw_os_error().unwrap_or(0))?;
        let answer = ring.completion_shared().next().expect("an answer").result();
        if answer < 0 {
            Err(-answer)
        } else {
            Ok(())
        }
    }
}

type Escape = (&'static str, fn(&Way) -> Result<(), c_int>, &'static [c_int]);

/// Ways out: what each is, how it is tried, and what a free process may be told besides success.
fn escapes() -> Vec<Escape> {
    macro_rules! try_call {
        ($number:expr $(, $argument:expr)*) => {
            // SAFETY: numbers, null pointers, and constants that live for ever.
            call(unsafe { libc::syscall($number $(, $argument)*) })
        };
    }
    vec![
        ("a Unix socket", |_| try_call!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0), &[]),
        ("a UDP socket", |_| try_call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0), &[]),
        ("a netlink socket", |_| try_call!(libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0), &[]),
        (
            "datagram sockets",
            |_| {
                let mut pair = [0 as c_int; 2];
                try_call!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr())
            },
            &[],
        ),
        (
            "a connection to a control socket",
            |way| {
                UnixStream::connect(way.folder.join("control"))
                    .map(drop)
                    .map_err(|e| e.raw_os_error().unwrap_or(0))
            },
            &[],
        ),
        (
            "a ring",
            |_| {
                let mut parameters = [0u64; 15];
                try_call!(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr())
            },
            &[],
        ),
        (
            "a registration with a ring",
            |way| {
                // IORING_REGISTER_EVENTFD would take a descriptor; unregistering what is not there changes nothing.
                // IORING_UNREGISTER_FILES; what a doorbell registers, its eventfd, is the one thing allowed.
                try_call!(libc::SYS_io_uring_register, way.free_ring.as_raw_fd(), 3, 0, 0)
            },
            &[libc::ENXIO],
        ),
        ("a program", |_| run("/bin/true"), &[]),
        (
            "a keystroke for a terminal",
            |way| try_call!(libc::SYS_ioctl, way.listener.as_raw_fd(), libc::TIOCSTI, c"x".as_ptr()),
            &[libc::ENOTTY, libc::EIO, libc::EINVAL],
        ),
        (
            "a command to a device",
            |way| {
                let on: c_int = 0;
                try_call!(libc::SYS_ioctl, way.listener.as_raw_fd(), libc::FIOASYNC, &raw const on)
            },
            &[],
        ),
        (
            "signals for somebody else",
            |way| try_call!(libc::SYS_fcntl, way.listener.as_raw_fd(), libc::F_SETOWN, 0),
            &[],
        ),
        ("a process's properties", |_| try_call!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0), &[]),
        (
            "another process's limits",
            |way| {
                let mut limit = [0u64; 2];
                try_call!(libc::SYS_prlimit64, way.victim, libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr())
            },
            &[],
        ),
        (
            "own limits",
            |_| {
                let mut limit = [0u64; 2];
                try_call!(libc::SYS_prlimit64, 0, libc::RLIMIT_CORE, 0, limit.as_mut_ptr())?;
                try_call!(libc::SYS_prlimit64, 0, libc::RLIMIT_CORE, limit.as_ptr(), 0)
            },
            &[],
        ),
        (
            "a look into another process",
            |way| try_call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, way.victim, 0, 0),
            &[libc::EPERM],
        ),
        (
            "another process's memory",
            |way| try_call!(libc::SYS_process_vm_readv, way.victim, 0, 0, 0, 0, 0),
            &[libc::EPERM],
        ),
        ("a signal to another process", |way| try_call!(libc::SYS_kill, way.victim, 0), &[]),
        ("a signal to another thread", |way| try_call!(libc::SYS_tgkill, way.victim, way.victim, 0), &[]),
        ("a handle on another process", |way| try_call!(libc::SYS_pidfd_open, way.victim, 0), &[]),
        ("another name space", |_| try_call!(libc::SYS_unshare, libc::CLONE_NEWNS), &[libc::EPERM]),
        (
            "executable memory",
            |_| {
                let (rwx, private) =
                    (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                try_call!(libc::SYS_mmap, 0, 4096, rwx, private, -1, 0)
            },
            &[],
        ),
    ]
}

fn run(program: &str) -> Result<(), c_int> {
    Command::new(program).status().map(drop).map_err(|e| e.raw_os_error().unwrap_or(0))
}

/// Tries all ways out.
fn tried(way: &Way, free: bool) -> ExitCode {
    for (what, escape, also) in escapes() {
        let outcome = escape(way);
        if free {
            let got_out = outcome.is_ok() || outcome.is_err_and(|e| also.contains(&e));
            assert!(got_out, "the canary: a free process gets {what}, not {outcome:?}");
        } else {
            assert_eq!(outcome, Err(libc::ENOSYS), "inside there is no {what}");
        }
    }
    // What a ring does passes no filter, hence its own restrictions, free or not.
    assert_eq!(ring_socket(&way.free_ring), Ok(()), "the canary: a ring makes sockets, also inside");
    assert_eq!(ring_socket(&way.lane_ring), Err(libc::EACCES), "the ring of a lane does not");
    ExitCode::SUCCESS
}

fn inside(way: Way) -> ExitCode {
    let folder = way.folder.as_path();
    let needs = FileNeeds {
        files: vec![folder.join("image")],
        log_folders: vec![folder.join("log")],
        arenas: vec![folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000001/arena")],
        socket_folders: vec![folder.join("sockets")],
    };
    // Looked at before anything is locked.
    let missing = !fs::read_to_string("/proc/self/status").is_ok_and(|s| s.contains("Seccomp:"));
    assert!(!missing, "a kernel without seccomp");
    match restrict_files(&needs) {
        // The one reason that is the machine's.
        Err(why) if why == "not in this kernel" || why == "switched off in this kernel" => {
            afterimage_testing::skip(format!("landlock is {why}"));
        }
        Err(why) => panic!("the sandbox cannot be set up: {why}"),
        Ok(state) => {
            println!("landlock: {state}");
            check(
                "an image is opened",
                fs::OpenOptions::new().write(true).open(folder.join("image")).is_ok(),
            );
            check("a log comes", fs::write(folder.join("log/new"), "x").is_ok());
            check("a log is renamed", fs::rename(folder.join("log/new"), folder.join("log/y")).is_ok());
            check("a log goes", fs::remove_file(folder.join("log/y")).is_ok());
            check(
                "no file is made beside arenas",
                fs::write(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000001/new"), "x")
                    .is_err(),
            );
            check(
                "another's arena is not read",
                fs::read(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000002/arena"))
                    .is_err(),
            );
            check(
                "another's arena stays",
                fs::remove_file(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000002/arena"))
                    .is_err(),
            );
            check(
                "another's folder stays",
                fs::remove_dir(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000002"))
                    .is_err(),
            );
            check(
                "an arena is opened",
                fs::read(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000001/arena")).is_ok(),
            );
            check(
                "an arena goes",
                fs::remove_file(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000001/arena"))
                    .is_ok(),
            );
            check(
                "and what was beside it",
                fs::remove_file(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000001/gone"))
                    .is_ok(),
            );
            check(
                "with its folder",
                fs::remove_dir(folder.join("arenas/afterimage-00000000-0000-4000-8000-000000000001")).is_ok(),
            );
            check("a socket file goes", fs::remove_file(folder.join("sockets/s")).is_ok());
            check("what was open stays open", std::io::read_to_string(&way.open_before).is_ok());
            check("another file is not read", fs::read(folder.join("secret")).is_err());
            check("another file is not removed", fs::remove_file(folder.join("secret")).is_err());
            check("no file is made beside sockets", fs::write(folder.join("sockets/new"), "x").is_err());
            check("the passwords are not read", fs::read("/etc/passwd").is_err());
            check("nor by another way", fs::read("/proc/self/root/etc/passwd").is_err());
            check(
                "own memory is not written",
                fs::OpenOptions::new().write(true).open("/proc/self/mem").is_err(),
            );
            if state == "full" {
                let address = way.listener.local_addr().expect("an address");
                check("no connection goes out", std::net::TcpStream::connect(address).is_err());
                check("no port is opened", std::net::TcpListener::bind("127.0.0.1:0").is_err());
            }
        }
    }
    // A thread from before the filter is inside as well.
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        asked.recv().expect("asked");
        std::os::unix::net::UnixDatagram::unbound().is_err()
    });
    if let Err(why) = restrict_calls() {
        panic!("the sandbox cannot be set up: {why}");
    }
    ask.send(()).expect("the thread waits");
    check("an older thread cannot make a socket", thread.join().expect("the thread"));
    let child = std::thread::Builder::new().name("new".to_owned()).spawn(|| 7);
    check("a thread is made", child.is_ok_and(|t| t.join().is_ok_and(|n| n == 7)));
    check("memory is had", vec![1u8; 64 << 20].iter().map(|b| u64::from(*b)).sum::<u64>() == 64 << 20);
    let pair = UnixStream::pair();
    check("two ends of a stream are made", pair.is_ok_and(|(a, _b)| a.set_nonblocking(true).is_ok()));
    tried(&way, false)
}

#[track_caller]
fn check(what: &str, holds: bool) {
    assert!(holds, "it does not hold that {what}");
}
