//! QEMU's q35 with the host's root over 9p and memory that a vhost-user daemon can map.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use super::boot::Firmware;
use super::release::Unpacked;
use super::{initramfs, kernel, probe, GuestBuilder};
use crate::error::{Context, Result};
use crate::locate;
use crate::process::Group;

/// Where a disk can be plugged into a machine that boots by firmware.
pub(super) const PLUG: &str = "plug";

pub(super) fn start(
    builder: &GuestBuilder,
    folder: &Path,
    report: OwnedFd,
    output: OwnedFd,
) -> Result<Group> {
    let mut command = match builder.firmware {
        Some((_, release)) => release.fetch()?.command("qemu-system-x86_64"),
        None => Command::new(locate::system_program("qemu-system-x86_64", "qemu-system-x86")?),
    };
    let memory = builder.memory_mib;
    // QEMU's translator is slow, and everywhere.
    command.args(match probe::kvm_boots() {
        true => ["-accel", "kvm", "-cpu", "host"],
        false => ["-accel", "tcg,thread=multi", "-cpu", "max"],
    });
    match builder.firmware {
        Some((firmware, release)) => by_firmware(&mut command, firmware, &release.fetch()?, folder)?,
        None => by_kernel(&mut command, builder, folder)?,
    }
    command
        .args(["-M", "q35,memory-backend=mem", "-nodefaults", "-no-user-config", "-display", "none"])
        .arg("-object")
        .arg(format!("memory-backend-memfd,id=mem,size={memory}M,share=on"))
        .arg("-m")
        .arg(format!("{memory}M"))
        .arg("-smp")
        .arg(builder.cpus.to_string())
        .arg("-serial")
        .arg(format!("file:{}", folder.join("console.log").display()))
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", folder.join("qmp.sock").display()))
        .args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"])
        .args(["-device", "virtio-serial-pci,max_ports=4"])
        .args([
            "-chardev",
            "socket,id=report,fd=3",
            "-device",
            "virtserialport,nr=1,chardev=report,name=report",
        ])
        .args([
            "-chardev",
            "socket,id=output,fd=4",
            "-device",
            "virtserialport,nr=2,chardev=output,name=output",
        ]);
    for (index, disk) in builder.disks.iter().enumerate() {
        let reconnect = builder.reconnect_s.map_or(String::new(), |seconds| {
            let (name, value) =
                builder.firmware.map_or(("reconnect", seconds), |(_, release)| release.reconnect(seconds));
            format!(",{name}={value}")
        });
        command
            .arg("-chardev")
            .arg(format!("socket,id=disk{index},path={}{reconnect}", disk.display()))
            .arg("-device")
            .arg(format!("vhost-user-blk-pci,chardev=disk{index},num-queues={}", builder.queues));
    }
    if builder.firmware.is_some() {
        // Behind the disks: firmware finds last what is plugged there.
        command.args(["-device", &format!("pcie-root-port,id={PLUG},chassis=1")]);
    }
    let log_path = folder.join("qemu.log");
    let log = File::create(&log_path).context(|| format!("create {}", log_path.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context(|| "duplicate a descriptor".to_owned())?)
        .stderr(log);
    Group::spawn("QEMU", &mut command, vec![(report, 3), (output, 4)], "")
}

/// The kernel comes from the host, and so does its command line; a reset is the guest's end.
fn by_kernel(command: &mut Command, builder: &GuestBuilder, folder: &Path) -> Result<()> {
    let kernel = kernel::fetch_kernel()?;
    let archive = folder.join("initramfs");
    initramfs::write(&kernel, &builder.modules, &archive)?;
    command
        .arg("-no-reboot")
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&archive)
        .arg("-append")
        .arg(format!(
        "console=ttyS0 quiet loglevel=5 panic=-1 unknown_nmi_panic=1 mitigations=off afterimage.run={} {}",
        folder.display(),
        builder.kernel_arguments.join(" ")
    ));
    Ok(())
}

/// Everything comes from the first disk. Where the guest's folder is, the machine's serial number says.
fn by_firmware(command: &mut Command, firmware: Firmware, release: &Unpacked, folder: &Path) -> Result<()> {
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(release.join(data));
    }
    if firmware == Firmware::Ovmf {
        let variables = folder.join("ovmf-variables");
        let empty = release.join("usr/share/OVMF/OVMF_VARS_4M.fd");
        fs::copy(&empty, &variables).context(|| format!("copy {}", empty.display()))?;
        let code = release.join("usr/share/OVMF/OVMF_CODE_4M.fd");
        for (unit, read_only, file) in [(0, "on", &code), (1, "off", &variables)] {
            command.arg("-drive").arg(format!(
                "if=pflash,format=raw,unit={unit},readonly={read_only},file={}",
                file.display()
            ));
        }
    }
    command.arg("-smbios").arg(format!("type=1,serial={}", folder.display()));
    Ok(())
}
