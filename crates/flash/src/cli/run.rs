//! `afterimage flash run`

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use super::drive::{show_broken, Source};
use super::jobs::{self, Job};
use super::{print, print_json, CliError, DriveArgs, ReadArgs};
use crate::config::FtlKind;
use crate::counts::{Cause, Ops};
use crate::report::{Report, Times};
use afterimage_report::number::{show_bytes, show_ns, thousands};

/// Run a trace on one FTL
///
/// Several files are played together, merged by time, each with its own disks.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    afterimage flash run --ftl dftl --trace disk.blkparse.gz\n  \
    afterimage flash run --ftl fast --trace guest1.fio guest2.fio --geometry 8G --precondition drive --json")]
pub struct Args {
    /// The flash translation layer
    #[arg(long, value_enum)]
    ftl: FtlKind,
    /// Trace files (gzip and zstd are read)
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    drive: DriveArgs,
}

pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), CliError> {
    let source = Source::together(&args.trace);
    let (config, options, read) = (args.drive.config(), args.drive.options(), args.read.options());
    let control = jobs::control()?;
    let scan = jobs::scan(&config, &source, &read, &control)?;
    show_broken(&scan.tally);
    let job = Job { ftl: args.ftl, config, source: &source, scan: &scan };
    let outcome = jobs::run(&[job], 1, &read, &options, &control);
    if let Some(Some(Ok(report))) = outcome.reports.first() {
        if args.json {
            print_json(out, report)?;
        } else {
            print(out, &text(report))?;
        }
    }
    jobs::verdict(outcome)
}

fn text(r: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<26} {value}");
    };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let or_never =
        |value: Option<f64>| value.map_or_else(|| "no end (no erase)".to_owned(), |v| format!("{v:.1} runs"));
    line("trace", r.trace.clone());
    line("FTL", r.ftl.to_string());
    line("flash", format!("{} ({})", r.geometry, show_bytes(r.geometry.bytes())));
    line("pages in use", percent(r.utilisation));
    let t = &r.traffic;
    line("requests", thousands(t.requests()));
    line("  reads", format!("{}, {}", thousands(t.reads), show_bytes(t.read_bytes)));
    line("  writes", format!("{}, {}", thousands(t.writes), show_bytes(t.write_bytes)));
    line("  discards", format!("{}, {}", thousands(t.discards), show_bytes(t.discard_bytes)));
    line("pages read, written", format!("{}, {}", thousands(r.pages.read), thousands(r.pages.written)));
    line(
        "write amplification",
        r.write_amplification.map_or_else(|| "no writes".into(), |wa| format!("{wa:.3}")),
    );
    line("erases", thousands(r.erases));
    line(
        "GC overhead",
        format!(
            "{} ({} of device time, {} a request)",
            show_ns(r.collection.ns),
            percent(r.collection.of_device_time),
            show_ns(r.collection.ns_per_request as u64)
        ),
    );
    if let Some(ns) = r.levelling_ns {
        let share = if r.device_ns > 0 { ns as f64 / r.device_ns as f64 } else { 0.0 };
        let erases = thousands(r.levelling().erases);
        line(
            "wear levelling beside GC",
            format!("{} ({} of device time), {erases} erases", show_ns(ns), percent(share)),
        );
    }
    line(
        "map traffic beside GC",
        format!(
            "{} reads, {} programs, {} spare reads",
            thousands(r.map.reads),
            thousands(r.map.programs),
            thousands(r.map.spare_reads)
        ),
    );
    line("device time", show_ns(r.device_ns));
    line("erases a block", format!("{:.2} mean, {} to {}", r.wear.mean, r.wear.min, r.wear.max));
    line("lifetime, even wear", or_never(r.lifetime.even_runs));
    line("lifetime, worst block", or_never(r.lifetime.worst_runs));
    line("response time", times(&r.response));
    line("service time", times(&r.service));
    line("RAM for tables", show_bytes(r.table_bytes));
    for (name, value) in &r.details {
        line(name, thousands(*value));
    }
    line("operations", "reads / programs / erases".to_owned());
    for cause in Cause::ALL {
        let Ops { reads, programs, erases } = r.operations.of(cause);
        if reads + programs + erases > 0 {
            let ops = format!("{} / {} / {}", thousands(reads), thousands(programs), thousands(erases));
            line(&format!("  {}", cause.name()), ops);
        }
    }
    out
}

fn times(t: &Times) -> String {
    format!(
        "mean {}, p50 {}, p95 {}, p99 {}, p99.9 {}, max {}",
        show_ns(t.mean_ns as u64),
        show_ns(t.p50_ns),
        show_ns(t.p95_ns),
        show_ns(t.p99_ns),
        show_ns(t.p999_ns),
        show_ns(t.max_ns)
    )
}
