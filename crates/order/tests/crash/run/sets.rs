//! Sets of home writes in a run.

use afterimage_order::{HomeError, LoggedDisk};

use super::*;

impl Run {
    /// A set of blocks of one disk, of any shape: neighbours, overlaps, more than one piece of the log.
    pub(super) fn write_set(&mut self) -> Checked {
        let disk = self.rng.random_range(0..self.disk_sectors.len());
        let byte = self.token().0 as u8;
        let (mut changes, mut left) = (Vec::new(), self.core().set_bytes_max() as usize / SECTOR);
        for n in 0..self.rng.random_range(0..12u8) {
            let sectors = [1, 1, 2, 8][self.rng.random_range(0..4)].min(left).min(self.disk_sectors[disk]);
            let sectors = self.uniform.unwrap_or(sectors);
            if sectors == 0 || sectors > left || sectors > self.disk_sectors[disk] {
                break;
            }
            left -= sectors;
            let sector = self.rng.random_range(0..=self.disk_sectors[disk] - sectors);
            let content = if self.rng.random_range(0..6) == 0 { 0x55 } else { byte.wrapping_add(n) };
            changes.push(Change {
                disk,
                sector,
                sectors,
                data: Some(vec![content; sectors * SECTOR].into()),
            });
        }
        let blocks: Vec<(Sector, &[u8])> = changes
            .iter()
            .map(|c| (Sector(c.sector as u64), c.data.as_deref().unwrap_or_default()))
            .collect();
        let (core, before) = (Arc::clone(self.core()), self.history.last());
        let dead = self.world.halted() || core.board.health.failure().is_some();
        match core.try_write_set(LoggedDisk(disk as u16), &blocks) {
            Ok(None) => self.tally.waiting_sets += 1,
            Ok(Some(last)) if last.0 == before => {}
            Ok(Some(last)) => {
                self.history.push_set(changes, last.0);
                self.completed_max = last.0;
                self.tally.sets += 1;
            }
            Err(HomeError::Block(_)) if dead => {}
            Err(HomeError::Block(_)) if self.world.halted() || core.board.health.failure().is_some() => {
                self.broken_set = Some(changes);
            }
            Err(e) => return Err(format!("a set failed: {e}")),
        }
        Ok(())
    }
}
