//! The same work on each server, timed inside the guest, with what the guest sent and what reached storage.

use rand::Rng as _;

use super::Setting;
use crate::demo::heard::Heard;
use crate::demo::inside::{self, Timed};
use crate::demo::plan::{Contract, DISK_BYTES};
use crate::demo::report::{SpeedRow, Traffic};
use crate::demo::rig::Rig;
use crate::demo::server::Kind;
use crate::error::Result;
use crate::guest::{Guest, Vmm};
use crate::powerfs::{Counters, ModelName};

/// The modelled device: every machine shows the same costs, and a sync is not free as it is in memory.
const MODEL: ModelName = ModelName::Ssd;
const WORK: Timed = Timed { records: 1000, transactions: 500, postmark: (300, 2000) };
const SERVERS: [Kind; 5] = [
    Kind::PeerWriteback,
    Kind::Ours(Contract::Power),
    Kind::Ours(Contract::PowerWindow),
    Kind::Ours(Contract::GuestCrash),
    Kind::PeerNoFlush,
];

/// Measures every server, one after the other.
///
/// # Errors
/// A server or its guest failed.
pub fn run(setting: &mut Setting<'_>) -> Result<Vec<SpeedRow>> {
    let mut rows = Vec::new();
    for kind in SERVERS {
        let row = measure(setting, kind)?;
        setting.progress.step(&format!("{}: fsync p50 {:.0} us", row.server, row.fsync_p50_us));
        rows.push(row);
    }
    Ok(rows)
}

fn measure(setting: &mut Setting<'_>, kind: Kind) -> Result<SpeedRow> {
    let mut rig = Rig::power(MODEL, setting.images_in, setting.rng.next_u64(), DISK_BYTES)?;
    rig.make_file_system()?;
    rig.serve(kind)?;
    // Every server gets the same transactions.
    let mut rng = setting.rng.clone();
    rng.set_word_pos(0);
    inside::write_inputs(rig.folder(), WORK.transactions, WORK.postmark, &mut rng)?;
    let mut guest = rig.guest(Vmm::Uml).start(&inside::timed(rig.folder(), WORK))?;
    let begun = guest.wait_report("at", "begin");
    let before = rig.mount()?.counters()?;
    let ended = begun.and_then(|_| guest.wait_success());
    setting.evidence.guest(&guest, &kind.title().replace(' ', "-"));
    ended?;
    rig.stop_server()?;
    let after = rig.mount()?.counters()?;
    row(kind, &guest, &before, &after)
}

fn row(kind: Kind, guest: &Guest, before: &Counters, after: &Counters) -> Result<SpeedRow> {
    let title = kind.title();
    let heard = Heard::read(&guest.channel().lines(), &title)?;
    let fsync = heard.fsync()?;
    let (records, wal, rollback, postmark) =
        (heard.clock("records")?, heard.clock("wal")?, heard.clock("rollback")?, heard.clock("postmark")?);
    let per_s = |from: f64, to: f64| f64::from(WORK.transactions) / (to - from).max(0.01);
    Ok(SpeedRow {
        server: kind.title(),
        medium: format!("the lab's FUSE model of a device ({})", MODEL.as_str()),
        fsync_p50_us: fsync.p50_us,
        fsync_p99_us: fsync.p99_us,
        fsyncs: fsync.count,
        sqlite_wal_per_s: per_s(records, wal),
        sqlite_rollback_per_s: per_s(wal, rollback),
        postmark_s: postmark - rollback,
        guest: difference(heard.disk("end")?, heard.disk("begin")?),
        storage: difference(stored(after), stored(before)),
    })
}

/// What has reached the model.
pub(super) fn stored(counters: &Counters) -> Traffic {
    Traffic {
        writes: counters.total.writes,
        bytes: counters.total.write_bytes,
        flushes: counters.total.syncs,
    }
}

pub(super) fn difference(after: Traffic, before: Traffic) -> Traffic {
    Traffic {
        writes: after.writes.saturating_sub(before.writes),
        bytes: after.bytes.saturating_sub(before.bytes),
        flushes: after.flushes.saturating_sub(before.flushes),
    }
}
