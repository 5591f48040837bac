//! What all lanes and media of one image share.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use afterimage_block::{BlockError, Geometry, Health};

use crate::counters::Counters;
use crate::direct::Backing;
use crate::stored;
use crate::syncs::{self, Syncs};
use crate::transfer::{Alignment, Target};
use crate::zero::Methods;

pub(crate) struct Core {
    pub file: Arc<File>,
    pub path: PathBuf,
    pub serial: String,
    pub geometry: Geometry,
    pub health: Health,
    pub counters: Arc<Counters>,
    /// With O_DIRECT.
    pub alignment: Option<Alignment>,
    pub backing: Backing,
    pub methods: Methods,
    pub syncs: Arc<Syncs>,
}

impl Core {
    /// The image as a target of synchronous I/O, counted in shard `shard`.
    pub fn target(&self, shard: usize) -> Target<'_> {
        Target { file: &self.file, alignment: self.alignment, shard: self.counters.shard(shard) }
    }

    /// Makes everything that has completed durable, waiting for it.
    pub fn sync(&self) -> Result<(), BlockError> {
        if self.geometry.read_only {
            return self.health.check();
        }
        self.syncs.wait(self.syncs.need())
    }

    /// See [`crate::stored::settle`].
    pub fn settle(&self) -> io::Result<u64> {
        let buffered = self.alignment.is_none();
        stored::settle(&self.syncs, &self.target(0), self.geometry.bytes(), buffered, &self.path)
    }

    /// A read failed: that request's error and nobody else's.
    pub fn read_failed(&self, offset: u64, error: io::Error) -> BlockError {
        BlockError::io(format!("reading {} at byte {offset}", self.path.display()), error)
    }

    /// A write, discard or zeroing failed: the disk is read-only from here on. Memory that a guest took away is the
    /// guest's own fault and fails only that request.
    pub fn change_failed(&self, doing: &str, offset: u64, error: io::Error) -> BlockError {
        let context = format!("{doing} {} at byte {offset}", self.path.display());
        if error.raw_os_error() != Some(libc::EFAULT) {
            syncs::fail(&self.health, &context, &error);
        }
        BlockError::io(context, error)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Every lane and medium is gone, and each waited for its I/O.
        self.syncs.stop();
        self.syncs.end();
        crate::lock::release(&self.file);
    }
}
