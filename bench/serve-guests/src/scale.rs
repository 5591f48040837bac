//! How large each workload is: the paper's sizes, scaled to a guest of a few hundred mebibytes.

use serde::{Deserialize, Serialize};

use crate::catalog::Workload;

/// Bytes of the guest's disk. The paper's has 60 GB; the files that are touched matter, not this.
pub const DISK_BYTES: u64 = 1 << 30;
/// The same at the paper's sizes.
const PAPER_DISK_BYTES: u64 = 16 << 30;
/// `--log-max` of the row whose log is full all the time.
pub const LOG_FULL: &str = "16M";

/// Sizes and times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// `quick` or `full`: results of one scale are never mixed with the other's.
    pub name: String,
    /// The measured time of each cell, in seconds, where a workload runs for a time.
    pub seconds: u64,
    /// varmail's files (filebench: 1000).
    pub varmail_files: u32,
    /// fileserver's files (filebench: 10 000).
    pub fileserver_files: u32,
    /// webserver's files (filebench: 1000).
    pub webserver_files: u32,
    /// Rows of sysbench's table (the paper: 1 000 000).
    pub oltp_rows: u32,
    /// The file of the random and sequential writes, in MiB (the paper: 10 GB).
    pub file_mib: u32,
    /// At most this many such writes (the paper: 200 000): what `power-window`'s default log holds.
    pub writes_max: u32,
    /// At most this many SQLite transactions and single fsyncs.
    pub transactions_max: u32,
    /// postmark's files at the start.
    pub postmark_files: u32,
    /// postmark's transactions.
    pub postmark_transactions: u32,
}

impl Scale {
    /// A quarter of an hour for one device.
    pub fn quick() -> Scale {
        Scale {
            name: "quick".to_owned(),
            seconds: 4,
            varmail_files: 800,
            fileserver_files: 300,
            webserver_files: 1000,
            oltp_rows: 20_000,
            file_mib: 96,
            writes_max: 20_000,
            transactions_max: 20_000,
            postmark_files: 2000,
            postmark_transactions: 4000,
        }
    }

    /// An hour or two for all devices.
    pub fn full() -> Scale {
        Scale {
            name: "full".to_owned(),
            seconds: 8,
            varmail_files: 1000,
            fileserver_files: 1000,
            webserver_files: 1000,
            oltp_rows: 100_000,
            file_mib: 256,
            writes_max: 40_000,
            transactions_max: 40_000,
            postmark_files: 4000,
            postmark_transactions: 10_000,
        }
    }

    /// The paper's sizes (§ 6.1; filebench's own for its personalities), for virtual time.
    pub fn paper() -> Scale {
        Scale {
            name: "paper".to_owned(),
            seconds: 60,
            varmail_files: 1000,
            fileserver_files: 10_000,
            webserver_files: 1000,
            oltp_rows: 1_000_000,
            file_mib: 10 << 10,
            writes_max: 200_000,
            transactions_max: 40_000,
            postmark_files: 4000,
            postmark_transactions: 10_000,
        }
    }

    /// Whether these are the paper's sizes.
    pub fn is_paper(&self) -> bool {
        self.name == "paper"
    }

    /// The guest's disk.
    pub fn disk_bytes(&self) -> u64 {
        if self.is_paper() {
            PAPER_DISK_BYTES
        } else {
            DISK_BYTES
        }
    }

    /// The guest's memory, in MiB: small, so that files do not simply stay in it.
    pub fn memory_mib(&self, workload: Workload) -> u32 {
        match workload {
            Workload::Oltp | Workload::Fileserver if self.is_paper() => 512,
            Workload::Oltp => 384,
            Workload::Postmark => 128,
            Workload::Fileserver => 192,
            _ => 256,
        }
    }
}
