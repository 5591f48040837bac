//! What the retainer itself does to the disk below: looking, going home, writing through.

use std::sync::Arc;

use afterimage_block::{BlockError, Blocking, Disk, FlushKind, Sector, SECTOR_BYTES};
use afterimage_order::{HomeError, HomeWriter};

use crate::ids::{Block, BLOCK_BYTES, BLOCK_SECTORS};
use crate::layout::Source;

/// Largest write of one go, in bytes.
const RUN_BYTES_MAX: usize = 1 << 20;

/// A synchronous way into the lower disk.
pub(super) struct Below {
    lane: Blocking,
    home: Option<Arc<dyn HomeWriter>>,
    run: Vec<u8>,
}

impl Below {
    pub(super) fn new(disk: &dyn Disk, home: Option<Arc<dyn HomeWriter>>) -> Result<Self, BlockError> {
        Ok(Self { lane: Blocking::new(disk.open_lane()?), home, run: Vec::new() })
    }

    /// Whether what is durable is decided by a log: transactions go home when they commit.
    pub(super) fn applies(&self) -> bool {
        self.home.is_some()
    }

    pub(super) fn write(&mut self, sector: Sector, bytes: &[u8]) -> Result<(), BlockError> {
        self.lane.write(sector, bytes)
    }

    pub(super) fn sync(&mut self) -> Result<(), BlockError> {
        self.lane.flush(FlushKind::Durable)
    }

    /// Writes blocks, sorted by sector, each with its own content; neighbours go together.
    pub(super) fn write_blocks<'a>(
        &mut self,
        blocks: impl IntoIterator<Item = (Sector, &'a Block)>,
    ) -> Result<(), BlockError> {
        let mut run = std::mem::take(&mut self.run);
        let mut start = Sector(0);
        run.clear();
        for (sector, content) in blocks {
            let end = start.0 + run.len() as u64 / SECTOR_BYTES;
            if !run.is_empty() && (sector.0 != end || run.len() >= RUN_BYTES_MAX) {
                self.lane.write(start, &run)?;
                run.clear();
            }
            if run.is_empty() {
                start = sector;
            }
            run.extend_from_slice(content);
        }
        if !run.is_empty() {
            self.lane.write(start, &run)?;
        }
        run.clear();
        self.run = run;
        Ok(())
    }

    /// Writes pieces as one, where a transaction's home writes are.
    pub(super) fn write_home(&mut self, pieces: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        match &self.home {
            Some(home) => home.write_home(pieces),
            None => Ok(pieces.iter().try_for_each(|(sector, bytes)| self.lane.write(*sector, bytes))?),
        }
    }

    /// The most that [`Below::write_home`] takes, in bytes.
    pub(super) fn atomic_bytes_max(&self) -> u64 {
        self.home.as_ref().map_or(u64::MAX, |home| home.atomic_bytes_max())
    }

    pub(super) fn read_block(&mut self, sector: Sector) -> Result<Block, BlockError> {
        let mut block = [0; BLOCK_BYTES];
        self.lane.read(sector, &mut block)?;
        Ok(block)
    }
}

impl Source for Below {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        self.lane.read(sector, buf)
    }
}

const _: () = assert!(BLOCK_SECTORS == 8);
