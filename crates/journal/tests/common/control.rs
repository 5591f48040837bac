//! A control disk beside retained disks, without a daemon around them.

use std::sync::Arc;

use afterimage_block::{Disk, Lane, SequenceNumber};
use afterimage_control_disk::desk::Reached;
use afterimage_control_disk::{ControlDisk, Durability, Promise};
use afterimage_journal::layout::Layout;
use afterimage_journal::{AreaBlock, FsBlock, RetainDisk};
use afterimage_order::{Clock, Contract, Subscription};
use afterimage_trace::Op;

struct Group(Vec<Arc<RetainDisk>>);

impl Durability for Group {
    fn reached(&self) -> Reached {
        Reached { acknowledged: SequenceNumber(9), durable: SequenceNumber(9), failure: None }
    }

    fn flush(&self) -> Result<SequenceNumber, String> {
        self.0.iter().try_for_each(|disk| disk.settle()).map_err(|error| error.to_string())?;
        Ok(SequenceNumber(9))
    }

    fn subscribe(&self, _: Box<dyn Fn() + Send + Sync>) -> Option<Subscription> {
        None
    }

    fn retained_disks(&self) -> Vec<Arc<RetainDisk>> {
        self.0.clone()
    }
}

/// Of these disks, with the lane of a queue over which their guest comes.
pub fn control_disk(disks: Vec<Arc<RetainDisk>>) -> (ControlDisk, Box<dyn Lane>) {
    let disk = ControlDisk::new(Arc::new(Group(disks)), promise()).unwrap();
    let lane = disk.open_lane().unwrap();
    (disk, lane)
}

/// Of one disk, by that way in, and with that time.
pub fn heard(disk: Arc<RetainDisk>, way_in: Arc<dyn Disk>, clock: Arc<dyn Clock>) -> ControlDisk {
    ControlDisk::heard(Arc::new(Group(vec![disk])), promise(), vec![way_in], clock).unwrap()
}

fn promise() -> Promise {
    let contract: Contract = "guest-crash".parse().unwrap();
    Promise { text: contract.promise(), contract, lends: true }
}

/// Where a recorded guest writes its journal: what it would hand over instead.
pub fn in_journal(layout: &Layout, op: &Op) -> Option<FsBlock> {
    let Op::Write { offset, data, .. } = op else { return None };
    let from = offset.checked_sub(layout.start.0 * 512)?;
    if from % 4096 != 0 || data.len() % 4096 != 0 {
        return None;
    }
    let block = FsBlock(from / 4096);
    layout.area_run(block, data.len() as u32 / 4096).filter(|first| *first > AreaBlock(0)).map(|_| block)
}
