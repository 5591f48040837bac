//! `verify`: what is left of an acknowledged-write workload.
//!
//! Prints one JSON line for each thread's files with the numbers that are intact (as ranges, in slot order) and the slots
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
    /// What is at its beginning.
    first_slot: u32,
    path: PathBuf,
}

impl RecordFile {
    /// By its name, as `ack-write` gives it; `None` for a file that is somebody else's.
    fn named(name: &str, path: &Path) -> io::Result<Option<Self>> {
        let kinds = [("records-", false), ("ring-", true), ("record-", false)];
        let Some((prefix, is_ring)) = kinds.into_iter().find(|(prefix, _)| name.starts_with(prefix)) else {
            return Ok(None);
        };
        let parts: Vec<&str> = name[prefix.len()..].split('-').collect();
        let (thread, size, slot) = match parts[..] {
            [thread, size] if prefix != "record-" => (thread, size, "0"),
            [thread, size, slot] if prefix == "record-" => (thread, size, slot),
            _ => return Err(invalid(format!("{name} is no file of records"))),
        };
        let wrong = |_| invalid(format!("{name} is no file of records"));
        Ok(Some(Self {
            thread: thread.parse().map_err(wrong)?,
            size_bytes: size.parse().map_err(wrong)?,
            is_ring,
            first_slot: slot.parse().map_err(wrong)?,
            path: path.to_owned(),
        }))
    }

    /// Its bytes, and what they are.
    fn read(&self) -> io::Result<(u64, Vec<(u32, Slot)>)> {
        let bytes = fs::read(&self.path)?;
        let slots = (self.first_slot..).zip(bytes.chunks(self.size_bytes));
        let slots = slots.map(|(slot, chunk)| (slot, Record::decode(chunk, slot, self.thread)));
        Ok((bytes.len() as u64, slots.collect()))
    }
}

/// The files of records in a directory.
fn files(directory: &Path) -> io::Result<Vec<RecordFile>> {
    let mut files = Vec::new();
    // A power cut may have taken the directory itself: then nothing is there, which is an answer.
    if directory.is_dir() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            files.extend(RecordFile::named(&name, &path)?);
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
    pub torn: Vec<(u32, u32)>,
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
        for (slot, found) in file.read()?.1 {
            match found {
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
    let of_one = |a: &RecordFile, b: &RecordFile| (a.thread, a.size_bytes) == (b.thread, b.size_bytes);
    for of_thread in files.chunk_by(of_one) {
        let (mut bytes, mut empty, mut present, mut torn) = (0, 0, Vec::new(), Vec::new());
        for file in of_thread {
            let (length, slots) = file.read()?;
            bytes += length;
            for (slot, found) in slots {
                match found {
                    Slot::Empty => empty += 1,
                    Slot::Intact(record) => present.push(record),
                    Slot::Torn => torn.push(u64::from(slot)),
                }
            }
        }
        torn_total += torn.len();
        report.say(&Agent::VerifyFile(VerifyFile {
            thread: of_thread[0].thread,
            size: of_thread[0].size_bytes as u64,
            bytes,
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
