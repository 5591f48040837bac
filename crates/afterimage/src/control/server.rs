//! The daemon's side of the control socket: sockets, clock and workers around [`Sessions`].
//!
//! ```text
//!   socket ──┐                          ┌─► control-pause    pause, resume
//!   clients ─┼─► control: Sessions ─────┼─► control-flush    flush            they may block on storage;
//!   clock ───┘          ▲               ├─► control-copy     approach         the first thread never does
//!                       │               └─► control-status   status, look, track, changed
//!                       └── outcomes ◄──────────┘
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::Bell;
use afterimage_order::{Contract, Subscription};
use afterimage_seldom::Seldom;
use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::connection::ConnectionId;
use super::protocol::{Answer, ChangedAnswer, DoneAnswer, Refusal, CHANGED_MAX};
use super::sessions::{Action, Progress, Sessions};
use crate::serve::state::Daemon;

/// How long reaching a pause may take before writes go on.
const PAUSE_REACH: Duration = Duration::from_secs(60);
/// How long reaching a hold may take: the rest of its time is for the copy.
const HOLD_REACH: Duration = Duration::from_millis(50);
/// How long a socket that cannot accept, for want of descriptors or memory, is left alone.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// Connections accepted before the others are looked at again.
const ACCEPT_MAX: usize = 8;
/// Outcomes and events that wait for the first thread; more make their senders wait.
const INPUTS_MAX: usize = 64;

/// Takes the outcome of the orderly end that a client has asked for.
#[derive(Debug)]
pub struct Outcome(Post);

impl Outcome {
    /// The end went so.
    pub fn tell(self, result: Result<(), String>) {
        self.0.post(Input::Stopped(result));
    }
}

#[cfg(test)]
impl Outcome {
    /// One that nobody waits for.
    pub fn nobodys() -> Self {
        Self(Post { inputs: sync_channel(1).0, wake: Arc::new(Bell::new().expect("a descriptor")) })
    }
}

/// What arrives at the first thread from the others.
#[derive(Debug)]
enum Input {
    Paused(Result<u64, String>),
    Resumed,
    LetGo,
    Flushed(Result<u64, String>),
    Looked(Progress),
    Answered(ConnectionId, Vec<u8>),
    Stopped(Result<(), String>),
    End(SyncSender<()>),
    Drain(SyncSender<()>),
}

/// The way to the first thread.
#[derive(Clone, Debug)]
struct Post {
    inputs: SyncSender<Input>,
    wake: Arc<Bell>,
}

impl Post {
    fn post(&self, input: Input) {
        // Without the first thread the process is ending.
        if self.inputs.send(input).is_ok() {
            self.wake.ring();
        }
    }
}

/// A running control socket.
#[derive(Debug)]
pub struct Control(Post);

impl Control {
    /// The orderly end begins. When this returns no pause is in force, and whoever held one will be told that it ended.
    pub fn end(&self) {
        let (done, ended) = sync_channel(1);
        self.0.post(Input::End(done));
        // Disconnects if the thread is gone.
        let _ = ended.recv();
    }

    /// Waits until clients have taken what they were told until now, but no longer than `limit`.
    pub fn drain(&self, limit: Duration) {
        let (guard, drained) = sync_channel(0);
        self.0.post(Input::Drain(guard));
        let _ = drained.recv_timeout(limit);
    }
}

/// What the workers do.
enum Job {
    Pause,
    Hold,
    Resume,
    LetGo,
    Flush,
    Look,
    Status(ConnectionId),
    Track(ConnectionId),
    Changed(ConnectionId, u64),
    Approach(ConnectionId),
    Untrack,
}

/// Begins the orderly end, or says why nobody takes the request: an end has begun already.
pub type Stop = Box<dyn Fn(Outcome) -> Result<(), &'static str> + Send>;

/// Starts serving. Returns at once; the threads end with the process.
///
/// # Errors
/// No thread or descriptor is left.
pub fn start(listener: UnixListener, daemon: &Arc<Daemon>, stop: Stop) -> io::Result<Control> {
    listener.set_nonblocking(true)?;
    let (inputs, received) = sync_channel(INPUTS_MAX);
    let post = Post { inputs, wake: Arc::new(Bell::new()?) };
    let worker = |name: &str| {
        let (jobs, todo) = channel::<Job>();
        let (daemon, post) = (Arc::clone(daemon), post.clone());
        let work =
            move || todo.iter().filter_map(|job| work(&daemon, &job)).for_each(|input| post.post(input));
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(|_| jobs)
    };
    let woken = Arc::clone(&post.wake);
    let events = daemon.group.subscribe(Box::new(move || woken.ring()));
    let in_background = matches!(daemon.group.status().contract, Contract::PowerWindow { .. });
    let images = daemon.disks.iter().map(|disk| disk.readable.answer()).collect();
    let shell = Shell {
        listener,
        accept_at: Duration::ZERO,
        deaf: Seldom::default(),
        sessions: Sessions::new(images, !in_background),
        streams: BTreeMap::new(),
        origin: Instant::now(),
        daemon: Arc::clone(daemon),
        post: post.clone(),
        received,
        events,
        pausing: worker("control-pause")?,
        flushing: worker("control-flush")?,
        telling: worker("control-status")?,
        approaching: worker("control-copy")?,
        stop,
        drain_guard: None,
    };
    std::thread::Builder::new().name("control".to_owned()).spawn(move || shell.run())?;
    Ok(Control(post))
}

fn work(daemon: &Daemon, job: &Job) -> Option<Input> {
    let words = |e: &dyn std::fmt::Display| e.to_string();
    let line = super::sessions::line::<Answer>;
    Some(match job {
        Job::Pause => {
            let paused = daemon.group.pause(Some(PAUSE_REACH));
            Input::Paused(paused.map(|sequence| sequence.0).map_err(|e| words(&e)))
        }
        Job::Hold => {
            let held = daemon.group.hold(HOLD_REACH);
            Input::Paused(held.map(|sequence| sequence.0).map_err(|e| words(&e)))
        }
        Job::Track(id) => {
            daemon.group.note_changes();
            Input::Answered(*id, line(&Answer::Done(DoneAnswer { ok: true })))
        }
        Job::Changed(id, disk) => {
            let disk = usize::try_from(*disk).unwrap_or(usize::MAX);
            let (ranges, more) = daemon.group.changed(disk, CHANGED_MAX);
            let ranges = ranges.into_iter().map(|range| (range.start, range.end)).collect();
            Input::Answered(*id, line(&Answer::Changed(ChangedAnswer { ok: true, ranges, more })))
        }
        Job::Approach(id) => {
            let answer = match daemon.group.approach() {
                Ok(()) => Answer::Done(DoneAnswer { ok: true }),
                Err(e) => Answer::Refused(Refusal { ok: false, error: words(&e) }),
            };
            Input::Answered(*id, line(&answer))
        }
        Job::Untrack => {
            daemon.group.forget_changes();
            return None;
        }
        Job::Resume => {
            daemon.group.resume();
            Input::Resumed
        }
        Job::LetGo => {
            daemon.group.resume();
            Input::LetGo
        }
        Job::Flush => {
            // A guest may have been told that it is committed; whoever asks here wants it, too.
            daemon.group.take_published();
            let flushed = daemon.group.flush().map(|sequence| sequence.0).map_err(|e| words(&e));
            let owed = daemon.control_disk.as_ref().and_then(|served| served.disk.owes());
            Input::Flushed(flushed.and_then(|sequence| owed.map_or(Ok(sequence), |why| Err(why.to_owned()))))
        }
        Job::Look => {
            let status = daemon.group.status();
            Input::Looked(Progress {
                acknowledged: status.acknowledged.0,
                durable: status.durable.0,
                failure: status.failure.map(|reason| reason.to_string()),
            })
        }
        Job::Status(id) => Input::Answered(*id, super::sessions::line(&daemon.status())),
    })
}

struct Shell {
    listener: UnixListener,
    /// The listener is left alone until then.
    accept_at: Duration,
    deaf: Seldom,
    sessions: Sessions,
    streams: BTreeMap<ConnectionId, UnixStream>,
    origin: Instant,
    daemon: Arc<Daemon>,
    post: Post,
    received: Receiver<Input>,
    events: Subscription,
    pausing: Sender<Job>,
    flushing: Sender<Job>,
    telling: Sender<Job>,
    approaching: Sender<Job>,
    stop: Stop,
    /// Dropped when nobody has anything to take any more.
    drain_guard: Option<SyncSender<()>>,
}

/// What poll found.
struct Ready {
    wake: bool,
    hurry: bool,
    listener: bool,
    streams: Vec<(ConnectionId, PollFlags)>,
}

impl Shell {
    fn run(mut self) {
        loop {
            self.act();
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the control socket cannot be waited for any more");
                    return;
                }
            };
            if ready.wake {
                self.post.wake.drain();
            }
            while let Ok(input) = self.received.try_recv() {
                // What happened before it is told before.
                self.take_events();
                self.take(input);
            }
            if ready.hurry {
                self.daemon.hurry.drain();
                self.sessions.give_way(self.now());
            }
            self.take_events();
            for (id, flags) in ready.streams {
                self.move_bytes(id, flags);
            }
            if ready.listener {
                self.accept();
            }
            self.sessions.tick(self.now());
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wait(&self) -> rustix::io::Result<Ready> {
        let now = self.now();
        let accepts = self.accept_at <= now;
        let due = self.sessions.deadline().into_iter().chain((!accepts).then_some(self.accept_at)).min();
        let timeout = due.map(|due| {
            let left = due.saturating_sub(now);
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let listens = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = vec![
            PollFd::from_borrowed_fd(self.post.wake.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), listens),
            PollFd::from_borrowed_fd(self.daemon.hurry.fd(), PollFlags::IN),
        ];
        polled.extend(self.streams.iter().map(|(id, stream)| {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, self.sessions.room(*id) > 0);
            wanted.set(PollFlags::OUT, self.sessions.output(*id).is_some());
            PollFd::from_borrowed_fd(stream.as_fd(), wanted)
        }));
        poll(&mut polled, timeout.as_ref())?;
        let flags: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        Ok(Ready {
            wake: !flags[0].is_empty(),
            listener: !flags[1].is_empty(),
            hurry: !flags[2].is_empty(),
            streams: self.streams.keys().copied().zip(flags[3..].iter().copied()).collect(),
        })
    }

    fn take(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Paused(result) => self.sessions.paused(now, result),
            Input::Resumed => self.sessions.resumed(now),
            // Said by nobody: the pause that was being reached says so itself.
            Input::LetGo => {}
            Input::Flushed(result) => self.sessions.flushed(now, result),
            Input::Looked(progress) => self.sessions.progress(now, &progress),
            Input::Answered(id, line) => self.sessions.answered(now, id, line),
            Input::Stopped(result) => self.sessions.stopped(now, &result),
            Input::End(done) => {
                self.sessions.end(now);
                let _ = done.send(());
            }
            Input::Drain(guard) => self.drain_guard = Some(guard),
        }
        self.act();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.events.next() {
            self.sessions.event(self.now(), &event);
        }
    }

    /// Does what the sessions want done. Sending a job does not wait: each is asked for again only when it is done, or
    /// belongs to a connection.
    fn act(&mut self) {
        for action in self.sessions.actions() {
            // A worker ends with the process only.
            let _ = match action {
                Action::Pause => self.pausing.send(Job::Pause),
                Action::Hold => self.pausing.send(Job::Hold),
                Action::Resume => self.pausing.send(Job::Resume),
                Action::LetGo => self.telling.send(Job::LetGo),
                Action::Flush => self.flushing.send(Job::Flush),
                Action::Look => self.telling.send(Job::Look),
                Action::Status(id) => self.telling.send(Job::Status(id)),
                Action::Track(id) => self.telling.send(Job::Track(id)),
                Action::Changed(id, disk) => self.telling.send(Job::Changed(id, disk)),
                Action::Untrack => self.telling.send(Job::Untrack),
                Action::Approach(id) => self.approaching.send(Job::Approach(id)),
                Action::Close(id) => {
                    self.streams.remove(&id);
                    Ok(())
                }
                Action::Stop => {
                    if let Err(why) = (self.stop)(Outcome(self.post.clone())) {
                        self.sessions.stopped(self.now(), &Err(why.to_owned()));
                    }
                    Ok(())
                }
            };
        }
        if self.drain_guard.is_some() && self.sessions.is_drained() {
            self.drain_guard = None;
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let id = self.sessions.open(self.now());
                    self.act();
                    self.streams.insert(id, stream);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if let Some(times) = self.deaf.note(Instant::now()) {
                        tracing::warn!(%error, times, "the control socket cannot accept a connection");
                    }
                    // An immediate retry would spin.
                    self.accept_at = self.now() + ACCEPT_AGAIN;
                    return;
                }
            }
        }
    }

    fn move_bytes(&mut self, id: ConnectionId, flags: PollFlags) {
        let over = flags.intersects(PollFlags::HUP | PollFlags::ERR);
        if over && self.sessions.room(id) == 0 && self.sessions.output(id).is_none() {
            // It waits for something and nobody is there to hear of it.
            self.sessions.lost(self.now(), id);
        }
        if over || flags.contains(PollFlags::IN) {
            self.receive(id);
        }
        // Also what was just asked: a newcomer has its answer before the next one takes its place.
        if !flags.is_empty() {
            self.send(id);
        }
        self.act();
    }

    fn receive(&mut self, id: ConnectionId) {
        let (room, now) = (self.sessions.room(id), self.now());
        let Some(stream) = self.streams.get(&id).filter(|_| room > 0) else { return };
        let mut part = [0; 1024];
        let wanted = part.len().min(room);
        match rustix::net::recv(stream, &mut part[..wanted], rustix::net::RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => self.sessions.receive(now, id, &part[..bytes]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.sessions.lost(now, id),
        }
    }

    fn send(&mut self, id: ConnectionId) {
        let now = self.now();
        let (Some(stream), Some(output)) = (self.streams.get(&id), self.sessions.output(id)) else { return };
        let image = output.image.map(|disk| self.daemon.disks[disk].readable.as_fd().as_raw_fd());
        let rights = [ControlMessage::ScmRights(image.as_slice())];
        let sent = sendmsg::<()>(
            stream.as_raw_fd(),
            &[io::IoSlice::new(output.bytes)],
            if image.is_some() { &rights } else { &[] },
            MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            None,
        );
        match sent {
            Ok(bytes) => self.sessions.sent(now, id, bytes),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
            Err(_) => self.sessions.lost(now, id),
        }
    }
}
