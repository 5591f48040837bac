//! QEMU's q35 with the host's root over 9p and memory that a vhost-user daemon can map.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{initramfs, kernel, probe, GuestBuilder};
use crate::error::{Context, Result};
use crate::locate;
use crate::process::Group;

pub(super) fn start(
    builder: &GuestBuilder,
    folder: &Path,
    report: OwnedFd,
    output: OwnedFd,
) -> Result<Group> {
    let program = locate::system_program("qemu-system-x86_64", "qemu-system-x86")?;
    let kernel = kernel::fetch_kernel()?;
    let archive = folder.join("initramfs");
    initramfs::write(&kernel, &builder.modules, &archive)?;
    let memory = builder.memory_mib;

    let mut command = Command::new(program);
    // QEMU's translator is slow, and everywhere.
    command.args(match probe::kvm_boots() {
        true => ["-accel", "kvm", "-cpu", "host"],
        false => ["-accel", "tcg,thread=multi", "-cpu", "max"],
    });
    command
        .args(["-M", "q35,memory-backend=mem", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .arg("-object")
        .arg(format!("memory-backend-memfd,id=mem,size={memory}M,share=on"))
        .arg("-m")
        .arg(format!("{memory}M"))
        .arg("-smp")
        .arg(builder.cpus.to_string())
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&archive)
        .arg("-append")
        .arg(format!(
            "console=ttyS0 quiet loglevel=5 panic=-1 unknown_nmi_panic=1 mitigations=off afterimage.run={} {}",
            folder.display(),
            builder.kernel_arguments.join(" ")
        ))
        .arg("-serial")
        .arg(format!("file:{}", folder.join("console.log").display()))
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", folder.join("qmp.sock").display()))
        .args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"])
        .args(["-device", "virtio-serial-pci,max_ports=4"])

        .args(["-chardev", "socket,id=report,fd=3", "-device", "virtserialport,nr=1,chardev=report,name=report"])
        .args(["-chardev", "socket,id=output,fd=4", "-device", "virtserialport,nr=2,chardev=output,name=output"]);
    for (index, disk) in builder.disks.iter().enumerate() {
        let reconnect = builder.reconnect_s.map_or(String::new(), |s| format!(",reconnect={s}"));
        command
            .arg("-chardev")
            .arg(format!("socket,id=disk{index},path={}{reconnect}", disk.display()))
            .arg("-device")
            .arg(format!("vhost-user-blk-pci,chardev=disk{index},num-queues={}", builder.queues));
    }
    let log_path = folder.join("qemu.log");
    let log = File::create(&log_path).context(|| format!("create {}", log_path.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context(|| "duplicate a descriptor".to_owned())?)
        .stderr(log);
    Group::spawn("QEMU", &mut command, vec![(report, 3), (output, 4)], "")
}
