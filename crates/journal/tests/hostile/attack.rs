//! What no file system does.

use afterimage_block::Operation;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::{AreaBlock, FsBlock, Tid, BLOCK_BYTES};
use rand::{Rng, RngExt};

use crate::guest::{seal, Guest, BLOCKS, START};

impl Guest {
    /// One of them.
    pub fn attack(&mut self) {
        self.unsound();
        let first = self.geometry.first.0;
        let any = AreaBlock(self.rng.random_range(first..self.geometry.maxlen));
        match self.rng.random_range(0..16) {
            0 => {
                // A superblock with any tail.
                let near = self.rng.random_range(0..40);
                let tid = Tid(if near == 0 {
                    self.rng.next_u32()
                } else {
                    self.tid.0.wrapping_sub(20).wrapping_add(near)
                });
                let superblock = self.superblock.with_tail(tid, Some(any));
                self.write_superblock(&superblock);
            }
            1 => {
                let homes =
                    [0, self.journal, self.journal + 5, BLOCKS, u64::from(u32::MAX), self.homes.start];
                let home = homes[self.rng.random_range(0..homes.len())];
                let mut draft = self.draft();
                draft.logged.push((FsBlock(home), self.content()));
                self.commit_of(&draft, false);
            }
            2 => {
                // The same block twice, and revoked as well.
                let mut draft = self.draft();
                let home = draft.logged[0].0;
                draft.logged.push((home, self.content()));
                if self.rng.random_ratio(1, 2) {
                    draft.revokes.push(home);
                }
                self.commit_of(&draft, false);
            }
            3 => {
                // Over the live log.
                let content = self.content();
                let len = [512, 1024, 4096][self.rng.random_range(0..3)];
                let sector = self.area_sector(any) + self.rng.random_range(0..=(4096 - len as u64) / 512);
                self.world.write(sector, &content[..len]);
            }
            4 => {
                // The head goes elsewhere.
                self.head = any;
                self.commit();
            }
            5 => {
                self.tid = Tid(self.tid.0.wrapping_add(self.rng.random_range(0..4)).wrapping_sub(2));
                self.commit();
            }
            6 => {
                let draft = Draft { uncommitted: true, ..self.draft() };
                self.commit_of(&draft, false);
            }
            7 => {
                let sectors = self.rng.random_range(1..4000);
                let sector = START + self.rng.random_range(0..BLOCKS * 8 - sectors);
                let operation = Operation::Discard { flushed: false };
                let token = self.world.submit(1, operation, sector, sectors, &[]);
                if self.rng.random_ratio(1, 2) {
                    self.world.wait_for(token);
                }
            }
            8 => {
                // Random bytes over the superblock, the descriptors, the inode table.
                let mut bytes = [0; 2048];
                self.rng.fill_bytes(&mut bytes);
                let len = self.rng.random_range(1..=4) * 512;
                let sector = START + self.rng.random_range(0..60 * 8 - 8);
                self.world.write(sector, &bytes[..len]);
            }
            9 => {
                // Everything from before the journal into it and behind it, in one request.
                let from = self.journal - 4;
                let mut bytes = vec![0; 16 * BLOCK_BYTES];
                self.rng.fill_bytes(&mut bytes);
                self.world.write(START + from * 8, &bytes);
            }
            10 => {
                // A superblock with fields that nobody would set.
                let mut block = *self.superblock.bytes();
                let at = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x30][self.rng.random_range(0..9)];
                let value = [0, 1, 2, 1024, 1025, 1 << 31, u32::MAX, 0x12][self.rng.random_range(0..8)];
                block[at..at + 4].copy_from_slice(&u32::to_be_bytes(value));
                block[0x1c..0x20].copy_from_slice(&u32::to_be_bytes(any.0));
                seal(&mut block);
                let sector = self.area_sector(AreaBlock(0));
                self.world.write(sector, &block);
            }
            11 => {
                // The commit block first.
                let draft = self.draft();
                let mut encoder = Encoder::new(&self.geometry, self.head, self.tid);
                encoder.transaction(&draft);
                for (home, content) in &draft.logged {
                    self.world.committed(START / 8 + home.0, &content[..], false);
                }
                let blocks: Vec<AreaBlock> = encoder.blocks.keys().rev().copied().collect();
                for at in blocks {
                    let sector = self.area_sector(at);
                    self.world.write(sector, &encoder.blocks[&at][..]);
                }
                (self.head, self.tid) = (encoder.at, encoder.tid);
            }
            12 => {
                // Two changes of one block at once, while it is committed.
                let draft = self.draft();
                let home = draft.logged[0].0;
                for _ in 0..3 {
                    let content = self.content();
                    self.write_home_now(home, &content[..]);
                }
                self.commit_of(&draft, false);
            }
            13 => {
                // Parts of a home block.
                let home = self.home();
                let content = self.content();
                self.write_home(home, &content[..512]);
            }
            14 => {
                // A log that goes round to its own beginning.
                let mut draft = self.draft();
                for i in 0..400 {
                    let home = FsBlock(self.homes.start + i % 120);
                    draft.logged.push((home, self.content()));
                }
                self.commit_of(&draft, false);
                self.commit_of(&draft, false);
                self.commit_of(&draft, false);
            }
            _ => {
                // Somebody else's write into the guard areas: theirs to see.
                let content = self.content();
                let sector = [1024, START + BLOCKS * 8 + 64][self.rng.random_range(0..2)];
                self.world.write(sector, &content[..]);
            }
        }
    }
}
