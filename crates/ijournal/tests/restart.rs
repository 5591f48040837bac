//! Recovery dies at each of its writes, with any part of what was not synced; done again, it ends with the same bytes.

mod common;

use std::io;

use afterimage_ijournal::{recover, recover_with, Error, Mistake, Storage};
use common::*;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A disk with a volatile cache that dies.
struct Mortal {
    durable: Vec<u8>,
    cache: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    writes_left: usize,
}

impl Mortal {
    fn new(disk: &Disk, writes: usize) -> Self {
        Self { durable: disk.0.clone(), cache: disk.0.clone(), pending: Vec::new(), writes_left: writes }
    }

    /// What is left: of the writes that no sync covers each whole, torn at a sector, or not at all.
    fn remains(mut self, random: &mut ChaCha8Rng) -> Disk {
        for (at, content) in self.pending {
            let sectors = match random.random_range(0..3) {
                0 => 0,
                1 => content.len() / 512,
                _ => random.random_range(0..=content.len() / 512),
            };
            self.durable[at..at + 512 * sectors].copy_from_slice(&content[..512 * sectors]);
        }
        Disk(self.durable)
    }
}

impl Storage for Mortal {
    fn len(&self) -> u64 {
        self.cache.len() as u64
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(&self.cache[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.writes_left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.writes_left -= 1;
        self.cache[offset as usize..][..buf.len()].copy_from_slice(buf);
        self.pending.push((offset as usize, buf.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.writes_left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.durable.copy_from_slice(&self.cache);
        self.pending.clear();
        Ok(())
    }
}

fn crashed() -> Disk {
    let committed = Disk::mkfs(24, &[], &[("kept", pattern(1, 30_000)), ("folder/old", pattern(2, 100_000))]);
    let mut running = committed.clone();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pattern(9, 20_000)).unwrap();
    let write = |path: &str| format!("write {} /{path}", file.path().display());
    running.debugfs(&["mkdir /new".into(), write("new/a"), write("b"), "punch /folder/old 3 9".into()]);
    let mut writer = Writer::new(committed);
    writer.fsync(&running, "new/a", true, 3, 0);
    writer.fsync(&running, "b", true, 2, 1);
    writer.fsync(&running, "folder/old", false, 3, 1);
    writer.disk
}

/// Where it dies: a write, and how often it dies there before it lives.
fn dies_everywhere(mistake: Mistake, seeds: u64) -> Result<usize, String> {
    let crashed = crashed();
    let mut whole = crashed.clone();
    recover_with(&mut whole, 0, mistake).map_err(|e| e.to_string())?;
    whole.check()?;
    let mut deaths = 0;
    for writes in 0.. {
        let mut alive = false;
        for seed in 0..seeds {
            let mut random = ChaCha8Rng::seed_from_u64(seed << 32 | writes as u64);
            let mut disk = crashed.clone();
            // The second recovery dies, too, somewhere.
            for left in [writes, random.random_range(0..=writes)] {
                let mut mortal = Mortal::new(&disk, left);
                match recover_with(&mut mortal, 0, mistake) {
                    Ok(_) => alive = left == writes,
                    Err(Error::Io { .. }) => deaths += 1,
                    Err(other) => return Err(format!("died at write {writes}, seed {seed}: {other}")),
                }
                disk = mortal.remains(&mut random);
            }
            recover_with(&mut disk, 0, mistake)
                .map_err(|e| format!("died at write {writes}, seed {seed}: {e}"))?;
            if disk != whole {
                return Err(format!("died at write {writes}, seed {seed}: other bytes"));
            }
        }
        if alive {
            break;
        }
    }
    Ok(deaths)
}

#[test]
fn a_recovery_that_dies_anywhere_ends_with_the_same_bytes() {
    let deaths = dies_everywhere(Mistake::None, 3).unwrap();
    assert!(deaths > 50, "{deaths}");
}

#[test]
fn one_that_does_not_journal_what_it_changes_does_not() {
    assert!(dies_everywhere(Mistake::JournalSkipped, 3).is_err());
}

#[test]
fn what_cannot_be_read_is_an_error_and_changes_nothing() {
    let crashed = crashed();
    let mut nothing = Disk(vec![0; 1 << 20]);
    assert!(matches!(recover(&mut nothing, 0), Err(Error::Corrupt(_))));
    let mut mortal = Mortal::new(&crashed, 0);
    assert!(matches!(recover(&mut mortal, 0), Err(Error::Io { .. })));
    assert!(mortal.durable == crashed.0);
}
