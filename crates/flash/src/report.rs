//! What a run found out.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::config::{Config, FtlKind};
use crate::counts::{Cause, Counts, Ops};
use crate::ftl::Ftl;
use crate::geometry::Geometry;
use crate::place::RunOptions;
use crate::scan::{Scan, Traffic};
use crate::trace::Tally;
use crate::wear::WearSummary;

/// Pages the host asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Read.
    pub read: u64,
    /// Of these never written before: nothing to read.
    pub read_unwritten: u64,
    /// Written.
    pub written: u64,
    /// Discarded.
    pub discarded: u64,
}

/// Garbage collection: copied reads × read + copied programs × program + erases × erase time (docs/flash.md, What the figures mean). The study
/// does not define its GC overhead.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Collection {
    /// Copies and erases of garbage collection, translation updates inside it included.
    pub ops: Ops,
    /// Their time.
    pub ns: u64,
    /// Their share of the time the flash worked; 0 if it did nothing.
    pub of_device_time: f64,
    /// A request; 0 without requests.
    pub ns_per_request: f64,
}

/// Map traffic that is not collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MapTraffic {
    /// Page reads for the map: fetches and evictions.
    pub reads: u64,
    /// Programs for the map: evictions.
    pub programs: u64,
    /// Spare-area reads.
    pub spare_reads: u64,
    /// Their time.
    pub ns: u64,
}

/// How often the trace can be repeated before blocks reach the erases they endure. `None`: for ever (no erase).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Lifetime {
    /// If wear is even, as the study assumes: endurance × blocks / erases.
    pub even_runs: Option<f64>,
    /// Until the most erased block is worn: endurance / its erases.
    pub worst_runs: Option<f64>,
}

/// Times of requests, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 95 %.
    pub p95_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.50),
            p95_ns: histogram.value_at_quantile(0.95),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// The result of one trace on one FTL.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What the trace is called.
    pub trace: String,
    /// Which FTL.
    pub ftl: FtlKind,
    /// The flash, as large as the ageing made it.
    pub geometry: Geometry,
    /// Logical pages.
    pub logical_pages: u32,
    /// Pages the trace touches, over all physical pages.
    pub utilisation: f64,
    /// How it was run.
    pub options: RunOptions,
    /// Requests and bytes.
    pub traffic: Traffic,
    /// Pages.
    pub pages: Pages,
    /// Reads, programs and erases by cause.
    pub operations: Counts,
    /// All erases.
    pub erases: u64,
    /// Garbage collection.
    pub collection: Collection,
    /// Time of static wear levelling, which is no collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levelling_ns: Option<u64>,
    /// Map traffic.
    pub map: MapTraffic,
    /// Programs a page the host wrote; `None` if it wrote none.
    pub write_amplification: Option<f64>,
    /// How long the flash worked.
    pub device_ns: u64,
    /// Erases by block.
    pub wear: WearSummary,
    /// Lifetime.
    pub lifetime: Lifetime,
    /// Service and waiting.
    pub response: Times,
    /// Service alone.
    pub service: Times,
    /// RAM a real drive needs for the FTL's tables, bytes.
    pub table_bytes: u64,
    /// Counters of the FTL.
    pub details: Vec<(&'static str, u64)>,
    /// What reading the trace found.
    pub reading: Tally,
}

impl Report {
    /// What static wear levelling did.
    pub fn levelling(&self) -> Ops {
        self.operations.of(Cause::WearLevel)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        config: &Config,
        kind: FtlKind,
        options: RunOptions,
        scan: &Scan,
        ftl: &dyn Ftl,
        traffic: Traffic,
        pages: Pages,
        response: &Histogram<u64>,
        service: &Histogram<u64>,
    ) -> Self {
        let flash = ftl.flash();
        let counts = flash.counts();
        let t = flash.timing();
        let gc = counts.collection();
        let time = |ops: Ops| ops.reads * t.read_ns + ops.programs * t.program_ns + ops.erases * t.erase_ns;
        let gc_ns = time(gc);
        let [fetch, evict] = [counts.of(Cause::MapFetch), counts.of(Cause::MapEvict)];
        let (map_reads, map_programs) = (fetch.reads + evict.reads, evict.programs);
        let wear = flash.wear();
        let erases = counts.total().erases;
        let endurance = f64::from(config.endurance);
        let blocks = f64::from(config.geometry.blocks);
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Self {
            trace: String::new(),
            ftl: kind,
            geometry: config.geometry,
            logical_pages: ftl.logical_pages(),
            utilisation: scan.pages() as f64 / f64::from(config.geometry.pages()),
            options,
            traffic,
            pages,
            erases,
            collection: Collection {
                ops: gc,
                ns: gc_ns,
                of_device_time: share(gc_ns as f64, flash.busy_ns() as f64),
                ns_per_request: share(gc_ns as f64, traffic.requests() as f64),
            },
            levelling_ns: config.static_wear.map(|_| time(counts.of(Cause::WearLevel))),
            map: MapTraffic {
                reads: map_reads,
                programs: map_programs,
                spare_reads: counts.spare_reads,
                ns: map_reads * t.read_ns
                    + map_programs * t.program_ns
                    + counts.spare_reads * t.spare_read_ns,
            },
            write_amplification: (pages.written > 0)
                .then(|| counts.total().programs as f64 / pages.written as f64),
            device_ns: flash.busy_ns(),
            wear,
            lifetime: Lifetime {
                even_runs: (erases > 0).then(|| endurance * blocks / erases as f64),
                worst_runs: (wear.max > 0).then(|| endurance / f64::from(wear.max)),
            },
            response: Times::of(response),
            service: Times::of(service),
            table_bytes: ftl.table_bytes(),
            details: ftl.details(),
            reading: scan.tally.clone(),
            operations: counts.clone(),
        }
    }
}
