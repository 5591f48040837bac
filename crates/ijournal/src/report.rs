//! What a recovery found and did.

use std::fmt;

use serde::Serialize;

/// An i-transaction that no kernel should have written here, or for whose entry there is no room: left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Whose inode.
    pub ino: u32,
    /// Its sub-transaction id.
    pub sub_id: u64,
    /// Why.
    pub why: String,
}

/// What a recovery found and did. Counts are of what was to be done; done twice, it finds nothing the second time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Transactions of the file system's journal that were replayed.
    pub transactions: u64,
    /// Blocks that they wrote home.
    pub blocks: u64,
    /// Whether there could be i-transactions.
    pub had_bit: bool,
    /// I-transactions beyond the journal.
    pub valid: u64,
    /// Those that the journal holds.
    pub committed: u64,
    /// Runs that begin and are not whole.
    pub torn: u64,
    /// Inodes and entries to which no name leads, or which another of that number replaced.
    pub unreachable: u64,
    /// Files that are there now.
    pub created: u64,
    /// Files that were there.
    pub updated: u64,
    /// Directories that are there now.
    pub directories: u64,
    /// Entries that were added.
    pub entries: u64,
    /// Blocks of the file system that recovery's own transaction changed.
    pub changed_blocks: u64,
    /// I-transactions that were left out.
    pub refused: Vec<Refused>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journal: {} transactions replayed, {} blocks", self.transactions, self.blocks)?;
        if !self.had_bit {
            return write!(f, "; no i-transactions");
        }
        write!(
            f,
            "; i-transactions: {} valid, {} committed, {} torn; {} files created, {} updated, {} directories, {} entries, \
             {} blocks changed",
            self.valid,
            self.committed,
            self.torn,
            self.created,
            self.updated,
            self.directories,
            self.entries,
            self.changed_blocks
        )?;
        for refused in &self.refused {
            write!(f, "\nrefused: inode {}, i-transaction {}: {}", refused.ino, refused.sub_id, refused.why)?;
        }
        Ok(())
    }
}
