//! Results: JSON for programs, a table for people.

use std::time::Duration;

use afterimage_report::number::scaled;
use afterimage_report::{or_dash, Spread, Table};
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
    /// What was measured how, and the table.
    pub fn text(&self) -> String {
        let Self { ours, peer, machine, seconds, rounds, cells } = self;
        let mut table = Table::new(
            "|ours|peer|ratio|(min..max)|p50 µs|peer|p99 µs|peer|CPU µs|peer|goal|peer mode".split('|'),
        )
        .right(1..12);
        for cell in cells {
            table.row(row(cell));
        }
        format!(
            "{ours} against {peer}\n{machine}; {rounds} interleaved rounds of {seconds} s\n\n{}",
            table.text()
        )
    }
}

fn row(cell: &CellReport) -> [String; 13] {
    let median =
        |runs: &[Run], number: fn(&Run) -> f64| Spread::of(runs.iter().map(number)).map(|s| s.median);
    let both = |number: fn(&Run) -> f64, show: fn(f64) -> String| {
        [&cell.ours, &cell.peer].map(|runs| or_dash(median(runs, number), show))
    };
    let [our_iops, peer_iops] = both(|r| r.iops, scaled);
    let [our_p50, peer_p50] = both(|r| r.p50_us, |us| format!("{us:.1}"));
    let [our_p99, peer_p99] = both(|r| r.p99_us, |us| format!("{us:.1}"));
    let [our_cpu, peer_cpu] = both(|r| r.cpu_us, |us| format!("{us:.2}"));
    let ratio = &cell.iops_ratio;
    [
        cell.cell.clone(),
        our_iops,
        peer_iops,
        format!("{:.2}", ratio.median),
        format!("({:.2}..{:.2})", ratio.min, ratio.max),
        our_p50,
        peer_p50,
        our_p99,
        peer_p99,
        our_cpu,
        peer_cpu,
        cell.target.map_or(String::new(), |target| format!("{target:.1}")),
        cell.peer_mode.clone(),
    ]
}
