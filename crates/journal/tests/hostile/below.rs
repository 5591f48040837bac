//! A disk that completes what is in flight when it likes, in any order.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterimage_block::{
    BlockError, Completion, Disk, Geometry, Health, Lane, Medium, Operation, Request, SECTOR_BYTES,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::Memory;

/// A disk over memory. A request takes effect when it completes, whole, and not before.
pub struct DelayedDisk {
    memory: Arc<Memory>,
    health: Health,
    rng: Arc<Mutex<ChaCha8Rng>>,
    fail_next: Arc<AtomicBool>,
}

impl DelayedDisk {
    pub fn new(memory: Arc<Memory>, seed: u64, fail_next: Arc<AtomicBool>) -> Self {
        let rng = Arc::new(Mutex::new(ChaCha8Rng::seed_from_u64(seed)));
        Self { memory, health: Health::default(), rng, fail_next }
    }
}

impl Disk for DelayedDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.memory.len() / SECTOR_BYTES,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            read_only: false,
        }
    }

    fn serial(&self) -> &str {
        "delayed"
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(DelayedLane {
            memory: Arc::clone(&self.memory),
            rng: Arc::clone(&self.rng),
            fail_next: Arc::clone(&self.fail_next),
            held: Vec::new(),
            done: Vec::new(),
        }))
    }
}

struct DelayedLane {
    memory: Arc<Memory>,
    rng: Arc<Mutex<ChaCha8Rng>>,
    fail_next: Arc<AtomicBool>,
    held: Vec<Request>,
    done: Vec<Completion>,
}

impl DelayedLane {
    fn complete_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.rng.lock().unwrap().random_range(0..self.held.len());
        let request = self.held.swap_remove(at);
        let offset = request.sector.0 * SECTOR_BYTES;
        let failed = request.operation.is_write() && self.fail_next.swap(false, Ordering::SeqCst);
        match request.operation {
            _ if failed => {}
            Operation::Read => {
                let mut bytes = vec![0; request.buffers.len()];
                self.memory.read_at(&mut bytes, offset).unwrap();
                request.buffers.copy_from(0, &bytes);
            }
            Operation::Write { .. } => self.memory.write_at(&request.buffers.to_vec(), offset).unwrap(),
            Operation::Flush(_) => {}
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                self.memory.zero_at(offset, request.sectors * SECTOR_BYTES, true).unwrap();
            }
        }
        let result = match failed {
            true => Err(BlockError::io("a test", std::io::ErrorKind::Other.into())),
            false => Ok(()),
        };
        self.done.push(Completion { token: request.token, result });
    }
}

impl Lane for DelayedLane {
    fn submit(&mut self, request: Request) {
        self.held.push(request);
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        while !self.held.is_empty() && self.rng.lock().unwrap().random_ratio(1, 3) {
            self.complete_one();
        }
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.done.len()
    }

    fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> std::io::Result<()> {
        self.complete_one();
        Ok(())
    }
}
