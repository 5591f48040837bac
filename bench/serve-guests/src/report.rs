//! The table for people, in Markdown that reads well in a terminal too, and the JSON file.

use std::fmt::Write as _;
use std::path::Path;

use afterimage_bench_kit::{write_all, Result};
use afterimage_report::number::{number, MIB};
use afterimage_report::{or_dash, Spread, Table};
use serde::{Deserialize, Serialize};

use crate::catalog::{Device, Row, Workload};
use crate::html;
use crate::record::{Record, Store};
use crate::scale::{Scale, LOG_FULL};
use crate::summary::{lines, verdicts, Line, Verdict};

/// The raw results, as they are committed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    scale: Scale,
    records: Vec<Record>,
}

/// Reads committed raw results.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path) -> Result<(Scale, Store)> {
    let Results { scale, records } = afterimage_bench_kit::read(path, "serve-guests")?;
    Ok((scale, Store::of(records)))
}

/// Writes the raw results `serve-guests.json.zst`, and the tables as `.md` and `.html`, into `folder`, and returns the Markdown.
///
/// # Errors
/// A file can not be written.
pub fn write(folder: &Path, scale: &Scale, store: &Store) -> Result<String> {
    let results = Results { scale: scale.clone(), records: store.records().cloned().collect() };
    let lines = lines(store.records());
    let markdown = markdown(scale, &lines, &verdicts(&lines));
    write_all(folder, "serve-guests", &results, &markdown, &html::page(scale, &lines))?;
    Ok(markdown)
}

/// The tables and the targets.
pub fn markdown(scale: &Scale, lines: &[Line], targets: &[Verdict]) -> String {
    let mut text = String::new();
    let rounds = lines.iter().map(|line| line.ops_per_s.rounds).max().unwrap_or(0);
    let scaled =
        if scale.name == "quick" { " (`--quick`: sizes and times are scaled down further)" } else { "" };
    let _ = writeln!(
        text,
        "Scale `{}`{scaled}: {} s a cell, up to {rounds} interleaved rounds. Ratios are formed within one round; \
         `a (b–c)` is the median and the spread over the rounds. The row `log full` has `--log-max {LOG_FULL}`.",
        scale.name, scale.seconds
    );
    for device in Device::ALL {
        let here: Vec<&Line> = lines.iter().filter(|line| line.device == device).collect();
        if here.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n### On {}\n", device.description());
        speed_table(&mut text, &here);
        let _ = writeln!(text);
        storage_table(&mut text, &here);
    }
    let _ = writeln!(text, "\n### Targets\n");
    target_table(&mut text, targets);
    text
}

fn speed_table(text: &mut String, lines: &[&Line]) {
    text.push_str(
        &Table::new(
            "workload|row|ops/s|fsync p50 µs|p99 µs|× nested|× writeback|× no-flush|daemon CPU s".split('|'),
        )
        .with(lines.iter().map(|line| {
            vec![
                line.workload.name().to_owned(),
                line.row.title().to_owned(),
                number(line.ops_per_s.median),
                plain(line.fsync_p50_us),
                plain(line.fsync_p99_us),
                ratio(line.to_nested),
                ratio(line.to_writeback),
                ratio(line.to_no_flush),
                format!("{:.2}", line.cpu_s.median),
            ]
        }))
        .markdown(),
    );
}

fn storage_table(text: &mut String, lines: &[&Line]) {
    text.push_str(
        &Table::new(
            "workload|row|guest flushes|storage flushes|flushes / guest flush\
            |write requests / guest flush|KiB / guest flush|bytes stored / bytes the guest wrote\
            |MiB stored"
                .split('|'),
        )
        .with(lines.iter().map(|line| {
            vec![
                line.workload.name().to_owned(),
                line.row.title().to_owned(),
                number(line.guest_flushes.median),
                plain(line.storage_flushes),
                plain(line.flushes_per_guest_flush),
                plain(line.writes_per_guest_flush),
                or_dash(line.bytes_per_guest_flush, |s| number(s.median / 1024.0)),
                plain(line.bytes_amplification),
                number(line.storage_bytes.median / MIB),
            ]
        }))
        .markdown(),
    );
}

fn target_table(text: &mut String, targets: &[Verdict]) {
    text.push_str(
        &Table::new(["target", "device", "workload", "row", "ratio", "met"])
            .with(targets.iter().map(|verdict| {
                vec![
                    verdict.target.to_owned(),
                    verdict.device.name().to_owned(),
                    verdict.workload.name().to_owned(),
                    verdict.row.title().to_owned(),
                    ratio(Some(verdict.ratio)),
                    if verdict.met { "yes" } else { "**no**" }.to_owned(),
                ]
            }))
            .markdown(),
    );
}

/// The paper's figures beside ours.
pub fn paper_table(lines: &[Line]) -> String {
    let mut text = String::new();
    let find = |workload: Workload, device: Device, row: Row| {
        lines.iter().find(|line| (line.workload, line.device, line.row) == (workload, device, row))
    };
    let mut rows = Vec::new();
    for device in Device::ALL {
        for workload in Workload::ALL {
            let Some(window) = find(workload, device, Row::Window) else { continue };
            let no_flush = find(workload, device, Row::NoFlush);
            rows.push(vec![
                device.name().to_owned(),
                workload.name().to_owned(),
                workload.paper().to_owned(),
                ratio(window.to_nested),
                ratio(window.to_no_flush),
                ratio(no_flush.and_then(|line| line.to_nested)),
            ]);
        }
    }
    text.push_str(
        &Table::new(
            "device|workload|the paper (10,000 rpm disk)|power-window × nested\
            |power-window × no-flush|no-flush × nested"
                .split('|'),
        )
        .with(rows)
        .markdown(),
    );
    text
}

fn ratio(spread: Option<Spread>) -> String {
    or_dash(spread, |spread| spread.show(|value| format!("{value:.2}")))
}

fn plain(spread: Option<Spread>) -> String {
    or_dash(spread, |s| number(s.median))
}
