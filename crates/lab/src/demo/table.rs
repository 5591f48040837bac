//! The report as a person reads it.

use super::report::{Outcome, Report, ScenarioReport, SpeedRow};

/// The whole text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    if !report.scenarios.is_empty() {
        text.push_str("\nWhat was acknowledged, and what was lost\n\n");
        text.push_str(&grid(&deaths(&report.scenarios), &[3, 4, 5, 6, 7]));
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
        if report.machine.load > report.machine.cpus as f64 {
            text.push_str(&format!(
                "This machine was busy (load {:.1} on {} processors): these times say little.\n",
                report.machine.load, report.machine.cpus
            ));
        }
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

fn deaths(scenarios: &[ScenarioReport]) -> Vec<Vec<String>> {
    let mut rows =
        vec![row(&["contract", "what happened", "guest", "acked", "lost", "ms lost", "bound", "checks", ""])];
    for scenario in scenarios {
        let acknowledged: u64 = scenario.streams.iter().map(|s| s.acknowledged).sum();
        let lost: u64 = scenario.streams.iter().map(|s| s.lost).sum();
        let most =
            |of: fn(&super::report::StreamReport) -> f64| scenario.streams.iter().map(of).fold(0.0, f64::max);
        let (shown, proved) = (most(|s| s.lost_ms), most(|s| s.lost_ms_proved));
        let held = scenario.checks.iter().filter(|check| check.held).count();
        rows.push(vec![
            scenario.contract.clone(),
            scenario.event.clone(),
            scenario.guest.clone(),
            thousands(acknowledged),
            thousands(lost),
            if lost == 0 { "0".to_owned() } else { format!("{shown:.1} ({proved:.1})") },
            scenario.bound_ms.map_or_else(|| "0".to_owned(), |ms| format!("{ms:.0}")),
            if scenario.expects_loss { String::new() } else { format!("{held}/{}", scenario.checks.len()) },
            match scenario.outcome {
                Outcome::Held if scenario.expects_loss => "not ours: loses, as it may",
                Outcome::Held => "held",
                Outcome::Broken => "BROKEN",
                Outcome::Failed => "FAILED",
            }
            .to_owned(),
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

fn row(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// `1234567` as `1 234 567`.
fn thousands(number: u64) -> String {
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
    fn columns_line_up() {
        let rows = vec![row(&["a", "number"]), row(&["longer", "7"])];
        assert_eq!(grid(&rows, &[1]), "a       number\nlonger       7\n");
    }
}
