//! The daemon's side of the control socket.
//!
//! One thread accepts, one thread serves each connection. A pause belongs to the connection that asked for it: it
//! ends with the connection, with its time, or when anybody resumes, whichever comes first.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use afterimage_block::SequenceNumber;
use serde::Serialize;

use super::protocol::{
    parse_request, DoneAnswer, Refusal, Request, SequenceAnswer, WaitAnswer, LINE_BYTES_MAX, PAUSE_MS_DEFAULT,
};
use crate::serve::state::Daemon;

/// Connections served at a time: each costs a thread.
const CONNECTIONS_MAX: usize = 16;
/// How long reaching a pause may take before writes go on.
const PAUSE_REACH: Duration = Duration::from_secs(60);
/// How often a connection that waits for the group looks whether its client is still there.
const LOOK: Duration = Duration::from_millis(200);

/// What the control socket tells the main thread.
#[derive(Debug)]
pub struct StopRequest {
    /// Takes the outcome of the orderly end.
    pub outcome: SyncSender<Result<(), String>>,
    /// Disconnects when the client has been answered.
    pub answered: std::sync::mpsc::Receiver<()>,
}

/// Who holds the pause.
#[derive(Debug, Default)]
struct PauseOwner(Mutex<Option<u64>>);

#[derive(Debug)]
struct Shared {
    daemon: Arc<Daemon>,
    stop: Mutex<Sender<StopRequest>>,
    pause: PauseOwner,
    connections: AtomicUsize,
}

/// Starts serving. Returns at once; the threads end with the process.
pub fn start(listener: UnixListener, daemon: Arc<Daemon>, stop: Sender<StopRequest>) -> io::Result<()> {
    let shared = Arc::new(Shared {
        daemon,
        stop: Mutex::new(stop),
        pause: PauseOwner::default(),
        connections: AtomicUsize::new(0),
    });
    std::thread::Builder::new().name("control".to_owned()).spawn(move || accept(&listener, &shared))?;
    Ok(())
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for number in 0u64.. {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control socket cannot accept a connection");
                // Out of descriptors or memory: an immediate retry would spin.
                std::thread::sleep(LOOK);
                continue;
            }
        };
        if shared.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            let refusal = format!("{CONNECTIONS_MAX} control connections are open already: close one");
            drop(send(&mut stream, &refused(refusal)));
            continue;
        }
        let connection = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name(format!("control-{number}")).spawn(move || {
            // The client went away, or its connection broke: its own affair.
            if let Err(error) = serve(&connection, stream, number) {
                tracing::debug!(%error, "a control connection ended");
            }
            connection.release(number);
            connection.connections.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = spawned {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "cannot start a thread for a control connection");
        }
    }
}

/// Serves one connection until it ends.
fn serve(shared: &Shared, mut stream: UnixStream, me: u64) -> io::Result<()> {
    // A client that does not read its answers is not waited for.
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = Lines::default();
    let mut pause_ends: Option<Instant> = None;
    loop {
        let Some(line) = lines.next(&mut stream, pause_ends)? else {
            // The pause's time is over; the connection stays.
            pause_ends = None;
            shared.release(me);
            continue;
        };
        let request = match line {
            Line::End => return Ok(()),
            Line::TooLong => {
                return send(&mut stream, &refused(super::RequestError::TooLong.to_string()));
            }
            Line::Text(text) => match parse_request(&text) {
                Ok(request) => request,
                Err(error) => {
                    send(&mut stream, &refused(error.to_string()))?;
                    continue;
                }
            },
        };
        match request {
            Request::Status {} => send(&mut stream, &shared.daemon.status())?,
            Request::Flush {} => match shared.daemon.group.flush() {
                Ok(sequence) => send(&mut stream, &SequenceAnswer { ok: true, sequence: sequence.0 })?,
                Err(error) => send(&mut stream, &refused(error.to_string()))?,
            },
            Request::Wait { sequence, timeout_ms } => wait(shared, &mut stream, sequence, timeout_ms)?,
            Request::Events {} => return events(shared, &mut stream),
            Request::Stop {} => return stop(shared, &mut stream),
            Request::Pause { for_ms } => {
                let hold = Duration::from_millis(for_ms.unwrap_or(PAUSE_MS_DEFAULT));
                match shared.acquire(me) {
                    Ok(sequence) => {
                        pause_ends = Some(Instant::now() + hold);
                        send(&mut stream, &SequenceAnswer { ok: true, sequence: sequence.0 })?;
                    }
                    Err(why) => send(&mut stream, &refused(why))?,
                }
            }
            Request::Resume {} => {
                pause_ends = None;
                let answer = shared.resume();
                match answer {
                    Ok(()) => send(&mut stream, &DoneAnswer { ok: true })?,
                    Err(why) => send(&mut stream, &refused(why))?,
                }
            }
        }
    }
}

impl Shared {
    /// Pauses for this connection.
    fn acquire(&self, me: u64) -> Result<SequenceNumber, String> {
        let mut owner = self.pause.0.lock().unwrap_or_else(PoisonError::into_inner);
        if owner.is_some() {
            return Err("writes are paused already: wait for that pause to end, or resume".to_owned());
        }
        let sequence = self.daemon.group.pause(Some(PAUSE_REACH)).map_err(|e| e.to_string())?;
        *owner = Some(me);
        Ok(sequence)
    }

    /// Ends this connection's pause, if it has one.
    fn release(&self, me: u64) {
        let mut owner = self.pause.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *owner == Some(me) {
            *owner = None;
            self.daemon.group.resume();
            tracing::info!("writes go on: the pause's connection or its time ended");
        }
    }

    /// Ends whoever's pause.
    fn resume(&self) -> Result<(), String> {
        let mut owner = self.pause.0.lock().unwrap_or_else(PoisonError::into_inner);
        if owner.take().is_none() {
            return Err("writes are not paused: the pause has ended already".to_owned());
        }
        self.daemon.group.resume();
        Ok(())
    }
}

fn wait(shared: &Shared, stream: &mut UnixStream, sequence: u64, timeout_ms: Option<u64>) -> io::Result<()> {
    let deadline = timeout_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    let newest = shared.daemon.group.status().acknowledged.0;
    if sequence > newest && timeout_ms.is_none() {
        return send(
            stream,
            &refused(format!(
                "sequence number {sequence} lies ahead of the newest request, {newest}: give a timeout"
            )),
        );
    }
    loop {
        // In slices, so that a client that goes away does not leave a thread behind.
        let slice = deadline.map_or(LOOK, |d| d.saturating_duration_since(Instant::now()).min(LOOK));
        match shared.daemon.group.wait_durable(SequenceNumber(sequence), Some(slice)) {
            Ok(durable) if durable || deadline.is_some_and(|d| Instant::now() >= d) => {
                return send(stream, &WaitAnswer { ok: true, durable, sequence });
            }
            Ok(_) => {}
            Err(error) => return send(stream, &refused(error.to_string())),
        }
        if gone(stream) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
}

fn events(shared: &Shared, stream: &mut UnixStream) -> io::Result<()> {
    let events = shared.daemon.group.subscribe();
    send(stream, &DoneAnswer { ok: true })?;
    loop {
        match events.recv_timeout(LOOK) {
            Ok(event) => send(stream, &event)?,
            Err(RecvTimeoutError::Timeout) if gone(stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn stop(shared: &Shared, stream: &mut UnixStream) -> io::Result<()> {
    let (outcome, ended) = sync_channel(1);
    let (_answered_guard, answered) = sync_channel(0);
    let asked =
        shared.stop.lock().unwrap_or_else(PoisonError::into_inner).send(StopRequest { outcome, answered });
    let result = match asked {
        Ok(()) => ended.recv().unwrap_or_else(|_| Err("the daemon is ending already".to_owned())),
        Err(_) => Err("the daemon is ending already".to_owned()),
    };
    match result {
        Ok(()) => send(stream, &DoneAnswer { ok: true }),
        Err(why) => send(stream, &refused(why)),
    }
}

fn refused(error: String) -> Refusal {
    Refusal { ok: false, error }
}

fn send<T: Serialize>(stream: &mut UnixStream, answer: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Whether the peer has closed its end. Bytes that it sent meanwhile stay unread.
fn gone(stream: &UnixStream) -> bool {
    use rustix::net::{recv, RecvFlags};
    recv(stream, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n == 0)
}

/// What [`Lines::next`] found.
enum Line {
    Text(Vec<u8>),
    TooLong,
    End,
}

/// Cuts a byte stream into bounded lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The next line, or `None` at the deadline.
    fn next(&mut self, stream: &mut UnixStream, deadline: Option<Instant>) -> io::Result<Option<Line>> {
        loop {
            if let Some(end) = self.0.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.0.drain(..=end).collect();
                line.pop();
                return Ok(Some(if line.len() > LINE_BYTES_MAX { Line::TooLong } else { Line::Text(line) }));
            }
            if self.0.len() > LINE_BYTES_MAX {
                return Ok(Some(Line::TooLong));
            }
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                let pending = rustix::io::ioctl_fionread(&*stream)?;
                if pending == 0 {
                    afterimage_block::wait_readable(&[stream.as_fd()], Some(left))?;
                    if !readable(stream) {
                        continue;
                    }
                }
            }
            let mut part = [0; 1024];
            match stream.read(&mut part) {
                Ok(0) => return Ok(Some(Line::End)),
                Ok(n) => self.0.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Whether a read would return at once, with bytes or the end.
fn readable(stream: &UnixStream) -> bool {
    use rustix::net::{recv, RecvFlags};
    !matches!(
        recv(stream, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
    )
}
