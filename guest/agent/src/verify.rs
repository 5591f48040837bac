//! `verify`: what is left of an acknowledged-write workload.
//!
//! Prints one JSON line per file with the numbers that are intact (as ranges, in slot order) and the slots
//! that are torn, and one line with the order violations: a record that is there while one that was
//! acknowledged before it was written is not. Whether a loss is allowed is for the host to say: only it knows
//! what was acknowledged and under which contract.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use afterimage_protocol::report::{Agent, Verify, VerifyFile};

use crate::args::{invalid, Arguments};
use crate::record::{Record, Slot};
use crate::report::Report;

/// At most this many violations are spelled out; all are counted.
const VIOLATIONS_SHOWN_MAX: usize = 20;

/// A file of records.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RecordFile {
    thread: u32,
    size_bytes: usize,
    /// Later records take the places of earlier ones.
    is_ring: bool,
    path: PathBuf,
}

/// The files of records in a directory.
fn files(directory: &Path) -> io::Result<Vec<RecordFile>> {
    let mut files = Vec::new();
    // A power cut may have taken the directory itself: then nothing is there, which is an answer.
    if directory.is_dir() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            let is_ring = name.starts_with("ring-");
            let rest = name.strip_prefix("records-").or_else(|| name.strip_prefix("ring-"));
            if let Some((thread, size)) = rest.and_then(|rest| rest.split_once('-')) {
                let wrong = || invalid(format!("{name} is no file of records"));
                let thread = thread.parse().map_err(|_| wrong())?;
                let size_bytes = size.parse().map_err(|_| wrong())?;
                files.push(RecordFile { thread, size_bytes, is_ring, path });
            }
        }
    }
    files.sort();
    Ok(files)
}

/// What is there, without a report.
pub struct Survey {
    /// Numbers of the intact records, ascending.
    pub present: Vec<u64>,
    /// Thread and slot of what is neither empty nor intact.
    pub torn: Vec<(u32, usize)>,
    /// A record that is missing, and one that was written after it had been acknowledged.
    pub violations: Vec<(u64, u64)>,
}

/// Looks at a directory of records.
pub fn survey(directory: &Path) -> io::Result<Survey> {
    let mut everything: Vec<Record> = Vec::new();
    let mut torn = Vec::new();
    let mut any_ring = false;
    for file in files(directory)? {
        any_ring |= file.is_ring;
        for (slot, chunk) in fs::read(file.path)?.chunks(file.size_bytes).enumerate() {
            match Record::decode(chunk, slot as u32, file.thread) {
                Slot::Empty => {}
                Slot::Intact(record) => everything.push(record),
                Slot::Torn => torn.push((file.thread, slot)),
            }
        }
    }
    let (_, violations) = if any_ring { (0, Vec::new()) } else { order_violations(&everything) };
    let mut present: Vec<u64> = everything.iter().map(|record| record.number).collect();
    present.sort_unstable();
    Ok(Survey { present, torn, violations })
}

/// Runs the verification.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let directory = arguments.word("the directory to verify")?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let files = files(Path::new(&directory))?;
    let mut everything: Vec<Record> = Vec::new();
    let mut torn_total = 0;
    for RecordFile { thread, size_bytes: size, path, .. } in &files {
        let bytes = fs::read(path)?;
        let mut present = Vec::new();
        let mut torn = Vec::new();
        let mut empty = 0;
        for (slot, chunk) in bytes.chunks(*size).enumerate() {
            match Record::decode(chunk, slot as u32, *thread) {
                Slot::Empty => empty += 1,
                Slot::Intact(record) => present.push(record),
                Slot::Torn => torn.push(slot as u64),
            }
        }
        torn_total += torn.len();
        report.say(&Agent::VerifyFile(VerifyFile {
            thread: *thread,
            size: *size as u64,
            bytes: bytes.len() as u64,
            empty,
            present: runs(&present),
            torn,
        }))?;
        everything.extend(present);
    }

    let any_ring = files.iter().any(|file| file.is_ring);
    let (violations, shown) = if any_ring { (0, Vec::new()) } else { order_violations(&everything) };
    report.say(&Agent::Verify(Verify {
        files: files.len() as u64,
        intact: everything.len() as u64,
        torn: torn_total as u64,
        order_violations: violations as u64,
        shown,
    }))
}

/// Runs in which slot and number count up by one: first slot, first number, how many.
fn runs(records: &[Record]) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for record in records {
        let (slot, number) = (u64::from(record.slot), record.number);
        match runs.last_mut() {
            Some((first_slot, first, count)) if slot == *first_slot + *count && number == *first + *count => {
                *count += 1;
            }
            _ => runs.push((slot, number, 1)),
        }
    }
    runs
}

/// A number below somebody's floor must be there. Only for records that were appended, where nothing is ever overwritten;
/// the host checks rings against its ledger.
fn order_violations(records: &[Record]) -> (usize, Vec<(u64, u64)>) {
    let present: BTreeSet<u64> = records.iter().map(|r| r.number).collect();
    let Some(newest) = records.iter().max_by_key(|r| r.floor) else {
        return (0, Vec::new());
    };
    let missing: Vec<(u64, u64)> =
        (1..=newest.floor).filter(|n| !present.contains(n)).map(|n| (n, newest.number)).collect();
    let count = missing.len();
    (count, missing.into_iter().take(VIOLATIONS_SHOWN_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, floor: u64, slot: u32) -> Record {
        Record { number, floor, thread: 0, slot }
    }

    #[test]
    fn a_gap_below_a_floor_is_a_violation() {
        let all = [record(1, 0, 0), record(2, 1, 1), record(4, 3, 3)];
        assert_eq!(order_violations(&all), (1, vec![(3, 4)]));
    }

    #[test]
    fn a_gap_above_every_floor_is_none() {
        let all = [record(1, 0, 0), record(2, 1, 1), record(4, 2, 3)];
        assert_eq!(order_violations(&all).0, 0);
    }

    #[test]
    fn runs_are_short() {
        assert_eq!(runs(&[record(1, 0, 0), record(2, 1, 1), record(9, 1, 2)]), [(0, 1, 2), (2, 9, 1)]);
    }
}
