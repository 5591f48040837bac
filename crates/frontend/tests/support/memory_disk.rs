//! A disk in memory, for tests and measurements of the frontend alone: safe, sparse on first touch, one uncontended
//! lock per 64 KiB touched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use afterimage_block::{
    Admitted, BlockError, Disk, Geometry, Health, Lane, Operation, SynchronousLane, SECTOR_BYTES,
};

const CHUNK_BYTES: usize = 64 * 1024;

/// See the module.
pub struct MemoryDisk {
    shared: Arc<Shared>,
}

struct Shared {
    geometry: Geometry,
    health: Health,
    chunks: Vec<Mutex<Box<[u8]>>>,
    flushes: AtomicU64,
    flushed_writes: AtomicU64,
}

#[allow(dead_code)]
impl MemoryDisk {
    /// Zeroes; `bytes` is rounded up to 64 KiB.
    pub fn new(bytes: u64, read_only: bool) -> Self {
        Self::with_block(bytes, 512, read_only)
    }

    /// With another logical block size.
    pub fn with_block(bytes: u64, logical_block_bytes: u32, read_only: bool) -> Self {
        let count = bytes.div_ceil(CHUNK_BYTES as u64);
        let geometry = Geometry {
            sectors: count * CHUNK_BYTES as u64 / SECTOR_BYTES,
            logical_block_bytes,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            read_only,
        };
        let chunks = (0..count).map(|_| Mutex::new(vec![0; CHUNK_BYTES].into())).collect();
        let shared = Shared {
            geometry,
            health: Health::default(),
            chunks,
            flushes: AtomicU64::new(0),
            flushed_writes: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Flushes so far, and writes that were to complete as if flushed.
    pub fn flushes(&self) -> (u64, u64) {
        (self.shared.flushes.load(Ordering::Relaxed), self.shared.flushed_writes.load(Ordering::Relaxed))
    }
}

impl Disk for MemoryDisk {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn serial(&self) -> &str {
        "memory"
    }

    fn health(&self) -> &Health {
        &self.shared.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(SynchronousLane::new(self.geometry(), move |request: &Admitted| shared.serve(request))))
    }
}

impl Shared {
    fn serve(&self, request: &Admitted) -> Result<(), BlockError> {
        self.health.admit(request.operation)?;
        if request.operation.is_flushed() {
            self.flushed_writes.fetch_add(1, Ordering::Relaxed);
        }
        if let Operation::Flush(_) = request.operation {
            self.flushes.fetch_add(1, Ordering::Relaxed);
        }
        let start = (request.sector.0 * SECTOR_BYTES) as usize;
        let len = (request.sectors * SECTOR_BYTES) as usize;
        let mut done = 0;
        while done < len {
            let at = start + done;
            let inside = at % CHUNK_BYTES;
            let n = (len - done).min(CHUNK_BYTES - inside);
            let mut chunk = self.chunks[at / CHUNK_BYTES].lock().unwrap();
            let part = &mut chunk[inside..inside + n];
            match request.operation {
                Operation::Read => request.buffers.copy_from(done, part),
                Operation::Write { .. } => request.buffers.copy_to(done, part),
                _ => part.fill(0),
            }
            done += n;
        }
        Ok(())
    }
}
