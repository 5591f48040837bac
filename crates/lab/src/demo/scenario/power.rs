//! The power is cut below the daemon's files: what was not synced is at the mercy of a seeded lottery, sector by
//! sector, some of them torn. Daemon and VMM die with it.

use std::time::Duration;

use rand::{Rng as _, RngExt as _};

use super::{jitter, ledger_of, on_rig, recover_and_judge, start_work, wait_for_work, Findings, Setting};
use crate::channel::monotonic_ns;
use crate::demo::inside::Load;
use crate::demo::plan::{Allowance, Contract, Event, Scenario, COMMITS_MIN, CUTS, DISK_BYTES, RECORDS_MIN};
use crate::demo::rig::Rig;
use crate::demo::server::Kind;
use crate::error::Result;
use crate::guest::Vmm;
use crate::powerfs::ModelName;

/// The modelled device, whose cache is what a cut takes.
const MODEL: ModelName = ModelName::Ssd;
/// Of 1000 unsynced sectors that a cut keeps, so many are torn.
const TORN_PER_MILLE: u64 = 20;

pub(super) fn run(setting: &mut Setting<'_>, contract: Contract) -> Result<Findings> {
    let mut all = Findings::default();
    for round in 1..=CUTS {
        setting.round = round;
        all.add_round(cut(setting, Kind::Ours(contract), Scenario::allowance(contract, Event::PowerCut))?);
        if !all.held() {
            break;
        }
    }
    Ok(all)
}

pub(super) fn run_canary(setting: &mut Setting<'_>) -> Result<Findings> {
    cut(setting, Kind::PeerNoFlush, Allowance::Nothing)
}

fn cut(setting: &mut Setting<'_>, kind: Kind, allowance: Allowance) -> Result<Findings> {
    let rig = Rig::power(MODEL, setting.images_in, setting.rng.next_u64(), DISK_BYTES)?;
    on_rig(setting, rig, |setting, rig| {
        rig.serve(kind)?;
        let mut guest = start_work(setting, rig, Vmm::Uml, Load::NATIVE)?;
        wait_for_work(setting, &guest, 0, (RECORDS_MIN, COMMITS_MIN))?;
        jitter(&mut setting.rng);
        let seed = setting.rng.next_u64();
        rig.nudge_write_back()?;
        // Up to a millisecond: the device's cache has taken some of it, and the kernel still holds the rest.
        std::thread::sleep(Duration::from_micros(setting.rng.random_range(0..1000)));
        // Taken before the order is given: what arrives from now on may have been acknowledged after the cut.
        let cut_ns = monotonic_ns();
        let cut = rig.mount()?.cut(seed, TORN_PER_MILLE)?;
        guest.kill();
        rig.kill_server();
        rig.mount()?.restore()?;
        let tally = serde_json::to_string(&cut.report).unwrap_or_default();
        setting.progress.step(&format!("the power went: {tally}"));
        setting.evidence.text(&setting.tag("cut.json"), &format!("{{\"seed\":{seed},\"report\":{tally}}}\n"));
        let ledger = ledger_of(setting, &guest, Some(cut_ns))?;
        drop(guest);
        rig.keep(setting.evidence, &setting.tag("2-after-the-cut"));
        rig.serve(kind)?;
        let (streams, checks) = recover_and_judge(setting, rig, &ledger, allowance)?;
        Ok(Findings {
            streams,
            checks,
            medium: format!("FUSE model {}", MODEL.as_str()),
            guest: "UML".to_owned(),
            postmark_rounds: ledger.postmark_rounds,
            ..Findings::default()
        })
    })
}
