//! The self-contained page: bytes and time per mode, recovery, what is retained over time.

use afterimage_bench_kit::CellIdentity;
use afterimage_report::number::{number, MIB};
use afterimage_report::page::{self, key};
use afterimage_report::plot::{bars, curves, Bar, Curve, Group, Scale as Lengths};
use afterimage_report::Table;
use maud::{html, Markup};

use crate::catalog::{Kind, Mode, Setup, Workload};
use crate::memory::{moments, Moment};
use crate::record::{CellKey, Record, Store};
use crate::scale::Scale;
use crate::summary::{elapsed, recovered, stored, verdicts, Cells};
use crate::tables::{scenes, Scene};

fn colour(mode: Mode) -> &'static str {
    match mode {
        Mode::Writeback => "#b8b8b8",
        Mode::Ordered => "#7f7f7f",
        Mode::Journal => "#c44e52",
        Mode::JournalRetain => "#2c7fb8",
        Mode::OrderedRetain => "#7fcdbb",
        Mode::Vma => "#1b9e77",
        Mode::JournalDrop => "#e7ba52",
        Mode::OrderedDrop => "#f3dfa2",
        Mode::NoJournal => "#9467bd",
    }
}

/// The page.
pub fn page(scale: &Scale, store: &Store, table: &Cells<'_>) -> String {
    let modes: Vec<(&str, String)> =
        Mode::ALL.iter().map(|mode| (colour(*mode), mode.plain_title())).collect();
    let body = html! {
        p { (scale.note().replace("**", "")) }
        p {
            "Medians over the rounds, whiskers from the least to the most. Each workload has a scale of its own. " code { "hdd15k" }
            " and " code { "ssd" } " are models; " code { "disk" } " is the machine's own."
        }
        (key(modes.iter().map(|(colour, title)| (*colour, title.as_str()))))
        @for scene in scenes(table) {
            h2 { (scene.title().replace('`', "")) }
            h3 { "Bytes written to storage" }
            (plain_runs(table, &scene, |record| Some(stored(record)? / MIB), "MiB"))
            h3 { "Time of the work" }
            (plain_runs(table, &scene, elapsed, "s"))
        }
        @for kind in [Kind::KillGuest, Kind::KillBoth] { (recovery(table, kind)) }
        (memory(store, table))
        (targets(table))
    };
    page::page("Retained journals, measured", &body)
}

fn bar(table: &Cells<'_>, key: &CellKey, value: fn(&Record) -> Option<f64>, unit: &str) -> Option<Bar> {
    let spread = table.spread(key, value)?;
    Some(Bar {
        name: key.mode.plain_title(),
        colour: colour(key.mode),
        value: spread.median,
        spread: (spread.rounds > 1).then_some((spread.min, spread.max)),
        shown: format!("{} {unit}", number(spread.median)),
    })
}

/// A group for each workload.
fn by_workload(what: &str, bars_of: impl Fn(Workload) -> Vec<Bar>) -> Markup {
    let group =
        |workload: Workload| Group { name: workload.name().to_owned(), bars: bars_of(workload), range: None };
    bars(what, &Workload::ALL.map(group), Lengths::Groups)
}

fn plain_runs(table: &Cells<'_>, scene: &Scene, value: fn(&Record) -> Option<f64>, unit: &str) -> Markup {
    by_workload(&scene.title(), |workload| {
        Mode::ALL.iter().filter_map(|mode| bar(table, &scene.key(workload, *mode), value, unit)).collect()
    })
}

fn recovery(table: &Cells<'_>, kind: Kind) -> Markup {
    let what = if kind == Kind::KillGuest { "the guest" } else { "guest and daemon" };
    let draw = |value: fn(&Record) -> Option<f64>, unit: &str| {
        by_workload(&format!("recovery after {what} died"), |workload| {
            let keys = table.keys().filter(|key| key.kind == kind && key.workload == workload);
            let named = |key: &CellKey| {
                let bar = bar(table, key, value, unit)?;
                Some(Bar { name: format!("{} on {}", bar.name, key.device.name()), ..bar })
            };
            keys.filter_map(named).collect()
        })
    };
    html! {
        @if table.keys().any(|key| key.kind == kind) {
            h2 { "Recovery after " (what) " died at half-time" }
            h3 { "Time" }
            (draw(recovered, "s"))
            h3 { "Bytes read and written" }
            (draw(|record| Some(record.recovery?.traffic_bytes() as f64 / MIB), "MiB"))
        }
    }
}

fn memory(store: &Store, table: &Cells<'_>) -> Markup {
    let keys = table.keys().filter(|key| key.kind == Kind::Run && key.setup == Setup::Plain);
    let sampled = keys.filter_map(|key| Some((key, moments(store.samples(&table.rounds(key).first()?.key)))));
    let sampled: Vec<(&CellKey, Vec<Moment>)> = sampled.filter(|(_, moments)| !moments.is_empty()).collect();
    let draw = |key: &CellKey, moments: &[Moment], what: &str, value: fn(&Moment) -> f64, unit: &str| {
        let points = moments.iter().map(|moment| (moment.at_s, value(moment))).collect();
        curves(&format!("{what}, {}", key.path()), &[Curve { colour: colour(key.mode), points }], unit)
    };
    html! {
        @if !sampled.is_empty() { h2 { "What is retained over time" } }
        @for (key, moments) in &sampled {
            h3 { (key.path()) ": journal information, then data" }
            (draw(key, moments, "journal information", |m| m.information_bytes / 1024.0, "KiB"))
            (draw(key, moments, "retained data", |m| m.data_bytes / MIB, "MiB"))
        }
    }
}

fn targets(table: &Cells<'_>) -> Markup {
    let mut found = Table::new(["target", "cell", "reached", ""]);
    for verdict in verdicts(table) {
        found.row([
            verdict.target,
            verdict.cell,
            format!("{:.2} {}", verdict.reached.median, verdict.unit),
            if verdict.met { "met" } else { "MISSED" }.to_owned(),
        ]);
    }
    html! { @if !found.is_empty() { h2 { "Targets" } (found.html()) } }
}
