//! The guest test suite: real guests, real deaths, and whether the promises held.
//!
//! ```text
//!   case ─► daemon (on a folder, or on the power-cut file system) ─► guest: mkfs, mount, acknowledged writes
//!        ─► death (VMM killed, kernel panic, daemon killed, power cut) ─► recovery ─► fresh guest: mount,
//!           verify, fsck ─► verdict
//! ```
//!
//! Every case prints one line. One that fails keeps its folder of evidence and says which promise broke. The
//! suite proves that it can fail, too: `canary-*` cases break a promise on purpose, and pass only if that shows.

mod control_disk;
mod crash;
mod cut;
mod firmware;
mod kernel;
mod kexec;
mod live;
mod peer;
mod retain;
mod shutdown;
mod workload;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::Vmm;
use crash::Death;
use workload::FileSystem;

pub use firmware::run as run_firmware;
pub use kernel::{run as run_kernel, KernelOptions};

/// What `afterimage-lab test guests` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct SuiteOptions {
    /// One of each kind instead of every combination: a few minutes
    #[arg(long)]
    pub quick: bool,
    /// Only cases whose name contains this
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Only list the cases
    #[arg(long)]
    pub list: bool,
    /// Seed of the power cuts
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the evidence of failed cases goes
    #[arg(long, default_value = "target/lab/evidence")]
    pub evidence: PathBuf,
}

type Run = Box<dyn Fn(&Evidence) -> Result<String>>;

struct Case {
    name: String,
    quick: bool,
    run: Run,
}

const CONTRACTS: [&str; 3] = ["power", "power-window=50ms", "guest-crash"];

/// The window of the contract above, in milliseconds.
const WINDOW_MS: f64 = 50.0;

fn cases(seed: u64, quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    for (at, file_system) in FileSystem::ALL.into_iter().enumerate() {
        for (by, contract) in CONTRACTS.into_iter().enumerate() {
            for death in [Death::Killed, Death::Panicked] {
                // Quick: each file system under each contract once, each death about half of the time.
                let quick = (death == Death::Killed) == ((at + by) % 2 == 0);
                let name = format!("crash-{}-{contract}-{}", file_system.name(), death.name());
                add(name, quick, Box::new(move |e| crash::run(e, Vmm::Uml, file_system, contract, death)));
            }
        }
    }
    let ordered = FileSystem::Ext4Ordered;
    for death in [Death::Killed, Death::Panicked] {
        let name = format!("crash-qemu-{}-{}-{}", ordered.name(), CONTRACTS[1], death.name());
        add(name, false, Box::new(move |e| crash::run(e, Vmm::Qemu, ordered, CONTRACTS[1], death)));
    }
    for contract in CONTRACTS {
        let quick = contract == "power-window=50ms";
        add(format!("qemu-restart-{contract}"), quick, Box::new(move |e| live::qemu_restart(e, contract)));
        add(format!("keep-restart-{contract}"), quick, Box::new(move |e| live::keep_restart(e, contract)));
    }
    add("qemu-pause-rebind".to_owned(), true, Box::new(live::qemu_pause_rebind));
    for (turn, file_system) in FileSystem::ALL.into_iter().enumerate() {
        for contract in ["power", "power-window=50ms"] {
            for round in 0..3 {
                let quick = round == 0 && (turn == 0 || contract != "power");
                let cut_seed = seed.wrapping_mul(1000) + (turn as u64) * 10 + round;
                let name = format!("cut-{}-{contract}-{round}", file_system.name());
                add(name, quick, Box::new(move |e| cut::one_disk(e, file_system, contract, cut_seed)));
            }
        }
    }
    for round in 0..3 {
        let cut_seed = seed.wrapping_mul(1000) + 100 + round;
        add(format!("cut-two-disks-{round}"), round < 1, Box::new(move |e| cut::two_disks(e, cut_seed)));
    }
    add("peer-flushes".to_owned(), true, Box::new(peer::flushes));
    let cut_seed = seed.wrapping_mul(1000) + 200;
    add("cut-changed-contract".to_owned(), false, Box::new(move |e| cut::changed_contract(e, cut_seed)));
    add("canary-guest-crash-cut".to_owned(), true, Box::new(cut::canary));
    cases.extend(control_disk::cases(seed.wrapping_mul(1000) + 300));
    cases.extend(retain::cases(seed, quick));
    cases
}

/// Runs the suite; `true` if every case passed.
///
/// # Errors
/// The suite itself can not run; a failed case is not an error here.
pub fn run(options: &SuiteOptions) -> Result<bool> {
    run_cases(cases(options.seed, options.quick), options)
}

fn run_cases(cases: Vec<Case>, options: &SuiteOptions) -> Result<bool> {
    let wanted = |case: &Case| {
        options.only.as_ref().map_or(!options.quick || case.quick, |only| case.name.contains(only.as_str()))
    };
    let cases: Vec<Case> = cases.into_iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err(LabError::Missing("no case has such a name: see --list".to_owned()));
    }
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(true);
    }
    let start = Instant::now();
    let mut failed = 0;
    for case in &cases {
        let evidence = Evidence::new(&options.evidence, &case.name)?;
        let began = Instant::now();
        let outcome = (case.run)(&evidence);
        let took = began.elapsed().as_secs_f32();
        match outcome {
            Ok(told) => {
                println!("ok      {:<44} {took:5.1} s  {told}", case.name);
                evidence.discard();
            }
            Err(error) => {
                failed += 1;
                evidence.text("error.txt", &error.to_string());
                println!("FAILED  {:<44} {took:5.1} s  {error}", case.name);
                println!("        evidence: {}", evidence.folder().display());
            }
        }
    }
    let passed = cases.len() - failed;
    println!("guests: {:.0} s", start.elapsed().as_secs_f32());
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// Longer than any guest of the suite should live, on a machine that others use too.
const GUEST_LIMIT: Duration = Duration::from_secs(150);
