//! Processes that can not be left behind.
//!
//! ```text
//!   this program ──pipe──► guard (sh, a process group of its own)
//!        │                    on "q": leaves quietly
//!        └─► group            on end of file (we died, however): kills the group, then cleans up
//! ```
//!
//! A guard per group rather than PR_SET_PDEATHSIG: that one fires when the *thread* that started the child
//! ends, reaches only the child itself (User Mode Linux is several processes), and can not unmount or remove
//! anything. Ctrl-C does not reach guards: they are not in the terminal's foreground group.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::error::{Context, LabError, Result};

/// Runs a command to its successful end.
///
/// # Errors
/// It failed; what it said is in the error.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().context(|| format!("run {name}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(said(&output.stdout));
    }
    Err(LabError::Peer(format!(
        "{name} failed ({}): {}{}",
        output.status,
        said(&output.stdout),
        said(&output.stderr)
    )))
}

/// Runs a piece of shell when this process dies without having dismissed it.
#[derive(Debug)]
struct Guard {
    shell: Child,
}

impl Guard {
    fn start(cleanup: &str) -> Result<Guard> {
        let script =
            format!("trap '' INT TERM HUP\nread -r word\n[ \"$word\" = q ] && exit 0\n{cleanup}\nexit 0\n");
        let shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context(|| "start a guard with /bin/sh".to_owned())?;
        Ok(Guard { shell })
    }

    fn dismiss(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A guard that is gone already can not hear this, and need not.
            let _ = pipe.write_all(b"q\n");
        }
        let _ = self.shell.wait();
    }
}

/// Shell that runs if this program dies before [`Cleanup::dismiss`]; dropping it runs the shell too.
#[derive(Debug)]
pub struct Cleanup(Guard);

impl Cleanup {
    /// Arms it.
    ///
    /// # Errors
    /// No process can be started.
    pub fn arm(shell: &str) -> Result<Cleanup> {
        Guard::start(shell).map(Cleanup)
    }

    /// The shell is not needed any more.
    pub fn dismiss(mut self) {
        self.0.dismiss();
    }
}

/// A process group of ours: killed when dropped, and when this program dies.
#[derive(Debug)]
pub struct Group {
    name: String,
    child: Child,
    guard: Guard,
    status: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as the leader of a process group. `descriptors` are passed on under the numbers given
    /// (3 to 63). `cleanup` is shell that a guard runs after killing the group, if this program dies first.
    ///
    /// # Errors
    /// [`LabError::Missing`] if the program is not installed, [`LabError::Io`] if it would not start.
    pub fn spawn(
        name: &str,
        command: &mut Command,
        descriptors: Vec<(OwnedFd, RawFd)>,
        cleanup: &str,
    ) -> Result<Group> {
        let mut moves = Vec::new();
        for (descriptor, target) in &descriptors {
            assert!((3..64).contains(target), "a descriptor number that a child may have");
            let high = rustix::io::fcntl_dupfd_cloexec(descriptor, 64)
                .context(|| format!("pass a descriptor to {name}"))?;
            moves.push((high, *target));
        }
        let plan: Vec<(RawFd, RawFd)> = moves.iter().map(|(from, to)| (from.as_raw_fd(), *to)).collect();
        command.process_group(0);
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls (setrlimit,
        // dup2) on values that it owns. The sources stay open in this process until spawn has returned, are
        // all at 64 or above, and so can not be overwritten by a target, which is below 64.
        unsafe {
            command.pre_exec(move || {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                for (from, to) in &plan {
                    if libc::dup2(*from, *to) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => LabError::Missing(format!(
                "{name}: {} is not installed or not where it should be",
                command.get_program().to_string_lossy()
            )),
            _ => LabError::io(format!("start {name}"), source),
        })?;
        let guard = Guard::start(&format!("kill -9 -{}\n{cleanup}", child.id()));
        let guard = guard.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let mut group = Group { name: name.to_owned(), child, guard, status: None };
        // A child that dies at once (a missing library, say) is reported by whoever waits for it.
        let _ = group.try_status();
        Ok(group)
    }

    /// The leader's process id, which is the group's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn rustix_pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Sends a signal to the leader only.
    pub fn signal(&self, signal: Signal) {
        if let (None, Some(pid)) = (self.status, self.rustix_pid()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// The leader's status if it has ended.
    pub fn try_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for the leader to end; `None` if it has not within `limit`.
    ///
    /// # Errors
    /// The system would not let us wait.
    pub fn wait_for(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if let Some(status) = self.try_status() {
            return Ok(Some(status));
        }
        let Some(pid) = self.rustix_pid() else { return Ok(None) };
        let handle = pidfd_open(pid, PidfdFlags::empty())
            .context(|| format!("watch {} (process {})", self.name, self.pid()))?;
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut set = [PollFd::new(&handle, PollFlags::IN)];
            match poll(&mut set, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(LabError::io(format!("wait for {}", self.name), error)),
            }
            if let Some(status) = self.try_status() {
                return Ok(Some(status));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Kills the whole group with SIGKILL and waits until the leader is gone.
    pub fn kill(&mut self) {
        if let Some(pid) = self.rustix_pid() {
            // The group may outlive its leader: User Mode Linux's children do.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }

    /// Asks the leader to end with SIGTERM, and kills the group if it has not within `limit`.
    ///
    /// # Errors
    /// It had to be killed.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM);
        let outcome = self.wait_for(limit);
        self.kill();
        match outcome? {
            Some(status) => Ok(status),
            None => {
                Err(LabError::Deadline { what: format!("the end of {} after SIGTERM", self.name), limit })
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        self.guard.dismiss();
    }
}

/// A folder for one run: removed when dropped and when this program dies, unless [`Workdir::keep`] was called.
///
/// It lies in `$AFTERIMAGE_LAB_DIR`, else in `/tmp`: names of sockets must stay below 108 bytes.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
    guard: Option<Guard>,
}

impl Workdir {
    /// Makes a fresh folder whose name starts with `aimg-` and `tag`.
    ///
    /// # Errors
    /// The folder can not be made.
    pub fn new(tag: &str) -> Result<Workdir> {
        let base =
            std::env::var_os("AFTERIMAGE_LAB_DIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        Workdir::new_in(&base, tag)
    }

    /// As [`Workdir::new`], in a folder of the caller's choice: for images, whose names may be long and which a
    /// guest need not see.
    ///
    /// # Errors
    /// The folder can not be made.
    pub fn new_in(base: &Path, tag: &str) -> Result<Workdir> {
        fs::create_dir_all(base).context(|| format!("make {}", base.display()))?;
        let path = tempfile::Builder::new()
            .prefix(&format!("aimg-{tag}-"))
            .tempdir_in(base)
            .context(|| format!("make a folder in {}", base.display()))?
            .keep();
        // After the groups' own guards have killed and unmounted.
        let cleanup = format!("sleep 1\nrm -rf --one-file-system {}", quote(&path.to_string_lossy()));
        let guard = Guard::start(&cleanup)?;
        Ok(Workdir { path, guard: Some(guard) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Leaves the folder for a person to look at.
    pub fn keep(mut self) -> PathBuf {
        if let Some(mut guard) = self.guard.take() {
            guard.dismiss();
        }
        self.path.clone()
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            let _ = fs::remove_dir_all(&self.path);
            guard.dismiss();
        }
    }
}

/// Quotes a word for a POSIX shell.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A connected pair of stream sockets: ours and the child's.
///
/// # Errors
/// The system has no descriptors left.
pub fn socket_pair() -> Result<(std::os::unix::net::UnixStream, OwnedFd)> {
    let (ours, theirs) =
        std::os::unix::net::UnixStream::pair().context(|| "make a pair of sockets".to_owned())?;
    Ok((ours, OwnedFd::from(theirs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_group_is_gone() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & sleep 1000"]);
        let group = Group::spawn("sleepers", &mut command, Vec::new(), "").unwrap();
        let pid = group.rustix_pid().unwrap();
        assert!(rustix::process::test_kill_process_group(pid).is_ok());
        drop(group);
        // The killed child of the leader is reaped by init; that takes a moment.
        let end = Instant::now() + Duration::from_secs(5);
        while rustix::process::test_kill_process_group(pid).is_ok() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(rustix::process::test_kill_process_group(pid).is_err());
    }

    #[test]
    fn the_death_of_the_owner_kills_the_group_and_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("cleaned");
        let mut command = Command::new("/bin/sleep");
        command.arg("1000");
        let mut group =
            Group::spawn("sleeper", &mut command, Vec::new(), &format!("touch {}", marker.display()))
                .unwrap();
        // What the kernel does with our end of the pipe when we are killed.
        drop(group.guard.shell.stdin.take());
        let status = group.wait_for(Duration::from_secs(10)).unwrap();
        assert!(status.is_some(), "the guard did not kill the group");
        group.guard.shell.wait().unwrap();
        assert!(marker.exists());
    }

    #[test]
    fn words_are_quoted() {
        let said =
            Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", quote("a'b $c"))).output().unwrap();
        assert_eq!(said.stdout, b"a'b $c");
    }
}
