//! What a guest said, as numbers.

use afterimage_lab::channel::Arrival;
use serde_json::Value;

use crate::error::{BenchError, Result};
use crate::record::{GuestIo, GuestResult, Jbd2};

fn strange(what: impl Into<String>) -> BenchError {
    BenchError::Workload(what.into())
}

/// The first report with `key` = `value`.
fn find(reports: &[Arrival], key: &str, value: &str) -> Option<Value> {
    reports.iter().find_map(|arrival| arrival.json_if(key, value))
}

fn mark(reports: &[Arrival], name: &str) -> Result<Value> {
    find(reports, "bench", name).ok_or_else(|| strange(format!("the guest did not report '{name}'")))
}

/// How long something took that the agent timed, in seconds.
///
/// # Errors
/// It was not reported.
pub fn timed_s(reports: &[Arrival], name: &str) -> Result<f64> {
    find(reports, "name", name)
        .and_then(|said| said["elapsed_ns"].as_f64())
        .map(|ns| ns / 1e9)
        .ok_or_else(|| strange(format!("the guest did not report how long {name} took")))
}

/// A working guest's reports.
///
/// # Errors
/// Something that has to be there is not.
pub fn read(reports: &[Arrival]) -> Result<GuestResult> {
    let (ready, end, done) = (mark(reports, "ready")?, mark(reports, "end")?, mark(reports, "done")?);
    let from = stat(&ready)?;
    // The work is the last thing timed before "end": creating what is to be deleted is not it.
    let at = reports.iter().position(|arrival| arrival.json_if("bench", "end").is_some()).unwrap_or(0);
    let work = reports[..at].iter().rev().find_map(|arrival| {
        arrival.json().filter(|said| matches!(said["agent"].as_str(), Some("micro" | "timed")))
    });
    let elapsed_s = work.and_then(|said| said["elapsed_ns"].as_f64()).unwrap_or(0.0) / 1e9;
    if elapsed_s <= 0.0 {
        return Err(strange("the workload did not report how long it took"));
    }
    Ok(GuestResult {
        elapsed_s,
        sync_s: timed_s(reports, "sync")?,
        umount_s: timed_s(reports, "umount")?,
        measured: stat(&end)?.since(&from),
        whole: stat(&done)?.since(&from),
        jbd2: end["jbd2"].as_str().and_then(jbd2),
    })
}

/// `/sys/block/DISK/stat` (Documentation/block/stat.rst): sectors of 512 bytes.
fn stat(mark: &Value) -> Result<GuestIo> {
    let text = mark["stat"].as_str().unwrap_or_default();
    let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if words.len() < 17 {
        return Err(strange("the guest's kernel counts no flushes: it needs Linux 5.5 or newer"));
    }
    Ok(GuestIo {
        reads: words[0],
        read_bytes: words[2] * 512,
        writes: words[4],
        write_bytes: words[6] * 512,
        flushes: words[15],
    })
}

/// `1070 transactions (1065 requested), each up to 8192 blocks; … 20 logged blocks per transaction`, its lines and
/// tabs made semicolons. A guest that mounted twice is not expected.
fn jbd2(text: &str) -> Option<Jbd2> {
    let before = |label: &str| {
        let (head, _) = text.split_once(label)?;
        head.rsplit([' ', ';']).find(|word| !word.is_empty())?.parse().ok()
    };
    Some(Jbd2 {
        transactions: before(" transactions (")? as u64,
        logged_blocks: before(" logged blocks per transaction").unwrap_or(0.0),
    })
}

impl GuestIo {
    fn since(&self, earlier: &GuestIo) -> GuestIo {
        GuestIo {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(lines: &[&str]) -> Vec<Arrival> {
        lines.iter().map(|line| Arrival { at_ns: 0, line: (*line).to_owned() }).collect()
    }

    const JBD2: &str = "3 transactions (2 requested), each up to 8192 blocks;average: ;  0ms waiting for transaction;\
                        ;  1ms request delay;  5 handles per transaction;  41 blocks per transaction;  42 logged blocks per \
                        transaction;";

    fn line(mark: &str, writes: u64) -> String {
        format!(
            "{{\"bench\":\"{mark}\",\"stat\":\"1 0 8 0 {writes} 0 {} 0 0 0 0 0 0 0 0 4 9\",\"jbd2\":\"{JBD2}\"}}",
            writes * 8
        )
    }

    #[test]
    fn the_work_is_what_was_timed_last() {
        let (ready, end, done) = (line("ready", 10), line("end", 30), line("done", 40));
        let all = reports(&[
            "{\"agent\":\"micro\",\"name\":\"create\",\"operations\":3,\"elapsed_ns\":9000000000}",
            &ready,
            "{\"agent\":\"micro\",\"name\":\"delete\",\"operations\":3,\"elapsed_ns\":2000000000}",
            &end,
            "{\"agent\":\"timed\",\"name\":\"sync\",\"elapsed_ns\":500000000,\"success\":true}",
            "{\"agent\":\"timed\",\"name\":\"umount\",\"elapsed_ns\":250000000,\"success\":true}",
            &done,
        ]);
        let result = read(&all).unwrap();
        assert_eq!((result.elapsed_s, result.sync_s, result.umount_s), (2.0, 0.5, 0.25));
        assert_eq!((result.measured.writes, result.whole.write_bytes), (20, 30 * 4096));
        assert_eq!(result.jbd2, Some(Jbd2 { transactions: 3, logged_blocks: 42.0 }));
        assert!(read(&all[..5]).is_err(), "a guest that fell silent has no result");
    }

    #[test]
    fn without_a_journal_there_are_no_figures_of_it() {
        assert_eq!(jbd2(""), None);
    }
}
