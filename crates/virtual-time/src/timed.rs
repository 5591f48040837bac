//! Files that take their time.

use std::io;
use std::sync::Arc;

use afterimage_block::{Health, Medium};

use crate::calendar::Ns;
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

/// Where a daemon dies within a write, if it does: when, and how many bytes are there. The kernel stops copying at a page of the file. At
/// which, follows from the place. It was copied before the death, however long the call had been to wait for the device behind it.
pub fn torn(machine: &Machine, offset: u64, len: usize) -> Option<(Ns, usize)> {
    let at = offset as usize % PAGE_BYTES;
    let dies = match at + len > PAGE_BYTES {
        true => machine.dies_writing(),
        false => machine.is_dying().then(|| machine.dies_at()),
    };
    let pages = (offset as usize / PAGE_BYTES) % (len / PAGE_BYTES + 1);
    dies.map(|dies| (dies, (pages * PAGE_BYTES).saturating_sub(at).min(len)))
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
        if let Some((dies, end)) = torn(&self.machine, offset, buf.len()) {
            self.content.at(dies, dies);
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

    fn settle(&self) -> io::Result<()> {
        self.machine.lives()?;
        self.note();
        self.content.write_lost_again();
        self.sync()
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

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use afterimage_lab::device::ModelName;

    use super::*;
    use crate::host_fs::HostFs;
    use crate::machine::Died;
    use crate::page_cache::DirtyLimits;
    use crate::storage::Storage;

    const MS: Ns = 1_000_000;
    const PAGES: usize = 4;
    const ROOM: DirtyLimits = DirtyLimits { background_bytes: 1 << 20, bytes: 1 << 20 };

    /// A daemon writes so many pages at each of these times, until it dies: when that was, and how many pages of each write are there.
    fn left(limits: DirtyLimits, doom: (Ns, Ns), writes: &[(Ns, usize)]) -> (Ns, Vec<u8>) {
        let storage = Storage::new(ModelName::Hdd15k, limits, HostFs::Bare);
        storage.lock().start();
        let machine = Machine::mortal(&storage, 0, 0);
        machine.die_writing_from(doom.0);
        machine.die_at(doom.1);
        let content = Volatile::zeroes(1 << 20);
        let medium = TimedMedium::new(&content, File::buffered(0), &machine);
        // Two of four pages are written where it dies within them: see above.
        let place = |n: usize| (7 + n * (PAGES + 1)) * PAGE_BYTES;
        let died = catch_unwind(AssertUnwindSafe(|| {
            for (n, (at, pages)) in writes.iter().enumerate() {
                machine.reach(*at);
                medium.write_at(&vec![1; pages * PAGE_BYTES], place(n) as u64).unwrap();
            }
        }));
        assert!(died.is_err_and(|died| died.is::<Died>()));
        content.die(machine.dies_at());
        let page = |page: usize| {
            let mut bytes = [0];
            content.read_at(&mut bytes, page as u64).unwrap();
            bytes[0]
        };
        let pages = |n: usize| (0..PAGES).map(|p| page(place(n) + p * PAGE_BYTES)).sum();
        (machine.dies_at(), (0..writes.len()).map(pages).collect())
    }

    #[test]
    fn a_daemon_dies_between_the_pages_of_a_write() {
        // It takes no time, and is begun in the last part of the daemon's life.
        let writes = [(MS, PAGES), (6 * MS, 1), (7 * MS, PAGES), (8 * MS, PAGES)];
        assert_eq!(left(ROOM, (5 * MS, 50 * MS), &writes), (7 * MS, vec![4, 1, 2, 0]));
        // What would be begun later is not begun.
        assert_eq!(left(ROOM, (5 * MS, 5 * MS), &writes), (5 * MS, vec![4, 0, 0, 0]));
        // Killed while it waits for the device: copied before.
        let full = DirtyLimits { background_bytes: 4096, bytes: 4096 };
        let dies = MS + 10_000;
        assert_eq!(left(full, (dies, dies), &writes[..1]), (dies, vec![2]));
    }

    /// Seed 50204 of `./x simulate` ended so: a queue that a daemon was taking over waits for its requests when it is dropped.
    #[test]
    fn who_is_dropped_by_a_death_does_not_die_of_it_again() {
        struct Last(TimedMedium);
        impl Drop for Last {
            fn drop(&mut self) {
                assert!(self.0.write_at(&[1; 512], 0).is_err());
            }
        }
        let storage = Storage::new(ModelName::Hdd15k, ROOM, HostFs::Bare);
        let machine = Machine::mortal(&storage, 0, MS);
        let last = Last(TimedMedium::new(&Volatile::zeroes(1 << 20), File::buffered(0), &machine));
        machine.die_at(MS);
        let died = catch_unwind(AssertUnwindSafe(move || last.0.sync()));
        assert!(died.is_err_and(|died| died.is::<Died>()));
    }
}
