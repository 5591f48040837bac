//! What a guest said, as numbers.

use afterimage_lab::channel::Arrival;
use afterimage_protocol::report::{Agent, Integrity, Micro, Timed};
use serde::Deserialize;

use crate::handed_over::HandedOver;
use crate::record::{GuestResult, Records};
use afterimage_bench_kit::io::GuestIo;
use afterimage_bench_kit::{BenchError, Jbd2, Result};

fn strange(what: impl Into<String>) -> BenchError {
    BenchError::Workload(what.into())
}

/// A mark of the script.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    bench: String,
    /// `/sys/block/DISK/stat`
    stat: String,
    /// `/proc/fs/jbd2/*/info`
    jbd2: String,
    /// `/proc/fs/vjbd2/*/vma`, where the file system hands its commits over.
    vma: Option<String>,
}

/// A guest's lines.
enum Line {
    Mark(Mark),
    Timed { name: String, elapsed_s: f64 },
    Other,
}

fn lines(reports: &[Arrival]) -> Result<Vec<Line>> {
    let read = |arrival: &Arrival| -> Result<Line> {
        if let Some(mark) = arrival.report("bench")? {
            return Ok(Line::Mark(mark));
        }
        let timed = |name: String, ns: u64| Line::Timed { name, elapsed_s: ns as f64 / 1e9 };
        Ok(match arrival.agent()? {
            Some(Agent::Micro(Micro { name, elapsed_ns, .. })) => timed(name, elapsed_ns),
            Some(Agent::Timed(Timed { name, elapsed_ns, .. })) => timed(name, elapsed_ns),
            _ => Line::Other,
        })
    };
    reports.iter().map(read).collect()
}

fn mark<'a>(lines: &'a [Line], name: &str) -> Result<&'a Mark> {
    let found = lines.iter().find_map(|line| match line {
        Line::Mark(mark) if mark.bench == name => Some(mark),
        _ => None,
    });
    found.ok_or_else(|| strange(format!("the guest did not report '{name}'")))
}

/// How long something took that the agent timed, in seconds.
///
/// # Errors
/// It was not reported.
pub fn timed_s(reports: &[Arrival], name: &str) -> Result<f64> {
    timed(&lines(reports)?, name)
}

fn timed(lines: &[Line], wanted: &str) -> Result<f64> {
    let found = lines.iter().find_map(|line| match line {
        Line::Timed { name, elapsed_s } if name == wanted => Some(*elapsed_s),
        _ => None,
    });
    found.ok_or_else(|| strange(format!("the guest did not report how long {wanted} took")))
}

/// A working guest's reports.
///
/// # Errors
/// Something that has to be there is not.
pub fn read(reports: &[Arrival]) -> Result<GuestResult> {
    let lines = lines(reports)?;
    let (ready, end, done) = (mark(&lines, "ready")?, mark(&lines, "end")?, mark(&lines, "done")?);
    let from = GuestIo::of_stat(&ready.stat)?;
    // The work is the last thing timed before "end": creating what is to be deleted is not it.
    let before_end = lines.iter().take_while(|line| !matches!(line, Line::Mark(mark) if mark.bench == "end"));
    let work = before_end.filter_map(|line| match line {
        Line::Timed { elapsed_s, .. } => Some(*elapsed_s),
        _ => None,
    });
    let elapsed_s = work.last().unwrap_or(0.0);
    if elapsed_s <= 0.0 {
        return Err(strange("the workload did not report how long it took"));
    }
    let handed_over = match (&ready.vma, &end.vma) {
        (Some(ready), Some(end)) => {
            let (ready, end) = HandedOver::of(ready).zip(HandedOver::of(end)).ok_or_else(|| {
                strange(format!("not every commit was handed over, or nobody counted them: {end}"))
            })?;
            Some(end.since(&ready))
        }
        _ => None,
    };
    Ok(GuestResult {
        handed_over,
        elapsed_s,
        sync_s: timed(&lines, "sync")?,
        umount_s: timed(&lines, "umount")?,
        measured: GuestIo::of_stat(&end.stat)?.since(&from),
        whole: GuestIo::of_stat(&done.stat)?.since(&from),
        jbd2: Jbd2::of_info(&end.jbd2)?,
    })
}

/// What a guest found of records.
///
/// # Errors
/// It did not say.
pub fn verified(reports: &[Arrival]) -> Result<Records> {
    for arrival in reports {
        if let Some(Agent::Integrity(Integrity::Verified { updated, mixed, foreign_blocks, .. })) =
            arrival.agent()?
        {
            return Ok(Records { updated, mixed, foreign_blocks });
        }
    }
    Err(strange("the guest verified nothing"))
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
        for (from, to) in [("elapsed_ns", "elapsed"), ("\"stat\"", "\"counters\""), ("1 0 8", "1 x 8")] {
            let renamed: Vec<String> = all.iter().map(|arrival| arrival.line.replace(from, to)).collect();
            let renamed: Vec<&str> = renamed.iter().map(String::as_str).collect();
            assert!(read(&reports(&renamed)).is_err(), "{to}");
        }
    }
}
