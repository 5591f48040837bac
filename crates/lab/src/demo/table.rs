//! The report as a person reads it.

use super::headline;
use super::report::{Outcome, Report, RetainReport, ScenarioReport, SpeedRow};

/// How long lines of prose may be, in characters.
const LINE_CHARS_MAX: usize = 108;

/// The whole text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let sentences = headline::sentences(report);
    if !sentences.is_empty() {
        text.push_str("\nThe journal in memory: full data journaling without journal writes\n\n");
        for sentence in &sentences {
            text.push_str(&wrapped(sentence));
        }
    }
    if let Some(retain) = &report.retain {
        text.push_str(&format!("\n{}\n", grid(&journals(retain), &[1, 2, 3, 4, 5, 6, 7])));
        text.push_str(&wrapped(&format!(
            "The same User Mode Linux guest ({} MB) each time, on {}: {}. To storage: what the daemon wrote to the image. Device: \
             what the host's page cache passed on. Time: until everything is on the device; a model's and of one run, while bytes \
             are exact.",
            retain.guest_mib, retain.medium, retain.work
        )));
    }
    // Scenarios without acknowledgements have a table of their own, or a line below if they failed.
    let deaths_seen: Vec<&ScenarioReport> =
        report.scenarios.iter().filter(|s| !s.streams.is_empty() || s.outcome != Outcome::Held).collect();
    if !deaths_seen.is_empty() {
        text.push_str("\nWhat was acknowledged, and what was lost\n\n");
        text.push_str(&grid(&deaths(&deaths_seen), &[3, 4, 5, 6, 7]));
        text.push_str(
            "\nacked: acknowledged to the host before the death. lost: of these, not there after recovery.\n\
             ms lost: from the oldest lost acknowledgement to the newest, as the guest saw them (in brackets: what\n\
             can be proved from outside the daemon; that is what the bound is held against).\n",
        );
        if report.scenarios.iter().any(|scenario| scenario.bound_ms.is_some()) {
            text.push_str("guest-crash promises nothing after a power cut, so its power is not cut.\n");
        }
    }
    if !report.speed.is_empty() {
        let medium = report.speed.first().map_or("", |row| row.medium.as_str());
        text.push_str(&format!("\nThe same work on each server, on {medium}\n\n"));
        text.push_str(&grid(&costs(&report.speed), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]));
        text.push_str(
            "\nfsync: inside the guest, after each 4 KiB append. guest: what its kernel sent. storage: what reached the\n\
             files below the server until it had ended in order, the redo log included. Counts are exact on any\n\
             machine; times are those of the model and of one run: compare rows, and use `./x bench serve` to measure.\n",
        );
    }
    if let Some(busy) = headline::busy(report).filter(|_| !report.speed.is_empty() || report.retain.is_some())
    {
        text.push_str(&format!("\n{busy}\n"));
    }
    for scenario in report.scenarios.iter().filter(|s| s.outcome != Outcome::Held) {
        let broken = scenario.checks.iter().any(|check| !check.held);
        // With checks, their own lines say it better.
        let reason = scenario.reason.as_deref().filter(|_| !broken).unwrap_or("a promise did not hold");
        text.push_str(&format!("\n{}: {reason}\n", scenario.name));
        for check in scenario.checks.iter().filter(|check| !check.held) {
            text.push_str(&format!("    broken: {}: {}\n", check.promise, check.detail));
        }
        if let Some(evidence) = &scenario.evidence {
            text.push_str(&format!("    evidence: {evidence}\n"));
        }
    }
    text.push_str(&format!(
        "\n{} (seed {}, {:.0} s)\n",
        if report.held { "Every promise held." } else { "NOT every promise held: see above." },
        report.seed,
        report.elapsed_s
    ));
    text
}

fn deaths(scenarios: &[&ScenarioReport]) -> Vec<Vec<String>> {
    let mut rows =
        vec![row(&["contract", "what happened", "guest", "acked", "lost", "ms lost", "bound", "checks", ""])];
    for scenario in scenarios {
        let (acknowledged, lost) = scenario.totals();
        let most =
            |of: fn(&super::report::StreamReport) -> f64| scenario.streams.iter().map(of).fold(0.0, f64::max);
        let (shown, proved) = (most(|s| s.lost_ms), most(|s| s.lost_ms_proved));
        let (held, checks) = scenario.checks_held();
        rows.push(vec![
            scenario.contract.clone(),
            scenario.event.clone(),
            scenario.guest.clone(),
            thousands(acknowledged),
            thousands(lost),
            if lost == 0 { "0".to_owned() } else { format!("{shown:.1} ({proved:.1})") },
            scenario.bound_ms.map_or_else(|| "0".to_owned(), |ms| format!("{ms:.0}")),
            if scenario.expects_loss { String::new() } else { format!("{held}/{checks}") },
            headline::verdict(scenario).to_owned(),
        ]);
    }
    rows
}

fn costs(speed: &[SpeedRow]) -> Vec<Vec<String>> {
    let mut rows = vec![
        row(&[
            "",
            "fsync",
            "fsync",
            "SQLite WAL",
            "SQLite roll-",
            "postmark",
            "guest",
            "guest",
            "storage",
            "storage",
            "syncs per",
        ]),
        row(&[
            "server",
            "p50 us",
            "p99 us",
            "commits/s",
            "back /s",
            "s",
            "flushes",
            "MiB",
            "syncs",
            "MiB",
            "guest flush",
        ]),
    ];
    for line in speed {
        let per_flush = line.storage.flushes as f64 / line.guest.flushes.max(1) as f64;
        rows.push(vec![
            line.server.clone(),
            format!("{:.0}", line.fsync_p50_us),
            format!("{:.0}", line.fsync_p99_us),
            format!("{:.0}", line.sqlite_wal_per_s),
            format!("{:.0}", line.sqlite_rollback_per_s),
            format!("{:.2}", line.postmark_s),
            thousands(line.guest.flushes),
            mib(line.guest.bytes),
            thousands(line.storage.flushes),
            mib(line.storage.bytes),
            format!("{per_flush:.2}"),
        ]);
    }
    rows
}

fn journals(retain: &RetainReport) -> Vec<Vec<String>> {
    let mut rows = vec![
        row(&["", "guest", "to storage", "against", "device", "time", "fsyncs", "journal kept"]),
        row(&["", "sent MB", "MB", "journal", "MB", "s", "/s", "in memory MB"]),
    ];
    for line in &retain.modes {
        let against = headline::journal_alone(retain).map_or(1, |alone| alone.storage.bytes).max(1);
        rows.push(vec![
            line.mode.clone(),
            headline::megabytes(line.guest.bytes),
            headline::megabytes(line.storage.bytes),
            format!("{:.2}", line.storage.bytes as f64 / against as f64),
            headline::megabytes(line.device.bytes),
            format!("{:.1}", line.elapsed_s),
            format!("{:.0}", f64::from(retain.files) / line.files_s.max(0.001)),
            if line.absorbed_bytes == 0 { "-".to_owned() } else { headline::megabytes(line.absorbed_bytes) },
        ]);
    }
    rows
}

fn row(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// `1234567` as `1 234 567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A paragraph in lines that a terminal shows whole.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_ascii_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > LINE_CHARS_MAX {
            lines.push('\n');
            width = 0;
        }
        if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines.push('\n');
    lines
}

/// Columns as wide as their widest cell; those in `right` are set to the right.
fn grid(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if right.contains(&column) { (&*padding, "") } else { ("", &*padding) };
            line.push_str(&format!("{before}{cell}{after}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(1234), "1 234");
        assert_eq!(thousands(1_234_567), "1 234 567");
    }

    #[test]
    fn prose_is_wrapped_between_words_and_not_within_numbers() {
        let text = wrapped(&"1\u{a0}234 words ".repeat(20));
        assert!(text.lines().count() > 1 && text.lines().all(|line| line.chars().count() <= LINE_CHARS_MAX));
        assert!(
            text.lines().all(|line| line.starts_with("1\u{a0}234") || line.starts_with("words")),
            "{text}"
        );
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![row(&["a", "number"]), row(&["longer", "7"])];
        assert_eq!(grid(&rows, &[1]), "a       number\nlonger       7\n");
    }
}
