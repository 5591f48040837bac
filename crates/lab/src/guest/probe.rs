//! Does KVM really run a stock kernel here? `/dev/kvm` may open and the guest still hang in early boot, so
//! the only answer that counts is a boot within a deadline.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::{initramfs, kernel};
use crate::error::Result;
use crate::locate;
use crate::process::{Group, Workdir};

/// A boot takes 3 s under TCG; a KVM that can not beat this is of no use.
const PROBE_LIMIT: Duration = Duration::from_secs(6);

/// Whether KVM boots the guests' kernel within its deadline. Asked once per process.
pub fn kvm_boots() -> bool {
    // A machine does not change while a program runs; the answer costs seconds.
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| match probe() {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, "no KVM");
            false
        }
    })
}

fn probe() -> Result<bool> {
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(false);
    }
    let qemu = locate::system_program("qemu-system-x86_64", "qemu-system-x86")?;
    let kernel = kernel::fetch_kernel()?;
    let workdir = Workdir::new("probe")?;
    let archive = workdir.join("initramfs");
    initramfs::write(&kernel, &[], &archive)?;
    let mut command = Command::new(qemu);
    command
        .args(["-accel", "kvm", "-M", "q35", "-m", "256M", "-nodefaults", "-no-user-config"])
        .args(["-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&archive)
        .args(["-append", "quiet panic=-1 afterimage.probe"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut group = Group::spawn("the KVM probe", &mut command, Vec::new(), "")?;
    let booted = group.wait_for(PROBE_LIMIT)?.is_some_and(|status| status.success());
    tracing::info!(booted, "probed KVM");
    Ok(booted)
}
