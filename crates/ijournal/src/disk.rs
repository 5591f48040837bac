//! A disk of the daemon's layers as storage; and storage that keeps what is written to it in memory.

use std::collections::BTreeMap;
use std::io;

use afterimage_block::{BlockError, Blocking, Disk, FlushKind, Sector, SECTOR_BYTES};
use afterimage_journal::BLOCK_BYTES;

use crate::Storage;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A disk, through a lane of its own: whatever lies below keeps its order and its contract.
pub struct DiskStorage {
    lane: Blocking,
    bytes: u64,
}

impl DiskStorage {
    /// Opens a lane.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn open(disk: &dyn Disk) -> Result<Self, BlockError> {
        Ok(Self { lane: Blocking::new(disk.open_lane()?), bytes: disk.geometry().bytes() })
    }
}

fn other(error: BlockError) -> io::Error {
    io::Error::other(error)
}

impl Storage for DiskStorage {
    fn len(&self) -> u64 {
        self.bytes
    }

    /// In whole blocks: a disk may have sectors of 4096 bytes.
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.bytes);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let from = offset / BLOCK * BLOCK;
        let to = end.next_multiple_of(BLOCK).min(self.bytes / SECTOR_BYTES * SECTOR_BYTES);
        let mut whole = vec![0; (to - from) as usize];
        self.lane.read(Sector(from / SECTOR_BYTES), &mut whole).map_err(other)?;
        let within = whole.get((offset - from) as usize..).and_then(|bytes| bytes.get(..buf.len()));
        buf.copy_from_slice(within.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.lane.write(Sector(offset / SECTOR_BYTES), buf).map_err(other)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.lane.flush(FlushKind::Durable).map_err(other)
    }
}

/// Storage that is only read: what a recovery would do is found out by doing it here.
pub struct DryRun<'a> {
    below: &'a mut dyn Storage,
    written: BTreeMap<u64, Vec<u8>>,
}

impl<'a> DryRun<'a> {
    /// Above another.
    pub fn new(below: &'a mut dyn Storage) -> Self {
        Self { below, written: BTreeMap::new() }
    }
}

impl Storage for DryRun<'_> {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.below.read_at(buf, offset)?;
        let end = offset + buf.len() as u64;
        for (&at, content) in self.written.range(offset.saturating_sub(BLOCK - 1)..end) {
            let (from, to) = (at.max(offset), (at + content.len() as u64).min(end));
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&content[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    /// Recovery writes whole blocks, so none of two overlap but in all of them.
    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.written.insert(offset, buf.to_vec());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}
