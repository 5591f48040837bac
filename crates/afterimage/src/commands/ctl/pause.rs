//! `ctl pause`: the images stand still as a complete prefix while somebody copies them.
//!
//! The connection that pauses says at its end whether writes were held all the time. A second one, which listens to the
//! daemon's events, says at once when they are not any more: what reads the images must not go on then.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use serde_json::Value;

use crate::control::client::Client;
use crate::control::protocol::{Answer, Request};
use crate::failure::Failure;

/// How long the answer to a pause may have been under way: so much earlier than this clock says its time may be over.
const ANSWER_LATE: Duration = Duration::from_secs(1);

/// Pauses, runs the command or waits, and lets writes go on.
pub fn run(client: &mut Client, hold: Duration, command: &[OsString], json: bool) -> Result<(), Failure> {
    let mut held = begin(client, hold)?;
    if json {
        super::super::print_line(&held.text)?;
    }
    let Some((program, arguments)) = command.split_first() else {
        if !json {
            let sequence = held.sequence;
            super::super::print_line(&format!(
                "paused at {sequence} for at most {hold:?}: copy the images, then interrupt this program"
            ))?;
        }
        // Interrupted or not: when this connection closes, writes go on.
        return match held.wait()? {
            Ended::InTime => Ok(()),
            early @ Ended::Early => Err(held.failure(early)),
        };
    };
    let (status, ended) = run_held(&mut held, program, arguments)?;
    ended.map_or_else(|| end(client, hold), |ended| Err(held.failure(ended)))?;
    if status.success() {
        return Ok(());
    }
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Failure::Status(u8::try_from(code).unwrap_or(1)))
}

/// Runs a command while writes are held. Where they go on before it is done, it is told to end, and how that came is
/// returned with its status.
fn run_held(
    held: &mut Held,
    program: &OsString,
    arguments: &[OsString],
) -> Result<(ExitStatus, Option<Ended>), Failure> {
    let failed = |e| Failure::failed(format!("cannot run {}: {e}", program.to_string_lossy()));
    // They come out of a descriptor: one poll waits for them and for the end of the pause.
    let taken: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD].into_iter().collect();
    let before = taken.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(|e| failed(e.into()))?;
    let mut command = Command::new(program);
    command.args(arguments);
    ends_with_this_program(&mut command, before);
    let followed = SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|signals| follow(held, command.spawn()?, &signals));
    // What comes from now on ends this program, whatever it waits for.
    before.thread_set_mask().map_err(|e| failed(e.into()))?;
    followed.map_err(failed)
}

fn follow(held: &mut Held, mut child: Child, signals: &SignalFd) -> io::Result<(ExitStatus, Option<Ended>)> {
    let mut ended = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, ended));
        }
        if ended.is_none() {
            ended = held.ended();
            if ended.is_some() {
                tracing::warn!("writes are not held any more: the command is told to end");
                tell(&child, Signal::SIGTERM);
            }
        }
        let mut waited = vec![signals.as_fd()];
        waited.extend(ended.is_none().then_some(held.events.as_fd()));
        let left = ended.is_none().then(|| held.left());
        afterimage_block::wait_readable(&waited, left)?;
        while let Ok(Some(signal)) = signals.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGCHLD) | Err(_) => {}
                Ok(signal) => tell(&child, signal),
            }
        }
    }
}

/// Signals a child, and what is below it as far as the kernel lists it (CONFIG_PROC_CHILDREN): a shell that ends leaves what it
/// has started, which would go on reading. Parents first, so that none of them starts the next.
fn tell(child: &Child, signal: Signal) {
    // It is not reaped yet, so its number is still its own.
    let Ok(pid) = i32::try_from(child.id()) else { return };
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let children =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<i32> =
            children.flat_map(|c| c.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
        family.extend(children);
        next += 1;
    }
    for pid in family {
        match kill(Pid::from_raw(pid), signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => tracing::warn!(%error, pid, "cannot send {signal} to the command"),
        }
    }
}

/// Lets the child begin with these signals blocked, and end when this program does: nobody holds writes for it then.
#[allow(unsafe_code)]
fn ends_with_this_program(command: &mut Command, blocked: SigSet) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        blocked.thread_set_mask()?;
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        // It may have ended before it was asked about.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    };
    // SAFETY: the closure makes three async-signal-safe system calls and allocates nothing on its way: its errors are plain
    // numbers.
    unsafe { command.pre_exec(prepare) };
}

/// A pause in force.
struct Held {
    /// The answer's line.
    pub text: String,
    /// What the images hold.
    pub sequence: u64,
    /// Listens since before the pause.
    events: Client,
    /// Its own beginning was among the events; what was before it is somebody else's.
    begun: bool,
    hold: Duration,
    /// From here on the daemon may have ended it because its time was over.
    in_time: Instant,
    until: Instant,
}

/// How a pause ended that nobody has ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Its time was over.
    InTime,
    /// Before.
    Early,
}

impl Held {
    /// Its end, for who was not done.
    pub fn failure(&self, ended: Ended) -> Failure {
        let hold = self.hold;
        Failure::failed(match ended {
            Ended::InTime => format!(
                "the copy is not consistent, because the pause of {hold:?} ended first: repeat it with a longer \
                 --for"
            ),
            Ended::Early => format!(
                "the pause of {hold:?} ended early, by a resume or with the daemon: a copy made meanwhile is not \
                 consistent; repeat it"
            ),
        })
    }

    /// Whether writes are not held any more, and how that came.
    pub fn ended(&mut self) -> Option<Ended> {
        while self.events.is_readable() {
            // The daemon's end is the pause's.
            let line = self.events.line().unwrap_or(None);
            let event = line.map(|line| serde_json::from_str::<Value>(&line).unwrap_or_default());
            let is = |name: &str| event.as_ref().is_some_and(|event| event["event"] == name);
            self.begun |=
                is("paused") && event.as_ref().is_some_and(|event| event["sequence"] == self.sequence);
            if event.is_none() || self.begun && is("resumed") {
                let in_time = Instant::now() >= self.in_time;
                return Some(if in_time { Ended::InTime } else { Ended::Early });
            }
        }
        self.left().is_zero().then_some(Ended::InTime)
    }

    /// How long it lasts where nothing happens.
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits for its end.
    fn wait(&mut self) -> Result<Ended, Failure> {
        loop {
            if let Some(ended) = self.ended() {
                return Ok(ended);
            }
            afterimage_block::wait_readable(&[self.events.as_fd()], Some(self.left()))
                .map_err(|e| Failure::failed(format!("cannot wait for the end of the pause: {e}")))?;
        }
    }
}

/// Pauses.
fn begin(client: &mut Client, hold: Duration) -> Result<Held, Failure> {
    let mut events = client.another()?;
    events.ask(&Request::Events {})?;
    let asked = Instant::now();
    let (text, sequence) = super::sequence(client, &Request::Pause { for_ms: Some(super::millis(hold)) })?;
    let until = Instant::now() + hold;
    // Its time began at some point between the request and the answer.
    let in_time = (asked + hold).max(until - ANSWER_LATE);
    Ok(Held { text, sequence, events, begun: false, hold, in_time, until })
}

/// Lets writes go on. Fails if they have gone on before: what was copied meanwhile is then no consistent state.
fn end(client: &mut Client, hold: Duration) -> Result<(), Failure> {
    match client.ask(&Request::Resume {}) {
        Ok((_, Answer::Done(_))) => Ok(()),
        Ok(_) => Err(super::unexpected()),
        Err(why) => Err(Failure::failed(format!(
            "{why}; the copy is not consistent, because the pause of {hold:?} ended first: repeat it with a longer \
             --for"
        ))),
    }
}
