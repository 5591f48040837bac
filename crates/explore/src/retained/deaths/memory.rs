//! Daemons under `guest-crash`: a disk in memory with its journals retained, and its arena on a tmpfs. Both outlive a daemon, and are copied for the one
//! that recovers.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use afterimage_block::{Blocking, Disk, Medium, MediumDisk, SequenceNumber};
use afterimage_control_disk::desk::Reached;
use afterimage_control_disk::Durability;
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::group::JournalOptions;
use afterimage_journal::RetainDisk;
use afterimage_order::Subscription;
use afterimage_trace::{Op, Sparse};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::lent::Left;
use super::{failed, send, Beside, Daemons, DeathOptions};
use crate::{ExploreError, Result};

/// A disk in memory.
struct Content(Mutex<Sparse>);

impl Medium for Content {
    fn len(&self) -> u64 {
        self.0.lock().len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.lock().read_at(buf, offset);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.lock().write_at(buf, offset);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.0.lock().zero_at(offset, len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A group of one disk, of which nobody asks how durable it is.
struct Alone(Arc<RetainDisk>);

impl Durability for Alone {
    fn reached(&self) -> Reached {
        Reached { acknowledged: SequenceNumber(0), durable: SequenceNumber(0), failure: None }
    }

    fn flush(&self) -> std::result::Result<SequenceNumber, String> {
        self.0.settle().map(|()| SequenceNumber(0)).map_err(|e| e.to_string())
    }

    fn subscribe(&self, _: Box<dyn Fn() + Send + Sync>) -> Option<Subscription> {
        None
    }

    fn retained_disks(&self) -> Vec<Arc<RetainDisk>> {
        vec![Arc::clone(&self.0)]
    }
}

/// One daemon. The lane goes first.
struct Served {
    lane: Blocking,
    disk: Arc<RetainDisk>,
}

/// See the module.
pub(super) struct Memory<'a> {
    how: &'a DeathOptions,
    /// None within a change of daemons.
    served: Option<Served>,
    below: Arc<Content>,
    folder: TempDir,
}

impl<'a> Memory<'a> {
    /// The first daemon, over a disk of that content.
    pub fn new(how: &'a DeathOptions, base: Sparse) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("afterimage-explore-")
            .tempdir_in(JournalOptions::ARENA_FOLDER)
            .map_err(ExploreError::io("cannot make a folder for arenas"))?;
        let identity = ArenaIdentity { uuid: [1; 16], inode: 1, size_bytes: base.len() };
        let below = Arc::new(Content(Mutex::new(base)));
        let mut memory = Self { how, served: None, below, folder };
        drop(Arena::create(&memory.arena(), identity, how.arena_bytes_max).map_err(|e| failed(&e))?);
        memory.served = Some(memory.open(&memory.below, &memory.arena())?);
        Ok(memory)
    }

    fn arena(&self) -> PathBuf {
        self.folder.path().join("0.arena")
    }

    fn open(&self, below: &Arc<Content>, arena: &Path) -> Result<Served> {
        let lower: Arc<dyn Disk> = Arc::new(MediumDisk::new(Arc::clone(below) as Arc<dyn Medium>));
        let held = Arena::open(arena, None).map_err(|e| failed(&e))?;
        let options = Options::default();
        let disk = match &self.how.open {
            Some(open) => open(lower, held, options),
            None => RetainDisk::open(lower, held, options),
        };
        let disk = Arc::new(disk.map_err(|e| failed(&e))?);
        let lane = Blocking::new(disk.open_lane().map_err(|e| failed(&e))?);
        Ok(Served { lane, disk })
    }

    /// What the next daemon leaves, and says.
    fn next<R>(&self, work: impl FnOnce(&Served) -> Result<R>) -> Result<(Sparse, R)> {
        let arena = self.folder.path().join("copy.arena");
        copy_sparse(&self.arena(), &arena)?;
        let content = self.below.0.lock().clone();
        let below = Arc::new(Content(Mutex::new(content)));
        let next = self.open(&below, &arena)?;
        let said = work(&next)?;
        drop(next);
        std::fs::remove_file(&arena).map_err(ExploreError::io("removing a copy of an arena"))?;
        let content = below.0.lock().clone();
        Ok((content, said))
    }

    fn served(&mut self) -> Result<&mut Served> {
        self.served.as_mut().ok_or_else(|| failed(&"an earlier daemon could not be followed"))
    }
}

impl<'a> Daemons<'a> for Memory<'_> {
    fn send(&mut self, op: &'a Op) -> Result<()> {
        send(&mut self.served()?.lane, op)
    }

    fn happens(&mut self, what: Beside) -> Result<()> {
        match what {
            Beside::Death => {
                self.served = None;
                self.served = Some(self.open(&self.below, &self.arena())?);
                Ok(())
            }
            Beside::Settle => self.served()?.disk.settle().map_err(|e| failed(&e)),
            Beside::Room => self.served()?.disk.make_room().map_err(|e| failed(&e)),
        }
    }

    fn ended(&self, attached: bool) -> Result<Sparse> {
        let (content, _) = self.next(|next| next.disk.finish(attached).map_err(|e| failed(&e)))?;
        Ok(content)
    }

    /// The one that looks is the next: it is given the guest's read again.
    fn looked_at(&self, left: &Left<'_>) -> Result<Option<Sparse>> {
        let (content, looked) = self.next(|next| {
            let looked = left.to(Arc::new(Alone(Arc::clone(&next.disk))), &next.disk)?;
            next.disk.finish(false).map_err(|e| failed(&e))?;
            Ok(looked)
        })?;
        Ok(looked.then_some(content))
    }
}

/// An arena is mostly holes.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status();
    match status.map_err(ExploreError::io("copying an arena"))? {
        status if status.success() => Ok(()),
        status => Err(ExploreError::Checker(format!("cp of an arena ended with {status}"))),
    }
}
