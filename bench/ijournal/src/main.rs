//! iJournaling's evaluation (Park and Shin, USENIX ATC 2017, § 6.1) in virtual time: how long an fsync takes beside a stream of other files' data.
//!
//! ```text
//!   tasks × devices × streams × journaling × seeds ─► one guest each, in virtual time ─► ijournal.cells/NAME.json
//!                                      target/bench/ijournal.{json.zst,md,html} ◄─ tables ┘
//! ```

mod disks;
mod plan;
mod record;
mod scale;
mod script;
mod tables;
mod task;
mod tpcc;

use std::path::Path;
use std::process::ExitCode;

use afterimage_bench_kit::seeded::{show, Seeded, SeededOptions};
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::Result;
use afterimage_lab::process::Workdir;
use clap::Parser;

use crate::disks::Disks;
use crate::plan::Figures;
use crate::record::Record;
use crate::scale::Scale;
use crate::task::Tools;

const NAME: &str = "ijournal";

/// How long an fsync takes beside a stream of other files' data, in virtual time: iJournaling, Figs. 6 to 8, 10 and 11
///
/// Cells are model/stream/journaling (Figs. 6 to 8) or task/model/stream/journaling.
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-ijournal", version)]
#[command(mut_arg("quick", |a| a.help("5 seconds, 100 transactions, the device ssd, one seed")))]
struct Options {
    #[command(flatten)]
    seeded: SeededOptions,
    /// Only these figures [default: all]
    #[arg(long, value_enum)]
    figures: Vec<Figures>,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-ijournal", run)
}

/// What all cells share.
struct Begun {
    machine: Virtual,
    tools: Tools,
    disks: Disks,
}

fn begin(scale: Scale, out: &Path) -> Result<Begun> {
    let machine = Virtual::find()?;
    // Guests have folders in memory of their own: what they read of the host's lies elsewhere.
    let tools = Tools::make(&out.canonicalize()?.join("tools"))?;
    let disks = Disks::new(Workdir::new_in(Path::new("/dev/shm"), "ijournal-disks")?, scale, &tools.tpcc);
    Ok(Begun { machine, tools, disks })
}

/// Whether every cell came to a result.
fn run(options: &Options) -> Result<bool> {
    let seeded = &options.seeded;
    if let Some(path) = &seeded.common.tables {
        return show(path, NAME, tables::markdown);
    }
    let scale = if seeded.common.quick { Scale::QUICK } else { Scale::FULL };
    let out = seeded.out.join(NAME).join(scale.name);
    let figures = if options.figures.is_empty() { &Figures::ALL[..] } else { &options.figures };
    let bench = Seeded {
        name: NAME,
        scale: scale.name,
        cells: out.join("cells"),
        reports: out.clone(),
        wanted: move |record: &Record| record.seconds == scale.seconds,
        markdown: tables::markdown,
        page: tables::page,
    };
    bench.run(
        seeded,
        || plan::keys(scale, figures, seeded.seeds(), &seeded.only),
        || begin(scale, &out),
        |begun, key| {
            let image = begun.disks.get(key)?;
            let record = record::measure(key, scale, &image, &begun.tools, &begun.machine)?;
            let words = record.words();
            Ok((record, words))
        },
    )
}
