//! Things that happen to a guest that lives on.

use std::time::Duration;

use super::workload::{self, FileSystem, IMAGE_BYTES};
use super::Evidence;
use crate::acks::{Allowance, Ledger, Remains};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::guest::{Guest, Vmm};
use crate::process::Workdir;

/// The daemon is killed this often under the running guest.
const KILLS: u64 = 3;

/// Writes a fixed number of records, then reads everything back past the page cache, and checks.
pub(super) fn script(records: u64) -> String {
    let file_system = FileSystem::Ext4Ordered;
    format!(
        "set -e\n{make}\n{mount}\nmkdir -p /mnt/acks\nsync\n\
         \"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --records {records} --threads 2\n\
         umount /mnt\n\"$AFTERIMAGE_AGENT\" drop-caches\n{mount}\n\
         \"$AFTERIMAGE_AGENT\" verify /mnt/acks\numount /mnt\n{check}\n",
        make = file_system.make(),
        mount = file_system.mount(),
        check = file_system.check(),
    )
}

/// A guest whose script must end well, and whose records must all be there.
pub(super) fn finish(evidence: &Evidence, guest: &mut Guest) -> Result<String> {
    let ended = guest.wait_success();
    evidence.guest(guest, "guest");
    ended?;
    let ledger = Ledger::of(guest.channel())?;
    let told = workload::judge(evidence, &ledger, &Remains::of(guest.channel())?, Allowance::Nothing)?;
    Ok(format!(
        "{told}, fsync p50 {:.0} µs, longest {:.0} ms",
        ledger.fsync_us(500),
        ledger.fsync_us(1000) / 1e3
    ))
}

/// Kills the daemon under the guest again and again, with work done in between.
fn kill_daemon_under(guest: &Guest, daemon: &mut Daemon, every: u64, down: Duration) -> Result<()> {
    for turn in 1..=KILLS {
        guest.wait_acknowledged(turn * every)?;
        daemon.kill()?;
        std::thread::sleep(down);
        daemon.restart()?;
    }
    Ok(())
}

fn with_daemon(
    evidence: &Evidence,
    options: impl Fn(ServeOptions) -> ServeOptions,
    contract: &str,
    test: impl FnOnce(&mut Daemon) -> Result<String>,
) -> Result<String> {
    let folder = Workdir::new("live")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    on(evidence, &options(ServeOptions::new(contract, std::slice::from_ref(&image))), test)
}

/// Serves images that there are.
pub(super) fn on(
    evidence: &Evidence,
    options: &ServeOptions,
    test: impl FnOnce(&mut Daemon) -> Result<String>,
) -> Result<String> {
    let mut daemon = Daemon::serve(options)?;
    let outcome = test(&mut daemon);
    evidence.daemon(&daemon, "live");
    if outcome.is_err() {
        options.images.iter().for_each(|image| evidence.files(&workload::with_log(image), ""));
        return outcome;
    }
    daemon.stop()?;
    outcome
}

/// QEMU reconnects; the next daemon resubmits what was in flight.
pub(super) fn qemu_restart(evidence: &Evidence, contract: &str) -> Result<String> {
    with_daemon(
        evidence,
        |options| options,
        contract,
        |daemon| {
            let mut guest = workload::guest(Vmm::Qemu, daemon).reconnect_s(1).start(&script(400))?;
            let disturbed = kill_daemon_under(&guest, daemon, 100, Duration::from_millis(300));
            if let Err(error) = disturbed {
                evidence.guest(&guest, "guest");
                return Err(error);
            }
            finish(evidence, &mut guest)
        },
    )
}

/// User Mode Linux can not reconnect: `keep` holds its sockets.
pub(super) fn keep_restart(evidence: &Evidence, contract: &str) -> Result<String> {
    with_daemon(
        evidence,
        |options| ServeOptions { keep: true, ..options },
        contract,
        |daemon| {
            let mut guest = workload::guest(Vmm::Uml, daemon).start(&script(2000))?;
            let disturbed = kill_daemon_under(&guest, daemon, 500, Duration::ZERO);
            if let Err(error) = disturbed {
                evidence.guest(&guest, "guest");
                return Err(error);
            }
            finish(evidence, &mut guest)
        },
    )
}

/// Stopped and continued in the middle; then the driver is taken off the idle disk and put back.
pub(super) fn qemu_pause_rebind(evidence: &Evidence) -> Result<String> {
    with_daemon(
        evidence,
        |options| options,
        "power-window=50ms",
        |daemon| {
            let script = script(300).replace(
                "\"$AFTERIMAGE_AGENT\" drop-caches\n",
                "bus=$(\"$AFTERIMAGE_AGENT\" unbind vda)\n[ ! -b /dev/vda ]\n\
                 \"$AFTERIMAGE_AGENT\" bind $bus\n[ -b /dev/vda ]\n",
            );
            let mut guest = workload::guest(Vmm::Qemu, daemon).start(&script)?;
            let paused = guest.wait_acknowledged(100).and_then(|()| pause(&guest));
            if let Err(error) = paused {
                evidence.guest(&guest, "guest");
                return Err(error);
            }
            finish(evidence, &mut guest)
        },
    )
}

fn pause(guest: &Guest) -> Result<()> {
    guest.pause()?;
    let before = guest.channel().count();
    std::thread::sleep(Duration::from_millis(500));
    // What was on its way when the processors stopped may still arrive; a running guest would report hundreds.
    if guest.channel().count() > before + 4 {
        return Err(LabError::Guest("the guest goes on while it is stopped".to_owned()));
    }
    guest.resume()
}
