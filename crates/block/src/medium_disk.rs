//! A [`Disk`] over any [`Medium`], completing inside [`Lane::submit`]: for tests, simulations and offline tools,
//! where the order of effects must be the order of calls.

use std::io;
use std::sync::Arc;

use crate::{
    Admitted, BlockError, Disk, Geometry, Health, Lane, Medium, Operation, SynchronousLane, SECTOR_BYTES,
};

/// See the module.
pub struct MediumDisk {
    shared: Arc<Shared>,
}

struct Shared {
    medium: Arc<dyn Medium>,
    geometry: Geometry,
    serial: String,
    health: Health,
}

impl MediumDisk {
    /// A writable disk of the medium's size, rounded down to whole sectors.
    pub fn new(medium: Arc<dyn Medium>) -> Self {
        Self::build(medium, "medium", false)
    }

    /// The same, taking no writes.
    pub fn read_only(medium: Arc<dyn Medium>) -> Self {
        Self::build(medium, "medium", true)
    }

    /// With a serial of its own (at most 20 bytes are shown to a guest).
    pub fn with_serial(medium: Arc<dyn Medium>, serial: &str) -> Self {
        Self::build(medium, serial, false)
    }

    fn build(medium: Arc<dyn Medium>, serial: &str, read_only: bool) -> Self {
        let geometry = Geometry {
            sectors: medium.len() / SECTOR_BYTES,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            read_only,
        };
        Self {
            shared: Arc::new(Shared {
                medium,
                geometry,
                serial: serial.to_owned(),
                health: Health::default(),
            }),
        }
    }
}

impl Disk for MediumDisk {
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
        let mut service = Service { shared: Arc::clone(&self.shared), scratch: Vec::new() };
        Ok(Box::new(SynchronousLane::new(self.geometry(), move |request: &Admitted| service.serve(request))))
    }
}

struct Service {
    shared: Arc<Shared>,
    scratch: Vec<u8>,
}

impl Service {
    fn serve(&mut self, request: &Admitted) -> Result<(), BlockError> {
        let shared = &self.shared;
        shared.health.admit(request.operation)?;
        let offset = request.sector.0.wrapping_mul(SECTOR_BYTES);
        let medium = &shared.medium;
        match request.operation {
            Operation::Read => {
                self.scratch.resize(request.buffers.len(), 0);
                medium
                    .read_at(&mut self.scratch, offset)
                    .map_err(|e| BlockError::io(format!("reading at byte {offset}"), e))?;
                request.buffers.copy_from(0, &self.scratch);
            }
            Operation::Write { .. } => {
                self.scratch.resize(request.buffers.len(), 0);
                request.buffers.copy_to(0, &mut self.scratch);
                let written = medium.write_at(&self.scratch, offset);
                self.fatal(written, || format!("writing at byte {offset}"))?;
            }
            Operation::Discard { .. } => {
                let zeroed = medium.zero_at(offset, request.sectors * SECTOR_BYTES, true);
                self.fatal(zeroed, || format!("discarding at byte {offset}"))?;
            }
            Operation::WriteZeroes { unmap, .. } => {
                let zeroed = medium.zero_at(offset, request.sectors * SECTOR_BYTES, unmap);
                self.fatal(zeroed, || format!("zeroing at byte {offset}"))?;
            }
            Operation::Flush(_) => {}
        }
        if matches!(request.operation, Operation::Flush(_)) || request.operation.is_flushed() {
            self.fatal(medium.sync(), || "syncing".to_owned())?;
        }
        Ok(())
    }

    /// A failure of what changes the disk: it stays read-only from here on.
    fn fatal(&self, result: io::Result<()>, context: impl Fn() -> String) -> Result<(), BlockError> {
        result.map_err(|e| {
            self.shared.health.fail(format!("{}: {e}", context()));
            BlockError::io(context(), e)
        })
    }
}
