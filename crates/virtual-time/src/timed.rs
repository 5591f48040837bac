//! Files that take their time.

use std::io;
use std::sync::Arc;

use afterimage_block::{Health, Medium};

use crate::machine::Machine;
use crate::storage::{File, Io};
use crate::volatile::Volatile;

const PAGE_BYTES: usize = 4096;

/// A file's content, and the time it takes: who asks sleeps.
pub struct TimedMedium {
    content: Arc<Volatile>,
    file: File,
    machine: Arc<Machine>,
    /// Of an image: a failed sync turns it read-only, whoever asked for it.
    health: Option<Health>,
}

impl TimedMedium {
    /// A file of the machine's.
    pub fn new(content: &Arc<Volatile>, file: File, machine: &Arc<Machine>) -> Self {
        Self { content: Arc::clone(content), file, machine: Arc::clone(machine), health: None }
    }

    /// The same file, and who is told when it fails.
    pub fn of(&self, health: &Health) -> Self {
        let (content, machine) = (Arc::clone(&self.content), Arc::clone(&self.machine));
        Self { content, file: self.file.clone(), machine, health: Some(health.clone()) }
    }

    /// Which file it is.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The same bytes, in no time.
    pub fn content(&self) -> &Arc<Volatile> {
        &self.content
    }

    fn sleep(&self, io: Io) -> io::Result<()> {
        self.machine.lives()?;
        self.machine.reach(self.machine.serve(&self.file, io));
        Ok(())
    }

    /// What is written next is there from now on.
    fn note(&self) {
        let now = self.machine.now_ns();
        self.content.at(now, now);
    }
}

impl Medium for TimedMedium {
    fn len(&self) -> u64 {
        self.content.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.sleep(Io::Read(offset, buf.len() as u64))?;
        self.machine.lives()?;
        self.content.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.sleep(Io::Write(offset, buf.len() as u64))?;
        self.note();
        if self.machine.is_dying() {
            // Killed within the call: up to a page of the file, as the kernel stops copying then. Which, follows from the place.
            let pages = (offset as usize / PAGE_BYTES) % (buf.len() / PAGE_BYTES + 1);
            let end = (pages * PAGE_BYTES).saturating_sub(offset as usize % PAGE_BYTES).min(buf.len());
            self.content.write_at(&buf[..end], offset)?;
        }
        self.machine.lives()?;
        self.content.write_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.sleep(Io::Write(offset, 0))?;
        self.machine.lives()?;
        self.note();
        self.content.zero_at(offset, len, unmap)
    }

    fn rewrite_lost(&self, offset: u64, len: u64) -> io::Result<u64> {
        self.machine.lives()?;
        self.note();
        self.content.rewrite_lost(offset, len)
    }

    fn sync(&self) -> io::Result<()> {
        let from = self.machine.now_ns();
        self.sleep(Io::Sync)?;
        let until = self.machine.now_ns();
        self.machine.lives()?;
        let synced = self.content.sync();
        match (&synced, &self.health) {
            (Ok(()), _) => self.content.synced(from, until),
            (Err(error), Some(health)) => drop(health.fail(format!("a sync failed: {error}"))),
            (Err(_), None) => {}
        }
        synced
    }
}
