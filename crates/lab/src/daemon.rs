//! The daemons under test, as processes: ours, and the peers it is measured against.
//!
//! ```text
//!   Daemon::serve      afterimage serve [under afterimage keep]   image (and redo log) on any file system
//!   Daemon::peer       qemu-storage-daemon, write-back or no-flush, same export type
//!   Nested             an ext4 in a file on the slow file system, loop-mounted: where a peer's image lies when
//!                      the host's journal is to cost what it costs
//! ```
//!
//! The outcomes of [`Daemon::kill`]: everything whose completion the guest has seen is in a file's page cache
//! or in memory that outlives the process; requests in flight are resubmitted by the next one.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use afterimage_protocol::status::{DiskStatus, FileSystemStatus, StatusAnswer};
use rustix::process::{kill_process, Pid, Signal};
use serde::Deserialize as _;
use serde_json::{json, Value};

use crate::ask::ask;
use crate::error::{Context, LabError, Result};
use crate::locate;
use crate::process::{quote, run, Cleanup, Group, Workdir};

/// How long a daemon may take to start or to answer. Replaying a full log from a modelled disk takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to start `afterimage serve`.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The images: one group, in this order.
    pub images: Vec<PathBuf>,
    /// `power`, `power-window=50ms`, `guest-crash`.
    pub survives: String,
    /// Queues per disk.
    pub queues: u16,
    /// The redo log's bound, as the command line has it.
    pub log_max: Option<String>,
    /// Under `afterimage keep --restart`, so that User Mode Linux survives the daemon's death.
    pub keep: bool,
    /// With a control disk: its socket comes behind the images'.
    pub control_disk: bool,
    /// More options, as the command line has them.
    pub extra: Vec<String>,
}

impl ServeOptions {
    /// One image, one queue.
    pub fn new(survives: &str, images: &[PathBuf]) -> ServeOptions {
        ServeOptions {
            images: images.to_vec(),
            survives: survives.to_owned(),
            queues: 1,
            log_max: None,
            keep: false,
            control_disk: false,
            extra: Vec::new(),
        }
    }
}

/// How to start qemu-storage-daemon.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// The image.
    pub image: PathBuf,
    /// `cache.no-flush`: QEMU's `cache=unsafe`.
    pub no_flush: bool,
    /// `cache.direct`: O_DIRECT.
    pub direct: bool,
    /// `threads`, `native` (needs `direct`) or `io_uring`.
    pub aio: String,
    /// Queues.
    pub queues: u16,
}

impl PeerOptions {
    /// QEMU's `cache=writeback` with threads.
    pub fn writeback(image: &Path) -> PeerOptions {
        PeerOptions {
            image: image.to_path_buf(),
            no_flush: false,
            direct: false,
            aio: "threads".to_owned(),
            queues: 1,
        }
    }

    /// QEMU's `cache=unsafe` with threads.
    pub fn no_flush(image: &Path) -> PeerOptions {
        PeerOptions { no_flush: true, ..PeerOptions::writeback(image) }
    }
}

/// A daemon and its sockets.
#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    ready: Ready,
    process: Group,
    sockets: Vec<PathBuf>,
    keep: bool,
    // Declared last: the sockets' folder goes after the process.
    folder: Workdir,
}

/// A pause, for as long as it lives: see [`Daemon::hold`].
#[derive(Debug)]
pub struct Hold {
    _connection: UnixStream,
}

/// How we know that it serves.
#[derive(Clone, Debug)]
enum Ready {
    /// It answers on its control socket.
    Control(PathBuf),
    /// It has written its process id.
    PidFile(PathBuf),
}

impl Daemon {
    /// Starts `afterimage serve`; returns when it serves.
    ///
    /// # Errors
    /// It would not start; its own words are in the error.
    pub fn serve(options: &ServeOptions) -> Result<Daemon> {
        let folder = Workdir::new("serve")?;
        let control = folder.join("control");
        let socket = |index| folder.join(format!("disk{index}.sock"));
        let mut sockets: Vec<PathBuf> = (0..options.images.len()).map(socket).collect();
        sockets.extend(options.control_disk.then(|| folder.join("control-disk.sock")));
        let arguments = arguments(options, &sockets, &control);
        let program = locate::product()?;
        Daemon::start(
            "afterimage",
            program,
            arguments,
            Ready::Control(control),
            sockets,
            folder,
            options.keep,
        )
    }

    /// Starts qemu-storage-daemon. Its export shows guests a write-through cache: [`crate::guest::GuestBuilder`]
    /// switches that to write-back before the script runs, or no flush would ever be sent.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    pub fn peer(options: &PeerOptions) -> Result<Daemon> {
        let folder = Workdir::new("peer")?;
        let socket = folder.join("disk0.sock");
        let pid_file = folder.join("pid");
        let on = |yes: bool| if yes { "on" } else { "off" };
        let arguments = vec![
            "--blockdev".to_owned(),
            format!(
                "driver=file,node-name=disk,filename={},aio={},cache.direct={},cache.no-flush={},discard=unmap",
                options.image.display().to_string().replace(',', ",,"),
                options.aio,
                on(options.direct),
                on(options.no_flush),
            ),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},writable=on,num-queues={}",
                socket.display(),
                options.queues
            ),
            "--pidfile".to_owned(),
            pid_file.display().to_string(),
        ];
        let program = locate::system_program("qemu-storage-daemon", "qemu-system-common")?;
        let ready = Ready::PidFile(pid_file);
        Daemon::start("qemu-storage-daemon", program, arguments, ready, vec![socket], folder, false)
    }

    fn start(
        name: &'static str,
        program: PathBuf,
        arguments: Vec<String>,
        ready: Ready,
        sockets: Vec<PathBuf>,
        folder: Workdir,
        keep: bool,
    ) -> Result<Daemon> {
        let process = spawn(name, &program, &arguments, &folder)?;
        let mut daemon = Daemon { name, program, arguments, ready, process, sockets, keep, folder };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let is_ready = match &self.ready {
                Ready::Control(_) => self.request(&json!({ "command": "status" })).is_ok(),
                Ready::PidFile(path) => fs::metadata(path).is_ok_and(|m| m.len() > 0),
            };
            if is_ready {
                // What cannot be read will not get better by waiting.
                return if self.control_socket().is_some() { self.status().map(drop) } else { Ok(()) };
            }
            if let Some(status) = self.process.try_status() {
                return Err(LabError::Peer(format!(
                    "{} would not start ({status}): {}",
                    self.name,
                    self.log().trim()
                )));
            }
            if Instant::now() >= end {
                return Err(LabError::Deadline {
                    what: format!("the start of {}", self.name),
                    limit: PATIENCE,
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The sockets, in the images' order.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// The only socket.
    pub fn socket(&self) -> &Path {
        self.sockets.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// The control socket (ours only).
    pub fn control_socket(&self) -> Option<&Path> {
        match &self.ready {
            Ready::Control(path) => Some(path),
            Ready::PidFile(_) => None,
        }
    }

    /// What it has written to standard output and error, over all its lives.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("log")).unwrap_or_default()).into_owned()
    }

    /// The process id: `keep`'s, if there is one.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// One request on the control socket.
    ///
    /// # Errors
    /// Nobody answers, or it refuses.
    pub fn request(&self, request: &Value) -> Result<Value> {
        self.exchange(request).map(|(_, answer)| answer)
    }

    fn exchange(&self, request: &Value) -> Result<(UnixStream, Value)> {
        let Ready::Control(path) = &self.ready else {
            return Err(LabError::Peer(format!("{} has no control socket", self.name)));
        };
        ask(path, "the daemon", request)
    }

    /// Its status.
    ///
    /// # Errors
    /// As [`Daemon::request`]; or it says more or less than this version's daemon.
    pub fn status(&self) -> Result<StatusAnswer> {
        let answer = self.request(&json!({ "command": "status" }))?;
        StatusAnswer::deserialize(&answer).map_err(|error| {
            LabError::Peer(format!("the daemon's status can not be read ({error}): {answer}"))
        })
    }

    /// What it says of its first disk.
    ///
    /// # Errors
    /// As [`Daemon::status`]; or it has none.
    pub fn disk(&self) -> Result<DiskStatus> {
        let first = self.status()?.disks.into_iter().next();
        first.ok_or_else(|| LabError::Peer("the daemon's status names no disk".to_owned()))
    }

    /// What it says of the first file system on its first disk, if it has found one.
    ///
    /// # Errors
    /// As [`Daemon::disk`].
    pub fn file_system(&self) -> Result<Option<FileSystemStatus>> {
        Ok(self.disk()?.file_systems.into_iter().next())
    }

    /// Kills it with SIGKILL. Under `keep` only `serve` dies: `keep` holds the sockets and starts the next one,
    /// for which [`Daemon::restart`] waits.
    ///
    /// # Errors
    /// Under `keep`: the daemon does not say which process it is.
    pub fn kill(&mut self) -> Result<()> {
        if !self.keep {
            self.process.kill();
            return Ok(());
        }
        let pid = self.serving_pid()?;
        kill_process(pid, Signal::KILL).context(|| "kill the daemon under keep".to_owned())?;
        let gone = Instant::now() + PATIENCE;
        // Until somebody else, or nobody, answers: its last words must not be taken for the next one's.
        while self.serving_pid().is_ok_and(|now| now == pid) && Instant::now() < gone {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn serving_pid(&self) -> Result<Pid> {
        let pid = Pid::from_raw(self.status()?.pid as i32);
        pid.ok_or_else(|| LabError::Peer("the daemon's status names no process".to_owned()))
    }

    /// Tells a daemon under `keep` to hand over to a fresh one; returns when that one serves.
    ///
    /// # Errors
    /// It does not happen within a minute.
    pub fn hand_over(&mut self) -> Result<()> {
        let before = self.serving_pid()?;
        self.process.signal(Signal::HUP);
        let end = Instant::now() + PATIENCE;
        while self.serving_pid().map_or(true, |now| now == before) {
            if Instant::now() >= end {
                return Err(LabError::Deadline { what: "the hand-over".to_owned(), limit: PATIENCE });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.wait_ready()
    }

    /// Ends it in order, whoever is attached; [`Daemon::restart`] starts it again.
    ///
    /// # Errors
    /// It failed, or did not end in time.
    pub fn end(&mut self) -> Result<()> {
        let status = self.process.terminate(PATIENCE)?;
        if status.success() {
            return Ok(());
        }
        Err(LabError::Peer(format!("{} ended with {status}: {}", self.name, self.log().trim())))
    }

    /// Makes its process stand still, or go on.
    ///
    /// # Errors
    /// It does not say which process it is.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.keep {
            let pid = self.serving_pid()?;
            return kill_process(pid, signal).context(|| "signal the daemon under keep".to_owned());
        }
        self.process.signal(signal);
        Ok(())
    }

    /// Holds the guest's writes back and makes the image complete, until the connection is dropped.
    ///
    /// # Errors
    /// As [`Daemon::request`].
    pub fn hold(&self) -> Result<Hold> {
        let (connection, _) = self.exchange(&json!({ "command": "pause" }))?;
        Ok(Hold { _connection: connection })
    }

    /// Starts it again after [`Daemon::kill`], with the same sockets; returns when it serves.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    pub fn restart(&mut self) -> Result<()> {
        if !self.keep {
            if let Ready::PidFile(path) = &self.ready {
                // Left by the one that was killed; it must not pass for the new one's.
                let _ = fs::remove_file(path);
                for socket in &self.sockets {
                    let _ = fs::remove_file(socket);
                }
            }
            self.process = spawn(self.name, &self.program, &self.arguments, &self.folder)?;
        }
        self.wait_ready()
    }

    /// Starts the next one with other options for the same images, on the same sockets, after [`Daemon::kill`] or
    /// [`Daemon::end`]; not under `keep`, which knows the first options only.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    pub fn restart_as(&mut self, options: &ServeOptions) -> Result<()> {
        if let Some(control) = self.control_socket() {
            self.arguments = arguments(options, &self.sockets, control);
        }
        self.restart()
    }

    /// Ends it in order (SIGTERM) and waits: images closed, everything home.
    ///
    /// # Errors
    /// It failed, or did not end in time.
    pub fn stop(mut self) -> Result<()> {
        let status = self.process.terminate(PATIENCE)?;
        if status.success() || self.control_socket().is_none() {
            Ok(())
        } else {
            Err(LabError::Peer(format!("{} ended with {status}: {}", self.name, self.log().trim())))
        }
    }

    /// Saves its log as evidence.
    ///
    /// # Errors
    /// The folder can not be written.
    pub fn save(&self, folder: &Path, tag: &str) -> Result<()> {
        let path = folder.join(format!("{tag}.daemon.log"));
        fs::write(&path, self.log()).context(|| format!("write {}", path.display()))
    }
}

fn arguments(options: &ServeOptions, sockets: &[PathBuf], control: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    if options.keep {
        arguments.extend(["keep", "--restart", "--"].map(str::to_owned));
    }
    arguments.push("serve".to_owned());
    for (image, socket) in options.images.iter().zip(sockets) {
        arguments.push("--disk".to_owned());
        arguments.push(format!("{},socket={}", image.display(), socket.display()));
    }
    arguments.extend(["--survives".to_owned(), options.survives.clone()]);
    arguments.extend(["--queues".to_owned(), options.queues.to_string()]);
    arguments.extend(["--control".to_owned(), control.display().to_string()]);
    if let Some(socket) = sockets.get(options.images.len()) {
        arguments.extend(["--control-disk".to_owned(), socket.display().to_string()]);
    }
    if let Some(bound) = &options.log_max {
        arguments.extend(["--log-max".to_owned(), bound.clone()]);
    }
    arguments.extend(options.extra.iter().cloned());
    arguments
}

fn spawn(name: &str, program: &Path, arguments: &[String], folder: &Workdir) -> Result<Group> {
    let path = folder.join("log");
    let log = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .context(|| format!("open {}", path.display()))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context(|| "duplicate a descriptor".to_owned())?)
        .stderr(log);
    Group::spawn(name, &mut command, Vec::new(), "")
}

/// A sparse image.
///
/// # Errors
/// It exists, or the folder is missing.
pub fn create_image(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create_new(path).context(|| format!("create {}", path.display()))?;
    file.set_len(bytes).context(|| format!("size {}", path.display()))?;
    file.sync_all().context(|| format!("sync {}", path.display()))
}

/// An ext4 in a file, loop-mounted: unmounted when dropped, or when this program dies.
#[derive(Debug)]
pub struct Nested {
    mountpoint: PathBuf,
    cleanup: Option<Cleanup>,
    // Declared last: the mount point goes when nothing is mounted on it.
    _folder: Workdir,
}

impl Nested {
    /// Makes `outer` (`bytes` long, in a folder that exists), an ext4 in it, and mounts that. Needs root.
    ///
    /// # Errors
    /// mkfs or mount refuse.
    pub fn mount(outer: &Path, bytes: u64) -> Result<Nested> {
        create_image(outer, bytes)?;
        let folder = Workdir::new("nested")?;
        let mountpoint = folder.join("mnt");
        fs::create_dir(&mountpoint).context(|| format!("make {}", mountpoint.display()))?;
        run(Command::new(locate::system_program("mkfs.ext4", "e2fsprogs")?)
            .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(outer))?;
        let cleanup = Cleanup::arm(&format!("umount -l {}", quote(&mountpoint.to_string_lossy())))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(outer).arg(&mountpoint))?;
        Ok(Nested { mountpoint, cleanup: Some(cleanup), _folder: folder })
    }

    /// A file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let in_order = Command::new("umount").arg(&self.mountpoint).stderr(Stdio::null()).status();
        if !in_order.is_ok_and(|status| status.success()) {
            let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).stderr(Stdio::null()).status();
        }
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.dismiss();
        }
    }
}
