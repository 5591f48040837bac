//! Transactions without effect that take up room: see [`crate::ext4::released`].

use super::block::{COMMIT, COMMIT_CHECKSUM, COMMIT_SEC, MAGIC, REVOKE, REVOKE_HEADER, TAIL};
use super::checksum::{crc32c, uuid_seed};
use super::LogGeometry;
use crate::ids::{Block, Tid, BLOCK_BYTES};

/// A block of one: a revoke block that revokes nothing.
pub(crate) fn filler(geometry: &LogGeometry, tid: Tid) -> Block {
    let mut block = header(REVOKE, tid);
    // `r_count`: the header's own length.
    block[12..16].copy_from_slice(&(REVOKE_HEADER as u32).to_be_bytes());
    sign(geometry, &mut block, BLOCK_BYTES - TAIL);
    block
}

/// Its last block. With JBD2_FEATURE_COMPAT_CHECKSUM its fields say that they are not used.
pub(crate) fn commit(geometry: &LogGeometry, tid: Tid, commit_sec: u64) -> Block {
    let mut block = header(COMMIT, tid);
    block[COMMIT_SEC..COMMIT_SEC + 8].copy_from_slice(&commit_sec.to_be_bytes());
    sign(geometry, &mut block, COMMIT_CHECKSUM);
    block
}

fn header(kind: u32, tid: Tid) -> Block {
    let mut block = [0; BLOCK_BYTES];
    for (at, field) in [(0, MAGIC), (4, kind), (8, tid.0)] {
        block[at..at + 4].copy_from_slice(&field.to_be_bytes());
    }
    block
}

fn sign(geometry: &LogGeometry, block: &mut Block, at: usize) {
    if geometry.features.checksummed() {
        let crc = crc32c(uuid_seed(&geometry.uuid), block);
        block[at..at + 4].copy_from_slice(&crc.to_be_bytes());
    }
}
