//! The channel to the host: JSON lines, each in one write, so that lines of several threads never mix.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;

use afterimage_protocol::report;
use serde::Serialize;

use crate::args::Arguments;
use crate::sys;

/// The channel.
pub struct Report {
    file: Mutex<File>,
}

impl Report {
    /// Opens `--report FILE`, else `$AFTERIMAGE_REPORT`, else standard output.
    pub fn open(arguments: &mut Arguments) -> io::Result<Report> {
        let path = arguments.option("report").or_else(|| std::env::var("AFTERIMAGE_REPORT").ok());
        let file = match path.filter(|path| !path.is_empty()) {
            Some(path) => {
                // In /dev a mistyped name must not become a file that nobody reads.
                let fresh = !path.starts_with("/dev/");
                let file = OpenOptions::new().append(true).create(fresh).open(&path).map_err(|error| {
                    io::Error::new(error.kind(), format!("report channel {path}: {error}"))
                })?;
                sys::make_raw(&file)?;
                file
            }
            None => File::from(io::stdout().as_fd().try_clone_to_owned()?),
        };
        Ok(Report { file: Mutex::new(file) })
    }

    /// Sends a report; returns when the kernel has taken all of it.
    pub fn say(&self, report: &impl Serialize) -> io::Result<()> {
        self.line(&serde_json::to_string(report)?)
    }

    /// Sends one line; returns when the kernel has taken all of it.
    pub fn line(&self, json: &str) -> io::Result<()> {
        let mut text = String::with_capacity(json.len() + 1);
        text.push_str(json);
        text.push('\n');
        let mut file = match self.file.lock() {
            Ok(file) => file,
            // Another thread died while it held the channel: the line it sent may be cut, ours is not.
            Err(poisoned) => poisoned.into_inner(),
        };
        file.write_all(text.as_bytes())
    }
}

/// `say`: one line from a shell script.
pub fn say(mut arguments: Arguments) -> io::Result<()> {
    let report = Report::open(&mut arguments)?;
    let line = arguments.words().join(" ");
    arguments.finish()?;
    report.line(&line)
}

/// Latencies, and their summary.
#[derive(Default)]
pub struct Latencies {
    ns: Vec<u64>,
}

impl Latencies {
    /// Remembers one.
    pub fn add(&mut self, ns: u64) {
        self.ns.push(ns);
    }

    /// Takes over another thread's.
    pub fn merge(&mut self, other: Latencies) {
        self.ns.extend(other.ns);
    }

    /// Each, as they came.
    pub fn all_ns(&self) -> &[u64] {
        &self.ns
    }

    /// What is reported of them; all 0 where there is none.
    pub fn summary(&mut self) -> report::Latencies {
        self.ns.sort_unstable();
        let count = self.ns.len();
        if count == 0 {
            return report::Latencies::default();
        }
        let at = |per_mille: usize| self.ns[((count - 1) * per_mille) / 1000] as f64 / 1000.0;
        let mean_us = (self.ns.iter().sum::<u64>() as f64 / count as f64).round() / 1000.0;
        report::Latencies { count: count as u64, p50_us: at(500), p99_us: at(990), max_us: at(1000), mean_us }
    }
}
