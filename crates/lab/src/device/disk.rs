//! A **disk** has one head. A *write* goes into the drive's volatile cache over the interface (300 MB/s, 50 µs a request); when
//! the cache is full it waits for the head to make room. A *read* that misses the cache costs seek, rotation
//! and transfer, or transfer alone when it continues where the head is. A *flush* writes the cache out in
//! elevator order (upwards from the head, then from the bottom): between two runs the head passes over a gap
//! if that is quicker than seek and rotation; the first run costs a rotation when it is where the head is
//! (the sector has just gone by), seek and rotation otherwise. After 5 ms without requests the drive writes
//! its cache out by itself. A stream that has filled the cache loses a rotation with each request that waits for the head: at
//! 1 MiB a request 10 % of `hdd15k`'s rate, a quarter of `hdd7200`'s.
//!
//! | model | like | seek | rotation | head | cache |
//! |---|---|---|---|---|---|
//! | `hdd15k` | the disk of the VMA paper | 4 ms | 2 ms | 63 MB/s | 16 MiB |
//! | `hdd10k` | an enterprise 10,000 rpm SAS disk (vDrive, Fig. 4) | 4 ms | 3 ms | 90 MB/s | 16 MiB |
//! | `hdd7200` | a nearline 7,200 rpm SATA disk (vDrive, Fig. 4) | 8.5 ms | 4.2 ms | 110 MB/s | 32 MiB |

use std::collections::BTreeMap;
use std::time::Duration;

use super::{transfer, Place};

/// The figures of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    seek: Duration,
    rotation: Duration,
    head_bytes_per_s: u64,
    cache_bytes: u64,
}

/// `hdd15k`
pub const HDD_15K: Figures = Figures {
    seek: Duration::from_millis(4),
    rotation: Duration::from_millis(2),
    head_bytes_per_s: 63_000_000,
    cache_bytes: 16 << 20,
};

/// `hdd10k`
pub const HDD_10K: Figures = Figures {
    seek: Duration::from_millis(4),
    rotation: Duration::from_millis(3),
    head_bytes_per_s: 90_000_000,
    cache_bytes: 16 << 20,
};

/// `hdd7200`
pub const HDD_7200: Figures = Figures {
    seek: Duration::from_micros(8500),
    rotation: Duration::from_micros(4200),
    head_bytes_per_s: 110_000_000,
    cache_bytes: 32 << 20,
};

const INTERFACE_BYTES_PER_S: u64 = 300_000_000;
const COMMAND: Duration = Duration::from_micros(50);
const IDLE: Duration = Duration::from_millis(5);

/// A disk with one head.
#[derive(Debug)]
pub struct Disk {
    figures: Figures,
    seeks: u64,
    head: u64,
    head_free: Duration,
    interface_free: Duration,
    last_request: Duration,
    /// Start and length of runs in the cache that are not on the platters.
    dirty: BTreeMap<u64, u64>,
    dirty_bytes: u64,
}

impl Disk {
    /// At rest.
    pub fn new(figures: Figures, now: Duration) -> Disk {
        Disk {
            figures,
            seeks: 0,
            head: 0,
            head_free: now,
            interface_free: now,
            last_request: now,
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
        }
    }

    /// How often the head was moved.
    pub fn seeks(&self) -> u64 {
        self.seeks
    }

    /// What it costs to get the head to `place`, in the middle of a batch.
    fn position(&self, place: u64) -> Duration {
        let anywhere = self.figures.seek + self.figures.rotation;
        match place.checked_sub(self.head) {
            Some(gap) => transfer(gap, self.figures.head_bytes_per_s).min(anywhere),
            None => anywhere,
        }
    }

    /// Moves the head there and over so many bytes. (Passing over a gap is no seek.)
    fn move_head(&mut self, place: u64, bytes: u64) {
        self.seeks += u64::from(self.position(place) >= self.figures.seek + self.figures.rotation);
        self.head = place + bytes;
    }

    /// What the first access of a batch costs: the sector under the head has just gone by.
    fn position_first(&self, place: u64) -> Duration {
        self.position(place).max(self.figures.rotation)
    }

    /// The next run upwards from the head, else the lowest.
    fn next_run(&self) -> Option<(u64, u64)> {
        self.dirty
            .range(self.head..)
            .next()
            .or_else(|| self.dirty.iter().next())
            .map(|(start, len)| (*start, *len))
    }

    fn write_out_one(&mut self, from: Duration, first: bool) -> Option<Duration> {
        let (start, bytes) = self.next_run()?;
        let reach = if first { self.position_first(start) } else { self.position(start) };
        self.dirty.remove(&start);
        self.dirty_bytes -= bytes;
        self.move_head(start, bytes);
        Some(from + reach + transfer(bytes, self.figures.head_bytes_per_s))
    }

    /// Lets the drive use the time since the last request.
    fn catch_up(&mut self, now: Duration) {
        let mut at = self.head_free.max(self.last_request + IDLE);
        let mut first = true;
        while at < now {
            match self.write_out_one(at, first) {
                Some(done) => at = done,
                None => break,
            }
            first = false;
            self.head_free = at;
        }
        self.last_request = now;
    }

    fn remember(&mut self, place: u64, bytes: u64) {
        let (mut start, mut end) = (place, place + bytes);
        // Merge with every run that it touches.
        while let Some((run, length)) = self.dirty.range(..=end).next_back().map(|(s, l)| (*s, *l)) {
            if run + length < start {
                break;
            }
            self.dirty.remove(&run);
            self.dirty_bytes -= length;
            start = start.min(run);
            end = end.max(run + length);
        }
        self.dirty.insert(start, end - start);
        self.dirty_bytes += end - start;
    }

    fn is_cached(&self, place: u64, bytes: u64) -> bool {
        let run = self.dirty.range(..=place).next_back();
        run.is_some_and(|(start, length)| start + length >= place + bytes)
    }

    fn over_interface(&mut self, now: Duration, bytes: u64) -> Duration {
        let start = now.max(self.interface_free);
        self.interface_free = start + COMMAND + transfer(bytes, INTERFACE_BYTES_PER_S);
        self.interface_free
    }

    /// When a read that arrives now is done.
    pub fn read(&mut self, now: Duration, place: Place, bytes: u64) -> Duration {
        self.catch_up(now);
        if self.is_cached(place.0, bytes) {
            return self.over_interface(now, bytes);
        }
        let start = now.max(self.head_free);
        let streaming = place.0 == self.head && start == self.head_free;
        let reach = if place.0 == self.head || streaming {
            // The drive reads ahead: what follows the last read is in its buffer or under the head.
            Duration::ZERO
        } else {
            self.position_first(place.0)
        };
        self.move_head(place.0, bytes);
        self.head_free = start + reach + transfer(bytes, self.figures.head_bytes_per_s);
        self.head_free
    }

    /// When a write that arrives now is in the cache.
    pub fn write(&mut self, now: Duration, place: Place, bytes: u64) -> Duration {
        self.catch_up(now);
        let mut ready = now;
        let mut first = self.head_free < now;
        while self.dirty_bytes + bytes > self.figures.cache_bytes {
            match self.write_out_one(self.head_free.max(now), first) {
                Some(done) => {
                    self.head_free = done;
                    ready = done;
                }
                None => break,
            }
            first = false;
        }
        self.remember(place.0, bytes);
        self.over_interface(ready, bytes)
    }

    /// When a flush that arrives now is done.
    pub fn flush(&mut self, now: Duration) -> Duration {
        self.catch_up(now);
        let mut at = now.max(self.head_free).max(self.interface_free);
        let mut first = true;
        while let Some(done) = self.write_out_one(at, first) {
            at = done;
            first = false;
        }
        self.head_free = at;
        at + COMMAND
    }
}
