//! `afterimage flash sweep`

use std::io::Write;
use std::path::PathBuf;

use afterimage_report::Table;
use clap::ValueEnum;
use serde::Serialize;

use super::drive::{micros, show_broken, Source, GC_BLOCKS, WEAR};
use super::jobs::{self, Job};
use super::{print, print_json, CliError, DriveArgs, ReadArgs};
use crate::config::{Config, FtlKind, GcPolicy};
use crate::place::Precondition;
use crate::report::Report;
use crate::scan::Scan;
use crate::units::{parse_bytes, parse_part, parse_share};
use afterimage_report::number::{show_ns, thousands};

/// Vary parameters over ranges and run a trace on each combination, in parallel
///
/// Parameters: spare, blocks, pages-per-block, page-bytes, log-blocks, superblock-n, superblock-m, map-cache, cmt,
/// cmt-protected, gc-policy, gc-low, gc-high, static-wear, erase-us, read-us, program-us. Blocks vary only with
/// --precondition drive or none: those of a region follow from the trace.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    afterimage flash sweep --ftl page,dftl --trace t.gz --vary spare=3%,7%,15%,28%\n  \
    afterimage flash sweep --ftl superblock --trace t.gz --vary superblock-n=4,8,16 --vary superblock-m=2..8..2 --json")]
pub struct Args {
    /// The FTLs (default: all)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FTL,...")]
    ftl: Vec<FtlKind>,
    /// Trace files, played together
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// What varies: PARAMETER=VALUE,VALUE... or PARAMETER=FIRST..LAST[..STEP]; repeated: every combination
    #[arg(long, required = true, value_parser = Vary::parse, value_name = "PARAMETER=VALUES")]
    vary: Vec<Vary>,
    /// Runs at a time (default: one a processor)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    jobs: Option<u16>,
    /// Answer as JSON, one line a run
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    drive: DriveArgs,
}

/// What [`set`] knows; as in the help above.
const PARAMETERS: [&str; 17] = [
    "spare",
    "blocks",
    "pages-per-block",
    "page-bytes",
    "log-blocks",
    "superblock-n",
    "superblock-m",
    "map-cache",
    "cmt",
    "cmt-protected",
    "gc-policy",
    "gc-low",
    "gc-high",
    "static-wear",
    "erase-us",
    "read-us",
    "program-us",
];
/// Combinations beyond this are a slip of the keyboard.
const RUNS_MAX: usize = 10_000;

/// A parameter and its values, as they were written.
#[derive(Debug, Clone)]
struct Vary {
    name: String,
    values: Vec<String>,
}

impl Vary {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, values) =
            text.split_once('=').ok_or_else(|| format!("'{text}' is not PARAMETER=VALUE,VALUE..."))?;
        let mut list = Vec::new();
        for part in values.split(',').filter(|p| !p.is_empty()) {
            let range: Vec<&str> = part.split("..").collect();
            match range[..] {
                [value] => list.push(value.to_owned()),
                [first, last] => list.extend(steps(first, last, "1")?),
                [first, last, step] => list.extend(steps(first, last, step)?),
                _ => return Err(format!("'{part}' is not FIRST..LAST or FIRST..LAST..STEP")),
            }
        }
        if list.is_empty() {
            return Err(format!("'{text}' names no value"));
        }
        let vary = Self { name: name.to_owned(), values: list };
        for value in &vary.values {
            set(&mut Config::default(), name, value)?;
        }
        Ok(vary)
    }
}

fn steps(first: &str, last: &str, step: &str) -> Result<Vec<String>, String> {
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| format!("'{text}' is not a whole number of a range"));
    let (first, last, step) = (number(first)?, number(last)?, number(step)?);
    if step == 0 || first > last || (last - first) / step >= RUNS_MAX as u64 {
        return Err(format!("{first}..{last}..{step} is not a range of at most {RUNS_MAX} values"));
    }
    Ok((first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX)).map(|v| v.to_string()).collect())
}

/// Sets a parameter by its name.
fn set(config: &mut Config, name: &str, text: &str) -> Result<(), String> {
    let whole = || text.parse::<u32>().map_err(|_| format!("'{text}' is not a whole number for {name}"));
    let within = |(least, most): (u32, u32)| match whole()? {
        value if (least..=most).contains(&value) => Ok(value),
        value => Err(format!("{name} is between {least} and {most}, not {value}")),
    };
    let bytes = || parse_bytes(text).ok_or_else(|| format!("'{text}' is not a size for {name}"));
    let named = |e: String| format!("{name}: {e}");
    match name {
        "spare" => config.spare = parse_share(text).map_err(named)?,
        "blocks" => config.geometry.blocks = whole()?,
        "pages-per-block" => config.geometry.pages_per_block = whole()?,
        "page-bytes" => config.geometry.page_bytes = whole()?,
        "log-blocks" => config.fast.log_blocks = Some(whole()?),
        "superblock-n" => config.superblock.n = whole()?,
        "superblock-m" => config.superblock.m = whole()?,
        "map-cache" => config.superblock.map_cache_bytes = Some(bytes()?),
        "cmt" => config.dftl.cmt_bytes = Some(bytes()?),
        "cmt-protected" => config.dftl.protected_share = parse_part(text).map_err(named)?,
        "gc-policy" => config.gc_policy = GcPolicy::from_str(text, false)?,
        "gc-low" => config.gc_low = within(GC_BLOCKS)?,
        "gc-high" => config.gc_high = Some(within(GC_BLOCKS)?),
        "static-wear" => config.static_wear = Some(within(WEAR)?),
        "read-us" => config.timing.read_ns = micros(text).map_err(named)?,
        "program-us" => config.timing.program_ns = micros(text).map_err(named)?,
        "erase-us" => config.timing.erase_ns = micros(text).map_err(named)?,
        _ => return Err(format!("'{name}' cannot vary; what can: {}", PARAMETERS.join(", "))),
    }
    Ok(())
}

/// A combination of values.
#[derive(Debug, Clone)]
struct Point {
    values: Vec<String>,
    config: Config,
}

#[derive(Serialize)]
struct Line<'a> {
    parameters: std::collections::BTreeMap<&'a str, &'a str>,
    report: &'a Report,
}

fn points(base: &Config, vary: &[Vary]) -> Result<Vec<Point>, CliError> {
    let mut points = vec![Point { values: Vec::new(), config: base.clone() }];
    for parameter in vary {
        if points.len().saturating_mul(parameter.values.len()) > RUNS_MAX {
            return Err(CliError::Usage(format!("--vary makes more than {RUNS_MAX} combinations")));
        }
        let mut next = Vec::new();
        for point in &points {
            for value in &parameter.values {
                let mut point = point.clone();
                set(&mut point.config, &parameter.name, value).map_err(CliError::Usage)?;
                point.values.push(value.clone());
                next.push(point);
            }
        }
        points = next;
    }
    for point in &points {
        point.config.geometry.validate().map_err(|e| CliError::Usage(e.to_string()))?;
    }
    Ok(points)
}

pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), CliError> {
    let source = Source::together(&args.trace);
    let ftls = if args.ftl.is_empty() { FtlKind::ALL.to_vec() } else { args.ftl.clone() };
    let (options, read) = (args.drive.options(), args.read.options());
    if options.precondition == Precondition::Region && args.vary.iter().any(|v| v.name == "blocks") {
        return Err(CliError::Usage(
            "--vary blocks needs --precondition drive or none: those of a region follow from the trace"
                .to_owned(),
        ));
    }
    let points = points(&args.drive.config(), &args.vary)?;
    let control = jobs::control()?;
    // A scan is in pages and blocks: one for each size of them.
    let mut scans: Vec<((u32, u32), Scan)> = Vec::new();
    for point in &points {
        let size = size(&point.config);
        if !scans.iter().any(|(known, _)| *known == size) {
            let scan = jobs::scan(&point.config, &source, &read, &control)?;
            if scans.is_empty() {
                show_broken(&scan.tally);
            }
            scans.push((size, scan));
        }
    }
    let mut list: Vec<Job<'_>> = Vec::new();
    let mut labels: Vec<&[String]> = Vec::new();
    for point in &points {
        for ftl in &ftls {
            let Some((_, scan)) = scans.iter().find(|(known, _)| *known == size(&point.config)) else {
                continue;
            };
            list.push(Job { ftl: *ftl, config: point.config.clone(), source: &source, scan });
            labels.push(&point.values);
        }
    }
    let workers = args.jobs.map_or_else(jobs::default_workers, usize::from);
    let outcome = jobs::run(&list, workers, &read, &options, &control);
    let finished =
        || outcome.reports.iter().zip(&labels).filter_map(|(r, l)| Some((r.as_ref()?.as_ref().ok()?, *l)));
    if args.json {
        for (report, values) in finished() {
            let parameters =
                args.vary.iter().zip(values).map(|(v, value)| (v.name.as_str(), value.as_str())).collect();
            print_json(out, &Line { parameters, report })?;
        }
    } else if finished().next().is_some() {
        print(out, &table(&args.vary, finished()).text())?;
    }
    jobs::verdict(outcome)
}

fn size(config: &Config) -> (u32, u32) {
    (config.geometry.pages_per_block, config.geometry.page_bytes)
}

fn table<'a>(vary: &[Vary], runs: impl Iterator<Item = (&'a Report, &'a [String])>) -> Table {
    let mut head = vec!["ftl".to_owned()];
    head.extend(vary.iter().map(|v| v.name.clone()));
    let columns = ["erases", "WA", "GC overhead", "GC share", "max erases", "mean resp", "p99 resp"];
    head.extend(columns.map(str::to_owned));
    let runs: Vec<_> = runs.collect();
    let levelled = runs.iter().any(|(r, _)| r.levelling_ns.is_some());
    if levelled {
        head.push("levelling erases".to_owned());
    }
    let row = |(r, values): (&Report, &[String])| {
        let mut row = vec![r.ftl.to_string()];
        row.extend(values.iter().cloned());
        row.extend([
            thousands(r.erases),
            r.write_amplification.map_or_else(|| "-".to_owned(), |wa| format!("{wa:.3}")),
            show_ns(r.collection.ns),
            format!("{:.1} %", r.collection.of_device_time * 100.0),
            thousands(u64::from(r.wear.max)),
            show_ns(r.response.mean_ns as u64),
            show_ns(r.response.p99_ns),
        ]);
        row.extend(levelled.then(|| thousands(r.levelling().erases)));
        row
    };
    Table::new(head).right(1..).indented(2).with(runs.into_iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_that_is_named_can_vary() {
        for name in PARAMETERS {
            let refusal = set(&mut Config::default(), name, "no value").unwrap_err();
            assert!(!refusal.contains("cannot vary"), "{refusal}");
        }
        let refusal = Vary::parse("foo=1").unwrap_err();
        assert!(refusal.contains("'foo' cannot vary; what can: spare, blocks,"), "{refusal}");
    }
}
