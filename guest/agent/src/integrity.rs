//! `integrity`: the VMA paper's § 5.5: records of a database file, each update one `write(2)`, no fsync.
//!
//! ```text
//!   prepare ─► every record in version 0, synced
//!   update  ─► record, chosen at random, in its next version: one pwrite ─► ... until the guest is killed
//!   verify  ─► every block of a record in the same version? a record that mixes versions is corrupted
//!              and, with the updates' seed: is it what some moment of them had left?
//! ```
//!
//! A `write(2)` is not atomic for ext4, which starts a handle for every page of it: with `data=journal` a transaction may end within a record. What
//! holds there is the order: what is left is all that was written up to some page, and nothing after it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use afterimage_protocol::report::{Agent, Integrity};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::args::{invalid, Arguments, SIZE_BYTES_MAX};
use crate::report::Report;
use crate::stamp::{Content, Stamp, BLOCK_BYTES};

/// No database is larger: a version of each of its records is in memory.
const BYTES_MAX: u64 = 1 << 40;

struct Plan {
    path: String,
    record_blocks: u64,
    records: u64,
    seed: Option<u64>,
}

impl Plan {
    fn read(arguments: &mut Arguments) -> io::Result<Plan> {
        let path = arguments.word("the database file")?;
        let size = arguments.number_up_to("size", SIZE_BYTES_MAX)?.unwrap_or(4096);
        let bytes = arguments.number_up_to("bytes", BYTES_MAX)?.unwrap_or(16 << 20);
        let seed = arguments.number("seed")?;
        if size == 0 || size % BLOCK_BYTES as u64 != 0 || bytes < size {
            return Err(invalid(format!("--size wants a multiple of {BLOCK_BYTES}, not more than --bytes")));
        }
        Ok(Plan { path, record_blocks: size / BLOCK_BYTES as u64, records: bytes / size, seed })
    }

    fn record_bytes(&self) -> usize {
        self.record_blocks as usize * BLOCK_BYTES
    }

    fn put(&self, file: &File, record: u64, version: u64, buffer: &mut [u8]) -> io::Result<()> {
        for (index, block) in (0u64..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
            // Versions start with 1 in the stamp: a whole block is never taken for an empty one.
            Stamp { owner: record, version: version + 1, index }.fill(block);
        }
        let taken = file.write_at(buffer, record * buffer.len() as u64)?;
        if taken < buffer.len() {
            // More than one system call would be another experiment.
            return Err(io::Error::other(format!("write took {taken} of {} bytes", buffer.len())));
        }
        Ok(())
    }
}

/// `integrity prepare|update|verify FILE`.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let what = arguments.word("prepare, update or verify")?;
    let plan = Plan::read(&mut arguments)?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    match what.as_str() {
        "prepare" => prepare(&plan),
        "update" => update(&plan, &report),
        "verify" => verify(&plan, &report),
        _ => Err(invalid(format!("'{what}' is none of prepare, update, verify"))),
    }
}

fn prepare(plan: &Plan) -> io::Result<()> {
    // The blocks stay where they are from one round to the next.
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&plan.path)?;
    let mut buffer = vec![0; plan.record_bytes()];
    (0..plan.records).try_for_each(|record| plan.put(&file, record, 0, &mut buffer))?;
    file.sync_all()
}

fn update(plan: &Plan, report: &Report) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(&plan.path)?;
    let mut versions = vec![0u64; plan.records as usize];
    let mut buffer = vec![0; plan.record_bytes()];
    report.say(&Agent::Integrity(Integrity::Updating {}))?;
    for record in updated(plan.seed.unwrap_or(1), plan.records) {
        versions[record as usize] += 1;
        plan.put(&file, record, versions[record as usize], &mut buffer)?;
    }
    Ok(())
}

/// The records that are updated, one after the other, without end.
fn updated(seed: u64, records: u64) -> impl Iterator<Item = u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    std::iter::repeat_with(move || random.random_range(0..records))
}

/// How many blocks are not what they were at the moment of the updates that the file looks most like: behind some page of one of them.
/// `found`: the version of each block, record by record.
fn out_of_order(seed: u64, record_blocks: u64, found: &[u64]) -> u64 {
    let records = found.chunks(record_blocks as usize);
    let begun: u64 = records.clone().map(|record| record[0]).sum();
    let mut versions = vec![0u64; records.len()];
    let mut last = None;
    // More than these nobody has begun: a block that is no record's has no version.
    for record in updated(seed, versions.len() as u64).take(begun.min(1 << 24) as usize) {
        versions[record as usize] += 1;
        last = Some(record as usize);
    }
    let wrong = |(number, (record, newest)): (usize, (&[u64], &u64))| {
        let whole = record.iter().take_while(|version| *version == newest).count();
        let older = if last == Some(number) { newest - 1 } else { *newest };
        record[whole..].iter().filter(|version| **version != older).count() as u64
    };
    records.zip(&versions).enumerate().map(wrong).sum()
}

fn verify(plan: &Plan, report: &Report) -> io::Result<()> {
    let file = File::open(&plan.path)?;
    let mut buffer = vec![0; plan.record_bytes()];
    let (mut updated, mut mixed, mut foreign) = (0u64, 0u64, 0u64);
    let mut found = Vec::new();
    for record in 0..plan.records {
        file.read_exact_at(&mut buffer, record * plan.record_bytes() as u64)?;
        let mut versions = Vec::new();
        for (index, block) in (0u64..).zip(buffer.chunks_exact(BLOCK_BYTES)) {
            match Stamp::read(block) {
                Content::Whole(stamp) if stamp.owner == record && stamp.index == index => {
                    versions.push(stamp.version);
                    found.push(stamp.version.saturating_sub(1));
                }
                _ => {
                    foreign += 1;
                    found.push(0);
                }
            }
        }
        versions.dedup();
        mixed += u64::from(versions.len() > 1);
        updated += u64::from(versions.iter().any(|version| *version > 1));
    }
    report.say(&Agent::Integrity(Integrity::Verified {
        records: plan.records,
        updated,
        mixed,
        foreign_blocks: foreign,
        out_of_order_blocks: plan.seed.map(|seed| out_of_order(seed, plan.record_blocks, &found)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: u64 = 7;
    const BLOCKS: u64 = 4;

    /// What is left behind so many pages.
    fn left(seed: u64, pages: u64) -> Vec<u64> {
        let mut found = vec![0; (RECORDS * BLOCKS) as usize];
        for (page, record) in
            (0..pages).zip(updated(seed, RECORDS).flat_map(|record| [record; BLOCKS as usize]))
        {
            found[(record * BLOCKS + page % BLOCKS) as usize] += 1;
        }
        found
    }

    #[test]
    fn whatever_a_moment_leaves_is_in_order_and_nothing_else() {
        for pages in 0..200 {
            let found = left(3, pages);
            assert_eq!(out_of_order(3, BLOCKS, &found), 0, "{pages}");
            // A block is older or newer than it can be, though a record mixes versions only where it is the one under way.
            for block in 0..found.len() {
                let mut other = found.clone();
                other[block] += 1;
                let next = left(3, pages + 1);
                assert_eq!(out_of_order(3, BLOCKS, &other) == 0, other == next, "{pages} {block}");
            }
        }
        // An update is there and one before it is not.
        let mut found = left(3, 40);
        let record = updated(3, RECORDS).nth(5).unwrap() as usize;
        found[record * BLOCKS as usize..][..BLOCKS as usize].iter_mut().for_each(|version| *version -= 1);
        assert!(out_of_order(3, BLOCKS, &found) > 0);
    }
}
