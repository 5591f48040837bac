//! A medium whose content is swapped while a guest has its disk attached but not mounted.
//!
//! Under a [`MediumDisk`] requests complete inside `Lane::submit`, so that none is in flight when the guest says that it is done
//! with a content.

use std::io;
use std::sync::Arc;

use afterimage_block::{Medium, MediumDisk};
use parking_lot::Mutex;

use crate::state::Scratch;

/// See the module. Without a content it reads as zeroes and forgets writes: what a guest sees while it boots.
pub struct SwapMedium {
    bytes: u64,
    current: Mutex<Option<Arc<Scratch>>>,
}

impl SwapMedium {
    /// For contents of `bytes` bytes, which is a multiple of 512.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, current: Mutex::new(None) })
    }

    /// A disk over it.
    pub fn disk(self: &Arc<Self>, serial: &str) -> MediumDisk {
        MediumDisk::with_serial(Arc::clone(self) as Arc<dyn Medium>, serial)
    }

    /// Shows another content, or none.
    pub fn swap(&self, content: Option<Arc<Scratch>>) {
        *self.current.lock() = content;
    }

    fn current(&self) -> Option<Arc<Scratch>> {
        self.current.lock().clone()
    }
}

impl Medium for SwapMedium {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.current() {
            Some(content) => content.read_at(buf, offset),
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.current().map_or(Ok(()), |content| content.write_at(buf, offset))
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.current().map_or(Ok(()), |content| content.zero_at(offset, len, unmap))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
