//! The few system calls that the standard library does not wrap.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Time since some fixed instant of this boot, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the kernel to fill; the call has no other effect.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Makes a terminal pass bytes as they are; a file that is no terminal is left alone.
pub fn make_raw(file: &File) -> io::Result<()> {
    // SAFETY: an all-zero termios is a valid value of that plain C structure.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for as long as `file` is borrowed and `settings` is a termios.
    if unsafe { libc::tcgetattr(file.as_raw_fd(), &mut settings) } != 0 {
        return Ok(());
    }
    // SAFETY: as above; cfmakeraw only changes the structure.
    unsafe { libc::cfmakeraw(&mut settings) };
    // SAFETY: as above; tcsetattr reads the structure.
    if unsafe { libc::tcsetattr(file.as_raw_fd(), libc::TCSANOW, &settings) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Writes back everything.
pub fn sync_all() {
    // SAFETY: sync takes no arguments and can not fail.
    unsafe { libc::sync() };
}

/// Switches the machine off without writing anything back.
pub fn power_off() -> io::Error {
    // SAFETY: the call ends the machine or fails; it touches no memory of ours.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    io::Error::last_os_error()
}

/// Shuts the file system of `folder` down (EXT4_IOC_SHUTDOWN, which all have as FS_IOC_SHUTDOWN): with its running
/// transaction committed, or as it is.
pub fn shut_down(folder: &File, commits: bool) -> io::Result<()> {
    const LOG_FLUSH: u32 = 1;
    const NO_LOG_FLUSH: u32 = 2;
    // _IOR('X', 125, __u32)
    const SHUTDOWN: libc::c_ulong = 0x8004_587d;
    let how: u32 = if commits { LOG_FLUSH } else { NO_LOG_FLUSH };
    // SAFETY: the descriptor is open while `folder` is borrowed; the call reads a u32 behind the pointer.
    if unsafe { libc::ioctl(folder.as_raw_fd(), SHUTDOWN as _, &how) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Loads a kernel for [`kexec_start`].
pub fn kexec_load(kernel: &File, archive: &File, arguments: &CStr) -> io::Result<()> {
    let bytes = arguments.to_bytes_with_nul().len();
    // SAFETY: both descriptors are open while they are borrowed; the kernel copies `bytes` bytes of a string that has as
    // many, its NUL included.
    let done = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            archive.as_raw_fd(),
            bytes,
            arguments.as_ptr(),
            0,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Starts the loaded kernel at once: nothing is written back.
pub fn kexec_start() -> io::Error {
    // SAFETY: the call ends this kernel or fails; it touches no memory of ours.
    unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_KEXEC) };
    io::Error::last_os_error()
}
