//! Puts taps around a group: one above, and those below that the group asks for.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use afterimage_block::{BlockError, Blocking, Buffers, Disk, DiskIndex, Medium, Operation, Sector, Tap};
use parking_lot::Mutex;

use crate::recorder::Base;
use crate::{Layer, Recorder, Role, Run, Sparse, TapDisk, TapMedium, TargetId, PAGE_BYTES};

/// How much of a base is read at a time.
const STRIDE_BYTES: usize = 1 << 20;

/// Goes into [`Tap`]-shaped places; every file below becomes one target, however many ways lead to it.
#[derive(Debug)]
pub struct Taps {
    recorder: Arc<Recorder>,
    targets: Mutex<HashMap<Role, TargetId>>,
    guests: Mutex<HashMap<DiskIndex, TargetId>>,
}

impl Taps {
    /// Taps that speak to this recorder.
    pub fn new(recorder: Arc<Recorder>) -> Arc<Self> {
        Arc::new(Self { recorder, targets: Mutex::default(), guests: Mutex::default() })
    }

    /// The guest of a disk that is listened to has published this, in that slot; see [`Recorder::publish`].
    pub fn published(&self, index: DiskIndex, slot: u64, runs: Arc<[Run]>) {
        let target = self.guests.lock().get(&index).copied();
        if let Some(target) = target {
            self.recorder.publish(target, slot, runs);
        }
    }

    fn below(&self, role: Role, medium: &dyn Medium) -> io::Result<TargetId> {
        let mut targets = self.targets.lock();
        if let Some(target) = targets.get(&role) {
            return Ok(*target);
        }
        let base = Base::Own(Arc::new(read_medium(medium)?));
        let target = self.recorder.target(Layer::Storage, role, base);
        targets.insert(role, target);
        Ok(target)
    }
}

impl Tap for Taps {
    fn log(&self, log: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        let target = self.below(Role::Log, log.as_ref())?;
        Ok(Arc::new(TapMedium::new(log, Arc::clone(&self.recorder), target)))
    }

    fn home(&self, index: DiskIndex, home: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        let target = self.below(Role::Disk(index.0), home.as_ref())?;
        Ok(Arc::new(TapMedium::new(home, Arc::clone(&self.recorder), target)))
    }

    fn lower(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        let role = Role::Disk(index.0);
        let known = self.targets.lock().get(&role).copied();
        let target = match known {
            Some(target) => target,
            None => {
                let base = read_disk(&disk).map_err(|e| io::Error::other(e.to_string()))?;
                let target = self.recorder.target(Layer::Storage, role, Base::Own(Arc::new(base)));
                self.targets.lock().insert(role, target);
                target
            }
        };
        Ok(Arc::new(TapDisk::new(disk, Arc::clone(&self.recorder), target)))
    }

    /// A disk whose content is that of the image below refers to it.
    fn guest(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        if disk.geometry().read_only {
            return Ok(disk);
        }
        let role = Role::Disk(index.0);
        let content = read_disk(&disk).map_err(|e| io::Error::other(e.to_string()))?;
        let below = self.targets.lock().get(&role).copied();
        let same = below.filter(|t| self.recorder.base(*t).is_some_and(|base| base.same_content(&content)));
        let base = same.map_or_else(|| Base::Own(Arc::new(content)), Base::SameAs);
        let target = self.recorder.target(Layer::Guest, role, base);
        self.guests.lock().insert(index, target);
        Ok(Arc::new(TapDisk::new(disk, Arc::clone(&self.recorder), target)))
    }
}

/// The content of a medium.
///
/// # Errors
/// It cannot be read.
pub fn read_medium(medium: &dyn Medium) -> io::Result<Sparse> {
    let mut content = Sparse::new(medium.len());
    read_strides(medium.len(), &mut content, |buf, offset| medium.read_at(buf, offset))?;
    Ok(content)
}

/// The content of a disk.
///
/// # Errors
/// It cannot be read.
pub fn read_disk(disk: &Arc<dyn Disk>) -> Result<Sparse, BlockError> {
    let mut lane = Blocking::new(disk.open_lane()?);
    let mut content = Sparse::new(disk.geometry().bytes());
    read_strides(disk.geometry().bytes(), &mut content, |buf, offset| {
        let buffers = Buffers::allocate(buf.len());
        let (sector, sectors) = (Sector(offset / 512), buf.len() as u64 / 512);
        lane.request(Operation::Read, sector, sectors, buffers.share())?;
        buffers.copy_to(0, buf);
        Ok(())
    })?;
    Ok(content)
}

fn read_strides<E>(
    bytes: u64,
    content: &mut Sparse,
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut buf = vec![0; STRIDE_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let n = (bytes - offset).min(STRIDE_BYTES as u64) as usize;
        read(&mut buf[..n], offset)?;
        for (page, at) in buf[..n].chunks(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
            if page.iter().any(|b| *b != 0) {
                content.write_at(page, at);
            }
        }
        offset += n as u64;
    }
    Ok(())
}
