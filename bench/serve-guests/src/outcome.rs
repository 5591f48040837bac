//! What the guest said, as numbers.

use afterimage_lab::channel::Arrival;
use serde_json::Value;

use crate::catalog::Workload;
use crate::error::{BenchError, Result};
use crate::record::{GuestIo, LatencySummary};

/// One workload's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Operations.
    pub operations: u64,
    /// Seconds.
    pub elapsed_s: f64,
    /// Each fsync.
    pub fsync: Option<LatencySummary>,
    /// OLTP's 99th percentile.
    pub transaction_p99_ms: Option<f64>,
    /// The measured part.
    pub guest: GuestIo,
    /// Until after the unmount.
    pub guest_whole: GuestIo,
}

fn strange(what: impl Into<String>) -> BenchError {
    BenchError::Workload(what.into())
}

/// Reads the guest's reports and its script's output.
///
/// # Errors
/// Something that has to be there is not.
pub fn read(workload: Workload, reports: &[Arrival], output: &str) -> Result<Outcome> {
    let mark = |name: &str| {
        // The first: fio's script marks the end before it prints its result, and the frame marks it again.
        reports
            .iter()
            .find_map(|arrival| arrival.json_if("bench", name))
            .ok_or_else(|| strange(format!("{}: the guest did not report '{name}'", workload.name())))
    };
    let (begin, end, done) = (mark("begin")?, mark("end")?, mark("done")?);
    let ns = |mark: &Value| mark["ns"].as_u64().unwrap_or(0);
    let span_s = ns(&end).saturating_sub(ns(&begin)) as f64 / 1e9;
    let from = stat(&begin)?;
    let guest = stat(&end)?.since(&from);
    let guest_whole = stat(&done)?.since(&from);
    let agent = reports.iter().rev().find_map(|arrival| arrival.json_if("agent", "workload"));

    let (operations, elapsed_s, fsync, transaction_p99_ms) = match workload {
        Workload::Varmail | Workload::Fileserver | Workload::Webserver => {
            let said = agent.ok_or_else(|| strange(format!("{}: no result: {output}", workload.name())))?;
            (
                said["operations"].as_u64().unwrap_or(0),
                said["elapsed_ns"].as_f64().unwrap_or(0.0) / 1e9,
                agent_latency(&said["fsync"]),
                None,
            )
        }
        Workload::Randwrite | Workload::Seqwrite | Workload::Fsync4k => fio(output)?,
        Workload::Sqlite | Workload::Postmark => {
            (number_after(output, "transactions:")? as u64, span_s, None, None)
        }
        Workload::Oltp => (
            number_after(output, "transactions:")? as u64,
            number_after(output, "total time:")?,
            None,
            Some(number_after(output, "99th percentile:")?),
        ),
    };
    if operations == 0 || elapsed_s <= 0.0 {
        return Err(strange(format!("{}: nothing was done: {output}", workload.name())));
    }
    Ok(Outcome { operations, elapsed_s, fsync, transaction_p99_ms, guest, guest_whole })
}

fn agent_latency(said: &Value) -> Option<LatencySummary> {
    let count = said["count"].as_u64().filter(|count| *count > 0)?;
    let us = |name: &str| said[name].as_f64().unwrap_or(0.0);
    Some(LatencySummary { count, p50_us: us("p50_us"), p99_us: us("p99_us"), max_us: us("max_us") })
}

type Numbers = (u64, f64, Option<LatencySummary>, Option<f64>);

fn fio(output: &str) -> Result<Numbers> {
    let text = output.find('{').map_or("", |at| &output[at..]);
    let said: Value = serde_json::Deserializer::from_str(text)
        .into_iter()
        .next()
        .and_then(std::result::Result::ok)
        .ok_or_else(|| strange(format!("fio printed no JSON: {output}")))?;
    let job = &said["jobs"][0];
    let operations = job["write"]["total_ios"].as_u64().unwrap_or(0);
    // The job's time covers the final sync, which the writes' own time need not.
    let elapsed_s = job["job_runtime"].as_f64().unwrap_or(0.0) / 1e3;
    let sync = &job["sync"]["lat_ns"];
    let fsync = sync["N"].as_u64().filter(|count| *count > 0).map(|count| LatencySummary {
        count,
        p50_us: sync["percentile"]["50.000000"].as_f64().unwrap_or(0.0) / 1e3,
        p99_us: sync["percentile"]["99.000000"].as_f64().unwrap_or(0.0) / 1e3,
        max_us: sync["max"].as_f64().unwrap_or(0.0) / 1e3,
    });
    Ok((operations, elapsed_s, fsync, None))
}

/// The number that follows `label`.
fn number_after(output: &str, label: &str) -> Result<f64> {
    let rest = output.split_once(label).map(|(_, rest)| rest.trim_start());
    let digits = rest.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        &rest[..end]
    });
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| strange(format!("no number after '{label}' in: {output}")))
}

/// `/sys/block/DISK/stat` (Documentation/block/stat.rst): sectors of 512 bytes.
fn stat(mark: &Value) -> Result<GuestIo> {
    let words: Vec<u64> = mark["stat"]
        .as_str()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    if words.len() < 17 {
        return Err(strange("the guest's kernel counts no flushes: it needs Linux 5.5 or newer"));
    }
    Ok(GuestIo {
        reads: words[0],
        read_bytes: words[2] * 512,
        writes: words[4],
        write_bytes: words[6] * 512,
        discards: words[11],
        flushes: words[15],
    })
}

impl GuestIo {
    fn since(&self, earlier: &GuestIo) -> GuestIo {
        GuestIo {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            discards: self.discards - earlier.discards,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(line: &str) -> Arrival {
        Arrival { at_ns: 0, line: line.to_owned() }
    }

    fn marks() -> Vec<Arrival> {
        let line = |name: &str, ns: u64, writes: u64, flushes: u64| {
            arrival(&format!(
                "{{\"bench\":\"{name}\",\"ns\":{ns},\"stat\":\"1 0 8 0 {writes} 0 {} 0 0 0 0 0 0 0 0 {flushes} 9\"}}",
                writes * 8
            ))
        };
        vec![
            line("begin", 1_000_000_000, 10, 4),
            line("end", 3_000_000_000, 30, 8),
            line("end", 3_500_000_000, 30, 8),
            line("done", 4_000_000_000, 40, 9),
        ]
    }

    #[test]
    fn counts_between_the_marks() {
        let outcome = read(Workload::Sqlite, &marks(), "noise\ntransactions: 100\n").unwrap();
        assert_eq!((outcome.operations, outcome.elapsed_s), (100, 2.0));
        assert_eq!(
            (outcome.guest.writes, outcome.guest.write_bytes, outcome.guest.flushes),
            (20, 20 * 4096, 4)
        );
        assert_eq!((outcome.guest_whole.writes, outcome.guest_whole.flushes), (30, 5));
    }

    #[test]
    fn reads_sysbench_and_fio() {
        let text =
            "    transactions:                        202    (47.91 per sec.)\n    total time:     4.1581s\n\
                    99th percentile:                      475.79\n";
        let outcome = read(Workload::Oltp, &marks(), text).unwrap();
        assert_eq!((outcome.operations, outcome.elapsed_s), (202, 4.1581));
        assert_eq!(outcome.transaction_p99_ms, Some(475.79));
        let text = "warning\n{\"jobs\":[{\"job_runtime\":500,\"write\":{\"total_ios\":40},\"sync\":{\"lat_ns\":{\"N\":2,\
                    \"max\":9000,\"percentile\":{\"50.000000\":1000,\"99.000000\":2000}}}}]}\n";
        let outcome = read(Workload::Randwrite, &marks(), text).unwrap();
        assert_eq!((outcome.operations, outcome.elapsed_s), (40, 0.5));
        assert_eq!(outcome.fsync.unwrap().p99_us, 2.0);
    }

    #[test]
    fn silence_is_an_error() {
        assert!(read(Workload::Varmail, &marks(), "").is_err());
        assert!(read(Workload::Sqlite, &marks()[..2], "transactions: 5").is_err());
    }
}
