//! What was found, in sentences: the first thing that a person reads, in the table and in the page.

use afterimage_report::number::thousands;

use super::plan::Scenario;
use super::report::{Outcome, Report, RetainReport, RetainRow, ScenarioReport};

/// Bytes as millions, with one digit after the point.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// `data=journal` as a guest has it without us.
pub fn journal_alone(retain: &RetainReport) -> Option<&RetainRow> {
    retain.modes.iter().find(|row| row.mount == "data=journal" && row.journal == "passthrough")
}

/// A count that is not broken at the end of a line.
fn count(number: u64) -> String {
    thousands(number).replace(' ', "\u{a0}")
}

/// How a scenario ended, in a word or two.
pub fn verdict(scenario: &ScenarioReport) -> &'static str {
    match scenario.outcome {
        Outcome::Held if scenario.name == Scenario::RetainCanary.to_string() => "loses, as it should",
        Outcome::Held if scenario.expects_loss => "not ours: loses, as it may",
        Outcome::Held => "held",
        Outcome::Broken => "BROKEN",
        Outcome::Failed => "FAILED",
    }
}

/// A warning where the machine had other things to do.
pub fn busy(report: &Report) -> Option<String> {
    let machine = &report.machine;
    (machine.load > machine.cpus as f64).then(|| {
        format!(
            "This machine was busy (load {:.1} on {} processors): these times say little.",
            machine.load, machine.cpus
        )
    })
}

/// What retaining a journal saved, kept, and would have lost; only what was run.
pub fn sentences(report: &Report) -> Vec<String> {
    let of = |scenario: Scenario| report.scenario(&scenario.to_string());
    let parts = [
        report.retain.as_ref().and_then(saved),
        of(Scenario::RetainKill).and_then(kept),
        of(Scenario::RetainCanary).and_then(forgotten),
    ];
    parts.into_iter().flatten().collect()
}

fn saved(retain: &RetainReport) -> Option<String> {
    let find = |mount: &str, journal: &str| {
        retain.modes.iter().find(|row| row.mount == mount && row.journal == journal)
    };
    let (alone, kept) = (journal_alone(retain)?, find("data=journal", "retain")?);
    let ordered = find("data=ordered", "passthrough")?;
    let share = kept.storage.bytes as f64 / alone.storage.bytes.max(1) as f64;
    Some(format!(
        "Bytes {}: data=journal wrote {} MB to storage, with --journal retain {} MB ({share:.2} of it), in {:.1} s instead of \
         {:.1} s; data=ordered, which protects metadata only, {} MB in {:.1} s.",
        if share <= 0.55 { "halved" } else { "saved" },
        megabytes(alone.storage.bytes),
        megabytes(kept.storage.bytes),
        kept.elapsed_s,
        alone.elapsed_s,
        megabytes(ordered.storage.bytes),
        ordered.elapsed_s
    ))
}

fn kept(killed: &ScenarioReport) -> Option<String> {
    let recovery = killed.recovery.as_ref()?;
    let (acknowledged, lost) = killed.totals();
    let (held, checks) = killed.checks_held();
    Some(format!(
        "Guest killed, {}: SIGKILL in the middle of acknowledged writes, with {} committed transactions retained and {} blocks in \
         memory only; the daemon brought {} blocks home within {:.0} ms, the next guest mounted, and {} of {} acknowledged writes \
         were lost ({held} of {checks} checks held, e2fsck among them).",
        if lost == 0 { "nothing committed lost" } else { "COMMITTED WRITES LOST" },
        count(recovery.transactions),
        count(recovery.blocks_pending),
        count(recovery.blocks_home),
        recovery.home_ms,
        count(lost),
        count(acknowledged)
    ))
}

fn forgotten(canary: &ScenarioReport) -> Option<String> {
    if canary.outcome == Outcome::Failed {
        return None;
    }
    let (acknowledged, lost) = canary.totals();
    Some(format!(
        "The check can fail: under a daemon that forgets journal writes instead of keeping them, the same kill lost {} of {} \
         acknowledged writes.",
        count(lost),
        count(acknowledged)
    ))
}
