//! The file system itself, without FUSE and without time: nodes, names, faults, power.
//!
//! The outcomes of [`Core::cut`]: see [`super::content`] for bytes and [`super::names`] for names. A node that
//! no surviving name leads to is gone with its content. Numbers stay, as a disk's inode numbers do; what a
//! program or the kernel still holds of the time before (open files, cached pages) is told apart by the epoch,
//! which is every node's generation and every open file's handle, and answers ESTALE. The time of last change is
//! durable only after an fsync: fdatasync does not make it so, on this file system as on ext4; nor extended attributes
//! ([`super::extended`]).

mod naming;
mod power;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::content::{Content, CutTally, PAGE_BYTES, SECTOR_BYTES};
use super::counters::{Counted, FileCounters};
use super::extended::Extended;
use super::names::{Names, NodeId, Tree, ROOT};

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link and its target.
    Symlink(PathBuf),
}

/// A node's attributes. But for the time of last change they are not part of the crash model: a cut keeps them.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: SystemTime,
    /// Last change of content.
    pub mtime: SystemTime,
    /// Last change of attributes.
    pub ctime: SystemTime,
    /// The time of last change that a cut can not take.
    pub durable_mtime: SystemTime,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Its attributes.
    pub attributes: Attributes,
    /// The name of its object file; its place on the modelled device.
    pub object: u64,
    /// Its content, if it is a file.
    pub content: Option<Content>,
    /// Its extended attributes.
    pub extended: Extended,
    /// How often the kernel holds it.
    pub lookups: u64,
    counters: FileCounters,
}

/// What is to fail, on request.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Faults {
    /// This many writes fail with EIO.
    #[serde(default)]
    pub write_errors: u64,
    /// This many syncs fail with EIO; what they should have made durable stays volatile.
    #[serde(default)]
    pub sync_errors: u64,
    /// After this many bytes of newly allocated space, writes fail with ENOSPC.
    #[serde(default)]
    pub space_left_bytes: Option<u64>,
    /// Only files whose path ends like this; all if absent.
    #[serde(default)]
    pub path_suffix: Option<String>,
}

/// What a cut did.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct CutReport {
    /// Sectors kept, lost and torn, over all files.
    pub content: CutTally,
    /// Volatile changes of names that got through.
    pub names_kept: u64,
    /// And that did not.
    pub names_lost: u64,
    /// Of 1000 volatile things, how many this cut kept on average (drawn anew for each cut unless given).
    pub kept_per_mille: u64,
}

/// The file system.
#[derive(Debug)]
pub struct Core {
    backing: PathBuf,
    names: Names,
    nodes: BTreeMap<NodeId, Node>,
    next_node: u64,
    next_object: u64,
    next_sequence: u64,
    powered: bool,
    epoch: u64,
    cache_bytes_max: u64,
    /// What a cut leaves whole.
    pub sector_bytes: u64,
    operations: u64,
    cut_after_operations: Option<u64>,
    /// What is to fail.
    pub faults: Faults,
    names_synced: u64,
    /// Of files that are gone: what they cost was paid all the same.
    removed: FileCounters,
}

/// The error of everything while the power is off.
fn no_power() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl Core {
    /// Opens a backing folder: empty, or left by an earlier mount. `cache_bytes_max` bounds what can be
    /// volatile at once, as a drive's cache does: over it, the oldest settles.
    pub fn open(backing: &Path, cache_bytes_max: u64) -> io::Result<Core> {
        fs::create_dir_all(backing.join("objects"))?;
        let mut core = Core {
            backing: backing.to_path_buf(),
            names: Names::new(Tree::new()),
            nodes: BTreeMap::new(),
            next_node: ROOT.0 + 1,
            next_object: 1,
            next_sequence: 1,
            powered: true,
            epoch: 0,
            cache_bytes_max,
            sector_bytes: SECTOR_BYTES,
            operations: 0,
            cut_after_operations: None,
            faults: Faults::default(),
            names_synced: 0,
            removed: FileCounters::default(),
        };
        core.load()?;
        Ok(core)
    }

    /// Counts up with every cut: a reply that was waiting for its time when the power went is stale.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether there is power.
    pub fn powered(&self) -> bool {
        self.powered
    }

    /// Operations since the start that reached storage: writes, zeroes, lengths, syncs, changes of names.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Bytes that a cut could take.
    pub fn volatile_bytes(&self) -> u64 {
        self.nodes.values().filter_map(|n| n.content.as_ref()).map(Content::volatile_bytes).sum()
    }

    /// Changes of names that a cut could take.
    pub fn volatile_names(&self) -> u64 {
        self.names.volatile_count() as u64
    }

    /// The power goes by itself when this many more operations have arrived; `None` disarms.
    pub fn cut_after_operations(&mut self, count: Option<u64>) {
        self.cut_after_operations = count;
    }

    /// The folder that holds everything.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    fn check_power(&self) -> io::Result<()> {
        if self.powered {
            Ok(())
        } else {
            Err(no_power())
        }
    }

    /// A node, if there is power and it is of this mount.
    pub fn node(&self, id: NodeId) -> io::Result<&Node> {
        self.check_power()?;
        self.nodes.get(&id).ok_or_else(|| errno(libc::ESTALE))
    }

    /// A node to change.
    pub fn node_mut(&mut self, id: NodeId) -> io::Result<&mut Node> {
        self.check_power()?;
        self.nodes.get_mut(&id).ok_or_else(|| errno(libc::ESTALE))
    }

    /// The names as they are now.
    pub fn tree(&self) -> &Tree {
        self.names.live()
    }

    /// Counts an operation. Returns whether the armed cut is due now; the operation has arrived all the same.
    fn count_operation(&mut self) -> (u64, bool) {
        self.operations += 1;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let due = match &mut self.cut_after_operations {
            Some(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            None => false,
        };
        if due {
            self.cut_after_operations = None;
        }
        (sequence, due)
    }

    fn fault_applies(&self, id: NodeId) -> bool {
        match &self.faults.path_suffix {
            None => true,
            Some(suffix) => self
                .names
                .live()
                .paths()
                .get(&id)
                .is_some_and(|paths| paths.iter().any(|p| p.ends_with(suffix))),
        }
    }

    /// Takes space for the pages of a range that have none yet.
    fn take_space(&mut self, id: NodeId, offset: u64, length: u64) -> io::Result<()> {
        let Some(left) = self.faults.space_left_bytes.filter(|_| self.fault_applies(id)) else {
            return Ok(());
        };
        let node = self.node(id)?;
        let Some(content) = &node.content else { return Ok(()) };
        let mut needed = 0;
        for index in offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES) {
            if !content.is_allocated(index)? {
                needed += PAGE_BYTES;
            }
        }
        if needed > left {
            return Err(errno(libc::ENOSPC));
        }
        self.faults.space_left_bytes = Some(left - needed);
        Ok(())
    }

    /// A write arrives. Returns its sequence number, and whether the armed cut is due.
    pub fn write(&mut self, id: NodeId, offset: u64, data: &[u8]) -> io::Result<(u64, bool)> {
        self.node(id)?;
        if self.faults.write_errors > 0 && self.fault_applies(id) {
            self.faults.write_errors -= 1;
            return Err(errno(libc::EIO));
        }
        self.take_space(id, offset, data.len() as u64)?;
        let (sequence, due) = self.count_operation();
        let node = self.node_mut(id)?;
        let content = node.content.as_mut().ok_or_else(|| errno(libc::EISDIR))?;
        content.write(sequence, offset, data)?;
        node.attributes.mtime = SystemTime::now();
        node.counters.count(Counted::Write, data.len() as u64);
        self.bound_volatile()?;
        Ok((sequence, due))
    }

    /// A hole is punched or a range is zeroed.
    pub fn zero(&mut self, id: NodeId, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        self.node(id)?;
        let (sequence, due) = self.count_operation();
        let node = self.node_mut(id)?;
        let content = node.content.as_mut().ok_or_else(|| errno(libc::EISDIR))?;
        content.zero(sequence, offset, length)?;
        node.counters.count(Counted::Zero, length);
        Ok((sequence, due))
    }

    /// The length changes.
    pub fn set_length(&mut self, id: NodeId, length: u64) -> io::Result<(u64, bool)> {
        self.node(id)?;
        let (sequence, due) = self.count_operation();
        let node = self.node_mut(id)?;
        let content = node.content.as_mut().ok_or_else(|| errno(libc::EISDIR))?;
        content.set_length(sequence, length)?;
        node.attributes.mtime = SystemTime::now();
        Ok((sequence, due))
    }

    /// Space is reserved: nothing changes but the length, if it grows.
    pub fn allocate(&mut self, id: NodeId, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        self.take_space(id, offset, length)?;
        let end = offset + length;
        let grows = self.node(id)?.content.as_ref().is_some_and(|c| c.length() < end);
        if grows && !keep_size {
            self.set_length(id, end)?;
        }
        Ok(())
    }

    /// Reads.
    pub fn read(&mut self, id: NodeId, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let node = self.node_mut(id)?;
        let content = node.content.as_ref().ok_or_else(|| errno(libc::EISDIR))?;
        let data = content.read(offset, size)?;
        node.counters.count(Counted::Read, data.len() as u64);
        Ok(data)
    }

    /// A sync of a file arrives: everything that has arrived up to now is what it covers. Call
    /// [`Core::finish_sync`] when its time has come.
    pub fn begin_sync(&mut self, id: NodeId) -> io::Result<(u64, bool)> {
        self.node(id)?;
        let (sequence, due) = self.count_operation();
        self.node_mut(id)?.counters.count(Counted::Sync, 0);
        if self.faults.sync_errors > 0 && self.fault_applies(id) {
            self.faults.sync_errors -= 1;
            return Err(errno(libc::EIO));
        }
        Ok((sequence, due))
    }

    /// An extended attribute is set, or taken away.
    pub fn set_extended(&mut self, id: NodeId, name: &str, value: Option<&[u8]>) -> io::Result<bool> {
        self.node(id)?;
        let (sequence, due) = self.count_operation();
        let node = self.node_mut(id)?;
        node.extended.change(sequence, name, value);
        node.attributes.ctime = SystemTime::now();
        Ok(due)
    }

    /// What the sync covers is durable now; with `attributes` (fsync, not fdatasync) the time of last change and the
    /// extended attributes too.
    pub fn finish_sync(&mut self, id: NodeId, sequence: u64, attributes: bool) -> io::Result<()> {
        let node = self.node_mut(id)?;
        let changed = attributes && node.attributes.durable_mtime != node.attributes.mtime;
        if changed {
            node.attributes.durable_mtime = node.attributes.mtime;
        }
        if (attributes && node.extended.settle(sequence)) || changed {
            self.save()?;
        }
        match self.node_mut(id)?.content.as_mut() {
            Some(content) => content.settle(sequence),
            None => Ok(()),
        }
    }

    /// One write that was asked to be durable by itself (O_DSYNC) is durable now.
    pub fn finish_durable_write(&mut self, id: NodeId, sequence: u64) -> io::Result<()> {
        match self.node_mut(id)?.content.as_mut() {
            Some(content) => content.settle_single(sequence),
            None => Ok(()),
        }
    }

    fn bound_volatile(&mut self) -> io::Result<()> {
        while self.volatile_bytes() > self.cache_bytes_max {
            let oldest = self
                .nodes
                .values_mut()
                .filter_map(|node| node.content.as_mut())
                .filter_map(|content| Some((content.oldest()?, content)))
                .min_by_key(|(sequence, _)| *sequence);
            match oldest {
                Some((sequence, content)) => content.settle(sequence)?,
                None => break,
            }
        }
        Ok(())
    }

    /// The counters of every file that has a name, by path; the sum of those that have none any more as `(removed)`.
    pub fn counters(&self) -> BTreeMap<String, FileCounters> {
        let mut all = BTreeMap::new();
        let mut removed = self.removed;
        let paths = self.names.live().paths();
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.content.is_some()) {
            match paths.get(id).and_then(|paths| paths.iter().next()) {
                Some(path) => drop(all.insert(path.clone(), node.counters)),
                // Unlinked, and still held by somebody.
                None => removed.add(&node.counters),
            }
        }
        if removed != FileCounters::default() {
            all.insert("(removed)".to_owned(), removed);
        }
        all
    }

    /// How many directory syncs there were.
    pub fn directory_syncs(&self) -> u64 {
        self.names_synced
    }

    /// Sets every counter to zero.
    pub fn reset_counters(&mut self) {
        for node in self.nodes.values_mut() {
            node.counters = FileCounters::default();
        }
        self.removed = FileCounters::default();
        self.names_synced = 0;
    }
}

impl Attributes {
    /// Attributes of something that was made now.
    pub fn new(mode: u32, uid: u32, gid: u32) -> Attributes {
        let now = SystemTime::now();
        Attributes { mode: mode & 0o7777, uid, gid, atime: now, mtime: now, ctime: now, durable_mtime: now }
    }
}

impl Node {
    fn new(kind: NodeKind, attributes: Attributes, object: u64, content: Option<Content>) -> Node {
        Node {
            kind,
            attributes,
            object,
            content,
            extended: Extended::default(),
            lookups: 0,
            counters: FileCounters::default(),
        }
    }
}
