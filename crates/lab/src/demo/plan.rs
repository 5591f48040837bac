//! What the demo does: contracts × ways to die, and the speed rows.

use std::fmt;
use std::time::Duration;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::error::{LabError, Result};

/// The window that the demo asks for, in milliseconds.
pub const WINDOW_MS: u64 = 50;
/// Size of every disk, in bytes, but those of the comparison of journals. Sparse; small, so that postmark wraps around in it.
pub const DISK_BYTES: u64 = 256 << 20;
/// Memory of the guests whose journal is retained, and of those that they are compared with: the VMA paper's, in MiB.
pub const RETAIN_GUEST_MIB: u32 = 128;
/// Records that must have been acknowledged before anything is killed under User Mode Linux.
pub const RECORDS_MIN: u64 = 300;
/// Transactions, in each journal mode, that must have been committed before that.
pub const COMMITS_MIN: u64 = 60;
/// After these minima, the kill comes at a seeded instant within this many milliseconds.
pub const JITTER_MS: u64 = 700;
/// How often the power is cut, each time on a fresh image.
pub const CUTS: u64 = 3;
/// A guest that has not come so far within this time has failed.
pub const GUEST_LIMIT: Duration = Duration::from_secs(120);

/// A contract under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// `power`
    Power,
    /// `power-window=50ms`
    PowerWindow,
    /// `guest-crash`
    GuestCrash,
}

impl Contract {
    /// All of them, in the order of the table.
    pub const ALL: [Contract; 3] = [Contract::Power, Contract::PowerWindow, Contract::GuestCrash];

    /// What `--survives` is given.
    pub fn flag(self) -> String {
        match self {
            Contract::Power => "power".to_owned(),
            Contract::PowerWindow => format!("power-window={WINDOW_MS}ms"),
            Contract::GuestCrash => "guest-crash".to_owned(),
        }
    }

    /// The part of a scenario's name.
    pub fn short(self) -> &'static str {
        match self {
            Contract::Power => "power",
            Contract::PowerWindow => "power-window",
            Contract::GuestCrash => "guest-crash",
        }
    }
}

/// What is done to a guest at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SIGKILL of the VMM.
    VmmKill,
    /// A panic of the guest's kernel.
    GuestPanic,
    /// `kill -9` of the daemon under a guest whose sockets `afterimage keep` holds.
    DaemonKillKept,
    /// `kill -9` of the daemon under a QEMU guest that reconnects; then daemon and VMM at once.
    DaemonKillQemu,
    /// The power goes, for the storage below the daemon and everything above.
    PowerCut,
}

impl Event {
    /// The part of a scenario's name.
    pub fn short(self) -> &'static str {
        match self {
            Event::VmmKill => "vmm-kill",
            Event::GuestPanic => "guest-panic",
            Event::DaemonKillKept => "daemon-kill-kept",
            Event::DaemonKillQemu => "daemon-kill-qemu",
            Event::PowerCut => "power-cut",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Event::VmmKill => "the VMM is killed",
            Event::GuestPanic => "the guest's kernel panics",
            Event::DaemonKillKept => "the daemon is killed under UML (keep)",
            Event::DaemonKillQemu => "the daemon is killed under QEMU, then both",
            Event::PowerCut => "the power is cut (3 times)",
        }
    }
}

/// What may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Nothing that was acknowledged.
    Nothing,
    /// Acknowledgements of at most this much time, as an exact prefix.
    Window(Duration),
}

/// One thing that the demo does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// The same work in `data=journal` with and without a retained journal: bytes and times.
    RetainBytes,
    /// A guest at work whose journal is retained is killed.
    RetainKill,
    /// The same under a daemon that forgets what the guest writes to its journal. Shows that the checks can fail.
    RetainCanary,
    /// A guest at work dies, or something under it does.
    Crash(Contract, Event),
    /// Not ours: what a power cut does to qemu-storage-daemon without flushes. Shows that the checks can fail.
    Canary,
    /// The same work on every server, timed.
    Speed,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Crash(contract, event) => write!(f, "{}/{}", contract.short(), event.short()),
            Scenario::RetainBytes => f.write_str("retain/bytes"),
            Scenario::RetainKill => f.write_str("retain/guest-kill"),
            Scenario::RetainCanary => f.write_str("retain/canary"),
            Scenario::Canary => f.write_str("canary"),
            Scenario::Speed => f.write_str("speed"),
        }
    }
}

impl Scenario {
    /// What the contract allows to be lost in this event.
    pub fn allowance(contract: Contract, event: Event) -> Allowance {
        match (contract, event) {
            (Contract::PowerWindow, Event::PowerCut) => Allowance::Window(Duration::from_millis(WINDOW_MS)),
            _ => Allowance::Nothing,
        }
    }

    /// Not a promise: what these lose shows that a loss is seen.
    pub fn expects_loss(self) -> bool {
        matches!(self, Scenario::Canary | Scenario::RetainCanary)
    }

    /// A generator of its own, so that `--only` does not change what happens in it.
    pub fn rng(self, seed: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // FNV-1a over the name: any function would do that tells the names apart and never changes.
        let stream = self.to_string().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        rng.set_stream(stream);
        rng
    }
}

/// Everything, in order: the headline, then the deaths, quick ones first, so that a broken machine shows early.
pub fn everything() -> Vec<Scenario> {
    let mut all = vec![Scenario::RetainBytes, Scenario::RetainKill, Scenario::RetainCanary];
    for contract in Contract::ALL {
        let mut events =
            vec![Event::VmmKill, Event::GuestPanic, Event::DaemonKillKept, Event::DaemonKillQemu];
        // After a power cut a guest-crash disk is undefined: there is no promise to check.
        if contract != Contract::GuestCrash {
            events.push(Event::PowerCut);
        }
        all.extend(events.into_iter().map(|event| Scenario::Crash(contract, event)));
    }
    all.extend([Scenario::Canary, Scenario::Speed]);
    all
}

/// The scenarios whose name is `only` or has it as one of its two parts; all without one.
///
/// # Errors
/// There is none; the text names all.
pub fn selection(only: &[String]) -> Result<Vec<Scenario>> {
    let all = everything();
    if only.is_empty() {
        return Ok(all);
    }
    let matches = |scenario: &Scenario, word: &str| {
        let name = scenario.to_string();
        name == word || name.split('/').any(|part| part == word)
    };
    if let Some(unknown) = only.iter().find(|word| !all.iter().any(|s| matches(s, word))) {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        return Err(LabError::Missing(format!(
            "there is no scenario {unknown}: --only takes {} or one of their parts",
            names.join(", ")
        )));
    }
    Ok(all.into_iter().filter(|scenario| only.iter().any(|word| matches(scenario, word))).collect())
}

#[cfg(test)]
mod tests {
    use rand::Rng as _;

    use super::*;

    fn select(word: &str) -> Vec<String> {
        selection(&[word.to_owned()]).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn parts_and_whole_names_select() {
        assert_eq!(select("power-cut"), ["power/power-cut", "power-window/power-cut"]);
        assert_eq!(select("guest-crash").len(), 4);
        assert_eq!(select("retain"), ["retain/bytes", "retain/guest-kill", "retain/canary"]);
        assert_eq!(select("canary"), ["retain/canary", "canary"]);
        assert_eq!(select("power/vmm-kill"), ["power/vmm-kill"]);
        assert_eq!(selection(&[]).unwrap().len(), everything().len());
        assert!(selection(&["vmm".to_owned()]).is_err());
    }

    #[test]
    fn a_scenario_draws_the_same_whatever_else_runs() {
        let a = Scenario::Crash(Contract::Power, Event::VmmKill);
        let b = Scenario::Crash(Contract::Power, Event::GuestPanic);
        assert_eq!(a.rng(7).next_u64(), a.rng(7).next_u64());
        assert_ne!(a.rng(7).next_u64(), b.rng(7).next_u64());
        assert_ne!(a.rng(7).next_u64(), a.rng(8).next_u64());
    }
}
