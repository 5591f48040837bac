//! A recorded guest's requests in several queues, over a disk that completes them when it likes.
//!
//! The recorded guests have one processor and one queue, and mostly wait for what they ask for. What a kernel waits for is less:
//! the log's blocks before the commit block, everything before the journal's superblock, a write of a block before the next
//! one of it; and programs that make or mend a file system wait for all of it. So requests to the journal, and flushes, are answered
//! before the guest goes on as they were recorded; another write of a mounted file system may be under way for as long as
//! none of those rules is broken.

use std::collections::HashMap;
use std::ops::Range;

use afterimage_block::{Buffers, Disk, FlushKind, Lane, Operation, Request, Sector, Token};
use afterimage_journal::AreaBlock;
use afterimage_trace::Op;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::common::layouts;
use crate::common::stream::{Step, Stream};
use crate::disk::Slow;

const LANES: usize = 3;

/// Where the journals of a stream are, in bytes of its disk.
#[derive(Default)]
pub struct Journals {
    superblocks: Vec<Range<u64>>,
    logs: Vec<Range<u64>>,
}

impl Journals {
    pub fn of(stream: &Stream) -> Self {
        let mut journals = Self::default();
        // Some make their file system first.
        let mut disk = stream.base.clone();
        for step in &stream.steps {
            let range = step.range();
            match &step.op {
                Op::Write { data, .. } => {
                    disk[range.start as usize..range.end as usize].copy_from_slice(data)
                }
                _ => disk[range.start as usize..range.end as usize].fill(0),
            }
        }
        for layout in layouts(&disk) {
            let at = layout.home_of(AreaBlock(0)).unwrap().sector(layout.start).0 * 512;
            journals.superblocks.push(at..at + 4096);
            for extent in &layout.journal {
                let at = extent.home.sector(layout.start).0 * 512;
                journals.logs.push(at..at + u64::from(extent.blocks) * 4096);
            }
        }
        assert!(!journals.logs.is_empty(), "a recorded guest has a journal");
        journals
    }

    pub fn touch(&self, range: &Range<u64>) -> bool {
        self.logs.iter().any(|log| overlap(log, range))
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Requests that were not answered.
struct Open {
    range: Range<u64>,
    /// A flush, or a write to the journal.
    awaited: bool,
}

pub struct Queues {
    lanes: Vec<Box<dyn Lane>>,
    /// By step.
    open: HashMap<usize, Open>,
    /// The journal is in use.
    mounted: bool,
    /// How many requests were submitted while a write outside the journal was under way.
    pub overtaking: u64,
}

impl Queues {
    pub fn new(disk: &dyn Disk) -> Self {
        let mut queues = Self { lanes: Vec::new(), open: HashMap::new(), mounted: false, overtaking: 0 };
        queues.attach(disk);
        queues
    }

    /// Everything is answered, and nobody serves them.
    pub fn detach(&mut self) {
        self.drain();
        self.lanes.clear();
    }

    /// A daemon serves them.
    pub fn attach(&mut self, disk: &dyn Disk) {
        self.lanes = (0..LANES).map(|_| disk.open_lane().unwrap()).collect();
    }

    fn wait_for(&mut self, which: impl Fn(usize, &Open) -> bool) {
        for _ in 0..100_000 {
            if !self.open.iter().any(|(step, open)| which(*step, open)) {
                return;
            }
            // Each lane has its thread: what one waits for may be another one's.
            for lane in &mut self.lanes {
                let mut done = Vec::new();
                lane.reap(&mut done);
                for completion in done {
                    completion.result.unwrap();
                    self.open.remove(&(completion.token.0 as usize));
                }
                if lane.in_flight() > 0 {
                    lane.wait(&[], None).unwrap();
                }
            }
        }
        panic!("a request hangs");
    }

    pub fn drain(&mut self) {
        self.wait_for(|_, _| true);
    }

    /// The guest's next request.
    pub fn submit(&mut self, i: usize, step: &Step, journals: &Journals, slow: &Slow, rng: &mut ChaCha8Rng) {
        let range = step.range();
        let in_journal = journals.logs.iter().any(|log| overlap(log, &range));
        let answered = &step.answered;
        self.wait_for(|step, open| open.awaited && answered.contains(&step) || overlap(&open.range, &range));
        if let Some(superblock) = journals.superblocks.iter().find(|superblock| overlap(superblock, &range)) {
            self.drain();
            self.mounted = match &step.op {
                // `s_start`, big-endian.
                Op::Write { data, .. } => {
                    let at = (superblock.start + 28).checked_sub(range.start).map(|at| at as usize);
                    at.and_then(|at| data.get(at..at + 4)).is_some_and(|start| start != [0; 4])
                }
                _ => false,
            };
        }
        self.overtaking += u64::from(self.open.values().any(|open| !open.awaited));
        let awaited = in_journal || step.op == Op::Flush || !self.mounted;
        if !awaited && !slow.is_set() && rng.random_ratio(1, 3) {
            slow.set(range.start / 512, rng.random_range(10..300));
        }
        let (operation, buffers) = match &step.op {
            Op::Write { data, .. } => (Operation::Write { flushed: false }, Buffers::from_bytes(data)),
            Op::Zero { unmap, .. } => {
                (Operation::WriteZeroes { unmap: *unmap, flushed: false }, Buffers::empty())
            }
            Op::Flush => (Operation::Flush(FlushKind::Order), Buffers::empty()),
        };
        let (sector, sectors) = (Sector(range.start / 512), (range.end - range.start) / 512);
        self.open.insert(i, Open { range, awaited });
        let lane = rng.random_range(0..LANES);
        self.lanes[lane].submit(Request { token: Token(i as u64), operation, sector, sectors, buffers });
    }
}
