//! A trace on a drive: ageing, requests into pages, time, the result.
//!
//! ```text
//! Scan ─► Placement ─► build the FTL ─► age, reset the counters ─► every request: pages ─► FTL ─► Report
//! ```
//!
//! Time [C]: the drive serves one flash operation at a time and requests in order, as they arrive; a request's service
//! time is what the flash did for it, collection included; its response time adds the wait for those before it. A
//! trace without times is played one request after the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;

use crate::config::{Config, FtlKind};
use crate::control::{Control, RunError};
use crate::counts::Cause;
use crate::ftl::{Ahead, Ftl, FtlError};
use crate::ids::Lpn;
use crate::place::{Placement, Precondition, RunOptions};
use crate::report::{Pages, Report};
use crate::scan::{Scan, Traffic};
use crate::trace::{Kind, Prefetch, Request};

/// Runs a scanned trace on a drive.
///
/// # Errors
/// The trace, the parameters, space, or `control.stop`.
pub fn run(
    config: &Config,
    kind: FtlKind,
    scan: &Scan,
    mut trace: Prefetch,
    options: &RunOptions,
    control: &Control,
) -> Result<Report, RunError> {
    let mut config = config.clone();
    let mut placement = Placement::new(&mut config, scan, options.precondition, options.region)?;
    let mut ftl = config.build(kind, placement.logical_blocks)?;
    let fail = |requests: u64| move |error: FtlError| RunError::Ftl { ftl: kind, requests, error };
    age(&mut *ftl, kind, scan, &mut placement, options.precondition, control)?;
    let mut simulation = Simulation::new(ftl, placement, config.geometry.page_bytes, *options);
    while let Some(batch) = trace.next_batch()? {
        simulation
            .requests(&batch, &control.stop)
            .map_err(|error| fail(simulation.traffic.requests())(error))?;
        control.served.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if control.stop.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
    }
    Ok(simulation.report(&config, kind, *options, scan))
}

fn age(
    ftl: &mut dyn Ftl,
    kind: FtlKind,
    scan: &Scan,
    placement: &mut Placement,
    precondition: Precondition,
    control: &Control,
) -> Result<(), RunError> {
    let pages_per_block = u64::from(ftl.flash().geometry().pages_per_block);
    let fail = |error| RunError::Ftl { ftl: kind, requests: 0, error };
    let stopped = || control.stop.load(Ordering::Relaxed);
    match precondition {
        Precondition::None => {}
        Precondition::Drive => {
            for lpn in 0..ftl.logical_pages() {
                ftl.write(Lpn(lpn)).map_err(fail)?;
                if lpn % 65_536 == 0 && stopped() {
                    return Err(RunError::Interrupted);
                }
            }
        }
        Precondition::Region => {
            for ((device, block), bits) in scan.blocks() {
                for page in 0..pages_per_block {
                    let written = bits[(page / 64) as usize] >> (page % 64) & 1 == 1;
                    if let Some(lpn) =
                        placement.lpn(device, block * pages_per_block + page).filter(|_| written)
                    {
                        ftl.write(lpn).map_err(fail)?;
                    }
                }
                if stopped() {
                    return Err(RunError::Interrupted);
                }
            }
        }
    }
    ftl.flash_mut().reset_counters();
    Ok(())
}

/// Zero (a read of what was never written) is counted as the smallest value the histogram knows.
fn record(histogram: &mut Histogram<u64>, ns: u64) {
    if histogram.record(ns.max(1)).is_err() {
        // It could not grow: the largest value it has stands for this one.
        histogram.saturating_record(ns);
    }
}

/// A drive in the middle of a trace.
pub struct Simulation {
    ftl: Box<dyn Ftl>,
    placement: Placement,
    page_bytes: u64,
    options: RunOptions,
    traffic: Traffic,
    pages: Pages,
    response: Histogram<u64>,
    service: Histogram<u64>,
    /// When the drive is done with everything so far.
    free_ns: u64,
    /// First pages of the next requests, which have been announced to the FTL.
    announced: VecDeque<Option<Lpn>>,
}

impl Simulation {
    /// A drive at time zero.
    pub fn new(ftl: Box<dyn Ftl>, placement: Placement, page_bytes: u32, options: RunOptions) -> Self {
        // Resizes itself; three digits are a precision it accepts.
        let histogram = || Histogram::new(3).expect("three digits are accepted");
        Self {
            ftl,
            placement,
            page_bytes: u64::from(page_bytes),
            options,
            traffic: Traffic::default(),
            pages: Pages::default(),
            response: histogram(),
            service: histogram(),
            free_ns: 0,
            announced: VecDeque::new(),
        }
    }

    /// Serves requests in order, each announced to the FTL a few requests before its turn. Once `stop` is set, no more
    /// of them: each may discard a whole drive.
    ///
    /// # Errors
    /// The FTL has no space.
    pub fn requests(&mut self, batch: &[Request], stop: &AtomicBool) -> Result<(), FtlError> {
        self.announced.clear();
        let mut ahead = batch.iter();
        for request in batch {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            while self.announced.len() <= Ahead::Far.distance() {
                let Some(next) = ahead.next() else { break };
                let first = match next.kind {
                    Kind::Discard => None,
                    Kind::Read | Kind::Write => {
                        self.placement.lpn_ahead(next.device, next.offset / self.page_bytes)
                    }
                };
                self.announce(first, Ahead::Far);
                self.announced.push_back(first);
            }
            for ahead in [Ahead::Near, Ahead::Close] {
                self.announce(self.announced.get(ahead.distance()).copied().flatten(), ahead);
            }
            let first = self.announced.pop_front().flatten();
            self.serve(request, first)?;
        }
        Ok(())
    }

    /// A request's first page and its neighbour: most requests have two or touch nothing else far away.
    #[inline]
    fn announce(&self, first: Option<Lpn>, ahead: Ahead) {
        if let Some(lpn) = first {
            self.ftl.expect(lpn, ahead);
            if lpn.0 + 1 < self.ftl.logical_pages() {
                self.ftl.expect(Lpn(lpn.0 + 1), ahead);
            }
        }
    }

    /// The logical page of a request's page; `first` knows that of the first one.
    #[inline]
    fn lpn(&mut self, request: &Request, page: u64, first: Option<Lpn>) -> Option<Lpn> {
        first
            .filter(|_| page == request.offset / self.page_bytes)
            .or_else(|| self.placement.lpn(request.device, page))
    }

    fn serve(&mut self, request: &Request, announced: Option<Lpn>) -> Result<(), FtlError> {
        self.traffic.add(request);
        let before = self.ftl.flash().busy_ns();
        let first = request.offset / self.page_bytes;
        let end = request.offset + request.bytes;
        let last = (end - 1) / self.page_bytes;
        match request.kind {
            Kind::Discard if !self.options.discards => return Ok(()),
            Kind::Discard => {
                // Only whole pages can go; what is no part of the drive is passed over.
                let mut page = request.offset.div_ceil(self.page_bytes);
                while page < end / self.page_bytes {
                    if let Some(lpn) = self.placement.lpn(request.device, page) {
                        self.ftl.discard(lpn)?;
                        self.pages.discarded += 1;
                        page += 1;
                    } else {
                        let Some(next) = self.placement.next_page(request.device, page) else { break };
                        page = next;
                    }
                }
            }
            Kind::Read => {
                for page in first..=last {
                    if let Some(lpn) = self.lpn(request, page, announced) {
                        self.pages.read += 1;
                        let found = self.ftl.read(lpn, Cause::Host)?;
                        self.pages.read_unwritten += u64::from(found.is_none());
                    }
                }
            }
            Kind::Write => {
                for page in first..=last {
                    if let Some(lpn) = self.lpn(request, page, announced) {
                        let whole =
                            page * self.page_bytes >= request.offset && (page + 1) * self.page_bytes <= end;
                        if self.options.modify && !whole {
                            self.ftl.read(lpn, Cause::Modify)?;
                        }
                        self.ftl.write(lpn)?;
                        self.pages.written += 1;
                    }
                }
            }
        }
        let service = self.ftl.flash().busy_ns() - before;
        let arrival = request.time_ns.filter(|_| self.options.timed).unwrap_or(self.free_ns);
        // A trace may claim any time: the end of time is as late as it gets.
        self.free_ns = self.free_ns.max(arrival).saturating_add(service);
        record(&mut self.service, service);
        record(&mut self.response, self.free_ns - arrival);
        Ok(())
    }

    fn report(self, config: &Config, kind: FtlKind, options: RunOptions, scan: &Scan) -> Report {
        Report::new(
            config,
            kind,
            options,
            scan,
            &*self.ftl,
            self.traffic,
            self.pages,
            &self.response,
            &self.service,
        )
    }
}
