//! The report as a person reads it.

use afterimage_report::number::{thousands, MIB};
use afterimage_report::Table;

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
        text.push_str(&format!("\n{}\n", journals(retain).text()));
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
        text.push_str(&deaths(&deaths_seen).text());
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
        text.push_str(&costs(&report.speed).text());
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

fn deaths(scenarios: &[&ScenarioReport]) -> Table {
    let heads = ["contract", "what happened", "guest", "acked", "lost", "ms lost", "bound", "checks", ""];
    let mut table = Table::new(heads).right(3..8);
    for scenario in scenarios {
        let (acknowledged, lost) = scenario.totals();
        let most =
            |of: fn(&super::report::StreamReport) -> f64| scenario.streams.iter().map(of).fold(0.0, f64::max);
        let (shown, proved) = (most(|s| s.lost_ms), most(|s| s.lost_ms_proved));
        let (held, checks) = scenario.checks_held();
        table.row([
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
    table
}

fn costs(speed: &[SpeedRow]) -> Table {
    let mut table = Table::new(
        "\nserver|fsync\np50 us|fsync\np99 us|SQLite WAL\ncommits/s\
        |SQLite roll-\nback /s|postmark\ns|guest\nflushes|guest\nMiB|storage\nsyncs|storage\nMiB\
        |syncs per\nguest flush"
            .split('|'),
    )
    .right(1..);
    for line in speed {
        let per_flush = line.storage.flushes as f64 / line.guest.flushes.max(1) as f64;
        table.row([
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
    table
}

fn journals(retain: &RetainReport) -> Table {
    let mut table = Table::new(
        "|guest\nsent MB|to storage\nMB|against\njournal|device\nMB|time\ns\
        |fsyncs\n/s|journal kept\nin memory MB"
            .split('|'),
    )
    .right(1..);
    let against = headline::journal_alone(retain).map_or(1, |alone| alone.storage.bytes).max(1);
    for line in &retain.modes {
        table.row([
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
    table
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MIB)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_between_words_and_not_within_numbers() {
        let text = wrapped(&"1\u{a0}234 words ".repeat(20));
        assert!(text.lines().count() > 1 && text.lines().all(|line| line.chars().count() <= LINE_CHARS_MAX));
        assert!(
            text.lines().all(|line| line.starts_with("1\u{a0}234") || line.starts_with("words")),
            "{text}"
        );
    }
}
