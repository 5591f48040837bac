//! The VMM is killed, or the guest's kernel panics; the daemon lives.

use super::{jitter, ledger_of, on_rig, recover_and_judge, start_work, wait_for_work, Findings, Setting};
use crate::demo::inside::Load;
use crate::demo::plan::{Contract, Event, Scenario, COMMITS_MIN, DISK_BYTES, RECORDS_MIN};
use crate::demo::rig::Rig;
use crate::demo::server::Kind;
use crate::error::Result;
use crate::guest::Vmm;

pub(super) fn run(setting: &mut Setting<'_>, contract: Contract, event: Event) -> Result<Findings> {
    let rig = Rig::plain(setting.images_in, DISK_BYTES)?;
    on_rig(setting, rig, |setting, rig| {
        rig.serve(Kind::Ours(contract))?;
        let mut guest = start_work(setting, rig, Vmm::Uml, Load::NATIVE)?;
        wait_for_work(setting, &guest, 0, (RECORDS_MIN, COMMITS_MIN))?;
        jitter(&mut setting.rng);
        if event == Event::GuestPanic {
            guest.panic()?;
        } else {
            guest.kill();
        }
        let ledger = ledger_of(setting, &guest, None)?;
        drop(guest);
        let allowance = Scenario::allowance(contract, event);
        let (streams, checks) = recover_and_judge(setting, rig, &ledger, allowance)?;
        Ok(Findings {
            streams,
            checks,
            medium: "plain file".to_owned(),
            guest: "UML".to_owned(),
            postmark_rounds: ledger.postmark_rounds,
            ..Findings::default()
        })
    })
}
