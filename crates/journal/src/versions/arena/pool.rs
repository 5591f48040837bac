//! The free slots of one arena, behind a lock of their own: where all memory of a budget is taken, another arena of the
//! same budget takes it from here, without the lock of the disk that this one belongs to.
//!
//! Nobody holds the locks of two pools at once, and nothing else is locked while one is held.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use super::file;
use super::map::{group_at, slot_at, Map, GROUP_SLOTS, PAGE};
use super::space::Space;

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    path: PathBuf,
    file: File,
    space: Mutex<Space>,
}

impl Pool {
    pub(super) fn new(path: &Path, file: File, space: Space) -> Self {
        Self { path: path.to_owned(), file, space: Mutex::new(space) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whoever gives a slot memory holds this meanwhile: a run that is being filled must not be emptied.
    pub(super) fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock()
    }

    /// Gives at most `want` cold slots memory. Says how many: none where no slot is cold.
    ///
    /// # Errors
    /// There is no memory for one, or another error of the operating system.
    pub(super) fn warm(&self, map: &Map, mut want: u32) -> io::Result<u32> {
        // Held until they are free slots like others, and while the memory comes.
        let mut space = self.space();
        while let Some((first, slots)) = space.coldest_run(want).filter(|run| run.1 > 0) {
            match self.back(map, first, slots) {
                Ok(()) => {
                    space.warm(slots);
                    return Ok(slots);
                }
                Err(e) if e.kind() == ErrorKind::StorageFull && slots > 1 => want = slots / 2,
                Err(e) => return Err(e),
            }
        }
        Ok(0)
    }

    /// Puts memory behind a run of slots and their tags.
    fn back(&self, map: &Map, first: u32, slots: u32) -> io::Result<()> {
        let tags_at = group_at(first);
        let end = slot_at(first + slots - 1) + PAGE;
        let at = if first % GROUP_SLOTS == 0 { tags_at } else { slot_at(first) };
        if at != tags_at {
            file::allocate(&self.file, tags_at, PAGE)?;
        }
        file::allocate(&self.file, at, end - at)?;
        map.populate(at, end - at)
    }

    /// Gives memory of free slots back but for `keep` of them. Says of how many.
    pub(super) fn cool(&self, keep: u32) -> u32 {
        let mut space = self.space();
        let runs = space.cool(keep);
        runs.into_iter()
            .map(|run| {
                file::punch(&self.file, &self.path, run);
                run.1
            })
            .sum()
    }

    /// Gives memory of at most so many free slots back. Says of how many.
    pub(super) fn yield_slots(&self, slots_max: u32) -> u32 {
        let keep = self.space().hot_slots().saturating_sub(slots_max);
        self.cool(keep)
    }

    /// No slot is free any more. Says how many with memory there were.
    pub(super) fn retire(&self) -> u32 {
        let mut space = self.space();
        let hot = space.hot_slots();
        *space = Space::default();
        hot
    }
}
