//! The peers are compared fairly: their guests send flushes, and these reach storage, or are dropped, as asked.

use std::time::Duration;

use super::workload::{self, FileSystem, IMAGE_BYTES};
use super::Evidence;
use crate::acks::{Allowance, Ledger, Remains};
use crate::daemon::{self, Daemon, Nested, PeerOptions};
use crate::error::{LabError, Result};
use crate::guest::Vmm;
use crate::powerfs::{MountOptions, PowerMount};

const RECORDS: u64 = 100;

/// The same guest on qemu-storage-daemon: write-back, no-flush, and write-back nested in a loop-mounted ext4.
pub(super) fn flushes(evidence: &Evidence) -> Result<String> {
    let mut told = Vec::new();
    for (name, no_flush, nested, syncs_wanted) in [
        ("writeback", false, false, RECORDS..=u64::MAX),
        ("no-flush", true, false, 0..=RECORDS / 2),
        ("nested", false, true, RECORDS..=u64::MAX),
    ] {
        let mount = PowerMount::mount(&MountOptions::default())?;
        let outer = nested.then(|| Nested::mount(&mount.join("outer.raw"), 2 * IMAGE_BYTES)).transpose()?;
        let image = outer.as_ref().map_or_else(|| mount.join("disk.raw"), |outer| outer.join("disk.raw"));
        daemon::create_image(&image, IMAGE_BYTES)?;
        let options = if no_flush { PeerOptions::no_flush(&image) } else { PeerOptions::writeback(&image) };
        let daemon = Daemon::peer(&options)?;
        mount.reset_counters()?;
        write_and_verify(evidence, &daemon, name)?;
        let syncs = mount.counters()?.total.syncs;
        if !syncs_wanted.contains(&syncs) {
            return Err(LabError::Peer(format!(
                "qemu-storage-daemon {name}: {RECORDS} fsyncs in the guest became {syncs} flushes of the device"
            )));
        }
        told.push(format!("{name}: {syncs} flushes"));
        daemon.stop()?;
    }
    Ok(format!("{RECORDS} fsyncs; {}", told.join(", ")))
}

fn write_and_verify(evidence: &Evidence, daemon: &Daemon, name: &str) -> Result<()> {
    let file_system = FileSystem::Ext4Ordered;
    let script = format!(
        "set -e\n{make}\n{mount}\n\"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --records {RECORDS}\n\
         \"$AFTERIMAGE_AGENT\" drop-caches\n\"$AFTERIMAGE_AGENT\" verify /mnt/acks\numount /mnt\n{check}\n",
        make = file_system.make(),
        mount = file_system.mount(),
        check = file_system.check(),
    );
    let mut guest = workload::guest(Vmm::Uml, daemon).limit(Duration::from_secs(90)).start(&script)?;
    let ended = guest.wait_success();
    evidence.guest(&guest, name);
    ended?;
    let remains = Remains::of(guest.channel())?;
    workload::judge(evidence, &Ledger::of(guest.channel())?, &remains, Allowance::Nothing).map(drop)
}
