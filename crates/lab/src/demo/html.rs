//! `report.html`: the report as a page of its own.

use std::path::{Path, PathBuf};

use afterimage_report::number::thousands;
use afterimage_report::plot::{bars, Bar, Group, Scale};
use afterimage_report::{page, Table, NONE};
use maud::{html, Markup};

use super::headline::{self, megabytes};
use super::report::{replace, Outcome, Report, RetainReport, RetainRow, ScenarioReport, SpeedRow};
use crate::error::Result;

/// Writes the page into the folder and says where.
///
/// # Errors
/// The folder can not be written.
pub fn write(report: &Report, folder: &Path) -> Result<PathBuf> {
    let path = folder.join("report.html");
    replace(&path, &page(report))?;
    Ok(path)
}

/// The page.
pub fn page(report: &Report) -> String {
    let (class, words) =
        if report.held { ("good", "Every promise held.") } else { ("bad", "NOT every promise held.") };
    let machine = &report.machine;
    let sentences = headline::sentences(report);
    let body = html! {
        p {
            span class=(class) { (words) } " "
            span.soft {
                "Afterimage " (report.version) ", seed " (report.seed) ", " (format!("{:.0}", report.elapsed_s)) " s; "
                (machine.cpus) " processors, Linux " (machine.kernel) "."
            }
        }
        @if report.retain.is_some() || !sentences.is_empty() {
            h2 { "The journal in memory: full data journaling without journal writes" }
            @for (head, rest) in sentences.iter().map(|said| said.split_once(':').unwrap_or(("", said))) {
                p { strong { (head) ":" } (rest) }
            }
        }
        @if let Some(retain) = &report.retain { (journals(retain)) }
        @if !report.scenarios.is_empty() { (scenarios(&report.scenarios)) }
        @if let Some(first) = report.speed.first() { (servers(first, &report.speed)) }
        @if let Some(busy) = headline::busy(report) { p.soft { (busy) } }
        p.soft {
            "All of this in numbers: " code { "report.json" } ", beside this page; its fields and these checks are explained in "
            code { "docs/demo.md" } "."
        }
    };
    page::page("Afterimage: what was acknowledged, and what was kept", &body)
}

/// Bars of their own, one under the other; to each its number in words.
fn draw<T>(
    title: &str,
    rows: &[T],
    bar: impl Fn(&T) -> (&str, &'static str),
    value: impl Fn(&T) -> (f64, String),
) -> Markup {
    let group = |row: &T| {
        let ((name, colour), (value, shown)) = (bar(row), value(row));
        let bar = Bar { name: String::new(), colour, value, spread: None, shown };
        Group { name: name.to_owned(), bars: vec![bar], range: None }
    };
    let groups: Vec<Group> = rows.iter().map(group).collect();
    html! { h3 { (title) } (bars(title, &groups, Scale::Common)) }
}

fn journals(retain: &RetainReport) -> Markup {
    fn bar(row: &RetainRow) -> (&str, &'static str) {
        let colour = match (row.mount.as_str(), row.journal.as_str()) {
            (_, "retain") => "#2475b0",
            ("data=journal", _) => "#c2504f",
            _ => "#8a929b",
        };
        (&row.mode, colour)
    }
    let mut table = Table::new(
        "guest and daemon|guest sent, MB|to storage, MB|writes to storage\
        |device, MB|time, s|fsyncs/s|journal kept in memory, MB|transactions seen"
            .split('|'),
    )
    .right(1..);
    for row in &retain.modes {
        table.row([
            row.mode.clone(),
            megabytes(row.guest.bytes),
            megabytes(row.storage.bytes),
            thousands(row.storage.writes),
            megabytes(row.device.bytes),
            format!("{:.1}", row.elapsed_s),
            format!("{:.0}", f64::from(retain.files) / row.files_s.max(0.001)),
            megabytes(row.absorbed_bytes),
            thousands(row.commits),
        ]);
    }
    html! {
        (draw("Bytes that reached storage", &retain.modes, bar, |row| stored(row.storage.bytes)))
        (draw("Time until everything is there", &retain.modes, bar, |row| (row.elapsed_s, format!("{:.1} s", row.elapsed_s))))
        (table.html())
        p.soft {
            "The same User Mode Linux guest (" (retain.guest_mib) " MB) each time, on " (retain.medium) ": " (retain.work)
            ". To storage: what the daemon wrote to the image. Device: what the host's page cache passed on. Bytes are exact on \
             any machine; times are the model's and of one run."
        }
    }
}

fn stored(bytes: u64) -> (f64, String) {
    (bytes as f64, format!("{} MB", megabytes(bytes)))
}

fn held_class(scenario: &ScenarioReport) -> &'static str {
    if scenario.outcome == Outcome::Held {
        "good"
    } else {
        "bad"
    }
}

fn scenarios(scenarios: &[ScenarioReport]) -> Markup {
    let counted = |scenario: &ScenarioReport, count: u64| {
        if scenario.streams.is_empty() {
            NONE.to_owned()
        } else {
            thousands(count)
        }
    };
    let may_lose = |scenario: &ScenarioReport| match scenario.bound_ms {
        _ if scenario.expects_loss => "anything".to_owned(),
        Some(ms) => format!("{ms:.0} ms"),
        None => "nothing".to_owned(),
    };
    let checks = |scenario: &ScenarioReport| {
        let (held, checks) = scenario.checks_held();
        if scenario.expects_loss {
            NONE.to_owned()
        } else {
            format!("{held} of {checks}")
        }
    };
    html! {
        h2 { "Every scenario and its verdict" }
        div.scroll {
            table {
                tr {
                    th { "scenario" } th { "served with" } th { "what happened" } th { "guest" }
                    th.right { "acknowledged" } th.right { "lost" } th.right { "may lose" } th.right { "checks" } th { "verdict" }
                }
                @for scenario in scenarios {
                    @let (acknowledged, lost) = scenario.totals();
                    tr {
                        td { code { (scenario.name) } } td { (scenario.contract) } td { (scenario.event) } td { (scenario.guest) }
                        td.right { (counted(scenario, acknowledged)) } td.right { (counted(scenario, lost)) }
                        td.right { (may_lose(scenario)) } td.right { (checks(scenario)) }
                        td class=(held_class(scenario)) { (headline::verdict(scenario)) }
                    }
                }
            }
        }
        p.soft {
            "acknowledged: reported to the host as safe before the death. lost: of these, not there after recovery."
        }
        h3 { "Each promise, and what was seen" }
        @for scenario in scenarios { (promises(scenario)) }
    }
}

fn promises(scenario: &ScenarioReport) -> Markup {
    html! {
        // What is wrong is open to see.
        details open[scenario.outcome != Outcome::Held] {
            summary { code { (scenario.name) } ": " (headline::verdict(scenario)) }
            @if let Some(reason) = &scenario.reason { p.bad { (reason) } }
            @if let Some(evidence) = &scenario.evidence { p { "evidence: " code { (evidence) } } }
            ul {
                @for check in &scenario.checks {
                    @let (class, word) = match (check.held, scenario.expects_loss) {
                        (true, _) => ("good", "held"),
                        (false, true) => ("soft", "does not hold, as expected"),
                        (false, false) => ("bad", "BROKEN"),
                    };
                    li { (check.promise) ": " span class=(class) { (word) } ". " span.soft { (check.detail) } }
                }
            }
        }
    }
}

fn servers(first: &SpeedRow, speed: &[SpeedRow]) -> Markup {
    fn bar(row: &SpeedRow) -> (&str, &'static str) {
        (&row.server, if row.server.starts_with("afterimage") { "#2475b0" } else { "#8263a8" })
    }
    let mut table = Table::new(
        "server|fsync p50, us|fsync p99, us|SQLite WAL commits/s\
        |SQLite rollback /s|postmark, s|guest flushes|guest sent, MB|storage syncs|to storage, MB"
            .split('|'),
    )
    .right(1..);
    for row in speed {
        table.row([
            row.server.clone(),
            format!("{:.0}", row.fsync_p50_us),
            format!("{:.0}", row.fsync_p99_us),
            format!("{:.0}", row.sqlite_wal_per_s),
            format!("{:.0}", row.sqlite_rollback_per_s),
            format!("{:.2}", row.postmark_s),
            thousands(row.guest.flushes),
            megabytes(row.guest.bytes),
            thousands(row.storage.flushes),
            megabytes(row.storage.bytes),
        ]);
    }
    html! {
        h2 { "The same work on each server" }
        p.soft { "On " (first.medium) "; fsyncs, SQLite and postmark." }
        (draw("Syncs of storage", speed, bar, |row| (row.storage.flushes as f64, thousands(row.storage.flushes))))
        (draw("Bytes that reached storage", speed, bar, |row| stored(row.storage.bytes)))
        (draw("Time of postmark", speed, bar, |row| (row.postmark_s, format!("{:.2} s", row.postmark_s))))
        (table.html())
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Check, Machine, RetainRow, StreamReport, Traffic, SCHEMA};
    use super::*;

    fn report() -> Report {
        let row = |mount: &str, journal: &str, bytes: u64| RetainRow {
            mode: format!("{mount}, {journal}"),
            mount: mount.to_owned(),
            journal: journal.to_owned(),
            guest: Traffic::default(),
            storage: Traffic { bytes, ..Traffic::default() },
            device: Traffic::default(),
            append_s: 1.0,
            files_s: 0.0,
            elapsed_s: bytes as f64 / 1e8,
            absorbed_bytes: 0,
            commits: 0,
        };
        Report {
            schema: SCHEMA,
            version: "0".to_owned(),
            seed: 1,
            held: false,
            elapsed_s: 1.0,
            machine: Machine { cpus: 1, kernel: "<6>".to_owned(), load: 0.0, images_in: String::new() },
            retain: Some(RetainReport {
                medium: "m".to_owned(),
                guest_mib: 128,
                work: "w".to_owned(),
                files: 1,
                modes: vec![
                    row("data=ordered", "passthrough", 110_000_000),
                    row("data=journal", "passthrough", 200_000_000),
                    row("data=journal", "retain", 100_000_000),
                ],
            }),
            scenarios: vec![ScenarioReport {
                name: "power/vmm-kill".to_owned(),
                contract: "power".to_owned(),
                event: "a & b".to_owned(),
                outcome: Outcome::Broken,
                reason: Some("\"why\"".to_owned()),
                medium: String::new(),
                guest: "UML".to_owned(),
                elapsed_s: 1.0,
                bound_ms: None,
                expects_loss: false,
                streams: vec![StreamReport {
                    name: "records".to_owned(),
                    acknowledged: 1234,
                    lost: 5,
                    lost_numbers: vec![1],
                    lost_ms: 0.0,
                    lost_ms_proved: 0.0,
                }],
                rounds: Vec::new(),
                postmark_rounds: 0,
                daemon_restarts: 0,
                recovery: None,
                checks: vec![Check::new("<promise>", false, "seen")],
                evidence: None,
            }],
            speed: Vec::new(),
        }
    }

    #[test]
    fn the_page_stands_alone_and_says_the_numbers_as_text() {
        let page = page(&report());
        for outside in ["http", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for said in ["200.0 MB", "100.0 MB", "0.50 of it", "1.0 s", "1 234", "NOT every promise", "BROKEN"] {
            assert!(page.contains(said), "{said}");
        }
        assert!(!page.contains("<promise>") && !page.contains("<6>") && page.contains("a &amp; b"));
    }

    #[test]
    fn what_is_opened_is_closed() {
        let page = page(&report());
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1) {
            let name =
                tag.split(|c: char| !c.is_ascii_alphanumeric() && c != '/' && c != '!').next().unwrap();
            let alone = tag.split('>').next().unwrap().ends_with('/');
            match name.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "{tag}"),
                None if alone || name == "meta" || name.starts_with('!') => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}
