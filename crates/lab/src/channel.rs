//! The host's end of a guest's report channel: lines with their time of arrival.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Context, LabError, Result};
use crate::process::socket_pair;

/// CLOCK_MONOTONIC in nanoseconds: comparable between processes of one machine.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// One line from the guest.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When the host had all of it, on CLOCK_MONOTONIC, in nanoseconds.
    pub at_ns: u64,
    /// The line, without its end.
    pub line: String,
}

impl Arrival {
    /// The line as JSON, if it is a JSON object.
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_str(&self.line).ok().filter(serde_json::Value::is_object)
    }

    /// The line as JSON, if its member `key` is the string `value`.
    pub fn json_if(&self, key: &str, value: &str) -> Option<serde_json::Value> {
        // The cheap test first: most lines of a long run are acknowledgements.
        if !self.line.contains(value) {
            return None;
        }
        self.json().filter(|json| json.get(key).and_then(|v| v.as_str()) == Some(value))
    }
}

#[derive(Default)]
struct State {
    lines: Vec<Arrival>,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A channel: everything that came is kept.
pub struct Channel {
    shared: Arc<Shared>,
    writer: UnixStream,
}

impl Channel {
    /// Makes a channel; the descriptor is the guest's end.
    ///
    /// # Errors
    /// The system has no descriptors or threads left.
    pub fn open() -> Result<(Channel, OwnedFd)> {
        let (ours, theirs) = socket_pair()?;
        let writer = ours.try_clone().context(|| "duplicate a socket".to_owned())?;
        let shared = Arc::new(Shared { state: Mutex::default(), news: Condvar::new() });
        let reader = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lab-channel".to_owned())
            .spawn(move || read_lines(BufReader::new(ours), &reader))
            .context(|| "start a thread".to_owned())?;
        Ok((Channel { shared, writer }, theirs))
    }

    /// Everything that has come so far.
    pub fn lines(&self) -> Vec<Arrival> {
        self.shared.lock().lines.clone()
    }

    /// How many lines have come so far.
    pub fn count(&self) -> usize {
        self.shared.lock().lines.len()
    }

    /// Waits for the first line, from index `from` on, for which `wanted` returns something.
    /// `None` when the guest's end has been closed first.
    ///
    /// # Errors
    /// [`LabError::Deadline`].
    pub fn wait_for<T>(
        &self,
        from: usize,
        limit: Duration,
        what: &str,
        mut wanted: impl FnMut(&Arrival) -> Option<T>,
    ) -> Result<Option<T>> {
        let end = Instant::now() + limit;
        let mut next = from;
        let mut state = self.shared.lock();
        loop {
            while next < state.lines.len() {
                if let Some(found) = wanted(&state.lines[next]) {
                    return Ok(Some(found));
                }
                next += 1;
            }
            if state.closed {
                return Ok(None);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LabError::Deadline { what: what.to_owned(), limit });
            }
            state = self.shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the guest's end is closed, so that [`Channel::lines`] is everything there will be.
    pub fn wait_closed(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        while !state.closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends a line to the guest.
    ///
    /// # Errors
    /// The guest's end has been closed.
    pub fn send(&self, line: &str) -> Result<()> {
        (&self.writer).write_all(format!("{line}\n").as_bytes()).context(|| "send to the guest".to_owned())
    }
}

fn read_lines(mut reader: BufReader<UnixStream>, shared: &Shared) {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.read_until(b'\n', &mut bytes) {
            // A line without its end was cut by the guest's death: it was never said.
            Ok(_) if bytes.last() == Some(&b'\n') => {
                let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
                shared.lock().lines.push(Arrival { at_ns: monotonic_ns(), line });
                shared.news.notify_all();
            }
            _ => {
                shared.lock().closed = true;
                shared.news.notify_all();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_and_a_cut_one_does_not() {
        let (channel, theirs) = Channel::open().unwrap();
        let mut guest = UnixStream::from(theirs);
        guest.write_all(b"{\"agent\":\"ack\",\"n\":1}\nhalf a li").unwrap();
        let n = channel
            .wait_for(0, Duration::from_secs(5), "an acknowledgement", |a| a.json_if("agent", "ack"))
            .unwrap()
            .unwrap();
        assert_eq!(n["n"], 1);
        drop(guest);
        let more = channel.wait_for(1, Duration::from_secs(5), "nothing", |_| Some(())).unwrap();
        assert!(more.is_none());
        assert_eq!(channel.count(), 1);
    }
}
