//! A snapshot for `status`, metrics and `inspect`.

use super::followed::Committed;
use super::volume::{Phase, Volume};
use crate::ids::FsBlock;
use crate::status::FileSystemStatus;
use crate::versions::Versions;

/// What people are told of one file system.
pub(super) fn file_system(volume: &Volume, versions: &Versions) -> FileSystemStatus {
    let query = versions.query(volume.id);
    let (mode, why) = match &volume.phase {
        Phase::Passthrough { why } => ("passthrough", Some(why.clone())),
        Phase::Armed { why, .. } => ("waiting", Some(why.clone())),
        Phase::Absorbing(_) => ("retain", None),
    };
    let log = volume.retained().map(|retained| &retained.log);
    let lists = log.map_or(0, |log| {
        let homes: usize = log.transactions.iter().map(|t| t.homes.capacity()).sum();
        homes * size_of::<FsBlock>() + log.transactions.capacity() * size_of::<Committed>()
    });
    FileSystemStatus {
        start_sector: volume.start.0,
        uuid: volume.uuid.map(|u| uuid::Uuid::from_bytes(u).to_string()),
        mode: mode.to_owned(),
        why,
        transactions: log.map_or(0, |log| log.transactions.len() as u64),
        versions: query.versions,
        versions_pending: query.pending,
        data_bytes: query.data_bytes,
        served_from_home: versions.arena.at_home(volume.id) as u64,
        information_bytes: query.information_bytes + lists as u64,
        classes: versions.classes.get(&volume.id).copied().unwrap_or_default(),
    }
}
