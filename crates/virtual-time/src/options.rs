//! What a run is asked for.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterimage_journal::group::JournalOptions;
use afterimage_lab::device::ModelName;
use afterimage_order::Contract;
use afterimage_protocol::cell::KillAt;

use crate::calendar::Ns;
use crate::canary::Canary;
use crate::content::Content;
use crate::guest::GuestOptions;
use crate::host_fs::HostFs;
use crate::page_cache::DirtyLimits;

/// What is run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How many guests, each with its own daemon and image, on one device.
    pub guests: usize,
    /// What each guest is.
    pub guest: GuestOptions,
    /// The device.
    pub model: ModelName,
    /// What of a host's file system lies on it, as a model.
    pub host_fs: HostFs,
    /// Ranges of each image that have blocks there from the beginning, besides what is no hole in it.
    pub laid_out: Vec<Range<u64>>,
    /// The host's limits on what is dirty in its page cache.
    pub limits: DirtyLimits,
    /// Each image's size in bytes.
    pub image_bytes: u64,
    /// What the images hold, by guest; zeroes where there is none.
    pub images: Vec<Arc<Content>>,
    /// The promise.
    pub contract: Contract,
    /// What becomes of the guests' journals. (Arenas are in the run's folder.)
    pub journal: JournalOptions,
    /// Each guest has a control disk: what lies behind the end of its disk. Memory may be lent to it.
    pub control_disk: bool,
    /// Under `power`: whether the image is opened with O_DIRECT. (The other contracts use the page cache.)
    pub direct: bool,
    /// Under `power`: each write is synced before it is answered, as by a daemon that shows no write cache.
    pub write_through: bool,
    /// Size of a redo log in bytes.
    pub log_bytes: u64,
    /// What a request costs the daemon.
    pub request_ns: Ns,
    /// At so many meetings, from the first on, all that is cached goes to the device and is forgotten before anybody goes on.
    pub settle_meetings: usize,
    /// How often is looked at what the daemons retain, from the first meeting to the second.
    pub sample: Option<Ns>,
    /// All guests die at their work.
    pub kill: Option<Kill>,
    /// Crashes are to come: what a power cut may leave is known.
    pub crashes: bool,
    /// What is broken on purpose.
    pub canary: Canary,
    /// An existing folder for what each daemon asks of its files: `guestN.trace.zst` (docs/trace-format.md). Not of daemons that die.
    pub storage_traces: Option<PathBuf>,
    /// How long all of it may take in real time.
    pub limit: Duration,
}

impl RunOptions {
    /// One guest with a disk of 64 MiB on the paper's device, all of its host's memory for its daemon's files, and nothing special.
    pub fn of(guest: GuestOptions) -> Self {
        Self {
            guests: 1,
            guest,
            model: ModelName::Hdd15k,
            host_fs: HostFs::Bare,
            laid_out: Vec::new(),
            limits: DirtyLimits::of_memory(8 << 30),
            image_bytes: 64 << 20,
            images: Vec::new(),
            contract: Contract::Power,
            journal: JournalOptions::passthrough(),
            control_disk: false,
            direct: false,
            write_through: false,
            log_bytes: 64 << 20,
            request_ns: 0,
            settle_meetings: 0,
            sample: None,
            kill: None,
            crashes: false,
            canary: Canary::default(),
            storage_traces: None,
            limit: Duration::from_secs(600),
        }
    }
}

/// All guests die.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// When.
    pub at: KillAt,
    /// Their daemons as well; other ones take over what they left.
    pub daemons: bool,
}
