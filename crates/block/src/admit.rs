//! The checks that a request passes once, before any layer looks at it closer.

use std::ops::Deref;

use crate::{
    BlockError, Buffers, Completion, FlushKind, Geometry, Operation, Request, Sector, Token, SECTOR_BYTES,
};

/// A request that the disk may serve: its range lies on the disk and is a multiple of its logical blocks, its buffers are as long
/// as its range, and a write goes to a writable disk. Only admission makes one, and what is made of it stays within it: no layer below
/// looks again. Whether the disk has failed meanwhile is for each layer to say ([`crate::Health::admit`]).
#[derive(Debug)]
pub struct Admitted(Request);

impl Admitted {
    /// Looks at a request. A flush of a read-only disk is fine: there is nothing to lose.
    ///
    /// # Errors
    /// The answer to one that may not be served.
    pub fn new(request: Request, geometry: &Geometry) -> Result<Self, Completion> {
        match check(&request, geometry) {
            Ok(()) => Ok(Self(request)),
            Err(error) => Err(Completion { token: request.token, result: Err(error) }),
        }
    }

    /// A flush, which has no range.
    pub fn flush(token: Token, kind: FlushKind) -> Self {
        let (operation, buffers) = (Operation::Flush(kind), Buffers::empty());
        Self(Request { token, operation, sector: Sector(0), sectors: 0, buffers })
    }

    /// The same operation on a part of its range.
    ///
    /// # Panics
    /// It is no part.
    pub fn part(&self, token: Token, sector: Sector, sectors: u64) -> Self {
        let whole = &self.0;
        let from = sector.0.checked_sub(whole.sector.0).expect("a part begins within the whole");
        assert!(from + sectors <= whole.sectors, "a part ends within the whole");
        let buffers = match whole.buffers.is_empty() {
            true => Buffers::empty(),
            false => whole.buffers.slice((from * SECTOR_BYTES) as usize, (sectors * SECTOR_BYTES) as usize),
        };
        Self(Request { token, operation: whole.operation, sector, sectors, buffers })
    }

    /// The same with other memory.
    ///
    /// # Panics
    /// It has another length.
    pub fn with_buffers(self, buffers: Buffers) -> Self {
        assert_eq!(buffers.len(), self.0.buffers.len(), "as much memory as before");
        Self(Request { buffers, ..self.0 })
    }

    /// The same under another name.
    pub fn with_token(self, token: Token) -> Self {
        Self(Request { token, ..self.0 })
    }

    /// The same, which need not complete as if flushed.
    pub fn unflushed(self) -> Self {
        let operation = match self.0.operation {
            Operation::Write { .. } => Operation::Write { flushed: false },
            Operation::Discard { .. } => Operation::Discard { flushed: false },
            Operation::WriteZeroes { unmap, .. } => Operation::WriteZeroes { unmap, flushed: false },
            other => other,
        };
        Self(Request { operation, ..self.0 })
    }

    /// For who takes it apart.
    pub fn into_request(self) -> Request {
        self.0
    }
}

impl Deref for Admitted {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.0
    }
}

fn check(request: &Request, geometry: &Geometry) -> Result<(), BlockError> {
    match request.operation {
        Operation::Flush(_) => return Ok(()),
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
    match request.operation.is_write() && geometry.read_only {
        true => Err(BlockError::ReadOnly),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Health;

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
        let ok = |g: &Geometry, h: &Health, r: Request| {
            Admitted::new(r, g).is_ok_and(|admitted| h.admit(admitted.operation).is_ok())
        };
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
