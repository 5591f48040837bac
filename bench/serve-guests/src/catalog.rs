//! What is measured: workloads × devices × rows, and what the paper says about each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A workload inside the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// filebench's mail server.
    Varmail,
    /// sysbench's OLTP transactions on MariaDB.
    Oltp,
    /// Random 4 KiB writes, an fsync every 1000.
    Randwrite,
    /// Sequential 4 KiB writes, an fsync every 1000.
    Seqwrite,
    /// filebench's file server.
    Fileserver,
    /// filebench's web server.
    Webserver,
    /// SQLite transactions of one insert each.
    Sqlite,
    /// postmark, with a sync at its end.
    Postmark,
    /// 4 KiB appends, an fsync after each.
    Fsync4k,
}

impl Workload {
    /// All, in the order of the tables (the paper's first).
    pub const ALL: [Workload; 9] = [
        Workload::Varmail,
        Workload::Oltp,
        Workload::Randwrite,
        Workload::Seqwrite,
        Workload::Fileserver,
        Workload::Webserver,
        Workload::Sqlite,
        Workload::Postmark,
        Workload::Fsync4k,
    ];

    /// The name on the command line and in the results.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Varmail => "varmail",
            Workload::Oltp => "oltp",
            Workload::Randwrite => "randwrite",
            Workload::Seqwrite => "seqwrite",
            Workload::Fileserver => "fileserver",
            Workload::Webserver => "webserver",
            Workload::Sqlite => "sqlite",
            Workload::Postmark => "postmark",
            Workload::Fsync4k => "fsync4k",
        }
    }

    /// What one operation is.
    pub fn unit(self) -> &'static str {
        match self {
            Workload::Varmail | Workload::Fileserver | Workload::Webserver => "filebench operations",
            Workload::Oltp | Workload::Sqlite | Workload::Postmark => "transactions",
            Workload::Randwrite | Workload::Seqwrite | Workload::Fsync4k => "writes",
        }
    }

    /// Whether its files are in the guest's page cache when it begins. filebench makes its files just before it
    /// runs, so they are; the web server, which is about reading (the paper: "bound by the random read performance
    /// of the virtual disk"), starts cold here.
    pub fn starts_warm(self) -> bool {
        matches!(self, Workload::Varmail | Workload::Fileserver)
    }

    /// Whether its speed is that of fsync, so that the target against no-flush is for it.
    pub fn is_fsync_bound(self) -> bool {
        !matches!(self, Workload::Fileserver | Workload::Webserver | Workload::Postmark)
    }

    /// What vDrive measured on its 10,000 rpm disk (Fig. 6 and § 6.2; ranges are over its four write-intensive
    /// workloads, since the bars' own values are in the figure only).
    pub fn paper(self) -> &'static str {
        match self {
            Workload::Varmail => "vDrive 1.47–2.42× nested, 0.05–0.78× of no flushes; unsafe up to 3.5× the other modes (Fig. 3)",
            Workload::Oltp => "vDrive 1.47–2.42× nested, 0.05–0.78× of no flushes",
            Workload::Randwrite | Workload::Seqwrite => {
                "vDrive 1.47–2.42× nested, 0.05–0.78× of no flushes; no flushes 10–28× nested"
            }
            Workload::Fileserver | Workload::Webserver => "journaling and flushes cost 8–11 %",
            Workload::Sqlite | Workload::Postmark | Workload::Fsync4k => "not measured by the paper",
        }
    }
}

/// What holds the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// The lab's model of a 15,000 rpm disk, images and logs directly on it.
    Hdd15k,
    /// The same model below an ext4 of the host's, on which images and logs lie: the paper's setting.
    #[value(name = "hdd15k-ext4")]
    #[serde(rename = "hdd15k-ext4")]
    Hdd15kExt4,
    /// The lab's model of a SATA solid-state drive.
    Ssd,
    /// This machine's own disk, no model.
    Disk,
}

impl Device {
    /// All.
    pub const ALL: [Device; 4] = [Device::Hdd15k, Device::Hdd15kExt4, Device::Ssd, Device::Disk];

    /// The name on the command line and in the results.
    pub fn name(self) -> &'static str {
        match self {
            Device::Hdd15k => "hdd15k",
            Device::Hdd15kExt4 => "hdd15k-ext4",
            Device::Ssd => "ssd",
            Device::Disk => "disk",
        }
    }

    /// Whether the row means something here: where every image lies on the host's ext4, `writeback` is `nested`.
    pub fn has(self, row: Row) -> bool {
        !(self == Device::Hdd15kExt4 && row == Row::Nested)
    }

    /// The row that is nested journaling here.
    pub fn nested_row(self) -> Row {
        if self == Device::Hdd15kExt4 {
            Row::Writeback
        } else {
            Row::Nested
        }
    }

    /// What it is, for a heading.
    pub fn description(self) -> &'static str {
        match self {
            Device::Hdd15k => {
                "`hdd15k`: a model (4 ms seek, 2 ms rotation, 63 MB/s, 16 MiB volatile cache) in the lab's FUSE file system"
            }
            Device::Hdd15kExt4 => {
                "`hdd15k-ext4`: the same model below a loop-mounted ext4 of the host's, on which images and logs lie; \
                 its `writeback` row is nested journaling"
            }
            Device::Ssd => {
                "`ssd`: a model (SATA, 90 µs read, 30 µs cached write, 400 MB/s, 1 ms a flush) in the lab's FUSE file system"
            }
            Device::Disk => "`disk`: the machine's own disk and file system, no model",
        }
    }
}

/// Who serves the image, and with which promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// qemu-storage-daemon, writeback; the image lies on a loop-mounted ext4 that lies on the device.
    Nested,
    /// qemu-storage-daemon, writeback: every guest flush is a sync.
    Writeback,
    /// qemu-storage-daemon, flushes ignored.
    NoFlush,
    /// Afterimage, `power`.
    Power,
    /// Afterimage, `power-window=50ms`.
    Window,
    /// Afterimage, `power-window=50ms`, with a log so small that it is full all the time.
    WindowFull,
    /// Afterimage, `guest-crash`.
    GuestCrash,
}

impl Row {
    /// All, baselines first.
    pub const ALL: [Row; 7] = [
        Row::Nested,
        Row::Writeback,
        Row::NoFlush,
        Row::Power,
        Row::Window,
        Row::WindowFull,
        Row::GuestCrash,
    ];

    /// The name on the command line and in the results.
    pub fn name(self) -> &'static str {
        match self {
            Row::Nested => "nested",
            Row::Writeback => "writeback",
            Row::NoFlush => "no-flush",
            Row::Power => "power",
            Row::Window => "window",
            Row::WindowFull => "window-full",
            Row::GuestCrash => "guest-crash",
        }
    }

    /// The name in the tables.
    pub fn title(self) -> &'static str {
        match self {
            Row::Nested => "nested journaling (qsd)",
            Row::Writeback => "qsd writeback",
            Row::NoFlush => "qsd no-flush",
            Row::Power => "power",
            Row::Window => "power-window=50ms",
            Row::WindowFull => "power-window=50ms, log full",
            Row::GuestCrash => "guest-crash",
        }
    }

    /// Whether this is one of ours.
    pub fn is_ours(self) -> bool {
        !matches!(self, Row::Nested | Row::Writeback | Row::NoFlush)
    }
}
