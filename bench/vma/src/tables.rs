//! The tables, in Markdown that reads well in a terminal too.

mod figures;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use afterimage_bench_kit::CellIdentity;
use afterimage_report::number::{number, MIB};
use afterimage_report::{or_dash, Spread, Table, NONE};

use crate::catalog::{Device, JournalPolicy, Kind, Mode, Setup, Workload};
use crate::paper;
use crate::record::{CellKey, Record, Store};
use crate::scale::Scale;
use crate::summary::{
    beyond_bound, counts, elapsed, over_own_bound, recovered, stored, synced, takes_time, unmounted,
    verdicts, with_mode, Cells, Verdict,
};

/// Everything that has been measured, with the scale's sentence before every table.
pub fn all(scale: &Scale, store: &Store, table: &Cells<'_>) -> String {
    let mut text = String::new();
    let rounds = store.cells.records().map(|record| record.key.round).max().unwrap_or(0);
    let _ = writeln!(
        text,
        "Up to {rounds} rounds, each with another seed; `a (b–c)` is the median and the spread over them, ratios and percentages \
         are formed within one. Times are the mean over the guests of what the programs measured themselves."
    );
    let note = scale.note();
    for scene in scenes(table) {
        main_table(&mut text, &note, table, &scene);
    }
    recovery_table(&mut text, &note, table);
    figures::memory_table(&mut text, &note, store, table);
    figures::handed_over_table(&mut text, &note, scale, table);
    figures::copies_table(&mut text, &note, table);
    figures::commit_table(&mut text, &note, scale, table);
    figures::checkpoint_table(&mut text, &note, table);
    figures::aged_table(&mut text, &note, table);
    figures::vflush_table(&mut text, &note, table);
    figures::contract_table(&mut text, &note, table);
    figures::ram_table(&mut text, &note, table);
    figures::records_table(&mut text, &note, table);
    bound_table(&mut text, &note, table);
    target_table(&mut text, &note, &verdicts(table));
    text
}

/// Plain runs of one device, contract and number of guests: one of the paper's figures after the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scene {
    /// Below the daemons.
    pub device: Device,
    /// `--survives`
    pub contract: String,
    /// At once.
    pub guests: u32,
}

impl Scene {
    /// One of its cells.
    pub fn key(&self, workload: Workload, mode: Mode) -> CellKey {
        CellKey {
            kind: Kind::Run,
            device: self.device,
            guests: self.guests,
            contract: self.contract.clone(),
            setup: Setup::Plain,
            workload,
            mode,
            round: 0,
        }
    }

    /// For headings.
    pub fn title(&self) -> String {
        let guests = if self.guests == 1 { "1 guest".to_owned() } else { format!("{} guests", self.guests) };
        format!("{guests} on `{}`, `{}`", self.device.name(), self.contract)
    }
}

/// The scenes that have plain runs.
pub fn scenes(table: &Cells<'_>) -> Vec<Scene> {
    let scenes: BTreeSet<Scene> = table
        .keys()
        .filter(|key| key.kind == Kind::Run && key.setup == Setup::Plain)
        .map(|key| Scene { device: key.device, contract: key.contract.clone(), guests: key.guests })
        .collect();
    scenes.into_iter().collect()
}

fn main_table(text: &mut String, note: &str, table: &Cells<'_>, scene: &Scene) {
    let model = scene.device.is_model();
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        for mode in Mode::ALL {
            let key = scene.key(workload, mode);
            if !table.has(&key) {
                continue;
            }
            let (journal, ordered) = (with_mode(&key, Mode::Journal), with_mode(&key, Mode::Ordered));
            let value = |value: fn(&Record) -> Option<f64>| table.spread(&key, value);
            let bound = mode.bound_a().and_then(|bound| table.ratio(&key, &with_mode(&key, bound), stored));
            let mut row = vec![
                workload.name().to_owned(),
                mode.title().to_owned(),
                table.rounds(&key).len().to_string(),
                show(table.spread(&key, elapsed)),
                show(table.spread(&key, synced)),
                if mode == Mode::Journal || !takes_time(table, &journal) {
                    NONE.to_owned()
                } else {
                    percent(table.gain(&key, &journal, elapsed))
                },
                show(table.ratio(&key, &ordered, elapsed).filter(|_| takes_time(table, &ordered))),
                median(table.spread(&key, |record| Some(stored(record)? / MIB))),
                if mode == Mode::Journal {
                    NONE.to_owned()
                } else {
                    percent(table.gain(&key, &journal, stored))
                },
                show(bound),
                show(table.spread(&key, over_own_bound).filter(|_| mode.policy() == JournalPolicy::Retain)),
                count(value(|record| Some(record.storage.writes? as f64))),
                count(value(|record| Some(record.storage.flushes? as f64))),
                count(value(|record| Some(record.storage.seeks? as f64))),
            ];
            if !model {
                row.push(median(value(|record| record.guest_cpu_s)));
                row.push(median(value(|record| record.daemon_cpu_s)));
            }
            let words =
                if matches!(mode, Mode::JournalRetain | Mode::Vma) { paper::words(workload) } else { "" };
            row.push(words.to_owned());
            rows.push(row);
        }
    }
    let _ = writeln!(
        text,
        "\n### {}\n\n{note} The device: {}. Bytes, write requests and flushes are those that reached storage from the \
         begin of the work until everything was on the device{}; `× outside journal` is over what the guests wrote outside \
         their journals in the same run{}.\n",
        scene.title(),
        scene.device.description(),
        if model { ", counted below the host's page cache" } else { ", as the daemons count them" },
        if model { "" } else { "; processor seconds are all guests' and all daemons' during the work" }
    );
    let heads = format!(
        "workload|mode|seeds|time s|with sync s|less than journal|× ordered|MiB stored\
         |less than journal|× bound A|× outside journal|writes|flushes|seeks{}|the paper, VMA",
        if model { "" } else { "|guest CPU s|daemon CPU s" }
    );
    text.push_str(&Table::new(heads.split('|')).with(rows).markdown());
}

fn recovery_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let keys = table.keys().filter(|key| key.kind != Kind::Run && key.workload != Workload::Records);
    let rows: Vec<Vec<String>> = keys
        .map(|key| {
            let part = |value: fn(&crate::record::Recovery) -> f64| {
                median(table.spread(key, |record| record.recovery.as_ref().map(value)))
            };
            let base = CellKey { kind: Kind::KillGuest, ..with_mode(key, Mode::Journal) };
            let clean = table.rounds(key).iter().all(|record| record.recovery.is_some_and(|r| r.clean));
            let said = paper::recovery(key.workload, key.mode);
            vec![
                key.device.name().to_owned(),
                key.workload.name().to_owned(),
                key.mode.title().to_owned(),
                match key.kind {
                    Kind::KillBoth => "guest and daemon",
                    _ => "guest",
                }
                .to_owned(),
                table.rounds(key).len().to_string(),
                show(table.spread(key, recovered)),
                if *key == base { NONE.to_owned() } else { percent(table.gain(key, &base, recovered)) },
                part(|r| r.daemon_s + r.settle_s),
                part(|r| r.mount_s + r.settle_mount_s),
                part(|r| r.traffic_bytes() as f64 / MIB),
                part(|r| r.read_bytes() as f64 / MIB),
                if clean { "yes" } else { "**no**" }.to_owned(),
                said.map_or(NONE.to_owned(), |(seconds, mb)| format!("{seconds} s, {mb} MB")),
            ]
        })
        .collect();
    section(
        text,
        "Table III: recovery after a kill around half of the work's time",
        "device|workload|mode|killed|seeds|recovery s|less than journal|daemon s|mount s\
         |MiB moved|of it read|e2fsck clean|the paper",
        rows,
        &format!(
            "{note} From the kill to a mounted file system whose repaired state is on the device: the daemon's part (what \
             it retained goes home, and to the device), then the next guest's mount with the kernel's own replay (and that \
             to the device). What the host had cached goes to the device before; each seed is killed at another instant."
        ),
    );
}

/// Nothing can beat its bound but by what is counted here.
fn bound_table(text: &mut String, note: &str, table: &Cells<'_>) {
    let rows = beyond_bound(table).into_iter().map(|(key, bound)| {
        vec![
            key.path(),
            show(table.spread(&key, unmounted)),
            show(table.spread(&bound, unmounted)),
            show(table.ratio(&key, &bound, unmounted)),
            counts(table, &key, &bound),
        ]
    });
    let words = format!("{note} Times are until the file system is unmounted: what a guest may leave to its last sync is in both. Counted: this cell's / its bound's.");
    section(text, "Quicker than bound A", "cell|until unmounted s|bound A s|×|counted", rows, &words);
}

fn target_table(text: &mut String, note: &str, verdicts: &[Verdict]) {
    let rows = verdicts.iter().map(|verdict| {
        vec![
            verdict.target.clone(),
            verdict.cell.clone(),
            format!("{} {}", show(Some(verdict.reached)), verdict.unit),
            format!("{} {} {}", if verdict.at_most { "≤" } else { "≥" }, verdict.wanted, verdict.unit),
            if verdict.met { "met" } else { "**missed**" }.to_owned(),
            verdict.counts.clone(),
        ]
    });
    let words = format!("{note} Counted: this cell's / the one's that it is held against.");
    section(text, "Targets", "target|cell|reached|wanted||counted", rows, &words);
}

/// A table under a heading and a paragraph; `heads` have `|` between them.
fn section(
    text: &mut String,
    title: &str,
    heads: &str,
    rows: impl IntoIterator<Item = Vec<String>>,
    words: &str,
) {
    text.push_str(&Table::new(heads.split('|')).with(rows).section(title, words));
}

fn show(spread: Option<Spread>) -> String {
    or_dash(spread, |spread| spread.show(number))
}

fn percent(spread: Option<Spread>) -> String {
    or_dash(spread, |s| match s.rounds {
        1 => format!("{:.1} %", s.median),
        _ => format!("{:.1} % ({:.1}–{:.1})", s.median, s.min, s.max),
    })
}

fn median(spread: Option<Spread>) -> String {
    or_dash(spread, |s| number(s.median))
}

fn count(spread: Option<Spread>) -> String {
    or_dash(spread, |s| format!("{:.0}", s.median))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Sample;
    use afterimage_protocol::status::FileSystemStatus;

    #[test]
    fn what_is_retained_under_one_contract_is_not_taken_for_another() {
        let scale = Scale::quick();
        let cell = |contract: &str| {
            let scene = Scene { device: Device::Hdd15k, contract: contract.to_owned(), guests: 1 };
            let key = CellKey { round: 1, ..scene.key(Workload::Untar, Mode::JournalRetain) };
            let file_systems = vec![FileSystemStatus::default()];
            (Record::empty(&key, &scale, 0.0), vec![Sample { at_ms: 100, file_systems }])
        };
        let store = Store::of(["guest-crash", "power-window=50ms"].map(cell).into_iter());
        let mut text = String::new();
        figures::memory_table(&mut text, "", &store, &Cells::new(&store));
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| hdd15k")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert_ne!(rows[0], rows[1]);
    }

    #[test]
    fn spreads_are_short() {
        let spread = Spread { median: 1.0, min: 0.5, max: 2.0, rounds: 3 };
        assert_eq!(show(Some(spread)), "1.00 (0.50–2.00)");
        assert_eq!(percent(Some(spread)), "1.0 % (0.5–2.0)");
        assert_eq!(percent(Some(Spread { rounds: 1, ..spread })), "1.0 %");
    }
}
