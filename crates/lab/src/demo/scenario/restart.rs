//! The daemon is killed with SIGKILL under a guest at work, again and again, and started again. The guest must notice
//! nothing but a delay. At the end daemon and VMM die together.

use std::time::Duration;

use rand::RngExt as _;

use super::{jitter, ledger_of, on_rig, recover_and_judge, start_work, wait_for_work, Findings, Setting};
use crate::demo::inside::Load;
use crate::demo::plan::{Contract, Event, Scenario, COMMITS_MIN, DISK_BYTES, RECORDS_MIN};
use crate::demo::report::Check;
use crate::demo::rig::Rig;
use crate::demo::server::Kind;
use crate::error::Result;
use crate::guest::Vmm;

/// How often the daemon is killed.
const KILLS: u64 = 3;
/// What the guest must get done after each restart before the next kill.
const PROGRESS_RECORDS: u64 = 20;
const PROGRESS_COMMITS: u64 = 3;
/// And before the first one, where instructions are translated.
const TRANSLATED_RECORDS_MIN: u64 = 100;
const TRANSLATED_COMMITS_MIN: u64 = 20;

pub(super) fn run(setting: &mut Setting<'_>, contract: Contract, event: Event) -> Result<Findings> {
    let rig = Rig::plain(setting.images_in, DISK_BYTES)?;
    let kept = event == Event::DaemonKillKept;
    on_rig(setting, rig, |setting, rig| {
        rig.serve(if kept { Kind::OursKept(contract) } else { Kind::Ours(contract) })?;
        let (vmm, load) = if kept { (Vmm::Uml, Load::NATIVE) } else { (Vmm::Qemu, Load::TRANSLATED) };
        let mut guest = start_work(setting, rig, vmm, load)?;
        if kept {
            wait_for_work(setting, &guest, 0, (RECORDS_MIN, COMMITS_MIN))?;
        } else {
            wait_for_work(setting, &guest, 0, (TRANSLATED_RECORDS_MIN, TRANSLATED_COMMITS_MIN))?;
        }
        for kill in 1..=KILLS {
            jitter(&mut setting.rng);
            rig.server()?.kill()?;
            if !kept {
                std::thread::sleep(Duration::from_millis(setting.rng.random_range(0..300)));
            }
            rig.server()?.restart()?;
            let from = guest.channel().count();
            wait_for_work(setting, &guest, from, (PROGRESS_RECORDS, PROGRESS_COMMITS))?;
            setting
                .progress
                .step(&format!("daemon killed and started again ({kill} of {KILLS}): the guest goes on"));
        }
        jitter(&mut setting.rng);
        // The daemon first or the VMM first: both orders happen.
        if setting.rng.random_range(0..2) == 0 {
            rig.kill_server();
            guest.kill();
        } else {
            guest.kill();
            rig.kill_server();
        }
        let ledger = ledger_of(setting, &guest, None)?;
        drop(guest);
        rig.serve(Kind::Ours(contract))?;
        let allowance = Scenario::allowance(contract, event);
        let (streams, mut checks) = recover_and_judge(setting, rig, &ledger, allowance)?;
        checks.push(Check::new(
            "a killed and restarted daemon is but a delay for the guest",
            ledger.ended.is_empty(),
            if ledger.ended.is_empty() {
                format!("{KILLS} times killed, no error in the guest, work went on each time")
            } else {
                format!("ended in the guest: {}", ledger.ended.join(", "))
            },
        ));
        Ok(Findings {
            streams,
            checks,
            medium: "plain file".to_owned(),
            guest: if kept { "UML" } else { "QEMU" }.to_owned(),
            postmark_rounds: ledger.postmark_rounds,
            daemon_restarts: KILLS,
            ..Findings::default()
        })
    })
}
