//! `report.html`: the report as a page of its own. Nothing is fetched, nothing is run; light or dark as the reader's
//! system is.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::headline::{self, megabytes};
use super::report::{replace, Outcome, Report, RetainReport, ScenarioReport, SpeedRow};
use super::svg::{bars, Bar};
use super::table::thousands;
use crate::error::Result;
use crate::text::escape;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--paper:#fff;--line:#d1d9e0;--tint:#f3f5f7;\
--ordered:#8a929b;--journal:#c2504f;--retain:#2475b0;--other:#8263a8;--good:#1a7f37;--bad:#c0191f}\n\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--paper:#12161b;--line:#3a424c;--tint:#1b2129;\
--ordered:#8b949e;--journal:#e0706e;--retain:#58a6e0;--other:#b08fd8;--good:#4cc266;--bad:#ff7b72}}\n\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink);background:var(--paper)}\n\
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.2rem;margin-top:2.2rem}h3{font-size:1rem;margin:1.2rem 0 .2rem}\n\
svg{display:block;width:100%;max-width:46rem;height:auto}svg text{font:13px system-ui,sans-serif;fill:var(--ink)}\n\
svg .number{font-weight:600}.axis{stroke:var(--soft);fill:none}\n\
.ordered{fill:var(--ordered)}.journal{fill:var(--journal)}.retain{fill:var(--retain)}.other{fill:var(--other)}\n\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.6rem 0}\n\
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\n\
th{background:var(--tint);font-weight:600}.right{text-align:right;white-space:nowrap}\n\
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}.soft{color:var(--soft);font-size:.9rem}\n\
summary{cursor:pointer}code{font-size:.95em}\n";

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
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Afterimage: what was kept</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>What was acknowledged, and what was kept</h1>\n"
    );
    let (class, words) =
        if report.held { ("good", "Every promise held.") } else { ("bad", "NOT every promise held.") };
    let machine = &report.machine;
    let _ = writeln!(
        page,
        "<p><span class=\"{class}\">{words}</span> <span class=\"soft\">Afterimage {}, seed {}, {:.0} s; {} processors, Linux \
         {}.</span></p>",
        escape(&report.version),
        report.seed,
        report.elapsed_s,
        machine.cpus,
        escape(&machine.kernel)
    );
    let sentences = headline::sentences(report);
    if report.retain.is_some() || !sentences.is_empty() {
        page.push_str("<h2>The journal in memory: full data journaling without journal writes</h2>\n");
        for sentence in sentences {
            let (head, rest) = sentence.split_once(':').unwrap_or(("", &sentence));
            let _ = writeln!(page, "<p><strong>{}:</strong>{}</p>", escape(head), escape(rest));
        }
    }
    if let Some(retain) = &report.retain {
        journals(&mut page, retain);
    }
    if !report.scenarios.is_empty() {
        scenarios(&mut page, &report.scenarios);
    }
    if !report.speed.is_empty() {
        servers(&mut page, &report.speed);
    }
    if let Some(busy) = headline::busy(report) {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(&busy));
    }
    page.push_str(
        "<p class=\"soft\">All of this in numbers: <code>report.json</code>, beside this page; its fields and these checks are \
         explained in <code>docs/demo.md</code>.</p>\n</body>\n</html>\n",
    );
    page
}

fn class_of(mount: &str, journal: &str) -> &'static str {
    match (mount, journal) {
        (_, "retain") => "retain",
        ("data=journal", _) => "journal",
        _ => "ordered",
    }
}

fn journals(page: &mut String, retain: &RetainReport) {
    let draw = |what: &str, value: fn(&super::report::RetainRow) -> (f64, String)| {
        let rows: Vec<Bar> = retain
            .modes
            .iter()
            .map(|row| {
                let (value, shown) = value(row);
                Bar { name: row.mode.clone(), value, shown, class: class_of(&row.mount, &row.journal) }
            })
            .collect();
        bars(what, &rows)
    };
    let _ = writeln!(
        page,
        "<h3>Bytes that reached storage</h3>\n{}<h3>Time until everything is there</h3>\n{}",
        draw("Bytes that reached storage", |row| (
            row.storage.bytes as f64,
            format!("{} MB", megabytes(row.storage.bytes))
        )),
        draw("Time until everything is there", |row| (row.elapsed_s, format!("{:.1} s", row.elapsed_s)))
    );
    let mut rows = Vec::new();
    for row in &retain.modes {
        rows.push(vec![
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
    let head = [
        "guest and daemon",
        "guest sent, MB",
        "to storage, MB",
        "writes to storage",
        "device, MB",
        "time, s",
        "fsyncs/s",
        "journal kept in memory, MB",
        "transactions seen",
    ];
    table(page, &head, 1, &rows);
    let _ = writeln!(
        page,
        "<p class=\"soft\">The same User Mode Linux guest ({} MB) each time, on {}: {}. To storage: what the daemon wrote to the \
         image. Device: what the host's page cache passed on. Bytes are exact on any machine; times are the model's and of one \
         run.</p>",
        retain.guest_mib,
        escape(&retain.medium),
        escape(&retain.work)
    );
}

fn scenarios(page: &mut String, scenarios: &[ScenarioReport]) {
    page.push_str(
        "<h2>Every scenario and its verdict</h2>\n<div class=\"scroll\"><table>\n<tr><th>scenario</th><th>served with</th>\
         <th>what happened</th><th>guest</th><th class=\"right\">acknowledged</th><th class=\"right\">lost</th>\
         <th class=\"right\">may lose</th><th class=\"right\">checks</th><th>verdict</th></tr>\n",
    );
    for scenario in scenarios {
        let (acknowledged, lost) = scenario.totals();
        let (held, checks) = scenario.checks_held();
        let counted = |count: u64| {
            if scenario.streams.is_empty() {
                "\u{2013}".to_owned()
            } else {
                thousands(count)
            }
        };
        let may = match scenario.bound_ms {
            _ if scenario.expects_loss => "anything".to_owned(),
            Some(ms) => format!("{ms:.0} ms"),
            None => "nothing".to_owned(),
        };
        let _ = writeln!(
            page,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td><td class=\"right\">{}</td><td class=\"right\">{}</td>\
             <td class=\"right\">{may}</td><td class=\"right\">{}</td><td class=\"{}\">{}</td></tr>",
            escape(&scenario.name),
            escape(&scenario.contract),
            escape(&scenario.event),
            escape(&scenario.guest),
            counted(acknowledged),
            counted(lost),
            if scenario.expects_loss { "\u{2013}".to_owned() } else { format!("{held} of {checks}") },
            if scenario.outcome == Outcome::Held { "good" } else { "bad" },
            headline::verdict(scenario)
        );
    }
    page.push_str(
        "</table></div>\n<p class=\"soft\">acknowledged: reported to the host as safe before the death. lost: of these, not there \
         after recovery.</p>\n<h3>Each promise, and what was seen</h3>\n",
    );
    for scenario in scenarios {
        // What is wrong is open to see.
        let open = if scenario.outcome == Outcome::Held { "" } else { " open" };
        let _ = writeln!(
            page,
            "<details{open}><summary><code>{}</code>: {}</summary>",
            escape(&scenario.name),
            headline::verdict(scenario)
        );
        if let Some(reason) = &scenario.reason {
            let _ = writeln!(page, "<p class=\"bad\">{}</p>", escape(reason));
        }
        if let Some(evidence) = &scenario.evidence {
            let _ = writeln!(page, "<p>evidence: <code>{}</code></p>", escape(evidence));
        }
        page.push_str("<ul>\n");
        for check in &scenario.checks {
            let (class, word) = match (check.held, scenario.expects_loss) {
                (true, _) => ("good", "held"),
                (false, true) => ("soft", "does not hold, as expected"),
                (false, false) => ("bad", "BROKEN"),
            };
            let _ = writeln!(
                page,
                "<li>{}: <span class=\"{class}\">{word}</span>. <span class=\"soft\">{}</span></li>",
                escape(&check.promise),
                escape(&check.detail)
            );
        }
        page.push_str("</ul>\n</details>\n");
    }
}

fn servers(page: &mut String, speed: &[SpeedRow]) {
    let medium = speed.first().map_or("", |row| row.medium.as_str());
    let draw = |what: &str, value: fn(&SpeedRow) -> (f64, String)| {
        let rows: Vec<Bar> = speed
            .iter()
            .map(|row| {
                let (value, shown) = value(row);
                let class = if row.server.starts_with("afterimage") { "retain" } else { "other" };
                Bar { name: row.server.clone(), value, shown, class }
            })
            .collect();
        bars(what, &rows)
    };
    let _ = writeln!(
        page,
        "<h2>The same work on each server</h2>\n<p class=\"soft\">On {}; fsyncs, SQLite and postmark.</p>\n\
         <h3>Syncs of storage</h3>\n{}<h3>Bytes that reached storage</h3>\n{}<h3>Time of postmark</h3>\n{}",
        escape(medium),
        draw("Syncs of storage", |row| (row.storage.flushes as f64, thousands(row.storage.flushes))),
        draw("Bytes that reached storage", |row| (
            row.storage.bytes as f64,
            format!("{} MB", megabytes(row.storage.bytes))
        )),
        draw("Time of postmark", |row| (row.postmark_s, format!("{:.2} s", row.postmark_s)))
    );
    let rows: Vec<Vec<String>> = speed
        .iter()
        .map(|row| {
            vec![
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
            ]
        })
        .collect();
    let head = [
        "server",
        "fsync p50, us",
        "fsync p99, us",
        "SQLite WAL commits/s",
        "SQLite rollback /s",
        "postmark, s",
        "guest flushes",
        "guest sent, MB",
        "storage syncs",
        "to storage, MB",
    ];
    table(page, &head, 1, &rows);
}

/// A table whose columns from `right` on are numbers.
fn table(page: &mut String, head: &[&str], right: usize, rows: &[Vec<String>]) {
    page.push_str("<div class=\"scroll\"><table>\n<tr>");
    let class = |column: usize| if column >= right { " class=\"right\"" } else { "" };
    for (column, name) in head.iter().enumerate() {
        // Names may be broken, numbers not.
        let _ = write!(
            page,
            "<th{}>{}</th>",
            if column >= right { " style=\"text-align:right\"" } else { "" },
            escape(name)
        );
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(page, "<td{}>{}</td>", class(column), escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
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
