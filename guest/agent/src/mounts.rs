//! Mounting without a shell, and the kernel's messages.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// `BLKFLSBUF` (linux/fs.h): writes back and drops the cache of a block device.
const BLKFLSBUF: libc::c_ulong = 0x1261;

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a name with a zero byte"))
}

/// Splits `rw,noatime,data=journal` into what mount(2) takes as flags and what the file system takes as text.
fn split(options: &str) -> (libc::c_ulong, String) {
    let mut flags = 0;
    let mut rest = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        flags |= match option {
            "rw" | "defaults" => 0,
            "ro" => libc::MS_RDONLY,
            "noatime" => libc::MS_NOATIME,
            "relatime" => libc::MS_RELATIME,
            "nodiratime" => libc::MS_NODIRATIME,
            "nodev" => libc::MS_NODEV,
            "nosuid" => libc::MS_NOSUID,
            "noexec" => libc::MS_NOEXEC,
            "sync" => libc::MS_SYNCHRONOUS,
            "dirsync" => libc::MS_DIRSYNC,
            "lazytime" => libc::MS_LAZYTIME,
            other => {
                rest.push(other);
                0
            }
        };
    }
    (flags, rest.join(","))
}

/// A mount that can be made again and again.
pub struct Mount {
    device: String,
    source: CString,
    target: CString,
    kind: CString,
    flags: libc::c_ulong,
    data: CString,
}

impl Mount {
    /// `device`, of type `kind`, at `target`, with mount(8)'s options.
    pub fn new(device: &str, target: &str, kind: &str, options: &str) -> io::Result<Mount> {
        let (flags, data) = split(options);
        Ok(Mount {
            device: device.to_owned(),
            source: c_string(device)?,
            target: c_string(target)?,
            kind: c_string(kind)?,
            flags,
            data: c_string(&data)?,
        })
    }

    /// Mounts.
    pub fn mount(&self) -> io::Result<()> {
        // SAFETY: all pointers are to zero-terminated strings that live in `self`; the kernel only reads them.
        let done = unsafe {
            libc::mount(
                self.source.as_ptr(),
                self.target.as_ptr(),
                self.kind.as_ptr(),
                self.flags,
                self.data.as_ptr().cast(),
            )
        };
        answer(done)
    }

    /// Unmounts.
    pub fn unmount(&self) -> io::Result<()> {
        // SAFETY: as above.
        answer(unsafe { libc::umount2(self.target.as_ptr(), 0) })
    }

    /// Makes the kernel forget what it has read from the device.
    pub fn forget(&self) -> io::Result<()> {
        let device = File::open(&self.device)?;
        // SAFETY: the request takes no argument and the descriptor is open for as long as `device` lives.
        answer(unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF as _, 0) })
    }
}

fn answer(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's messages since the last time somebody looked.
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Only what comes from now on.
    pub fn open() -> io::Result<KernelLog> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(KernelLog { file })
    }

    /// The new messages, oldest first, without level, number and time.
    pub fn news(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.file.read(&mut record) {
                Ok(0) => return Ok(lines),
                // One record a read: "level,number,time,flags;message\n KEY=value\n".
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]);
                    let message = text.split_once(';').map_or(&*text, |(_, message)| message);
                    lines.extend(message.lines().next().map(str::to_owned));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lines),
                // Overwritten before it was read.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {
                    lines.push("(messages were lost)".to_owned());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split() {
        assert_eq!(
            split("rw,noatime,,data=journal,commit=1"),
            (libc::MS_NOATIME, "data=journal,commit=1".to_owned())
        );
        assert_eq!(split(""), (0, String::new()));
    }
}
