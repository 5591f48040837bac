//! The servers under test, as processes of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(20);

/// How long an image may stay locked after its server has ended.
const LOCKED: Duration = Duration::from_secs(5);

/// How a server is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `afterimage serve`.
    Program {
        /// Its path.
        program: PathBuf,
        /// What `--survives` says.
        survives: String,
        /// `--journal retain`.
        retain: bool,
    },
    /// This program's own `server` command: frontend and store, and nothing between them.
    Bare,
    /// qemu-storage-daemon.
    Qemu {
        /// `threads`, `native` or `io_uring`.
        aio: &'static str,
        /// O_DIRECT.
        direct: bool,
        /// A thread of its own for the export, which polls before it sleeps.
        iothread: bool,
    },
}

impl Kind {
    /// `afterimage serve` of this program, with what `--survives` says.
    pub fn program(program: &Path, survives: &str) -> Self {
        Self::Program { program: program.to_owned(), survives: survives.to_owned(), retain: false }
    }

    /// Every way of running qemu-storage-daemon on a file; `buffered` allows those through the page cache.
    pub fn all_of_qemu(buffered: bool) -> Vec<Self> {
        let mut all = Vec::new();
        for iothread in [false, true] {
            for (aio, direct) in [
                ("threads", true),
                ("native", true),
                ("io_uring", true),
                ("threads", false),
                ("io_uring", false),
            ] {
                if direct || buffered {
                    all.push(Self::Qemu { aio, direct, iothread });
                }
            }
        }
        all
    }

    /// A short name.
    pub fn name(&self) -> String {
        match self {
            Self::Program { survives, retain, .. } => {
                format!("afterimage {survives}{}", if *retain { ", retain" } else { "" })
            }
            Self::Bare => "frontend + store".into(),
            Self::Qemu { aio, direct, iothread } => format!(
                "{aio}{}{}",
                if *direct { ", direct" } else { "" },
                if *iothread { ", iothread" } else { "" }
            ),
        }
    }

    fn command(&self, image: &Path, socket: &Path, queues: usize) -> io::Result<Command> {
        let (image, socket) = (image.display(), socket.display());
        Ok(match self {
            Self::Program { program, survives, retain } => {
                let mut command = ends_with_us(program);
                command.arg("serve").args(["--disk", &format!("{image},socket={socket}")]).args([
                    "--survives",
                    survives,
                    "--queues",
                    &queues.to_string(),
                ]);
                if *retain {
                    command.args(["--journal", "retain"]);
                }
                command
            }
            Self::Bare => {
                let mut command = ends_with_us(&std::env::current_exe()?);
                command.args(["server", &image.to_string(), &socket.to_string(), &queues.to_string()]);
                command
            }
            Self::Qemu { aio, direct, iothread } => {
                let mut command = ends_with_us(Path::new("qemu-storage-daemon"));
                let direct = if *direct { "on" } else { "off" };
                command.args(["--blockdev", &format!(
                    "driver=file,node-name=disk,filename={image},aio={aio},cache.direct={direct},discard=unmap"
                )]);
                let mut export = format!(
                    "type=vhost-user-blk,id=export,node-name=disk,writable=on,num-queues={queues},addr.type=unix,addr.path={socket}"
                );
                if *iothread {
                    command.args(["--object", "iothread,id=thread"]);
                    export.push_str(",iothread=thread");
                }
                command.args(["--export", &export]);
                command
            }
        })
    }
}

/// A running server.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub socket: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts a server and waits until it listens. The image may have been another server's a moment ago, whose lock the
    /// kernel has still to give back.
    pub fn start(kind: &Kind, image: &Path, scratch: &Path, name: &str, queues: usize) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            match Self::start_once(kind, image, scratch, name, queues) {
                Err(e) if e.to_string().contains("lock") && start.elapsed() < LOCKED => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                other => return other,
            }
        }
    }

    fn start_once(kind: &Kind, image: &Path, scratch: &Path, name: &str, queues: usize) -> io::Result<Self> {
        let socket = scratch.join(format!("{name}.sock"));
        let log = scratch.join(format!("{name}.log"));
        let _ = fs::remove_file(&socket);
        let output = fs::File::create(&log)?;
        let child = kind
            .command(image, &socket, queues)?
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("starting {}: {e}", kind.name())))?;
        let mut server = Self { child, socket, log };
        let start = Instant::now();
        while !server.socket.exists() {
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "{} ended with {status}: {}",
                    kind.name(),
                    server.said()
                )));
            }
            if start.elapsed() > START {
                return Err(io::Error::other(format!("{} does not listen: {}", kind.name(), server.said())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// CPU time that the process has used, all its threads and the kernel's workers on its behalf.
    pub fn cpu(&self) -> io::Result<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        let mut nanoseconds = 0;
        for task in tasks.flatten() {
            // "time on the CPU in ns, time waiting, slices"; a worker may have ended between listing and reading.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            nanoseconds += text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that is killed when this process dies, however it dies: nothing is left behind after Ctrl-C. It keeps its
/// process number, since `setpriv` becomes it.
fn ends_with_us(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}
