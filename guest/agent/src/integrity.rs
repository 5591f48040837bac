//! `integrity`: the VMA paper's § 5.5: records of a database file, each update one `write(2)`, no fsync.
//!
//! ```text
//!   prepare ─► every record in version 0, synced
//!   update  ─► record, chosen at random, in its next version: one pwrite ─► ... until the guest is killed
//!   verify  ─► every block of a record in the same version? a record that mixes versions is corrupted
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use afterimage_protocol::report::{Agent, Integrity};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::args::{invalid, Arguments};
use crate::report::Report;
use crate::stamp::{Content, Stamp, BLOCK_BYTES};

struct Plan {
    path: String,
    record_blocks: u64,
    records: u64,
    seed: u64,
}

impl Plan {
    fn read(arguments: &mut Arguments) -> io::Result<Plan> {
        let path = arguments.word("the database file")?;
        let size = arguments.number("size")?.unwrap_or(4096);
        let bytes = arguments.number("bytes")?.unwrap_or(16 << 20);
        let seed = arguments.number("seed")?.unwrap_or(1);
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
    let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut buffer = vec![0; plan.record_bytes()];
    report.say(&Agent::Integrity(Integrity::Updating {}))?;
    loop {
        let record = random.random_range(0..plan.records);
        versions[record as usize] += 1;
        plan.put(&file, record, versions[record as usize], &mut buffer)?;
    }
}

fn verify(plan: &Plan, report: &Report) -> io::Result<()> {
    let file = File::open(&plan.path)?;
    let mut buffer = vec![0; plan.record_bytes()];
    let (mut updated, mut mixed, mut foreign) = (0u64, 0u64, 0u64);
    for record in 0..plan.records {
        file.read_exact_at(&mut buffer, record * plan.record_bytes() as u64)?;
        let mut versions = Vec::new();
        for (index, block) in (0u64..).zip(buffer.chunks_exact(BLOCK_BYTES)) {
            match Stamp::read(block) {
                Content::Whole(stamp) if stamp.owner == record && stamp.index == index => {
                    versions.push(stamp.version);
                }
                _ => foreign += 1,
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
    }))
}
