//! A guest dies alone, with commits that it has published and its daemon has not taken: its daemon looks at the memory once more, and then the guest is gone.
//!
//! The memory is a guest's, as its kernel lends it: it is offered, found open, and published in by one store. What happens then is the daemon's own
//! code: the control disk, and whoever waits for it when a disk's connection has ended.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Buffers, Completion, Disk as _, Lane, Operation, Quiesced, Request, Sector, Token, SECTOR_BYTES,
};
use afterimage_control_disk::{ControlDisk, Durability, Promise};
use afterimage_format::control_disk::{
    Answer, Command, Lent, BLOCK_BYTES, LENT_OPEN, OPERATION_INIT, SLOT_BYTES, STATUS_DONE,
};
use afterimage_journal::layout::Layout;
use afterimage_journal::{FsBlock, RetainDisk};
use afterimage_order::Contract;
use zerocopy::IntoBytes as _;

use super::failed;
use crate::published::Publication;
use crate::Result;

const BLOCK: usize = BLOCK_BYTES as usize;
const SECTOR: usize = SECTOR_BYTES as usize;

/// What a guest has published when it dies.
pub(super) struct Left<'a> {
    pub published: Vec<&'a Publication>,
    /// The file systems of its disk.
    pub layouts: &'a [Layout],
    /// A planted fault: the daemon does not look.
    pub forgotten: bool,
}

struct Control {
    lane: Box<dyn Lane>,
    done: Vec<Completion>,
}

impl Control {
    fn submit(&mut self, slot: u64, operation: Operation, buffers: Buffers) {
        let sector = Sector(slot * u64::from(SLOT_BYTES) / SECTOR as u64);
        let sectors = (buffers.len() / SECTOR) as u64;
        self.lane.submit(Request { token: Token(slot), operation, sector, sectors, buffers });
        self.lane.reap(&mut self.done);
    }

    fn turn(&mut self) -> Result<()> {
        self.lane.wait(&[], Some(Duration::from_millis(1))).map_err(|e| failed(&e))?;
        self.lane.reap(&mut self.done);
        Ok(())
    }

    /// By which right the commits of a file system are taken; `None`: they are not.
    fn register(&mut self, slot: u64, layout: &Layout) -> Result<Option<(u64, u64)>> {
        let command = Command { file_system: layout.uuid, ..Command::new(OPERATION_INIT, 1) };
        let answer = Buffers::allocate(SECTOR);
        for (operation, buffers) in [
            (Operation::Write { flushed: true }, Buffers::from_bytes(command.seal().as_bytes())),
            (Operation::Read, answer.share()),
        ] {
            self.submit(slot, operation, buffers);
            while self.done.is_empty() {
                self.turn()?;
            }
            self.done.clear();
        }
        let answer = Answer::parse(&answer.to_vec()).map_err(|e| failed(&e))?;
        let right = (answer.instance.get(), answer.sequence.get());
        Ok((answer.status.get() == STATUS_DONE).then_some(right))
    }
}

impl Left<'_> {
    /// The guest of `disk` dies. `false`: the daemon would not have opened its memory, and nothing can have been published.
    pub fn to(&self, group: Arc<dyn Durability>, disk: &Arc<RetainDisk>) -> Result<bool> {
        let contract = Contract::GuestCrash;
        let promise = Promise { contract, text: contract.promise(), lends: true };
        let control = ControlDisk::new(group, promise).map_err(|e| failed(&e))?;
        let mut control = Control { lane: control.open_lane().map_err(|e| failed(&e))?, done: Vec::new() };
        let mut memories = Vec::new();
        for publication in &self.published {
            let Some(memory) = self.publish(&mut control, publication)? else { return Ok(false) };
            memories.push(memory);
        }
        if self.forgotten {
            drop(control);
            disk.quiesced(Quiesced::Disconnected);
            return Ok(true);
        }
        // The control disk's connection ends later, or not at all: whoever ends the disk's waits until what was lent is given back.
        std::thread::scope(|scope| {
            let leaves = scope.spawn(|| disk.quiesced(Quiesced::Disconnected));
            while !leaves.is_finished() {
                control.turn()?;
            }
            Ok(true)
        })
    }

    fn publish(&self, control: &mut Control, publication: &Publication) -> Result<Option<Buffers>> {
        let Some((layout, blocks)) = self.layouts.iter().find_map(|l| Some((l, blocks(l, publication)?)))
        else {
            return Ok(None);
        };
        let slot = publication.slot;
        let Some((instance, sequence)) = control.register(slot, layout)? else { return Ok(None) };
        let content: Vec<&[u8]> = publication.runs.iter().flat_map(|run| run.data.chunks(BLOCK)).collect();
        let memory = Buffers::allocate((1 + content.len()) * BLOCK);
        let mut lent = Lent::new(layout.uuid, instance, sequence);
        lent.blocks = (content.len() as u32).into();
        for ((at, block), content) in (1..).zip(&blocks).zip(content) {
            memory.copy_from(at * BLOCK, content);
            lent.block[at - 1] = block.0.into();
        }
        memory.copy_from(0, lent.as_bytes());
        control.submit(slot, Operation::Read, memory.share());
        if memory.load_u32(Lent::STATE_AT) != Some(LENT_OPEN) {
            return Ok(None);
        }
        memory.store_u32(Lent::PUBLISHED_AT, 1);
        Ok(Some(memory))
    }
}

/// Where its blocks stand in that file system; `None`: not in its journal.
fn blocks(layout: &Layout, publication: &Publication) -> Option<Vec<FsBlock>> {
    let mut blocks = Vec::new();
    for run in publication.runs.iter() {
        let first =
            FsBlock((run.offset / SECTOR as u64).checked_sub(layout.start.0)? * SECTOR as u64 / BLOCK as u64);
        let count = run.data.len() / BLOCK;
        layout.area_run(first, count as u32)?;
        blocks.extend((first.0..).take(count).map(FsBlock));
    }
    Some(blocks)
}
