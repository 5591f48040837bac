//! Commits that a guest's file system hands over: each becomes a write of its journal, beside the queues of its disk.
//!
//! What is handed over are blocks as they would stand in the journal, and to the layer below they come as if they were written there, as far
//! as a flush: what reads a guest's journal, keeps it, brings it home and gives it back to a recovery is the same for both, and so is what
//! the guest falls back to. So do runs of blocks that it has published in memory which it lent. One is under way at a time on each queue and disk; the next waits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    wait_readable, BlockError, Buffers, Completion, Disk, FlushKind, Lane, Operation, Request, Sector,
    SequenceNumber, Token, SECTOR_BYTES,
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
    /// One of each disk.
    ways_in: Vec<WayIn>,
}

/// The hand-overs of one disk: one that is stuck keeps no other one's from anything.
struct WayIn {
    disk: Arc<RetainDisk>,
    /// Dropped first: it waits for what is below, and until then the guest whose hand is under way has not left.
    lane: Box<dyn Lane>,
    under_way: Option<Way>,
    next: VecDeque<(Way, What)>,
    done: Vec<Completion>,
}

/// How long the lane of one disk is waited for before those of others are looked at, where several are under way: a lane wakes nobody who waits
/// for another one.
const LOOK: Duration = Duration::from_micros(500);

/// A hand-over that is over.
pub(crate) type Over = (Way, Result<(), BlockError>);

impl Handing {
    /// Opens the ways in at once: later the sandbox may keep what they need from them.
    pub(crate) fn new<'a>(
        ways_in: impl Iterator<Item = (&'a Arc<RetainDisk>, &'a dyn Disk)>,
    ) -> Result<Self, BlockError> {
        let open = |(disk, way_in): (&Arc<RetainDisk>, &dyn Disk)| {
            let (disk, lane) = (Arc::clone(disk), way_in.open_lane()?);
            Ok(WayIn { disk, lane, under_way: None, next: VecDeque::new(), done: Vec::new() })
        };
        Ok(Self { ways_in: ways_in.map(open).collect::<Result<_, BlockError>>()? })
    }

    /// Commands of which no part is over; what was published is its read's.
    pub(crate) fn commands(&self) -> usize {
        let ways = |way_in: &'_ WayIn| {
            let waiting = way_in.next.iter().map(|(way, _)| way).chain(&way_in.under_way);
            waiting.filter(|way| matches!(way, Way::Command(_))).count()
        };
        self.ways_in.iter().map(ways).sum()
    }

    /// # Panics
    /// The disk is not of this group.
    pub(crate) fn take(&mut self, HandOver { way, disk, what }: HandOver) {
        let way_in = self.ways_in.iter_mut().find(|way_in| Arc::ptr_eq(&way_in.disk, &disk));
        way_in.expect("found among the disks that have a way in").next.push_back((way, what));
    }

    /// Begins the next ones where none is under way, and says which are over.
    pub(crate) fn go_on(&mut self, over: &mut Vec<Over>) {
        self.ways_in.iter_mut().for_each(|way_in| way_in.go_on(over));
    }

    /// Blocks until one that is under way may be over, something is readable, or the time is.
    pub(crate) fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        let mut under_way = self.ways_in.iter_mut().filter(|way_in| way_in.under_way.is_some());
        let Some(first) = under_way.next() else { return wait_readable(also, timeout) };
        let several = under_way.next().map(|_| LOOK);
        first.lane.wait(also, timeout.into_iter().chain(several).min())
    }
}

impl WayIn {
    fn go_on(&mut self, over: &mut Vec<Over>) {
        loop {
            if self.under_way.is_some() {
                self.lane.reap(&mut self.done);
                let Some(completion) = self.done.pop() else { return };
                // Nobody asks for it again.
                self.lane.reap(&mut self.done);
                over.extend(self.under_way.take().map(|way| (way, completion.result)));
            }
            let Some((way, what)) = self.next.pop_front() else { return };
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
            self.lane.submit(Request { token: Token(0), operation, sector, sectors, buffers });
            self.lane.dispatch();
            self.under_way = Some(way);
        }
    }
}
