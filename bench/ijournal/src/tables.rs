//! The figures' tables, and the paper's numbers beside ours.

use afterimage_bench_kit::virtual_time::{REQUEST_NS, SYSCALL_NS};
use afterimage_report::number::number;
use afterimage_report::{or_dash, page, Spread, Table};
use maud::html;

use crate::plan::{Arm, Model, MODELS};
use crate::record::Record;

fn of(records: &[Record], model: Model, stream: u32, arm: Arm) -> Vec<&Record> {
    let is = |record: &&Record| {
        let key = &record.key;
        (key.model.as_str(), key.stream_mb_per_s, key.arm) == (model.name, stream, arm)
    };
    records.iter().filter(is).collect()
}

fn show(records: &[&Record], value: impl Fn(&Record) -> f64) -> String {
    or_dash(Spread::of(records.iter().map(|record| value(record))), |spread| spread.show(number))
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
                let rows = of(records, model, *stream, arm);
                if rows.is_empty() {
                    continue;
                }
                table.row([
                    stream.to_string(),
                    arm.name().to_owned(),
                    rows.len().to_string(),
                    show(&rows, |record| record.syncs.ns.len() as f64),
                    show(&rows, Record::mean_ms),
                    show(&rows, |record| record.within_ms(500)),
                    show(&rows, |record| record.within_ms(950)),
                    show(&rows, |record| record.within_ms(990)),
                    show(&rows, |record| record.within_ms(1000)),
                    or_dash(Spread::of(rows.iter().filter_map(|record| record.journal_kib())), |spread| {
                        spread.show(number)
                    }),
                    show(&rows, |record| record.flushed_mib().0),
                    show(&rows, |record| record.flushed_mib().1),
                    show(&rows, |record| {
                        record.syncs.ns.iter().filter(|ns| **ns > 1_000_000_000).count() as f64
                    }),
                ]);
            }
        }
        let words = format!(
            "The device writes {} MB/s in sequence. A fast fsync makes room for more of them: compare times, not counts.",
            model.mb_per_s
        );
        text.push_str(&table.section(&format!("`{}`: Figs. 6, 7 and 8", model.name), &words));
    }
    text
}

/// The same as a page.
pub fn page(markdown: &str) -> String {
    page::page("iJournaling's figures in virtual time", &html! { pre { (markdown) } })
}
