//! The arms of the paper's figures: who serves the image, on which host, to which guest.
//!
//! Peers are models here: of a plain backend that honours flushes (or does not) on a modelled ext4 of the host's, as QEMU's cache modes
//! do (crates/virtual-time/src/host_fs.rs). Ours are our own layers, on the same host.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// A peer, writeback; guest and host flush: the paper's *nested*, and its default.
    Nested,
    /// The same, with a host that never flushes the device's cache: the paper's *guest* (Fig. 6).
    Guest,
    /// The same, with a guest that never flushes (`nobarrier`): the paper's *host* (Fig. 4).
    Host,
    /// Neither flushes: the paper's *no* and *none*.
    Neither,
    /// A peer's `cache=none`: O_DIRECT, and a sync for each flush.
    CacheNone,
    /// A peer's `cache=writethrough`: the host's page cache, a sync for each write.
    Writethrough,
    /// A peer's `cache=directsync`: O_DIRECT, a sync for each write.
    Directsync,
    /// A peer's `cache=unsafe`: the host's page cache, flushes are ignored.
    Unsafe,
    /// Afterimage, `power`.
    Power,
    /// Afterimage, `power-window=50ms`.
    Window,
    /// The same with a log so small that it is full all the time.
    WindowFull,
    /// The same with a log of 4 GiB, which never is.
    WindowLarge,
    /// Afterimage, `guest-crash`.
    GuestCrash,
}

/// What an arm asks of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `--survives`; peers' are stood in for by the contract of which the requests to storage are the same.
    pub contract: &'static str,
    /// The image is opened with O_DIRECT.
    pub direct: bool,
    /// Each write is synced, and guests see no cache.
    pub write_through: bool,
    /// Below images and logs.
    pub host_fs: &'static str,
    /// The guest mounts with barriers.
    pub guest_flushes: bool,
    /// `--log-max` in bytes.
    pub log_bytes: u64,
}

impl Arm {
    /// All.
    #[cfg(test)]
    pub const ALL: [Arm; 13] = [
        Arm::Nested,
        Arm::Guest,
        Arm::Host,
        Arm::Neither,
        Arm::CacheNone,
        Arm::Writethrough,
        Arm::Directsync,
        Arm::Unsafe,
        Arm::Power,
        Arm::Window,
        Arm::WindowFull,
        Arm::WindowLarge,
        Arm::GuestCrash,
    ];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Nested => "nested",
            Arm::Guest => "guest",
            Arm::Host => "host",
            Arm::Neither => "neither",
            Arm::CacheNone => "cache-none",
            Arm::Writethrough => "writethrough",
            Arm::Directsync => "directsync",
            Arm::Unsafe => "unsafe",
            Arm::Power => "power",
            Arm::Window => "window",
            Arm::WindowFull => "window-full",
            Arm::WindowLarge => "window-large",
            Arm::GuestCrash => "guest-crash",
        }
    }

    /// The name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Arm::Nested => "peer model, writeback: nested",
            Arm::Guest => "peer model, host flush off (paper: guest)",
            Arm::Host => "peer model, guest flush off (paper: host)",
            Arm::Neither => "peer model, neither flushes (paper: none)",
            Arm::CacheNone => "peer model, none",
            Arm::Writethrough => "peer model, writethrough",
            Arm::Directsync => "peer model, directsync",
            Arm::Unsafe => "peer model, unsafe",
            Arm::Power => "power",
            Arm::Window => "power-window=50ms",
            Arm::WindowFull => "power-window=50ms, log full",
            Arm::WindowLarge => "power-window=50ms, log of 4 GiB",
            Arm::GuestCrash => "guest-crash",
        }
    }

    /// What it asks of a cell.
    pub fn shape(self) -> Shape {
        let writeback = Shape {
            contract: "power",
            direct: false,
            write_through: false,
            host_fs: "ordered",
            guest_flushes: true,
            log_bytes: 256 << 20,
        };
        match self {
            Arm::Nested => writeback,
            Arm::Guest => Shape { host_fs: "ordered-nobarrier", ..writeback },
            Arm::Host => Shape { guest_flushes: false, ..writeback },
            Arm::Neither => Shape { host_fs: "ordered-nobarrier", guest_flushes: false, ..writeback },
            Arm::CacheNone | Arm::Power => Shape { direct: true, ..writeback },
            Arm::Writethrough => Shape { write_through: true, ..writeback },
            Arm::Directsync => Shape { direct: true, write_through: true, ..writeback },
            Arm::Unsafe | Arm::GuestCrash => Shape { contract: "guest-crash", ..writeback },
            Arm::Window => Shape { contract: "power-window=50ms", ..writeback },
            Arm::WindowFull => Shape { contract: "power-window=50ms", log_bytes: 16 << 20, ..writeback },
            Arm::WindowLarge => Shape { contract: "power-window=50ms", log_bytes: 4 << 30, ..writeback },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_results() {
        for arm in Arm::ALL {
            assert_eq!(arm.to_possible_value().unwrap().get_name(), arm.name());
            assert_eq!(serde_json::to_string(&arm).unwrap(), format!("\"{}\"", arm.name()));
        }
    }

    // Of `cache=none` and `power`, and of `unsafe` and `guest-crash`, the requests to storage are the same.
    #[test]
    fn all_others_differ() {
        let shapes: Vec<_> = Arm::ALL.map(Arm::shape).to_vec();
        let same = |a: Arm, b: Arm| a != b && a.shape() == b.shape();
        let pairs = Arm::ALL.iter().flat_map(|a| Arm::ALL.iter().map(move |b| (*a, *b)));
        assert_eq!(pairs.filter(|(a, b)| same(*a, *b)).count(), 4, "{shapes:?}");
    }
}
