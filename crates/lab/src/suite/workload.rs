//! What the guests run.

use std::path::{Path, PathBuf};

use crate::acks::{Allowance, Ledger, Remains, Verdict};
use crate::daemon::Daemon;
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Guest, GuestBuilder, Vmm};
use crate::suite::GUEST_LIMIT;

/// A file system, and how it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    Ext4Ordered,
    Ext4Journal,
    Xfs,
}

impl FileSystem {
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4Ordered, FileSystem::Ext4Journal, FileSystem::Xfs];

    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered => "ext4-ordered",
            FileSystem::Ext4Journal => "ext4-journal",
            FileSystem::Xfs => "xfs",
        }
    }

    pub fn make(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered | FileSystem::Ext4Journal => "mkfs.ext4 -q -F /dev/vda",
            FileSystem::Xfs => "mkfs.xfs -q -f /dev/vda",
        }
    }

    pub fn mount(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered => "mount -t ext4 -o data=ordered /dev/vda /mnt",
            FileSystem::Ext4Journal => "mount -t ext4 -o data=journal /dev/vda /mnt",
            FileSystem::Xfs => "mount -t xfs /dev/vda /mnt",
        }
    }

    /// The check, after the mount has replayed the journal: read-only, anything wrong is a failure.
    pub fn check(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered | FileSystem::Ext4Journal => "e2fsck -fn /dev/vda",
            FileSystem::Xfs => "xfs_repair -n /dev/vda",
        }
    }
}

/// Writes that nobody acknowledges, so that much is in flight when the end comes.
pub(super) const NOISE: &str = "(i=0; while :; do mkdir -p /mnt/noise/$i; \
    cp -r /usr/share/doc/e2fsprogs /usr/share/doc/bash /mnt/noise/$i/ 2>/dev/null; \
    rm -rf /mnt/noise/$((i-10)); i=$((i+1)); done) &\n";

/// Formats, mounts, and writes until the end of the world.
pub(super) fn writing(make: &str, mount: &str) -> String {
    format!(
        "set -e\n{make}\n{mount}\nmkdir -p /mnt/noise /mnt/acks\nsync\n{NOISE}\
         \"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --seconds 600 --threads 2\n"
    )
}

/// Mounts, verifies, and checks.
pub(super) fn checking(mount: &str, check: &str) -> String {
    format!(
        "{mount} || {{ echo 'the file system does not mount'; dmesg | tail -n 20; exit 61; }}\n\
         \"$AFTERIMAGE_AGENT\" verify /mnt/acks || exit 62\n\
         umount /mnt || exit 63\n\
         {check} || {{ echo 'the file system is damaged'; exit 64; }}\n"
    )
}

/// A guest of the suite.
pub(super) fn guest(vmm: Vmm, daemon: &Daemon) -> GuestBuilder {
    daemon.sockets().iter().fold(Guest::builder(vmm).memory_mib(256).limit(GUEST_LIMIT), |b, s| b.disk(s))
}

/// Boots a fresh guest that verifies and checks; returns what it found.
///
/// # Errors
/// [`LabError::Broken`] if the file system does not mount or is damaged.
pub(super) fn remains(evidence: &Evidence, daemon: &Daemon, mount: &str, check: &str) -> Result<Remains> {
    let mut guest = guest(Vmm::Uml, daemon).start(&checking(mount, check))?;
    let ended = guest.wait();
    evidence.guest(&guest, "second");
    match ended? {
        crate::guest::Ended::Exited(0) => Remains::of(guest.channel()),
        crate::guest::Ended::Exited(61) => {
            Err(LabError::Broken(format!("the file system does not mount any more{}", guest.last_words())))
        }
        crate::guest::Ended::Exited(64) => Err(LabError::Broken(format!(
            "the file system is damaged after its replay{}",
            guest.last_words()
        ))),
        other => Err(LabError::Guest(format!("the second guest ended with {other:?}{}", guest.last_words()))),
    }
}

/// Judges, and tells in a few words.
///
/// # Errors
/// [`LabError::Broken`].
pub(super) fn judge(
    evidence: &Evidence,
    ledger: &Ledger,
    remains: &Remains,
    allowance: Allowance,
) -> Result<String> {
    let verdict = Verdict::new(ledger, remains);
    evidence.text("verdict.json", &serde_json::to_string_pretty(&verdict).unwrap_or_default());
    verdict.check(allowance)?;
    let mut told = format!("{} acknowledged, {} lost", verdict.acknowledged, verdict.lost);
    if verdict.lost > 0 {
        told.push_str(&format!(" over {:.1} ms", verdict.lost_span_ms));
    }
    if verdict.unacknowledged_present > 0 {
        told.push_str(&format!(", {} more in flight were kept", verdict.unacknowledged_present));
    }
    Ok(told)
}

/// An image and the log that may lie beside it.
pub(super) fn with_log(image: &Path) -> Vec<PathBuf> {
    let mut log = image.as_os_str().to_owned();
    log.push(".aflog");
    vec![image.to_path_buf(), PathBuf::from(log)]
}

/// 512 MiB, sparse: what mkfs.xfs wants at least.
pub(super) const IMAGE_BYTES: u64 = 512 << 20;

/// What was broken on purpose has to show; `survived`: what it means if it does not.
pub(super) fn canary(outcome: Result<String>, survived: &str) -> Result<String> {
    match outcome {
        Err(LabError::Broken(what)) => {
            Ok(format!("the harness saw it: {}", what.lines().next().unwrap_or_default()))
        }
        Err(error) => Err(error),
        Ok(told) => Err(LabError::Broken(format!("{survived}: {told}"))),
    }
}
