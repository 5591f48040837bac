//! Guest memory that vanishes must not take the daemon along.
//!
//! Guest memory is a file that the peer may truncate at any time; touching a page behind the new end raises
//! SIGBUS. For an address inside a registered mapping the handler puts a private zero page there, marks the
//! mapping poisoned and returns, so that the interrupted instruction completes on zeroes; the queue thread sees
//! the mark before it answers anything and the session ends ("guest memory was taken away"). Data that was copied
//! as zeroes meanwhile can only come from a guest whose own memory is gone. Every other SIGBUS goes to whoever
//! handled it before, which by default ends the process. The kernel's own copies (read, write, io_uring) do not
//! raise the signal: they answer EFAULT, and the request fails.
//!
//! A signal handler can reach nothing but statics: the table below is the one global of this crate. It is
//! lock-free: the handler only loads, so it may interrupt anything, a registration included.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::{io, mem, ptr};

/// Bytes that can be mapped at once, half of what a process can address: what is left is for everything else, of all disks.
const BYTES_MAX: usize = 1 << 46;
/// Mappings that can be registered at once: 128 slots of 15 disks and their in-flight regions.
const SLOTS: usize = 2048;
const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const LIVE: u8 = 2;

struct Slot {
    state: AtomicU8,
    poisoned: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Slot {
    fn bytes(&self) -> usize {
        let is_live = self.state.load(Ordering::Acquire) == LIVE;
        let bytes = self.end.load(Ordering::Relaxed).saturating_sub(self.start.load(Ordering::Relaxed));
        if is_live {
            bytes
        } else {
            0
        }
    }
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU8::new(FREE),
        poisoned: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; SLOTS];
/// One more than the highest slot ever used, so that the handler's search stays short.
static USED_SLOTS: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A registered mapping; dropping it ends the registration and must happen before the mapping is removed.
#[derive(Debug)]
pub struct Registration {
    slot: usize,
}

impl Registration {
    /// Registers `len` bytes at `start`, and installs the handler if nobody did before.
    ///
    /// # Errors
    /// The table is full, or the handler cannot be installed.
    pub fn new(start: usize, len: usize) -> io::Result<Self> {
        install()?;
        let mapped = TABLE[..USED_SLOTS.load(Ordering::Acquire)].iter().map(Slot::bytes);
        if mapped.fold(len, usize::saturating_add) > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too much guest memory in one process"));
        }
        for (index, slot) in TABLE.iter().enumerate() {
            if slot.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.poisoned.store(false, Ordering::Relaxed);
                slot.start.store(start, Ordering::Relaxed);
                slot.end.store(start.saturating_add(len), Ordering::Relaxed);
                slot.state.store(LIVE, Ordering::Release);
                USED_SLOTS.fetch_max(index + 1, Ordering::AcqRel);
                return Ok(Self { slot: index });
            }
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many guest memory regions in one process"))
    }

    /// Whether a page of the mapping was found missing.
    pub fn poisoned(&self) -> bool {
        TABLE[self.slot].poisoned.load(Ordering::Acquire)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        TABLE[self.slot].state.store(FREE, Ordering::Release);
    }
}

/// Installs the handler, once per process; early, so that a sandbox need not allow it later.
pub fn install() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    static INSTALLING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    let _one_at_a_time = INSTALLING.lock();
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: both structures live across the calls; zero bytes are a valid `sigaction`. The current action is read
    // and kept before ours goes in, so the handler finds it. The handler itself calls only `mmap` and
    // `sigaction`, plain system calls, and touches only atomics and a `OnceLock` that is already filled.
    unsafe {
        let mut previous: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = PREVIOUS.set(previous);
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`; `si_addr` is set for the faults (positive `si_code`) that are
    // all that `repair` is asked about. `__errno_location` is this thread's own. Restoring the previous action and
    // returning lets the faulting instruction raise the signal again, for the previous handler.
    unsafe {
        let errno = *libc::__errno_location();
        if (*info).si_code <= 0 || !repair((*info).si_addr() as usize) {
            if let Some(previous) = PREVIOUS.get() {
                libc::sigaction(libc::SIGBUS, previous, ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(libc::SIGBUS);
                }
            }
        }
        *libc::__errno_location() = errno;
    }
}

/// Maps zeroes over the page at `address` if it is registered; runs inside the signal handler.
fn repair(address: usize) -> bool {
    const PAGE: usize = 4096;
    let used = USED_SLOTS.load(Ordering::Acquire).min(SLOTS);
    for slot in &TABLE[..used] {
        if slot.state.load(Ordering::Acquire) != LIVE {
            continue;
        }
        let (start, end) = (slot.start.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed));
        if address < start || address >= end {
            continue;
        }
        slot.poisoned.store(true, Ordering::Release);
        let whole = end.next_multiple_of(PAGE) - start;
        // A huge page cannot be replaced in part: then the whole mapping goes.
        return map_zeroes(address & !(PAGE - 1), PAGE) || map_zeroes(start, whole);
    }
    false
}

fn map_zeroes(start: usize, len: usize) -> bool {
    // SAFETY: the range lies inside a mapping that its owner registered and has not yet removed (a `Registration`
    // is dropped first), so nothing else is replaced; the owner's own `munmap` later covers the new pages too.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}
