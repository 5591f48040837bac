//! The command line of `afterimage serve`.

use std::path::PathBuf;

use super::disk_spec::DiskSpec;

/// Serve one guest's disks to a VMM over vhost-user-blk
///
/// Serves in the foreground until SIGTERM, SIGINT, SIGHUP (but under `keep`) or `ctl stop`; then everything is brought home
/// and synced.
///
/// What an acknowledged guest flush survives is chosen with --survives:
///
/// power: everything, power loss included; nothing acknowledged is lost. This is the default.
///
/// power-window=50ms: death of guest, VMM and daemon; a power cut loses at most the last 50 ms of acknowledgements and
/// leaves an exact prefix of the guest's history: nothing reordered, nothing torn (a write larger than 4 MiB, or an eighth
/// of the log, counts as several).
///
/// guest-crash: death of guest, VMM and daemon; after a power cut the disk is undefined.
///
/// With --journal retain, what an ext4 file system writes to its journal stays in host memory that outlives guest, VMM and
/// daemon, and what it commits is brought home: full data journaling without journal writes.
///
/// All disks of one process form one consistency group: they are ordered against each other, also by a power cut.
/// Disks of different processes are not.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A disk to serve; repeat it for more. Keys: socket=PATH (default: FILE.sock), fd=N, read-only,
    /// serial=TEXT, direct=on|off|auto (O_DIRECT), format=raw (whatever the content begins with)
    #[arg(long, value_name = "FILE[,KEY=VALUE]...")]
    pub disk: Vec<DiskSpec>,
    /// What an acknowledged flush survives: power, power-window=TIME (as in 50ms; 1ms to 60s) or guest-crash [default: power]
    #[arg(long, value_name = "CONTRACT")]
    pub survives: Option<String>,
    /// QEMU's cache modes in our terms: writeback, none = power with a write cache (none: O_DIRECT);
    /// writethrough, directsync = power without a write cache; unsafe = guest-crash
    #[arg(long, value_name = "MODE")]
    pub cache: Option<String>,
    /// Queues per disk, each with a thread of its own [default: 1]
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,
    /// Let each queue spin for this many microseconds, at most 1000, before it sleeps: lower latency where processors are to spare
    #[arg(long, value_name = "MICROSECONDS")]
    pub spin_us: Option<u32>,
    /// Bound of power-window's redo log; a full log slows writes down [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub log_max: Option<String>,
    /// Where power-window's redo log stands, or, under the others, one may be that it left and that is brought home first
    /// [default: FILE.aflog beside the first image]
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// What becomes of the guest's ext4 journals: passthrough, or retain (kept in host memory, never written to
    /// storage; needs guest-crash or power-window) [default: passthrough]
    #[arg(long, value_name = "MODE")]
    pub journal: Option<String>,
    /// Bound of the journal content that is retained, all disks together [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub retain_max: Option<String>,
    /// Folder for the memory that outlives the daemon, on a tmpfs [default: /dev/shm]
    #[arg(long, value_name = "FOLDER")]
    pub arena: Option<PathBuf>,
    /// Go on where retained journals are gone, or belong to the image as it was before somebody changed it: what the guest
    /// had committed and not written home is given up
    #[arg(long)]
    pub accept_loss: bool,
    /// Make everything durable whenever the guest truncates its journal (vDrive's vflush; slower)
    #[arg(long)]
    pub vflush_at_truncation: bool,
    /// Before anybody is served, recover each ext4 that a guest used with iJournaling and did not unmount. Only where that guest
    /// is gone for good: one that lives and reconnects would not know what happened to its disk
    #[arg(long)]
    pub recover_ijournal: bool,
    /// Read settings from a TOML file; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen for `afterimage ctl` on this Unix socket, for this user only
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve a control disk on this Unix socket: a second vhost-user-blk device for the same guest, through which its programs
    /// order, flush and wait for durability (afterimage-guest)
    #[arg(long, value_name = "SOCKET")]
    pub control_disk: Option<PathBuf>,
    /// Serve Prometheus metrics on this address, as in 127.0.0.1:9150
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Write a line for every request that reaches the images and the redo log into this new file, compressed if it is
    /// called *.zst; `afterimage flash` and `afterimage trace` read it. %p in the name becomes the process id
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Lock the process in with landlock and seccomp after start-up: auto (what the kernel has), off, or require
    #[arg(long, value_name = "MODE")]
    pub sandbox: Option<String>,
    /// Announce readiness as one JSON line
    #[arg(long)]
    pub json: bool,
    /// QEMU's convention: the image of a single disk
    #[arg(long, value_name = "FILE", help_heading = "Backend program conventions of QEMU (one disk)")]
    pub blk_file: Option<PathBuf>,
    /// QEMU's convention: where a single disk's guest connects
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with = "fd",
        help_heading = "Backend program conventions of QEMU (one disk)"
    )]
    pub socket_path: Option<PathBuf>,
    /// QEMU's convention: an inherited socket, listening or connected; with a connected one, `serve` ends when the
    /// guest leaves
    #[arg(long, value_name = "FDNUM", help_heading = "Backend program conventions of QEMU (one disk)")]
    pub fd: Option<i32>,
    /// QEMU's convention: refuse writes (to every disk)
    #[arg(long, help_heading = "Backend program conventions of QEMU (one disk)")]
    pub read_only: bool,
    /// QEMU's convention: print what this program can do as JSON and exit
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

  Two disks of one guest, flushes that do not wait for the device, at most 50 ms of acknowledgements at risk:
    afterimage serve --survives power-window=50ms --control /tmp/ctl.sock \\
      --disk root.img,socket=/tmp/root.sock --disk journal.img,socket=/tmp/journal.sock

  Full data journaling without journal writes, for a guest whose ext4 is mounted with data=journal:
    afterimage serve --survives guest-crash --journal retain --disk disk.img,socket=/tmp/disk.sock

  With a trace of what reaches storage, for `afterimage flash`:
    afterimage serve --trace disk.trace.zst --disk disk.img,socket=/tmp/disk.sock

  As QEMU's conventions have it:
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
