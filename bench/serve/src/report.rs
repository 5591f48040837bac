//! Results: JSON for programs, a table for people.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cells::Place;
use crate::driver::Reached;

/// One run of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Requests a second.
    pub iops: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// The server's CPU time for each request, in microseconds.
    pub cpu_us: f64,
}

impl Run {
    /// From what the driver and the process table say.
    pub fn new(reached: &Reached, cpu: Duration) -> Self {
        let requests = reached.requests.max(1) as f64;
        let us = |quantile| reached.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            iops: requests / reached.wall.as_secs_f64(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            cpu_us: cpu.as_secs_f64() * 1e6 / requests,
        }
    }
}

/// A number of several rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of a non-empty list.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let median = if n % 2 == 1 { values[n / 2] } else { (values[n / 2 - 1] + values[n / 2]) / 2.0 };
        Self { median, min: values[0], max: values[n - 1] }
    }
}

/// One comparison.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellReport {
    /// The cell in words.
    pub cell: String,
    /// Where the image was.
    pub place: Place,
    /// The mode of qemu-storage-daemon that was fastest in the calibration.
    pub peer_mode: String,
    /// What every mode reached in the calibration, in requests a second.
    pub calibration: Vec<(String, f64)>,
    /// Our rounds.
    pub ours: Vec<Run>,
    /// Theirs, interleaved with ours.
    pub peer: Vec<Run>,
    /// Ours divided by theirs, round by round.
    pub iops_ratio: Spread,
    /// The same for the CPU time a request; below 1 is less than theirs.
    pub cpu_ratio: Spread,
    /// What the median ratio should at least be.
    pub target: Option<f64>,
}

/// A whole run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// What was measured.
    pub ours: String,
    /// Its peer, with its version.
    pub peer: String,
    /// Kernel and processors.
    pub machine: String,
    /// Seconds of each round.
    pub seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// The comparisons.
    pub cells: Vec<CellReport>,
}

impl Report {
    /// What was measured how, and the header of the table.
    pub fn heading(&self) -> String {
        let Self { ours, peer, machine, seconds, rounds, .. } = self;
        format!(
            "{ours} against {peer}\n{machine}; {rounds} interleaved rounds of {seconds} s\n\n{}",
            header()
        )
    }
}

/// The header of the table.
fn header() -> String {
    format!(
        "{:<46} {:>8} {:>8} {:>6} {:>13} {:>7} {:>7} {:>8} {:>8} {:>6} {:>6} {:>6}  {}",
        "",
        "ours",
        "qsd",
        "ratio",
        "(min..max)",
        "p50 µs",
        "qsd",
        "p99 µs",
        "qsd",
        "CPU µs",
        "qsd",
        "goal",
        "qsd mode"
    )
}

/// One row.
pub fn row(cell: &CellReport) -> String {
    let median = |runs: &[Run], f: fn(&Run) -> f64| Spread::of(runs.iter().map(f)).median;
    let (ours, peer) = (&cell.ours, &cell.peer);
    format!(
        "{:<46} {:>8} {:>8} {:>6.2} {:>13} {:>7.1} {:>7.1} {:>8.1} {:>8.1} {:>6.2} {:>6.2} {:>6}  {}",
        cell.cell,
        count(median(ours, |r| r.iops)),
        count(median(peer, |r| r.iops)),
        cell.iops_ratio.median,
        format!("({:.2}..{:.2})", cell.iops_ratio.min, cell.iops_ratio.max),
        median(ours, |r| r.p50_us),
        median(peer, |r| r.p50_us),
        median(ours, |r| r.p99_us),
        median(peer, |r| r.p99_us),
        median(ours, |r| r.cpu_us),
        median(peer, |r| r.cpu_us),
        cell.target.map_or(String::new(), |t| format!("{t:.1}")),
        cell.peer_mode,
    )
}

fn count(iops: f64) -> String {
    if iops >= 100_000.0 {
        format!("{:.0} K", iops / 1e3)
    } else if iops >= 1000.0 {
        format!("{:.1} K", iops / 1e3)
    } else {
        format!("{iops:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_lists() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }
}
