//! What runs in the guest, at the paper's sizes, and which cells make which figure.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::arm::Arm;
use crate::catalog::Workload;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// filebench's mail server.
    Varmail,
    /// sysbench's OLTP on MariaDB.
    Oltp,
    /// 200 K random writes over 10 GB, an fsync every 1000.
    Randwrite,
    /// The same, sequential.
    Seqwrite,
    /// filebench's file server.
    Fileserver,
    /// filebench's web server.
    Webserver,
    /// Fig. 3's random writes: the same without an fsync.
    RandwriteFree,
    /// Fig. 3's sequential writes.
    SeqwriteFree,
    /// Not the paper's: 1 GiB in a row; direct writes of 32 KiB, one after another, an fsync every 512 and at the end: by
    /// the charges 2 GB/s at most.
    Stream,
}

impl Work {
    /// All.
    #[cfg(test)]
    pub const ALL: [Work; 9] = [
        Work::Varmail,
        Work::Oltp,
        Work::Randwrite,
        Work::Seqwrite,
        Work::Fileserver,
        Work::Webserver,
        Work::RandwriteFree,
        Work::SeqwriteFree,
        Work::Stream,
    ];

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Work::RandwriteFree => "randwrite-free",
            Work::SeqwriteFree => "seqwrite-free",
            Work::Stream => "stream",
            other => other.workload().name(),
        }
    }

    /// Of the real-time benchmark.
    pub fn workload(self) -> Workload {
        match self {
            Work::Varmail => Workload::Varmail,
            Work::Oltp => Workload::Oltp,
            Work::Randwrite | Work::RandwriteFree => Workload::Randwrite,
            Work::Seqwrite | Work::SeqwriteFree | Work::Stream => Workload::Seqwrite,
            Work::Fileserver => Workload::Fileserver,
            Work::Webserver => Workload::Webserver,
        }
    }

    /// Whether its working set is in the host's page cache when it begins, and not in the guest's: the paper's host has 24 GB, and its file and web servers "get
    /// most of their requests hit in host caches".
    pub fn host_is_warm(self) -> bool {
        matches!(self, Work::Fileserver | Work::Webserver | Work::Oltp)
    }
}

/// A figure of the paper's, or ours beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// Cache modes.
    #[value(name = "3")]
    Three,
    /// Devices.
    #[value(name = "4")]
    Four,
    /// Applications.
    #[value(name = "6")]
    Six,
    /// Sequential streams, on every device.
    Streams,
}

/// The paper's disk in §§ 3 and 6.
pub const DISK: &str = "hdd10k";

impl Figure {
    /// All.
    pub const ALL: [Figure; 4] = [Figure::Three, Figure::Four, Figure::Six, Figure::Streams];

    /// Its workloads.
    pub fn works(self) -> &'static [Work] {
        match self {
            Figure::Three => &[Work::Varmail, Work::RandwriteFree, Work::SeqwriteFree],
            Figure::Four => &[Work::Varmail],
            Figure::Six => &[
                Work::Varmail,
                Work::Oltp,
                Work::Randwrite,
                Work::Seqwrite,
                Work::Fileserver,
                Work::Webserver,
            ],
            Figure::Streams => &[Work::Stream],
        }
    }

    /// Its devices.
    pub fn models(self) -> &'static [&'static str] {
        match self {
            Figure::Three | Figure::Six => &[DISK],
            Figure::Four => &["hdd7200", DISK, "nvme"],
            Figure::Streams => &["hdd15k", DISK, "hdd7200", "ssd", "nvme", "emmc"],
        }
    }

    /// Its arms, and ours beside.
    pub fn arms(self) -> &'static [Arm] {
        match self {
            Figure::Three => {
                &[Arm::Directsync, Arm::CacheNone, Arm::Writethrough, Arm::Nested, Arm::Unsafe, Arm::Window]
            }
            Figure::Four => &[Arm::Nested, Arm::Host, Arm::Neither, Arm::Window],
            Figure::Six => &[
                Arm::Nested,
                Arm::Guest,
                Arm::Host,
                Arm::Neither,
                Arm::Power,
                Arm::Window,
                Arm::WindowFull,
                Arm::GuestCrash,
            ],
            Figure::Streams => &[Arm::Nested, Arm::CacheNone, Arm::Power, Arm::Window, Arm::WindowLarge],
        }
    }

    /// What the paper says; bars without a number in the text are in its figure only.
    pub fn paper(self) -> &'static str {
        match self {
            Figure::Three => {
                "The paper (Fig. 3, § 3): on varmail all modes but unsafe alike, unsafe up to 3.5 times as fast; on random writes \
                 writeback like unsafe and above the others, none some 20 % above writethrough on both kinds of writes, directsync slowest."
            }
            Figure::Four => {
                "The paper (Fig. 4, § 3): without the guest's flushes nearly 5 times as fast on the 7,200 rpm disk, more than 3 times on \
                 the 10,000 rpm disk; without the host's as well another 8 %; less than 10 % in all on flash."
            }
            Figure::Six => {
                "The paper (Fig. 6, § 6.2), on varmail, MySQL, random and sequential writes: host flush off 1.15 to 1.56 times nested, \
                 vDrive 1.47 to 2.42 times, neither 10 to 28 times on the two kinds of writes, vDrive 22 to 95 % below neither; file and \
                 web server within 8 to 11 %."
            }
            Figure::Streams => {
                "Not in the paper: 1 GiB in a row, by direct writes, with an fsync every 16 MiB; a log of 4 GiB holds it, and it is written home later (the last column of the counts)."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_results() {
        for work in Work::ALL {
            assert_eq!(work.to_possible_value().unwrap().get_name(), work.name());
            assert_eq!(serde_json::to_string(&work).unwrap(), format!("\"{}\"", work.name()));
        }
    }
}
