//! One disk on one socket.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{self, Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use afterimage_block::{Bell, Disk};
use afterimage_seldom::{Lines, Seldom};
use parking_lot::{Mutex, MutexGuard};
use tracing::{error, info, warn};

use crate::device::Device;
use crate::keep::{Entry, KeepHandle};
use crate::notify::poll_readable;
use crate::peer;
use crate::session::{Session, SessionEnd, StopOrder, ACCEPT_RETRY};
use crate::{FrontendError, FrontendStats, ServeOptions};

/// Where the guest comes from.
#[derive(Debug)]
pub enum Endpoint {
    /// Guests connect, one at a time, again and again.
    Listen(UnixListener),
    /// The guest is already connected; when it leaves, the server is finished.
    Connected(UnixStream),
}

/// A disk being served.
#[derive(Debug)]
pub struct Server {
    stop: Arc<StopOrder>,
    attached: Attached,
    /// Hung up when what an earlier daemon had left is taken over.
    taken_over: Mutex<Receiver<Infallible>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A second descriptor of the guest's connection, as long as it is served.
#[derive(Clone, Debug, Default)]
struct Attached(Arc<Mutex<Option<UnixStream>>>);

impl Attached {
    fn socket(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.0.lock()
    }
}

impl Server {
    /// Opens one lane per queue and starts serving in threads of its own.
    ///
    /// `name` names the disk in logs and in the keeper; it must be unique in this process and the same after a
    /// restart. `stats` must count `options.queues` queues. Where the keeper holds a connection of this disk, it
    /// is taken over first.
    ///
    /// # Errors
    /// An option out of range, a disk that opens no lane, a keeper that does not answer, or the operating system's no.
    pub fn start(
        name: &str,
        disk: Arc<dyn Disk>,
        endpoint: Endpoint,
        options: ServeOptions,
        stats: Arc<FrontendStats>,
    ) -> Result<Server, FrontendError> {
        options.check(name, &stats)?;
        crate::sigbus::install().map_err(|e| FrontendError::io("cannot handle SIGBUS", e))?;
        let keep = options.keep.clone();
        let kept = match &keep {
            None => None,
            Some(keep) => {
                if let Endpoint::Listen(listener) = &endpoint {
                    keep.keep_listener(name, listener)?;
                }
                match keep.connection(name)? {
                    None => None,
                    Some(socket) => Some((socket, keep.list(&format!("{name}/session/"))?)),
                }
            }
        };
        let set = |socket: std::io::Result<()>| {
            socket.map_err(|e| FrontendError::io("cannot switch the socket to non-blocking", e))
        };
        if let Endpoint::Listen(listener) = &endpoint {
            set(listener.set_nonblocking(true))?;
        }
        let wake = Bell::new().map_err(|e| FrontendError::io("cannot create an eventfd", e))?;
        let stop = Arc::new(StopOrder { wake, given: AtomicBool::new(false) });
        let attached = Attached::default();
        let shown = options.shown.clone();
        let device = Device::new(name, disk, options, Arc::clone(&stats))?;
        let service = Service {
            name: name.to_owned(),
            device: Arc::new(sync::Mutex::new(device)),
            stats,
            stop: Arc::clone(&stop),
            attached: attached.clone(),
            keep,
            shown,
            broken: Default::default(),
            visits: Lines::new(name),
            breaks: Lines::new(name),
        };
        let (over, taken_over) = channel();
        let kept = kept.map(|(socket, entries)| Kept { socket, entries, over });
        let thread = std::thread::Builder::new()
            .name(format!("{name}/session"))
            .spawn(move || service.run(endpoint, kept))
            .map_err(|e| FrontendError::io("cannot start the session's thread", e))?;
        Ok(Self { stop, attached, taken_over: Mutex::new(taken_over), thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the connection that the keeper holds is taken over, and the disk has all requests again that were in flight there. Returns at
    /// once where it holds none.
    pub fn taken_over(&self) {
        let _hung_up = self.taken_over.lock().recv();
    }

    /// Quiesces all queues, closes the connection and returns when no request is in flight. What the keeper holds of
    /// the connection stays there, for the next daemon.
    pub fn stop(&self) {
        self.stop.given.store(true, Ordering::Release);
        self.stop.wake.ring();
        self.wait();
    }

    /// Whether a guest is connected and lives. The connection itself is looked at, not what this server has noticed of it
    /// yet: a guest whose process was killed before the call is gone, even where the kernel is still taking it down,
    /// which is waited for, for no longer than `patience`. One that is only stopped (SIGSTOP) lives.
    pub fn attached(&self, patience: Duration) -> bool {
        // Held meanwhile, so that the connection cannot become another one.
        self.attached.socket().as_ref().is_some_and(|socket| peer::lives(socket, patience))
    }

    /// Whether the server has ended: after [`Server::stop`], or when a [`Endpoint::Connected`] guest has left.
    pub fn finished(&self) -> bool {
        self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end.
    pub fn join(self) {
        self.wait();
    }

    fn wait(&self) {
        // Held while joining, so that every caller returns only when the thread has ended.
        if let Some(thread) = self.thread.lock().take() {
            if thread.join().is_err() {
                error!("the session's thread panicked");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the session thread owns.
struct Service {
    name: String,
    /// Behind the only kind of lock that the `vhost` crate decodes into.
    device: Arc<sync::Mutex<Device>>,
    stats: Arc<FrontendStats>,
    stop: Arc<StopOrder>,
    attached: Attached,
    keep: Option<KeepHandle>,
    shown: Vec<u8>,
    /// Why the last connection broke, which a VMM that comes back for ever (`reconnect=1`) is not to fill the log with.
    broken: (String, Seldom),
    /// That guests come and go, and why connections broke.
    visits: Lines,
    breaks: Lines,
}

/// What an earlier daemon has left in the keeper.
struct Kept {
    socket: UnixStream,
    entries: Vec<Entry>,
    /// Dropped when it is taken over.
    over: Sender<Infallible>,
}

impl Service {
    fn run(mut self, endpoint: Endpoint, kept: Option<Kept>) {
        let (listener, connected) = match endpoint {
            Endpoint::Listen(listener) => (Some(listener), None),
            Endpoint::Connected(socket) => (None, Some(socket)),
        };
        match (kept, connected) {
            (Some(Kept { socket, entries, over }), _) => {
                self.session(&socket, listener.as_ref(), Some((entries, over)));
            }
            (None, Some(socket)) => self.session(&socket, None, None),
            (None, None) => {}
        }
        let Some(listener) = listener else { return };
        let mut deaf = Seldom::default();
        while !self.stop.is_given() {
            match listener.accept() {
                Ok((socket, _)) => self.session(&socket, Some(&listener), None),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    let _ = poll_readable([Some(listener.as_fd()), Some(self.stop.wake.fd())], None);
                }
                Err(e) => {
                    if let Some(times) = deaf.note(Instant::now()) {
                        warn!("{}: cannot accept a connection: {e} (times: {times})", self.name);
                    }
                    let _ = poll_readable([Some(self.stop.wake.fd())], Some(ACCEPT_RETRY));
                }
            }
        }
    }

    fn session(
        &mut self,
        socket: &UnixStream,
        listener: Option<&UnixListener>,
        kept: Option<(Vec<Entry>, Sender<Infallible>)>,
    ) {
        let visible = self.visits.may();
        match socket.try_clone() {
            Ok(again) => *self.attached.socket() = Some(again),
            Err(e) if !visible => return tracing::debug!("{}: the connection was closed: {e}", self.name),
            Err(e) => {
                error!("{}: the connection was closed: no descriptor is left: {e}", self.name);
                return;
            }
        }
        self.stats.set_attached(true);
        if visible {
            info!("{}: a guest is attached", self.name);
        }
        let ended = Session::new(&self.device, socket, listener, &self.stop).map_err(Into::into).and_then(
            |mut session| {
                match kept {
                    Some((entries, over)) => session.take_over(entries, over)?,
                    None => session.begin(&self.shown),
                }
                session.serve()
            },
        );
        {
            let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
            device.detach();
            if !matches!(ended, Ok(SessionEnd::Stopped)) {
                device.tell_disconnected();
            }
        }
        if !matches!(ended, Ok(SessionEnd::Stopped)) {
            if let Some(keep) = &self.keep {
                let deleted = keep.delete_prefix(&format!("{}/session/", self.name));
                if let Some(e) = deleted.err().filter(|_| visible) {
                    warn!("{}: the keeper still holds the ended connection: {e}", self.name);
                }
            }
        }
        match ended {
            Ok(SessionEnd::Closed) if !visible => {}
            Ok(SessionEnd::Closed) => info!("{}: the guest is detached", self.name),
            Ok(SessionEnd::Stopped) => info!("{}: the server stops", self.name),
            Err(e) => {
                let reason = e.to_string();
                if reason != self.broken.0 {
                    self.broken = (reason, Seldom::default());
                }
                let times = self.broken.1.note(Instant::now());
                if let Some(times) = times.filter(|_| self.breaks.may()) {
                    error!("{}: the connection was closed: {e} (times: {times})", self.name);
                }
            }
        }
        // This one goes with it, or the guest would not see that the connection is closed.
        *self.attached.socket() = None;
        self.stats.set_attached(false);
    }
}
