//! Recovery of iJournaling: what fsyncs wrote beside an ext4's own journal becomes a transaction of that journal.
//!
//! ```text
//! log        replay: what the journal holds goes home                                          written
//! scan       the areas, run by run ─► plan: which runs count
//! apply      judge, reach, files, folders, free ─► image: changed blocks                       in memory
//! log        commit: all of them as one transaction, numbered as the newest run's, replayed    written
//! ```
//!
//! **What a cut may leave.** Until the journal's superblock names recovery's own transaction, which is durable by then, the file system is as the
//! replay left it: the same is found again and the same done. The same write clears the bit. From then on the journal has one more transaction.
//! Its number is as large as the largest of the runs', which makes every run invalid by the ordinary rule; anybody may replay it. So
//! wherever recovery is cut off, and however often, it ends with the same bytes. The rules are in `docs/ijournaling.md`.
#![warn(missing_docs)]

mod apply;
mod bytes;
mod directory;
mod disk;
mod entries;
mod error;
mod file;
#[cfg(feature = "testkit")]
#[path = "../testkit/fuzz.rs"]
pub mod fuzz;
mod groups;
mod hash;
mod htree;
mod image;
mod inode;
mod leaves;
mod log;
mod mmp;
mod mutation;
mod plan;
mod report;
mod room;
mod scan;
mod superblock;
mod tree;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use afterimage_block::{Sector, SECTOR_BYTES};
use afterimage_journal::layout;
use afterimage_journal::BLOCK_BYTES;

pub use disk::{DiskStorage, DryRun};
pub use error::Error;
pub use file::FileStorage;
pub use log::REPLAY_BYTES_MAX;
pub use mutation::Mistake;
pub use report::{Refused, Report};

/// How often it may be done anew without what had to be left out. Once is enough, for others have more room then; but for names in a directory
/// that is flattened no more, as the name for which it was is left out, and for what only then is looked at.
const ROUNDS_MAX: u32 = 16;

/// Where a file system is: an image, a device, a disk that is served.
pub trait Storage {
    /// Its size in bytes.
    fn len(&self) -> u64;

    /// Whether there is nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads; never past the end.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes; whole blocks only.
    ///
    /// # Errors
    /// It cannot be written.
    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Lets time pass in which another host may write. What is read afterwards is what storage has then.
    ///
    /// # Errors
    /// What is known of storage cannot be forgotten.
    fn wait(&mut self, time: Duration) -> io::Result<()> {
        std::thread::sleep(time);
        Ok(())
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// It cannot be made so.
    fn sync(&mut self) -> io::Result<()>;
}

/// Whether an ext4 that begins at a byte of the storage says that it may have i-transactions. One that is not sound or not understood does
/// not: its bit, if there is one, keeps others from replaying its journal.
///
/// # Errors
/// It cannot be read.
pub fn is_needed(storage: &mut dyn Storage, start: u64) -> Result<bool, Error> {
    if storage.len() < start.saturating_add(BLOCK_BYTES as u64) {
        return Ok(false);
    }
    let mut block = [0; BLOCK_BYTES];
    let read = storage.read_at(&mut block, start);
    read.map_err(|source| Error::Io { what: "reading the superblock".into(), source })?;
    if layout::ext4_uuid(&block).is_none() || superblock::has_bit(&block) {
        return Ok(layout::ext4_uuid(&block).is_some());
    }
    match find(storage, start).and_then(|layout| {
        let mut image = image::Image { storage, start, blocks: layout.blocks, changed: BTreeMap::new() };
        log::Log::open(&mut image, layout)
    }) {
        Ok(log) => Ok(log.has_bit()),
        Err(Error::Corrupt(_) | Error::Unsupported(_)) => Ok(false),
        Err(io) => Err(io),
    }
}

/// Recovers the ext4 that begins at a byte of the storage: journal first, then i-transactions. One without any is as a journal's
/// replay leaves it.
///
/// # Errors
/// See [`Error`].
pub fn recover(storage: &mut dyn Storage, start: u64) -> Result<Report, Error> {
    recover_mistaken(storage, start, Mistake::None)
}

/// Where a file system begins, in bytes, and what was done there, or why it was left.
pub type Recovery = (u64, Result<Report, Error>);

/// Recovers every ext4 of a disk, in a partition or without, that says that it may have i-transactions: where each begins, and what was
/// done, or why it was left.
///
/// # Errors
/// See [`Error`]: it cannot be told where they are.
pub fn recover_disk(storage: &mut dyn Storage) -> Result<Vec<Recovery>, Error> {
    let sectors = storage.len() / SECTOR_BYTES;
    let mut starts = vec![0];
    let places = layout::places(&mut image::Whole(storage), sectors)?;
    starts.extend(places.iter().map(|sector| sector.0 * SECTOR_BYTES));
    let mut done = Vec::new();
    for start in starts {
        match is_needed(storage, start) {
            Ok(true) => done.push((start, recover(storage, start))),
            Ok(false) => {}
            Err(error) => done.push((start, Err(error))),
        }
    }
    Ok(done)
}

/// [`recover`], done wrong on purpose.
///
/// # Errors
/// As it.
#[cfg(feature = "mutations")]
pub fn recover_with(storage: &mut dyn Storage, start: u64, mistake: Mistake) -> Result<Report, Error> {
    recover_mistaken(storage, start, mistake)
}

fn recover_mistaken(storage: &mut dyn Storage, start: u64, mistake: Mistake) -> Result<Report, Error> {
    let layout = find(storage, start)?;
    let mut image = image::Image { storage, start, blocks: layout.blocks, changed: BTreeMap::new() };
    let protection = superblock::protection(&*image.get(0)?);
    let claim = protection.map(|protection| mmp::claim(&mut image, protection)).transpose()?;
    let layout = if claim.is_some() { find(image.storage, start)? } else { layout };
    let mut log = log::Log::open(&mut image, layout)?;
    let replayed = log.replay(&mut image)?;
    // What was replayed may have changed what the layout rests on.
    let again = find(image.storage, start)?;
    if log.is_elsewhere(&again) {
        return error::corrupt("the journal, when it was replayed, put another in its place");
    }
    image.blocks = again.blocks;
    let mut report =
        Report { transactions: replayed.transactions, blocks: replayed.blocks, ..Report::default() };

    if log.has_bit() || superblock::has_bit(&*image.get(0)?) {
        report.had_bit = true;
        let tid = plan_and_apply(&mut image, replayed.committed, mistake, &mut report)?;
        report.changed_blocks = image.changed.len() as u64;
        log.commit(&mut image, tid, mistake)?;
    }
    let mut first = image.get(0)?;
    if superblock::needs_recovery(&first) {
        superblock::at_rest(&mut first);
        image.write(0, &first)?;
        image.sync()?;
    }
    if let Some(claim) = claim {
        claim.give_back(&mut image)?;
    }
    Ok(report)
}

/// Makes the changes, in memory; the number of the transaction that they are to be.
fn plan_and_apply(
    image: &mut image::Image<'_>,
    committed: afterimage_journal::Tid,
    mistake: Mistake,
    report: &mut Report,
) -> Result<afterimage_journal::Tid, Error> {
    let mut geometry = superblock::Geometry::new(&*image.get(0)?)?;
    let groups = groups::Groups::new(&geometry);
    let room = groups.room(image)?;
    let journal = inode::Inode::load(image, &groups, geometry.journal_ino)?;
    geometry.room = room;
    for range in journal.tree(image, &geometry)?.ranges() {
        geometry.room.take(range, "the journal")?;
    }
    let Some(areas) = scan::find(image, &mut geometry)? else {
        return error::corrupt("the file system says that it has i-transactions, and has no areas for them");
    };
    let mut plan = plan::Plan::default();
    let scanned = areas.scan(image, committed, mistake, &mut plan)?;
    (report.valid, report.committed, report.torn) = (scanned.valid, scanned.committed, scanned.torn);
    let tid = plan.newest_tid.unwrap_or(committed.next());
    let mut left_out = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let mut round = report.clone();
        let without = apply::Apply::new(image, &geometry, &plan, &mut round, mistake).run()?;
        if without.is_empty() {
            *report = round;
            report.refused.append(&mut left_out);
            return Ok(tid);
        }
        // Nothing is written before the commit.
        image.changed.clear();
        for (what, why) in without {
            left_out.extend(match what {
                apply::LeftOut::Name(name) => plan.entries.remove(&name).map(|named| Refused {
                    ino: named.ino,
                    sub_id: named.sub_id,
                    why: format!("directory {} cannot take its name: {why}", name.0),
                }),
                apply::LeftOut::Run(ino) => {
                    plan.inodes.remove(&ino).map(|run| Refused { ino, sub_id: run.sub_id, why })
                }
            });
        }
    }
    error::unsupported("each time that something is left out, there is something else that cannot be done")
}

/// The file system and its journal.
fn find(storage: &mut dyn Storage, start: u64) -> Result<layout::Layout, Error> {
    let sectors = storage.len().saturating_sub(start) / SECTOR_BYTES;
    let mut source = image::Whole(storage);
    if sectors == 0 || start % SECTOR_BYTES != 0 {
        return error::corrupt("there is no file system");
    }
    Ok(layout::look_ext4(&mut source, Sector(start / SECTOR_BYTES), sectors)?)
}
