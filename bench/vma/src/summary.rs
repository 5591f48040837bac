//! Cells as lines with a spread over the rounds, ratios formed within a round, and what the targets make of them.

use std::collections::BTreeMap;

use afterimage_bench_kit::io::StorageIo;
use afterimage_bench_kit::CellIdentity;
use afterimage_report::number::{number, MIB};
use afterimage_report::Spread;

use crate::catalog::{Device, Kind, Mode, Setup};
use crate::paper;
use crate::record::{CellKey, Record, Store};

/// Cells by what is the same in every round.
#[derive(Debug)]
pub struct Cells<'a> {
    rows: BTreeMap<CellKey, Vec<&'a Record>>,
}

impl<'a> Cells<'a> {
    /// Of all records of a store.
    pub fn new(store: &'a Store) -> Cells<'a> {
        let mut rows: BTreeMap<CellKey, Vec<&Record>> = BTreeMap::new();
        for record in store.cells.records() {
            rows.entry(record.key.without_round()).or_default().push(record);
        }
        Cells { rows }
    }

    /// What there is, in order; the keys have round 0.
    pub fn keys(&self) -> impl Iterator<Item = &CellKey> {
        self.rows.keys()
    }

    /// Whether there is anything.
    pub fn has(&self, key: &CellKey) -> bool {
        self.rows.contains_key(key)
    }

    /// The rounds of one row.
    pub fn rounds(&self, key: &CellKey) -> &[&'a Record] {
        self.rows.get(key).map_or(&[], Vec::as_slice)
    }

    /// A number over the rounds.
    pub fn spread(&self, key: &CellKey, value: impl Fn(&Record) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds(key).iter().filter_map(|record| value(record)))
    }

    /// A number over that of another row in the same round.
    pub fn ratio(
        &self,
        key: &CellKey,
        base: &CellKey,
        value: impl Fn(&Record) -> Option<f64>,
    ) -> Option<Spread> {
        let base = self.rounds(base);
        let ratios = self.rounds(key).iter().filter_map(|record| {
            let other = base.iter().find(|other| other.key.round == record.key.round)?;
            Some(value(record)? / value(other)?)
        });
        Spread::of(ratios)
    }

    /// How much less than another row's in the same round, in percent.
    pub fn gain(
        &self,
        key: &CellKey,
        base: &CellKey,
        value: impl Fn(&Record) -> Option<f64>,
    ) -> Option<Spread> {
        let ratio = self.ratio(key, base, value)?;
        let percent = |ratio: f64| (1.0 - ratio) * 100.0;
        Some(Spread {
            median: percent(ratio.median),
            min: percent(ratio.max),
            max: percent(ratio.min),
            ..ratio
        })
    }
}

/// The work's time, as the program measured it.
pub fn elapsed(record: &Record) -> Option<f64> {
    (!record.guests.is_empty()).then(|| record.elapsed_s())
}

/// The work's time and its sync's.
pub fn synced(record: &Record) -> Option<f64> {
    (!record.guests.is_empty()).then(|| record.synced_s())
}

/// The work's time, its sync's and the unmount's: nothing is left to the guest to write.
pub fn unmounted(record: &Record) -> Option<f64> {
    (!record.guests.is_empty()).then(|| record.unmounted_s())
}

/// Bytes written to storage.
pub fn stored(record: &Record) -> Option<f64> {
    (!record.guests.is_empty()).then_some(record.storage.write_bytes as f64)
}

/// Bytes written to storage over what the guests wrote outside their journals.
pub fn over_own_bound(record: &Record) -> Option<f64> {
    Some(stored(record)? / record.outside_journal_bytes().filter(|bytes| *bytes > 0)? as f64)
}

/// Work that is shorter than this, in seconds, says nothing: what is done in memory alone takes no time where processors are free.
const LEAST_S: f64 = 0.1;

/// Whether times may be held against this cell's.
pub fn takes_time(table: &Cells<'_>, key: &CellKey) -> bool {
    table.spread(key, elapsed).is_some_and(|time| time.median >= LEAST_S)
}

/// The recovery's time.
pub fn recovered(record: &Record) -> Option<f64> {
    Some(record.recovery?.total_s())
}

/// The same cell in another mode.
pub fn with_mode(key: &CellKey, mode: Mode) -> CellKey {
    CellKey { mode, ..key.clone() }
}

/// How a target came out.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The target in words.
    pub target: String,
    /// Where.
    pub cell: String,
    /// What was reached.
    pub reached: Spread,
    /// What must be reached.
    pub wanted: f64,
    /// Whether smaller is better.
    pub at_most: bool,
    /// The unit behind both numbers.
    pub unit: &'static str,
    /// Whether the median is on the right side.
    pub met: bool,
    /// What explains it: of both sides, what was counted.
    pub counts: String,
}

/// What a cell and another one asked of the device, as medians: bytes, requests, seeks, flushes.
pub fn counts(table: &Cells<'_>, key: &CellKey, base: &CellKey) -> String {
    let of = |key: &CellKey, value: fn(&StorageIo) -> Option<f64>| {
        table.spread(key, |record| {
            let recovery = record.recovery.map(|r| r.daemon_io.and(&r.mount_io));
            value(&recovery.unwrap_or(record.storage))
        })
    };
    let pair = |name: &str, value: fn(&StorageIo) -> Option<f64>| {
        let (ours, theirs) = (of(key, value)?, of(base, value)?);
        Some(format!("{} / {} {name}", number(ours.median), number(theirs.median)))
    };
    let parts = [
        pair("MiB", |io| Some(io.write_bytes as f64 / MIB)),
        pair("writes", |io| Some(io.writes? as f64)),
        pair("reads", |io| Some(io.reads? as f64)),
        pair("seeks", |io| Some(io.seeks? as f64)),
        pair("flushes", |io| Some(io.flushes? as f64)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Cells that take less time than their bound A until their file systems are unmounted, and that bound's.
pub fn beyond_bound(table: &Cells<'_>) -> Vec<(CellKey, CellKey)> {
    let runs = table.keys().filter(|key| key.kind == Kind::Run);
    let pairs = runs.filter_map(|key| Some((key.clone(), with_mode(key, key.mode.bound_a()?))));
    pairs
        .filter(|(key, bound)| table.ratio(key, bound, unmounted).is_some_and(|ratio| ratio.median < 0.995))
        .collect()
}

fn judge(
    table: &Cells<'_>,
    target: String,
    (key, base): (&CellKey, &CellKey),
    reached: Option<Spread>,
    wanted: f64,
    at_most: bool,
    unit: &'static str,
) -> Option<Verdict> {
    let reached = reached?;
    let met = if at_most { reached.median <= wanted } else { reached.median >= wanted };
    let counts = counts(table, key, base);
    Some(Verdict { target, cell: key.path(), reached, wanted, at_most, unit, met, counts })
}

/// The targets, each where both sides were measured.
pub fn verdicts(table: &Cells<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let ours = |key: &&CellKey| matches!(key.mode, Mode::JournalRetain | Mode::Vma);
    for key in table.keys().filter(ours).filter(|key| key.setup == Setup::Plain) {
        let journal = with_mode(key, Mode::Journal);
        match key.kind {
            Kind::Run => {
                if key.contract == "guest-crash" {
                    // Exact, for it is of one run; the other compares two runs, in which the guest itself may have
                    // written more or less, as its timers fell.
                    verdicts.extend(judge(
                        table,
                        "bytes stored ≤ 1.03 × the guests' writes outside their journals".to_owned(),
                        (key, &journal),
                        table.spread(key, over_own_bound),
                        1.03,
                        true,
                        "×",
                    ));
                    verdicts.extend(judge(
                        table,
                        "bytes stored ≤ 1.03 × bound A".to_owned(),
                        (key, &with_mode(key, Mode::JournalDrop)),
                        table.ratio(key, &with_mode(key, Mode::JournalDrop), stored),
                        1.03,
                        true,
                        "×",
                    ));
                }
                if key.device != Device::Hdd15k || key.contract != "guest-crash" {
                    continue;
                }
                if let Some((gain, _)) =
                    paper::gain_over_journal(key.workload).filter(|_| takes_time(table, &journal))
                {
                    verdicts.extend(judge(
                        table,
                        format!("time at least {gain} % below journal (the paper's)"),
                        (key, &journal),
                        table.gain(key, &journal, elapsed),
                        gain,
                        false,
                        "%",
                    ));
                }
                let ordered = with_mode(key, Mode::Ordered);
                if takes_time(table, &ordered) {
                    verdicts.extend(judge(
                        table,
                        "time ≤ 1.10 × ordered".to_owned(),
                        (key, &ordered),
                        table.ratio(key, &ordered, elapsed),
                        1.10,
                        true,
                        "×",
                    ));
                }
            }
            // The paper's VMM does not die; what the daemon's death costs stands in the table.
            Kind::KillBoth => {}
            Kind::KillGuest => {
                if let Some(gain) = paper::recovery_gain(key.workload) {
                    verdicts.extend(judge(
                        table,
                        format!("recovery at least {gain} % quicker than journal (the paper's)"),
                        (key, &journal),
                        table.gain(key, &journal, recovered),
                        gain,
                        false,
                        "%",
                    ));
                }
            }
        }
    }
    verdicts
}
