//! The servers under test as processes.
//!
//! Ready means: ours answers on its control socket, qemu-storage-daemon's socket is there. The vhost-user socket
//! itself is never tried: a connection would be a guest.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use super::plan::Contract;
use crate::error::{Context, LabError, Result};
use crate::locate;
use crate::process::Group;

/// A server starts within this, the wait for its dead predecessor's lock included.
const START_LIMIT: Duration = Duration::from_secs(20);
/// And ends in order within this.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `afterimage serve`
    Ours(Contract),
    /// `afterimage keep --restart -- serve`
    OursKept(Contract),
    /// qemu-storage-daemon with cache.no-flush=off: what QEMU calls writeback.
    PeerWriteback,
    /// qemu-storage-daemon with cache.no-flush=on: what QEMU calls unsafe.
    PeerNoFlush,
}

impl Kind {
    /// The name in tables.
    pub fn title(self) -> String {
        match self {
            Kind::Ours(contract) => format!("afterimage {}", contract.flag()),
            Kind::OursKept(contract) => format!("afterimage keep, {}", contract.flag()),
            Kind::PeerWriteback => "qemu-storage-daemon writeback".to_owned(),
            Kind::PeerNoFlush => "qemu-storage-daemon no-flush".to_owned(),
        }
    }
}

/// A running server of one image.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    group: Group,
    folder: PathBuf,
}

impl Server {
    /// Starts one; its sockets and its log go to `folder`.
    ///
    /// # Errors
    /// It is not installed, or does not come up; its own words are part of the error.
    pub fn start(kind: Kind, image: &Path, folder: &Path) -> Result<Server> {
        let log = folder.join("daemon.log");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .context(|| format!("open {}", log.display()))?;
        let mut command = command(kind, image, folder)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context(|| "duplicate a descriptor".to_owned())?)
            .stderr(log);
        let group = Group::spawn(&kind.title(), &mut command, Vec::new(), "")?;
        let mut server = Server { kind, group, folder: folder.to_path_buf() };
        server.wait_ready()?;
        Ok(server)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + START_LIMIT;
        loop {
            let ready = match self.kind {
                Kind::Ours(_) | Kind::OursKept(_) => self.status().is_ok(),
                Kind::PeerWriteback | Kind::PeerNoFlush => self.socket().exists(),
            };
            if ready {
                return Ok(());
            }
            if let Some(status) = self.group.try_status() {
                return Err(LabError::Peer(format!(
                    "{} ended at once ({status}): {}",
                    self.kind.title(),
                    self.last_words()
                )));
            }
            if Instant::now() >= end {
                return Err(LabError::Deadline {
                    what: format!("the start of {} ({})", self.kind.title(), self.last_words()),
                    limit: START_LIMIT,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The last lines of its log.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }

    /// Where guests connect.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("disk.sock")
    }

    /// What `ctl status` says (ours only).
    ///
    /// # Errors
    /// It does not answer.
    pub fn status(&self) -> Result<Value> {
        let path = self.folder.join("control.sock");
        let what = || format!("ask {} for its status", path.display());
        let mut stream = UnixStream::connect(&path).context(what)?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).context(what)?;
        stream.write_all(b"{\"command\":\"status\"}\n").context(what)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).context(what)?;
        serde_json::from_str(&line)
            .map_err(|error| LabError::Peer(format!("the daemon said {line:?}: {error}")))
    }

    /// Kills everything of it with SIGKILL.
    pub fn kill(&mut self) {
        self.group.kill();
    }

    /// Kills the daemon with SIGKILL and leaves its keeper alone; returns when another daemon answers.
    ///
    /// # Errors
    /// The keeper did not start another one in time.
    pub fn kill_under_keeper(&mut self) -> Result<()> {
        let before = self.status()?["pid"].as_i64();
        let pid = before.and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or_else(|| LabError::Peer("the daemon's status has no pid".to_owned()))?;
        kill_process(pid, Signal::KILL).context(|| "kill the daemon".to_owned())?;
        let end = Instant::now() + START_LIMIT;
        while self.status().map_or(true, |status| status["pid"].as_i64() == before) {
            if Instant::now() >= end {
                return Err(LabError::Broken(format!(
                    "the keeper brought no new daemon: {}",
                    self.last_words()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends it in order with SIGTERM.
    ///
    /// # Errors
    /// It did not end in time, or not with success.
    pub fn stop(mut self) -> Result<()> {
        let status = self.group.terminate(STOP_LIMIT)?;
        // qemu-storage-daemon has no other way to be told, and calls it a success as well.
        if status.success() {
            Ok(())
        } else {
            Err(LabError::Broken(format!(
                "{} did not end in order ({status}): {}",
                self.kind.title(),
                self.last_words()
            )))
        }
    }
}

fn command(kind: Kind, image: &Path, folder: &Path) -> Result<Command> {
    let socket = folder.join("disk.sock");
    match kind {
        Kind::Ours(contract) | Kind::OursKept(contract) => {
            let mut command = Command::new(locate::own_program("afterimage")?);
            if matches!(kind, Kind::OursKept(_)) {
                command.args(["keep", "--restart", "--"]);
            }
            command
                .args(["serve", "--survives", &contract.flag(), "--disk"])
                .arg(format!("{},socket={}", image.display(), socket.display()))
                .arg("--control")
                .arg(folder.join("control.sock"));
            Ok(command)
        }
        Kind::PeerWriteback | Kind::PeerNoFlush => {
            // Its socket would be in the way of the next one.
            let _ = std::fs::remove_file(&socket);
            let no_flush = if kind == Kind::PeerNoFlush { "on" } else { "off" };
            let mut command = Command::new(locate::system_program("qemu-storage-daemon", "qemu-utils")?);
            command
                .arg("--blockdev")
                .arg(format!(
                    "driver=file,node-name=file,filename={},cache.direct=off,cache.no-flush={no_flush},discard=unmap",
                    image.display()
                ))
                .arg("--export")
                .arg(format!(
                    "type=vhost-user-blk,id=export,node-name=file,addr.type=unix,addr.path={},writable=on",
                    socket.display()
                ));
            Ok(command)
        }
    }
}
