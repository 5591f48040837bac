//! The checks that every layer makes before it looks at a request any closer.

use crate::{BlockError, Geometry, Health, Operation, Request, SECTOR_BYTES};

/// Whether a request may be served: its range lies on the disk, its buffers are as long as its range, a write
/// goes to a writable disk, and a write or flush goes to one that has not failed. A flush of a read-only disk is
/// fine: there is nothing to lose.
pub fn admit(request: &Request, geometry: &Geometry, health: &Health) -> Result<(), BlockError> {
    match request.operation {
        Operation::Flush(_) => return health.check(),
        Operation::Read | Operation::Write { .. } => {
            geometry.check_range(request.sector, request.sectors)?;
            // In range, so the product fits: a disk's size in bytes does.
            if request.buffers.len() as u64 != request.sectors * SECTOR_BYTES {
                return Err(BlockError::Unsupported("the buffers are not as long as the range".into()));
            }
        }
        Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
            geometry.check_range(request.sector, request.sectors)?;
        }
    }
    let block_sectors = u64::from(geometry.logical_block_bytes) / SECTOR_BYTES;
    if block_sectors > 1 && (request.sector.0 | request.sectors) % block_sectors != 0 {
        return Err(BlockError::Unsupported("the range is not a multiple of the logical block size".into()));
    }
    if request.operation.is_write() {
        if geometry.read_only {
            return Err(BlockError::ReadOnly);
        }
        health.check()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffers, FlushKind, Sector, Token};

    fn request(operation: Operation, sector: u64, sectors: u64, bytes: usize) -> Request {
        Request {
            token: Token(0),
            operation,
            sector: Sector(sector),
            sectors,
            buffers: Buffers::allocate(bytes),
        }
    }

    #[test]
    fn only_good_requests_are_admitted() {
        let mut geometry = Geometry {
            sectors: 16,
            logical_block_bytes: 4096,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            read_only: false,
        };
        let health = Health::default();
        let write = Operation::Write { flushed: false };
        let ok = |g: &Geometry, h: &Health, r: Request| admit(&r, g, h).is_ok();
        assert!(ok(&geometry, &health, request(write, 8, 8, 4096)));
        assert!(!ok(&geometry, &health, request(write, 8, 8, 512)), "short buffers");
        assert!(!ok(&geometry, &health, request(write, 16, 8, 4096)), "past the end");
        assert!(!ok(&geometry, &health, request(write, u64::MAX, 8, 4096)), "overflow");
        assert!(!ok(&geometry, &health, request(Operation::Read, 1, 8, 4096)), "not a logical block");
        geometry.read_only = true;
        assert!(!ok(&geometry, &health, request(write, 8, 8, 4096)), "read-only");
        assert!(ok(&geometry, &health, request(Operation::Read, 8, 8, 4096)));
        health.fail("gone");
        assert!(!ok(&geometry, &health, request(Operation::Flush(FlushKind::Order), 0, 0, 0)));
        assert!(ok(&geometry, &health, request(Operation::Read, 8, 8, 4096)), "reads go on");
    }
}
