//! Which campaigns a suite runs.

use afterimage_trace::{Layer, Recording};

use super::workloads::{self, Workload};
use crate::check::apps::Synchronous;
use crate::model::Model;
use crate::report::Known;
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
    /// With the guest's journal retained.
    pub retain: bool,
}

/// One campaign of a suite.
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
    pub known: Option<Known>,
    /// Not a stream's cuts, but so many deaths of guest and daemon with a retained journal.
    pub deaths: Option<usize>,
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
            deaths: None,
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

/// The window that the suites are recorded under: short, so that a recording of a second has many syncs.
pub(super) const WINDOW: &str = "power-window=10ms";

/// What the explorer found in Linux 6.1, on the guest's own stream, without any daemon: a record that had been acknowledged is not
/// there.
fn journal_tail() -> Option<Known> {
    Some(Known {
        why: "ext4 with data=journal in Linux 6.1 moves its journal's tail past a block whose home write it has not submitted yet"
            .to_owned(),
        check: "records".to_owned(),
        what: "record ".to_owned(),
    })
}

/// A log so small that it wraps, throttles and checkpoints all the time.
const SMALL_LOG_BYTES: u64 = 64 * 4096;

/// A log that takes whole transactions of a journal of 4 MiB.
pub(super) const RETAINED_LOG_BYTES: u64 = 4 << 20;

/// All campaigns of a suite.
pub fn cases(quick: bool) -> Vec<Case> {
    let records = workloads::records(if quick { 300 } else { 1000 });
    let sqlite = workloads::sqlite(if quick { 30 } else { 150 }, Synchronous::Extra);
    let wal = workloads::sqlite_wal(if quick { 30 } else { 150 });
    let editor = workloads::editor(if quick { 25 } else { 150 }, true);
    let churn = workloads::churn(if quick { 30 } else { 120 });
    let small_log = |workload: &Workload, level: Level, name: &str| {
        Case::new(workload, "power").named(name).with(|case| Case {
            derived: Some(Derived {
                contract: "power-window=20ms",
                log_area_bytes: SMALL_LOG_BYTES,
                retain: false,
            }),
            level,
            ..case
        })
    };
    let retained = |workload: &Workload, recorded: &'static str, log_area_bytes: u64, level: Level| {
        let name = format!("retained, replayed through a log of {} KiB of 20 ms", log_area_bytes >> 10);
        Case::new(workload, recorded).named(&name).with(|case| Case {
            derived: Some(Derived { contract: "power-window=20ms", log_area_bytes, retain: true }),
            model: Model::Disk,
            level,
            share: 2,
            ..case
        })
    };
    let deaths = |workload: &Workload, recorded: &'static str, count: usize| {
        Case::new(workload, recorded).named("retained, deaths").with(|case| Case {
            deaths: Some(count),
            share: 2,
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
        // Data journaling, other features and small logs: crates/explore/tests/retained.rs.
        let cut = retained(&churn, "power", RETAINED_LOG_BYTES, Level::Fsck);
        cases.push(Case { states_max: Some(3000), ..cut });
        cases.push(deaths(&churn, "power", 8));
        return cases;
    }
    let journal = |workload: Workload| workload.mounted("data=journal");
    cases.extend([
        Case::new(&wal, "power"),
        Case::new(&wal, WINDOW),
        Case::new(&editor, "power"),
        Case::new(&churn, WINDOW),
        Case::new(&journal(records.clone()), "power"),
        Case::new(&journal(records.clone()), WINDOW).with(|case| Case { known: journal_tail(), ..case }),
        Case::new(&journal(churn.clone()), "power"),
        Case::new(&journal(workloads::integrity(300)), WINDOW)
            .with(|case| Case { known: journal_tail(), ..case }),
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
    let churn = |mount: &str, features: &str| {
        let mounted = if mount.is_empty() { churn.clone() } else { churn.clone().mounted(mount) };
        if features.is_empty() {
            mounted
        } else {
            mounted.featured(features)
        }
    };
    for (mount, features) in [
        ("data=journal", ""),
        ("", ""),
        ("data=writeback", ""),
        ("data=journal", "^metadata_csum,^64bit"),
        ("data=journal,journal_async_commit", ""),
        ("data=journal,journal_async_commit,journal_checksum", "^metadata_csum,^64bit"),
        ("", "quota"),
    ] {
        let workload = churn(mount, features);
        cases.push(retained(&workload, "guest-crash", RETAINED_LOG_BYTES, Level::Mount));
        // Transactions that do not fit: the journal is handed back, and taken again.
        let small = retained(&workload, "guest-crash", SMALL_LOG_BYTES, Level::Log);
        cases.push(Case { share: 1, states_max: Some(200_000), ..small });
        cases.push(deaths(&workload, "guest-crash", 300));
    }
    for (workload, known) in [
        (journal(records.clone()), journal_tail()),
        (journal(workloads::integrity(300)), journal_tail()),
        (sqlite, None),
    ] {
        let case = retained(&workload, "guest-crash", RETAINED_LOG_BYTES, Level::Mount);
        cases.push(Case { share: 4, known, ..case });
    }
    cases
}
