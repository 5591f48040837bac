//! A disk that both firmwares boot: GRUB, a kernel, an initial RAM disk, and a partition that is the test's.
//!
//! ```text
//!   sector 0      1                    2048                         BOOT_END
//!   boot.img      core.img             FAT: kernel, initrd,         empty
//!   + partitions  (SeaBIOS runs both)  EFI/BOOT/BOOTX64.EFI (OVMF)
//! ```

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use super::release::{Release, Unpacked};
use super::{initramfs, kernel};
use crate::daemon::create_image;
use crate::error::{Context, LabError, Result};
use crate::process::{run, Workdir};

/// What firmware loads the boot loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// The BIOS of QEMU.
    SeaBios,
    /// UEFI.
    Ovmf,
}

const SECTOR: u64 = 512;
const BOOT_START: u32 = 2048;
const BOOT_END: u32 = 64 * 2048;
const DISK_END: u32 = 192 * 2048;

/// GRUB's own configuration, inside its images. The kernel stays where it panics, so that a panic is no second try; and a busy emulated
/// machine may find no working timer at boot (`setup_IO_APIC`).
const GRUB: &str = "search.file /vmlinuz root\n\
     linux /vmlinuz console=ttyS0 quiet loglevel=5 mitigations=off no_timer_check\ninitrd /initrd\nboot\n";

/// Writes such a disk with a release's GRUB. The second partition is 128 MiB of zeroes.
///
/// # Errors
/// The release or the kernel can not be fetched, or a tool fails.
pub fn write_bootable(release: Release, image: &Path) -> Result<()> {
    let release = release.fetch()?;
    let kernel = kernel::fetch_kernel()?;
    let folder = Workdir::new("bootable")?;
    let archive = folder.join("initrd");
    initramfs::write(&kernel, &[], &archive)?;
    let core = core_image(&release, &folder, "i386-pc", &["biosdisk"])?;
    let efi = core_image(&release, &folder, "x86_64-efi", &[])?;

    create_image(image, u64::from(DISK_END) * SECTOR)?;
    let boot = release.join("usr/lib/grub/i386-pc/boot.img");
    let mut head = fs::read(&boot).context(|| format!("read {}", boot.display()))?;
    head.resize(SECTOR as usize, 0);
    partitions(&mut head);
    head.extend(fs::read(&core).context(|| format!("read {}", core.display()))?);
    if head.len() as u64 > u64::from(BOOT_START) * SECTOR {
        return Err(LabError::Missing("GRUB does not fit before the first partition".to_owned()));
    }
    let story = || format!("write {}", image.display());
    let mut file = File::options().write(true).open(image).context(story)?;
    file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&head)).context(story)?;
    drop(file);

    let at = format!("{}@@{}", image.display(), u64::from(BOOT_START) * SECTOR);
    let tool = |name: &str, arguments: &[&str]| {
        run(release.command(name).args(["-i", &at]).args(arguments)).map(drop)
    };
    tool("mformat", &["-T", &(BOOT_END - BOOT_START).to_string(), "-h", "255", "-s", "63", "::"])?;
    tool("mmd", &["::/EFI", "::/EFI/BOOT"])?;
    tool("mcopy", &[&kernel.image.to_string_lossy(), "::/vmlinuz"])?;
    tool("mcopy", &[&archive.to_string_lossy(), "::/initrd"])?;
    tool("mcopy", &[&efi.to_string_lossy(), "::/EFI/BOOT/BOOTX64.EFI"])
}

fn core_image(
    release: &Unpacked,
    folder: &Workdir,
    format: &str,
    modules: &[&str],
) -> Result<std::path::PathBuf> {
    let configuration = folder.join("grub.cfg");
    fs::write(&configuration, GRUB).context(|| format!("write {}", configuration.display()))?;
    let core = folder.join(format);
    run(release
        .command("grub-mkimage")
        .args(["-O", format, "-p", "/grub", "-d"])
        .arg(release.join("usr/lib/grub").join(format))
        .arg("-c")
        .arg(configuration)
        .arg("-o")
        .arg(&core)
        .args(["part_msdos", "fat", "search_fs_file", "linux", "boot"])
        .args(modules))?;
    Ok(core)
}

/// The table of a master boot record: a system partition, which is active, and one of Linux.
fn partitions(sector: &mut [u8]) {
    let entries =
        [(0x80, 0xef, BOOT_START, BOOT_END), (0, 0x83, BOOT_END, DISK_END), (0, 0, 0, 0), (0, 0, 0, 0)];
    for (index, (active, kind, start, end)) in entries.into_iter().enumerate() {
        let entry = &mut sector[446 + 16 * index..][..16];
        entry.fill(0);
        // Cylinders, heads and sectors stay 0: everything goes by the block addresses.
        entry[0] = active;
        entry[4] = kind;
        entry[8..12].copy_from_slice(&u32::to_le_bytes(start));
        entry[12..16].copy_from_slice(&u32::to_le_bytes(end - start));
    }
    sector[510..512].copy_from_slice(&[0x55, 0xaa]);
}
