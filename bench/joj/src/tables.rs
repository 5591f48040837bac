//! The figures' tables, and the paper's numbers beside ours.

use afterimage_bench_kit::virtual_time::{REQUEST_NS, SYSCALL_NS};
use afterimage_flash::FtlKind;
use afterimage_report::number::number;
use afterimage_report::{or_dash, page, Spread, Table};
use maud::html;

use crate::plan::{Arm, Log, MACHINE, MODELS, SIZES};
use crate::record::{Phase, Record};

/// A test case of the paper's: one bar of each arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    model: &'static str,
    log: Log,
    operations: u32,
    phase: &'static str,
}

impl Case {
    /// Of some logs, on one device.
    fn all(model: &'static str, logs: &[Log], sizes: &[u32]) -> Vec<Self> {
        let mut cases = Vec::new();
        for operations in sizes {
            for log in logs {
                let phases = log.phases().iter();
                cases.extend(phases.map(|phase| Self { model, log: *log, operations: *operations, phase }));
            }
        }
        cases
    }

    /// The paper's twelve.
    fn sqlite(model: &'static str) -> Vec<Self> {
        Self::all(model, &[Log::Wal, Log::Rollback], &SIZES)
    }

    fn words(self) -> Vec<String> {
        vec![self.log.name().to_owned(), self.operations.to_string(), self.phase.to_owned()]
    }

    fn name(self) -> String {
        format!("{} {}", self.model, self.words().join(" "))
    }
}

/// Whether these are of a disk of the machine's, in real time.
fn is_machine(records: &[Record]) -> bool {
    records.iter().any(|record| record.key.model == MACHINE[0])
}

/// The devices that these are of.
fn models(records: &[Record]) -> &'static [&'static str] {
    if is_machine(records) {
        &MACHINE
    } else {
        &MODELS
    }
}

/// What there is of a case, with its seed.
fn phases(records: &[Record], case: Case, arm: Arm) -> Vec<(u64, &Phase)> {
    let is = |record: &&Record| {
        let key = &record.key;
        key.model == case.model && key.log == case.log && key.operations == case.operations && key.arm == arm
    };
    let found = records.iter().filter(is);
    let phase = |record: &'_ &Record| record.phases.iter().position(|phase| phase.name == case.phase);
    found.filter_map(|record| Some((record.key.seed, &record.phases[phase(&record)?]))).collect()
}

fn spread(phases: &[(u64, &Phase)], number: impl Fn(&Phase) -> f64) -> Option<Spread> {
    Spread::of(phases.iter().map(|(_, phase)| number(phase)))
}

/// Times over another's, within one seed.
fn ratio(mine: &[(u64, &Phase)], base: &[(u64, &Phase)]) -> Option<Spread> {
    Spread::of(mine.iter().filter_map(|(seed, phase)| {
        let (_, other) = base.iter().find(|(of, _)| of == seed)?;
        Some(phase.elapsed_s / other.elapsed_s)
    }))
}

fn over_no_journal(records: &[Record], case: Case, arm: Arm) -> Option<f64> {
    let base = phases(records, case, Arm::NoJournal);
    ratio(&phases(records, case, arm), &base).map(|spread| spread.median)
}

fn percent(ratio: f64) -> String {
    format!("{:+.0} %", 100.0 * (ratio - 1.0))
}

/// All tables of what there is.
pub fn markdown(records: &[Record]) -> String {
    let seeds = records.iter().map(|record| record.key.seed).max().unwrap_or(0);
    let of = |operations| {
        records
            .iter()
            .filter(move |record| record.key.log != Log::File && record.key.operations == operations)
    };
    let size = |operations| of(operations).map(|record| record.records).max().unwrap_or(0);
    let time = if is_machine(records) {
        "Real time, on a disk of the machine's own, one cell at a time, guest and daemon on one processor: nothing is charged, and whatever else the machine does shows".to_owned()
    } else {
        format!(
            "Virtual time; **charged** {} µs a request and {} µs a guest's system call, all other computing free: no figure here says anything about processors",
            REQUEST_NS / 1000,
            SYSCALL_NS / 1000
        )
    };
    let mut text = format!(
        "{} records; {} where each has a transaction of its own. {time}. *No journal* sends a flush with each of SQLite's syncs; *as it is*, Linux 6.1 sends none \
         where only data was written. `a (b–c)` is the median and the spread over the rounds, each a seed of its own, up to \
         {seeds}; per cent are against no journal with its flushes, within one seed. *vma* is `data=vma` under `guest-crash`, which survives no \
         power cut, and all others are under `power`; its commands count among its writes.\n",
        size(SIZES[1]),
        size(SIZES[0]),
    );
    for model in models(records).iter().copied() {
        let cases = Case::sqlite(model);
        let times = times(records, &cases);
        if times.is_empty() {
            continue;
        }
        let figure = match model {
            "emmc" => " (Fig. 2: the paper's tablet)",
            "ssd" => " (Fig. 3: the paper's SSD)",
            _ => "",
        };
        text.push_str(&times.section(&format!("`{model}`{figure}: milliseconds a transaction"), ""));
        let words =
            "Writes, flushes, KiB written, each for one transaction. A flush that carries nothing counts as a write, too.";
        text.push_str(
            &costs(records, &cases)
                .section(&format!("`{model}`: what a transaction asks of the disk"), words),
        );
    }
    let files: Vec<Case> =
        models(records).iter().flat_map(|model| Case::all(model, &[Log::File], &SIZES[..1])).collect();
    let words = "4 KiB a write, each synced (O_SYNC), one after the other.";
    text.push_str(&times_of(records, &files, true).section("A sync: milliseconds", words));
    text.push_str(&vext4(records).section("Inside vext4's journal", "Medians."));
    let free = match is_machine(records) {
        true => "",
        false => " With processors free, as here, no protection costs its system calls only: the paper's ratios, of real processors, are below ours where little is written.",
    };
    let words = format!("Times over no protection (no log of SQLite's, no journal, nothing synced).{free}");
    text.push_str(&protection(records).section("Fig. 4: what protection costs", &words));
    text.push_str(&erases(records).section(
        "Erases",
        "Blocks erased (and pages programmed for each that was written) by a whole round, its table's first filling included: what the \
         daemon asked of `ssd`'s image, played by `afterimage flash` on a drive as large, whose pages were all written once. Medians.",
    ));
    text.push_str(&claims(records).section("The paper beside", ""));
    text
}

/// The same as a page.
pub fn page(markdown: &str) -> String {
    page::page("Journaling of Journal's figures in virtual time", &html! { pre { (markdown) } })
}

fn heads(first: &str) -> Vec<String> {
    let arms =
        ["no journal", "no journal, as it is", "ordered", "data", "single-I/O", "file-adaptive", "vma"];
    first.split('|').chain(arms).map(str::to_owned).collect()
}

fn times(records: &[Record], cases: &[Case]) -> Table {
    times_of(records, cases, false)
}

fn times_of(records: &[Record], cases: &[Case], with_model: bool) -> Table {
    let heads = heads(if with_model { "device|file|operations|" } else { "log|operations|" });
    Table::new(heads).with(rows(records, cases, with_model, |case, arm| {
        let mine = phases(records, case, arm);
        or_dash(spread(&mine, Phase::response_ms), |spread| {
            let against = over_no_journal(records, case, arm).filter(|_| arm != Arm::NoJournal);
            let shown = spread.show(|ms| if ms < 10.0 { format!("{ms:.2}") } else { format!("{ms:.1}") });
            format!("{shown}{}", against.map_or(String::new(), |ratio| format!(" {}", percent(ratio))))
        })
    }))
}

fn rows(
    records: &[Record],
    cases: &[Case],
    with_model: bool,
    cell: impl Fn(Case, Arm) -> String,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for case in cases {
        if Arm::ALL.iter().all(|arm| phases(records, *case, *arm).is_empty()) {
            continue;
        }
        let mut row = if with_model { vec![case.model.to_owned()] } else { Vec::new() };
        row.extend(case.words());
        row.extend(Arm::ALL.iter().map(|arm| cell(*case, *arm)));
        rows.push(row);
    }
    rows
}

fn median(phases: &[(u64, &Phase)], number: impl Fn(&Phase) -> f64) -> Option<f64> {
    spread(phases, number).map(|spread| spread.median)
}

fn costs(records: &[Record], cases: &[Case]) -> Table {
    Table::new(heads("log|operations|")).with(rows(records, cases, false, |case, arm| {
        let mine = phases(records, case, arm);
        let each = |of: &dyn Fn(&Phase) -> u64| or_dash(median(&mine, |phase| phase.each(of(phase))), number);
        if mine.is_empty() {
            return afterimage_report::NONE.to_owned();
        }
        let bytes = median(&mine, |phase| phase.each(phase.guest.write_bytes) / 1024.0);
        format!(
            "{}, {}, {}",
            each(&|phase| phase.guest.writes),
            each(&|phase| phase.guest.flushes),
            or_dash(bytes, number)
        )
    }))
}

fn vext4(records: &[Record]) -> Table {
    let heads = "device|log|operations||mode|commits a transaction|of them one write and one flush|journal KiB a commit\
                 |journal KiB a transaction|home KiB a transaction|home writes cancelled: overwritten|freed";
    let mut table = Table::new(heads.split('|'));
    for model in models(records).iter().copied() {
        for case in Case::sqlite(model).into_iter().chain(Case::all(model, &[Log::File], &SIZES[..1])) {
            for arm in [Arm::SingleIo, Arm::Adaptive] {
                let mine = phases(records, case, arm);
                let of = |count: &dyn Fn(&Phase) -> Option<f64>| {
                    or_dash(median(&mine, |phase| count(phase).unwrap_or(f64::NAN)), number)
                };
                if mine.is_empty() {
                    continue;
                }
                let mut row = vec![model.to_owned()];
                row.extend(case.words());
                row.push(arm.name().to_owned());
                let share = median(&mine, |phase| {
                    phase.vext4.map_or(f64::NAN, |v| v.single as f64 / v.commits as f64)
                });
                row.extend([
                    of(&|phase| Some(phase.each(phase.vext4?.commits))),
                    or_dash(share, |share| format!("{:.0} %", 100.0 * share)),
                    of(&|phase| phase.vext4.map(|v| v.journal_bytes as f64 / v.commits as f64 / 1024.0)),
                    of(&|phase| Some(phase.each(phase.vext4?.journal_bytes) / 1024.0)),
                    of(&|phase| Some(phase.each(phase.vext4?.home_bytes) / 1024.0)),
                    of(&|phase| Some(phase.vext4?.cancelled_overwritten as f64)),
                    of(&|phase| Some(phase.vext4?.cancelled_freed as f64)),
                ]);
                table.row(row);
            }
        }
    }
    table
}

fn protection(records: &[Record]) -> Table {
    let mut table =
        Table::new("device|operations||no protection, ms|write-ahead log: ×|and file-adaptive: ×".split('|'));
    for model in models(records).iter().copied() {
        for case in Case::all(model, &[Log::Off], &SIZES) {
            let none = phases(records, case, Arm::Unflushed);
            let logged = Case { log: Log::Wal, ..case };
            let over = |arm| or_dash(ratio(&phases(records, logged, arm), &none), |s| s.show(number));
            if let Some(times) = spread(&none, Phase::response_ms) {
                table.row([
                    model.to_owned(),
                    case.operations.to_string(),
                    case.phase.to_owned(),
                    times.show(|ms| format!("{ms:.3}")),
                    over(Arm::NoJournal),
                    over(Arm::Adaptive),
                ]);
            }
        }
    }
    table
}

fn erases(records: &[Record]) -> Table {
    let mut table = Table::new(heads("log|operations|FTL"));
    for operations in SIZES {
        for log in [Log::Wal, Log::Rollback] {
            for ftl in FtlKind::ALL {
                let on = |arm| {
                    let of = move |record: &&Record| {
                        let key = &record.key;
                        (key.log, key.operations, key.arm) == (log, operations, arm)
                    };
                    let wear = records.iter().filter(of).flat_map(|record| &record.flash);
                    wear.filter(|wear| wear.ftl == ftl).collect::<Vec<_>>()
                };
                let cells = Arm::ALL.map(|arm| {
                    let erases = Spread::of(on(arm).iter().map(|wear| wear.erases as f64));
                    let amplification =
                        Spread::of(on(arm).iter().filter_map(|wear| wear.write_amplification));
                    let shown = erases.map(|erases| number(erases.median));
                    shown.map(|erases| {
                        format!("{erases} ({})", or_dash(amplification, |each| format!("{:.2}", each.median)))
                    })
                });
                if cells.iter().any(Option::is_some) {
                    let mut row = vec![log.name().to_owned(), operations.to_string(), ftl.name().to_owned()];
                    row.extend(cells.map(|cell| cell.unwrap_or_else(|| "–".to_owned())));
                    table.row(row);
                }
            }
        }
    }
    table
}

/// Slow-downs of an arm in all cases that are there, with their names, the worst first.
fn slowdowns(records: &[Record], models: &[&'static str], arm: Arm) -> Vec<(f64, String)> {
    let cases = models.iter().flat_map(|model| Case::sqlite(model));
    let mut found: Vec<(f64, String)> =
        cases.filter_map(|case| Some((over_no_journal(records, case, arm)?, case.name()))).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found
}

/// Whether a target is met, of so many cases.
fn met(met: bool, run: usize, all: usize) -> String {
    let word = if met { "yes" } else { "**no**" };
    if run == all {
        return word.to_owned();
    }
    format!("{word}, of {run} of {all} cases")
}

fn claims(records: &[Record]) -> Table {
    let mut table = Table::new("|device|the paper|ours|target met".split('|'));
    let worst = [
        (Arm::Ordered, ["up to +20 %", "up to +20 %"]),
        (Arm::Data, ["up to +73 %", "up to +58 %"]),
        (Arm::SingleIo, ["up to +38 %", "up to +38 %"]),
        (Arm::Adaptive, ["up to +6 %, one +14 %", "up to +6 %"]),
    ];
    for (arm, paper) in worst {
        for (at, model) in models(records).iter().copied().enumerate() {
            let found = slowdowns(records, &[model], arm);
            if let Some((ratio, case)) = found.first() {
                table.row([
                    format!("{}: the worst of {} cases", arm.name(), found.len()),
                    model.to_owned(),
                    paper.get(at).filter(|_| !is_machine(records)).map_or("–", |words| *words).to_owned(),
                    format!("{} ({case})", percent(*ratio)),
                    "–".to_owned(),
                ]);
            }
        }
    }
    let adaptive = slowdowns(records, models(records), Arm::Adaptive);
    if !adaptive.is_empty() {
        let above: Vec<String> = adaptive
            .iter()
            .filter(|(ratio, _)| *ratio > 1.06)
            .map(|(ratio, case)| format!("{case} {}", percent(*ratio)))
            .collect();
        table.row([
            "adaptive: cases more than 6 % slower than no journal".to_owned(),
            "all".to_owned(),
            "1 of 24".to_owned(),
            format!("{} of {}: {}", above.len(), adaptive.len(), above.join(", ")),
            format!("all but one: {}", met(above.len() <= 1, adaptive.len(), 12 * models(records).len())),
        ]);
    }
    for (at, model) in models(records).iter().copied().enumerate() {
        let found = slowdowns(records, &[model], Arm::Adaptive);
        if found.is_empty() {
            continue;
        }
        let mean = found.iter().map(|(ratio, _)| ratio).sum::<f64>() / found.len() as f64;
        table.row([
            "adaptive: the mean of all cases".to_owned(),
            model.to_owned(),
            ["-4 %", "-9 %"].get(at).filter(|_| !is_machine(records)).map_or("–", |words| *words).to_owned(),
            percent(mean),
            format!("faster: {}", met(mean < 1.0, found.len(), 12)),
        ]);
    }
    for model in models(records).iter().copied() {
        let cases = Case::all(model, &[Log::File], &SIZES[..1]);
        let slower = |case: &Case| {
            let spread =
                ratio(&phases(records, *case, Arm::SingleIo), &phases(records, *case, Arm::Ordered))?;
            Some((case.phase, spread.median))
        };
        let found: Vec<(&str, f64)> = cases.iter().filter_map(slower).collect();
        if !found.is_empty() {
            let words = found.iter().map(|(phase, ratio)| format!("{phase} {}", percent(*ratio)));
            table.row([
                "a sync at single-I/O against ordered".to_owned(),
                model.to_owned(),
                "–".to_owned(),
                words.collect::<Vec<_>>().join(", "),
                format!("not slower: {}", met(found.iter().all(|(_, ratio)| *ratio <= 1.0), found.len(), 2)),
            ]);
        }
    }
    for model in models(records).iter().copied() {
        let update = Case { model, log: Log::Rollback, operations: 1, phase: "update" };
        let mine = phases(records, update, Arm::Adaptive);
        if let Some(commit) =
            median(&mine, |phase| phase.vext4.map_or(f64::NAN, |v| v.journal_bytes as f64 / v.commits as f64))
        {
            table.row([
                "adaptive, update, rollback: bytes".to_owned(),
                model.to_owned(),
                "2,576 in nine writes became 45,056 in one commit".to_owned(),
                format!(
                    "{commit:.0} in the journal a commit, {} on the disk a transaction",
                    or_dash(median(&mine, |phase| phase.each(phase.guest.write_bytes)), |bytes| format!(
                        "{bytes:.0}"
                    ))
                ),
                "–".to_owned(),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Key;
    use afterimage_bench_kit::io::GuestIo;
    use afterimage_protocol::cell::Requests;

    fn record(arm: Arm, seed: u64, seconds: f64) -> Record {
        let key = Key { log: Log::Wal, operations: 1, model: "ssd".to_owned(), arm, seed };
        let phase = |name: &&str| Phase {
            name: (*name).to_owned(),
            transactions: 1000,
            elapsed_s: seconds,
            guest: GuestIo::default(),
            vext4: None,
        };
        Record {
            version: 1,
            phases: key.log.phases().iter().map(phase).collect(),
            key,
            records: 1000,
            request_ns: 0,
            syscall_ns: 0,
            device_whole: Requests::default(),
            flash: Vec::new(),
            trace: String::new(),
            real_s: 0.0,
        }
    }

    #[test]
    fn slowdowns_are_of_the_same_seed() {
        let records = [
            record(Arm::NoJournal, 1, 1.0),
            record(Arm::NoJournal, 2, 2.0),
            record(Arm::Adaptive, 1, 1.1),
            record(Arm::Adaptive, 2, 2.2),
            record(Arm::Adaptive, 3, 99.0),
        ];
        let found = slowdowns(&records, &MODELS, Arm::Adaptive);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|(ratio, _)| (ratio - 1.1).abs() < 1e-9));
        let text = markdown(&records);
        assert!(text.contains("3 of 3: ssd wal 1"), "{text}");
        assert!(text.contains("all but one: **no**") && text.contains("faster: **no**"), "{text}");
        assert!(text.contains("1.65 (1.10–2.20)") || text.contains("2.20 (1.10–99.0)"), "{text}");
    }
}
