//! A snapshot for `status`, metrics and `inspect`.

use super::volume::{Committed, Phase, Volume};
use crate::ids::FsBlock;
use crate::status::FileSystemStatus;
use crate::versions::Versions;

impl Volume {
    pub(super) fn status(&self, versions: &Versions) -> FileSystemStatus {
        let query = versions.query(self.id);
        let (mode, why) = match &self.phase {
            Phase::Passthrough { why } => ("passthrough", Some(why.clone())),
            Phase::Armed { why, .. } => ("waiting", Some(why.clone())),
            Phase::Absorbing(_) => ("retain", None),
        };
        let lists = self.log().map_or(0, |log| {
            let homes: usize = log.transactions.iter().map(|t| t.homes.capacity()).sum();
            homes * size_of::<FsBlock>() + log.transactions.capacity() * size_of::<Committed>()
        });
        FileSystemStatus {
            start_sector: self.start.0,
            uuid: self.uuid.map(|u| uuid::Uuid::from_bytes(u).to_string()),
            mode,
            why,
            transactions: self.log().map_or(0, |log| log.transactions.len() as u64),
            versions: query.versions,
            versions_pending: query.pending,
            data_bytes: query.data_bytes,
            information_bytes: query.information_bytes + lists as u64,
            classes: versions.classes.get(&self.id).copied().unwrap_or_default(),
        }
    }
}
