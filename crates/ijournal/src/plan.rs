//! Which i-transactions count. Rules alone: no storage.
//!
//! Of each inode the run with the largest sub-transaction id says what the inode is, and of which generation; of each name the
//! newest entry says what it names. Entries are gathered over all runs of a directory, for each run has those that its own fsync needed.

use std::collections::{BTreeMap, HashMap};

use afterimage_format::ijournal::{Record, Run, KIND_DIRECTORY};
use afterimage_journal::Tid;

use crate::mutation::Mistake;

/// The newest run of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub(crate) sub_id: u64,
    pub(crate) generation: u32,
    pub(crate) directory: bool,
    /// The on-disk inode.
    pub(crate) inode: Vec<u8>,
    /// External extent blocks: home, and header and entries.
    pub(crate) nodes: HashMap<u64, Vec<u8>>,
}

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) sub_id: u64,
    pub(crate) ino: u32,
    pub(crate) generation: u32,
    pub(crate) file_type: u8,
}

/// A directory's inode number and generation, and a name.
pub(crate) type Name = (u32, u32, Vec<u8>);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) inodes: BTreeMap<u32, Newest>,
    pub(crate) entries: BTreeMap<Name, Named>,
    /// The newest transaction of any run.
    pub(crate) newest_tid: Option<Tid>,
}

impl Plan {
    /// Takes a run that is whole and not committed.
    pub(crate) fn take(&mut self, run: &Run<'_>, mistake: Mistake) {
        let header = run.header;
        let (ino, sub_id) = (header.ino.get(), header.sub_id.get());
        let (generation, tid) = (header.generation.get(), Tid(header.tid.get()));
        if self.newest_tid.is_none_or(|newest| tid.is_after(newest)) {
            self.newest_tid = Some(tid);
        }
        let directory = header.kind.get() == KIND_DIRECTORY;
        if directory && mistake == Mistake::DirectorySkipped {
            return;
        }
        let newer = |than: u64| sub_id > than || mistake == Mistake::OrderDropped;
        let mut nodes = HashMap::new();
        for record in run.records() {
            match record {
                Record::Inode(_) => {}
                Record::ExtentBlock(home, node) => {
                    nodes.insert(home, node.to_vec());
                }
                Record::Entry(entry, name) => {
                    let named = Named {
                        sub_id,
                        ino: entry.ino.get(),
                        generation: entry.generation.get(),
                        file_type: entry.file_type,
                    };
                    let place = (ino, generation, name.to_vec());
                    if self.entries.get(&place).is_none_or(|before| newer(before.sub_id)) {
                        self.entries.insert(place, named);
                    }
                }
            }
        }
        if self.inodes.get(&ino).is_none_or(|before| newer(before.sub_id)) {
            let inode = run.inode().to_vec();
            self.inodes.insert(ino, Newest { sub_id, generation, directory, inode, nodes });
        }
    }

    /// The entries of a directory.
    pub(crate) fn entries_of(&self, ino: u32, generation: u32) -> impl Iterator<Item = (&[u8], Named)> {
        let range = (ino, generation, Vec::new())..;
        let here = self.entries.range(range).take_while(move |((i, g, _), _)| (*i, *g) == (ino, generation));
        here.map(|((_, _, name), named)| (name.as_slice(), *named))
    }
}
