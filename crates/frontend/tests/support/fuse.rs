//! A FUSE file system with one file, whose server answers what it takes to open the file and then nothing more: what a
//! hostile VMM can hand over as guest memory or as a doorbell.
#![allow(dead_code)]
// mount(2) and umount2(2) have no safe wrapper here.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FILE_BYTES: u64 = 1 << 20;

/// The mount; dropping it ends the server, which fails whatever still waits.
pub struct StalledFile {
    directory: tempfile::TempDir,
    /// From here on the server answers nothing about the file.
    stalled: Arc<AtomicBool>,
}

/// The server gives up then, and with it whoever waits: a process that waits for it cannot even be killed.
const PATIENCE: Duration = Duration::from_secs(20);

impl StalledFile {
    /// Mounts it; `Err` says why that cannot be here.
    pub fn mount() -> Result<Self, String> {
        // Without waiting: the server's end must come in time.
        let device = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/fuse");
        let device = device.map_err(|e| format!("opening /dev/fuse: {e}"))?;
        let directory = tempfile::tempdir().unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let (options, target) =
            (CString::new(options).unwrap(), CString::new(directory.path().as_os_str().as_bytes()).unwrap());
        // SAFETY: all four are strings that live through the call.
        let mounted = unsafe {
            libc::mount(c"fuse".as_ptr(), target.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast())
        };
        if mounted != 0 {
            return Err(format!("mounting a FUSE file system: {}", std::io::Error::last_os_error()));
        }
        let stalled = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stalled);
        std::thread::spawn(move || serve(device, &told));
        Ok(Self { directory, stalled })
    }

    /// Opens the file; nothing about it is answered afterwards.
    pub fn open(&self) -> File {
        let file = File::options().read(true).write(true).open(self.directory.path().join("file")).unwrap();
        self.stalled.store(true, Ordering::SeqCst);
        file
    }
}

impl Drop for StalledFile {
    fn drop(&mut self) {
        let target = CString::new(self.directory.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that lives through the call. MNT_FORCE aborts the connection: whoever waits gets an error.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    }
}

fn serve(mut device: File, stalled: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        afterimage_block::wait_readable(&[device.as_fd()], Some(left)).unwrap();
        let n = match device.read(&mut request) {
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && !left.is_zero() => continue,
            Err(_) => return,
        };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        if n < 40 || word(4) == FORGET {
            continue;
        }
        let node = request[16];
        let (error, body): (i32, Vec<u8>) = match word(4) {
            INIT => (0, init()),
            LOOKUP => (0, [numbers(&[2, 1, 0, 0, 0]), attributes(2)].concat()),
            GETATTR if node == 1 || !stalled.load(Ordering::SeqCst) => {
                (0, [numbers(&[0, 0]), attributes(node)].concat())
            }
            OPEN => (0, numbers(&[1, 0])),
            // So that the test itself can close the file.
            FLUSH => (-libc::ENOSYS, Vec::new()),
            _ if stalled.load(Ordering::SeqCst) => continue,
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let mut answer = (16 + body.len() as u32).to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend(body);
        let _ = device.write(&answer);
    }
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn init() -> Vec<u8> {
    let mut body = [7u32, 31, 4096, 0, 0, 4096].map(u32::to_ne_bytes).concat();
    body.resize(64, 0);
    body
}

fn attributes(node: u8) -> Vec<u8> {
    let mode: u32 = if node == 1 { 0o40755 } else { 0o100_666 };
    let size = if node == 1 { 0 } else { FILE_BYTES };
    let mut bytes = numbers(&[u64::from(node), size, size / 512, 0, 0, 0]);
    bytes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat());
    bytes
}
