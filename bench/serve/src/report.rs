//! Results: JSON for programs, a table for people.

use std::time::Duration;

use afterimage_report::number::scaled;
use afterimage_report::{or_dash, Spread, Table};
use serde::{Deserialize, Serialize};

use crate::cells::{self, Place};
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
    /// What was measured how, and the table: laid out for a terminal.
    pub fn text(&self) -> String {
        format!("{}\n\n{}", self.words(), self.table().text())
    }

    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        format!("{}.\n\n{}", self.words(), self.table().markdown())
    }

    fn words(&self) -> String {
        let Self { ours, peer, machine, seconds, rounds, .. } = self;
        format!("{ours} against {peer}; {machine}; {rounds} interleaved rounds of {seconds} s")
    }

    fn table(&self) -> Table {
        let heads = "cell|ratio|CPU ratio|goal|requests/s|peer|p50 µs|peer|p99 µs|peer|CPU µs|peer|peer mode"
            .split('|');
        Table::new(heads).right(1..12).with(self.cells.iter().map(|cell| self.row(cell)))
    }

    /// Older results have no goal for streams, and beside another build there is none.
    fn goal(&self, cell: &CellReport) -> Option<f64> {
        let today = || cells::all().into_iter().find(|c| c.name() == cell.cell).map(|c| c.target);
        cell.target.or_else(|| self.peer.starts_with("qemu-storage-daemon").then(today)?)
    }

    fn row(&self, cell: &CellReport) -> Vec<String> {
        let median =
            |runs: &[Run], number: fn(&Run) -> f64| Spread::of(runs.iter().map(number)).map(|s| s.median);
        let both = |number: fn(&Run) -> f64, show: fn(f64) -> String| {
            [&cell.ours, &cell.peer].map(|runs| or_dash(median(runs, number), show))
        };
        let two = |value: f64| format!("{value:.2}");
        let goal = self.goal(cell).map(|goal| {
            let verdict = if cell.iops_ratio.median >= goal { "met" } else { "missed" };
            format!("{goal:.1}, {verdict}")
        });
        [cell.cell.clone(), cell.iops_ratio.show(two), cell.cpu_ratio.show(two), goal.unwrap_or_default()]
            .into_iter()
            .chain(both(|r| r.iops, scaled))
            .chain(both(|r| r.p50_us, |us| format!("{us:.1}")))
            .chain(both(|r| r.p99_us, |us| format!("{us:.1}")))
            .chain(both(|r| r.cpu_us, |us| format!("{us:.2}")))
            .chain([cell.peer_mode.clone()])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_one_of_a_pair_and_is_held_against_its_goal() {
        let runs = |numbers: [f64; 3]| {
            numbers.map(|n| Run { iops: n, p50_us: 1.0, p99_us: 1.0, cpu_us: n }).to_vec()
        };
        // The medians are alike; in the pairs ours is 4, 1/2 and 1/2 of theirs.
        let (ours, peer) = (runs([4.0, 2.0, 1.0]), runs([1.0, 4.0, 2.0]));
        let ratio = Spread::of_pairs(&ours, &peer, |ours, theirs| ours.cpu_us / theirs.cpu_us).unwrap();
        let cell = CellReport {
            cell: "tmpfs 1024 KiB sequential read, depth 4, 1 queue".to_owned(),
            place: Place::Memory,
            peer_mode: "native".to_owned(),
            calibration: Vec::new(),
            ours,
            peer,
            iops_ratio: ratio,
            cpu_ratio: ratio,
            target: None,
        };
        let report = |peer: &str| Report {
            ours: "afterimage power".to_owned(),
            peer: peer.to_owned(),
            machine: "one".to_owned(),
            seconds: 1.0,
            rounds: 3,
            cells: Vec::new(),
        };
        let shown = ["0.50 (0.50–4.00)", "0.50 (0.50–4.00)", "1.0, missed"];
        assert_eq!(report("qemu-storage-daemon 7.2").row(&cell)[1..4], shown);
        assert_eq!(report("the build beside it").row(&cell)[3], "");
    }

    #[test]
    fn the_page_holds_what_the_raw_results_say() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(folder.join("README.md")).unwrap();
        for name in ["power-memory", "power-disk"] {
            let path = folder.join(format!("results/{name}.json.zst"));
            let report: Report = afterimage_bench_kit::read(&path, "serve-driver").unwrap();
            assert!(page.contains(&report.markdown()), "--tables {} --into the page", path.display());
        }
    }
}
