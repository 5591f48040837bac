//! The self-contained page: bytes and time per mode, recovery, what is retained over time.

use std::fmt::Write as _;

use afterimage_lab::text::escape;

use crate::catalog::{Kind, Mode, Setup, Workload};
use crate::memory::{moments, Moment};
use crate::record::{CellKey, Record, Store};
use crate::scale::Scale;
use crate::summary::{elapsed, recovered, stored, verdicts, Table};
use crate::svg::{bars, curves, Bar, Curve, Group};
use crate::tables::scenes;

const MIB: f64 = (1 << 20) as f64;

fn colour(mode: Mode) -> &'static str {
    match mode {
        Mode::Writeback => "#b8b8b8",
        Mode::Ordered => "#7f7f7f",
        Mode::Journal => "#c44e52",
        Mode::JournalRetain => "#2c7fb8",
        Mode::OrderedRetain => "#7fcdbb",
        Mode::JournalDrop => "#e7ba52",
        Mode::OrderedDrop => "#f3dfa2",
        Mode::NoJournal => "#9467bd",
    }
}

/// The page.
pub fn page(scale: &Scale, store: &Store, table: &Table<'_>) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Retained journals, measured</title><style>\n\
         body{font:14px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\n\
         svg text{font:11px system-ui,sans-serif;fill:#222}\n\
         .key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1em;vertical-align:-.1em}\n\
         td,th{padding:.1em .8em .1em 0;text-align:left}\n.missed{color:#b00;font-weight:bold}\n\
         </style></head><body>\n<h1>Retained journals, measured</h1>\n",
    );
    let _ = writeln!(
        page,
        "<p>{}</p><p>Medians over the rounds, whiskers from the least to the most. Each workload has a scale of its own. \
         <code>hdd15k</code> and <code>ssd</code> are models; <code>disk</code> is the machine's own.</p>",
        escape(&scale.note().replace("**", ""))
    );
    page.push_str("<p class=\"key\">");
    for mode in Mode::ALL {
        let _ = write!(
            page,
            "<span style=\"background:{}\"></span>{}",
            colour(mode),
            escape(&mode.plain_title())
        );
    }
    page.push_str("</p>\n");
    for scene in scenes(table) {
        let title = escape(&scene.title().replace('`', ""));
        let group = |value: fn(&Record) -> Option<f64>| -> Vec<Group> {
            let group = |workload: Workload| Group {
                name: workload.name().to_owned(),
                bars: Mode::ALL
                    .iter()
                    .filter_map(|mode| bar(table, &scene.key(workload, *mode), value))
                    .collect(),
            };
            Workload::ALL.into_iter().map(group).collect()
        };
        let _ = writeln!(page, "<h2>{title}</h2>\n<h3>Bytes written to storage</h3>");
        page.push_str(&bars(&group(|record| Some(stored(record)? / MIB)), "MiB"));
        let _ = writeln!(page, "<h3>Time of the work</h3>");
        page.push_str(&bars(&group(elapsed), "s"));
    }
    recovery(&mut page, table);
    memory(&mut page, store, table);
    targets(&mut page, table);
    page.push_str("</body></html>\n");
    page
}

fn bar(table: &Table<'_>, key: &CellKey, value: fn(&Record) -> Option<f64>) -> Option<Bar> {
    let spread = table.spread(key, value)?;
    Some(Bar {
        label: format!("{} {}", key.workload.name(), key.mode.plain_title()),
        colour: colour(key.mode),
        value: spread.median,
        spread: (spread.rounds > 1).then_some((spread.min, spread.max)),
    })
}

fn recovery(page: &mut String, table: &Table<'_>) {
    for kind in [Kind::KillGuest, Kind::KillBoth] {
        let group = |workload: Workload, value: fn(&Record) -> Option<f64>| Group {
            name: workload.name().to_owned(),
            bars: table
                .keys()
                .filter(|key| key.kind == kind && key.workload == workload)
                .filter_map(|key| {
                    let mut bar = bar(table, key, value)?;
                    bar.label = format!("{} on {}", bar.label, key.device.name());
                    Some(bar)
                })
                .collect(),
        };
        let groups =
            |value| Workload::ALL.into_iter().map(|workload| group(workload, value)).collect::<Vec<_>>();
        let times = groups(recovered);
        if times.iter().all(|group| group.bars.is_empty()) {
            continue;
        }
        let what = if kind == Kind::KillGuest { "the guest" } else { "guest and daemon" };
        let _ = writeln!(page, "<h2>Recovery after {what} died at half-time</h2>\n<h3>Time</h3>");
        page.push_str(&bars(&times, "s"));
        page.push_str("<h3>Bytes read and written</h3>\n");
        page.push_str(&bars(&groups(|record| Some(record.recovery?.traffic_bytes() as f64 / MIB)), "MiB"));
    }
}

fn memory(page: &mut String, store: &Store, table: &Table<'_>) {
    let mut begun = false;
    for key in table.keys().filter(|key| key.kind == Kind::Run && key.setup == Setup::Plain) {
        let Some(record) = table.rounds(key).first() else { continue };
        let moments = moments(store.samples(&record.key));
        if moments.is_empty() {
            continue;
        }
        if !begun {
            page.push_str("<h2>What is retained over time</h2>\n");
            begun = true;
        }
        let curve = |name: &str, value: fn(&Moment) -> f64| Curve {
            name: name.to_owned(),
            colour: colour(key.mode),
            points: moments.iter().map(|moment| (moment.at_s, value(moment))).collect(),
        };
        let _ = writeln!(page, "<h3>{}: journal information, then data</h3>", escape(&key.path()));
        page.push_str(&curves(&[curve("journal information", |m| m.information_bytes / 1024.0)], "KiB"));
        page.push_str(&curves(&[curve("retained data", |m| m.data_bytes / MIB)], "MiB"));
    }
}

fn targets(page: &mut String, table: &Table<'_>) {
    let verdicts = verdicts(table);
    if verdicts.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Targets</h2>\n<table><tr><th>target</th><th>cell</th><th>reached</th><th></th></tr>\n",
    );
    for verdict in verdicts {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{:.2} {}</td><td{}</td></tr>",
            escape(&verdict.target),
            escape(&verdict.cell),
            verdict.reached.median,
            verdict.unit,
            if verdict.met { ">met" } else { " class=\"missed\">missed" }
        );
    }
    page.push_str("</table>\n");
}
