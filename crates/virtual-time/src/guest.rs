//! A guest's process and its two sockets: the calendar's, and its disk's.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use afterimage_frontend::inband::Peer;
use afterimage_lab::error::{Context, LabError, Result};
use afterimage_lab::locate;
use afterimage_lab::process::{quote, Group};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::calendar::{GuestId, Ns, Say};

/// What guests run on.
#[derive(Clone, Debug)]
pub struct GuestKernel {
    /// The kernel, with time travel.
    pub linux: PathBuf,
    /// The library that pins its host's random numbers.
    pub pin: PathBuf,
}

impl GuestKernel {
    /// The one in that folder, as `./x virtual kernel` makes it.
    ///
    /// # Errors
    /// It is not there.
    pub fn of(folder: &Path) -> Result<Self> {
        let absolute = |name: &str| {
            let path = folder.join(name);
            path.canonicalize().context(|| format!("find {} (./x virtual kernel builds it)", path.display()))
        };
        Ok(Self { linux: absolute("linux")?, pin: absolute("pin.so")? })
    }
}

/// What a guest is.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// What it runs on.
    pub kernel: GuestKernel,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// The seed of all guests.
    pub seed: u64,
    /// What runs inside.
    pub script: String,
    /// More for the kernel's command line.
    pub append: Vec<String>,
    /// It has a channel for reports besides its console: /dev/ttyS0.
    pub reports: bool,
}

/// The kind of file that reports are in, as `out` is the console's.
pub const REPORTS: &str = "report";

/// `enum um_timetravel_ops`.
const ACK: u32 = 0;
const START: u32 = 1;
const REQUEST: u32 = 2;
const WAIT: u32 = 3;
const GET: u32 = 4;
const UPDATE: u32 = 5;
const RUN: u32 = 6;
const FREE_UNTIL: u32 = 7;
const GET_TOD: u32 = 8;

/// What a guest may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// Run, at that time.
    Run(Ns),
    /// Run alone, up to that time.
    FreeUntil(Ns),
}

/// How long it may take to connect.
const BOOT: Duration = Duration::from_secs(30);

/// `struct um_timetravel_msg`.
#[derive(Clone, Copy, Debug)]
struct Message {
    op: u32,
    sequence: u32,
    time: Ns,
}

impl Message {
    const BYTES: usize = 16;

    fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let [op, sequence, low, high] = [0, 4, 8, 12]
            .map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        Self { op, sequence, time: u64::from(low) | u64::from(high) << 32 }
    }

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.op.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.time.to_ne_bytes());
        bytes
    }
}

/// See the module.
pub struct Guest {
    id: GuestId,
    process: Group,
    time: UnixStream,
    disk: UnixListener,
    /// Its disk's connection.
    pub peer: Option<Peer>,
    /// Its driver has a queue to be served.
    pub enabled: bool,
    /// Of our own messages.
    sequence: u32,
    /// Of its START.
    start: u32,
    /// How many messages the calendar has had from it.
    pub messages: u64,
}

/// What came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Came {
    /// Something for the calendar.
    pub time: bool,
    /// Something from the disk's driver.
    pub disk: bool,
    /// An answer to a call.
    pub call: bool,
}

impl Guest {
    /// Starts a guest and waits until it asks to begin. What it is goes into its random numbers, its command line too: so that names no
    /// folder of this run.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        id: GuestId,
        options: &GuestOptions,
        calendar: &UnixListener,
        folder: &Path,
    ) -> Result<Self> {
        let init = init(&options.script)?;
        let number = id.0;
        let socket = folder.join(format!("disk{number}"));
        // Of an earlier life.
        let _ = fs::remove_file(&socket);
        let disk = UnixListener::bind(socket).context(|| format!("listen in {}", folder.display()))?;
        let file = |kind: &str| {
            let made = File::create(folder.join(format!("guest{number}.{kind}")));
            made.context(|| "make a console".to_owned())
        };
        let (console, errors) = (file("out")?, file("err")?);
        let reports = options.reports.then(|| file(REPORTS).map(|file| (file.into(), 3))).transpose()?;
        let mut command = Command::new(locate::system_program("setarch", "util-linux")?);
        command
            .arg("-R")
            .arg(&options.kernel.linux)
            .arg(format!("mem={}M", options.memory_mib))
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "panic=-1"])
            .args(["norandmaps", "random.trust_cpu=off", "con=null", "con0=null,fd:1", "ssl=null"])
            .args(options.reports.then_some("ssl0=null,fd:3"))
            .arg(format!("init={}", init.display()))
            .arg(format!("time-travel=ext:{number}:calendar"))
            .arg(format!("virtio_uml.device=disk{number}:2"))
            .args([format!("GUEST={number}"), format!("SEED={}", options.seed)])
            .args(&options.append)
            .current_dir(folder)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", folder)
            .env("TMPDIR", "/dev/shm")
            .env("LD_PRELOAD", &options.kernel.pin)
            .env("AFTERIMAGE_GUEST_SEED", (options.seed.wrapping_mul(1000) + number as u64).to_string())
            .stdin(Stdio::null())
            .stdout(console)
            .stderr(errors);
        let mut process =
            Group::spawn("a guest in virtual time", &mut command, reports.into_iter().collect(), "")?;
        let end = std::time::Instant::now() + BOOT;
        while !readable([Some(calendar.as_fd())], Duration::from_millis(100))?[0] {
            if process.try_status().is_some() || std::time::Instant::now() > end {
                let said = fs::read_to_string(folder.join(format!("guest{number}.err"))).unwrap_or_default();
                return Err(LabError::Guest(format!("guest {number} did not begin: {said}")));
            }
        }
        let (time, _) = calendar.accept().context(|| "accept a guest".to_owned())?;
        let mut guest =
            Self { id, process, time, disk, peer: None, enabled: false, sequence: 0, start: 0, messages: 0 };
        match guest.read()? {
            Some(Message { op: START, sequence, time }) if time == number as u64 => guest.start = sequence,
            other => return Err(guest.strange(&format!("began with {other:?}"))),
        }
        Ok(guest)
    }

    fn strange(&self, what: &str) -> LabError {
        LabError::Guest(format!("guest {}: {what}", self.id.0))
    }

    fn read(&mut self) -> Result<Option<Message>> {
        let mut bytes = [0; Message::BYTES];
        match io::Read::read_exact(&mut self.time, &mut bytes) {
            Ok(()) => {
                self.messages += 1;
                Ok(Some(Message::decode(bytes)))
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                Ok(None)
            }
            Err(e) => Err(LabError::io(format!("hear guest {}", self.id.0), e)),
        }
    }

    fn write(&mut self, message: Message) -> Result<()> {
        match io::Write::write_all(&mut self.time, &message.encode()) {
            // It is told nothing more, which its end says.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Ok(())
            }
            other => other.context(|| format!("tell guest {} something", self.id.0)),
        }
    }

    /// What the guest says to the calendar, and the number under which it is answered; `None` when it has gone.
    ///
    /// # Errors
    /// It says what is not in the protocol.
    pub fn hear(&mut self) -> Result<Option<(Say, u32)>> {
        let Some(Message { op, sequence, time }) = self.read()? else { return Ok(None) };
        let say = match op {
            REQUEST => Say::Request(time),
            WAIT => Say::Wait,
            GET => Say::Get,
            UPDATE => Say::Update(time),
            GET_TOD => Say::GetTimeOfDay,
            START => Say::Start,
            other => return Err(self.strange(&format!("said {other} to the calendar"))),
        };
        Ok(Some((say, sequence)))
    }

    /// Answers what it said.
    ///
    /// # Errors
    /// The socket.
    pub fn answer(&mut self, sequence: u32, time: Ns) -> Result<()> {
        self.write(Message { op: ACK, sequence, time })
    }

    /// Acknowledges its START.
    ///
    /// # Errors
    /// The socket.
    pub fn begin(&mut self) -> Result<()> {
        self.answer(self.start, 0)
    }

    /// Tells it something, and waits until it has heard it. `false`: it has gone.
    ///
    /// # Errors
    /// It says something else.
    pub fn tell(&mut self, what: Tell) -> Result<bool> {
        self.sequence += 1;
        let sequence = self.sequence;
        let (op, time) = match what {
            Tell::Run(at) => (RUN, at),
            Tell::FreeUntil(at) => (FREE_UNTIL, at),
        };
        self.write(Message { op, sequence, time })?;
        match self.read()? {
            Some(Message { op: ACK, sequence: answered, .. }) if answered == sequence => Ok(true),
            None => Ok(false),
            other => Err(self.strange(&format!("answered {what:?} with {other:?}"))),
        }
    }

    /// Waits for something from it, for so long in real time: on a busy machine a guest may compute for minutes.
    ///
    /// # Errors
    /// Its sockets.
    pub fn wait(&self, for_call: bool, patience: Duration) -> Result<Option<Came>> {
        let disk = match &self.peer {
            Some(peer) => peer.socket(),
            None => self.disk.as_fd(),
        };
        let call = self.peer.as_ref().and_then(Peer::backend).filter(|_| for_call);
        let [time, disk, call] = readable([Some(self.time.as_fd()), Some(disk), call], patience)?;
        Ok((time || disk || call).then_some(Came { time, disk, call }))
    }

    /// Takes the connection of its disk's driver.
    ///
    /// # Errors
    /// The system has no descriptors or memory.
    pub fn accept(&mut self, geometry: afterimage_block::Geometry) -> Result<()> {
        let (socket, _) = self.disk.accept().context(|| "accept a driver".to_owned())?;
        self.peer = Some(Peer::new(socket, geometry).context(|| "make a device".to_owned())?);
        Ok(())
    }

    /// Ends the process where it is.
    pub fn kill(&mut self) {
        self.process.kill();
        self.peer = None;
    }

    /// Waits for the end of the process, which has closed its sockets.
    pub fn finish(&mut self) {
        let ended = self.process.wait_for(Duration::from_secs(10));
        if !matches!(ended, Ok(Some(_))) {
            self.process.kill();
        }
    }
}

fn readable<const N: usize>(fds: [Option<BorrowedFd<'_>>; N], limit: Duration) -> Result<[bool; N]> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(LabError::io("wait for a guest", e)),
    }
    let mut found = polled.iter().map(|p| !p.revents().is_empty());
    Ok(fds.map(|fd| fd.is_some() && found.next().unwrap_or(false)))
}

/// The first program inside, and the script that it runs. It lies under a name that is made of its content, with a time that is always
/// the same: guests see both.
fn init(script: &str) -> Result<PathBuf> {
    let sum = twox_hash::XxHash3_64::oneshot([INIT, script].concat().as_bytes());
    let folder = locate::cache_folder().join(format!("virtual/{sum:016x}"));
    let (init, inner) = (folder.join("init"), folder.join("script"));
    if init.exists() {
        return Ok(init);
    }
    let parent = locate::cache_folder().join("virtual");
    fs::create_dir_all(&parent).context(|| format!("make {}", parent.display()))?;
    let part = tempfile::tempdir_in(&parent).context(|| format!("make a folder in {}", parent.display()))?;
    let put = |name: &str, text: &str| -> io::Result<()> {
        let file = File::create(part.path().join(name))?;
        io::Write::write_all(&mut &file, text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000))
    };
    put("script", script)
        .and_then(|()| put("init", &INIT.replace("SCRIPT", &quote(&inner.to_string_lossy()))))
        .context(|| format!("write into {}", part.path().display()))?;
    let part = part.keep();
    fs::set_permissions(&part, fs::Permissions::from_mode(0o755))
        .context(|| format!("open {}", part.display()))?;
    // Somebody else made it meanwhile: theirs is as good.
    if fs::rename(&part, &folder).is_err() {
        let _ = fs::remove_dir_all(&part);
    }
    Ok(init)
}

/// The word before the script's exit status on the console.
const EXIT: &str = "afterimage-exit:";

/// The script's exit status in what a guest has said; `None` where it did not get that far.
pub fn exit_status(said: &str) -> Option<i32> {
    said.lines().rev().find_map(|line| line.trim_end().strip_prefix(EXIT)?.trim().parse().ok())
}

/// The host's root, read-only, and memory where programs write.
const INIT: &str = r#"#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C TZ=UTC
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2> /dev/null
for folder in /mnt /run /tmp /var/tmp; do mount -t tmpfs tmpfs $folder; done
mkdir -p /dev/shm /mnt/disk
mount -t tmpfs tmpfs /dev/shm
cd /mnt
sh SCRIPT < /dev/null
code=$?
cd /
grep -q ' /mnt/disk ' /proc/mounts && umount /mnt/disk
echo "afterimage-exit: $code"
echo o > /proc/sysrq-trigger
sleep 10
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_bytes_of_a_message() {
        let message = Message { op: FREE_UNTIL, sequence: 3, time: 0x0102_0304_0506_0708 };
        let bytes = [7, 0, 0, 0, 3, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!(message.encode(), bytes);
        let Message { op, sequence, time } = Message::decode(bytes);
        assert_eq!((op, sequence, time), (7, 3, message.time));
    }
}
