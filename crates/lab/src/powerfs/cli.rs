//! `afterimage-lab fuse`: the process that holds the mount.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use nix::mount::{umount2, MntFlags};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::core::Core;
use super::fs::PowerFs;
use super::shared::{Inside, Shared, Timed};
use crate::device::ModelName;
use crate::error::{Context, Result};

/// What `afterimage-lab fuse` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct FuseOptions {
    /// Where to mount
    pub mountpoint: PathBuf,
    /// The folder that holds what is durable; made if it is missing
    #[arg(long)]
    pub backing: PathBuf,
    /// The modelled device
    #[arg(long, value_enum, default_value = "none")]
    pub model: ModelName,
    /// Seed of cuts that are not given one
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The control socket
    #[arg(long)]
    pub control: PathBuf,
    /// How much can be volatile at once, in MiB: the drive's cache
    #[arg(long, default_value_t = 512)]
    pub cache_mib: u64,
    /// What the drive writes whole, in bytes: its physical sector
    #[arg(long, default_value_t = 512, value_parser = sector_bytes)]
    pub sector_bytes: u64,
    /// Of 1000 kept sectors, how many a cut tears unless it is told otherwise
    #[arg(long, default_value_t = 0)]
    pub torn_per_mille: u64,
}

fn sector_bytes(text: &str) -> std::result::Result<u64, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("a physical sector has 512 or 4096 bytes".to_owned()),
    }
}

/// Mounts, serves, and unmounts on SIGTERM, SIGINT, `stop`, or when somebody else unmounts.
///
/// An orderly end makes everything durable (unless the power is off); being killed is a cut that keeps
/// nothing volatile.
///
/// # Errors
/// The folder, the socket or the mount can not be made.
pub fn run_fuse(options: &FuseOptions) -> Result<()> {
    let mut core = Core::open(&options.backing, options.cache_mib << 20)
        .context(|| format!("open the backing folder {}", options.backing.display()))?;
    core.sector_bytes = options.sector_bytes;
    let inside = Inside {
        core,
        model: Timed::new(options.model),
        next_seed: options.seed,
        torn_per_mille: options.torn_per_mille,
        kept_per_mille: None,
        arming: 0,
        last_cut: None,
    };
    let shared = Shared::new(inside).context(|| "start the clock".to_owned())?;

    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("afterimage-lab".to_owned()),
        MountOption::Subtype(options.model.as_str().to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    let mut session = Session::new(PowerFs { shared: shared.clone() }, &options.mountpoint, &config)
        .context(|| format!("mount on {}", options.mountpoint.display()))?;
    let mut unmounter = session.unmount_callable();

    let (stop, stopped) = mpsc::channel();
    let ended = stop.clone();
    let serving = std::thread::Builder::new()
        .name("powerfs".to_owned())
        .spawn(move || {
            let outcome = session.run();
            let _ = ended.send(());
            outcome
        })
        .context(|| "start a thread".to_owned())?;
    lift_dirty_limit(&options.mountpoint);
    let signalled = stop.clone();
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context(|| "wait for signals".to_owned())?;
    std::thread::Builder::new()
        .name("powerfs-signals".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                let _ = signalled.send(());
            }
        })
        .context(|| "start a thread".to_owned())?;
    // Last: whoever can connect may also send SIGTERM.
    let listener = UnixListener::bind(&options.control)
        .context(|| format!("listen on {}", options.control.display()))?;
    super::control::serve(listener, shared.clone(), stop).context(|| "start a thread".to_owned())?;

    // A closed channel means that every sender has gone: time to end as well.
    let _ = stopped.recv();
    // Unmounting makes the kernel send what it still holds; then, in order, everything becomes durable.
    let unmounted = unmounter.unmount().or_else(|error| unmount_again(&options.mountpoint, error));
    let deadline = Instant::now() + Duration::from_secs(2);
    while !serving.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = fs::remove_file(&options.control);
    let mut inside = shared.lock();
    if inside.core.powered() {
        inside
            .core
            .settle_everything()
            .context(|| format!("write everything to {}", options.backing.display()))?;
    }
    unmounted.context(|| format!("unmount {}", options.mountpoint.display()))
}

/// Somebody had a file open: perhaps only a child of the program that is about to exec, so tries for a second;
/// then takes the mount out of sight, and what is open ends with this process.
fn unmount_again(mountpoint: &Path, error: io::Error) -> io::Result<()> {
    tracing::debug!(%error, "unmount again");
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        if umount2(mountpoint, MntFlags::empty()).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(umount2(mountpoint, MntFlags::MNT_DETACH)?)
}

/// FUSE mounts may hold only 1 % of memory dirty by default, so that buffered writers would wait for the
/// device at once, as they would on no local file system. Needs root; without it the figures are worse, not
/// wrong in kind.
fn lift_dirty_limit(mountpoint: &Path) {
    let lift = || -> io::Result<()> {
        let device = fs::metadata(mountpoint)?.dev();
        let folder = format!("/sys/class/bdi/{}:{}", libc::major(device), libc::minor(device));
        fs::write(format!("{folder}/strict_limit"), "0")?;
        fs::write(format!("{folder}/max_ratio"), "100")
    };
    if let Err(error) = lift() {
        tracing::info!(%error, "the kernel's limit on dirty pages of this mount stays low");
    }
}
