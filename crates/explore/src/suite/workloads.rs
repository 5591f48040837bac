//! What the suites' guests do.

use crate::check::apps::{
    editor_workload, integrity_workload, records_workload, sqlite_workload, App, JournalMode, Saving,
    Synchronous,
};
use crate::check::pool::PoolCheck;

/// An application on a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// Mount options of its file system.
    pub mount: String,
    /// Features of its file system, as `mkfs.ext4 -O` takes them; nothing: as usual.
    pub features: String,
    /// The application.
    pub app: App,
}

impl Workload {
    fn plain(app: App) -> Self {
        Self { name: app.name.clone(), mount: String::new(), features: String::new(), app }
    }

    /// The same with other features of the file system.
    #[must_use]
    pub fn featured(mut self, features: &str) -> Self {
        self.name = format!("{} {features}", self.name);
        self.features = features.to_owned();
        self
    }

    /// The same with other mount options.
    #[must_use]
    pub fn mounted(mut self, options: &str) -> Self {
        self.name = format!("{} {options}", self.name);
        self.mount = options.to_owned();
        self
    }
}

/// Acknowledged records of 4 KiB by two threads.
pub fn records(count: u32) -> Workload {
    Workload::plain(records_workload(count, 4096, 2))
}

/// SQLite with a rollback journal.
pub fn sqlite(transactions: u32, synchronous: Synchronous) -> Workload {
    Workload::plain(sqlite_workload(JournalMode::Delete, synchronous, transactions))
}

/// SQLite with a write-ahead log.
pub fn sqlite_wal(transactions: u32) -> Workload {
    Workload::plain(sqlite_workload(JournalMode::Wal, Synchronous::Full, transactions))
}

/// An editor that saves as editors should, or without its fsync.
pub fn editor(saves: u32, fsync: bool) -> Workload {
    Workload::plain(editor_workload(saves, Saving { fsync, fsync_folder: true }))
}

/// Records of 4 KiB that are updated in place (VMA § 5.5).
pub fn integrity(updates: u32) -> Workload {
    Workload::plain(integrity_workload(updates, 4096, 40))
}

/// Small files deep in new folders, of which every other one is synced and marked (iJournaling § 6, first and third
/// scenario): a synced file must be there with its folders, whatever became of the others.
pub fn files(count: u32) -> Workload {
    let command = format!(
        "i=0\n\
         while [ $i -lt {count} ]; do\n\
         i=$((i+1)); d=/mnt/files/d$i/deep/er; mkdir -p $d; echo \"file $i\" > $d/f\n\
         [ $((i%2)) -eq 0 ] || {{ sync $d/f && \"$AFTERIMAGE_AGENT\" say \"{{\\\"mark\\\":\\\"f$i\\\"}}\"; }}\n\
         done\n"
    );
    // The newest synced file up to which all synced ones are there, whole. No program is started for it.
    let check = format!(
        "i=1; last=0\n\
         while [ $i -le {count} ]; do\n\
         read -r line 2> /dev/null < /mnt/files/d$i/deep/er/f || line=\n\
         [ \"$line\" = \"file $i\" ] || break\n\
         last=$i; i=$((i+2))\n\
         done\n\
         echo f$last\n"
    );
    Workload::plain(App {
        name: "files".to_owned(),
        setup: "mkdir /mnt/files\n".to_owned(),
        command,
        check: PoolCheck::Command(check),
    })
}

/// Folders, links, renames, truncations and removals, with a sync now and then: what metadata recovery has to get right.
pub fn churn(rounds: u32) -> Workload {
    let command = format!(
        "i=0\n\
         while [ $i -lt {rounds} ]; do\n\
         i=$((i+1)); d=/mnt/churn/d$i; mkdir $d\n\
         head -c $((i*7919%60000)) /bin/sh > $d/f\n\
         ln $d/f $d/g; mv $d/g $d/h; : > $d/empty\n\
         [ $((i%4)) -ne 0 ] || truncate -s $((i%3*1000)) $d/f\n\
         [ $i -le 6 ] || rm -r /mnt/churn/d$((i-6))\n\
         [ $((i%3)) -ne 0 ] || sync $d/f\n\
         [ $((i%10)) -ne 0 ] || sync\n\
         done\n"
    );
    Workload::plain(App {
        name: "churn".to_owned(),
        setup: "mkdir /mnt/churn\n".to_owned(),
        command,
        check: PoolCheck::Mount,
    })
}
