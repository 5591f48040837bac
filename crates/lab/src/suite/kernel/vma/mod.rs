//! `data=vma`: commits that are handed over to the control disk, and every death that may come between.
//!
//! ```text
//!   vext4 -o data=vma ─► commits ─► VMM, daemon, kernel die, the control disk refuses or goes ─► a stock kernel mounts, e2fsck -fn
//! ```

mod death;
mod orderly;
mod refusal;
mod rig;

use self::death::{Death, FAULTS};
use self::refusal::Refusal;
use super::{Build, KernelOptions};
use crate::error::Result;
use crate::evidence::Evidence;
use crate::suite::{Case, Run};

/// How commits get there.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Of cases' names.
    name: &'static str,
    mount: &'static str,
    published: bool,
}

const SENT: Way = Way {
    name: "vma",
    mount: "mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/vda /mnt",
    published: false,
};
const PUBLISHED: Way = Way {
    name: "vma-exitless",
    mount: "mount -t vext4 -o data=vma,vma_exitless,vma_disk=/dev/vdb /dev/vda /mnt",
    published: true,
};

/// Those under which a journal is retained, and a death without a power cut loses nothing.
const CONTRACTS: [&str; 2] = ["guest-crash", "power-window=50ms"];

/// The cases.
pub(super) fn cases(options: &KernelOptions, build: &Build) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    let own = build.clone();
    add("vext4-vma-mounted".to_owned(), true, Box::new(move |e| orderly::mounted(e, &own)));
    let own = build.clone();
    add("vext4-vma-cost".to_owned(), false, Box::new(move |e| orderly::cost(e, &own)));
    for way in [SENT, PUBLISHED] {
        for (at, death) in Death::ALL.into_iter().enumerate() {
            for (by, contract) in CONTRACTS.into_iter().enumerate() {
                for keep in [false, true] {
                    for round in 0..options.kills.div_ceil(4) {
                        let (own, acknowledged) = (build.clone(), 80 + 37 * (round % 8));
                        let death = (contract, keep, death);
                        let run =
                            Box::new(move |e: &Evidence| death::died(e, &own, way, death, acknowledged));
                        let (way, death) = (way.name, death.2.name());
                        let keeps = if keep { "-keep" } else { "" };
                        let name = format!("vext4-{way}-{death}-{contract}{keeps}-{round}");
                        // Quick: each death once.
                        add(name, round == 0 && by == at % 2 && keep == (at % 2 == 1), run);
                    }
                }
            }
        }
        for (by, refusal) in [Refusal::Passthrough, Refusal::Removed].into_iter().enumerate() {
            for (to, contract) in CONTRACTS.into_iter().enumerate() {
                let own = build.clone();
                let run =
                    Box::new(move |e: &Evidence| refusal::refused(e, &own, way, (contract, refusal), 60));
                add(format!("vext4-{}-{}-{contract}", way.name, refusal.name()), by == to, run);
            }
        }
    }
    for contract in CONTRACTS {
        let own = build.clone();
        let run = Box::new(move |e: &Evidence| death::two_killed(e, &own, contract));
        add(format!("vext4-vma-exitless-two-{contract}"), contract == CONTRACTS[0], run);
    }
    if let Some(folder) = &options.faults {
        let build = Build::of(folder)?;
        for fault in FAULTS {
            for round in 0..options.panics {
                let (build, after) = (build.clone(), 15 + 9 * round);
                let run = Box::new(move |e: &Evidence| death::panicked(e, &build, fault, after));
                add(format!("vext4-vma-panicked-{}-{round}", fault.0), round == 0, run);
            }
        }
        for contract in CONTRACTS {
            let own = build.clone();
            let run = Box::new(move |e: &Evidence| {
                refusal::refused(e, &own, SENT, (contract, Refusal::Spoilt), 60)
            });
            add(format!("vext4-vma-spoilt-{contract}"), true, run);
        }
        let early = Build { parameters: "without=vma-publish".to_owned(), ..build.clone() };
        add(
            "canary-vext4-vma-publish".to_owned(),
            true,
            Box::new(move |e| death::without_publication(e, &early)),
        );
        let build = Build { parameters: "without=vma-rewrite".to_owned(), ..build };
        add(
            "canary-vext4-vma-rewrite".to_owned(),
            true,
            Box::new(move |e| refusal::without_rewrite(e, &build)),
        );
    }
    Ok(cases)
}
