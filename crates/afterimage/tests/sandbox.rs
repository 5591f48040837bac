//! The sandbox from inside. A program of its own without a test harness: the restrictions are for ever and for the
//! whole process, and must be put on while there is one thread.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use afterimage::sandbox::{restrict_calls, restrict_files, FileNeeds};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("inside") {
        let folder = args.next().expect("a folder");
        return inside(Path::new(&folder));
    }
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["image", "log/x", "arena/a", "sockets/s", "secret"] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, "data").expect("a file");
    }
    let status = Command::new(std::env::current_exe().expect("this program"))
        .arg("inside")
        .arg(dir.path())
        .status()
        .expect("a child");
    println!("sandbox from inside: {status}");
    ExitCode::from(u8::from(!status.success()))
}

fn inside(folder: &Path) -> ExitCode {
    let open_before = fs::File::open(folder.join("secret")).expect("open before");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound before");
    let needs = FileNeeds {
        files: vec![folder.join("image")],
        log_folders: vec![folder.join("log")],
        arena_folders: vec![folder.join("arena")],
        socket_folders: vec![folder.join("sockets")],
    };
    match restrict_files(&needs) {
        Err(why) => println!("landlock is not tested here: {why}"),
        Ok(state) => {
            println!("landlock: {state}");
            check(
                "an image is opened",
                fs::OpenOptions::new().write(true).open(folder.join("image")).is_ok(),
            );
            check("a log comes", fs::write(folder.join("log/new"), "x").is_ok());
            check("a log is renamed", fs::rename(folder.join("log/new"), folder.join("log/y")).is_ok());
            check("a log goes", fs::remove_file(folder.join("log/y")).is_ok());
            check("no file is made beside arenas", fs::write(folder.join("arena/new"), "x").is_err());
            check("an arena goes", fs::remove_file(folder.join("arena/a")).is_ok());
            check("a socket file goes", fs::remove_file(folder.join("sockets/s")).is_ok());
            check("what was open stays open", std::io::read_to_string(&open_before).is_ok());
            check("another file is not read", fs::read(folder.join("secret")).is_err());
            check("another file is not removed", fs::remove_file(folder.join("secret")).is_err());
            check("no file is made beside sockets", fs::write(folder.join("sockets/new"), "x").is_err());
            check("the passwords are not read", fs::read("/etc/passwd").is_err());
            if state == "full" {
                let address = listener.local_addr().expect("an address");
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
    match restrict_calls() {
        Err(why) => println!("seccomp is not tested here: {why}"),
        Ok(_) => {
            println!("seccomp: on");
            ask.send(()).expect("the thread waits");
            check("an older thread cannot make a socket", thread.join().expect("the thread"));
            check("no program is run", Command::new("/bin/true").status().is_err());
            check(
                "no socket is made",
                std::os::unix::net::UnixStream::connect("/nowhere")
                    .is_err_and(|e| e.raw_os_error() == Some(nix::libc::ENOSYS)),
            );
            let child = std::thread::Builder::new().spawn(|| 7);
            check("a thread is made", child.is_ok_and(|t| t.join().is_ok_and(|n| n == 7)));
            check(
                "memory is had",
                vec![1u8; 64 << 20].iter().map(|b| u64::from(*b)).sum::<u64>() == 64 << 20,
            );
            check(
                "no signal goes out",
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(1), None) == Err(nix::errno::Errno::ENOSYS),
            );
        }
    }
    ExitCode::SUCCESS
}

#[track_caller]
fn check(what: &str, holds: bool) {
    assert!(holds, "it does not hold that {what}");
}
