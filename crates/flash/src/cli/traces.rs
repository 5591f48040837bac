//! `afterimage trace convert|stat`

use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde::Serialize;
use tempfile::TempPath;

use super::drive::{format, show_broken, FormatChoice, Source};
use super::{jobs, print, print_json, CliError, ReadArgs};
use crate::config::Config;
use crate::control::RunError;
use crate::geometry::Geometry;
use crate::scan::Traffic;
use crate::trace::{ByClass, ClassTally, Format, Merged, Tally, Writer};
use afterimage_report::number::{show_bytes, show_ns, thousands};

/// Describe traces: requests, traffic, length, what they touch
#[derive(clap::Args, Debug)]
pub struct StatArgs {
    /// Trace files, each by itself (gzip and zstd are read)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Answer as JSON, one line a trace
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Serialize)]
struct Stat {
    file: PathBuf,
    format: Format,
    traffic: Traffic,
    span_ns: Option<u64>,
    /// End of the touched part of each device, bytes.
    extents: Vec<u64>,
    /// Bytes of the 2 KB pages that are read or written at least once.
    touched_bytes: u64,
    reading: Tally,
}

pub fn stat(args: &StatArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let config = Config { geometry: Geometry::default(), ..Config::default() };
    let control = jobs::control()?;
    let read = args.read.options();
    for file in &args.files {
        let source = Source { name: String::new(), files: vec![file.clone()] };
        let scan = jobs::scan(&config, &source, &read, &control)?;
        let format = crate::trace::open(file, &read).map_err(RunError::from)?.format();
        let stat = Stat {
            file: file.clone(),
            format,
            traffic: scan.traffic,
            span_ns: scan.span_ns,
            extents: scan.extents().to_vec(),
            touched_bytes: scan.pages() * u64::from(config.geometry.page_bytes),
            reading: scan.tally.clone(),
        };
        show_broken(&stat.reading);
        if args.json {
            print_json(out, &stat)?;
        } else {
            print(out, &text(&stat))?;
        }
    }
    Ok(())
}

fn text(s: &Stat) -> String {
    let t = &s.traffic;
    let line = |name: &str, requests: u64, bytes: u64| {
        format!("  {name:<10}{:>16}{:>14}\n", thousands(requests), show_bytes(bytes))
    };
    let classes: String = s.reading.classes.iter().flat_map(by_class).collect();
    format!(
        "{}: {}\n{}{}{}{classes}  touched   {:>30}\n  devices   {:>30}\n  length    {:>30}\n  broken    {:>30}\n",
        s.file.display(),
        s.format,
        line("reads", t.reads, t.read_bytes),
        line("writes", t.writes, t.write_bytes),
        line("discards", t.discards, t.discard_bytes),
        show_bytes(s.touched_bytes),
        s.extents.len(),
        s.span_ns.map_or_else(|| "no times".to_owned(), show_ns),
        thousands(s.reading.broken)
    )
}

/// A line for each class that there is something of.
fn by_class(classes: &ByClass) -> Vec<String> {
    let named = [("home", &classes.home), ("log", &classes.log), ("journal", &classes.journal)];
    let lines = named.into_iter().filter(|(_, c)| **c != ClassTally::default()).map(|(name, c)| {
        format!(
            "  {name:<10}{:>16}{:>14} written, {} read, {} flushes\n",
            thousands(c.writes),
            show_bytes(c.write_bytes),
            show_bytes(c.read_bytes),
            thousands(c.flushes)
        )
    });
    lines.collect()
}

/// Convert a trace to another format
///
/// Several files are merged by time. An output called *.gz or *.zst is compressed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  afterimage trace convert disk.blkparse.gz --to msr --out disk.msr.zst")]
pub struct ConvertArgs {
    /// Trace files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The format to write: any that --format reads
    #[arg(long, value_parser = format, value_name = "FORMAT")]
    to: FormatChoice,
    /// Output file; - is stdout
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    read: ReadArgs,
}

/// Where a converted trace goes.
enum Output {
    Plain(BufWriter<Box<dyn Write>>),
    Gzip(flate2::write::GzEncoder<BufWriter<Box<dyn Write>>>),
    Zstd(Box<zstd::stream::write::Encoder<'static, BufWriter<Box<dyn Write>>>>),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
            Self::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
            Self::Zstd(out) => out.flush(),
        }
    }
}

impl Output {
    fn new(file: &Path, raw: Box<dyn Write>) -> io::Result<Self> {
        let out = BufWriter::with_capacity(1 << 18, raw);
        Ok(match file.extension().and_then(|e| e.to_str()) {
            Some("gz") => Self::Gzip(flate2::write::GzEncoder::new(out, flate2::Compression::default())),
            Some("zst") => Self::Zstd(Box::new(zstd::stream::write::Encoder::new(out, 3)?)),
            _ => Self::Plain(out),
        })
    }

    fn close(self) -> io::Result<()> {
        match self {
            Self::Plain(mut out) => out.flush(),
            Self::Gzip(out) => out.finish()?.flush(),
            Self::Zstd(out) => out.finish()?.flush(),
        }
    }
}

/// A file beside `--out`, which takes its place when it is whole.
struct Beside {
    path: TempPath,
    /// `--out`, or what it is a link to.
    out: PathBuf,
    replace: bool,
}

impl Beside {
    fn keep(self) -> io::Result<()> {
        if self.replace {
            self.path.persist(self.out)?;
        } else {
            self.path.persist_noclobber(self.out)?;
        }
        Ok(())
    }
}

/// Opens what the trace is written to: nothing else is touched until it is whole. Standard output, a device or a pipe is
/// written itself.
fn output(out: &Path, force: bool) -> io::Result<(Output, Option<Beside>)> {
    if out == Path::new("-") {
        return Ok((Output::new(out, Box::new(io::stdout()))?, None));
    }
    let found = fs::metadata(out).ok();
    if found.is_some() && !force {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there already"));
    }
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        return Ok((Output::new(out, Box::new(OpenOptions::new().write(true).open(out)?))?, None));
    }
    let target = if found.is_some() { fs::canonicalize(out)? } else { out.to_owned() };
    let folder = target.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let mode = found.as_ref().map_or(0o666, Metadata::mode) & 0o777;
    let beside = tempfile::Builder::new().permissions(Permissions::from_mode(mode)).tempfile_in(folder)?;
    let (file, path) = beside.into_parts();
    Ok((Output::new(out, Box::new(file))?, Some(Beside { path, out: target, replace: force })))
}

pub fn convert(args: &ConvertArgs) -> Result<(), CliError> {
    let Some(to) = args.to.0 else {
        return Err(CliError::Usage("--to needs the name of a format, not auto".to_owned()));
    };
    let place = |file: &Path| fs::metadata(file).ok().map(|found| (found.dev(), found.ino()));
    let own = place(&args.out);
    if let Some(input) = args.files.iter().find(|file| own.is_some() && place(file) == own) {
        return Err(CliError::Usage(format!(
            "--out {} is the trace {} that is to be converted; name another file",
            args.out.display(),
            input.display()
        )));
    }
    // An end in the middle of it leaves no file beside the output.
    let control = jobs::control()?;
    let mut trace = Merged::open(&args.files, &args.read.options()).map_err(RunError::from)?;
    let write = |e: io::Error| {
        let hint = if e.kind() == io::ErrorKind::AlreadyExists { " (--force replaces it)" } else { "" };
        CliError::Failed(format!("cannot write the trace {}: {e}{hint}", args.out.display()))
    };
    let (out, beside) = output(&args.out, args.force).map_err(write)?;
    let mut writer = Writer::new(out, to).map_err(write)?;
    writer.origin(&trace).map_err(write)?;
    let (mut timed, mut dropped) = (true, 0);
    let failure = loop {
        if control.stop.load(Ordering::Relaxed) {
            break Some("interrupted".to_owned());
        }
        // What is missing before the next request is known with the one before it.
        writer.missing(trace.dropped() - dropped).map_err(write)?;
        dropped = trace.dropped();
        match trace.next_request() {
            Ok(Some(request)) => {
                timed &= request.time_ns.is_some();
                writer.request(&request).map_err(write)?;
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let left_out = writer.left_out;
    let tally = trace.tally();
    show_broken(&tally);
    if let Some(error) = failure {
        let left = if beside.is_some() { "not written" } else { "incomplete" };
        return Err(CliError::Failed(format!("{error}; {} is {left}", args.out.display())));
    }
    let out = if tally.cut { writer.cut() } else { writer.finish() };
    out.and_then(Output::close).and_then(|()| beside.map_or(Ok(()), Beside::keep)).map_err(write)?;
    if left_out > 0 {
        eprintln!("{left_out} requests were left out: {to} has no word for them (discards, other disks than the first)");
    }
    if !timed && to != Format::Fio2 {
        eprintln!("the trace has no times; they are written as 0");
    }
    Ok(())
}
