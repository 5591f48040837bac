//! The command line of `afterimage serve`.

use std::path::PathBuf;

use super::disk_spec::DiskSpec;

/// Serve one guest's disks to a VMM over vhost-user-blk
///
/// Runs in the foreground until SIGTERM, SIGINT, `ctl stop` or (without `keep`) SIGHUP. It then writes everything back and
/// syncs it.
///
/// --survives chooses what an acknowledged guest flush survives:
///
/// power: everything, a power cut included. This is the default.
///
/// power-window=50ms: death of guest, VMM and daemon. A power cut loses at most the last 50 ms of acknowledgements. It
/// leaves an exact prefix of the guest's history: nothing reordered, nothing torn. A write larger than 4 MiB, or than an
/// eighth of the log, counts as several.
///
/// guest-crash: death of guest, VMM and daemon. After a power cut the disk is undefined.
///
/// --journal retain keeps an ext4 journal in host memory that outlives guest, VMM and daemon. Committed blocks are written
/// back. Full data journaling then needs no journal writes.
///
/// All disks of one process form one consistency group, ordered against each other across a power cut.
/// Disks of different processes are not ordered.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Disk to serve; may be repeated. Keys: socket=PATH (default: FILE.sock), fd=N, read-only, serial=TEXT,
    /// direct=on|off|auto (O_DIRECT), format=raw (no format probing)
    #[arg(long, value_name = "FILE[,KEY=VALUE]...")]
    pub disk: Vec<DiskSpec>,
    /// Contract of an acknowledged flush: power, power-window=TIME (as in 50ms; 1ms to 60s) or guest-crash [default: power]
    #[arg(long, value_name = "CONTRACT")]
    pub survives: Option<String>,
    /// QEMU's cache modes in our terms: writeback, none = power with a write cache (none: O_DIRECT);
    /// writethrough, directsync = power without a write cache; unsafe = guest-crash
    #[arg(long, value_name = "MODE")]
    pub cache: Option<String>,
    /// Queues per disk, each with a thread of its own [default: 1]
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,
    /// Microseconds for which a queue polls before it sleeps, at most 1000. Trades processor time for latency
    #[arg(long, value_name = "MICROSECONDS")]
    pub spin_us: Option<u32>,
    /// Largest size of power-window's redo log. A full log slows writes down [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub log_max: Option<String>,
    /// Redo log path. With other contracts: an old redo log to apply first [default: FILE.aflog beside the first image]
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// Guest ext4 journals: passthrough, or retain (host memory only; needs guest-crash or power-window)
    /// [default: passthrough]
    #[arg(long, value_name = "MODE")]
    pub journal: Option<String>,
    /// Memory for retained journals, all disks together [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub retain_max: Option<String>,
    /// Folder for retained journals, on a tmpfs: it outlives the daemon [default: /dev/shm]
    #[arg(long, value_name = "FOLDER")]
    pub arena: Option<PathBuf>,
    /// Start although retained journals are lost, or the image was changed since. Commits that were not written back are
    /// lost
    #[arg(long)]
    pub accept_loss: bool,
    /// Make everything durable whenever the guest truncates its journal (vDrive's vflush; slower)
    #[arg(long)]
    pub vflush_at_truncation: bool,
    /// First recover each ext4 that a guest with iJournaling did not unmount. Use it only if that guest is gone: a guest
    /// that reconnects does not expect the changes
    #[arg(long)]
    pub recover_ijournal: bool,
    /// Read settings from a TOML file; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen for `afterimage ctl` on this Unix socket, for this user only
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve a control disk on this Unix socket. Through this second device guest programs order, flush and wait for
    /// durability (afterimage-guest)
    #[arg(long, value_name = "SOCKET")]
    pub control_disk: Option<PathBuf>,
    /// Serve Prometheus metrics on this address, as in 127.0.0.1:9150
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Trace requests to images and redo log into this new file (*.zst: compressed; %p: process id).
    /// `afterimage flash` and `afterimage trace` read it
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Sandbox with landlock and seccomp after start-up: auto (as the kernel supports), off, or require
    #[arg(long, value_name = "MODE")]
    pub sandbox: Option<String>,
    /// Announce readiness as one JSON line
    #[arg(long)]
    pub json: bool,
    /// QEMU's convention: the image of a single disk
    #[arg(long, value_name = "FILE", help_heading = "Backend program conventions of QEMU (one disk)")]
    pub blk_file: Option<PathBuf>,
    /// QEMU's convention: the socket of a single disk
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with = "fd",
        help_heading = "Backend program conventions of QEMU (one disk)"
    )]
    pub socket_path: Option<PathBuf>,
    /// QEMU's convention: an inherited socket, listening or connected. With a connected one, `serve` ends when the
    /// guest disconnects
    #[arg(long, value_name = "FDNUM", help_heading = "Backend program conventions of QEMU (one disk)")]
    pub fd: Option<i32>,
    /// QEMU's convention: refuse writes (to every disk)
    #[arg(long, help_heading = "Backend program conventions of QEMU (one disk)")]
    pub read_only: bool,
    /// QEMU's convention: print capabilities as JSON and exit
    #[arg(long, help_heading = "Backend program conventions of QEMU (one disk)")]
    pub print_capabilities: bool,
    /// What `keep` asks before a hand-over: whether a daemon could be started with these options
    #[arg(long, hide = true)]
    pub check_options: bool,
}

const EXAMPLES: &str = "\
Examples:
  One disk, as safe as QEMU's cache=writeback:
    afterimage serve --disk disk.img,socket=/tmp/disk.sock

  Two disks of one guest, with at most 50 ms of acknowledgements at risk:
    afterimage serve --survives power-window=50ms --control /tmp/ctl.sock \\
      --disk root.img,socket=/tmp/root.sock --disk journal.img,socket=/tmp/journal.sock

  Full data journaling without journal writes, for a guest whose ext4 is mounted with data=journal:
    afterimage serve --survives guest-crash --journal retain --disk disk.img,socket=/tmp/disk.sock

  With a trace of storage requests, for `afterimage flash`:
    afterimage serve --trace disk.trace.zst --disk disk.img,socket=/tmp/disk.sock

  With QEMU's conventions:
    afterimage serve --blk-file disk.img --socket-path /tmp/disk.sock

  With a configuration file and metrics:
    afterimage serve --config /etc/afterimage/guest.toml --metrics 127.0.0.1:9150";

/// How a setting is called in messages: as the command line spells it, or as the configuration file does.
pub fn place(args: &Args, flag: &str, from_args: bool) -> String {
    match &args.config {
        Some(path) if !from_args => format!("{}, {}", path.display(), flag.trim_start_matches('-')),
        _ => flag.to_owned(),
    }
}

/// The command line's word before the file's, and whether it was the command line's.
pub(super) fn pick<'a>(args: &'a Option<String>, config: &'a Option<String>) -> Option<(&'a str, bool)> {
    args.as_deref().map(|text| (text, true)).or(config.as_deref().map(|text| (text, false)))
}
