//! The table for people, in Markdown that reads well in a terminal too, and the JSON file.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use afterimage_lab::spread::Spread;
use afterimage_lab::text::{markdown_table, number};
use serde::{Deserialize, Serialize};

use crate::catalog::{Device, Row, Workload};
use crate::error::{Context, Result};
use crate::plot;
use crate::record::Record;
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
pub fn read(path: &Path) -> Result<(Scale, Vec<Record>)> {
    let Results { scale, records } = afterimage_results::read(path, "serve-guests")?.results;
    Ok((scale, records))
}

/// Writes the raw results `serve-guests.json.zst`, and the tables as `.md` and `.html`, into `folder`, and returns the Markdown.
///
/// # Errors
/// A file can not be written.
pub fn write(folder: &Path, scale: &Scale, records: &[Record]) -> Result<String> {
    let lines = lines(records);
    let targets = verdicts(&lines);
    let results = Results { scale: scale.clone(), records: records.to_vec() };
    afterimage_results::write(&folder.join("serve-guests.json.zst"), "serve-guests", &results)?;
    let markdown = markdown(scale, &lines, &targets);
    for (name, text) in [("serve-guests.md", &markdown), ("serve-guests.html", &plot::html(scale, &lines))] {
        // Written beside and renamed: a reader never sees half a report.
        let path = folder.join(name);
        let fresh = folder.join(format!("{name}.new"));
        fs::write(&fresh, text).context(|| format!("write {}", fresh.display()))?;
        fs::rename(&fresh, &path).context(|| format!("write {}", path.display()))?;
    }
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
    markdown_table(
        text,
        &[
            "workload",
            "row",
            "ops/s",
            "fsync p50 µs",
            "p99 µs",
            "× nested",
            "× writeback",
            "× no-flush",
            "daemon CPU s",
        ],
        lines.iter().map(|line| {
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
        }),
    );
}

fn storage_table(text: &mut String, lines: &[&Line]) {
    markdown_table(
        text,
        &[
            "workload",
            "row",
            "guest flushes",
            "storage flushes",
            "flushes / guest flush",
            "write requests / guest flush",
            "KiB / guest flush",
            "bytes stored / bytes the guest wrote",
            "MiB stored",
        ],
        lines.iter().map(|line| {
            let two = |spread: Option<Spread>| spread.map_or("–".to_owned(), |s| number(s.median));
            vec![
                line.workload.name().to_owned(),
                line.row.title().to_owned(),
                number(line.guest_flushes.median),
                plain(line.storage_flushes),
                two(line.flushes_per_guest_flush),
                two(line.writes_per_guest_flush),
                line.bytes_per_guest_flush.map_or("–".to_owned(), |s| number(s.median / 1024.0)),
                two(line.bytes_amplification),
                number(line.storage_bytes.median / f64::from(1 << 20)),
            ]
        }),
    );
}

fn target_table(text: &mut String, targets: &[Verdict]) {
    markdown_table(
        text,
        &["target", "device", "workload", "row", "ratio", "met"],
        targets.iter().map(|verdict| {
            vec![
                verdict.target.to_owned(),
                verdict.device.name().to_owned(),
                verdict.workload.name().to_owned(),
                verdict.row.title().to_owned(),
                ratio(Some(verdict.ratio)),
                if verdict.met { "yes" } else { "**no**" }.to_owned(),
            ]
        }),
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
    markdown_table(
        &mut text,
        &[
            "device",
            "workload",
            "the paper (10,000 rpm disk)",
            "power-window × nested",
            "power-window × no-flush",
            "no-flush × nested",
        ],
        rows,
    );
    text
}

fn ratio(spread: Option<Spread>) -> String {
    match spread {
        None => "–".to_owned(),
        Some(Spread { median, rounds: 1, .. }) => two(median),
        Some(s) => format!("{} ({}–{})", two(s.median), two(s.min), two(s.max)),
    }
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

fn plain(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |s| number(s.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_short() {
        let spread = Spread { median: 1.0, min: 0.5, max: 2.0, rounds: 3 };
        assert_eq!(ratio(Some(spread)), "1.00 (0.50–2.00)");
        assert_eq!(ratio(Some(Spread { rounds: 1, ..spread })), "1.00");
    }
}
