//! What a replay starts from, and what it hands to the lanes.

use std::sync::Arc;

use afterimage_block::{Buffers, FlushKind, Medium, Operation, Request, Sector, Token};
use afterimage_format::log::{ImageEntry, RECORDS_OFFSET};
use afterimage_order::redo::create_medium;
use afterimage_trace::{Op, Sparse, TargetId};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::tape::{Tape, TapeMedium};
use crate::{ExploreError, Result};

/// The content of a log right after its creation for these images.
pub(super) fn new_log(area_bytes: u64, homes: &[Arc<TapeMedium>], rng: &mut ChaCha8Rng) -> Result<Sparse> {
    let bytes = RECORDS_OFFSET + area_bytes;
    // On a tape of its own: a crash during the creation leaves a file that has not got its name yet.
    let tape = Tape::new(Arc::default(), 0);
    let log = TapeMedium::new(&tape, TargetId(0), Sparse::new(bytes));
    let images: Vec<ImageEntry> = homes
        .iter()
        .zip(1u64..)
        .map(|(home, inode)| ImageEntry {
            inode: inode.into(),
            size_bytes: home.len().into(),
            ..ImageEntry::default()
        })
        .collect();
    let media: Vec<_> = homes.iter().map(|home| Arc::clone(home) as Arc<dyn Medium>).collect();
    let shared = Arc::clone(&log) as Arc<dyn Medium>;
    create_medium(&shared, &media, &images, &[], rng.random(), rng.random())
        .map_err(ExploreError::io("creating a redo log in memory"))?;
    Ok(log.content())
}

/// A guest's request as a lane takes it; its token is the guest's name for it.
pub(super) fn request(id: u64, op: &Op) -> Request {
    let (operation, offset, len, buffers) = match op {
        Op::Write { offset, data, flushed } => {
            (Operation::Write { flushed: *flushed }, *offset, data.len() as u64, Buffers::from_bytes(data))
        }
        Op::Zero { offset, len, unmap: true, flushed } => {
            (Operation::Discard { flushed: *flushed }, *offset, *len, Buffers::empty())
        }
        Op::Zero { offset, len, unmap: false, flushed } => {
            let operation = Operation::WriteZeroes { unmap: false, flushed: *flushed };
            (operation, *offset, *len, Buffers::empty())
        }
        Op::Flush => (Operation::Flush(FlushKind::Order), 0, 0, Buffers::empty()),
    };
    Request { token: Token(id), operation, sector: Sector(offset / 512), sectors: len / 512, buffers }
}
