//! Making ranges read as zeroes, as cheaply as the file allows.
//!
//! ```text
//! give space back:  punch a hole ─► zero the range ─► write zeroes
//! keep space:                       zero the range ─► write zeroes
//! ```
//!
//! Each step is left for ever once the file system said that it does not know it. `fallocate` does all of it for
//! block devices too, where BLKDISCARD would not promise zeroes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{fallocate, FallocateFlags};

use crate::transfer::Target;

/// Bytes written at a time where nothing better works.
pub(crate) const ZERO_CHUNK_BYTES: usize = 64 << 10;

#[repr(align(4096))]
struct Zeroes([u8; ZERO_CHUNK_BYTES]);
static ZEROES: Zeroes = Zeroes([0; ZERO_CHUNK_BYTES]);

/// Aligned zero bytes.
pub(crate) fn zeroes() -> &'static [u8] {
    &ZEROES.0
}

/// A way of zeroing, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `FALLOC_FL_PUNCH_HOLE`.
    Punch,
    /// `FALLOC_FL_ZERO_RANGE`.
    Zero,
    /// Zeroes as data.
    Write,
}

impl Method {
    /// The mode for fallocate; `None` for [`Method::Write`].
    pub fn mode(self) -> Option<FallocateFlags> {
        match self {
            Self::Punch => Some(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            Self::Zero => Some(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            Self::Write => None,
        }
    }
}

/// Which methods a file is known not to offer.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    no_punch: AtomicBool,
    no_zero: AtomicBool,
}

impl Methods {
    /// The method to try first.
    pub fn best(&self, unmap: bool) -> Method {
        if unmap && !self.no_punch.load(Ordering::Relaxed) {
            Method::Punch
        } else if !self.no_zero.load(Ordering::Relaxed) {
            Method::Zero
        } else {
            Method::Write
        }
    }

    /// Learns from an error: whether another method should be tried.
    pub fn learn(&self, method: Method, error: &io::Error) -> bool {
        // ENOSYS and ENODEV from stacked file systems, EINVAL from some that know only mode 0.
        let unknown = matches!(
            error.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV | libc::EINVAL)
        );
        match method {
            Method::Punch if unknown => self.no_punch.store(true, Ordering::Relaxed),
            Method::Zero if unknown => self.no_zero.store(true, Ordering::Relaxed),
            _ => return false,
        }
        true
    }

    /// Zeroes a range, waiting for it.
    pub fn zero(&self, target: &Target<'_>, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        loop {
            let method = self.best(unmap);
            let Some(mode) = method.mode() else { break };
            match fallocate(target.file, mode, offset, len) {
                Ok(()) => {
                    match method {
                        Method::Punch => target.shard.discarded(),
                        _ => target.shard.zeroed(),
                    }
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(e) => {
                    let error = io::Error::from(e);
                    if !self.learn(method, &error) {
                        return Err(error);
                    }
                }
            }
        }
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let n = (end - at).min(ZERO_CHUNK_BYTES as u64);
            target.write_slice(&zeroes()[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }
}
