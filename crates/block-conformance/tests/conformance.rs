//! The suite passes on a disk that is right, and fails on every one of several that are wrong.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, Geometry, Health, Lane, MediumDisk, Operation, Request, Sector,
};
use afterimage_block_conformance::{compare, run, run_read_only, run_threads, Bytes};
use proptest::prelude::*;

const SECTORS: usize = 3000;

fn bytes() -> Arc<Bytes> {
    Bytes::new(vec![0x11; SECTORS * 512])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_right_disk_passes(seed in any::<u64>()) {
        let bytes = bytes();
        let disk = || Arc::new(MediumDisk::new(Arc::clone(&bytes) as _)) as Arc<dyn Disk>;
        let mut oracle = run(seed, 600, disk).unwrap();
        compare(seed, &disk(), &mut oracle).unwrap();
    }
}

#[test]
fn a_right_disk_passes_from_several_threads_and_read_only() {
    let bytes = bytes();
    run_threads(7, 400, 3, || Arc::new(MediumDisk::new(Arc::clone(&bytes) as _))).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(MediumDisk::read_only(bytes as _));
    run_read_only(7, &disk).unwrap();
}

/// What a broken disk does wrong.
#[derive(Clone, Copy, Debug)]
enum Bug {
    /// Writes of several segments lose the last one.
    ForgetsLastSegment,
    /// Discards succeed and do nothing.
    IgnoresDiscard,
    /// Requests past the end wrap around to the beginning.
    WrapsAround,
    /// A write completes before it happens, which is at the next flush.
    CompletesEarly,
    /// A write of eight sectors starts one sector late.
    OffByOne,
    /// Requests are counted out of flight too late.
    Miscounts,
    /// Some completions come twice.
    CompletesTwice,
    /// A read-only disk that is none.
    WritesReadOnly,
    /// Reads fill only their first sector.
    ShortReads,
}

struct Broken {
    disk: MediumDisk,
    bug: Bug,
}

impl Disk for Broken {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: matches!(self.bug, Bug::WritesReadOnly), ..self.disk.geometry() }
    }

    fn serial(&self) -> &str {
        self.disk.serial()
    }

    fn health(&self) -> &Health {
        self.disk.health()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let lane = self.disk.open_lane()?;
        Ok(Box::new(BrokenLane {
            disk: self.geometry(),
            lane,
            bug: self.bug,
            early: Vec::new(),
            done: Vec::new(),
            count: 0,
        }))
    }
}

struct BrokenLane {
    disk: Geometry,
    lane: Box<dyn Lane>,
    bug: Bug,
    early: Vec<Admitted>,
    done: Vec<Completion>,
    count: usize,
}

impl Lane for BrokenLane {
    fn geometry(&self) -> Geometry {
        self.disk
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.submit(request.into_request());
    }

    fn submit(&mut self, mut request: Request) {
        self.count += 1;
        let is_write = matches!(request.operation, Operation::Write { .. });
        match self.bug {
            Bug::ForgetsLastSegment if is_write && request.buffers.segments().len() > 2 => {
                let last = request.buffers.segments().last().map_or(0, |s| s.iov_len);
                request.sectors -= (last as u64).div_ceil(512);
                request.buffers = request.buffers.slice(0, request.sectors as usize * 512);
            }
            Bug::IgnoresDiscard if matches!(request.operation, Operation::Discard { .. }) => {
                request.sectors = 0
            }
            Bug::WrapsAround if request.sector.0 >= SECTORS as u64 => request.sector.0 %= SECTORS as u64 - 8,
            Bug::OffByOne if is_write && request.sectors == 8 && request.sector.0 + 9 < SECTORS as u64 => {
                request.sector = Sector(request.sector.0 + 1);
            }
            Bug::CompletesEarly if is_write => {
                match Admitted::new(request, &self.disk) {
                    Ok(request) => {
                        self.done.push(Completion { token: request.token, result: Ok(()) });
                        self.early.push(request);
                    }
                    Err(refusal) => self.refuse(refusal),
                }
                return;
            }
            Bug::ShortReads if request.operation == Operation::Read && request.sectors > 1 => {
                request.sectors = 1;
                request.buffers = request.buffers.slice(0, 512);
            }
            _ => {}
        }
        if matches!(request.operation, Operation::Flush(_)) && !self.early.is_empty() {
            self.lane.reap(&mut self.done);
            for early in self.early.drain(..) {
                self.lane.take(early);
            }
            // Their completions have been given already; the lane below completes at once.
            let mut given = Vec::new();
            self.lane.reap(&mut given);
            drop(given);
        }
        self.lane.submit(request);
    }

    fn dispatch(&mut self) {
        self.lane.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        self.lane.reap(completions);
        if matches!(self.bug, Bug::CompletesTwice) && self.count % 50 == 49 {
            completions.extend(completions.last().cloned());
        }
    }

    fn in_flight(&self) -> usize {
        let wrong = usize::from(matches!(self.bug, Bug::Miscounts) && self.count % 50 == 49);
        self.lane.in_flight() + self.done.len() + wrong
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.lane.wait(also, timeout)
    }
}

#[test]
fn every_broken_disk_is_caught() {
    for bug in [
        Bug::ForgetsLastSegment,
        Bug::IgnoresDiscard,
        Bug::WrapsAround,
        Bug::CompletesEarly,
        Bug::OffByOne,
        Bug::Miscounts,
        Bug::CompletesTwice,
        Bug::ShortReads,
    ] {
        let found = run(3, 2000, || Arc::new(Broken { disk: MediumDisk::new(bytes()), bug }));
        let Err(violation) = found else { panic!("{bug:?} was not noticed") };
        println!("{bug:?}: {violation}");
    }
    let disk: Arc<dyn Disk> = Arc::new(Broken { disk: MediumDisk::new(bytes()), bug: Bug::WritesReadOnly });
    assert!(run_read_only(3, &disk).is_err());
}
