//! Real guests prove that a retained journal loses nothing: `serve --journal retain`.
//!
//! ```text
//!   kills     guests killed at seeded instants, and two independent oracles of what recovery has to make of it
//!   live      guests that only looked dead
//!   life      one image, served by one daemon after the other, each with options of its own
//!   remount   file systems that are shut down and mounted again, while somebody uses the control socket
//!   over      mkfs, dd, resize2fs, tune2fs, e2fsck, aborts and remounts over a retained journal
//!   wild      scribbles over what was committed
//!   memory    bounded, and given back
//!   cut       the power goes, below the real store: under `power-window` what is durable is whole
//! ```

mod cut;
mod format;
mod kills;
mod life;
mod live;
mod memory;
mod oracles;
mod over;
mod remount;
mod rig;
mod tree;
mod wild;

use super::workload::FileSystem;
use super::{Case, Run};
use crate::error::{LabError, Result};
use crate::guest::Vmm;
use crate::integrity;
use format::{Format, FORMATS};
use kills::{many, Death, Plan, ONE_OF_EACH};
use live::Disturbance;
use rig::Setup;

/// Kills of each format in the full suite.
const KILLS: usize = 30;

/// The contract with a redo log below.
const WINDOW: &str = "power-window=50ms";

/// The suite's cases.
pub(super) fn cases(seed: u64, quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    for (at, format) in (0u64..).zip(FORMATS) {
        let seed = seed.wrapping_mul(1000) + at;
        let deaths = if quick { ONE_OF_EACH.to_vec() } else { many(KILLS, seed) };
        let plan = Plan { setup: Setup::new(format), deaths, seed, churn: true, acknowledged_max: 250 };
        let name = format!("retain-kill-{}", format.name);
        add(name, format.quick, Box::new(move |evidence| kills::run(evidence, &plan)));
    }
    for (at, name) in
        (100u64..).zip(["journal-small", "ordered-small-plain", "journal-async", "journal-partition"])
    {
        let Some(format) = Format::named(name) else { continue };
        let seed = seed.wrapping_mul(1000) + at;
        let few = [Death::Killed, Death::Compared, Death::BothKilled];
        let deaths = if quick { few.to_vec() } else { many(KILLS, seed) };
        let setup = Setup { survives: WINDOW, ..Setup::new(format) };
        let plan = Plan { setup, deaths, seed, churn: true, acknowledged_max: 250 };
        let case = format!("retain-kill-window-{name}");
        add(case, at == 100, Box::new(move |evidence| kills::run(evidence, &plan)));
    }
    for (turn, file_system) in (0u64..).zip([FileSystem::Ext4Journal, FileSystem::Ext4Ordered]) {
        for round in 0..4 {
            let seed = seed.wrapping_mul(1000) + 300 + 10 * turn + round;
            let name = format!("retain-cut-{}-{round}", file_system.name());
            let quick = turn == 0 && round == 0;
            add(name, quick, Box::new(move |evidence| cut::run(evidence, file_system, WINDOW, seed)));
        }
    }
    add("canary-retain-cut".to_owned(), false, Box::new(move |evidence| cut::canary(evidence, seed)));
    // The same kills on any disk: what the guest's kernel loses by itself (data=journal in Linux 6.1 does) shows here.
    if let Some(format) = Format::named("journal-small") {
        let plan = Plan {
            setup: Setup { journal: "passthrough", ..Setup::new(format) },
            deaths: vec![Death::Killed; KILLS],
            seed,
            churn: true,
            acknowledged_max: 250,
        };
        add("retain-control-passthrough".to_owned(), false, Box::new(move |e| kills::run(e, &plan)));
    }
    let Some(format) = Format::named("journal-small") else { return cases };
    let plan_under = |survives, keep| Plan {
        setup: Setup { keep, survives, ..Setup::new(format) },
        deaths: Vec::new(),
        seed,
        churn: true,
        acknowledged_max: 0,
    };
    let plan = |keep| plan_under("guest-crash", keep);
    for (name, quick, vmm, keep, disturbance) in [
        ("uml-frozen", false, Vmm::Uml, false, Disturbance::Frozen),
        ("uml-daemon-killed", true, Vmm::Uml, true, Disturbance::DaemonKilled),
        ("uml-handed-over", true, Vmm::Uml, true, Disturbance::HandedOver),
        ("qemu-paused", false, Vmm::Qemu, false, Disturbance::Paused),
        ("qemu-daemon-killed", false, Vmm::Qemu, false, Disturbance::DaemonKilled),
        ("qemu-daemon-stopped", true, Vmm::Qemu, false, Disturbance::DaemonStopped),
        ("qemu-rebound", false, Vmm::Qemu, false, Disturbance::Rebound),
        ("qemu-kexec", false, Vmm::Qemu, false, Disturbance::Kexec),
        ("qemu-suspended", false, Vmm::Qemu, false, Disturbance::Suspended),
    ] {
        let plan = plan(keep);
        add(format!("retain-live-{name}"), quick, Box::new(move |e| live::run(e, &plan, vmm, disturbance)));
    }
    for (name, keep, disturbance) in [
        ("daemon-killed", true, Disturbance::DaemonKilled),
        ("handed-over", true, Disturbance::HandedOver),
        ("frozen", false, Disturbance::Frozen),
    ] {
        let plan = plan_under(WINDOW, keep);
        let name = format!("retain-live-window-{name}");
        add(name, false, Box::new(move |e| live::run(e, &plan, Vmm::Uml, disturbance)));
    }
    for (survives, label) in [("guest-crash", ""), (WINDOW, "window-")] {
        let (guests, mounts) = if quick { (1, 4) } else { (5, 10) };
        for (name, plan) in remount::Plan::all(survives, guests, mounts, seed) {
            let case = format!("retain-remount-{label}{name}");
            let quick = label.is_empty() && plan.is_quick();
            add(case, quick, Box::new(move |evidence| remount::run(evidence, &plan)));
        }
    }
    for (at, survives) in (0u64..).zip(["guest-crash", WINDOW]) {
        let (guests, steps) = if quick { (2, 4) } else { (8, 8) };
        let plan = Plan {
            seed: seed.wrapping_mul(1000) + 400 + at,
            acknowledged_max: 250,
            ..plan_under(survives, false)
        };
        let case = format!("retain-life-{survives}");
        add(
            case,
            survives == "guest-crash",
            Box::new(move |evidence| life::run(evidence, &plan, guests, steps)),
        );
    }
    let over = plan(false);
    add("retain-over".to_owned(), true, Box::new(move |e| over::run(e, &over, quick)));
    let wild = plan(false);
    add("retain-wild".to_owned(), true, Box::new(move |e| wild::run(e, &wild)));
    add("retain-memory".to_owned(), true, Box::new(move |e| memory::run(e, format)));
    for (data, journal) in [("journal", "passthrough"), ("journal", "retain")] {
        let name = format!("retain-integrity-{data}-{journal}");
        let iterations = if quick { 2 } else { 10 };
        add(name, true, Box::new(move |_| integrity_of(data, journal, seed, iterations)));
    }
    add("canary-retain-dropped".to_owned(), true, Box::new(move |e| kills::canary(e, seed)));
    cases
}

/// Large records, where they are most easily torn; all sizes and modes are `afterimage-lab integrity`'s. A transaction may end within the
/// record that is being written: how often it does is a matter of how quick the machine is.
fn integrity_of(data: &'static str, journal: &'static str, seed: u64, iterations: u64) -> Result<String> {
    let cell = integrity::Cell { data, journal, size_bytes: 64 << 10, seed };
    let (mut done, mut mixed, mut wrong, mut submitted_bytes) = (0, 0, 0, 0);
    cell.run(0, iterations, &mut |iteration| {
        done += 1;
        mixed += iteration.mixed;
        wrong += iteration.foreign_blocks + iteration.out_of_order_blocks;
        submitted_bytes += iteration.submitted_bytes;
        Ok(())
    })?;
    if wrong > 0 {
        let sentence =
            format!("{wrong} blocks are as no moment of the updates had left them, after {done} kills");
        return Err(LabError::Broken(sentence));
    }
    Ok(format!(
        "{done} kills, each after {} KiB; all that was left is in order, {mixed} times the last record in pieces",
        submitted_bytes / 1024 / done.max(1)
    ))
}
