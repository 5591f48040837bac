//! `afterimage keep -- serve …`: the sockets outlive the daemon.
//!
//! ```text
//! guest ═ socket ═╦═ daemon (dies, is replaced)
//!                 ╚═ keep: duplicates of sockets, in-flight memory; waits for the daemon, starts the next
//! ```
//!
//! One thread, one loop: the keeper's socket, signals and the daemon's death all arrive at one poll. `keep` itself does
//! so little that it has nothing to crash on.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use afterimage_block::{is_readable, wait_readable};
use afterimage_frontend::keep::{Handled, Keeper};
use afterimage_store::same_file;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::serve::{descriptors, KEEP_FD_VARIABLE};

/// A daemon that lived this long was not a quick failure.
const QUICK: Duration = Duration::from_secs(10);
/// Quick failures in a row after which `keep` gives up.
const QUICK_FAILURES_MAX: u32 = 5;
/// First pause before a restart after a quick failure; it doubles each time.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// How long the next daemon's options may be looked at.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
const CHECK_POLL: Duration = Duration::from_millis(2);
/// How often a daemon that is to be told to end is looked at until it takes the signal.
const SIGNAL_POLL: Duration = Duration::from_millis(10);
/// Exit status of a Rust program that panicked.
const PANIC_STATUS: i32 = 101;

/// Hold the guests' sockets while `serve` is restarted or upgraded
///
/// Runs `serve`. The daemon can die or be replaced, and guests notice only a delay.
///
/// SIGHUP upgrades: the daemon shuts down, and the current program file takes over its guests. If the new program refuses
/// the options, nothing happens. SIGTERM and SIGINT shut down the daemon and `keep`.
///
/// If the daemon ends, as after `ctl stop`, `keep` ends with its status. If it fails while a guest is connected, the guest
/// waits until SIGHUP starts the next one. With --restart, a daemon that crashes or dies by a signal is started again.
/// Without it guests wait for SIGHUP.
///
/// -v and --log-format before the `--` also apply to the daemon, unless options behind it say otherwise.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Restart a daemon that crashes or dies by a signal. After five quick failures in a row guests wait for SIGHUP
    #[arg(long)]
    restart: bool,
    /// `serve` and its options
    #[arg(last = true, required = true, value_name = "serve OPTIONS")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  afterimage keep --restart -- serve --disk disk.img,socket=/tmp/disk.sock
  systemctl reload afterimage@guest   (or kill -HUP, to keep) after an upgrade: go on with the new program";

/// Runs it.
///
/// # Errors
/// The daemon cannot be started, or has ended with an error.
pub fn run(args: &Args) -> Result<(), Failure> {
    let program = program_path()?;
    if args.command.first().is_none_or(|word| word != "serve") {
        return Err(Failure::usage("keep runs `serve` only: write afterimage keep -- serve ..."));
    }
    let signals = Watch::start()?;
    // What it holds for its daemons, which inherit the limit.
    descriptors::raise();
    let mut keeping =
        Keeping { args, program, keeper: Keeper::new(), signals, told_to_end: false, quick_failures: 0 };
    loop {
        let started = Instant::now();
        let (daemon, socket) = match keeping.spawn() {
            Ok(started) => started,
            Err(failure) if keeping.keeper.holds_guests() && !keeping.told_to_end => {
                tracing::error!("{failure}");
                if keeping.wait_for_the_next()? {
                    continue;
                }
                return Err(failure);
            }
            Err(failure) => return Err(failure),
        };
        let (goes_on, status) = match keeping.follow(daemon, socket)? {
            Outcome::Told(status) => return end_with(status),
            Outcome::HandOver => {
                tracing::info!("the daemon handed over");
                continue;
            }
            Outcome::ByItself(status) if status.success() || !keeping.keeper.holds_guests() => {
                return end_with(status);
            }
            Outcome::ByItself(status) => {
                tracing::error!("the daemon failed: {status}");
                (keeping.wait_for_the_next()?, status)
            }
            Outcome::Died(status) => (keeping.after_death(status, started)?, status),
        };
        if !goes_on {
            return end_with(status);
        }
    }
}

/// The path under which this program was started, with its links: after an upgrade it leads to the new file.
fn program_path() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| {
        Failure::failed(format!("cannot find this program's own file, to start the daemon: {e}"))
    })?;
    let name = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let folders = match name.components().count() {
        // Looked for as the shell did.
        1 => std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default(),
        _ => vec![PathBuf::new()],
    };
    let mut named = folders.iter().filter_map(|folder| std::path::absolute(folder.join(&name)).ok());
    Ok(named.find(|path| same_file(path, &own)).unwrap_or(own))
}

/// How one daemon's life ended.
enum Outcome {
    /// `keep` was told to end, and told it.
    Told(ExitStatus),
    /// SIGHUP: the next one goes on.
    HandOver,
    /// Nobody told it through `keep`.
    ByItself(ExitStatus),
    /// By a signal that nobody meant for it, or a panic.
    Died(ExitStatus),
}

struct Keeping<'a> {
    args: &'a Args,
    program: PathBuf,
    keeper: Keeper,
    signals: Watch,
    /// By SIGTERM or SIGINT: whichever daemon there is, or comes next, is the last.
    told_to_end: bool,
    quick_failures: u32,
}

impl Keeping<'_> {
    /// Starts a daemon with its end of a new keeper's socket.
    fn spawn(&self) -> Result<(Child, OwnedFd), Failure> {
        let failed =
            |e: std::io::Error| Failure::failed(format!("cannot start {}: {e}", self.program.display()));
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| failed(e.into()))?;
        let number = theirs.as_raw_fd();
        let mut command = Command::new(&self.program);
        command.args(&self.args.command).env(KEEP_FD_VARIABLE, number.to_string());
        // Inherited by this child only: the flag is cleared between fork and exec.
        inherit(&mut command, number);
        let daemon = command.spawn().map_err(failed)?;
        tracing::info!(pid = daemon.id(), program = %self.program.display(), "started a daemon");
        Ok((daemon, ours))
    }

    /// Whether the program as it is now takes the options as they are now. A daemon that ended for one that does not would
    /// leave its guests waiting.
    fn next_would_start(&self) -> bool {
        let mut command = Command::new(&self.program);
        command.args(&self.args.command).arg("--check-options").stdout(Stdio::null());
        let checked = command.spawn().and_then(|mut check| {
            let deadline = Instant::now() + CHECK_LIMIT;
            loop {
                if let Some(status) = check.try_wait()? {
                    return Ok(status);
                }
                if Instant::now() >= deadline {
                    check.kill()?;
                }
                std::thread::sleep(CHECK_POLL);
            }
        });
        match checked {
            Ok(status) if status.success() => return true,
            Ok(status) => {
                tracing::error!("no hand-over: the next daemon would not start ({status}); this one goes on")
            }
            Err(error) => {
                let program = self.program.display();
                tracing::error!("no hand-over: cannot start {program}: {error}; this daemon goes on");
            }
        }
        false
    }

    /// Serves the keeper's socket and passes signals on until the daemon is gone.
    fn follow(&mut self, mut daemon: Child, socket: OwnedFd) -> Result<Outcome, Failure> {
        let mut socket = Some(socket);
        let mut handing_over = false;
        let mut told = false;
        loop {
            // A daemon that hands over leaves what it retains to the next one, and hears of nothing else: the end is for that one.
            let to_be_told = self.told_to_end && !handing_over && !told;
            if to_be_told && takes_sigterm(&daemon) {
                pass_on(&daemon, Signal::SIGTERM);
                told = true;
            }
            let mut waited = vec![self.signals.wakes.as_fd()];
            waited.extend(socket.as_ref().map(AsFd::as_fd));
            wait_readable(&waited, (to_be_told && !told).then_some(SIGNAL_POLL))
                .map_err(|e| Failure::failed(format!("cannot wait for the daemon: {e}")))?;
            if let Some(open) = socket.as_ref().filter(|s| is_readable(s.as_fd())) {
                match self.keeper.handle(open.as_fd()) {
                    Ok(Handled::Request) => {}
                    Ok(Handled::Closed) => socket = None,
                    Err(error) => {
                        tracing::error!(%error, "the daemon broke the keeper's protocol");
                        socket = None;
                    }
                }
            }
            for signal in self.signals.take() {
                match signal {
                    SIGCHLD => {}
                    SIGHUP if !self.told_to_end && self.next_would_start() => {
                        handing_over = true;
                        pass_on(&daemon, Signal::SIGHUP);
                    }
                    SIGHUP => {}
                    _ => self.told_to_end = true,
                }
            }
            let gone =
                daemon.try_wait().map_err(|e| Failure::failed(format!("cannot wait for the daemon: {e}")))?;
            if let Some(status) = gone {
                return Ok(match status.code() {
                    // Also where it had died before it could hand over, or could not close in order: the next one was asked for.
                    _ if handing_over => Outcome::HandOver,
                    _ if self.told_to_end => Outcome::Told(status),
                    Some(PANIC_STATUS) | None => Outcome::Died(status),
                    Some(_) => Outcome::ByItself(status),
                });
            }
        }
    }

    /// Decides after a death whether to go on, and waits as long as it takes. `false`: give up.
    fn after_death(&mut self, status: ExitStatus, started: Instant) -> Result<bool, Failure> {
        tracing::error!("the daemon died: {status}");
        if !self.args.restart {
            return self.wait_for_the_next();
        }
        if started.elapsed() >= QUICK {
            self.quick_failures = 0;
        }
        self.quick_failures += 1;
        if self.quick_failures >= QUICK_FAILURES_MAX {
            let failure = Failure::failed(format!(
                "the daemon died {QUICK_FAILURES_MAX} times in a row within {} s of its start, last by {status}: \
                 see its messages above",
                QUICK.as_secs()
            ));
            if !self.keeper.holds_guests() {
                return Err(failure);
            }
            tracing::error!("{failure}");
            self.quick_failures = 0;
            return self.wait_for_the_next();
        }
        // The first restart is at once: a guest is waiting.
        if self.quick_failures == 1 {
            return Ok(true);
        }
        self.wait_for_word(Some(BACKOFF_FIRST * 2u32.pow(self.quick_failures - 2)))
    }

    fn wait_for_the_next(&mut self) -> Result<bool, Failure> {
        tracing::warn!("the guests wait: send SIGHUP to start the next daemon, SIGTERM to give up");
        self.wait_for_word(None)
    }

    /// Waits for SIGHUP or the end of the time (`true`), or for SIGTERM (`false`).
    fn wait_for_word(&mut self, at_most: Option<Duration>) -> Result<bool, Failure> {
        let deadline = at_most.map(|t| Instant::now() + t);
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|l| l.is_zero()) {
                return Ok(true);
            }
            wait_readable(&[self.signals.wakes.as_fd()], left)
                .map_err(|e| Failure::failed(format!("cannot wait for a signal: {e}")))?;
            for signal in self.signals.take() {
                match signal {
                    SIGHUP => return Ok(true),
                    SIGCHLD => {}
                    _ => return Ok(false),
                }
            }
        }
    }
}

/// Signals that can be polled for: a thread would be one more thing to go wrong.
struct Watch {
    signals: Signals,
    wakes: UnixStream,
}

impl Watch {
    fn start() -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::failed(format!("cannot watch for signals: {e}"));
        let all = [SIGTERM, SIGINT, SIGHUP, SIGCHLD];
        let signals = Signals::new(all).map_err(failed)?;
        let (wakes, wake) = UnixStream::pair().map_err(failed)?;
        wakes.set_nonblocking(true).map_err(failed)?;
        for signal in all {
            let wake = wake.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, wake).map_err(failed)?;
        }
        Ok(Self { signals, wakes })
    }

    /// What has arrived since the last call.
    fn take(&mut self) -> Vec<i32> {
        use std::io::Read;
        // Emptied before the signals are taken: one that comes between the two wakes once too often, never too rarely.
        let mut bytes = [0; 64];
        while self.wakes.read(&mut bytes).is_ok_and(|n| n == bytes.len()) {}
        self.signals.pending().collect()
    }
}

/// Whether SIGTERM would be heard: one that comes before the daemon watches signals kills it, and what an earlier one has left
/// is then closed by nobody. Where that cannot be told, it is said to be.
fn takes_sigterm(daemon: &Child) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())) else { return true };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_none_or(|mask| mask & (1 << (SIGTERM - 1)) != 0)
}

fn pass_on(daemon: &Child, signal: Signal) {
    // The child is not reaped before `try_wait`, so its number is still its own.
    let Ok(pid) = i32::try_from(daemon.id()) else { return };
    if let Err(error) = kill(Pid::from_raw(pid), signal) {
        tracing::warn!(%error, "cannot send {signal} to the daemon");
    }
}

fn end_with(status: ExitStatus) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Failure::Status(u8::try_from(code).unwrap_or(1)))
}

/// Lets the child keep one descriptor, and lets it die with its keeper: a daemon without one could not be found again.
#[allow(unsafe_code)]
fn inherit(command: &mut Command, fd: i32) {
    let prepare = move || {
        // SAFETY: plain system calls on a number that is open in the child, which is a copy of this process; both are
        // async-signal-safe, as code between fork and exec must be.
        let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // Which the new program would do a moment later than it is seen to run: `takes_sigterm` is not to take the keeper's
        // handler for the daemon's.
        // SAFETY: async-signal-safe as well, and of the child's own table.
        if unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure makes async-signal-safe system calls only and allocates nothing on its way.
    unsafe { command.pre_exec(prepare) };
}
