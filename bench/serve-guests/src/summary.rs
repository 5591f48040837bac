//! From records to ratios.
//!
//! A ratio is formed within one round, of two cells that ran minutes apart on the same machine; the summary is
//! their median and their spread. Ratios of different rounds' cells are never formed.

use std::collections::BTreeMap;

use afterimage_report::Spread;

use crate::catalog::{Device, Row, Workload};
use crate::record::Record;

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// Inside the guest.
    pub workload: Workload,
    /// Below the daemon.
    pub device: Device,
    /// The daemon.
    pub row: Row,
    /// Operations per second.
    pub ops_per_s: Spread,
    /// fsync inside the guest, microseconds.
    pub fsync_p50_us: Option<Spread>,
    /// The same.
    pub fsync_p99_us: Option<Spread>,
    /// Throughput over that of nested journaling in the same round.
    pub to_nested: Option<Spread>,
    /// Over that of `writeback`.
    pub to_writeback: Option<Spread>,
    /// Over that of `no-flush`.
    pub to_no_flush: Option<Spread>,
    /// The guest's flushes.
    pub guest_flushes: Spread,
    /// Flushes of storage.
    pub storage_flushes: Option<Spread>,
    /// Flushes of storage per guest flush.
    pub flushes_per_guest_flush: Option<Spread>,
    /// Bytes to storage per guest flush.
    pub bytes_per_guest_flush: Option<Spread>,
    /// Write requests to storage per guest flush.
    pub writes_per_guest_flush: Option<Spread>,
    /// Bytes to storage over bytes that the guest wrote.
    pub bytes_amplification: Option<Spread>,
    /// Bytes written to storage.
    pub storage_bytes: Spread,
    /// Processor time of the daemon in seconds.
    pub cpu_s: Spread,
}

/// All lines, in the order of the catalogue.
pub fn lines<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Line> {
    let mut cells: BTreeMap<(Device, Workload, Row), Vec<&Record>> = BTreeMap::new();
    for record in records {
        cells.entry((record.key.device, record.key.workload, record.key.row)).or_default().push(record);
    }
    let ratio = |mine: &[&Record], base: Row| {
        let first = mine.first()?;
        let base = cells.get(&(first.key.device, first.key.workload, base))?;
        let ratios = mine.iter().filter_map(|record| {
            let other = base.iter().find(|other| other.key.round == record.key.round)?;
            Some(record.ops_per_s / other.ops_per_s)
        });
        Spread::of(ratios)
    };
    cells
        .iter()
        .filter_map(|((device, workload, row), mine)| {
            let spread = |number: &dyn Fn(&Record) -> Option<f64>| {
                Spread::of(mine.iter().filter_map(|record| number(record)))
            };
            let per_flush = |number: &dyn Fn(&Record) -> Option<f64>| {
                spread(&|r| (r.guest_whole.flushes > 0).then_some(number(r)? / r.guest_whole.flushes as f64))
            };
            Some(Line {
                workload: *workload,
                device: *device,
                row: *row,
                ops_per_s: spread(&|r| Some(r.ops_per_s))?,
                fsync_p50_us: spread(&|r| Some(r.fsync?.p50_us)),
                fsync_p99_us: spread(&|r| Some(r.fsync?.p99_us)),
                to_nested: ratio(mine, device.nested_row()),
                to_writeback: ratio(mine, Row::Writeback),
                to_no_flush: ratio(mine, Row::NoFlush),
                guest_flushes: spread(&|r| Some(r.guest_whole.flushes as f64))?,
                storage_flushes: spread(&|r| Some(r.storage.flushes? as f64)),
                flushes_per_guest_flush: per_flush(&|r| Some(r.storage.flushes? as f64)),
                bytes_per_guest_flush: per_flush(&|r| Some(r.storage.write_bytes as f64)),
                writes_per_guest_flush: per_flush(&|r| Some(r.storage.writes? as f64)),
                bytes_amplification: spread(&|r| {
                    let written = r.guest_whole.write_bytes;
                    (written > 0).then_some(r.storage.write_bytes as f64 / written as f64)
                }),
                storage_bytes: spread(&|r| Some(r.storage.write_bytes as f64))?,
                cpu_s: spread(&|r| Some(r.daemon_cpu_s))?,
            })
        })
        .collect()
}

/// How a target came out.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The target in words.
    pub target: &'static str,
    /// Where.
    pub workload: Workload,
    /// Where.
    pub device: Device,
    /// Which row.
    pub row: Row,
    /// The ratio that must reach `wanted`.
    pub ratio: Spread,
    /// Whether its median does.
    pub met: bool,
}

/// The target against no-flush.
pub const NO_FLUSH_TARGET: &str =
    "power-window=50ms at least 0.95× of no-flush on fsync-bound runs that fit the log";
/// The target against writeback.
pub const WRITEBACK_TARGET: &str = "power-window=50ms never below writeback";

/// Holds the lines against the targets.
pub fn verdicts(lines: &[Line]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for line in lines {
        let mut judge = |target, ratio: Option<Spread>, wanted| {
            if let Some(ratio) = ratio {
                verdicts.push(Verdict {
                    target,
                    workload: line.workload,
                    device: line.device,
                    row: line.row,
                    ratio,
                    met: ratio.median >= wanted,
                });
            }
        };
        if line.row == Row::Window && line.workload.is_fsync_bound() {
            judge(NO_FLUSH_TARGET, line.to_no_flush, 0.95);
        }
        if matches!(line.row, Row::Window | Row::WindowFull) {
            judge(WRITEBACK_TARGET, line.to_writeback, 1.0);
        }
    }
    verdicts
}
