//! Daemons under `power-window`: all their layers and threads, as `serve` builds them, over an image, a log and an arena in files on a tmpfs.
//!
//! Who a file is cannot be copied, and the next daemon asks for it. So each death is one of a guest of its own, which has sent the same
//! requests. What a dying daemon's threads have begun they finish; what they have not is left undone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::Blocking;
use afterimage_compose::{Plan, Prepared, Stack};
use afterimage_journal::group::{Ending, JournalOptions};
use afterimage_journal::RetainDisk;
use afterimage_order::{Contract, GroupOptions};
use afterimage_store::{create_image, DirectMode, OpenOptions};
use afterimage_trace::{Op, Sparse};

use super::lent::Left;
use super::{failed, send, Beside, Daemons, DeathOptions};
use crate::{ExploreError, Result};

/// How long an orderly end may take to bring everything home, to files in memory.
const HOME_LIMIT: Duration = Duration::from_secs(30);

enum Step<'a> {
    Send(&'a Op),
    Happens(Beside),
}

/// See the module.
pub(super) struct Files<'a> {
    how: &'a DeathOptions,
    window: Duration,
    base: Vec<u8>,
    steps: Vec<Step<'a>>,
}

/// One daemon. The lane goes first. To drop it is its death: nothing is ended in order.
struct Served {
    lane: Blocking,
    disk: Arc<RetainDisk>,
    stack: Stack,
}

impl<'a> Files<'a> {
    /// Nothing was sent yet.
    pub fn new(how: &'a DeathOptions, window: Duration, base: Sparse) -> Self {
        let mut bytes = vec![0; base.len() as usize];
        base.read_at(&mut bytes, 0);
        Self { how, window, base: bytes, steps: Vec::new() }
    }

    fn open(&self, folder: &Path) -> Result<Served> {
        let image = folder.join("disk.img");
        let open = OpenOptions { direct: DirectMode::Off, any_content: true, ..OpenOptions::new(&image) };
        let plan = Plan {
            images: vec![open],
            contract: Contract::PowerWindow { window: self.window },
            log_bytes_max: GroupOptions::LOG_MIN_BYTES,
            log: None,
            journal: JournalOptions {
                retain: true,
                retain_bytes_max: self.how.arena_bytes_max.max(JournalOptions::RETAIN_MIN_BYTES),
                arena_folder: folder.to_owned(),
                ..self.how.journal.clone()
            },
        };
        let stack = Prepared::new(plan).and_then(|prepared| prepared.open(None)).map_err(|e| failed(&e))?;
        let lane = stack.disks[0].disk.open_lane().map_err(|e| failed(&e))?;
        // The guest has come back, or somebody has said that it is gone.
        stack.group.guest_was_seen(0);
        let disk = stack.group.retained_disks().pop().ok_or_else(|| failed(&"no journal is retained"))?;
        Ok(Served { lane: Blocking::new(lane), disk, stack })
    }
}

impl<'a> Daemons<'a> for Files<'a> {
    fn send(&mut self, op: &'a Op) -> Result<()> {
        self.steps.push(Step::Send(op));
        Ok(())
    }

    fn happens(&mut self, what: Beside) -> Result<()> {
        self.steps.push(Step::Happens(what));
        Ok(())
    }

    fn ended(&self, attached: bool) -> Result<Sparse> {
        self.follow(|served, folder| {
            drop(served);
            let Served { stack, .. } = self.open(folder)?;
            close(&stack, attached)
        })
        .map(|(content, ())| content)
    }

    fn looked_at(&self, left: &Left<'_>) -> Result<Option<Sparse>> {
        let (content, looked) = self.follow(|Served { lane, disk, stack }, _| {
            let looked = left.to(Arc::clone(&stack.group) as _, &disk)?;
            drop((lane, disk));
            close(&stack, false)?;
            Ok(looked)
        })?;
        Ok(looked.then_some(content))
    }
}

/// The orderly end.
fn close(stack: &Stack, attached: bool) -> Result<()> {
    stack.group.close_within(HOME_LIMIT, Ending::Close { attached }).map_err(|e| failed(&e))?;
    Ok(())
}

impl Files<'_> {
    /// A daemon that has served all of it, to its end: what that leaves, and says.
    fn follow<R>(&self, end: impl FnOnce(Served, &Path) -> Result<R>) -> Result<(Sparse, R)> {
        let folder = tempfile::Builder::new()
            .prefix("afterimage-explore-")
            .tempdir_in(JournalOptions::ARENA_FOLDER)
            .map_err(ExploreError::io("cannot make a folder for a daemon"))?;
        let image = folder.path().join("disk.img");
        create_image(&image, self.base.len() as u64).map_err(|e| failed(&e))?;
        std::fs::write(&image, &self.base).map_err(ExploreError::io("writing an image"))?;
        let mut served = self.open(folder.path())?;
        for step in &self.steps {
            match step {
                Step::Send(op) => send(&mut served.lane, op)?,
                Step::Happens(Beside::Death) => {
                    drop(served);
                    served = self.open(folder.path())?;
                }
                Step::Happens(Beside::Settle) => served.disk.settle().map_err(|e| failed(&e))?,
                Step::Happens(Beside::Room) => served.disk.make_room().map_err(|e| failed(&e))?,
            }
        }
        let said = end(served, folder.path())?;
        let bytes = std::fs::read(&image).map_err(ExploreError::io("reading an image"))?;
        let mut content = Sparse::new(bytes.len() as u64);
        content.write_at(&bytes, 0);
        Ok((content, said))
    }
}
