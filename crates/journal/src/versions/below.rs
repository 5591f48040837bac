//! What is done to the disk below without a guest: looking, going home, writing through.

use afterimage_block::{BlockError, Blocking, Disk, FlushKind, Sector, SECTOR_BYTES};

use crate::ids::{Block, BLOCK_BYTES};

/// Largest write of one go, in bytes.
const RUN_BYTES_MAX: usize = 1 << 20;

/// A synchronous way into the lower disk.
pub(crate) struct Below {
    lane: Blocking,
    run: Vec<u8>,
}

impl Below {
    pub(crate) fn new(disk: &dyn Disk) -> Result<Self, BlockError> {
        Ok(Self { lane: Blocking::new(disk.open_lane()?), run: Vec::new() })
    }

    pub(crate) fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        self.lane.read(sector, buf)
    }

    pub(crate) fn read_block(&mut self, sector: Sector) -> Result<Block, BlockError> {
        let mut block = [0; BLOCK_BYTES];
        self.lane.read(sector, &mut block)?;
        Ok(block)
    }

    pub(crate) fn write(&mut self, sector: Sector, bytes: &[u8]) -> Result<(), BlockError> {
        self.lane.write(sector, bytes)
    }

    pub(crate) fn sync(&mut self) -> Result<(), BlockError> {
        self.lane.flush(FlushKind::Durable)
    }

    /// Writes whole sectors, sorted, each piece with its own content; neighbours go together.
    pub(crate) fn write_blocks<'a>(
        &mut self,
        blocks: impl IntoIterator<Item = (Sector, &'a [u8])>,
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
}
