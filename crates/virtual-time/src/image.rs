//! An image of which the content is in memory and only the name is a file's: its lanes and its medium take the device's time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, DiskIndex, Front, Geometry, Lane, Medium, MediumDisk, Operation,
    Tap, SECTOR_BYTES,
};
use afterimage_store::{Attributes, FileIdentity, Image};

use crate::calendar::Ns;
use crate::machine::Machine;
use crate::storage::{File, Io};
use crate::timed::{torn, TimedMedium};
use crate::volatile::Volatile;

/// See the module.
pub struct VirtualImage {
    machine: Arc<Machine>,
    medium: TimedMedium,
    disk: MediumDisk,
    path: PathBuf,
}

impl VirtualImage {
    /// An image of a daemon's; `path` is a file of the same length.
    pub fn new(machine: &Arc<Machine>, medium: TimedMedium, path: &Path) -> Arc<Self> {
        let disk = MediumDisk::new(Arc::clone(medium.content()) as Arc<dyn Medium>);
        Arc::new(Self { machine: Arc::clone(machine), medium, disk, path: path.to_owned() })
    }
}

impl Front for VirtualImage {
    fn lower(&self) -> &dyn Disk {
        &self.disk
    }

    fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        let (machine, content) = (Arc::clone(&self.machine), Arc::clone(self.medium.content()));
        let file = self.medium.file().clone();
        Ok(Box::new(TimedLane { machine, file, content, lower, waiting: BTreeMap::new(), done: Vec::new() }))
    }
}

impl Image for VirtualImage {
    fn path(&self) -> &Path {
        &self.path
    }

    fn is_device(&self) -> bool {
        false
    }

    fn medium(&self) -> Arc<dyn Medium> {
        Arc::new(self.medium.of(self.disk.health()))
    }

    fn as_disk(self: Arc<Self>) -> Arc<dyn Disk> {
        self
    }

    /// That of a file on a machine of its own: a log names it, and is the same in every run.
    fn identity(&self) -> io::Result<FileIdentity> {
        let (ino, size_bytes) = (self.medium.file().id, self.medium.len());
        Ok(FileIdentity { dev: 1, ino, uid: 0, size_bytes, mtime_ns: 0, ctime_ns: 0 })
    }

    fn set_mark(&self, _mark: &[u8]) -> io::Result<Attributes> {
        Ok(Attributes::Kept)
    }

    fn remove_mark(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A queue of the image. A request takes effect when it is taken, and completes when the device says.
struct TimedLane {
    machine: Arc<Machine>,
    file: File,
    content: Arc<Volatile>,
    lower: Box<dyn Lane>,
    waiting: BTreeMap<(Ns, u64), Completion>,
    done: Vec<Completion>,
}

impl TimedLane {
    /// When the request is done, and the sync that belongs to it begins and ends.
    fn ask(&self, request: &Admitted) -> (Ns, Option<(Ns, Ns)>) {
        let (offset, bytes) = (request.sector.0 * SECTOR_BYTES, request.sectors * SECTOR_BYTES);
        let io = match request.operation {
            Operation::Read => Io::Read(offset, bytes),
            Operation::Write { .. } => Io::Write(offset, bytes),
            // A command, and no data.
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => Io::Write(offset, 0),
            Operation::Flush(_) => Io::Sync,
        };
        let (now, due) = (self.machine.now_ns(), self.machine.serve(&self.file, io));
        if matches!(io, Io::Sync) {
            return (due, Some((now, due)));
        }
        self.content.at(now, due);
        let is_written = !matches!(request.operation, Operation::Read);
        if !(request.operation.is_flushed() || is_written && self.file.write_through) {
            return (due, None);
        }
        let (synced, _) = self.machine.apart(|| {
            self.machine.reach(due);
            self.machine.serve(&self.file, Io::Sync)
        });
        (synced, Some((due, synced)))
    }

    /// Of a write within which the daemon dies, what was copied.
    fn tear(&mut self, request: &Admitted) {
        let (offset, len) = (request.sector.0 * SECTOR_BYTES, request.sectors * SECTOR_BYTES);
        let Some((dies, bytes)) = torn(&self.machine, offset, len as usize) else { return };
        self.content.at(dies, dies);
        self.lower.take(request.part(request.token, request.sector, bytes as u64 / SECTOR_BYTES));
        // It is told to nobody.
        self.lower.reap(&mut Vec::new());
    }

    fn give(&mut self, due: (Ns, u64)) {
        if let Some(completion) = self.waiting.remove(&due) {
            self.machine.keep(due);
            self.done.push(completion);
        }
    }
}

impl Lane for TimedLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.machine.charge();
        if matches!(request.operation, Operation::Write { .. }) {
            self.tear(&request);
        }
        if let Err(error) = self.machine.lives() {
            let result = Err(BlockError::io("reaching the image", error));
            return self.done.push(Completion { token: request.token, result });
        }
        let (due, sync) = self.ask(&request);
        let mut served = Vec::new();
        self.lower.take(request);
        self.lower.reap(&mut served);
        for completion in served {
            if let (Some((from, until)), Ok(())) = (sync, &completion.result) {
                self.content.synced(from, until);
            }
            self.waiting.insert(self.machine.promise(due), completion);
        }
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let now = self.machine.now_ns();
        while let Some(due) = self.waiting.keys().next().copied().filter(|(at, _)| *at <= now) {
            self.give(due);
        }
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.done.len()
    }

    /// Sleeps until the next completion: only those wait here who have nothing else to do.
    fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> io::Result<()> {
        if let Some(due) = self.waiting.keys().next().copied().filter(|_| self.done.is_empty()) {
            self.machine.reach(due.0);
            self.machine.lives()?;
            self.give(due);
        }
        self.machine.lives()
    }
}

impl Drop for TimedLane {
    fn drop(&mut self) {
        for due in self.waiting.keys() {
            self.machine.keep(*due);
        }
    }
}

/// Where a group's log is a file of the machine's.
#[derive(Debug)]
pub struct Around {
    /// The daemon's machine.
    pub machine: Arc<Machine>,
    /// The log's content, and its file on the device.
    pub log: (Arc<Volatile>, u64),
    /// Who listens.
    pub also: Option<Arc<dyn Tap>>,
}

impl Tap for Around {
    fn log(&self, _log: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        let log = Arc::new(TimedMedium::new(&self.log.0, File::buffered(self.log.1), &self.machine));
        match &self.also {
            Some(also) => also.log(log),
            None => Ok(log),
        }
    }

    fn home(&self, index: DiskIndex, home: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        match &self.also {
            Some(also) => also.home(index, home),
            None => Ok(home),
        }
    }

    fn lower(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        match &self.also {
            Some(also) => also.lower(index, disk),
            None => Ok(disk),
        }
    }

    fn only_read(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        match &self.also {
            Some(also) => also.only_read(index, disk),
            None => Ok(disk),
        }
    }

    fn guest(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        match &self.also {
            Some(also) => also.guest(index, disk),
            None => Ok(disk),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use afterimage_block::{Buffers, Request, Sector, Token};
    use afterimage_lab::device::ModelName;

    use super::*;
    use crate::host_fs::HostFs;
    use crate::machine::Died;
    use crate::page_cache::DirtyLimits;
    use crate::storage::Storage;

    #[test]
    fn a_daemon_dies_between_the_pages_of_a_guests_write() {
        const ROOM: DirtyLimits = DirtyLimits { background_bytes: 1 << 20, bytes: 1 << 20 };
        let storage = Storage::new(ModelName::Hdd15k, ROOM, HostFs::Bare);
        storage.lock().start();
        let machine = Machine::mortal(&storage, 0, 0);
        machine.die_writing_from(1_000_000);
        let content = Volatile::zeroes(1 << 20);
        let medium = TimedMedium::new(&content, File::buffered(0), &machine);
        let mut lane = VirtualImage::new(&machine, medium, Path::new("image")).open_lane().unwrap();
        // Four pages from the seventh on: two are copied where it dies in their midst, see `torn`.
        let mut write = |at: Ns, page: u64| {
            machine.reach(at);
            let buffers = Buffers::from_bytes(&[1; 4 * 4096]);
            let operation = Operation::Write { flushed: false };
            let (token, sector) = (Token(at), Sector(page * 8));
            lane.submit(Request { token, operation, sector, sectors: 32, buffers });
        };
        write(0, 17);
        let died = catch_unwind(AssertUnwindSafe(|| write(2_000_000, 7)));
        assert!(died.is_err_and(|died| died.is::<Died>()));
        content.die(machine.dies_at());
        let mut page = [0; 4096];
        let pages = [7, 8, 9, 10, 17, 20].map(|n| {
            content.read_at(&mut page, n * 4096).unwrap();
            page[4095]
        });
        assert_eq!(pages, [1, 1, 0, 0, 1, 1]);
    }
}
