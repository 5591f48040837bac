//! The names: what directories say now, and what they are sure to say after a power cut.
//!
//! ```text
//!   create, rename, unlink ──► live tree, and operations (in order, volatile) ── fsync of the directory ──►
//!   durable tree ──► names.json
//! ```
//!
//! The outcomes of a power cut: the durable tree with any subset of the volatile operations applied, in order,
//! that leaves nothing without what it depends on (an entry in a directory that was never made; a rename of a
//! file that was never created). fsync of a *file* makes its content durable, not its name: POSIX promises no
//! more, though ext4 usually gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use serde::{Deserialize, Serialize};

use super::dice::Dice;

/// A node: a file, directory or symbolic link, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// The top directory, in every tree.
pub const ROOT: NodeId = NodeId(1);

/// Directories and what they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    directories: BTreeMap<NodeId, BTreeMap<OsString, NodeId>>,
}

/// One change of names.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new name for a node. `makes_directory` if the node is a directory made by this.
    Link {
        /// In which directory.
        directory: NodeId,
        /// Which name.
        name: OsString,
        /// For what.
        node: NodeId,
        /// Whether the node is a directory made by this change.
        makes_directory: bool,
    },
    /// A name goes.
    Unlink {
        /// From which directory.
        directory: NodeId,
        /// Which name.
        name: OsString,
        /// It named this.
        node: NodeId,
    },
    /// A name becomes another, replacing what that named.
    Rename {
        /// From which directory.
        from: NodeId,
        /// Which name.
        from_name: OsString,
        /// To which directory.
        to: NodeId,
        /// Which name there.
        to_name: OsString,
        /// It names this.
        node: NodeId,
        /// What the new name named before.
        replaced: Option<NodeId>,
    },
}

impl Change {
    fn directories(&self) -> Vec<NodeId> {
        match self {
            Change::Link { directory, .. } | Change::Unlink { directory, .. } => vec![*directory],
            Change::Rename { from, to, .. } => vec![*from, *to],
        }
    }

    /// The entries and nodes it is about: a later change that shares one depends on it.
    fn subjects(&self) -> (Vec<(NodeId, OsString)>, Vec<NodeId>) {
        match self {
            Change::Link { directory, name, node, .. } | Change::Unlink { directory, name, node } => {
                (vec![(*directory, name.clone())], vec![*node])
            }
            Change::Rename { from, from_name, to, to_name, node, replaced } => {
                let mut nodes = vec![*node];
                nodes.extend(*replaced);
                (vec![(*from, from_name.clone()), (*to, to_name.clone())], nodes)
            }
        }
    }

    fn depends_on(&self, earlier: &Change) -> bool {
        let (entries, nodes) = self.subjects();
        let (earlier_entries, earlier_nodes) = earlier.subjects();
        entries.iter().any(|entry| earlier_entries.contains(entry))
            || nodes.iter().any(|node| earlier_nodes.contains(node))
            || self.directories().iter().any(|directory| earlier_nodes.contains(directory))
            // A directory is removed only after what was in it has gone.
            || nodes.iter().any(|node| earlier.directories().contains(node))
    }
}

impl Tree {
    /// A tree with an empty top directory.
    pub fn new() -> Tree {
        Tree { directories: BTreeMap::from([(ROOT, BTreeMap::new())]) }
    }

    /// What a name names.
    pub fn lookup(&self, directory: NodeId, name: &OsStr) -> Option<NodeId> {
        self.directories.get(&directory)?.get(name).copied()
    }

    /// A directory's entries, in order of names; `None` if it is not a directory.
    pub fn entries(&self, directory: NodeId) -> Option<&BTreeMap<OsString, NodeId>> {
        self.directories.get(&directory)
    }

    /// How many names a node has.
    pub fn links(&self, node: NodeId) -> u32 {
        self.directories.values().flat_map(BTreeMap::values).filter(|named| **named == node).count() as u32
    }

    /// Every node that has a name, and its paths.
    pub fn paths(&self) -> BTreeMap<NodeId, Vec<String>> {
        let mut paths: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
        let mut stack = vec![(ROOT, String::new())];
        while let Some((directory, prefix)) = stack.pop() {
            for (name, node) in self.directories.get(&directory).into_iter().flatten() {
                let path = format!("{prefix}/{}", name.to_string_lossy());
                if self.directories.contains_key(node) {
                    stack.push((*node, path.clone()));
                }
                paths.entry(*node).or_default().push(path);
            }
        }
        paths
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Link { directory, name, node, makes_directory } => {
                if let Some(entries) = self.directories.get_mut(directory) {
                    entries.insert(name.clone(), *node);
                }
                if *makes_directory {
                    self.directories.entry(*node).or_default();
                }
            }
            Change::Unlink { directory, name, node } => {
                if let Some(entries) = self.directories.get_mut(directory) {
                    entries.remove(name);
                }
                // Only an empty directory is ever removed; a file has no entry here.
                self.directories.remove(node);
            }
            Change::Rename { from, from_name, to, to_name, node, replaced } => {
                if let Some(entries) = self.directories.get_mut(from) {
                    entries.remove(from_name);
                }
                if let Some(replaced) = replaced {
                    self.directories.remove(replaced);
                }
                if let Some(entries) = self.directories.get_mut(to) {
                    entries.insert(to_name.clone(), *node);
                }
            }
        }
    }

    /// Adds an entry while a stored tree is being read.
    pub fn restore_entry(&mut self, directory: NodeId, name: OsString, node: NodeId, is_directory: bool) {
        self.apply(&Change::Link { directory, name, node, makes_directory: is_directory });
    }
}

/// Both trees and what lies between them.
#[derive(Debug)]
pub struct Names {
    live: Tree,
    durable: Tree,
    volatile: Vec<Change>,
}

impl Names {
    /// Names as a fresh mount finds them.
    pub fn new(durable: Tree) -> Names {
        Names { live: durable.clone(), durable, volatile: Vec::new() }
    }

    /// What directories say now.
    pub fn live(&self) -> &Tree {
        &self.live
    }

    /// What they are sure to say after a cut.
    pub fn durable(&self) -> &Tree {
        &self.durable
    }

    /// Every node that has a name, now or after some power cut.
    pub fn referenced(&self) -> BTreeSet<NodeId> {
        let mut nodes: BTreeSet<NodeId> = self.live.paths().into_keys().collect();
        nodes.extend(self.durable.paths().into_keys());
        for change in &self.volatile {
            nodes.extend(change.subjects().1);
        }
        nodes
    }

    /// How many changes are volatile.
    pub fn volatile_count(&self) -> usize {
        self.volatile.len()
    }

    /// Makes a change, volatile for now.
    pub fn change(&mut self, change: Change) {
        self.live.apply(&change);
        self.volatile.push(change);
    }

    /// fsync of a directory: its changes, and those that they depend on, become durable.
    pub fn settle(&mut self, directory: NodeId) {
        let mut needed = vec![false; self.volatile.len()];
        for at in (0..self.volatile.len()).rev() {
            let change = &self.volatile[at];
            needed[at] = change.directories().contains(&directory)
                || (at + 1..self.volatile.len())
                    .any(|later| needed[later] && self.volatile[later].depends_on(change));
        }
        self.take(&needed);
    }

    /// Everything becomes durable.
    pub fn settle_all(&mut self) {
        self.take(&vec![true; self.volatile.len()]);
    }

    /// The power goes: a subset of the volatile changes survives. Returns how many survived and how many not.
    pub fn cut(&mut self, kept_per_mille: u64, dice: &mut Dice) -> (u64, u64) {
        let mut lost: BTreeSet<usize> = BTreeSet::new();
        let mut kept = Vec::new();
        for at in 0..self.volatile.len() {
            let possible = lost.iter().all(|earlier| !self.volatile[at].depends_on(&self.volatile[*earlier]));
            let keep = possible && dice.chance(kept_per_mille);
            if !keep {
                lost.insert(at);
            }
            kept.push(keep);
        }
        let total = kept.len() as u64;
        self.take(&kept);
        self.volatile.clear();
        self.live = self.durable.clone();
        (total - lost.len() as u64, lost.len() as u64)
    }

    fn take(&mut self, which: &[bool]) {
        let mut left = Vec::new();
        for (change, take) in std::mem::take(&mut self.volatile).into_iter().zip(which) {
            if *take {
                self.durable.apply(&change);
            } else {
                left.push(change);
            }
        }
        self.volatile = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(directory: NodeId, name: &str, node: u64, makes_directory: bool) -> Change {
        Change::Link { directory, name: name.into(), node: NodeId(node), makes_directory }
    }

    fn rename(from: &str, to: &str, node: u64, replaced: Option<u64>) -> Change {
        Change::Rename {
            from: ROOT,
            from_name: from.into(),
            to: ROOT,
            to_name: to.into(),
            node: NodeId(node),
            replaced: replaced.map(NodeId),
        }
    }

    #[test]
    fn a_rename_without_a_sync_of_its_directory_may_vanish() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let mut names = Names::new(Tree::new());
            names.change(link(ROOT, "file", 2, false));
            names.settle(ROOT);
            names.change(link(ROOT, "file.new", 3, false));
            names.change(rename("file.new", "file", 3, Some(2)));
            names.cut(500, &mut Dice::new(seed));
            let file = names.live().lookup(ROOT, OsStr::new("file"));
            assert!(
                file == Some(NodeId(2)) || file == Some(NodeId(3)),
                "the name itself must survive: {file:?}"
            );
            seen.insert((file, names.live().lookup(ROOT, OsStr::new("file.new"))));
        }
        // Nothing, only the creation, both.
        assert_eq!(seen.len(), 3, "{seen:?}");
    }

    #[test]
    fn nothing_survives_without_what_it_depends_on() {
        for seed in 0..200 {
            let mut names = Names::new(Tree::new());
            names.change(link(ROOT, "folder", 2, true));
            names.change(link(NodeId(2), "a", 3, false));
            names.change(link(NodeId(2), "b", 4, false));
            names.change(Change::Rename {
                from: NodeId(2),
                from_name: "a".into(),
                to: ROOT,
                to_name: "a".into(),
                node: NodeId(3),
                replaced: None,
            });
            names.cut(600, &mut Dice::new(seed));
            if names.live().lookup(ROOT, OsStr::new("folder")).is_none() {
                assert!(names.live().entries(NodeId(2)).is_none());
                assert!(names.live().lookup(ROOT, OsStr::new("a")).is_none());
            }
            let paths = names.live().paths();
            assert!(
                paths.get(&NodeId(3)).is_none_or(|p| p.len() == 1),
                "a rename is all or nothing: {paths:?}"
            );
        }
    }

    #[test]
    fn a_synced_directory_keeps_its_names_and_their_parents() {
        for seed in 0..50 {
            let mut names = Names::new(Tree::new());
            names.change(link(ROOT, "folder", 2, true));
            names.change(link(ROOT, "other", 5, false));
            names.change(link(NodeId(2), "a", 3, false));
            names.settle(NodeId(2));
            names.cut(0, &mut Dice::new(seed));
            assert_eq!(names.live().lookup(NodeId(2), OsStr::new("a")), Some(NodeId(3)));
            assert_eq!(names.live().lookup(ROOT, OsStr::new("folder")), Some(NodeId(2)));
            assert_eq!(names.live().lookup(ROOT, OsStr::new("other")), None);
        }
    }
}
