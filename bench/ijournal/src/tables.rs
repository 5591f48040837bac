//! The figures' tables, and the paper's numbers beside ours.

use afterimage_bench_kit::virtual_time::{REQUEST_NS, SYSCALL_NS};
use afterimage_report::number::number;
use afterimage_report::{or_dash, page, Spread, Table};
use maud::html;

use crate::plan::{Arm, Figures, Model, MODELS};
use crate::record::Record;
use crate::task::Task;

fn of(records: &[Record], task: Task, model: Model, stream: u32, arm: Arm) -> Vec<&Record> {
    let is = |record: &&Record| {
        let key = &record.key;
        (key.task, key.model.as_str(), key.stream_mb_per_s, key.arm) == (task, model.name, stream, arm)
    };
    records.iter().filter(is).collect()
}

fn show(records: &[&Record], value: impl Fn(&Record) -> f64) -> String {
    or_dash(Spread::of(records.iter().map(|record| value(record))), |spread| spread.show(number))
}

/// How long fsyncs took (the mean, the median, of a hundred the 95th and the 99th, the longest), and what journals were written for each.
fn waits(records: &[&Record]) -> [String; 6] {
    let journal = Spread::of(records.iter().filter_map(|record| record.journal_kib()));
    [
        show(records, Record::mean_ms),
        show(records, |record| record.within_ms(500)),
        show(records, |record| record.within_ms(950)),
        show(records, |record| record.within_ms(990)),
        show(records, |record| record.within_ms(1000)),
        or_dash(journal, |spread| spread.show(number)),
    ]
}

/// All tables of what there is.
pub fn markdown(records: &[Record]) -> String {
    let seeds = records.iter().map(|record| record.key.seed).max().unwrap_or(0);
    let seconds = records.iter().map(|record| record.seconds).max().unwrap_or(0);
    let mut text = format!(
        "80 KiB, 0.1 s, an fsync, for {seconds} s beside a stream of 4 KiB writes. Virtual time; **charged** {} µs a request and {} µs a guest's system call, all \
         other computing free: no figure here says anything about processors. `a (b–c)` is the median and the spread over up to {seeds} seeds.\n",
        REQUEST_NS / 1000,
        SYSCALL_NS / 1000
    );
    for model in MODELS {
        let mut table = Table::new(
            "stream, MB/s|journaling|seeds|fsyncs|mean, ms|median|p95|p99|max|journal KiB an fsync|MiB the disk wrote in an fsync: mean|most|fsyncs above 1 s".split('|'),
        );
        for stream in model.streams_mb_per_s {
            for arm in Arm::ALL {
                let rows = of(records, Task::Append, model, *stream, arm);
                if rows.is_empty() {
                    continue;
                }
                let first = [
                    stream.to_string(),
                    arm.name().to_owned(),
                    rows.len().to_string(),
                    show(&rows, |record| record.syncs.ns.len() as f64),
                ];
                let last = [
                    show(&rows, |record| record.flushed_mib().0),
                    show(&rows, |record| record.flushed_mib().1),
                    show(&rows, |record| {
                        record.syncs.ns.iter().filter(|ns| **ns > 1_000_000_000).count() as f64
                    }),
                ];
                table.row(first.into_iter().chain(waits(&rows)).chain(last));
            }
        }
        let words = format!(
            "The device writes {} MB/s in sequence. A fast fsync makes room for more of them: compare times, not counts.",
            model.mb_per_s
        );
        text.push_str(&table.section(&format!("`{}`: Figs. 6, 7 and 8", model.name), &words));
    }
    for model in MODELS {
        for (figures, name) in [(Figures::Tenth, "Fig. 10"), (Figures::Eleventh, "Fig. 11")] {
            text.push_str(&tasks(records, model, figures, name));
        }
    }
    text
}

/// Programs up to their end, with online discard.
fn tasks(records: &[Record], model: Model, figures: Figures, name: &str) -> String {
    let mut table = Table::new(
        "task|stream, MB/s|journaling|seeds|time, s|fsyncs|fsyncs a second|mean, ms|median|p95|p99|max|journal KiB an fsync"
            .split('|'),
    );
    let mut found = false;
    for task in figures.tasks() {
        for stream in model.streams(*task) {
            for arm in Arm::ALL {
                let rows = of(records, *task, model, stream, arm);
                if rows.is_empty() {
                    continue;
                }
                found = true;
                let seconds = |record: &Record| record.elapsed_ns.map_or(f64::NAN, |ns| ns as f64 / 1e9);
                let fsyncs = |record: &Record| record.syncs.ns.len() as f64;
                let first = [
                    task.name().to_owned(),
                    stream.to_string(),
                    arm.name().to_owned(),
                    rows.len().to_string(),
                    show(&rows, seconds),
                    show(&rows, fsyncs),
                    show(&rows, |record| fsyncs(record) / seconds(record)),
                ];
                table.row(first.into_iter().chain(waits(&rows)));
            }
        }
    }
    if !found {
        return String::new();
    }
    let words = "With online discard. Varmail runs for a time, and what counts is how many fsyncs it comes to; the others run to their end.";
    table.section(&format!("`{}`: {name}", model.name), words)
}

/// The same as a page.
pub fn page(markdown: &str) -> String {
    page::page("iJournaling's figures in virtual time", &html! { pre { (markdown) } })
}
