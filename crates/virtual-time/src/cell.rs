//! One cell of a benchmark: a run, and where guests were killed a second one on what they left.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use afterimage_journal::group::JournalOptions;
use afterimage_journal::DiskStatus;
use afterimage_lab::device::{ModelName, Work};
use afterimage_protocol::cell::{
    Cell, Counted, End, Guest, Journal, Meeting, Outcome, Requests, Retained, Sample,
};

use crate::content::Content;
use crate::error::RunError;
use crate::guest::{GuestKernel, GuestOptions};
use crate::host_fs::HostFs;
use crate::options::{Kill, RunOptions};
use crate::page_cache::DirtyLimits;
use crate::report::Report;
use crate::world::run;

/// Why a cell has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// What it asks for does not exist.
    #[error("{0}")]
    Unknown(String),
    /// A file.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A run came to no end.
    #[error(transparent)]
    Run(Box<RunError>),
}

impl From<RunError> for CellError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> CellError {
    let what = format!("{what} {}", path.display());
    move |source| CellError::Io { what, source }
}

/// Runs a cell. `uml` is the folder of the guests' kernel and its library, `folder` an empty one for sockets and consoles, on a tmpfs.
///
/// # Errors
/// It came to no end. What guests had said is in `folder`.
pub fn run_cell(cell: &Cell, uml: &Path, folder: &Path) -> Result<Outcome, CellError> {
    let mut options = options(cell, uml)?;
    if cell.kill.is_some() && cell.storage_traces.is_some() {
        let sentence = "what daemons ask of their files is not written down where guests are killed";
        return Err(CellError::Unknown(sentence.to_owned()));
    }
    if let Some(path) = &cell.image {
        let images = (0..cell.guests).map(|_| Content::of_file(path));
        options.images = images.collect::<io::Result<_>>().map_err(io_error("read", path))?;
    }
    let scratch = folder.join("trace");
    let report = run(&options, folder, cell.trace.as_deref().unwrap_or(&scratch))?;
    let then = match &cell.kill {
        Some(kill) if report.killed => {
            let next = folder.join("next");
            fs::create_dir(&next).map_err(io_error("make", &next))?;
            options.guest.script.clone_from(&kill.then);
            (options.kill, options.images) = (None, report.images.clone());
            Some(run(&options, &next, &next.join("trace"))?)
        }
        _ => None,
    };
    if let Some(folder) = &cell.images {
        let last = then.as_ref().unwrap_or(&report);
        for (guest, image) in last.images.iter().enumerate() {
            let path = folder.join(format!("disk{guest}.img"));
            image.save(&path).map_err(io_error("write", &path))?;
        }
    }
    let then = then.map(|report| Box::new(outcome(report, None)));
    Ok(outcome(report, then))
}

fn options(cell: &Cell, uml: &Path) -> Result<RunOptions, CellError> {
    let model = serde_json::from_value::<ModelName>(cell.model.clone().into());
    let host_fs = serde_json::from_value::<HostFs>(cell.host_fs.clone().into());
    let passthrough = JournalOptions::passthrough();
    let guest = GuestOptions {
        kernel: GuestKernel::of(uml).map_err(RunError::from)?,
        memory_mib: cell.memory_mib,
        seed: cell.seed,
        script: cell.script.clone(),
        append: cell.append.clone(),
        reports: false,
    };
    Ok(RunOptions {
        guests: cell.guests as usize,
        model: model.map_err(|_| CellError::Unknown(format!("there is no model {}", cell.model)))?,
        host_fs: host_fs
            .map_err(|_| CellError::Unknown(format!("there is no host file system {}", cell.host_fs)))?,
        laid_out: cell.laid_out.iter().map(|[from, to]| *from..*to).collect(),
        limits: DirtyLimits { background_bytes: cell.dirty_background_bytes, bytes: cell.dirty_bytes },
        image_bytes: cell.image_bytes,
        contract: cell.contract.parse().map_err(|e| CellError::Unknown(format!("{}: {e}", cell.contract)))?,
        journal: JournalOptions {
            retain: cell.journal != Journal::Passthrough,
            drop_journal: cell.journal == Journal::DropForBench,
            retain_bytes_max: cell.retain_bytes_max.unwrap_or(passthrough.retain_bytes_max),
            vflush_at_truncation: cell.vflush_at_truncation,
            ..passthrough
        },
        control_disk: cell.control_disk,
        direct: cell.direct,
        write_through: cell.write_through,
        log_bytes: cell.log_bytes,
        request_ns: cell.request_ns,
        settle_meetings: cell.settle_meetings as usize,
        sample: cell.sample_ns,
        kill: cell.kill.as_ref().map(|kill| Kill { at: kill.at, daemons: kill.daemons }),
        storage_traces: cell.storage_traces.clone(),
        limit: Duration::from_secs(cell.limit_s),
        ..RunOptions::of(guest)
    })
}

fn outcome(report: Report, then: Option<Box<Outcome>>) -> Outcome {
    let guests = report.guests.into_iter().map(|guest| Guest {
        exit: guest.exit,
        output: guest.output,
        ended_ns: guest.ended,
        asked: Requests {
            reads: guest.counts.reads,
            read_bytes: guest.counts.read_bytes,
            writes: guest.counts.writes,
            write_bytes: guest.counts.written_bytes,
            flushes: guest.counts.flushes,
            seeks: 0,
        },
        image: format!("{:016x}", guest.image),
    });
    let meetings = report.meetings.into_iter().map(|meeting| Meeting {
        met_ns: meeting.met,
        at_ns: meeting.at,
        counted: counted(meeting.device, meeting.asked),
        retained: retained(meeting.retained),
    });
    let samples = report.samples.into_iter();
    let samples = samples.map(|sample| Sample { at_ns: sample.at, retained: retained(sample.retained) });
    let end = report.end;
    Outcome {
        guests: guests.collect(),
        meetings: meetings.collect(),
        samples: samples.collect(),
        end: End {
            from_ns: end.from,
            daemons_ns: end.daemons,
            settled_ns: end.settled,
            before: counted(end.device_before, end.asked_before),
            counted: counted(end.device, end.asked),
            retained: retained(end.retained),
        },
        killed: report.killed,
        then,
        trace: format!("{:016x}", report.trace),
        real_s: report.real_time.as_secs_f64(),
    }
}

fn counted(device: Work, daemons: Work) -> Counted {
    Counted { device: requests(device), daemons: requests(daemons) }
}

fn requests(work: Work) -> Requests {
    let Work { reads, read_bytes, writes, write_bytes, flushes, seeks } = work;
    Requests { reads, read_bytes, writes, write_bytes, flushes, seeks }
}

fn retained(disks: Vec<Option<DiskStatus>>) -> Vec<Option<Retained>> {
    let of = |disk: DiskStatus| Retained {
        file_systems: disk.file_systems,
        arena_used_bytes: disk.arena_used_bytes,
    };
    disks.into_iter().map(|disk| disk.map(of)).collect()
}
