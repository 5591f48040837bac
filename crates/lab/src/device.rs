//! How long a request takes on the modelled device, without a clock: times are given and answered as distances from any origin, so
//! that the FUSE lab asks in real time ([`crate::powerfs`]) and guests in virtual time ask in theirs.
//!
//! A model answers, for a request that arrives now, when it is done. All requests share one device, in the order in which they are
//! asked about; nothing burns a processor, and nothing depends on the machine but how exactly a caller keeps the time. (Sleeping is
//! about 60 µs late on Linux, so the figures of fast models are coarse in real time.)
//!
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
//!
//! **Flash** behind a volatile cache, without power-loss protection: reads are sensed by so many dies at a time, writes are in the
//! cache after their time, which is programmed in the background; a flush costs its time and what is left to program.
//!
//! | model | read | write | flush | interface | programs | cache | dies |
//! |---|---|---|---|---|---|---|---|
//! | `ssd` (SATA) | 90 µs | 30 µs | 1 ms | 500 MB/s | 400 MB/s | 32 MiB | 4 |
//! | `nvme` | 75 µs | 12 µs | 250 µs | 2.5 GB/s | 1.2 GB/s | 64 MiB | 16 |
//! | `emmc` (no command queue) | 250 µs | 100 µs | 2 ms | 100 MB/s | 20 MB/s | 512 KiB | 1 |
//!
//! **`none`**: no time at all. The figures of `hdd15k` are the paper's; the others are typical of such drives' data sheets, and
//! none is a drive that was measured.
//!
//! The time model's cache and the power model's are apart on purpose: what the drive has written out in time
//! is still volatile to a cut until it is synced, because no drive promises otherwise.
//!
//! A file's place on the device is its number and its offset: files are far apart, a file is in one piece.
//! The model has no metadata of its own: for the cost of a host file system's journal, put a real one into
//! a loop-mounted image on it.

use std::collections::BTreeMap;
use std::time::Duration;

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    /// A 15,000 rpm disk: VMA's.
    Hdd15k,
    /// A 10,000 rpm disk.
    Hdd10k,
    /// A 7,200 rpm disk.
    Hdd7200,
    /// A SATA solid-state drive without power-loss protection.
    Ssd,
    /// An NVMe drive without power-loss protection.
    Nvme,
    /// Flash behind an eMMC controller.
    Emmc,
    /// No delay.
    None,
}

impl ModelName {
    /// The name as the command line takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            ModelName::Hdd15k => "hdd15k",
            ModelName::Hdd10k => "hdd10k",
            ModelName::Hdd7200 => "hdd7200",
            ModelName::Ssd => "ssd",
            ModelName::Nvme => "nvme",
            ModelName::Emmc => "emmc",
            ModelName::None => "none",
        }
    }
}

/// A place on the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

impl Place {
    /// The place of a file's byte. Files are a tebibyte apart.
    pub fn of(file: u64, offset: u64) -> Place {
        Place((file << 40).wrapping_add(offset))
    }
}

/// What a device was asked, and what its head did for it, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Read requests.
    pub reads: u64,
    /// And their bytes.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// And their bytes.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Times that the head was moved, for a read or to write the cache out; 0 where there is none.
    pub seeks: u64,
}

/// A device's state in time.
#[derive(Debug)]
pub struct Model {
    kind: Kind,
    work: Work,
}

#[derive(Debug)]
enum Kind {
    /// Immediate.
    None,
    /// One head.
    Disk(Disk),
    /// Behind a cache.
    Flash(Flash),
}

impl Model {
    /// A device at rest.
    pub fn new(name: ModelName, now: Duration) -> Model {
        let kind = match name {
            ModelName::None => Kind::None,
            ModelName::Hdd15k => Kind::Disk(Disk::new(HDD_15K, now)),
            ModelName::Hdd10k => Kind::Disk(Disk::new(HDD_10K, now)),
            ModelName::Hdd7200 => Kind::Disk(Disk::new(HDD_7200, now)),
            ModelName::Ssd => Kind::Flash(Flash::new(SSD, now)),
            ModelName::Nvme => Kind::Flash(Flash::new(NVME, now)),
            ModelName::Emmc => Kind::Flash(Flash::new(EMMC, now)),
        };
        Model { kind, work: Work::default() }
    }

    /// What it was asked so far.
    pub fn work(&self) -> Work {
        let seeks = if let Kind::Disk(disk) = &self.kind { disk.seeks } else { 0 };
        Work { seeks, ..self.work }
    }

    /// When a read that arrives now is done.
    pub fn read(&mut self, now: Duration, place: Place, bytes: u64) -> Duration {
        self.work.reads += 1;
        self.work.read_bytes += bytes;
        match &mut self.kind {
            Kind::None => now,
            Kind::Disk(disk) => disk.read(now, place, bytes),
            Kind::Flash(flash) => flash.read(now, bytes),
        }
    }

    /// When a write that arrives now is in the device's cache.
    pub fn write(&mut self, now: Duration, place: Place, bytes: u64) -> Duration {
        self.work.writes += 1;
        self.work.write_bytes += bytes;
        match &mut self.kind {
            Kind::None => now,
            Kind::Disk(disk) => disk.write(now, place, bytes),
            Kind::Flash(flash) => flash.write(now, bytes),
        }
    }

    /// When a flush that arrives now is done.
    pub fn flush(&mut self, now: Duration) -> Duration {
        self.work.flushes += 1;
        match &mut self.kind {
            Kind::None => now,
            Kind::Disk(disk) => disk.flush(now),
            Kind::Flash(flash) => flash.flush(now),
        }
    }
}

/// The figures of a disk.
#[derive(Clone, Copy, Debug)]
struct DiskFigures {
    seek: Duration,
    rotation: Duration,
    head_bytes_per_s: u64,
    cache_bytes: u64,
}

const HDD_15K: DiskFigures = DiskFigures {
    seek: Duration::from_millis(4),
    rotation: Duration::from_millis(2),
    head_bytes_per_s: 63_000_000,
    cache_bytes: 16 << 20,
};

const HDD_10K: DiskFigures = DiskFigures {
    seek: Duration::from_millis(4),
    rotation: Duration::from_millis(3),
    head_bytes_per_s: 90_000_000,
    cache_bytes: 16 << 20,
};

const HDD_7200: DiskFigures = DiskFigures {
    seek: Duration::from_micros(8500),
    rotation: Duration::from_micros(4200),
    head_bytes_per_s: 110_000_000,
    cache_bytes: 32 << 20,
};

const DISK_INTERFACE_BYTES_PER_S: u64 = 300_000_000;
const DISK_COMMAND: Duration = Duration::from_micros(50);
const IDLE: Duration = Duration::from_millis(5);

fn transfer(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / bytes_per_s)
}

/// A disk with one head.
#[derive(Debug)]
struct Disk {
    figures: DiskFigures,
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
    fn new(figures: DiskFigures, now: Duration) -> Disk {
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
        self.interface_free = start + DISK_COMMAND + transfer(bytes, DISK_INTERFACE_BYTES_PER_S);
        self.interface_free
    }

    fn read(&mut self, now: Duration, place: Place, bytes: u64) -> Duration {
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

    fn write(&mut self, now: Duration, place: Place, bytes: u64) -> Duration {
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

    fn flush(&mut self, now: Duration) -> Duration {
        self.catch_up(now);
        let mut at = now.max(self.head_free).max(self.interface_free);
        let mut first = true;
        while let Some(done) = self.write_out_one(at, first) {
            at = done;
            first = false;
        }
        self.head_free = at;
        at + DISK_COMMAND
    }
}

/// The figures of a flash drive.
#[derive(Clone, Copy, Debug)]
struct FlashFigures {
    read: Duration,
    write: Duration,
    flush: Duration,
    interface_bytes_per_s: u64,
    program_bytes_per_s: u64,
    cache_bytes: u64,
    dies: usize,
}

const SSD: FlashFigures = FlashFigures {
    read: Duration::from_micros(90),
    write: Duration::from_micros(30),
    flush: Duration::from_micros(1000),
    interface_bytes_per_s: 500_000_000,
    program_bytes_per_s: 400_000_000,
    cache_bytes: 32 << 20,
    dies: 4,
};

const EMMC: FlashFigures = FlashFigures {
    read: Duration::from_micros(250),
    write: Duration::from_micros(100),
    flush: Duration::from_micros(2000),
    interface_bytes_per_s: 100_000_000,
    program_bytes_per_s: 20_000_000,
    cache_bytes: 512 << 10,
    dies: 1,
};

const NVME: FlashFigures = FlashFigures {
    read: Duration::from_micros(75),
    write: Duration::from_micros(12),
    flush: Duration::from_micros(250),
    interface_bytes_per_s: 2_500_000_000,
    program_bytes_per_s: 1_200_000_000,
    cache_bytes: 64 << 20,
    dies: 16,
};

/// Flash behind a volatile cache.
#[derive(Debug)]
struct Flash {
    figures: FlashFigures,
    dies_free: Vec<Duration>,
    interface_free: Duration,
    /// When everything that is in the cache now will have been programmed.
    programmed: Duration,
}

impl Flash {
    fn new(figures: FlashFigures, now: Duration) -> Flash {
        Flash { figures, dies_free: vec![now; figures.dies], interface_free: now, programmed: now }
    }

    fn over_interface(&mut self, from: Duration, bytes: u64) -> Duration {
        self.interface_free =
            from.max(self.interface_free) + transfer(bytes, self.figures.interface_bytes_per_s);
        self.interface_free
    }

    fn read(&mut self, now: Duration, bytes: u64) -> Duration {
        let Some(die) = self.dies_free.iter_mut().min() else { return now };
        let sensed = now.max(*die) + self.figures.read;
        *die = sensed;
        self.over_interface(sensed, bytes)
    }

    fn write(&mut self, now: Duration, bytes: u64) -> Duration {
        let programming = transfer(bytes, self.figures.program_bytes_per_s);
        self.programmed = self.programmed.max(now) + programming;
        // The cache is full when more is waiting than it holds: then the writer waits for the flash.
        let holds = transfer(self.figures.cache_bytes, self.figures.program_bytes_per_s);
        let room = self.programmed.checked_sub(holds).unwrap_or(now).max(now);
        self.over_interface(room, bytes) + self.figures.write
    }

    fn flush(&mut self, now: Duration) -> Duration {
        self.programmed.max(now).max(self.interface_free) + self.figures.flush
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(from: Duration, to: Duration) -> f64 {
        (to - from).as_secs_f64() * 1e3
    }

    #[test]
    fn a_disks_random_read_costs_seek_and_rotation() {
        let start = Duration::from_secs(7);
        let mut model = Model::new(ModelName::Hdd15k, start);
        let done = model.read(start, Place::of(3, 1 << 30), 4096);
        assert!((6.0..6.2).contains(&ms(start, done)), "{}", ms(start, done));
        let next = model.read(done, Place::of(3, (1 << 30) + 4096), 1 << 20);
        assert!((16.0..17.0).contains(&ms(done, next)), "a megabyte at 63 MB/s: {}", ms(done, next));
    }

    #[test]
    fn a_disks_flush_pays_for_what_the_cache_took() {
        let start = Duration::from_secs(7);
        let mut model = Model::new(ModelName::Hdd15k, start);
        let mut now = start;
        for index in 0..10 {
            now = model.write(now, Place::of(2, index * (100 << 20)), 4096);
        }
        assert!(ms(start, now) < 2.0, "ten cached writes: {}", ms(start, now));
        let done = model.flush(now);
        assert!((58.0..64.0).contains(&ms(now, done)), "ten seeks: {}", ms(now, done));
        let again = model.flush(done);
        assert!(ms(done, again) < 1.0, "nothing left: {}", ms(done, again));
        let work = Work { writes: 10, write_bytes: 40960, flushes: 2, seeks: 10, ..Work::default() };
        assert_eq!(model.work(), work);
    }

    #[test]
    fn the_elevator_makes_neighbours_cheap() {
        let start = Duration::from_secs(7);
        let mut model = Model::new(ModelName::Hdd15k, start);
        let mut now = start;
        for index in [5, 1, 4, 2, 3, 0] {
            now = model.write(now, Place::of(2, index * 8192), 4096);
        }
        let done = model.flush(now);
        assert!(ms(now, done) < 8.0, "one seek for all: {}", ms(now, done));
    }

    #[test]
    fn a_full_cache_slows_the_writer_to_the_media() {
        let start = Duration::from_secs(7);
        for (name, bytes_per_s) in [
            (ModelName::Hdd15k, 63e6),
            (ModelName::Ssd, 400e6),
            (ModelName::Nvme, 1200e6),
            (ModelName::Emmc, 20e6),
        ] {
            let mut model = Model::new(name, start);
            let mut now = start;
            let total = 512 << 20;
            for index in 0..512 {
                now = model.write(now, Place::of(2, index << 20), 1 << 20);
            }
            now = model.flush(now);
            let rate = f64::from(total) / (now - start).as_secs_f64();
            assert!((0.85..1.05).contains(&(rate / bytes_per_s)), "{name:?}: {rate}");
        }
    }

    #[test]
    fn an_idle_disk_empties_its_cache() {
        let start = Duration::from_secs(7);
        let mut model = Model::new(ModelName::Hdd15k, start);
        let now = model.write(start, Place::of(2, 1 << 30), 4096);
        let later = now + Duration::from_millis(100);
        let done = model.flush(later);
        assert!(ms(later, done) < 1.0, "{}", ms(later, done));
    }
}
