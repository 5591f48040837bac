//! What simulations did.

use serde::{Deserialize, Serialize};

/// What happened: a simulation that never does the interesting things proves nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Seeds.
    pub runs: u64,
    /// Virtual time of all guests together, in seconds.
    pub guest_s: f64,
    /// Boots of guests.
    pub boots: u64,
    /// Daemons that were killed.
    pub daemon_kills: u64,
    /// Of these while they recovered.
    pub kills_in_recovery: u64,
    /// And of these within a write.
    #[serde(default)]
    pub kills_in_writes: u64,
    /// Guests that were killed.
    pub guest_kills: u64,
    /// Guests whose kernel panicked where it was told to.
    #[serde(default)]
    pub panics: u64,
    /// Boots in which a command of a commit that was handed over was refused.
    #[serde(default)]
    pub refusals: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Daemons that began after another one's death.
    pub restarts: u64,
    /// Interrupts that were not delivered.
    pub calls_lost: u64,
    /// Times that the device stood still.
    pub stalls: u64,
    /// Operations of the device that failed.
    pub io_errors: u64,
    /// Work that was acknowledged: records and transactions.
    pub acknowledged: u64,
    /// Of these lost by a power cut, within the window.
    pub lost_within_window: u64,
    /// Times that a boot's work was judged.
    pub judged: u64,
    /// Seeds in which none was: everything happened before anything was acknowledged, or nobody came to look.
    #[serde(default)]
    pub judged_nothing: u64,
    /// Checks of a file system after its kernel's own replay.
    pub checks: u64,
}

impl Tally {
    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.guest_s += other.guest_s;
        self.boots += other.boots;
        self.daemon_kills += other.daemon_kills;
        self.kills_in_recovery += other.kills_in_recovery;
        self.kills_in_writes += other.kills_in_writes;
        self.guest_kills += other.guest_kills;
        self.panics += other.panics;
        self.refusals += other.refusals;
        self.power_cuts += other.power_cuts;
        self.restarts += other.restarts;
        self.calls_lost += other.calls_lost;
        self.stalls += other.stalls;
        self.io_errors += other.io_errors;
        self.acknowledged += other.acknowledged;
        self.lost_within_window += other.lost_within_window;
        self.judged += other.judged;
        self.judged_nothing += other.judged_nothing;
        self.checks += other.checks;
    }
}
