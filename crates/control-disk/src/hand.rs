//! Commits that a guest's file system hands over: each becomes a write of its journal, beside the queues of its disk.
//!
//! What is handed over are blocks as they would stand in the journal, and to the layer below they come as if they were written there, as far
//! as a flush: what reads a guest's journal, keeps it, brings it home and gives it back to a recovery is the same for both, and so is what
//! the guest falls back to. So do runs of blocks that it has published in memory which it lent. One is under way at a time on each queue; the next waits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    BlockError, Buffers, Completion, Disk, FlushKind, Lane, Operation, Request, Sector, SequenceNumber,
    Token, SECTOR_BYTES,
};
use afterimage_format::control_disk::{Command, CHALLENGE_AT, STATUS_UNSUPPORTED};
use afterimage_journal::{Hand, RetainDisk};

use crate::desk::{Place, Verdict};

/// A command that brought blocks.
pub(crate) struct Brought {
    pub place: Place,
    pub command: Command,
    /// Held until they are where they belong.
    pub hand: Hand,
    /// It brought none, but a challenge.
    pub challenged: Option<Challenged>,
}

/// A file system whose challenge is looked for.
pub(crate) struct Challenged {
    /// Its journal's, which is being read.
    pub superblock: Buffers,
    /// Whose commits will be handed over.
    pub guest: u64,
}

impl Challenged {
    /// What is to be said when its superblock was read.
    pub(crate) fn verdict(&self, command: &Command) -> Verdict {
        let mut seen = [0; 8];
        self.superblock.copy_to(CHALLENGE_AT, &mut seen);
        if seen == command.block.to_bytes() {
            return Verdict::done(SequenceNumber(self.guest));
        }
        let why =
            "the file system that was mounted is not the one on this disk: it is a copy with the same UUID";
        Verdict::not(STATUS_UNSUPPORTED, why)
    }
}

/// How blocks came.
pub(crate) enum Way {
    /// With a command.
    Command(Box<Brought>),
    /// Published in the memory of that read.
    Lent(Token),
}

/// What was handed over.
pub(crate) enum What {
    /// Blocks, and where they belong. With a command they are as good as flushed when that is answered.
    Blocks { sector: Sector, buffers: Buffers },
    /// What lies there is read.
    Look { sector: Sector, buffers: Buffers },
    /// Nothing more: what was published counts as acknowledged since then.
    Published { since: Duration },
}

/// See the module.
pub(crate) struct HandOver {
    pub way: Way,
    pub disk: Arc<RetainDisk>,
    pub what: What,
}

/// Those of one queue.
pub(crate) struct Handing {
    /// A lane of each disk.
    lanes: Vec<(Arc<RetainDisk>, Box<dyn Lane>)>,
    under_way: Option<UnderWay>,
    next: VecDeque<HandOver>,
    done: Vec<Completion>,
}

struct UnderWay {
    lane: usize,
    way: Way,
}

/// A hand-over that is over.
pub(crate) type Over = (Way, Result<(), BlockError>);

impl Handing {
    /// Opens the ways in at once: later the sandbox may keep what they need from them.
    pub(crate) fn new<'a>(
        ways_in: impl Iterator<Item = (&'a Arc<RetainDisk>, &'a dyn Disk)>,
    ) -> Result<Self, BlockError> {
        let open =
            |(disk, way_in): (&Arc<RetainDisk>, &dyn Disk)| Ok((Arc::clone(disk), way_in.open_lane()?));
        let lanes = ways_in.map(open).collect::<Result<_, BlockError>>()?;
        Ok(Self { lanes, under_way: None, next: VecDeque::new(), done: Vec::new() })
    }

    /// Commands of which no part is over; what was published is its read's.
    pub(crate) fn commands(&self) -> usize {
        let under_way = self.under_way.iter().map(|under_way| &under_way.way);
        let all = self.next.iter().map(|next| &next.way).chain(under_way);
        all.filter(|way| matches!(way, Way::Command(_))).count()
    }

    pub(crate) fn take(&mut self, over: HandOver) {
        self.next.push_back(over);
    }

    /// Begins the next one where none is under way, and says which are over.
    pub(crate) fn go_on(&mut self, over: &mut Vec<Over>) {
        loop {
            if let Some(UnderWay { lane, .. }) = &self.under_way {
                self.lanes[*lane].1.reap(&mut self.done);
                let Some(completion) = self.done.pop() else { return };
                // Nobody asks for it again.
                self.lanes[*lane].1.reap(&mut self.done);
                if let Some(UnderWay { way, .. }) = self.under_way.take() {
                    over.push((way, completion.result));
                }
            }
            let Some(HandOver { way, disk, what }) = self.next.pop_front() else { return };
            let Some(lane) = self.lanes.iter().position(|(known, _)| Arc::ptr_eq(known, &disk)) else {
                over.push((way, Err(BlockError::Unsupported("the disk is not of this group".into()))));
                continue;
            };
            let (operation, sector, buffers) = match what {
                What::Blocks { sector, buffers } => {
                    let flushed = matches!(way, Way::Command(_));
                    (Operation::Write { flushed }, sector, buffers)
                }
                What::Look { sector, buffers } => (Operation::Read, sector, buffers),
                What::Published { since } => {
                    (Operation::Flush(FlushKind::Told { since }), Sector(0), Buffers::empty())
                }
            };
            let sectors = buffers.len() as u64 / SECTOR_BYTES;
            let way_in = &mut self.lanes[lane].1;
            way_in.submit(Request { token: Token(0), operation, sector, sectors, buffers });
            way_in.dispatch();
            self.under_way = Some(UnderWay { lane, way });
        }
    }

    /// Blocks until the one that is under way may be over; `None` where none is.
    pub(crate) fn wait(
        &mut self,
        also: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Option<io::Result<()>> {
        let lane = self.under_way.as_ref()?.lane;
        Some(self.lanes[lane].1.wait(also, timeout))
    }
}

impl Drop for Handing {
    /// The way in first: it waits for what is below, and until then the guest has not left.
    fn drop(&mut self) {
        self.lanes.clear();
    }
}
