//! The daemon's own view of what it retains, ten times a second (Fig. 17).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use afterimage_protocol::status::{FileSystemStatus, StatusAnswer};

use crate::record::Sample;
use afterimage_bench_kit::{BenchError, Context, Result};

const EVERY: Duration = Duration::from_millis(100);

/// A thread that asks.
#[derive(Debug)]
pub struct Sampler {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Sample>>>,
}

impl Sampler {
    /// Starts asking.
    ///
    /// # Errors
    /// Nobody listens on the socket.
    pub fn start(control: &Path) -> Result<Sampler> {
        let stream = UnixStream::connect(control).context(|| format!("connect to {}", control.display()))?;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || sample(stream, &seen))
            .context(|| "start a thread".to_owned())?;
        Ok(Sampler { ended, thread })
    }

    /// Ends, and returns what was heard.
    ///
    /// # Errors
    /// The daemon's answer cannot be read.
    pub fn stop(self) -> Result<Vec<Sample>> {
        self.ended.store(true, Ordering::Release);
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| Err(BenchError::Workload("the sampler died".to_owned())))
    }
}

fn sample(stream: UnixStream, ended: &AtomicBool) -> Result<Vec<Sample>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    let mut writer = stream.try_clone().context(|| "duplicate a socket".to_owned())?;
    let mut answers = BufReader::new(stream).lines();
    let mut due = start;
    while !ended.load(Ordering::Acquire) {
        let at_ms = start.elapsed().as_millis() as u64;
        match ask(&mut writer, &mut answers) {
            Ok(file_systems) => samples.push(Sample { at_ms, file_systems }),
            // A daemon that has gone is the cell's to notice.
            Err(BenchError::Io { .. }) => break,
            Err(error) => return Err(error),
        }
        due += EVERY;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(samples)
}

fn ask(
    writer: &mut UnixStream,
    answers: &mut impl Iterator<Item = std::io::Result<String>>,
) -> Result<Vec<FileSystemStatus>> {
    writer.write_all(b"{\"command\":\"status\"}\n").context(|| "ask the daemon".to_owned())?;
    let line = answers
        .next()
        .unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()))
        .context(|| "read from the daemon".to_owned())?;
    let status: StatusAnswer = serde_json::from_str(&line).map_err(|error| {
        BenchError::Workload(format!("the daemon's status can not be read ({error}): {line}"))
    })?;
    let first = status.disks.into_iter().next();
    Ok(first
        .ok_or_else(|| BenchError::Workload("the daemon's status names no disk".to_owned()))?
        .file_systems)
}
