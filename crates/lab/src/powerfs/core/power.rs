//! What is durable, what a cut leaves of the rest, and how a mount finds it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::{errno, Attributes, Core, CutReport, Faults, Node, NodeKind};
use crate::powerfs::content::{Content, Lottery};
use crate::powerfs::dice::Dice;
use crate::powerfs::extended::Extended;
use crate::powerfs::names::{Names, NodeId, Tree, ROOT};
use crate::powerfs::stored::{StoredKind, StoredNames};

impl Core {
    pub(super) fn load(&mut self) -> io::Result<()> {
        let stored = StoredNames::read(&self.backing)?;
        // The kernel's hold on a number lasts beyond a cut, and it lets go of it later.
        let held: BTreeMap<NodeId, u64> =
            std::mem::take(&mut self.nodes).into_iter().map(|(id, node)| (id, node.lookups)).collect();
        let root = Attributes::new(0o755, 0, 0);
        self.nodes.insert(ROOT, Node::new(NodeKind::Directory, root, 0, None));
        let mut tree = Tree::new();
        let mut objects = BTreeSet::new();
        for node in &stored.nodes {
            let id = NodeId(node.id);
            self.next_node = self.next_node.max(node.id + 1);
            let mut attributes = Attributes::new(node.mode, node.uid, node.gid);
            attributes.mtime = SystemTime::UNIX_EPOCH + Duration::from_nanos(node.mtime_ns);
            attributes.durable_mtime = attributes.mtime;
            let (kind, content) = match &node.kind {
                StoredKind::Directory => (NodeKind::Directory, None),
                StoredKind::Symlink { target } => (NodeKind::Symlink(PathBuf::from(target)), None),
                StoredKind::File => {
                    objects.insert(node.object);
                    (NodeKind::File, Some(Content::open(self.object_file(node.object)?)?))
                }
            };
            self.next_object = self.next_object.max(node.object + 1);
            let extended = Extended::new(node.extended.clone());
            let mut node = Node::new(kind, attributes, node.object, content);
            node.extended = extended;
            node.lookups = held.get(&id).copied().unwrap_or(0);
            self.nodes.insert(id, node);
        }
        for entry in &stored.entries {
            let node = NodeId(entry.node);
            let is_directory = self.nodes.get(&node).is_some_and(|n| n.kind == NodeKind::Directory);
            tree.restore_entry(NodeId(entry.directory), OsString::from(&entry.name), node, is_directory);
        }
        self.names = Names::new(tree);
        for entry in fs::read_dir(self.backing.join("objects"))? {
            let path = entry?.path();
            let number = path.file_name().and_then(OsStr::to_str).and_then(|n| n.parse().ok());
            if number.is_none_or(|number: u64| !objects.contains(&number)) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    pub(super) fn object_path(&self, object: u64) -> PathBuf {
        self.backing.join("objects").join(object.to_string())
    }

    pub(super) fn object_file(&self, object: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.object_path(object))
    }

    pub(super) fn save(&self) -> io::Result<()> {
        StoredNames::new(self.names.durable(), &self.nodes).write(&self.backing)
    }

    /// Everything becomes durable: an orderly end.
    pub fn settle_everything(&mut self) -> io::Result<()> {
        self.check_power()?;
        for node in self.nodes.values_mut() {
            if let Some(content) = &mut node.content {
                content.settle(u64::MAX)?;
            }
            node.attributes.durable_mtime = node.attributes.mtime;
            node.extended.settle(u64::MAX);
        }
        self.names.settle_all();
        self.save()
    }

    /// The power goes. `kept_per_mille`: see [`Lottery`]; drawn from the dice if absent.
    pub fn cut(
        &mut self,
        seed: u64,
        kept_per_mille: Option<u64>,
        torn_per_mille: u64,
    ) -> io::Result<CutReport> {
        self.check_power()?;
        self.powered = false;
        self.epoch += 1;
        self.cut_after_operations = None;
        let mut dice = Dice::new(seed);
        let drawn = dice.below(1001);
        let kept_per_mille = kept_per_mille.unwrap_or(drawn);
        let lottery = Lottery { kept_per_mille, torn_per_mille, sector_bytes: self.sector_bytes };
        let mut report = CutReport { kept_per_mille: lottery.kept_per_mille, ..CutReport::default() };
        for node in self.nodes.values_mut() {
            if dice.chance(lottery.kept_per_mille) {
                node.attributes.durable_mtime = node.attributes.mtime;
            }
            node.extended.cut(lottery.kept_per_mille, &mut dice);
            if let Some(content) = &mut node.content {
                let tally = content.cut(lottery, &mut dice)?;
                report.content.sectors_kept += tally.sectors_kept;
                report.content.sectors_lost += tally.sectors_lost;
                report.content.sectors_torn += tally.sectors_torn;
            }
        }
        (report.names_kept, report.names_lost) = self.names.cut(lottery.kept_per_mille, &mut dice);
        self.save()?;
        Ok(report)
    }

    /// The power is back: what a fresh mount finds. Faults are forgotten, counters start anew.
    pub fn restore(&mut self) -> io::Result<()> {
        if self.powered {
            return Err(errno(libc::EALREADY));
        }
        self.faults = Faults::default();
        self.load()?;
        self.powered = true;
        Ok(())
    }
}
