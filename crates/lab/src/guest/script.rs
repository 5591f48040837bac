//! The shell that runs inside: one stage that builds the root, one that runs the caller's script in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{GuestBuilder, Vmm};
use crate::error::{Context, Result};
use crate::locate;
use crate::process::quote;

/// What both kinds of machine do once the host's root is mounted read-only at `$HOST` and a tmpfs at `/run`.
pub(super) const ENTER: &str = r#"
mkdir -p /run/up /run/work /run/root
mount -t overlay -o lowerdir=$HOST,upperdir=/run/up,workdir=/run/work overlay /run/root ||
    { echo "afterimage: no overlay over the host's root"; $OFF; }
R=/run/root
mount -t proc proc $R/proc
mount -t sysfs sysfs $R/sys
mount -t devtmpfs devtmpfs $R/dev
mkdir -p $R/dev/shm $R/dev/pts
mount -t tmpfs -o mode=1777 shm $R/dev/shm
mount -t devpts -o mode=600,ptmxmode=666 devpts $R/dev/pts
mount -t tmpfs -o mode=755 run $R/run
mkdir -p $R/run/lock $R/mnt
"#;

/// Writes `inside.sh` (the wrapper) and `command.sh` (the caller's script) into the guest's folder, which the
/// guest sees under its host name.
pub(super) fn write_scripts(builder: &GuestBuilder, folder: &Path, script: &str) -> Result<()> {
    let agent = locate::own_program("afterimage-agent")?;
    // Virtio ports are numbered by their device's place on the bus, so they are found by name.
    let channels = match builder.vmm {
        Vmm::Uml => "AFTERIMAGE_REPORT=/dev/ttyS0\nOUT=/dev/ttyS1\n",
        Vmm::Qemu => {
            "for port in /sys/class/virtio-ports/*; do read -r name < \"$port/name\"; case $name in\n\
             report) AFTERIMAGE_REPORT=/dev/${port##*/};;\n\
             output) OUT=/dev/${port##*/};;\n\
             esac; done\n"
        }
    };
    let disks: Vec<String> =
        (0..builder.disks.len()).map(|index| format!("/dev/vd{}", (b'a' + index as u8) as char)).collect();
    let mut text = String::from("#!/bin/sh\ncd /\n");
    text.push_str("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root\n");
    text.push_str(channels);
    text.push_str("export AFTERIMAGE_REPORT\n");
    text.push_str(&format!("export AFTERIMAGE_AGENT={}\n", quote(&agent.to_string_lossy())));
    text.push_str(&format!("export AFTERIMAGE_DISKS={}\n", quote(&disks.join(" "))));
    for (name, value) in &builder.environment {
        text.push_str(&format!("export {name}={}\n", quote(value)));
    }
    text.push_str("for line in $OUT $AFTERIMAGE_REPORT; do stty -F $line raw -echo 2> /dev/null; done\n");
    // A guest without its disks has nothing to test: say so instead of failing strangely later.
    for disk in &disks {
        text.push_str(&format!(
            "[ -b {disk} ] || {{ \"$AFTERIMAGE_AGENT\" say '{{\"guest\":\"exit\",\"code\":125}}'; \
             echo 'the kernel found no {disk}' > $OUT; exit; }}\n"
        ));
    }
    // Peers whose export shows a write-through cache (qemu-storage-daemon's does) are never sent a flush otherwise, and a comparison
    // with them would be worth nothing. It changes nothing where the cache already is volatile.
    if !disks.is_empty() {
        text.push_str(&format!("\"$AFTERIMAGE_AGENT\" write-back {} > $OUT 2>&1\n", disks.join(" ")));
    }
    text.push_str("\"$AFTERIMAGE_AGENT\" say '{\"guest\":\"ready\"}'\n");
    text.push_str(&format!(
        "sh {}/command.sh < /dev/null > $OUT 2>&1\ncode=$?\n",
        quote(&folder.to_string_lossy())
    ));
    // Whatever the script left mounted is unmounted in order; a test of sudden ends never gets here.
    text.push_str("cd /; grep '^/dev/vd' /proc/mounts | while read -r d m rest; do umount \"$m\"; done\n");
    text.push_str("\"$AFTERIMAGE_AGENT\" say \"{\\\"guest\\\":\\\"exit\\\",\\\"code\\\":$code}\"\n");

    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .context(|| format!("make {} executable", path.display()))
    };
    put("inside.sh", &text)?;
    put("command.sh", script)
}
