//! `afterimage flash compare`

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use afterimage_report::Table;

use super::drive::{distinct, show_broken, Source};
use super::jobs::{self, Job};
use super::{html, print, print_json, CliError, DriveArgs, ReadArgs};
use crate::comparison::Comparison;
use crate::config::FtlKind;
use crate::report::Report;
use crate::scan::Scan;
use afterimage_report::number::{show_bytes, show_ns, thousands};

/// Run all FTLs on several traces, side by side
///
/// Prints the study's tables: requests, traffic, erases, GC overhead, write amplification and response times. Lifetime is
/// given as the study's erase reduction and as the true ratio. Reductions are against the baseline trace.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  \
    afterimage flash compare --trace journal=j1.gz,j2.gz --trace ordered=o1.gz,o2.gz --baseline journal --html out.html")]
pub struct Args {
    /// A trace: FILE, or NAME=FILE[,FILE...] for files played together; repeat it for each
    #[arg(long, required = true, num_args = 1.., value_parser = Source::parse, value_name = "[NAME=]FILE[,FILE...]")]
    trace: Vec<Source>,
    /// Baseline trace (default: the first)
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// The FTLs (default: all)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FTL,...")]
    ftl: Vec<FtlKind>,
    /// Runs at a time (default: one a processor)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    jobs: Option<u16>,
    /// Write a report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    drive: DriveArgs,
}

pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), CliError> {
    distinct(&args.trace)?;
    let baseline = match &args.baseline {
        Some(name) if args.trace.iter().any(|t| t.name == *name) => name.clone(),
        Some(name) => {
            let names: Vec<&str> = args.trace.iter().map(|t| t.name.as_str()).collect();
            return Err(CliError::Usage(format!(
                "--baseline {name} is not one of the traces: {}",
                names.join(", ")
            )));
        }
        None => args.trace[0].name.clone(),
    };
    let ftls = if args.ftl.is_empty() { FtlKind::ALL.to_vec() } else { args.ftl.clone() };
    let (config, options, read) = (args.drive.config(), args.drive.options(), args.read.options());
    // Hours later would be late to learn that the page has no place. What is there stays until there is something new.
    if let Some(file) = &args.html {
        OpenOptions::new().append(true).create(true).open(file).map_err(|e| unwritten(file, &e))?;
    }
    let control = jobs::control()?;
    let mut scans: Vec<Scan> = Vec::new();
    for source in &args.trace {
        let scan = jobs::scan(&config, source, &read, &control)?;
        show_broken(&scan.tally);
        scans.push(scan);
    }
    let pairs = args.trace.iter().zip(&scans);
    let list: Vec<Job<'_>> = pairs
        .flat_map(|(source, scan)| ftls.iter().map(move |ftl| (*ftl, source, scan)))
        .map(|(ftl, source, scan)| Job { ftl, config: config.clone(), source, scan })
        .collect();
    let workers = args.jobs.map_or_else(jobs::default_workers, usize::from);
    let outcome = jobs::run(&list, workers, &read, &options, &control);
    let finished: Vec<&Report> = outcome.reports.iter().flatten().flatten().collect();
    let comparison = Comparison::new(&baseline, finished.len() == list.len(), finished);
    if !comparison.runs.is_empty() {
        let tables = tables(&comparison, &args.trace, &scans, &ftls);
        if args.json {
            print_json(out, &comparison)?;
        } else {
            let text: Vec<String> =
                tables.iter().map(|(title, table)| format!("{title}\n{}", table.text())).collect();
            print(out, &text.join("\n"))?;
        }
        if let Some(file) = &args.html {
            std::fs::write(file, html::comparison(&comparison, &tables)).map_err(|e| unwritten(file, &e))?;
        }
    }
    jobs::verdict(outcome)
}

fn unwritten(file: &Path, error: &std::io::Error) -> CliError {
    CliError::Failed(format!("cannot write the report {}: {error}", file.display()))
}

fn tables(
    comparison: &Comparison<'_>,
    sources: &[Source],
    scans: &[Scan],
    ftls: &[FtlKind],
) -> Vec<(String, Table)> {
    let heads = ["trace", "reads", "writes", "requests", "read", "written", "traffic"];
    let mut traffic = Table::new(heads).right(1..).indented(2);
    for (source, scan) in sources.iter().zip(scans) {
        let t = &scan.traffic;
        traffic.row([
            source.name.clone(),
            thousands(t.reads),
            thousands(t.writes),
            thousands(t.requests()),
            show_bytes(t.read_bytes),
            show_bytes(t.write_bytes),
            show_bytes(t.bytes()),
        ]);
    }
    let mut tables = vec![("Requests and traffic".to_owned(), traffic)];
    let find = |trace: &str, ftl: FtlKind| comparison.runs.iter().find(|r| r.trace == trace && r.ftl == ftl);
    let beside =
        |trace: &str, ftl: FtlKind| comparison.against.iter().find(|a| a.trace == trace && a.ftl == ftl);
    let mut add = |title: String, cell: &dyn Fn(&str, FtlKind) -> Option<String>| {
        let heads = std::iter::once("trace".to_owned()).chain(ftls.iter().map(ToString::to_string));
        let row = |source: &Source| {
            let cells = ftls.iter().map(|ftl| cell(&source.name, *ftl).unwrap_or_else(|| "-".to_owned()));
            std::iter::once(source.name.clone()).chain(cells).collect()
        };
        tables.push((title, Table::new(heads).right(1..).indented(2).with(sources.iter().map(row))));
    };
    let base = comparison.baseline;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let times = |ratio: f64| format!("{ratio:.2}x");
    add("Erases".into(), &|t, f| find(t, f).map(|r| thousands(r.erases)));
    add(format!("Erase reduction against {base} (the study's lifetime extension)"), &|t, f| {
        beside(t, f)?.erase_reduction.map(percent)
    });
    add(format!("Lifetime against {base}, even wear (true ratio)"), &|t, f| {
        beside(t, f)?.lifetime_ratio.map(times)
    });
    add(format!("Lifetime against {base}, most erased block"), &|t, f| {
        beside(t, f)?.worst_block_ratio.map(times)
    });
    add("GC overhead (time)".into(), &|t, f| find(t, f).map(|r| show_ns(r.collection.ns)));
    add(format!("GC overhead reduction against {base}"), &|t, f| beside(t, f)?.gc_reduction.map(percent));
    add("GC share of device time".into(), &|t, f| find(t, f).map(|r| percent(r.collection.of_device_time)));
    add("GC overhead a request".into(), &|t, f| {
        find(t, f).map(|r| show_ns(r.collection.ns_per_request as u64))
    });
    if comparison.runs.iter().any(|r| r.levelling_ns.is_some()) {
        add("Static wear levelling (time, beside GC)".into(), &|t, f| find(t, f)?.levelling_ns.map(show_ns));
    }
    add("Write amplification".into(), &|t, f| find(t, f)?.write_amplification.map(|wa| format!("{wa:.3}")));
    add("Most erased block".into(), &|t, f| find(t, f).map(|r| thousands(u64::from(r.wear.max))));
    add("Response time: mean".into(), &|t, f| find(t, f).map(|r| show_ns(r.response.mean_ns as u64)));
    add("Response time: p50".into(), &|t, f| find(t, f).map(|r| show_ns(r.response.p50_ns)));
    add("Response time: p99".into(), &|t, f| find(t, f).map(|r| show_ns(r.response.p99_ns)));
    add("Response time: p99.9".into(), &|t, f| find(t, f).map(|r| show_ns(r.response.p999_ns)));
    add("Flash blocks".into(), &|t, f| find(t, f).map(|r| thousands(u64::from(r.geometry.blocks))));
    tables
}
