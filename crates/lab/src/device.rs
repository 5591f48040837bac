//! How long a request takes on the modelled device, without a clock: times are given and answered as distances from any origin, so
//! that the FUSE lab asks in real time ([`crate::powerfs`]) and guests in virtual time ask in theirs.
//!
//! A model answers, for a request that arrives now, when it is done. All requests share one device, in the order in which they are
//! asked about; nothing burns a processor, and nothing depends on the machine but how exactly a caller keeps the time. (Sleeping is
//! about 60 µs late on Linux, so the figures of fast models are coarse in real time.)
//!
//! The models are `disk`, `flash`, and **`none`**, which takes no time at all. The figures of `hdd15k` are the paper's; the
//! others are typical of such drives' data sheets, and none is a drive that was measured.
//!
//! The time model's cache and the power model's are apart on purpose: what the drive has written out in time
//! is still volatile to a cut until it is synced, because no drive promises otherwise.
//!
//! A file's place on the device is its number and its offset: files are far apart, a file is in one piece.
//! The model has no metadata of its own: for the cost of a host file system's journal, put a real one into
//! a loop-mounted image on it.

use std::time::Duration;

mod disk;
mod flash;

use disk::Disk;
use flash::Flash;

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
            ModelName::Hdd15k => Kind::Disk(Disk::new(disk::HDD_15K, now)),
            ModelName::Hdd10k => Kind::Disk(Disk::new(disk::HDD_10K, now)),
            ModelName::Hdd7200 => Kind::Disk(Disk::new(disk::HDD_7200, now)),
            ModelName::Ssd => Kind::Flash(Flash::new(flash::SSD, now)),
            ModelName::Nvme => Kind::Flash(Flash::new(flash::NVME, now)),
            ModelName::Emmc => Kind::Flash(Flash::new(flash::EMMC, now)),
        };
        Model { kind, work: Work::default() }
    }

    /// What it was asked so far.
    pub fn work(&self) -> Work {
        let seeks = if let Kind::Disk(disk) = &self.kind { disk.seeks() } else { 0 };
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

/// How long so many bytes take at a rate.
fn transfer(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / bytes_per_s)
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
