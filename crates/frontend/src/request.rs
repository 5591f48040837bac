//! virtio-blk requests (virtio 1.2 § 5.2.6): what a chain asks for, and the status it gets at once where it asks for
//! something that is not to be had.

use afterimage_block::{Buffers, ErrorKind, FlushKind, Geometry, Operation, Sector, SECTOR_BYTES};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

use crate::chain::Chain;
use crate::config::{Features, RANGES_MAX, RANGE_SECTORS_MAX};
use crate::stats::RequestKind;

/// VIRTIO_BLK_S_OK.
pub(crate) const S_OK: u8 = 0;
/// VIRTIO_BLK_S_IOERR.
pub(crate) const S_IOERR: u8 = 1;
/// VIRTIO_BLK_S_UNSUPP.
pub(crate) const S_UNSUPP: u8 = 2;

const HEADER_BYTES: u64 = 16;
const RANGE_BYTES: u64 = 16;
const ID_BYTES: usize = 20;
const RANGE_F_UNMAP: u32 = 1;
/// Most iovecs one system call takes (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// What a device is, as far as requests depend on it.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub geometry: Geometry,
    pub features: Features,
    pub serial: [u8; ID_BYTES],
}

impl Shape {
    pub fn new(geometry: Geometry, features: Features, serial: &str) -> Self {
        let mut id = [0; ID_BYTES];
        let n = serial.len().min(ID_BYTES);
        id[..n].copy_from_slice(&serial.as_bytes()[..n]);
        Self { geometry, features, serial: id }
    }
}

/// One range of a discard or write-zeroes request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub operation: Operation,
    pub sector: Sector,
    pub sectors: u64,
}

/// What to do with a chain.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// One request for the lane.
    Submit { kind: RequestKind, operation: Operation, sector: Sector, sectors: u64, buffers: Buffers },
    /// Several, answered together; the ranges are in the caller's scratch vector.
    Ranges { kind: RequestKind },
    /// Answered here: the status, and how many data bytes were written in front of it.
    Answer { kind: RequestKind, status: u8 },
    /// There is nowhere to put a status.
    Unanswerable,
}

/// Decides what a walked chain asks for. Ranges go to `ranges`, which is cleared first.
pub(crate) fn classify(chain: &Chain, shape: &Shape, flushed: bool, ranges: &mut Vec<Range>) -> Verdict {
    ranges.clear();
    if chain.status.is_none() {
        return Verdict::Unanswerable;
    }
    let answer = |kind, status| Verdict::Answer { kind, status };
    if chain.fault.is_some() || chain.readable.len() < HEADER_BYTES {
        return answer(RequestKind::Other, S_IOERR);
    }
    let mut header = [0; HEADER_BYTES as usize];
    chain.readable.copy_to(0, &mut header);
    let code = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let sector = Sector(u64::from_le_bytes(*header.last_chunk().expect("16 bytes end in 8")));
    match code {
        VIRTIO_BLK_T_IN => {
            // The status byte is the last writable one.
            let len = chain.writable.len() - 1;
            match check_data(shape, sector, len, chain.writable.pieces()) {
                Err(()) => answer(RequestKind::Read, S_IOERR),
                Ok(0) => answer(RequestKind::Read, S_OK),
                Ok(sectors) => {
                    let buffers = chain.writable.buffers(0, len);
                    Verdict::Submit {
                        kind: RequestKind::Read,
                        operation: Operation::Read,
                        sector,
                        sectors,
                        buffers,
                    }
                }
            }
        }
        VIRTIO_BLK_T_OUT => {
            let len = chain.readable.len() - HEADER_BYTES;
            if shape.geometry.read_only {
                return answer(RequestKind::Write, S_IOERR);
            }
            match check_data(shape, sector, len, chain.readable.pieces()) {
                Err(()) => answer(RequestKind::Write, S_IOERR),
                Ok(0) => answer(RequestKind::Write, S_OK),
                Ok(sectors) => Verdict::Submit {
                    kind: RequestKind::Write,
                    operation: Operation::Write { flushed },
                    sector,
                    sectors,
                    buffers: chain.readable.buffers(HEADER_BYTES, len),
                },
            }
        }
        VIRTIO_BLK_T_FLUSH => Verdict::Submit {
            kind: RequestKind::Flush,
            operation: Operation::Flush(FlushKind::Order),
            sector: Sector(0),
            sectors: 0,
            buffers: Buffers::empty(),
        },
        VIRTIO_BLK_T_DISCARD if shape.features.discard() => {
            read_ranges(chain, shape, RequestKind::Discard, flushed, ranges)
        }
        VIRTIO_BLK_T_WRITE_ZEROES if shape.features.write_zeroes() => {
            read_ranges(chain, shape, RequestKind::WriteZeroes, flushed, ranges)
        }
        VIRTIO_BLK_T_GET_ID => {
            let room = (chain.writable.len() - 1).min(ID_BYTES as u64) as usize;
            chain.writable.copy_from(0, &shape.serial[..room]);
            answer(RequestKind::Other, S_OK)
        }
        _ => answer(RequestKind::Other, S_UNSUPP),
    }
}

/// The number of sectors of a read or write that may go on.
fn check_data(shape: &Shape, sector: Sector, len: u64, pieces: usize) -> Result<u64, ()> {
    let block = u64::from(shape.geometry.logical_block_bytes);
    let block_sectors = block / SECTOR_BYTES;
    if len % block != 0 || sector.0 % block_sectors != 0 || pieces > PIECES_MAX {
        return Err(());
    }
    let sectors = len / SECTOR_BYTES;
    shape.geometry.check_range(sector, sectors).map_err(|_| ())?;
    Ok(sectors)
}

/// Reads the `struct virtio_blk_discard_write_zeroes` segments and checks all of them before any is executed.
fn read_ranges(
    chain: &Chain,
    shape: &Shape,
    kind: RequestKind,
    flushed: bool,
    ranges: &mut Vec<Range>,
) -> Verdict {
    let answer = |status| Verdict::Answer { kind, status };
    let len = chain.readable.len() - HEADER_BYTES;
    let block_sectors = u64::from(shape.geometry.logical_block_bytes) / SECTOR_BYTES;
    if len == 0 || len % RANGE_BYTES != 0 || len / RANGE_BYTES > u64::from(RANGES_MAX) {
        return answer(S_IOERR);
    }
    let mut failed = false;
    for at in (HEADER_BYTES..HEADER_BYTES + len).step_by(RANGE_BYTES as usize) {
        let mut bytes = [0; RANGE_BYTES as usize];
        chain.readable.copy_to(at, &mut bytes);
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let sector = Sector(u64::from_le_bytes(*bytes.first_chunk().expect("16 bytes begin with 8")));
        let (sectors, flags) = (word(8), word(12));
        // Unknown flags, and UNMAP on a discard, are unsupported whatever else is wrong (virtio 1.2 § 5.2.6.2).
        if flags & !RANGE_F_UNMAP != 0 || (kind == RequestKind::Discard && flags != 0) {
            ranges.clear();
            return answer(S_UNSUPP);
        }
        let sectors = u64::from(sectors);
        failed |= sectors > u64::from(RANGE_SECTORS_MAX)
            || sector.0 % block_sectors != 0
            || sectors % block_sectors != 0
            || shape.geometry.check_range(sector, sectors).is_err();
        let operation = match kind {
            RequestKind::Discard => Operation::Discard { flushed },
            _ => Operation::WriteZeroes { unmap: flags & RANGE_F_UNMAP != 0, flushed },
        };
        if sectors > 0 {
            ranges.push(Range { operation, sector, sectors });
        }
    }
    if failed {
        ranges.clear();
        return answer(S_IOERR);
    }
    if ranges.is_empty() {
        return answer(S_OK);
    }
    Verdict::Ranges { kind }
}

/// The status for a lane's answer.
pub(crate) fn status_of(error: ErrorKind) -> u8 {
    match error {
        ErrorKind::Unsupported => S_UNSUPP,
        ErrorKind::BadRequest
        | ErrorKind::ReadOnly
        | ErrorKind::Corrupt
        | ErrorKind::NoSpace
        | ErrorKind::Io => S_IOERR,
    }
}
