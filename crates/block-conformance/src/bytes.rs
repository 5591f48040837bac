//! Bytes in memory.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;
use parking_lot::Mutex;

/// A medium that never fails, and forgets nothing. Reaching past its end is a defect of the test.
#[derive(Debug)]
pub struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    /// With this content.
    pub fn new(content: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(content)))
    }

    /// A copy of all of it.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().clone()
    }
}

impl Medium for Bytes {
    fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(&self.0.lock()[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.lock()[offset as usize..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.0.lock()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
