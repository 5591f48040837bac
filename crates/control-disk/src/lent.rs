//! Memory that a guest's file system has lent, and what it publishes there: one transaction at a time, by one store.
//!
//! ```text
//!   OFFERED ─► open ──published──► taking ──all of it is in the journal──► open
//!                │ time is over, asked back, wanted back, flushes are held
//!                └─► closed: looks once more ─► over: the read ends
//! ```
//!
//! Outcomes. What was published while the guest read `OPEN` behind its store is handed over, whatever the guest does then, as long as
//! this process lives and the memory is mapped; it is *taken* when all its blocks are where a hand-over leaves them. What the guest published and we did
//! not take it hands over itself. The memory is the guest's, who may change it at any time: numbers are read once, blocks are looked at in a copy, and their
//! content is copied where it goes as that of any request is.
//!
//! Where the journal lies is what it was when memory was lent: a journal that is not retained any more is written to its place on the disk, as its guest
//! would write it. So what was published is refused to none but a guest that breaks these rules.

use std::collections::VecDeque;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Buffers, Sector, Token};
use afterimage_format::control_disk::{
    Lent, BLOCKS_MAX, BLOCK_BYTES, LENT_CLOSED, LENT_MS_MAX, LENT_OFFERED, LENT_OPEN, LENT_REFUSED,
};
use afterimage_journal::layout::Layout;
use afterimage_journal::{log, AreaBlock, FsBlock, Tid};
use zerocopy::FromZeros as _;
use zerocopy::IntoBytes as _;

/// How long nobody looks after something was taken; twice as long each time that nothing is there.
const PAUSE_LEAST: Duration = Duration::from_micros(20);
/// And at most.
const PAUSE_MOST: Duration = Duration::from_millis(2);

/// Blocks that stand one behind the other in the journal, and here.
#[derive(Debug)]
struct Run {
    sector: Sector,
    /// Which of the publication's blocks is the first.
    from: usize,
    blocks: usize,
}

#[derive(Debug)]
struct Publication {
    blocks: usize,
    /// What is left of it.
    runs: VecDeque<Run>,
    /// The guest has counted it as committed since then, or later.
    since: Duration,
    /// And [`Next::Flush`] was said.
    flushed: bool,
}

/// What is to be done.
#[derive(Debug)]
pub enum Next {
    /// These blocks are to be written there; [`Loan::handed_over`] says when they are. Never a second one before that.
    HandOver(Sector, Buffers),
    /// What was handed over is to be flushed, as acknowledged since then; [`Loan::handed_over`] says when that is done.
    Flush(Duration),
    /// Nothing before something was handed over.
    Wait,
    /// Nothing before that time.
    Look(Duration),
    /// The read ends; why it was ended early.
    Over(Option<&'static str>),
}

/// What was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Publications.
    pub commits: u64,
    /// Their blocks.
    pub blocks: u64,
}

/// Lent memory.
#[derive(Debug)]
pub struct Loan {
    /// The read's.
    pub token: Token,
    memory: Buffers,
    journal: Arc<Layout>,
    until: Duration,
    /// The newest publication that was taken.
    taken: u32,
    /// And that was heard of.
    heard: u32,
    /// The one that is being taken.
    taking: Option<Publication>,
    under_way: bool,
    /// Nothing was published then that is not taken. Whoever looks for it may stand still for long, as in a write that the host holds back.
    empty_at: Duration,
    state: u32,
    looked_again: bool,
    next_look: Duration,
    pause: Duration,
    counted: Taken,
}

/// What a read of memory that is lent begins with, if this is one.
///
/// # Errors
/// It is not, or does not make sense.
pub fn offered(memory: &Buffers) -> Result<Lent, String> {
    let block = BLOCK_BYTES as usize;
    if memory.len() < 2 * block || memory.len() % block != 0 {
        return Err("memory is lent in two blocks and more".to_owned());
    }
    let mut bytes = [0; BLOCK_BYTES as usize];
    memory.copy_to(0, &mut bytes);
    Lent::parse(&bytes).map_err(|error| error.to_string())
}

/// Says that it is not taken, and not to be lent again. What was published until then and is not taken, if an earlier daemon had opened it (`state`
/// is what was found there): its guest may count it as committed.
pub fn refuse(memory: &Buffers, state: u32) -> Option<Owed> {
    memory.store_u32(Lent::STATE_AT, LENT_REFUSED);
    fence(Ordering::SeqCst);
    (state != LENT_OFFERED).then(|| Owed::of(memory)).flatten()
}

/// A commit that its guest may count as committed, and that was not taken: it is there when its commit block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Whose it is.
    pub file_system: [u8; 16],
    /// Where its commit block would stand.
    pub commit: FsBlock,
    /// Which transaction it commits, if it says so.
    pub tid: Option<Tid>,
}

impl Owed {
    /// What is published there and not taken, if it makes sense.
    fn of(memory: &Buffers) -> Option<Self> {
        let lent = offered(memory).ok().filter(|lent| lent.published != lent.taken)?;
        let blocks = lent.blocks.get() as usize;
        let commit = lent.block.get(blocks.checked_sub(1)?)?;
        let at = blocks * BLOCK_BYTES as usize;
        let mut header = [0; log::HEADER_BYTES];
        let is_there = at + header.len() <= memory.len();
        let tid = is_there.then(|| memory.copy_to(at, &mut header)).and_then(|()| log::commit_tid(&header));
        Some(Self { file_system: lent.file_system, commit: FsBlock(commit.get()), tid })
    }
}

impl Loan {
    /// Memory that was lent for the commits of a file system whose journal lies there, by what [`offered`] has found in it, which was
    /// asked at `now` or later.
    ///
    /// # Errors
    /// What both sides change does not lie in one piece, or an earlier daemon has refused it.
    pub fn open(
        now: Duration,
        token: Token,
        memory: Buffers,
        lent: &Lent,
        journal: Arc<Layout>,
    ) -> Result<Self, String> {
        // An earlier daemon may have left it open, or closed: then the guest may have seen that.
        let state = match lent.state.get() {
            LENT_OFFERED | LENT_OPEN => LENT_OPEN,
            LENT_CLOSED => LENT_CLOSED,
            _ => return Err("it was refused before".to_owned()),
        };
        let words = [Lent::PUBLISHED_AT, Lent::BACK_AT, Lent::STATE_AT, Lent::TAKEN_AT];
        if words.iter().any(|at| memory.load_u32(*at).is_none()) {
            return Err("its first block is not in one piece".to_owned());
        }
        let mut loan = Self {
            token,
            memory,
            journal,
            until: now.saturating_add(Duration::from_millis(LENT_MS_MAX.into())),
            taken: lent.taken.get(),
            heard: lent.taken.get(),
            taking: None,
            under_way: false,
            // What there is may have been published under a daemon that is dead.
            empty_at: if lent.published == lent.taken { now } else { Duration::ZERO },
            state,
            looked_again: false,
            next_look: now,
            pause: PAUSE_LEAST,
            counted: Taken::default(),
        };
        loan.say(state);
        Ok(loan)
    }

    /// The newest publication that there is now.
    pub fn published(&self) -> u32 {
        self.word(Lent::PUBLISHED_AT)
    }

    /// Whether that one was taken.
    pub fn has_taken(&self, published: u32) -> bool {
        self.taken.wrapping_sub(published) < 1 << 31
    }

    /// What is published and was not heard of, nothing of it taken: its runs, and where they belong. It is committed as far as its guest goes, and will
    /// be taken, if the guest computes neither now nor before [`Loan::next`]; else it may be published behind the end.
    pub fn hear(&mut self) -> Vec<(Sector, Buffers)> {
        let published = self.published();
        if self.state != LENT_OPEN || std::mem::replace(&mut self.heard, published) == published {
            return Vec::new();
        }
        // What breaks the rules is refused when it is to be taken.
        let runs =
            self.publication().ok().flatten().map_or_else(VecDeque::new, |publication| publication.runs);
        runs.iter().map(|run| (run.sector, self.content(run))).collect()
    }

    fn content(&self, run: &Run) -> Buffers {
        let block = BLOCK_BYTES as usize;
        self.memory.slice((1 + run.from) * block, run.blocks * block)
    }

    /// When there is something to do, if nobody says so before.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.under_way).then_some(self.next_look)
    }

    /// What was taken since this was asked last.
    pub fn count(&mut self) -> Taken {
        std::mem::take(&mut self.counted)
    }

    /// What [`Next::HandOver`] gave is where it belongs, or cannot be: then the commit is owed.
    pub fn handed_over(&mut self, well: bool) -> Option<Owed> {
        self.under_way = false;
        if well {
            return None;
        }
        // Its commit block must not follow.
        self.taking = None;
        self.say(LENT_REFUSED);
        Owed::of(&self.memory)
    }

    /// What is to be done. `asked_back`: it is to end; `at_once`: somebody waits for what is published.
    pub fn next(&mut self, now: Duration, asked_back: bool, at_once: bool) -> Next {
        if self.under_way {
            return Next::Wait;
        }
        loop {
            if let Some(publication) = &mut self.taking {
                if let Some(run) = publication.runs.pop_front() {
                    self.under_way = true;
                    let content = self.content(&run);
                    return Next::HandOver(run.sector, content);
                }
                if !std::mem::replace(&mut publication.flushed, true) {
                    self.under_way = true;
                    return Next::Flush(publication.since);
                }
                self.take();
                self.empty_at = now;
                continue;
            }
            if self.state == LENT_REFUSED {
                return Next::Over(Some("a publication could not be written"));
            }
            let ends = asked_back || now >= self.until || self.word(Lent::BACK_AT) != 0;
            if self.state == LENT_OPEN && ends {
                self.say(LENT_CLOSED);
            }
            if self.state == LENT_CLOSED && std::mem::replace(&mut self.looked_again, true) {
                return Next::Over(None);
            }
            if self.state == LENT_OPEN && now < self.next_look && !at_once {
                return Next::Look(self.next_look);
            }
            match self.publication() {
                Err(why) => {
                    self.say(LENT_REFUSED);
                    return Next::Over(Some(why));
                }
                Ok(Some(publication)) => {
                    self.pause = PAUSE_LEAST;
                    self.taking = Some(publication);
                }
                Ok(None) => {
                    self.empty_at = now;
                    self.next_look = (now + self.pause).min(self.until);
                    self.pause = (2 * self.pause).min(PAUSE_MOST);
                    if self.state == LENT_OPEN {
                        return Next::Look(self.next_look);
                    }
                }
            }
        }
    }

    /// All blocks of the publication are where they belong.
    fn take(&mut self) {
        let blocks = self.taking.take().map_or(0, |publication| publication.blocks);
        self.taken = self.taken.wrapping_add(1);
        self.memory.store_u32(Lent::TAKEN_AT, self.taken);
        self.counted.commits += 1;
        self.counted.blocks += blocks as u64;
    }

    /// Looks for the next publication; what it has to say is looked at in a copy.
    fn publication(&mut self) -> Result<Option<Publication>, &'static str> {
        let published = self.published();
        if published == self.taken {
            return Ok(None);
        }
        if published != self.taken.wrapping_add(1) {
            return Err("publications do not follow each other");
        }
        let mut lent = Lent::new_zeroed();
        self.memory.copy_to(0, lent.as_mut_bytes());
        let blocks = lent.blocks.get() as usize;
        if blocks == 0 || blocks > (self.memory.len() / BLOCK_BYTES as usize - 1).min(BLOCKS_MAX as usize) {
            return Err("a publication has no blocks, or more than memory was lent for");
        }
        let block = |at: usize| lent.block[at].get();
        let (mut runs, mut from) = (VecDeque::new(), 0);
        while from < blocks {
            let follows =
                |n: usize| from + n < blocks && block(from).checked_add(n as u64) == Some(block(from + n));
            let mut count = 1;
            while follows(count) {
                count += 1;
            }
            let first = self.journal.area_run(FsBlock(block(from)), count as u32);
            if first.is_none_or(|first| first == AreaBlock(0)) {
                return Err("a publication has blocks that are not the journal's");
            }
            runs.push_back(Run {
                sector: FsBlock(block(from)).sector(self.journal.start),
                from,
                blocks: count,
            });
            from += count;
        }
        Ok(Some(Publication { blocks, runs, since: self.empty_at, flushed: false }))
    }

    /// What the guest reads behind its own store: whichever of us stores first, the other one sees it.
    fn say(&mut self, state: u32) {
        self.state = state;
        self.memory.store_u32(Lent::STATE_AT, state);
        fence(Ordering::SeqCst);
    }

    fn word(&self, at: usize) -> u32 {
        // There when it was lent.
        self.memory.load_u32(at).unwrap_or_default()
    }
}
