//! The figures' tables, and the paper's numbers beside ours.

use afterimage_bench_kit::virtual_time::{REQUEST_NS, SYSCALL_NS};
use afterimage_report::number::{number, MIB};
use afterimage_report::{or_dash, page, Spread, Table};
use maud::html;

use super::arm::Arm;
use super::cell::Record;
use super::work::{Figure, Work, DISK};

/// A ratio of two arms in one figure, as the paper has it.
struct Claim {
    figure: Figure,
    works: &'static [Work],
    model: &'static str,
    of: Arm,
    over: Arm,
    paper: &'static str,
    /// Ours is held against it: at least so much.
    target: Option<f64>,
}

const WRITES: &[Work] = &[Work::Varmail, Work::Oltp, Work::Randwrite, Work::Seqwrite];

const CLAIMS: [Claim; 19] = {
    use Figure::{Four, Six, Streams, Three};
    const fn stream(model: &'static str) -> Claim {
        Claim {
            target: Some(1.0),
            ..claim(Streams, &[Work::Stream], model, Arm::WindowLarge, Arm::Nested, "–")
        }
    }
    const fn claim(
        figure: Figure,
        works: &'static [Work],
        model: &'static str,
        of: Arm,
        over: Arm,
        paper: &'static str,
    ) -> Claim {
        Claim { figure, works, model, of, over, paper, target: None }
    }
    [
        claim(Three, &[Work::Varmail], DISK, Arm::Unsafe, Arm::Nested, "up to 3.5"),
        claim(Three, &[Work::RandwriteFree], DISK, Arm::Unsafe, Arm::Nested, "about 1"),
        claim(
            Three,
            &[Work::RandwriteFree, Work::SeqwriteFree],
            DISK,
            Arm::CacheNone,
            Arm::Writethrough,
            "about 1.2",
        ),
        claim(Four, &[Work::Varmail], "hdd7200", Arm::Host, Arm::Nested, "nearly 5"),
        claim(Four, &[Work::Varmail], DISK, Arm::Host, Arm::Nested, "more than 3"),
        claim(Four, &[Work::Varmail], "nvme", Arm::Neither, Arm::Nested, "less than 1.10"),
        claim(Four, &[Work::Varmail], "hdd7200", Arm::Neither, Arm::Host, "about 1.08"),
        claim(Six, WRITES, DISK, Arm::Guest, Arm::Nested, "1.15–1.56"),
        claim(Six, &[Work::Randwrite, Work::Seqwrite], DISK, Arm::Neither, Arm::Nested, "10–28"),
        Claim {
            target: Some(1.47),
            ..claim(Six, WRITES, DISK, Arm::Window, Arm::Nested, "vDrive 1.47–2.42")
        },
        Claim {
            target: Some(0.95),
            ..claim(Six, WRITES, DISK, Arm::Window, Arm::Neither, "vDrive 0.05–0.78")
        },
        Claim {
            target: Some(1.0),
            ..claim(Six, WRITES, DISK, Arm::WindowFull, Arm::Nested, "vDrive 1.47–2.42, without a log")
        },
        claim(Six, &[Work::Fileserver, Work::Webserver], DISK, Arm::Neither, Arm::Nested, "1.08–1.11"),
        stream("hdd15k"),
        stream(DISK),
        stream("hdd7200"),
        stream("ssd"),
        stream("nvme"),
        stream("emmc"),
    ]
};

/// All tables of what there is.
pub fn markdown(records: &[Record]) -> String {
    let seeds = records.iter().map(|record| record.key.seed).max().unwrap_or(0);
    let mut text = format!(
        "Virtual time, at the paper's sizes; **charged** {} µs a request and {} µs a guest's system call, all other computing \
         free: no figure here says anything about processors. `a (b–c)` is the median and the spread over the seeds, up to {seeds}; ratios are formed within one seed. \
         Rows named *peer model* are models of a plain backend on a modelled host ext4, not QEMU; our rows are our own layers on the \
         same modelled host.\n",
        REQUEST_NS / 1000,
        SYSCALL_NS / 1000
    );
    for figure in Figure::ALL {
        let speed = speed(figure, records);
        if speed.is_empty() {
            continue;
        }
        text.push_str(&format!("\n### {} (charged)\n\n{}\n\n", title(figure), figure.paper()));
        text.push_str(&speed.markdown());
        text.push_str("\nWhat reached the device while it was measured:\n\n");
        text.push_str(&counts(figure, records).markdown());
    }
    text.push_str("\n### The paper beside (charged)\n\n");
    text.push_str(&claims(records).markdown());
    text
}

/// The same as a page.
pub fn page(markdown: &str) -> String {
    page::page("vDrive's figures in virtual time", &html! { pre { (markdown) } })
}

fn title(figure: Figure) -> &'static str {
    match figure {
        Figure::Three => "Fig. 3: cache modes, `hdd10k`",
        Figure::Four => "Fig. 4: devices, varmail",
        Figure::Six => "Fig. 6: applications, `hdd10k`",
        Figure::Streams => "Streams",
    }
}

fn of<'a>(records: &'a [Record], work: Work, model: &str, arm: Arm) -> Vec<&'a Record> {
    let is = |record: &&Record| record.key.work == work && record.key.model == model && record.key.arm == arm;
    records.iter().filter(is).collect()
}

/// A ratio of rates, within one seed.
fn ratio(mine: &[&Record], base: &[&Record]) -> Option<Spread> {
    Spread::of(mine.iter().filter_map(|record| {
        let other = base.iter().find(|other| other.key.seed == record.key.seed)?;
        Some(record.rate() / other.rate())
    }))
}

fn show(spread: Option<Spread>) -> String {
    let digits = |value: f64| if value < 0.095 { format!("{value:.4}") } else { format!("{value:.2}") };
    or_dash(spread, |spread| spread.show(digits))
}

fn rows(
    figure: Figure,
    records: &[Record],
    cells: impl Fn(&[&Record], &dyn Fn(Arm) -> Option<Spread>) -> Vec<String>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for model in figure.models() {
        for work in figure.works() {
            for arm in figure.arms() {
                let mine = of(records, *work, model, *arm);
                if mine.is_empty() {
                    continue;
                }
                let over = |base: Arm| ratio(&mine, &of(records, *work, model, base));
                let mut row = vec![(*model).to_owned(), work.name().to_owned(), arm.title().to_owned()];
                row.extend(cells(&mine, &over));
                rows.push(row);
            }
        }
    }
    rows
}

fn speed(figure: Figure, records: &[Record]) -> Table {
    let heads = "device|workload|row|seeds|operations/s|× nested|× neither|fsync p50 ms|p99 ms";
    Table::new(heads.split('|')).with(rows(figure, records, |mine, over| {
        let ms = |number: &dyn Fn(&Record) -> Option<f64>| {
            or_dash(Spread::of(mine.iter().filter_map(|record| number(record))), |s| {
                format!("{:.2}", s.median)
            })
        };
        vec![
            mine.len().to_string(),
            or_dash(Spread::of(mine.iter().map(|record| record.rate())), |spread| spread.show(number)),
            show(over(Arm::Nested)),
            show(over(Arm::Neither)),
            ms(&|record| Some(record.fsync?.p50_us / 1e3)),
            ms(&|record| Some(record.fsync?.p99_us / 1e3)),
        ]
    }))
}

fn counts(figure: Figure, records: &[Record]) -> Table {
    let heads =
        "device|workload|row|seconds|guest flushes|device flushes|seeks|seeks/1000 operations|write requests\
                 |MiB written|MiB the guest wrote|MiB written until the orderly end";
    Table::new(heads.split('|')).with(rows(figure, records, |mine, _| {
        let median = |value: &dyn Fn(&Record) -> f64| {
            or_dash(Spread::of(mine.iter().map(|record| value(record))), |spread| number(spread.median))
        };
        vec![
            median(&|record| record.elapsed_s),
            median(&|record| record.guest.flushes as f64),
            median(&|record| record.device.flushes as f64),
            median(&|record| record.device.seeks as f64),
            median(&|record| 1000.0 * record.device.seeks as f64 / record.operations as f64),
            median(&|record| record.device.writes as f64),
            median(&|record| record.device.write_bytes as f64 / MIB),
            median(&|record| record.guest.write_bytes as f64 / MIB),
            median(&|record| record.device_whole.write_bytes as f64 / MIB),
        ]
    }))
}

fn claims(records: &[Record]) -> Table {
    let mut rows = Vec::new();
    for claim in &CLAIMS {
        for work in claim.works {
            let mine = of(records, *work, claim.model, claim.of);
            let base = of(records, *work, claim.model, claim.over);
            let Some(ours) = ratio(&mine, &base) else { continue };
            let met = match claim.target {
                None => "–".to_owned(),
                Some(target) if ours.median >= target => format!("≥ {target}: yes"),
                Some(target) => format!("≥ {target}: **no**"),
            };
            let figure = match claim.figure {
                Figure::Three => "3",
                Figure::Four => "4",
                Figure::Six => "6",
                Figure::Streams => "–",
            };
            rows.push(vec![
                figure.to_owned(),
                claim.model.to_owned(),
                work.name().to_owned(),
                format!("{} / {}", claim.of.name(), claim.over.name()),
                claim.paper.to_owned(),
                show(Some(ours)),
                met,
            ]);
        }
    }
    Table::new("Fig.|device|workload|ratio|the paper|ours|target met".split('|')).with(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_is_of_cells_that_its_figure_has() {
        for claim in &CLAIMS {
            let figure = claim.figure;
            assert!(figure.models().contains(&claim.model));
            assert!([claim.of, claim.over].iter().all(|arm| figure.arms().contains(arm)), "{}", claim.paper);
            assert!(claim.works.iter().all(|work| figure.works().contains(work)));
        }
    }
}
