//! Answers for people.

use std::fmt::Write;

use crate::control::protocol::{DiskStatus, FileSystemStatus, StatusAnswer};
use crate::units::show_bytes;

/// The status as a short text.
pub fn status(status: &StatusAnswer) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(status.promise.clone());
    line(format!(
        "afterimage {}, process {}, up {:.0} s{}",
        status.version,
        status.pid,
        status.uptime_s,
        if status.kept { ", sockets held by keep" } else { "" }
    ));
    line(format!(
        "sequence: {} acknowledged, {} durable, {} home{}",
        status.sequence.acknowledged,
        status.sequence.durable,
        status.sequence.home,
        status
            .oldest_not_durable_age_s
            .map_or(String::new(), |age| format!("; oldest flush that is not durable: {:.1} ms", age * 1e3))
    ));
    if status.log.bytes_max > 0 {
        line(format!(
            "log: {} of {} in use, {} appended, {} syncs, {} brought home, {} waits for room",
            show_bytes(status.log.bytes),
            show_bytes(status.log.bytes_max),
            show_bytes(status.log.appended_bytes),
            status.log.syncs,
            show_bytes(status.log.home_written_bytes),
            status.log.throttled
        ));
    }
    if let Some(replayed) = &status.replayed {
        line(format!(
            "replayed at start: {} records ({}) up to {}{}",
            replayed.records,
            show_bytes(replayed.bytes),
            replayed.sequence,
            if replayed.torn_tail { ", an incomplete one discarded" } else { "" }
        ));
    }
    line(format!("sandbox: landlock {}, seccomp {}", status.sandbox.landlock, status.sandbox.seccomp));
    if status.paused {
        line("paused: new writes are held".to_owned());
    }
    if let Some(failure) = &status.failure {
        line(format!("FAILED, no more writes: {failure}"));
    }
    if let Some(disk) = &status.control_disk {
        line(format!(
            "control disk on {}, {}; {} ordering points, {} flushes, {} waits ({} not durable in time), {} blocks handed over \
             in {} requests, {} in {} commits that were published, {} refused, {} failed",
            disk.socket,
            if disk.attached { "guest connected" } else { "no guest" },
            disk.vorders,
            disk.vflushes,
            disk.waits + disk.not_yet,
            disk.not_yet,
            disk.handed_over_blocks,
            disk.mprotects,
            disk.published_blocks,
            disk.published,
            disk.refused,
            disk.failed
        ));
        if disk.published > 0 {
            line(format!("  {}", crate::control::published_promise()));
        }
    }
    for disk in &status.disks {
        line(show_disk(disk));
        if let Some(arena) = &disk.arena {
            line(format!(
                "  retained: {} of {} in use, {} of memory",
                show_bytes(arena.used_bytes),
                show_bytes(arena.bytes_max),
                show_bytes(arena.resident_bytes)
            ));
        }
        disk.file_systems.iter().for_each(|fs| line(show_file_system(fs)));
    }
    text.trim_end().to_owned()
}

fn show_disk(disk: &DiskStatus) -> String {
    let mut words = format!(
        "{} on {}: {}{}{}, {}",
        disk.file,
        disk.socket,
        show_bytes(disk.bytes),
        if disk.read_only { ", read-only" } else { "" },
        if disk.write_cache || !disk.attached { "" } else { ", no write cache" },
        if disk.attached { "guest connected" } else { "no guest" }
    );
    for operation in disk.requests.iter().filter(|o| o.requests > 0) {
        let _ = write!(words, "; {} {}", operation.requests, operation.kind);
        if operation.bytes > 0 {
            let _ = write!(words, " ({})", show_bytes(operation.bytes));
        }
        if operation.errors > 0 {
            let _ = write!(words, ", {} failed", operation.errors);
        }
    }
    let _ = write!(
        words,
        "; to the file: {} reads, {} writes ({}), {} syncs",
        disk.storage.reads,
        disk.storage.writes,
        show_bytes(disk.storage.write_bytes),
        disk.storage.syncs
    );
    if let Some(failure) = &disk.failure {
        let _ = write!(words, "; FAILED: {failure}");
    }
    words
}

fn show_file_system(fs: &FileSystemStatus) -> String {
    let uuid = fs.uuid.as_ref().map_or(String::new(), |uuid| format!(" ({uuid})"));
    let mut words = format!("  file system at sector {}{uuid}: {}", fs.start_sector, fs.mode);
    if let Some(why) = &fs.why {
        let _ = write!(words, ", {why}");
    }
    if fs.mode == "retain" {
        let _ = write!(
            words,
            "; {} transactions with {} versions, {} of them not home ({} of data, {} of journal information)",
            fs.transactions,
            fs.versions,
            fs.versions_pending,
            show_bytes(fs.data_bytes),
            show_bytes(fs.information_bytes)
        );
    }
    if fs.classes.journal_commits > 0 {
        let _ = write!(
            words,
            "; {} commits, {} of journal not written, {} page write-backs ({} as committed, {} not forwarded), {} \
             truncations, {} revokes; {} releases, {} checkpoints ({} blocks), {} blocks evicted, {} served from home, {} saved from there",
            fs.classes.journal_commits,
            show_bytes(fs.classes.journal_absorbed_bytes),
            fs.classes.page_writebacks,
            fs.classes.page_writebacks_matching,
            show_bytes(fs.classes.page_writeback_elided_bytes),
            fs.classes.journal_truncations,
            fs.classes.revokes,
            fs.classes.releases,
            fs.classes.checkpoints,
            fs.classes.checkpoint_blocks,
            fs.classes.evicted_blocks,
            fs.served_from_home,
            fs.classes.saved_blocks
        );
    }
    if fs.classes.write_failures > 0 {
        let _ = write!(words, "; {} writes FAILED", fs.classes.write_failures);
    }
    words
}

/// One event's line; what is not understood is shown as it came.
pub fn event(line: &str) -> String {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { return line.to_owned() };
    let sequence = value.get("sequence").and_then(serde_json::Value::as_u64);
    match (value.get("event").and_then(serde_json::Value::as_str), sequence) {
        (Some(name), Some(sequence)) => format!("{name} {sequence}"),
        (Some(name), None) => match value.get("reason").and_then(serde_json::Value::as_str) {
            Some(reason) => format!("{name}: {reason}"),
            None => name.to_owned(),
        },
        _ => line.to_owned(),
    }
}
