//! Which campaigns a lane runs.

use afterimage_trace::{Layer, Recording};

use super::workloads::{self, Workload};
use crate::check::apps::Synchronous;
use crate::model::Model;
use crate::schedule::Picking;
use crate::setup::{atomic_bytes, Level, Setup};
use crate::Result;

/// A storage stream that is derived from the guest's.
#[derive(Clone, Copy, Debug)]
pub struct Derived {
    /// Under this contract.
    pub contract: &'static str,
    /// With a log of this size.
    pub log_area_bytes: u64,
}

/// One campaign of a lane.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What the guest does.
    pub workload: Workload,
    /// The contract under which it is recorded.
    pub recorded_under: &'static str,
    /// Explored under another one.
    pub derived: Option<Derived>,
    /// Which stream crashes.
    pub layer: Layer,
    /// How.
    pub model: Model,
    /// How far states are taken.
    pub level: Level,
    /// Of the budget.
    pub share: u32,
    /// At most so many states, for the cheap ones.
    pub states_max: Option<u64>,
    /// A fault of the guest's own that shows here now and then.
    pub known: Option<&'static str>,
}

impl Case {
    /// How its recording is explored.
    ///
    /// # Errors
    /// The recording does not say how it was made.
    pub fn setup(&self, recording: &Recording, seed: u64) -> Result<Setup> {
        Ok(Setup {
            layer: self.layer,
            atomic_bytes: atomic_bytes(recording, self.layer),
            model: self.model,
            level: self.level,
            picking: Picking::Rounds,
            seed,
            ..Setup::of(recording)?
        })
    }

    fn new(workload: &Workload, contract: &'static str) -> Self {
        Self {
            name: format!("{} {contract}", workload.name),
            workload: workload.clone(),
            recorded_under: contract,
            derived: None,
            layer: Layer::Storage,
            model: if contract == "guest-crash" { Model::Guest } else { Model::Disk },
            level: Level::Mount,
            share: 4,
            states_max: None,
            known: None,
        }
    }

    fn named(mut self, addition: &str) -> Self {
        self.name = format!("{} {addition}", self.name);
        self
    }

    fn with(self, change: impl FnOnce(Self) -> Self) -> Self {
        change(self)
    }
}

/// The window that the lanes are recorded under: short, so that a recording of a second has many syncs.
pub(super) const WINDOW: &str = "power-window=10ms";

/// What the explorer found in Linux 6.1, on the guest's own stream, without any daemon.
const JOURNAL_TAIL: &str =
    "ext4 with data=journal in Linux 6.1 moves its journal's tail past a block whose home write it has \
                            not submitted yet";

/// A log so small that it wraps, throttles and checkpoints all the time.
const SMALL_LOG_BYTES: u64 = 64 * 4096;

/// All campaigns of a lane.
pub fn cases(quick: bool) -> Vec<Case> {
    let records = workloads::records(if quick { 300 } else { 1000 });
    let sqlite = workloads::sqlite(if quick { 30 } else { 150 }, Synchronous::Extra);
    let wal = workloads::sqlite_wal(if quick { 30 } else { 150 });
    let editor = workloads::editor(if quick { 25 } else { 150 }, true);
    let churn = workloads::churn(if quick { 30 } else { 120 });
    let small_log = |workload: &Workload, level: Level, name: &str| {
        Case::new(workload, "power").named(name).with(|case| Case {
            derived: Some(Derived { contract: "power-window=20ms", log_area_bytes: SMALL_LOG_BYTES }),
            level,
            ..case
        })
    };
    let mut cases = vec![
        Case::new(&records, "power"),
        Case::new(&records, WINDOW),
        Case::new(&sqlite, "power"),
        Case::new(&sqlite, WINDOW),
        Case::new(&editor, WINDOW),
        Case::new(&churn, "power"),
        small_log(&records, Level::Log, "replayed through a small log of 20 ms").with(|case| Case {
            share: 2,
            states_max: Some(if quick { 20_000 } else { 400_000 }),
            ..case
        }),
        Case::new(&churn, WINDOW).named("process death").with(|case| Case {
            model: Model::Guest,
            states_max: Some(200_000),
            ..case
        }),
    ];
    if quick {
        return cases;
    }
    let journal = |workload: Workload| workload.mounted("data=journal");
    cases.extend([
        Case::new(&wal, "power"),
        Case::new(&wal, WINDOW),
        Case::new(&editor, "power"),
        Case::new(&churn, WINDOW),
        Case::new(&journal(records.clone()), "power"),
        Case::new(&journal(records.clone()), WINDOW).with(|case| Case { known: Some(JOURNAL_TAIL), ..case }),
        Case::new(&journal(churn.clone()), "power"),
        Case::new(&journal(workloads::integrity(300)), WINDOW)
            .with(|case| Case { known: Some(JOURNAL_TAIL), ..case }),
        Case::new(&workloads::files(120), "power"),
        Case::new(&workloads::files(120), WINDOW),
        Case::new(&records, "guest-crash").named("guest death"),
        Case::new(&sqlite, "guest-crash").named("guest death"),
        Case::new(&records, "power").named("prefixes of the guest's stream").with(|case| Case {
            layer: Layer::Guest,
            model: Model::Prefix,
            share: 2,
            ..case
        }),
        Case::new(&sqlite, "power").named("guest's stream on a plain disk").with(|case| Case {
            layer: Layer::Guest,
            share: 2,
            ..case
        }),
        small_log(&sqlite, Level::Mount, "replayed through a small log of 20 ms"),
        small_log(&churn, Level::Log, "replayed through a small log of 20 ms").with(|case| Case {
            share: 2,
            states_max: Some(400_000),
            ..case
        }),
    ]);
    cases
}
