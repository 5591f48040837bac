//! Table III: the guest dies half-way; how long until its file system is mounted again and its repaired state is on
//! the device, and what that moves.
//!
//! ```text
//!   stop the guest ─► page cache to the device and dropped ─► kill it ─┐ the clock runs
//!     kill-guest: the daemon ends in order (retained: writes home)     ├ daemon_s
//!     kill-both:  the daemon is killed too, `afterimage recover`       ┘
//!     ─► page cache to the device: settle_s ─► a new daemon, a new guest (not timed)
//!     ─► mount, with the kernel's replay: mount_s ─► page cache to the device: settle_mount_s
//! ```
//! Stopping first keeps what the workload still had in the host's page cache out of the recovery's account: the
//! paper's guests wrote past any such cache. Dropping it makes a replay read the journal from the device, as there.

use std::process::Command;
use std::time::{Duration, Instant};

use afterimage_lab::daemon::Daemon;
use afterimage_lab::guest::Guest;
use afterimage_lab::locate;
use rustix::process::{kill_process_group, Pid, Signal};

use crate::bench::{start, Bench};
use crate::catalog::{JournalPolicy, Kind};
use crate::outcome::timed_s;
use crate::record::{CellKey, Recovery};
use crate::script::recover_script;
use crate::stage::{serve, written_by, Stage};
use afterimage_bench_kit::io::StorageIo;
use afterimage_bench_kit::process::run;
use afterimage_bench_kit::{BenchError, Context, Result};

/// How long requests that a stopped guest has sent may still be under way.
const LAST_REQUESTS: Duration = Duration::from_millis(300);

/// Kills the guest `half` into its work, and measures what follows.
///
/// # Errors
/// The guest was done before, or something on the way failed.
pub fn measure(
    key: &CellKey,
    bench: &Bench<'_>,
    stage: &Stage,
    mut daemons: Vec<Daemon>,
    mut guests: Vec<Guest>,
    half: Duration,
) -> Result<Recovery> {
    let (Some(mut daemon), Some(mut guest), true) = (daemons.pop(), guests.pop(), daemons.is_empty()) else {
        return Err(BenchError::Usage("recovery is measured with one guest".to_owned()));
    };
    let mut recovery = Recovery { killed_at_s: half.as_secs_f64(), ..Recovery::default() };
    guest.channel().send("go")?;
    std::thread::sleep(half);
    if guest.channel().lines().iter().any(|line| line.says("bench", "end")) {
        return Err(BenchError::TooLate { after_s: half.as_secs_f64() });
    }
    freeze(&guest)?;
    std::thread::sleep(LAST_REQUESTS);
    stage.settle()?;

    let before = counted(key, stage, &daemon)?;
    let clock = Instant::now();
    guest.kill();
    match key.kind {
        Kind::KillBoth => {
            daemon.kill()?;
            drop(daemon);
            if key.mode.policy() == JournalPolicy::Retain {
                run(Command::new(locate::product()?).arg("recover").args(stage.images()))?;
            }
        }
        _ => daemon.stop()?,
    }
    recovery.daemon_s = clock.elapsed().as_secs_f64();
    drop(guest);
    let clock = Instant::now();
    stage.settle()?;
    recovery.settle_s = clock.elapsed().as_secs_f64();
    // On the machine's disk the daemon that counted has ended, and its count with it.
    recovery.daemon_io = counted_after(key, stage, &before)?;

    let daemon = serve(key, &stage.images()[0], bench.retain_max, None)?;
    let mut guest = start(key, &daemon, bench, &recover_script(key.mode, key.setup))?;
    guest.wait_report("bench", "ready")?;
    let before = counted(key, stage, &daemon)?;
    guest.channel().send("go")?;
    guest.wait_report("bench", "mounted")?;
    let clock = Instant::now();
    stage.settle()?;
    recovery.settle_mount_s = clock.elapsed().as_secs_f64();
    recovery.mount_io = counted(key, stage, &daemon)?.since(&before);
    guest.channel().send("go")?;
    guest.wait_success()?;
    recovery.mount_s = timed_s(&guest.channel().lines(), "mount")?;
    drop(guest);
    daemon.stop()?;
    recovery.clean = run(Command::new("e2fsck").args(["-fn"]).args(stage.images())).is_ok();
    Ok(recovery)
}

fn counted(key: &CellKey, stage: &Stage, daemon: &Daemon) -> Result<StorageIo> {
    if key.device.is_model() {
        stage.storage(&[])
    } else {
        written_by(std::slice::from_ref(daemon))
    }
}

fn counted_after(key: &CellKey, stage: &Stage, before: &StorageIo) -> Result<StorageIo> {
    if key.device.is_model() {
        Ok(stage.storage(&[])?.since(before))
    } else {
        Ok(StorageIo::default())
    }
}

/// Stops all of the machine's processes where they are.
fn freeze(guest: &Guest) -> Result<()> {
    let pid = i32::try_from(guest.pid()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| BenchError::Workload("the guest has no process".to_owned()))?;
    kill_process_group(pid, Signal::STOP).context(|| "stop the guest".to_owned())
}
