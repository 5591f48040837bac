//! The study's figures as tables, with its ranges beside ours; in Markdown that reads well in a terminal too.

use afterimage_bench_vma::catalog::Workload;
use afterimage_flash::{Config, FtlKind};
use afterimage_report::number::{number, thousands, MIB};
use afterimage_report::{or_dash, Spread, Table, NONE};

use crate::findings::{collection, erases, requests, Findings};
use crate::record::{Age, Simulated, SimulationKey};
use crate::study::{self, Family, Range, Variant};

/// Everything that is finished.
pub fn all(findings: &Findings) -> String {
    let mut text = format!("{}\n", setting(findings));
    traffic(&mut text, findings);
    for age in findings.ages() {
        erase_table(&mut text, findings, age);
        collection_table(&mut text, findings, age);
        range_table(&mut text, findings, age);
    }
    untar(&mut text, findings);
    drives(&mut text, findings);
    text
}

/// What holds for every table: sizes, guests, device.
pub fn setting(findings: &Findings) -> String {
    format!(
        "{} {} guest{} at once, each on a disk of 4 GiB with a journal of {} MiB, on `{}`, `guest-crash`. {} The study: \
         eight guests, its full sizes, Linux 2.6.11 with ext3.",
        findings.setting.scale.note(),
        findings.setting.guests,
        if findings.setting.guests == 1 { "" } else { "s" },
        findings.setting.scale.journal_mib,
        findings.setting.device.name(),
        match findings.seeds() {
            0 | 1 => "One seed.".to_owned(),
            seeds => format!(
                "Up to {seeds} seeds; `a (b–c)` is the median and the spread over them, reductions formed within a seed."
            ),
        }
    )
}

/// How a drive was aged, in a sentence.
pub fn age_words(findings: &Findings, age: Age) -> String {
    match age {
        Age::Region => format!(
            "Aged by *region*: for each workload the flash holds the pages that any of its modes touches, each written once \
             before, and {:.0} % spare (at least what every FTL needs to work).",
            Config::SPARE * 100.0
        ),
        Age::Drive => format!(
            "Aged as a *whole drive*: the flash holds the {} virtual disks, filled sequentially before, and {:.0} % spare ({} \
             blocks of 64 pages of 2 KB in all).",
            findings.setting.guests,
            Config::SPARE * 100.0,
            thousands(u64::from(crate::simulate::whole_drive(findings.setting.guests).blocks))
        ),
    }
}

/// Which reductions are not given.
const LEFT_OUT: &str = "No reduction is given of a mode that wrote less than twice the spare space: that is erased when a trace \
                        begins, so what goes there costs nothing, and a comparison would be one of the drive.";

fn percent(value: Option<Spread>) -> String {
    or_dash(value, |value| value.show(|percent| format!("{percent:.1}")) + " %")
}

fn counts(value: Option<Spread>) -> String {
    or_dash(value, |value| value.show(|count| thousands(count.round() as u64)))
}

fn numbers(value: Option<Spread>) -> String {
    or_dash(value, |value| value.show(number))
}

fn range(range: Option<Range>) -> String {
    range.map_or_else(|| "not in the study".to_owned(), |(from, to)| format!("{from}–{to} %"))
}

/// The paper's range only where it is about: retention against journal.
fn beside(variant: Variant, text: String) -> String {
    if variant == Variant::Retain {
        text
    } else {
        String::new()
    }
}

fn traffic(text: &mut String, findings: &Findings) {
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        for variant in Variant::ALL {
            let Some(key) = findings.any(workload, variant) else { continue };
            let in_study = study::family(workload) != Family::Other;
            let said = |r: Range| range(in_study.then_some(r));
            let mut row = vec![workload.name().to_owned(), variant.title().to_owned()];
            row.push(counts(findings.spread(key, requests)));
            row.push(percent(findings.less_than_journal(key, requests)));
            row.push(beside(variant, said(study::REQUESTS)));
            row.push(numbers(findings.spread(key, |s| s.traffic_bytes as f64 / MIB)));
            row.push(percent(findings.less_than_journal(key, |s| s.traffic_bytes as f64)));
            row.push(beside(variant, said(study::TRAFFIC)));
            row.push(numbers(findings.spread(key, |s| s.write_bytes as f64 / MIB)));
            rows.push(row);
        }
    }
    text.push_str(&Table::new([
            "workload", "mode", "requests", "less than journal", "the study", "MiB", "less than journal", "the study",
            "MiB written",
        ]).with(rows).section("Figures 2 and 3: requests and traffic", "Reads and writes where they reach storage, from the start of the daemons to their end, all guests together; \
         flushes and discards apart. The study's ranges are over all its benchmarks."));
}

/// Rows of a figure: for each FTL the cells that `cells` makes of a result and its reduction.
fn figure(
    findings: &Findings,
    age: Age,
    cells: impl Fn(&SimulationKey) -> [String; 3],
    said: impl Fn(Workload) -> Option<Range>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        for variant in Variant::ALL {
            let keys = findings.ftls.iter().map(|ftl| SimulationKey { workload, variant, ftl: *ftl, age });
            if keys.clone().all(|key| findings.get(&key).next().is_none()) {
                continue;
            }
            let mut row = vec![workload.name().to_owned(), variant.title().to_owned()];
            row.extend(keys.flat_map(|key| cells(&key)));
            row.push(beside(variant, range(said(workload))));
            rows.push(row);
        }
    }
    rows
}

fn heads(findings: &Findings, of_ftl: &[&str]) -> Vec<String> {
    let mut names = vec!["workload".to_owned(), "mode".to_owned()];
    for ftl in &findings.ftls {
        names.extend(of_ftl.iter().map(|head| format!("{ftl}: {head}")));
    }
    names.push("the study".to_owned());
    names
}

fn erase_table(text: &mut String, findings: &Findings, age: Age) {
    let rows = figure(
        findings,
        age,
        |key| {
            let reduction = findings.less_on_drive(key, erases);
            let longer = |percent: f64| format!("{:.2}", 100.0 / (100.0 - percent));
            let lifetime = reduction.filter(|less| less.max < 100.0).map(|less| less.show(longer) + "×");
            [counts(findings.spread(key, erases)), percent(reduction), or_dash(lifetime, |l| l)]
        },
        study::erases,
    );
    let words = format!(
        "{} *Less* is the reduction against the journal mode, which the study calls an extension of the lifetime by as much; \
         *lifetime* is the true ratio under even wear, 1 / (1 − reduction). {LEFT_OUT}",
        age_words(findings, age)
    );
    let heads = heads(findings, &["erases", "less", "lifetime"]);
    text.push_str(
        &Table::new(heads).with(rows).section(&format!("Figure 4: erases, {}", age.name()), &words),
    );
}

fn collection_table(text: &mut String, findings: &Findings, age: Age) {
    let rows = figure(
        findings,
        age,
        |key| {
            let amplification = findings.spread(key, |s| s.write_amplification.unwrap_or(f64::NAN));
            [
                numbers(findings.spread(key, |s| collection(s) / 1e9)),
                percent(findings.less_on_drive(key, collection)),
                or_dash(amplification, |wa| wa.show(|wa| format!("{wa:.2}"))),
            ]
        },
        study::collection,
    );
    let words = format!(
        "{} GC overhead is the time of collection's copies and erases (the study does not define its own); WA: \
         programs a page that the host wrote. {LEFT_OUT}",
        age_words(findings, age)
    );
    let heads = heads(findings, &["GC s", "less", "WA"]);
    text.push_str(
        &Table::new(heads).with(rows).section(&format!("Figure 5: GC overhead, {}", age.name()), &words),
    );
}

fn range_table(text: &mut String, findings: &Findings, age: Age) {
    let mut rows = Vec::new();
    let ours = |found: Vec<(f64, Workload)>| match (found.first(), found.last()) {
        (Some((least, low)), Some((most, high))) => {
            format!("{least:.1} ({}) – {most:.1} % ({})", low.name(), high.name())
        }
        _ => NONE.to_owned(),
    };
    for (name, family) in
        [("micro", Some(Family::Micro)), ("macro", Some(Family::Macro)), ("all, the best", None)]
    {
        for ftl in &findings.ftls {
            let workload = if family == Some(Family::Micro) { Workload::SeqWrite } else { Workload::Untar };
            let (said_erases, said_collection) = match family {
                Some(_) => (range(study::erases(workload)), range(study::collection(workload))),
                None => (best(study::best_erases(*ftl)), best(study::best_collection(*ftl))),
            };
            rows.push(vec![
                name.to_owned(),
                ftl.to_string(),
                ours(findings.reductions(family, *ftl, age, erases)),
                said_erases,
                ours(findings.reductions(family, *ftl, age, collection)),
                said_collection,
            ]);
        }
    }
    if findings.results().all(|found| found.key.variant != Variant::Retain) {
        rows.clear();
    }
    text.push_str(&Table::new(["workloads", "FTL", "erases, ours", "the study", "GC overhead, ours", "the study"]).with(rows).section(&format!("Reductions beside the study's, {}", age.name()), &format!("`journal+retain` against `journal`; the study's ranges are over its benchmarks of a kind and its three FTLs together. {LEFT_OUT}")));
}

fn best(value: Option<f64>) -> String {
    value.map_or_else(|| "not in the study".to_owned(), |value| format!("up to {value} %"))
}

/// Two more sentences of the study: the metadata modes on DFTL, and which FTL erases less.
fn untar(text: &mut String, findings: &Findings) {
    let mut rows = Vec::new();
    for age in findings.ages() {
        for variant in [Variant::Writeback, Variant::Ordered, Variant::Retain] {
            let key = SimulationKey { workload: Workload::Untar, variant, ftl: FtlKind::Dftl, age };
            let Some(less) = findings.less_on_drive(&key, erases) else { continue };
            // As the study says it: what is left of the journal mode's.
            let left =
                Spread { median: 100.0 - less.median, min: 100.0 - less.max, max: 100.0 - less.min, ..less };
            rows.push(vec![
                format!("untar on dftl, {}: erases of journal's", variant.title()),
                age.name().to_owned(),
                percent(Some(left)),
                or_dash(study::untar_dftl(variant), |said| format!("{said} %")),
            ]);
        }
        for ftl in [FtlKind::Superblock, FtlKind::Dftl] {
            let pairs: Vec<bool> = Workload::ALL
                .into_iter()
                .flat_map(|workload| Variant::TRACED.map(|variant| (workload, variant)))
                .flat_map(|(workload, variant)| {
                    let of = move |ftl| findings.get(&SimulationKey { workload, variant, ftl, age });
                    of(ftl).filter(|own| own.outgrows_spare()).filter_map(move |own| {
                        let fast = of(FtlKind::Fast).find(|fast| fast.seed == own.seed)?;
                        Some(own.erases < fast.erases)
                    })
                })
                .collect();
            if !pairs.is_empty() {
                rows.push(vec![
                    format!("{ftl} erases less than fast"),
                    age.name().to_owned(),
                    format!("in {} of {}", pairs.iter().filter(|less| **less).count(), pairs.len()),
                    "always".to_owned(),
                ]);
            }
        }
    }
    text.push_str(&Table::new(["what", "aged by", "ours", "the study"]).with(rows).section(
        "Other statements of the study",
        "Over all that was run and wrote at least twice the spare space.",
    ));
}

fn drives(text: &mut String, findings: &Findings) {
    let mut rows = Vec::new();
    for workload in Workload::ALL {
        for age in findings.ages() {
            let of = |value: fn(&Simulated) -> f64| {
                let drives = findings.results().filter(|f| f.key.workload == workload && f.key.age == age);
                Spread::of(drives.map(value))
            };
            let blocks = of(|found| f64::from(found.blocks));
            if blocks.is_none() {
                continue;
            }
            rows.push(vec![
                workload.name().to_owned(),
                age.name().to_owned(),
                counts(blocks),
                numbers(of(|found| f64::from(found.blocks) * 128.0 / 1024.0)),
                numbers(of(|found| f64::from(found.logical_pages) * 2.0 / 1024.0)),
            ]);
        }
    }
    text.push_str(&Table::new(["workload", "aged by", "blocks", "MiB", "logical MiB"]).with(rows).section("The drives", "64 pages of 2 KB a block; 88 µs a read, 263 µs a program, 2 ms an erase (the study's Table II). All modes of a workload share \
         one drive, a seed its own. The guests' disks lie on it one after the other."));
}
