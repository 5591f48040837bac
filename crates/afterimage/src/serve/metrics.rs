//! `--metrics ADDRESS`: Prometheus text.
//!
//! Base units throughout: seconds, bytes. Histograms have the frontend's microsecond buckets. What comes in is counted
//! by `afterimage_requests_total`, what goes out to files by `afterimage_storage_requests_total`: the two together say
//! how many flushes a guest asked for and how many syncs that cost.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use afterimage_frontend::{OperationSnapshot, RequestKind, LATENCY_BOUNDS_US};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{text, DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::http;
use super::state::{Daemon, ServedControlDisk, ServedDisk};
use crate::control::protocol::{Classes, FileSystemStatus};
use crate::control::retained;

/// Starts serving; the thread ends with the process.
///
/// # Errors
/// No thread is left.
pub fn start(listener: TcpListener, daemon: Arc<Daemon>, process: Process) -> io::Result<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(GroupCollector(daemon, process)));
    http::start(listener, move |request| answer(request, &registry))
}

fn answer(request: http::Request<'_>, registry: &Registry) -> http::Response {
    let plain = |status, body: &str| http::Response { status, kind: "text/plain", body: body.to_owned() };
    match (request.method, request.path) {
        (b"GET", b"/metrics" | b"/") => {
            let mut body = String::new();
            if text::encode(&mut body, registry).is_err() {
                return plain("500 Internal Server Error", "cannot write the metrics\n");
            }
            if wants_plain(request.accept) {
                return http::Response { status: "200 OK", kind: PLAIN, body: plain_text(&body) };
            }
            http::Response { status: "200 OK", kind: OPEN, body }
        }
        (b"GET", _) => plain("404 Not Found", "metrics are at /metrics\n"),
        _ => plain("405 Method Not Allowed", "only GET is answered\n"),
    }
}

const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a client asks for Prometheus' own text, and does not take OpenMetrics.
fn wants_plain(accept: &[u8]) -> bool {
    let accept = String::from_utf8_lossy(accept).to_ascii_lowercase();
    accept.contains("text/plain") && !accept.contains("application/openmetrics-text")
}

/// OpenMetrics as Prometheus' text format 0.0.4: there a counter's family has the name of its samples, and units and an end are not
/// said.
fn plain_text(open: &str) -> String {
    let mut counters = std::collections::BTreeSet::new();
    for line in open.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.insert(family);
        }
    }
    let mut plain = String::with_capacity(open.len());
    for line in open.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let about =
            ["# HELP ", "# TYPE "].into_iter().find_map(|what| Some((what, line.strip_prefix(what)?)));
        match about.and_then(|(what, rest)| Some((what, rest.split_once(' ')?))) {
            Some((what, (family, rest))) if counters.contains(family) => {
                plain.extend([what, family, "_total ", rest]);
            }
            _ => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

/// What is read of this process itself; opened before the sandbox closes, which lets no name be opened later.
#[derive(Debug)]
pub struct Process {
    /// `/proc/self/statm`
    memory: File,
    /// `/proc/self/fd`
    descriptors: Mutex<rustix::fs::Dir>,
    started_at: f64,
}

impl Process {
    /// Opens it.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn open() -> io::Result<Self> {
        let folder = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/self/fd", folder, rustix::fs::Mode::empty())?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Ok(Self {
            memory: File::open("/proc/self/statm")?,
            descriptors: Mutex::new(rustix::fs::Dir::new(descriptors)?),
            started_at: now.tv_sec as f64 + now.tv_nsec as f64 / 1e9,
        })
    }

    /// Virtual and resident memory in bytes.
    fn memory_bytes(&self) -> io::Result<(f64, f64)> {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 256];
        let n = self.memory.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..n]).into_owned();
        let mut pages = text.split(' ').map_while(|pages| pages.parse::<f64>().ok());
        let page_bytes = rustix::param::page_size() as f64;
        let mut bytes = || pages.next().map(|pages| pages * page_bytes).ok_or(io::ErrorKind::InvalidData);
        Ok((bytes()?, bytes()?))
    }

    fn open_descriptors(&self) -> usize {
        let mut folder = self.descriptors.lock();
        folder.rewind();
        let names = std::iter::from_fn(|| folder.read()).map_while(Result::ok);
        names.filter(|entry| !entry.file_name().to_bytes().starts_with(b".")).count()
    }

    fn encode(&self, families: &mut Families<'_>) -> fmt::Result {
        let one = |value: f64| [(Vec::new(), value)];
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        families.seconds("process_cpu", "Processor time used, of all threads", cpu)?;
        if let Ok((all, resident)) = self.memory_bytes() {
            families.gauge("process_virtual_memory", "Address space", Some(Unit::Bytes), &one(all))?;
            families.gauge("process_resident_memory", "Memory in RAM", Some(Unit::Bytes), &one(resident))?;
        }
        families.gauge("process_open_fds", "Open descriptors", None, &one(self.open_descriptors() as f64))?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        families.gauge(
            "process_max_fds",
            "The most that may be",
            None,
            &one(limit.map_or(f64::INFINITY, |n| n as f64)),
        )?;
        let began = "When the process began, since the Unix epoch";
        families.gauge("process_start_time", began, Some(Unit::Seconds), &one(self.started_at))
    }
}

/// Asks the daemon at every scrape; nothing is counted twice.
#[derive(Debug)]
struct GroupCollector(Arc<Daemon>, Process);

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Writes one family after another.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: &[(Labels<'_>, u64)],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in rows {
            if labels.is_empty() {
                family.encode_counter::<NoLabelSet, _, u64>(value, None)?;
            } else {
                family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
            }
        }
        Ok(())
    }

    /// A counter of seconds.
    fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: &[(Labels<'_>, f64)],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in rows {
            if labels.is_empty() {
                family.encode_gauge(value)?;
            } else {
                family.encode_family(labels)?.encode_gauge(value)?;
            }
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, rows: &[(Labels<'_>, OperationSnapshot)]) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, operation) in rows {
            let bounds = LATENCY_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(operation.latency_counts.iter().copied()).collect();
            let count = operation.latency_counts.iter().sum();
            let sum = operation.latency_sum_ns as f64 / 1e9;
            family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

impl Collector for GroupCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        self.group(&mut families)?;
        self.guests(&mut families)?;
        self.control_disk(&mut families)?;
        self.storage(&mut families)?;
        self.journals(&mut families)?;
        self.1.encode(&mut families)
    }
}

impl GroupCollector {
    fn group(&self, families: &mut Families<'_>) -> fmt::Result {
        let status = self.0.group.status();
        let contract = status.contract.to_string();
        let promise = self.0.group.promise();
        let one = |value: f64| [(Vec::new(), value)];
        let sequence =
            [("acknowledged", status.acknowledged), ("durable", status.durable), ("home", status.home)];
        families.gauge(
            "afterimage_contract_info",
            "The contract in force and its promise",
            None,
            &[(vec![("contract", contract.as_str()), ("promise", promise.as_str())], 1.0)],
        )?;
        families.gauge(
            "afterimage_build_info",
            "The program's version",
            None,
            &[(vec![("version", crate::VERSION)], 1.0)],
        )?;
        families.gauge(
            "afterimage_sequence_number",
            "The newest request that is acknowledged, durable, and in the image files",
            None,
            &sequence.map(|(point, number)| (vec![("point", point)], number.0 as f64)),
        )?;
        families.gauge(
            "afterimage_oldest_not_durable_age",
            "Age of the oldest acknowledged flush that is not durable; 0 if there is none",
            Some(Unit::Seconds),
            &one(status.oldest_not_durable_age.unwrap_or_default().as_secs_f64()),
        )?;
        families.gauge(
            "afterimage_oldest_not_durable_age_max",
            "The oldest age that an acknowledged flush reached before it was durable",
            Some(Unit::Seconds),
            &one(status.oldest_not_durable_age_max.as_secs_f64()),
        )?;
        families.gauge(
            "afterimage_log",
            "Redo log in use",
            Some(Unit::Bytes),
            &one(status.log_bytes as f64),
        )?;
        families.gauge(
            "afterimage_log_max",
            "Bound of the redo log",
            Some(Unit::Bytes),
            &one(status.log_max_bytes as f64),
        )?;
        let failed = f64::from(u8::from(status.failure.is_some()));
        families.gauge(
            "afterimage_failed",
            "1 after the first failure: no more writes",
            None,
            &one(failed),
        )?;
        let paused = f64::from(u8::from(status.paused));
        families.gauge("afterimage_paused", "1 while new writes are held back", None, &one(paused))?;
        for (name, help, unit, value) in [
            (
                "afterimage_log_appended",
                "Written to the redo log",
                Some(Unit::Bytes),
                status.log_appended_bytes,
            ),
            ("afterimage_log_syncs", "Syncs of the redo log", None, status.log_syncs),
            (
                "afterimage_home_written",
                "Brought home from the redo log",
                Some(Unit::Bytes),
                status.home_written_bytes,
            ),
            ("afterimage_log_throttled", "Times that writes waited for log space", None, status.throttled),
            ("afterimage_flushes_held", "Flushes held back by the window rule", None, status.held_flushes),
        ] {
            families.counter(name, help, unit, &[(Vec::new(), value)])?;
        }
        Ok(())
    }

    fn control_disk(&self, families: &mut Families<'_>) -> fmt::Result {
        let Some(disk) = self.0.control_disk.as_ref().map(ServedControlDisk::status) else { return Ok(()) };
        let rows = [
            ("vorder", disk.vorders),
            ("vflush", disk.vflushes),
            ("wait", disk.waits),
            ("not_yet", disk.not_yet),
            ("mprotect", disk.mprotects),
            ("published", disk.published),
            ("file_system", disk.file_systems),
            ("refused", disk.refused),
            ("failed", disk.failed),
        ];
        families.counter(
            "afterimage_control_disk_commands",
            "Commands of the control disk answered",
            None,
            &rows.map(|(outcome, count)| (vec![("outcome", outcome)], count)),
        )?;
        let attached = f64::from(u8::from(disk.attached));
        families.gauge(
            "afterimage_control_disk_attached",
            "1 while a guest is connected to the control disk",
            None,
            &[(Vec::new(), attached)],
        )
    }

    fn guests(&self, families: &mut Families<'_>) -> fmt::Result {
        let disks: Vec<(String, afterimage_frontend::FrontendSnapshot)> = self
            .0
            .disks
            .iter()
            .map(|disk| (disk.settings.file.display().to_string(), disk.stats.snapshot()))
            .collect();
        let mut rows: Vec<(Labels<'_>, OperationSnapshot)> = Vec::new();
        for (file, snapshot) in &disks {
            for kind in RequestKind::ALL {
                rows.push((vec![("disk", file), ("operation", kind.name())], snapshot.total(kind)));
            }
        }
        let column = |value: fn(&OperationSnapshot) -> u64| -> Vec<(Labels<'_>, u64)> {
            rows.iter().map(|(labels, operation)| (labels.clone(), value(operation))).collect()
        };
        families.histogram(
            "afterimage_request_duration",
            "Time from fetching a guest's request to answering it",
            &rows,
        )?;
        families.counter("afterimage_requests", "Guest requests answered", None, &column(|o| o.requests))?;
        families.counter(
            "afterimage_request_errors",
            "Guest requests that failed",
            None,
            &column(|o| o.errors),
        )?;
        families.counter(
            "afterimage_request",
            "Data of successful guest requests",
            Some(Unit::Bytes),
            &column(|o| o.bytes),
        )?;
        let flag = |value: fn(&afterimage_frontend::FrontendSnapshot) -> bool| -> Vec<(Labels<'_>, f64)> {
            disks
                .iter()
                .map(|(file, s)| (vec![("disk", file.as_str())], f64::from(u8::from(value(s)))))
                .collect()
        };
        families.gauge(
            "afterimage_disk_attached",
            "1 while a guest is connected",
            None,
            &flag(|s| s.attached),
        )?;
        families.gauge(
            "afterimage_disk_write_cache",
            "1 while the guest sees a write cache",
            None,
            &flag(|s| s.write_cache),
        )?;
        let image = |value: fn(&ServedDisk) -> bool| -> Vec<(Labels<'_>, f64)> {
            let values = self.0.disks.iter().map(|disk| f64::from(u8::from(value(disk))));
            disks
                .iter()
                .zip(values)
                .map(|((file, _), value)| (vec![("disk", file.as_str())], value))
                .collect()
        };
        families.gauge(
            "afterimage_disk_deleted",
            "1 after the image was deleted while it is served",
            None,
            &image(|disk| disk.image.is_deleted()),
        )?;
        families.gauge(
            "afterimage_disk_shortened",
            "1 while the image has fewer bytes than the disk",
            None,
            &image(|disk| disk.readable.shortened().is_some()),
        )
    }

    fn storage(&self, families: &mut Families<'_>) -> fmt::Result {
        let disks: Vec<_> = self
            .0
            .disks
            .iter()
            .map(|disk| (disk.settings.file.display().to_string(), disk.image.counters().snapshot()))
            .collect();
        let mut requests: Vec<(Labels<'_>, u64)> = Vec::new();
        let mut bytes: Vec<(Labels<'_>, u64)> = Vec::new();
        for (file, count) in &disks {
            for (operation, n) in [
                ("read", count.reads),
                ("write", count.writes),
                ("sync", count.syncs),
                ("discard", count.discards),
                ("zero", count.zeroes),
            ] {
                requests.push((vec![("disk", file), ("operation", operation)], n));
            }
            for (operation, n) in [("read", count.read_bytes), ("write", count.write_bytes)] {
                bytes.push((vec![("disk", file), ("operation", operation)], n));
            }
        }
        families.counter("afterimage_storage_requests", "Requests to the image file", None, &requests)?;
        families.counter("afterimage_storage", "Data to and from the image file", Some(Unit::Bytes), &bytes)
    }
}

/// A file system of a disk, by name.
struct Retained {
    disk: String,
    start_sector: String,
    status: FileSystemStatus,
}

impl Retained {
    fn labels(&self) -> Labels<'_> {
        vec![
            ("disk", self.disk.as_str()),
            ("start_sector", self.start_sector.as_str()),
            ("uuid", self.status.uuid.as_deref().unwrap_or_default()),
        ]
    }
}

impl GroupCollector {
    fn journals(&self, families: &mut Families<'_>) -> fmt::Result {
        let mut all = Vec::new();
        let mut arenas = Vec::new();
        for (index, disk) in self.0.disks.iter().enumerate() {
            let Some(status) = self.0.group.disk_status(index) else { continue };
            let disk = disk.settings.file.display().to_string();
            all.extend(status.file_systems.iter().map(|fs| Retained {
                disk: disk.clone(),
                start_sector: fs.start_sector.to_string(),
                status: fs.clone(),
            }));
            arenas.push((disk, status));
        }
        if arenas.is_empty() {
            return Ok(());
        }
        let per_disk = |value: fn(&afterimage_journal::DiskStatus) -> u64| -> Vec<(Labels<'_>, f64)> {
            arenas.iter().map(|(disk, s)| (vec![("disk", disk.as_str())], value(s) as f64)).collect()
        };
        let bytes = Some(Unit::Bytes);
        families.gauge(
            "afterimage_arena_used",
            "Journal content retained",
            bytes.clone(),
            &per_disk(|s| s.arena_used_bytes),
        )?;
        families.gauge(
            "afterimage_arena_resident",
            "Memory of retained journals",
            bytes.clone(),
            &per_disk(|s| s.arena_resident_bytes),
        )?;
        families.gauge(
            "afterimage_arena_max",
            "Bound of the content, shared by all disks",
            bytes.clone(),
            &per_disk(|s| s.arena_bytes_max),
        )?;
        let modes: Vec<(Labels<'_>, f64)> = all
            .iter()
            .map(|fs| {
                let mut labels = fs.labels();
                labels.push(("mode", &fs.status.mode));
                labels.push(("why", fs.status.why.as_deref().unwrap_or_default()));
                (labels, 1.0)
            })
            .collect();
        families.gauge(
            "afterimage_journal_info",
            "Whether a journal is retained, and why not",
            None,
            &modes,
        )?;
        let per_fs = |value: fn(&FileSystemStatus) -> u64| -> Vec<(Labels<'_>, f64)> {
            all.iter().map(|fs| (fs.labels(), value(&fs.status) as f64)).collect()
        };
        families.gauge(
            "afterimage_retained_transactions",
            "Committed transactions held",
            None,
            &per_fs(|s| s.transactions),
        )?;
        families.gauge("afterimage_retained_versions", "Versions held", None, &per_fs(|s| s.versions))?;
        families.gauge(
            "afterimage_retained_versions_pending",
            "Versions that are not home",
            None,
            &per_fs(|s| s.versions_pending),
        )?;
        families.gauge(
            "afterimage_retained_data",
            "Content of the versions held",
            bytes.clone(),
            &per_fs(|s| s.data_bytes),
        )?;
        families.gauge(
            "afterimage_retained_information",
            "Journal information: what says where a version is and belongs",
            bytes.clone(),
            &per_fs(|s| s.information_bytes),
        )?;
        let count = |value: fn(&FileSystemStatus) -> u64| -> Vec<(Labels<'_>, u64)> {
            all.iter().map(|fs| (fs.labels(), value(&fs.status))).collect()
        };
        families.counter(
            "afterimage_journal_absorbed",
            "Journal writes that did not reach storage",
            bytes.clone(),
            &count(|s| s.classes.journal_absorbed_bytes),
        )?;
        families.counter(
            "afterimage_page_writeback_elided",
            "Home writes not forwarded, because the same bytes were home",
            bytes,
            &count(|s| s.classes.page_writeback_elided_bytes),
        )?;
        for (place, (name, help, _)) in retained::counts(&Classes::default()).into_iter().enumerate() {
            let rows: Vec<(Labels<'_>, u64)> =
                all.iter().map(|fs| (fs.labels(), retained::counts(&fs.status.classes)[place].2)).collect();
            families.counter(&format!("afterimage_{name}"), help, None, &rows)?;
        }
        Ok(())
    }
}
