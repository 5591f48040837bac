//! What a write is to somebody who looks for trouble: told from its bytes, to spend the budget where crashes hurt.
//! Nothing depends on a tag being right.

use afterimage_format::log::RECORDS_OFFSET;
use afterimage_trace::Role;
use serde::{Deserialize, Serialize};

/// `JBD2_MAGIC_NUMBER` (linux/jbd2.h), big-endian at the start of every journal block that describes.
const JBD2_MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];
/// `EXT4_SUPER_MAGIC`, at byte 56 of the superblock, which is at byte 1024 of the disk.
pub(crate) const EXT4_MAGIC: [u8; 2] = [0x53, 0xef];
const SUPERBLOCK_OFFSET: u64 = 1024;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tag {
    /// Nothing special.
    Data,
    /// Begins with a journal descriptor or revoke block.
    JournalDescriptor,
    /// Contains a journal commit block.
    JournalCommit,
    /// The journal's superblock.
    JournalSuperblock,
    /// The file system's superblock.
    Superblock,
    /// The redo log's header.
    LogHeader,
    /// The first write after the redo log wrapped around.
    LogWrap,
}

impl Tag {
    /// Whether crash states around it deserve more of the budget.
    pub fn is_interesting(self) -> bool {
        !matches!(self, Self::Data | Self::JournalDescriptor)
    }

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::JournalDescriptor => "journal descriptor",
            Self::JournalCommit => "journal commit",
            Self::JournalSuperblock => "journal superblock",
            Self::Superblock => "superblock",
            Self::LogHeader => "log header",
            Self::LogWrap => "log wrap",
        }
    }
}

/// The tag of a write at a byte offset; `None` for zeroing.
pub(crate) fn tag(role: Role, offset: u64, data: Option<&[u8]>, wrapped: bool) -> Tag {
    let Some(data) = data else { return Tag::Data };
    if role == Role::Log {
        return match offset {
            _ if offset < RECORDS_OFFSET => Tag::LogHeader,
            _ if wrapped => Tag::LogWrap,
            _ => Tag::Data,
        };
    }
    let superblock = SUPERBLOCK_OFFSET.checked_sub(offset).map(|at| at as usize + 56);
    if superblock.is_some_and(|at| data.get(at..at + 2) == Some(&EXT4_MAGIC[..])) {
        return Tag::Superblock;
    }
    let mut found = Tag::Data;
    // ext4's smallest block.
    for block in data.chunks_exact(1024) {
        if block[..4] != JBD2_MAGIC {
            continue;
        }
        let kind = match block[4..8] {
            [0, 0, 0, 2] => Tag::JournalCommit,
            [0, 0, 0, 3 | 4] => Tag::JournalSuperblock,
            _ => Tag::JournalDescriptor,
        };
        found = found.max(kind);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_blocks_and_superblocks_are_known() {
        let mut block = vec![0; 8192];
        assert_eq!(tag(Role::Disk(0), 4096, Some(&block), false), Tag::Data);
        block[4096..4104].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2]);
        assert_eq!(tag(Role::Disk(0), 4096, Some(&block), false), Tag::JournalCommit);
        block[1080..1082].copy_from_slice(&EXT4_MAGIC);
        assert_eq!(tag(Role::Disk(0), 0, Some(&block), false), Tag::Superblock);
        assert_eq!(tag(Role::Log, 0, Some(&block), false), Tag::LogHeader);
        assert_eq!(tag(Role::Log, RECORDS_OFFSET, Some(&block), true), Tag::LogWrap);
    }
}
