//! A disk that completes what is in flight when it likes, in any order.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, Geometry, Health, Lane, Medium, Operation, SECTOR_BYTES,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::Memory;

/// A disk over memory. A request takes effect when it completes, whole, and not before.
pub struct DelayedDisk {
    memory: Arc<Memory>,
    health: Health,
    rng: Arc<Mutex<ChaCha8Rng>>,
    faults: Arc<Faults>,
}

/// What is wrong with it.
#[derive(Default)]
pub struct Faults {
    /// The next write fails.
    pub write: AtomicBool,
    /// The next read fails.
    pub read: AtomicBool,
    pub slow: Slow,
}

impl Faults {
    fn strikes(&self, operation: Operation) -> bool {
        let fault = if operation.is_write() { &self.write } else { &self.read };
        !matches!(operation, Operation::Flush(_)) && fault.swap(false, Ordering::SeqCst)
    }
}

/// Writes of one sector that take long: as many turns of the disk as is said.
#[derive(Default)]
pub struct Slow {
    sector: AtomicU64,
    turns: AtomicU64,
}

impl Slow {
    pub fn set(&self, sector: u64, turns: u64) {
        self.sector.store(sector, Ordering::SeqCst);
        self.turns.store(turns, Ordering::SeqCst);
    }

    /// Whether some writes take long just now.
    #[allow(dead_code)] // Recorded guests ask, others know.
    pub fn is_set(&self) -> bool {
        self.turns.load(Ordering::SeqCst) > 0
    }

    fn holds(&self, request: &Admitted) -> bool {
        let sector = self.sector.load(Ordering::SeqCst);
        self.turns.load(Ordering::SeqCst) > 0
            && request.operation.is_write()
            && (request.sector.0..request.sector.0 + request.sectors).contains(&sector)
    }
}

impl DelayedDisk {
    pub fn new(memory: Arc<Memory>, seed: u64, faults: Arc<Faults>) -> Self {
        let rng = Arc::new(Mutex::new(ChaCha8Rng::seed_from_u64(seed)));
        Self { memory, health: Health::default(), rng, faults }
    }
}

fn geometry(memory: &Memory) -> Geometry {
    Geometry {
        sectors: memory.len() / SECTOR_BYTES,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        discard_granularity_bytes: 4096,
        read_only: false,
    }
}

impl Disk for DelayedDisk {
    fn geometry(&self) -> Geometry {
        geometry(&self.memory)
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
            faults: Arc::clone(&self.faults),
            held: Vec::new(),
            done: Vec::new(),
        }))
    }
}

struct DelayedLane {
    memory: Arc<Memory>,
    rng: Arc<Mutex<ChaCha8Rng>>,
    faults: Arc<Faults>,
    held: Vec<Admitted>,
    done: Vec<Completion>,
}

impl DelayedLane {
    fn complete_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let mut at = self.rng.lock().unwrap().random_range(0..self.held.len());
        if self.faults.slow.turns.load(Ordering::SeqCst) > 0 {
            self.faults.slow.turns.fetch_sub(1, Ordering::SeqCst);
            let Some(other) = self.held.iter().position(|r| !self.faults.slow.holds(r)) else { return };
            at = other;
        }
        let request = self.held.swap_remove(at);
        let offset = request.sector.0 * SECTOR_BYTES;
        let failed = self.faults.strikes(request.operation);
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
    fn geometry(&self) -> Geometry {
        geometry(&self.memory)
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
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
