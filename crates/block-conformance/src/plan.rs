//! What the suite asks of a disk: seeded, of all sizes, often overlapping.

use std::ops::Range;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use afterimage_block::{FlushKind, Operation};

/// The longest ordinary request, in sectors.
const SHORT_MAX: u64 = 64;
/// The longest request, in sectors.
const LONG_MAX: u64 = 4096;
/// Requests like to meet in this many sectors.
const HOT_SECTORS: u64 = 48;

/// One step of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A good request.
    Request { operation: Operation, sector: u64, sectors: u64 },
    /// A request that must be refused, and that must change nothing.
    Bad { operation: Operation, sector: u64, sectors: u64, bytes: usize },
    /// Wait until nothing is in flight on any lane.
    Drain,
    /// Drain and compare everything.
    Compare,
    /// Drop a lane with what it has in flight and open another.
    DropLane,
}

/// What a run is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The sectors it may touch.
    pub range: Range<u64>,
    /// The disk's size in sectors.
    pub disk_sectors: u64,
    /// The unit of good requests, in sectors.
    pub grain: u64,
    /// Whether lanes may be dropped.
    pub drops: bool,
}

impl Plan {
    pub fn step(&self, random: &mut ChaCha8Rng) -> Step {
        let flushed = random.random_bool(0.1);
        match random.random_range(0..1000) {
            0..340 => self.request(random, Operation::Read),
            340..680 => self.request(random, Operation::Write { flushed }),
            680..750 => self.request(random, Operation::Discard { flushed }),
            750..820 => {
                let unmap = random.random();
                self.request(random, Operation::WriteZeroes { unmap, flushed })
            }
            820..890 => {
                let kind = if random.random() { FlushKind::Order } else { FlushKind::Durable };
                Step::Request { operation: Operation::Flush(kind), sector: 0, sectors: 0 }
            }
            890..930 => self.bad(random),
            930..985 => Step::Drain,
            985..990 if self.drops => Step::DropLane,
            _ => Step::Compare,
        }
    }

    fn request(&self, random: &mut ChaCha8Rng, operation: Operation) -> Step {
        let grains = (self.range.end - self.range.start) / self.grain;
        let len = match random.random_range(0..100) {
            0..2 => 0,
            2..40 => 1,
            40..70 => 8,
            70..98 => random.random_range(1..=SHORT_MAX),
            _ => random.random_range(1..=LONG_MAX),
        };
        let len = len.min(grains);
        let last = grains - len;
        let first = if random.random_bool(0.5) {
            // Sizes vary, so these overlap in all ways; the spot wanders with the size of the range.
            random.random_range(0..=last.min(HOT_SECTORS))
        } else {
            random.random_range(0..=last)
        };
        Step::Request { operation, sector: self.range.start + first * self.grain, sectors: len * self.grain }
    }

    fn bad(&self, random: &mut ChaCha8Rng) -> Step {
        let end = self.disk_sectors;
        let operation = match random.random_range(0..4) {
            0 => Operation::Read,
            1 => Operation::Write { flushed: random.random() },
            2 => Operation::Discard { flushed: random.random() },
            _ => Operation::WriteZeroes { unmap: random.random(), flushed: random.random() },
        };
        let has_buffers = matches!(operation, Operation::Read | Operation::Write { .. });
        let (sector, sectors) = match random.random_range(0..6) {
            0 => (end, 1),
            1 => (end - 1, 2),
            2 => (u64::MAX, 1),
            3 => (u64::MAX / 512, 8),
            4 if !has_buffers => (1, u64::MAX),
            5 if has_buffers => {
                // The buffers are shorter or longer than the range.
                return Step::Bad {
                    operation,
                    sector: self.range.start,
                    sectors: self.grain,
                    bytes: if random.random() { 0 } else { self.grain as usize * 512 + 512 },
                };
            }
            _ => (end + random.random_range(0..1 << 40), 8),
        };
        let bytes = if has_buffers { sectors as usize * 512 } else { 0 };
        Step::Bad { operation, sector, sectors, bytes }
    }
}
