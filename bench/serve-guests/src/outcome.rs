//! What the guest said, as numbers.

use afterimage_lab::channel::Arrival;
use afterimage_protocol::report::{Agent, Latencies};
use serde::Deserialize;

use crate::catalog::Workload;
use crate::record::LatencySummary;
use afterimage_bench_kit::io::GuestIo;
use afterimage_bench_kit::{BenchError, Result};

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
    let (mut marks, mut agent) = (Vec::new(), None);
    for arrival in reports {
        marks.extend(arrival.report::<Mark>("bench")?);
        if let Some(Agent::Workload(said)) = arrival.agent()? {
            agent = Some(said);
        }
    }
    let mark = |name: &str| {
        // The first: fio's script marks the end before it prints its result, and the frame marks it again.
        let found = marks.iter().find(|mark| mark.bench == name);
        found.ok_or_else(|| strange(format!("{}: the guest did not report '{name}'", workload.name())))
    };
    let (begin, end, done) = (mark("begin")?, mark("end")?, mark("done")?);
    let span_s = end.ns.saturating_sub(begin.ns) as f64 / 1e9;
    let from = GuestIo::of_stat(&begin.stat)?;
    let guest = GuestIo::of_stat(&end.stat)?.since(&from);
    let guest_whole = GuestIo::of_stat(&done.stat)?.since(&from);

    let (operations, elapsed_s, fsync, transaction_p99_ms) = match workload {
        Workload::Varmail | Workload::Fileserver | Workload::Webserver => {
            let said = agent.ok_or_else(|| strange(format!("{}: no result: {output}", workload.name())))?;
            (said.operations, said.elapsed_ns as f64 / 1e9, agent_latency(&said.fsync), None)
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

/// A mark of the script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    bench: String,
    /// The guest's wall clock, in nanoseconds.
    ns: u64,
    /// `/sys/block/DISK/stat`
    stat: String,
}

/// An agent's account of its fsyncs.
pub fn agent_latency(said: &Latencies) -> Option<LatencySummary> {
    let Latencies { count, p50_us, p99_us, max_us, .. } = *said;
    (count > 0).then_some(LatencySummary { count, p50_us, p99_us, max_us })
}

/// What is read of fio's JSON; the rest is fio's own.
#[derive(Debug, Deserialize)]
struct Fio {
    jobs: Vec<FioJob>,
}

#[derive(Debug, Deserialize)]
struct FioJob {
    job_runtime: f64,
    write: FioWrites,
    sync: FioSyncs,
}

#[derive(Debug, Deserialize)]
struct FioWrites {
    total_ios: u64,
}

#[derive(Debug, Deserialize)]
struct FioSyncs {
    lat_ns: FioLatency,
}

#[derive(Debug, Deserialize)]
struct FioLatency {
    #[serde(rename = "N")]
    count: u64,
    /// Missing, as the percentiles are, where nothing was synced.
    max: Option<f64>,
    percentile: Option<FioPercentiles>,
}

#[derive(Debug, Deserialize)]
struct FioPercentiles {
    #[serde(rename = "50.000000")]
    p50: f64,
    #[serde(rename = "99.000000")]
    p99: f64,
}

/// Operations, seconds, fsyncs, and a transaction's 99th percentile.
pub type Numbers = (u64, f64, Option<LatencySummary>, Option<f64>);

/// What fio's JSON says.
///
/// # Errors
/// It is none.
pub fn fio(output: &str) -> Result<Numbers> {
    let text = output.find('{').map_or("", |at| &output[at..]);
    let unread =
        |error: &dyn std::fmt::Display| strange(format!("fio's JSON can not be read ({error}): {output}"));
    let mut said = serde_json::Deserializer::from_str(text);
    let Fio { jobs } = Fio::deserialize(&mut said).map_err(|error| unread(&error))?;
    let job = jobs.first().ok_or_else(|| unread(&"no job"))?;
    let fsync = match &job.sync.lat_ns {
        FioLatency { count: 0, .. } => None,
        FioLatency { count, max: Some(max), percentile: Some(percentile) } => Some(LatencySummary {
            count: *count,
            p50_us: percentile.p50 / 1e3,
            p99_us: percentile.p99 / 1e3,
            max_us: max / 1e3,
        }),
        _ => return Err(unread(&"syncs without latencies")),
    };
    // The job's time covers the final sync, which the writes' own time need not.
    Ok((job.write.total_ios, job.job_runtime / 1e3, fsync, None))
}

/// The number that follows `label`.
///
/// # Errors
/// There is none.
pub fn number_after(output: &str, label: &str) -> Result<f64> {
    let rest = output.split_once(label).map(|(_, rest)| rest.trim_start());
    let digits = rest.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        &rest[..end]
    });
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| strange(format!("no number after '{label}' in: {output}")))
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
        let renamed = |from: &str, to: &str| -> Vec<Arrival> {
            marks().iter().map(|mark| arrival(&mark.line.replace(from, to))).collect()
        };
        for (from, to) in [("\"ns\"", "\"time\""), ("\"stat\"", "\"counters\""), ("1 0 8", "1 x 8")] {
            assert!(read(Workload::Sqlite, &renamed(from, to), "transactions: 5").is_err(), "{to}");
        }
        let fio =
            "{\"jobs\":[{\"job_runtime\":500,\"write\":{\"total_ios\":40},\"sync\":{\"lat_ns\":{\"N\":2}}}]}";
        assert!(read(Workload::Randwrite, &marks(), fio).is_err(), "two syncs have a latency");
        assert!(read(Workload::Randwrite, &marks(), &fio.replace("total_ios", "ios")).is_err());
        assert!(read(Workload::Randwrite, &marks(), &fio.replace("\"N\":2", "\"N\":0")).is_ok());
    }
}
