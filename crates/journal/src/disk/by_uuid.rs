//! File systems found by their UUID, on all disks of a group: what is asked of one of two with the same (a clone) is asked of neither.

use std::sync::Arc;

use afterimage_block::Sector;

use super::RetainDisk;
use crate::ext4::layout::Layout;
use crate::ids::{FsBlock, Tid};
use crate::status::FileSystemStatus;

/// The disk that holds the file system of that UUID, and what is retained of it.
///
/// # Errors
/// None of which journals are retained, or more than one: in a sentence.
pub fn file_system(
    disks: &[Arc<RetainDisk>],
    uuid: [u8; 16],
) -> Result<(Arc<RetainDisk>, FileSystemStatus), String> {
    let name = uuid::Uuid::from_bytes(uuid).to_string();
    let mut found = Vec::new();
    for disk in disks {
        let systems = disk.status().file_systems;
        let systems = systems.into_iter().filter(|system| system.uuid.as_ref() == Some(&name));
        found.extend(systems.map(|system| (Arc::clone(disk), system)));
    }
    match (found.pop(), found.is_empty()) {
        (Some(_), false) => Err(format!("there is more than one file system {name}")),
        (Some((_, FileSystemStatus { mode, why, .. })), true) if mode == "passthrough" => {
            Err(format!("the journal of {name} is not retained: {}", why.unwrap_or_default()))
        }
        (Some(found), true) => Ok(found),
        (None, _) if disks.is_empty() => Err("journals are not retained (--journal retain)".to_owned()),
        (None, _) => Err(format!("no disk has a file system {name}")),
    }
}

/// What a question about one file system is answered with, if there is one of that UUID.
fn of_the_one<T>(
    disks: &[Arc<RetainDisk>],
    ask: impl Fn(&RetainDisk) -> (usize, Option<T>),
) -> Option<(Arc<RetainDisk>, T)> {
    let (mut systems, mut found) = (0, None);
    for disk in disks {
        let (here, answer) = ask(disk);
        systems += here;
        found = answer.map(|answer| (Arc::clone(disk), answer)).or(found);
    }
    found.filter(|_| systems == 1)
}

/// Where blocks of a file system's journal lie, if they are all its journal's.
pub fn journal_sector(
    disks: &[Arc<RetainDisk>],
    uuid: [u8; 16],
    block: FsBlock,
    blocks: u32,
) -> Option<(Arc<RetainDisk>, Sector)> {
    of_the_one(disks, |disk| disk.journal_sector(uuid, block, blocks))
}

/// Its journal, if that is retained or will be.
pub fn journal_layout(disks: &[Arc<RetainDisk>], uuid: [u8; 16]) -> Option<(Arc<RetainDisk>, Arc<Layout>)> {
    of_the_one(disks, |disk| disk.journal_layout(uuid))
}

/// Which of its transactions is expected next, if its journal is retained; see [`RetainDisk::expected`].
pub fn expected(disks: &[Arc<RetainDisk>], uuid: [u8; 16]) -> Option<Tid> {
    of_the_one(disks, |disk| disk.expected(uuid)).map(|(_, tid)| tid)
}
