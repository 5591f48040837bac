//! A tiny HTTP/1.1 server: one thread, one request a connection, and nobody who is silent holds anybody up. No library's: those
//! that need no runtime (tiny_http) keep a thread for each silent client, any number of them for any time, and what this process
//! takes in threads, descriptors and memory is bounded.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use afterimage_seldom::Seldom;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Longest request head that is read, in bytes.
const HEAD_BYTES_MAX: usize = 8192;
/// Connections at a time; a further one takes the place of the oldest.
const CONNECTIONS_MAX: usize = 32;
/// How long one connection may last, from its beginning to the end of its answer.
const CONNECTION_WAIT: Duration = Duration::from_secs(5);
/// How long a listener that cannot accept, for want of descriptors or memory, is left alone.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// As in `GET`.
    pub method: &'a [u8],
    /// Without a query.
    pub path: &'a [u8],
    /// What kinds of content it takes, as it says it; empty where it does not.
    pub accept: &'a [u8],
}

/// What it gets.
#[derive(Clone, Debug)]
pub struct Response {
    /// As in `200 OK`.
    pub status: &'static str,
    /// The content's type.
    pub kind: &'static str,
    /// The content.
    pub body: String,
}

impl Response {
    fn bytes(&self) -> Vec<u8> {
        let Self { status, kind, body } = self;
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

struct Connection {
    stream: TcpStream,
    until: Instant,
    head: Vec<u8>,
    /// What is left of the answer, once there is one.
    answer: Option<Vec<u8>>,
}

/// Starts serving; the thread ends with the process.
pub fn start(
    listener: TcpListener,
    answer: impl Fn(Request<'_>) -> Response + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let serve = move || {
        // The oldest first.
        let mut connections: Vec<Connection> = Vec::new();
        let mut deaf = Seldom::default();
        loop {
            if let Err(error) = wait(&listener, &connections) {
                tracing::error!(%error, "the metrics address cannot be waited for any more");
                return;
            }
            connections.retain_mut(|connection| go_on(connection, &answer));
            match listener.accept() {
                Ok((stream, _)) => {
                    if connections.len() >= CONNECTIONS_MAX {
                        connections.remove(0);
                    }
                    if stream.set_nonblocking(true).is_ok() {
                        let until = Instant::now() + CONNECTION_WAIT;
                        connections.push(Connection { stream, until, head: Vec::new(), answer: None });
                    }
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => {
                    if let Some(times) = deaf.note(Instant::now()) {
                        tracing::warn!(%error, times, "the metrics address cannot accept a connection");
                    }
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(serve).map(|_| ())
}

fn wait(listener: &TcpListener, connections: &[Connection]) -> io::Result<()> {
    let until = connections.iter().map(|c| c.until).min();
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    });
    let mut polled = vec![PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    polled.extend(connections.iter().map(|c| {
        let wanted = if c.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(c.stream.as_fd(), wanted)
    }));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Moves what can be moved without waiting. Whether the connection stays.
fn go_on(connection: &mut Connection, answer: &impl Fn(Request<'_>) -> Response) -> bool {
    if connection.until <= Instant::now() {
        return false;
    }
    match move_bytes(connection, answer) {
        Ok(more) => more,
        Err(e) => matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}

fn move_bytes(connection: &mut Connection, answer: &impl Fn(Request<'_>) -> Response) -> io::Result<bool> {
    let Connection { stream, head, answer: left, .. } = connection;
    while left.is_none() {
        let mut part = [0; 1024];
        let n = stream.read(&mut part)?;
        head.extend_from_slice(&part[..n]);
        if head.windows(4).any(|w| w == b"\r\n\r\n") {
            *left = Some(answer(parse(head)).bytes());
        } else if n == 0 || head.len() >= HEAD_BYTES_MAX {
            let body = "the request head is too long or incomplete\n".to_owned();
            *left = Some(Response { status: "400 Bad Request", kind: "text/plain", body }.bytes());
        }
    }
    while let Some(bytes) = left.as_mut().filter(|bytes| !bytes.is_empty()) {
        let n = stream.write(bytes)?;
        bytes.drain(..n);
    }
    Ok(false)
}

fn parse(head: &[u8]) -> Request<'_> {
    let mut words = head.split(|b| *b == b' ' || *b == b'\r' || *b == b'\n');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let accept = head.split(|b| *b == b'\n').find_map(|line| {
        let colon = line.iter().position(|b| *b == b':')?;
        line[..colon].eq_ignore_ascii_case(b"accept").then(|| line[colon + 1..].trim_ascii())
    });
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    Request { method, path, accept: accept.unwrap_or_default() }
}
