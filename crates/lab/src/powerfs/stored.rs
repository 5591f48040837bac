//! `names.json`: the durable tree, so that the next mount of a backing folder finds it.
//!
//! Written beside and renamed over: a killed file system leaves the old one or the new one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::core::{Node, NodeKind};
use super::extended::Values;
use super::names::{NodeId, Tree, ROOT};

const FILE: &str = "names.json";

/// What a node is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum StoredKind {
    File,
    Directory,
    Symlink { target: String },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredNode {
    pub id: u64,
    #[serde(flatten)]
    pub kind: StoredKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    #[serde(default)]
    pub mtime_ns: u64,
    pub object: u64,
    /// Extended attributes.
    #[serde(default)]
    pub extended: Values,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredEntry {
    pub directory: u64,
    pub name: String,
    pub node: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StoredNames {
    pub nodes: Vec<StoredNode>,
    /// Parents before children.
    pub entries: Vec<StoredEntry>,
}

impl StoredNames {
    pub(super) fn new(tree: &Tree, nodes: &BTreeMap<NodeId, Node>) -> StoredNames {
        let mut stored = StoredNames::default();
        let mut seen = std::collections::BTreeSet::from([ROOT]);
        let mut queue = std::collections::VecDeque::from([ROOT]);
        while let Some(directory) = queue.pop_front() {
            for (name, id) in tree.entries(directory).into_iter().flatten() {
                stored.entries.push(StoredEntry {
                    directory: directory.0,
                    name: name.to_string_lossy().into_owned(),
                    node: id.0,
                });
                if !seen.insert(*id) {
                    continue;
                }
                let Some(node) = nodes.get(id) else { continue };
                let kind = match &node.kind {
                    NodeKind::File => StoredKind::File,
                    NodeKind::Directory => {
                        queue.push_back(*id);
                        StoredKind::Directory
                    }
                    NodeKind::Symlink(target) => {
                        StoredKind::Symlink { target: target.to_string_lossy().into_owned() }
                    }
                };
                let attributes = &node.attributes;
                stored.nodes.push(StoredNode {
                    id: id.0,
                    kind,
                    mode: attributes.mode,
                    uid: attributes.uid,
                    gid: attributes.gid,
                    mtime_ns: attributes
                        .durable_mtime
                        .duration_since(std::time::UNIX_EPOCH)
                        .map_or(0, |since| since.as_nanos() as u64),
                    object: node.object,
                    extended: node.extended.durable().clone(),
                });
            }
        }
        stored
    }

    pub(super) fn read(backing: &Path) -> io::Result<StoredNames> {
        match fs::read(backing.join(FILE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoredNames::default()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write(&self, backing: &Path) -> io::Result<()> {
        let fresh = backing.join("names.json.new");
        fs::write(&fresh, serde_json::to_vec(self)?)?;
        fs::rename(fresh, backing.join(FILE))
    }
}
