//! How fast each trace format is read: it must never be what a run waits for.

use std::hint::black_box;
use std::io::Cursor;
use std::path::Path;

use afterimage_flash::trace::{Class, Format, Kind, Options, Reader, Request, Writer};
use afterimage_flash::workload::Random;
use serde::{Deserialize, Serialize};

use crate::cell::processor_time;

/// Requests handed over at once.
const BATCH: usize = 4096;

/// A format's rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parsed {
    /// The format's name.
    pub format: String,
    /// Requests a second of processor time, round by round.
    pub requests_per_s: Vec<f64>,
    /// Bytes of text a request takes.
    pub bytes_per_request: f64,
}

/// Reads `requests` random 4 KiB writes in every format, `rounds` times.
///
/// # Errors
/// One sentence; a trace that was just written must be readable.
pub fn all(requests: u64, rounds: usize) -> Result<Vec<Parsed>, String> {
    Format::ALL.into_iter().map(|format| one(format, requests, rounds)).collect()
}

fn one(format: Format, requests: u64, rounds: usize) -> Result<Parsed, String> {
    let text = trace(format, requests).map_err(|e| format!("{format}: {e}"))?;
    let bytes = text.len();
    let mut requests_per_s = Vec::new();
    for _ in 0..rounds {
        let source = Box::new(Cursor::new(text.clone()));
        let start = processor_time();
        let mut reader =
            Reader::new(Path::new("memory"), source, &Options::default()).map_err(|e| e.to_string())?;
        let mut read = 0_u64;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            // As a run does it.
            let more = reader.read_into(&mut batch, BATCH).map_err(|e| e.to_string())?;
            // Somebody wants them: what is not looked at the compiler may leave out.
            read += black_box(&batch).len() as u64;
            if !more {
                break;
            }
            batch.clear();
        }
        let seconds = (processor_time() - start).as_secs_f64();
        if read != requests || reader.format() != format {
            return Err(format!(
                "of {requests} requests in {format}, {read} were read, as {}",
                reader.format()
            ));
        }
        requests_per_s.push(read as f64 / seconds);
    }
    Ok(Parsed {
        format: format.name().to_owned(),
        requests_per_s,
        bytes_per_request: bytes as f64 / requests as f64,
    })
}

fn trace(format: Format, requests: u64) -> std::io::Result<Vec<u8>> {
    let mut random = Random::new(1);
    let mut writer = Writer::new(Vec::new(), format)?;
    for i in 0..requests {
        writer.request(&Request {
            time_ns: Some(i * 100_000),
            device: 0,
            kind: Kind::Write,
            // 32 GB.
            offset: u64::from(random.below(8 << 20)) * 4096,
            bytes: 4096,
            class: Class::Home,
        })?;
    }
    writer.finish()
}
