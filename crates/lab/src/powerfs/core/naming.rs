//! Operations on names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;

use super::{errno, Attributes, Core, Node, NodeKind};
use crate::powerfs::content::Content;
use crate::powerfs::names::{Change, NodeId, ROOT};

impl Core {
    /// fsync of a directory: its names are durable.
    pub fn sync_directory(&mut self, id: NodeId) -> io::Result<bool> {
        self.node(id)?;
        let (_, due) = self.count_operation();
        self.names_synced += 1;
        self.names.settle(id);
        self.collect()?;
        self.save()?;
        Ok(due)
    }

    /// What a name names.
    pub fn lookup(&mut self, directory: NodeId, name: &OsStr) -> io::Result<NodeId> {
        self.node(directory)?;
        let id = self.names.live().lookup(directory, name).ok_or_else(|| errno(libc::ENOENT))?;
        self.node_mut(id)?.lookups += 1;
        Ok(id)
    }

    /// Makes a node with a name. Returns it, and whether the armed cut is due.
    pub fn create(
        &mut self,
        directory: NodeId,
        name: &OsStr,
        kind: NodeKind,
        attributes: Attributes,
    ) -> io::Result<(NodeId, bool)> {
        self.node(directory)?;
        if name.to_str().is_none() {
            return Err(errno(libc::EINVAL));
        }
        if self.names.live().lookup(directory, name).is_some() {
            return Err(errno(libc::EEXIST));
        }
        let object = self.next_object;
        self.next_object += 1;
        let content = match kind {
            NodeKind::File => Some(Content::open(self.object_file(object)?)?),
            _ => None,
        };
        let id = NodeId(self.next_node);
        self.next_node += 1;
        let makes_directory = kind == NodeKind::Directory;
        let mut node = Node::new(kind, attributes, object, content);
        node.lookups = 1;
        self.nodes.insert(id, node);
        let (_, due) = self.count_operation();
        self.names.change(Change::Link { directory, name: name.to_owned(), node: id, makes_directory });
        Ok((id, due))
    }

    /// Another name for a file.
    pub fn link(&mut self, id: NodeId, directory: NodeId, name: &OsStr) -> io::Result<bool> {
        self.node(directory)?;
        if self.names.live().lookup(directory, name).is_some() {
            return Err(errno(libc::EEXIST));
        }
        self.node_mut(id)?.lookups += 1;
        let (_, due) = self.count_operation();
        let change = Change::Link { directory, name: name.to_owned(), node: id, makes_directory: false };
        self.names.change(change);
        Ok(due)
    }

    /// Takes a name away. `directory_wanted`: rmdir, else unlink.
    pub fn unlink(&mut self, directory: NodeId, name: &OsStr, directory_wanted: bool) -> io::Result<bool> {
        self.node(directory)?;
        let id = self.names.live().lookup(directory, name).ok_or_else(|| errno(libc::ENOENT))?;
        match (directory_wanted, self.names.live().entries(id)) {
            (true, None) => return Err(errno(libc::ENOTDIR)),
            (true, Some(entries)) if !entries.is_empty() => return Err(errno(libc::ENOTEMPTY)),
            (false, Some(_)) => return Err(errno(libc::EISDIR)),
            _ => {}
        }
        let (_, due) = self.count_operation();
        self.names.change(Change::Unlink { directory, name: name.to_owned(), node: id });
        Ok(due)
    }

    /// A name becomes another.
    pub fn rename(
        &mut self,
        from: NodeId,
        from_name: &OsStr,
        to: NodeId,
        to_name: &OsStr,
        replace: bool,
    ) -> io::Result<bool> {
        self.node(from)?;
        self.node(to)?;
        if to_name.to_str().is_none() {
            return Err(errno(libc::EINVAL));
        }
        let node = self.names.live().lookup(from, from_name).ok_or_else(|| errno(libc::ENOENT))?;
        let replaced = self.names.live().lookup(to, to_name);
        match replaced {
            Some(_) if !replace => return Err(errno(libc::EEXIST)),
            Some(other) if other == node => return Ok(false),
            Some(other) if self.names.live().entries(other).is_some_and(|e| !e.is_empty()) => {
                return Err(errno(libc::ENOTEMPTY));
            }
            _ => {}
        }
        let (_, due) = self.count_operation();
        self.names.change(Change::Rename {
            from,
            from_name: from_name.to_owned(),
            to,
            to_name: to_name.to_owned(),
            node,
            replaced,
        });
        Ok(due)
    }

    /// The kernel lets go of a node.
    pub fn forget(&mut self, id: NodeId, count: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups == 0 && self.powered {
                // Removing an object file can fail; then the next mount removes it.
                let _ = self.collect();
            }
        }
    }

    /// Drops the nodes that nobody holds and that no name leads to, now or after a cut.
    pub(super) fn collect(&mut self) -> io::Result<()> {
        let mut wanted: BTreeSet<NodeId> = self.names.referenced();
        wanted.insert(ROOT);
        let gone: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(id, node)| node.lookups == 0 && !wanted.contains(id))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(node) = self.nodes.remove(&id) {
                if node.content.is_some() {
                    self.removed.add(&node.counters);
                    fs::remove_file(self.object_path(node.object))?;
                }
            }
        }
        Ok(())
    }
}
