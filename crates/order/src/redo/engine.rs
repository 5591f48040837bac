//! The redo log of one group, put together, and the two threads that work on it.
//!
//! Locks, in the order in which they may be taken: a set's staging → a round home → append → window → space. Readers take
//! none of them, only a shard of the index. Only the first three are held across I/O.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use afterimage_block::{BlockError, Medium, SequenceNumber, SECTOR_BYTES};
use parking_lot::Mutex;

use super::batch::Batch;
use super::going_home::GoingHome;
use super::log::RedoLog;
use super::mutation::Mistake;
use super::prefix::Scan;
use super::syncer::Syncer;
use crate::board::Board;
use crate::clock::Clock;
use crate::schedule::Fill;
use crate::sequence::Sequence;
use crate::Replayed;

/// What a redo log is opened with.
pub struct Config {
    /// The window of the window rule.
    pub window: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The log file.
    pub log: Arc<dyn Medium>,
    /// The images, by disk.
    pub homes: Vec<Arc<dyn Medium>>,
    /// A random number that no earlier process has used for this log.
    pub incarnation: u64,
    /// The images may hold anything: somebody has changed them, and wants what the log holds written over that.
    pub any_content: bool,
    /// A mistake to make; only with the feature `mutations`.
    #[cfg(feature = "mutations")]
    pub mutation: Option<super::Mutation>,
}

impl Config {
    /// What is the same with and without the feature `mutations`.
    pub fn new(
        window: Duration,
        clock: Arc<dyn Clock>,
        log: Arc<dyn Medium>,
        homes: Vec<Arc<dyn Medium>>,
        incarnation: u64,
    ) -> Self {
        Self {
            window,
            clock,
            log,
            homes,
            incarnation,
            any_content: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    pub(super) fn mistake(&self) -> Mistake {
        Mistake(
            #[cfg(feature = "mutations")]
            self.mutation,
        )
    }
}

/// The redo log of one group. See the [module](super).
pub struct Redo {
    /// Records in, records read.
    pub log: Arc<RedoLog>,
    /// What is acknowledged and made durable, and when.
    pub syncer: Syncer,
    /// What goes home.
    pub going_home: GoingHome,
    /// How far it all has got.
    pub board: Arc<Board>,
    /// Where sets are staged, one at a time: a small one does not overtake a large one for ever.
    pub(super) set_batch: Mutex<Batch>,
    replayed: Option<Replayed>,
    pub(super) mistake: Mistake,
}

impl Redo {
    pub(super) fn new(config: Config, scan: &Scan) -> Self {
        let mistake = config.mistake();
        let Config { window, clock, log, homes, incarnation, .. } = config;
        let replayed = (!scan.records.is_empty()).then(|| scan.replayed());
        let home = SequenceNumber(scan.header.tail_sequence.get());
        let board = Arc::new(Board::new(Sequence::found(scan.sequence, home), Arc::clone(&clock)));
        let disk_sectors = homes.iter().map(|home| home.len() / SECTOR_BYTES);
        let log = Arc::new(RedoLog::new(log, disk_sectors, scan, incarnation, Arc::clone(&board), mistake));
        let syncer = Syncer::new(window, Arc::clone(&clock), Arc::clone(&log), Arc::clone(&board), mistake);
        let parts = (Arc::clone(&log), Arc::clone(&board));
        let going_home = GoingHome::new(parts.0, homes, scan.header, window, clock, parts.1, mistake);
        Self { log, syncer, going_home, board, set_batch: Mutex::default(), replayed, mistake }
    }

    /// What opening found.
    pub fn replayed(&self) -> Option<Replayed> {
        self.replayed
    }

    /// Appends fail from here on; everything is made durable, brought home, and the log marked clean. Needs no threads.
    ///
    /// # Errors
    /// The group has failed, or fails with this: the log stays for the next opening.
    pub fn close(&self) -> Result<SequenceNumber, BlockError> {
        self.board.close();
        let (covers, _) = self.log.appended();
        self.syncer.sync()?;
        self.going_home.all()?;
        self.going_home.mark_clean()?;
        Ok(covers)
    }

    /// What the thread does that brings records home.
    fn work_home(&self) {
        let _whole = self.board.whole();
        while self.going_home.wait_until_due() {
            match self.turn_home() {
                Ok(false) => {}
                Ok(true) => give_memory_back(),
                Err(error) => {
                    tracing::error!(%error, "nothing more goes home");
                    return;
                }
            }
        }
    }

    /// Takes a turn of the schedule, and does what it says. Whether that has emptied the log.
    ///
    /// # Errors
    /// The group has failed, or fails with this.
    pub fn turn_home(&self) -> Result<bool, BlockError> {
        if !self.home_is_due() {
            return Ok(false);
        }
        self.half_home()?;
        Ok(self.log.bytes_used() == 0)
    }

    /// Takes a turn of the schedule: whether [`Redo::half_home`] is to be done now.
    pub fn home_is_due(&self) -> bool {
        let sync_owed = self.syncer.ages().0.is_some();
        let fill = {
            let space = self.log.space();
            let (head, used) = (space.head(), space.bytes() > 0);
            Fill { head, used, half_full: space.is_half_full(), sync_owed }
        };
        self.going_home.turn(fill)
    }

    /// Whether too little of what is in the log is durable for a round to be worth it.
    pub fn home_wants_sync(&self) -> bool {
        let space = self.log.space();
        let durable = space.durable_bytes();
        durable < space.bytes() / 2 || durable == 0
    }

    /// Makes what is in the log durable where little of it is, and brings the older half of the log home. Returns whether there was any.
    ///
    /// # Errors
    /// The group has failed, or fails with this.
    pub fn half_home(&self) -> Result<bool, BlockError> {
        if self.home_wants_sync() {
            let covers = self.board.sequence.acknowledged.get();
            self.syncer.request();
            if !self.board.wait_durable(covers, None)? {
                return Ok(false);
            }
        }
        self.going_home.round(self.log.area_bytes() / 2)
    }
}

/// The running threads.
#[derive(Default)]
pub(super) struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    pub(super) fn start(redo: &Arc<Redo>) -> std::io::Result<Self> {
        let mut threads = Self(Vec::new());
        let (syncer, carrier) = (Arc::clone(redo), Arc::clone(redo));
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        threads.0.push(named("log-sync").spawn(move || syncer.syncer.work())?);
        threads.0.push(named("going-home").spawn(move || carrier.work_home())?);
        Ok(threads)
    }

    /// Stops them where they are: nothing is brought home.
    pub(super) fn stop(&mut self, redo: &Redo) {
        redo.board.stop();
        redo.syncer.stop();
        redo.going_home.stop();
        for thread in self.0.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread of the redo log panicked");
            }
        }
    }
}

/// The index of a full log is hundreds of megabytes of small pieces, which the C library keeps for the next one.
#[allow(unsafe_code)]
fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
