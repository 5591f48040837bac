//! User Mode Linux: the kernel as a process. Its root is the host's, through hostfs.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use afterimage_testing::uml_preload;

use super::{script, GuestBuilder};
use crate::error::{Context, Result};
use crate::locate;
use crate::process::{quote, Group};

pub(super) fn start(
    builder: &GuestBuilder,
    folder: &Path,
    report: OwnedFd,
    output: OwnedFd,
) -> Result<Group> {
    let program = match &builder.kernel {
        Some(path) => path.clone(),
        None => locate::system_program("linux.uml", "user-mode-linux")?,
    };
    locate::system_program("busybox", "busybox-static")?;
    let init = folder.join("init");
    fs::write(&init, first_stage(builder.kernel.is_none(), folder))
        .context(|| format!("write {}", init.display()))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
        .context(|| format!("make {} executable", init.display()))?;
    let uml_folder = folder.join("uml");
    fs::create_dir_all(&uml_folder).context(|| format!("make {}", uml_folder.display()))?;
    let console_path = folder.join("console.log");
    let console = File::create(&console_path).context(|| format!("create {}", console_path.display()))?;

    let mut command = Command::new(program);
    let preload =
        uml_preload(folder).context(|| "make what User Mode Linux needs on this processor".to_owned())?;
    command.envs(preload.map(|library| ("LD_PRELOAD", library)));
    command
        .arg(format!("mem={}M", builder.memory_mib))
        .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "loglevel=5"])
        .arg(format!("init={}", init.display()))
        .args(["con=null", "con0=null,fd:2", "ssl=null", "ssl0=fd:3,fd:3", "ssl1=fd:4,fd:4"])
        .arg(format!("uml_dir={}", uml_folder.display()))
        .arg("umid=guest");
    for disk in &builder.disks {
        command.arg(format!("virtio_uml.device={}:2", disk.display()));
    }
    command
        .args(&builder.kernel_arguments)
        // The guest's memory is a file there; on a disk every page of it would be written back.
        .env("TMPDIR", "/dev/shm")
        .stdin(Stdio::null())
        .stdout(console.try_clone().context(|| "duplicate a descriptor".to_owned())?)
        .stderr(console);
    Group::spawn("User Mode Linux", &mut command, vec![(report, 3), (output, 4)], "")
}

fn first_stage(of_package: bool, folder: &Path) -> String {
    let mut text = String::from(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         HOST=/\n\
         OFF=off\n\
         off() { echo o > /proc/sysrq-trigger; sleep 10; }\n\
         mount -t proc proc /proc\n\
         mount -t tmpfs run /run\n",
    );
    if of_package {
        text.push_str(
            "M=/usr/lib/uml/modules/$(uname -r)/kernel\n\
             busybox insmod $M/fs/overlayfs/overlay.ko\n\
             busybox insmod $M/fs/quota/quota_tree.ko\n\
             busybox insmod $M/fs/quota/quota_v2.ko\n\
             busybox insmod $M/drivers/block/virtio_blk.ko\n",
        );
    }
    text.push_str(script::ENTER);
    text.push_str(&format!("chroot $R /bin/sh {}/inside.sh\noff\n", quote(&folder.to_string_lossy())));
    text
}
