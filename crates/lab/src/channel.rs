//! The host's end of a guest's report channel: lines with their time of arrival.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_protocol::report::{self, Agent};
use parking_lot::{Condvar, Mutex};
use serde::de::DeserializeOwned;

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
    /// What `speaker` reports here; `None` where somebody else speaks.
    ///
    /// # Errors
    /// The line is no JSON object, or the speaker's, and not exactly a `T`. A line that was cut short by the guest's death never
    /// arrives.
    pub fn report<T: DeserializeOwned>(&self, speaker: &str) -> Result<Option<T>> {
        Ok(report::read(&self.line, speaker)?)
    }

    /// What the agent reports here.
    ///
    /// # Errors
    /// As [`Arrival::report`].
    pub fn agent(&self) -> Result<Option<Agent>> {
        self.report("agent")
    }

    /// Whether the line is a JSON object whose member `key` is the string `value`: for those who wait for one.
    pub fn says(&self, key: &str, value: &str) -> bool {
        // The cheap test first: most lines of a long run are acknowledgements.
        self.line.contains(value)
            && serde_json::from_str::<serde_json::Value>(&self.line).is_ok_and(|json| json[key] == value)
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
        self.shared.state.lock().lines.clone()
    }

    /// How many lines have come so far.
    pub fn count(&self) -> usize {
        self.shared.state.lock().lines.len()
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
        let mut state = self.shared.state.lock();
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
            self.shared.news.wait_for(&mut state, left);
        }
    }

    /// Waits until the guest's end is closed, so that [`Channel::lines`] is everything there will be.
    pub fn wait_closed(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while !state.closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.shared.news.wait_for(&mut state, left);
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
                shared.state.lock().lines.push(Arrival { at_ns: monotonic_ns(), line });
                shared.news.notify_all();
            }
            _ => {
                shared.state.lock().closed = true;
                shared.news.notify_all();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use afterimage_protocol::report::Ack;

    use super::*;

    #[test]
    fn lines_arrive_and_a_cut_one_does_not() {
        let (channel, theirs) = Channel::open().unwrap();
        let mut guest = UnixStream::from(theirs);
        let whole = r#"{"agent":"ack","n":1,"thread":0,"slot":0,"floor":0,"ns":5,"fsync_ns":2}"#;
        guest.write_all(format!("{whole}\n{}", &whole[..20]).as_bytes()).unwrap();
        let said = channel
            .wait_for(0, Duration::from_secs(5), "an acknowledgement", |line| Some(line.agent()))
            .unwrap()
            .unwrap();
        assert!(matches!(said, Ok(Some(Agent::Ack(Ack { n: 1, .. })))), "{said:?}");
        drop(guest);
        let more = channel.wait_for(1, Duration::from_secs(5), "nothing", |_| Some(())).unwrap();
        assert!(more.is_none());
        assert_eq!(channel.count(), 1);
    }
}
