//! A disk whose content is swapped while a guest has it attached but not mounted.
//!
//! Requests complete inside [`Lane::submit`], so that none is in flight when the guest says that it is done with a
//! content.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afterimage_block::{
    admit, wait_readable, BlockError, Completion, Disk, Geometry, Health, Lane, Medium as _, Operation,
    Request, SECTOR_BYTES,
};

use crate::state::Scratch;

/// See the module. Without a content it reads as zeroes and forgets writes: what a guest sees while it boots.
#[derive(Clone)]
pub struct SwapDisk {
    shared: Arc<Shared>,
}

struct Shared {
    geometry: Geometry,
    serial: String,
    health: Health,
    current: Mutex<Option<Arc<Scratch>>>,
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Option<Arc<Scratch>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SwapDisk {
    /// A disk for contents of `bytes` bytes, which is a multiple of 512.
    pub fn new(bytes: u64, serial: &str) -> Self {
        let geometry = Geometry {
            sectors: bytes / SECTOR_BYTES,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            read_only: false,
        };
        let (health, current) = (Health::default(), Mutex::new(None));
        Self { shared: Arc::new(Shared { geometry, serial: serial.to_owned(), health, current }) }
    }

    /// Shows another content, or none.
    pub fn swap(&self, content: Option<Arc<Scratch>>) {
        *self.shared.current() = content;
    }
}

impl Disk for SwapDisk {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn serial(&self) -> &str {
        &self.shared.serial
    }

    fn health(&self) -> &Health {
        &self.shared.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(SwapLane { shared: Arc::clone(&self.shared), done: Vec::new(), buffer: Vec::new() }))
    }
}

struct SwapLane {
    shared: Arc<Shared>,
    done: Vec<Completion>,
    buffer: Vec<u8>,
}

impl SwapLane {
    fn serve(&mut self, request: &Request) -> Result<(), BlockError> {
        let shared = &self.shared;
        admit(request, &shared.geometry, &shared.health)?;
        let Some(content) = shared.current().clone() else {
            if let Operation::Read = request.operation {
                request.buffers.fill_zero(0, request.buffers.len());
            }
            return Ok(());
        };
        let offset = request.sector.0.wrapping_mul(SECTOR_BYTES);
        let bytes = request.sectors * SECTOR_BYTES;
        let done = match request.operation {
            Operation::Read => {
                self.buffer.resize(request.buffers.len(), 0);
                let read = content.read_at(&mut self.buffer, offset);
                request.buffers.copy_from(0, &self.buffer);
                read
            }
            Operation::Write { .. } => {
                self.buffer.resize(request.buffers.len(), 0);
                request.buffers.copy_to(0, &mut self.buffer);
                content.write_at(&self.buffer, offset)
            }
            Operation::Discard { .. } => content.zero_at(offset, bytes, true),
            Operation::WriteZeroes { unmap, .. } => content.zero_at(offset, bytes, unmap),
            Operation::Flush(_) => Ok(()),
        };
        done.map_err(|error| BlockError::io(format!("a crash state, at byte {offset}"), error))
    }
}

impl Lane for SwapLane {
    fn submit(&mut self, request: Request) {
        let result = self.serve(&request);
        self.done.push(Completion { token: request.token, result });
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> std::io::Result<()> {
        if self.done.is_empty() {
            wait_readable(also, timeout)
        } else {
            Ok(())
        }
    }
}
