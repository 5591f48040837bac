//! What came of a run.

use std::sync::Arc;
use std::time::Duration;

use afterimage_journal::DiskStatus;
use afterimage_lab::device::Work;

use crate::calendar::Ns;
use crate::content::Content;
use crate::trace::Counts;

/// Guests have waited for each other, and go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// When the last one came.
    pub met: Ns,
    /// When they went on.
    pub at: Ns,
    /// What the device had been asked by then.
    pub device: Work,
    /// What daemons had asked of their files.
    pub asked: Work,
    /// What is retained, by guest, where anything is.
    pub retained: Vec<Option<DiskStatus>>,
}

/// What is retained at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Ns,
    /// By guest, where anything is.
    pub retained: Vec<Option<DiskStatus>>,
}

/// The daemons' orderly end, after the guests'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// When the last guest had ended; of guests that were killed, when all that was cached was on the device.
    pub from: Ns,
    /// When the daemons had ended.
    pub daemons: Ns,
    /// When all of it was on the device.
    pub settled: Ns,
    /// What the device had been asked when it began.
    pub device_before: Work,
    /// And at last.
    pub device: Work,
    /// What daemons had asked of their files when it began.
    pub asked_before: Work,
    /// And at last.
    pub asked: Work,
    /// What was retained when it began, by guest.
    pub retained: Vec<Option<DiskStatus>>,
}

/// What came of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestReport {
    /// The script's exit status; `None` where it did not get that far.
    pub exit: Option<i32>,
    /// What it said.
    pub output: String,
    /// When it ended.
    pub ended: Ns,
    /// What it asked of its disk.
    pub counts: Counts,
    /// Sum of its image.
    pub image: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// By guest.
    pub guests: Vec<GuestReport>,
    /// Guests have waited for each other.
    pub meetings: Vec<Meeting>,
    /// What was retained meanwhile.
    pub samples: Vec<Sample>,
    /// The daemons' end.
    pub end: End,
    /// Guests were killed: not where they had ended before.
    pub killed: bool,
    /// What the images hold, by guest.
    pub images: Vec<Arc<Content>>,
    /// Sum of the trace.
    pub trace: u64,
    /// How long it was in virtual time.
    pub virtual_time: Duration,
    /// And in real time.
    pub real_time: Duration,
    /// Messages that guests sent to the calendar.
    pub messages: u64,
}
