//! Guest streams out of a seed, for measurements and tests that shall not depend on a recording.

use std::sync::Arc;

use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, Sparse, Target, TargetId};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// The shape of a stream.
#[derive(Clone, Debug)]
pub struct Synthetic {
    /// Sizes of the disks in sectors of 512 bytes.
    pub disk_sectors: Vec<u64>,
    /// Rounds between the marks `begin` and `end`: a round is up to `in_flight` requests, then mostly a flush.
    pub rounds: usize,
    /// The most requests in flight together.
    pub in_flight: usize,
    /// The largest write in sectors.
    pub write_sectors_max: u64,
    /// The range of each disk that is written to, in sectors from its begin: small, and requests overlap.
    pub hot_sectors: u64,
    /// Requests begin and end at multiples of this many sectors: 8 as from a file system with blocks of 4 KiB.
    pub align_sectors: u64,
    /// The longest pause between two events in microseconds; the mean is a third of it.
    pub think_us_max: u64,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            disk_sectors: vec![512, 256],
            rounds: 60,
            in_flight: 4,
            write_sectors_max: 24,
            hot_sectors: 256,
            align_sectors: 1,
            think_us_max: 6000,
        }
    }
}

/// A guest layer: disks with content, overlapping writes, discards, flushes, and after each flush that says so a mark
/// `{"agent":"ack","n":…}`. Requests that overlap are never in flight together, as with any real guest.
pub fn synthetic(shape: &Synthetic, seed: u64) -> Recording {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let targets = shape
        .disk_sectors
        .iter()
        .zip(0..)
        .map(|(sectors, disk)| {
            let mut base = Sparse::new(sectors * 512);
            let used = vec![0xa0 + disk as u8; (sectors * 512 / 2) as usize];
            base.write_at(&used, 0);
            Target { layer: Layer::Guest, role: Role::Disk(disk), bytes: sectors * 512, base: Arc::new(base) }
        })
        .collect();
    let mut maker = Maker { shape, events: Vec::new(), now_ns: 0, next_id: 0, acks: 0 };
    maker.mark(&mut rng, r#"{"mark":"begin"}"#.into());
    for _ in 0..shape.rounds {
        maker.round(&mut rng);
    }
    maker.mark(&mut rng, r#"{"mark":"end"}"#.into());
    Recording { about: serde_json::Map::new(), targets, events: maker.events }
}

struct Maker<'a> {
    shape: &'a Synthetic,
    events: Vec<Event>,
    now_ns: u64,
    next_id: u64,
    acks: u64,
}

impl Maker<'_> {
    fn push(&mut self, rng: &mut ChaCha8Rng, kind: EventKind) {
        let most = self.shape.think_us_max * 1000;
        // Mostly short, as from a program that waits for its own requests.
        self.now_ns += rng.random_range(0..=most) * rng.random_range(0..=2) / 3;
        self.events.push(Event { at_ns: self.now_ns, kind });
    }

    fn mark(&mut self, rng: &mut ChaCha8Rng, text: String) {
        self.push(rng, EventKind::Mark { text: text.into() });
    }

    fn submit(&mut self, rng: &mut ChaCha8Rng, target: TargetId, op: Op) -> (TargetId, u64) {
        self.next_id += 1;
        let id = self.next_id;
        self.push(rng, EventKind::Submit { target, id, op });
        (target, id)
    }

    fn round(&mut self, rng: &mut ChaCha8Rng) {
        let mut open: Vec<(TargetId, u64)> = Vec::new();
        let mut busy: Vec<(TargetId, std::ops::Range<u64>)> = Vec::new();
        for _ in 0..rng.random_range(1..=self.shape.in_flight) {
            let disk = rng.random_range(0..self.shape.disk_sectors.len());
            let target = TargetId(disk as u16);
            let within = self.shape.disk_sectors[disk].min(self.shape.hot_sectors);
            let most = self.shape.write_sectors_max.min(within);
            let sectors = if rng.random_range(0..8) == 0 { rng.random_range(1..=most) } else { 8.min(most) };
            let sectors = sectors.next_multiple_of(self.shape.align_sectors).min(within);
            let first =
                rng.random_range(0..=within - sectors) / self.shape.align_sectors * self.shape.align_sectors;
            let range = first..first + sectors;
            if busy.iter().any(|(t, r)| *t == target && r.start < range.end && range.start < r.end) {
                continue;
            }
            let op = self.operation(rng, first * 512, sectors * 512);
            busy.push((target, range));
            open.push(self.submit(rng, target, op));
            if rng.random_range(0..3) == 0 {
                self.complete_one(rng, &mut open);
            }
        }
        while !open.is_empty() {
            self.complete_one(rng, &mut open);
        }
        if rng.random_range(0..5) > 0 {
            let disk = rng.random_range(0..self.shape.disk_sectors.len());
            let flush = self.submit(rng, TargetId(disk as u16), Op::Flush);
            self.complete_one(rng, &mut vec![flush]);
            if rng.random_range(0..3) == 0 {
                self.acks += 1;
                let n = self.acks;
                let ack = format!(
                    r#"{{"agent":"ack","n":{n},"thread":0,"slot":{n},"floor":{},"ns":{n},"fsync_ns":0}}"#,
                    n - 1
                );
                self.mark(rng, ack);
            }
        }
    }

    fn operation(&mut self, rng: &mut ChaCha8Rng, offset: u64, len: u64) -> Op {
        let flushed = rng.random_range(0..25) == 0;
        match rng.random_range(0..12) {
            0 => Op::Zero { offset, len, unmap: true, flushed },
            1 => Op::Zero { offset, len, unmap: false, flushed },
            // The same bytes everywhere: what a stale record would show, too.
            2 => Op::Write { offset, data: vec![0x55; len as usize].into(), flushed },
            _ => {
                let mut data = vec![0; len as usize];
                rng.fill(&mut data[..]);
                Op::Write { offset, data: data.into(), flushed }
            }
        }
    }

    fn complete_one(&mut self, rng: &mut ChaCha8Rng, open: &mut Vec<(TargetId, u64)>) {
        if open.is_empty() {
            return;
        }
        let (target, id) = open.swap_remove(rng.random_range(0..open.len()));
        self.push(rng, EventKind::Complete { target, id, ok: true });
    }
}
