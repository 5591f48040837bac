//! Synchronous access to an open image.

use std::io;
use std::sync::Arc;

use afterimage_block::{BlockError, Medium};

use crate::core::Core;
use crate::transfer::named;

pub(crate) struct ImageMedium {
    core: Arc<Core>,
    shard: usize,
}

impl ImageMedium {
    pub fn new(core: Arc<Core>) -> Self {
        let shard = core.counters.assign();
        Self { core, shard }
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.core.geometry.bytes() => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("bytes {offset}+{len} lie outside {}", self.core.path.display()),
            )),
        }
    }
}

impl Medium for ImageMedium {
    fn len(&self) -> u64 {
        self.core.geometry.bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.core.target(self.shard).read_slice(buf, offset).map_err(named(
            "reading",
            &self.core.path,
            offset,
        ))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.core.syncs.begin_write(offset, buf.len() as u64);
        let written = self.core.target(self.shard).write_slice(buf, offset).map_err(named(
            "writing",
            &self.core.path,
            offset,
        ));
        self.core.syncs.note_write(offset, buf.len() as u64);
        written
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.check(offset, len)?;
        self.core.syncs.begin_write(offset, len);
        let zeroed = self.core.methods.zero(&self.core.target(self.shard), offset, len, unmap);
        let zeroed = zeroed.map_err(named("zeroing", &self.core.path, offset));
        self.core.syncs.note_write(offset, len);
        zeroed
    }

    fn settle(&self) -> io::Result<()> {
        self.core.settle().map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.core.syncs.wait(self.core.syncs.need()).map_err(BlockError::into_io)
    }
}
