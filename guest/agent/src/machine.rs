//! Small things that only root inside the guest can do to its machine.

use std::fs;
use std::io;
use std::path::Path;

use crate::args::{invalid, Arguments};
use crate::sys;

const DRIVER: &str = "/sys/bus/virtio/drivers/virtio_blk";

fn put(path: impl AsRef<Path>, text: &str) -> io::Result<()> {
    let path = path.as_ref();
    fs::write(path, text)
        .map_err(|error| io::Error::new(error.kind(), format!("{text} > {}: {error}", path.display())))
}

/// The `vda` of `/dev/vda` or `vda`.
fn device_name(word: &str) -> io::Result<&str> {
    let name = word.strip_prefix("/dev/").unwrap_or(word);
    if Path::new("/sys/block").join(name).exists() {
        Ok(name)
    } else {
        Err(invalid(format!("there is no disk {word}")))
    }
}

/// Makes the kernel send flushes whatever the device said about its cache, so that peers are compared fairly.
///
/// The driver's own attribute tells the device too (it needs the CONFIG_WCE feature); the queue's attribute
/// only changes the kernel's mind, and recent kernels refuse it where the device said write-through.
pub fn write_back(mut arguments: Arguments) -> io::Result<()> {
    let words = arguments.words();
    arguments.finish()?;
    for word in words {
        let name = device_name(&word)?;
        let in_force = format!("/sys/block/{name}/queue/write_cache");
        let is_on = || fs::read_to_string(&in_force).is_ok_and(|text| text.trim() == "write back");
        for attribute in ["cache_type", "queue/write_cache"] {
            if !is_on() {
                // The next attribute, or the check below, has the last word.
                let _ = put(format!("/sys/block/{name}/{attribute}"), "write back");
            }
        }
        if !is_on() {
            return Err(invalid(format!(
                "{word} can not be given a volatile cache: neither attribute takes it"
            )));
        }
    }
    Ok(())
}

/// Writes back and forgets the page cache.
pub fn drop_caches(arguments: Arguments) -> io::Result<()> {
    arguments.finish()?;
    sys::sync_all();
    put("/proc/sys/vm/drop_caches", "3")
}

/// Detaches the driver.
pub fn unbind(mut arguments: Arguments) -> io::Result<()> {
    let word = arguments.word("the disk")?;
    arguments.finish()?;
    let device = fs::canonicalize(format!("/sys/block/{}/device", device_name(&word)?))?;
    let Some(name) = device.file_name().and_then(|n| n.to_str()) else {
        return Err(invalid(format!("{word} is no virtio disk")));
    };
    put(format!("{DRIVER}/unbind"), name)?;
    println!("{name}");
    Ok(())
}

/// Attaches the driver.
pub fn bind(mut arguments: Arguments) -> io::Result<()> {
    let name = arguments.word("the bus name, as unbind printed it")?;
    arguments.finish()?;
    put(format!("{DRIVER}/bind"), &name)
}

/// Crashes the kernel.
pub fn panic_now(arguments: Arguments) -> io::Result<()> {
    arguments.finish()?;
    put("/proc/sys/kernel/sysrq", "1")?;
    put("/proc/sysrq-trigger", "c")
}

/// Makes a mounted file system stop as a crash would, without the machine's.
pub fn shut_down(mut arguments: Arguments) -> io::Result<()> {
    let folder = fs::File::open(arguments.word("the file system's folder")?)?;
    let commits = arguments.flag("commit")?;
    arguments.finish()?;
    sys::shut_down(&folder, commits)
}

/// Starts another kernel from this one. What is mounted stays mounted, as in a crash.
pub fn kexec(mut arguments: Arguments) -> io::Result<()> {
    let kernel = fs::File::open(arguments.word("the kernel's file")?)?;
    let archive = fs::File::open(arguments.word("the initial RAM disk's file")?)?;
    let line = arguments.option("arguments").unwrap_or_default();
    arguments.finish()?;
    let line = std::ffi::CString::new(line).map_err(|_| invalid("--arguments holds a NUL".to_owned()))?;
    sys::kexec_load(&kernel, &archive, &line)?;
    Err(sys::kexec_start())
}

/// Switches off.
pub fn power_off(arguments: Arguments) -> io::Result<()> {
    arguments.finish()?;
    Err(sys::power_off())
}
