//! **Flash** behind a volatile cache, without power-loss protection: reads are sensed by so many dies at a time, writes are in the
//! cache after their time, which is programmed in the background; a flush costs its time and what is left to program.
//!
//! | model | read | write | flush | interface | programs | cache | dies |
//! |---|---|---|---|---|---|---|---|
//! | `ssd` (SATA) | 90 µs | 30 µs | 1 ms | 500 MB/s | 400 MB/s | 32 MiB | 4 |
//! | `nvme` | 75 µs | 12 µs | 250 µs | 2.5 GB/s | 1.2 GB/s | 64 MiB | 16 |
//! | `emmc` (no command queue) | 250 µs | 100 µs | 2 ms | 100 MB/s | 20 MB/s | 512 KiB | 1 |

use std::time::Duration;

use super::transfer;

/// The figures of a flash drive.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    read: Duration,
    write: Duration,
    flush: Duration,
    interface_bytes_per_s: u64,
    program_bytes_per_s: u64,
    cache_bytes: u64,
    dies: usize,
}

/// `ssd`
pub const SSD: Figures = Figures {
    read: Duration::from_micros(90),
    write: Duration::from_micros(30),
    flush: Duration::from_micros(1000),
    interface_bytes_per_s: 500_000_000,
    program_bytes_per_s: 400_000_000,
    cache_bytes: 32 << 20,
    dies: 4,
};

/// `emmc`
pub const EMMC: Figures = Figures {
    read: Duration::from_micros(250),
    write: Duration::from_micros(100),
    flush: Duration::from_micros(2000),
    interface_bytes_per_s: 100_000_000,
    program_bytes_per_s: 20_000_000,
    cache_bytes: 512 << 10,
    dies: 1,
};

/// `nvme`
pub const NVME: Figures = Figures {
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
pub struct Flash {
    figures: Figures,
    dies_free: Vec<Duration>,
    interface_free: Duration,
    /// When everything that is in the cache now will have been programmed.
    programmed: Duration,
}

impl Flash {
    /// At rest.
    pub fn new(figures: Figures, now: Duration) -> Flash {
        Flash { figures, dies_free: vec![now; figures.dies], interface_free: now, programmed: now }
    }

    fn over_interface(&mut self, from: Duration, bytes: u64) -> Duration {
        self.interface_free =
            from.max(self.interface_free) + transfer(bytes, self.figures.interface_bytes_per_s);
        self.interface_free
    }

    /// When a read that arrives now is done.
    pub fn read(&mut self, now: Duration, bytes: u64) -> Duration {
        let Some(die) = self.dies_free.iter_mut().min() else { return now };
        let sensed = now.max(*die) + self.figures.read;
        *die = sensed;
        self.over_interface(sensed, bytes)
    }

    /// When a write that arrives now is in the cache.
    pub fn write(&mut self, now: Duration, bytes: u64) -> Duration {
        let programming = transfer(bytes, self.figures.program_bytes_per_s);
        self.programmed = self.programmed.max(now) + programming;
        // The cache is full when more is waiting than it holds: then the writer waits for the flash.
        let holds = transfer(self.figures.cache_bytes, self.figures.program_bytes_per_s);
        let room = self.programmed.checked_sub(holds).unwrap_or(now).max(now);
        self.over_interface(room, bytes) + self.figures.write
    }

    /// When a flush that arrives now is done.
    pub fn flush(&mut self, now: Duration) -> Duration {
        self.programmed.max(now).max(self.interface_free) + self.figures.flush
    }
}
