//! Whole systems from one seed: real kernels, real databases, our daemon, and everything that goes wrong, at any instant of virtual time.
//!
//! ```text
//!   plan: who, on what, what goes wrong ─► events ─► crowd: guests and daemons take their turns
//!                                           ▲  │ killed: unwinds where its clock reaches the instant; its files stay
//!     the next one begins, boots ───────────┘  │ power: what of the files was durable, and any part of the rest
//!   script: each boot looks at what earlier ones left ─► console ─► ledger: what was promised, what is there
//! ```
//!
//! A seed is run by a process of its own, whose random numbers are pinned like the guests' kernel's: identities of arenas and logs are
//! random, and guests see some of them.
//!
//! A daemon is one thread here but for syncs of its log, so that what it has in memory is always what it has done by its own
//! clock. Not simulated: two threads of one daemon at one moment, and what the kernel of its host does wrong.

mod ledger;
mod plan;
mod script;
mod tally;
mod vext4;
mod world;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::canary::Canary;
use crate::error::{io_error, RunError};
use crate::guest::{GuestKernel, GuestOptions};
use crate::options::RunOptions;
use crate::page_cache::DirtyLimits;
use crate::trace::Trace;
use plan::Plan;
pub use tally::Tally;
use vext4::Mount;
use world::{Ended, World};

const IMAGE_BYTES: u64 = 64 << 20;
const MEMORY_MIB: u32 = 96;

/// What is simulated, and with which programs.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// The guests' kernel.
    pub kernel: GuestKernel,
    /// The program that works inside.
    pub agent: PathBuf,
    /// No more guests than so many.
    pub guests_max: usize,
    /// What is broken on purpose.
    pub canary: Canary,
    /// Guests have `vext4`: the folder with the tests' programs.
    pub vext4: Option<PathBuf>,
    /// And mount it with `ijournal`: the folder with `vext4-recover`.
    pub ijournal: Option<PathBuf>,
    /// Or with `data=vma`.
    pub vma: bool,
    /// How long one seed may take in real time.
    pub limit: Duration,
}

impl SimulateOptions {
    /// What guests with `vext4` mount.
    fn mount(&self) -> Option<Mount> {
        self.vext4.as_ref().map(|_| match self.ijournal {
            Some(_) => Mount::Ijournal,
            None if self.vma => Mount::Vma,
            None => Mount::Own,
        })
    }
}

/// What came of a seed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// What it was.
    pub plan: String,
    /// What happened.
    pub tally: Tally,
    /// The sum of all requests and of what went wrong, with their times.
    pub trace: u64,
    /// What is wrong, if something is.
    pub broken: Option<String>,
    /// Only that it took too long.
    pub out_of_time: bool,
}

/// Runs one seed. `folder` is an empty one on a tmpfs.
///
/// # Errors
/// The run itself came to no end; a broken promise is in the report.
pub fn simulate(
    seed: u64,
    options: &SimulateOptions,
    folder: &Path,
    trace: &Path,
) -> Result<Simulated, RunError> {
    let plan = Plan::draw(seed, options.guests_max, options.mount());
    let run = run_options(&plan, options);
    let trace = Trace::create(trace, plan.guests).map_err(io_error("make the trace"))?;
    let mut world = World::new(&plan, &run, options, folder, &trace)?;
    let lived = world.live();
    let out_of_time = matches!(&lived, Err(Ended::Run(error)) if matches!(**error, RunError::Limit { .. }));
    let broken = match lived {
        Ok(()) => None,
        Err(Ended::Broken(what)) => Some(what),
        // What broke where a promise is judged is a finding like any other.
        Err(Ended::Run(error)) => match *error {
            RunError::Daemon { .. } | RunError::Stuck(_) | RunError::Limit { .. } => Some(error.to_string()),
            error => return Err(error),
        },
    };
    // Where it ran is no part of what was found: the next run of the seed is in another folder.
    let broken = broken.map(|what| what.replace(&format!("{}/", folder.display()), ""));
    let tally = world.end();
    let sum = trace.finish().map_err(io_error("write the trace"))?;
    Ok(Simulated { plan: plan.describe(), tally, trace: sum, broken, out_of_time })
}

fn run_options(plan: &Plan, options: &SimulateOptions) -> RunOptions {
    let mut append = vec![
        format!("AGENT={}", options.agent.display()),
        format!("DATA={}", plan.data),
        format!("THREADS={}", plan.threads),
        format!("SIZE={}", plan.record_bytes),
        format!("PAUSE={}", plan.pause_us),
        format!("FILES={}", if plan.a_file_each { "--files" } else { "" }),
    ];
    if let (Some(vext4), Some(programs)) = (&plan.vext4, &options.vext4) {
        append.extend(vext4.append(programs, options.ijournal.as_deref().unwrap_or(Path::new(""))));
    }
    append.extend(options.canary.guest().map(|part| format!("vjbd2.without={part}")));
    let guest = GuestOptions {
        kernel: options.kernel.clone(),
        memory_mib: MEMORY_MIB,
        seed: plan.seed,
        script: script::script(options.mount()),
        append,
        reports: false,
    };
    RunOptions {
        guests: plan.guests,
        model: plan.model,
        limits: DirtyLimits::of_memory(plan.host_bytes),
        image_bytes: IMAGE_BYTES,
        contract: plan.contract,
        journal: plan.journal.clone(),
        direct: plan.direct,
        log_bytes: plan.log_bytes(),
        request_ns: plan.request_ns,
        control_disk: options.mount() == Some(Mount::Vma),
        crashes: true,
        canary: options.canary,
        limit: options.limit,
        ..RunOptions::of(guest)
    }
}
