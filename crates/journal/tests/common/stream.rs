//! Recorded guests, and what any disk would hold of them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use afterimage_block::{BlockError, Buffers, FlushKind, Operation, Sector};
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::Block;
use afterimage_trace::{EventKind, Layer, Op, Recording, Role};

use super::{differences, layouts, recovered, replayed, Served};

/// A change or flush that a guest asked for.
pub struct Step {
    pub op: Op,
    /// Steps that had been answered when it asked, and not when it asked for the one before.
    pub answered: Vec<usize>,
}

impl Step {
    /// The bytes that it changes.
    pub fn range(&self) -> Range<u64> {
        match &self.op {
            Op::Write { offset, data, .. } => *offset..offset + data.len() as u64,
            Op::Zero { offset, len, .. } => *offset..offset + len,
            Op::Flush => 0..0,
        }
    }
}

pub struct Stream {
    pub base: Vec<u8>,
    pub steps: Vec<Step>,
}

pub fn load(path: &Path) -> Stream {
    let recording = Recording::load(path).unwrap();
    let (id, target) = recording
        .of_layer(Layer::Guest)
        .find(|(_, t)| t.role == Role::Disk(0))
        .expect("a recording has its guest's disk");
    let mut base = vec![0; target.bytes as usize];
    target.base.read_at(&mut base, 0);
    let (mut steps, mut answered, mut open) = (Vec::new(), Vec::new(), HashMap::new());
    for event in &recording.events {
        match &event.kind {
            EventKind::Submit { target, id: request, op } if *target == id => {
                open.insert(*request, steps.len());
                steps.push(Step { op: op.clone(), answered: std::mem::take(&mut answered) });
            }
            EventKind::Complete { target, id: request, .. } if *target == id => {
                answered.extend(open.remove(request));
            }
            _ => {}
        }
    }
    Stream { base, steps }
}

pub fn recordings() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("AFTERIMAGE_RECORDING") {
        return std::env::split_paths(&path).collect();
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "afrec"))
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

pub fn send(served: &mut Served, op: &Op) {
    try_to_send(served, op).unwrap();
}

/// Whether it writes a journal's superblock.
pub fn moves_tail(op: &Op) -> bool {
    let Op::Write { data, .. } = op else { return false };
    let block: Option<&Block> = data[..].try_into().ok();
    block.is_some_and(|block| JournalSuperblock::parse(block).is_ok())
}

/// A mount reads the journal's superblock before it writes one; recordings have no reads.
pub fn read_first(served: &mut Served, op: &Op) {
    let Op::Write { offset, .. } = op else { return };
    if moves_tail(op) && served.disk().status().file_systems.iter().any(|f| f.mode == "waiting") {
        served.read_block(Sector(offset / 512));
    }
}

pub fn try_to_send(served: &mut Served, op: &Op) -> Result<(), BlockError> {
    read_first(served, op);
    match op {
        Op::Write { offset, data, .. } => served.lane().write(Sector(offset / 512), data),
        Op::Zero { offset, len, unmap, .. } => served.lane().request(
            Operation::WriteZeroes { unmap: *unmap, flushed: false },
            Sector(offset / 512),
            len / 512,
            Buffers::empty(),
        ),
        Op::Flush => served.lane().flush(FlushKind::Order),
    }
}

/// The same stream on any disk.
pub struct Plain {
    pub disk: Vec<u8>,
    /// Versions by block of the disk, committed since that block was last written, in a log that still holds them.
    logged: BTreeMap<u64, Box<Block>>,
    /// The same, whether or not the log still holds them. Once the guest has let go of a version without writing it home,
    /// nobody needs that block: it may hold any of them, or what it held before.
    floating: BTreeMap<u64, Vec<Box<Block>>>,
}

impl Plain {
    pub fn new(stream: &Stream) -> Self {
        Self { disk: stream.base.clone(), logged: BTreeMap::new(), floating: BTreeMap::new() }
    }

    pub fn apply(&mut self, op: &Op) {
        let range = match op {
            Op::Write { offset, data, .. } => {
                self.disk[*offset as usize..][..data.len()].copy_from_slice(data);
                *offset..offset + data.len() as u64
            }
            Op::Zero { offset, len, .. } => {
                self.disk[*offset as usize..][..*len as usize].fill(0);
                *offset..offset + len
            }
            Op::Flush => return,
        };
        for block in range.start / 4096..range.end.div_ceil(4096) {
            self.floating.remove(&block);
        }
        let in_journal = |l: &Layout| {
            l.journal.iter().any(|e| {
                let from = e.home.sector(l.start).0 * 512;
                from < range.end && range.start < from + u64::from(e.blocks) * 4096
            })
        };
        if layouts(&self.disk).iter().any(in_journal) {
            let (homes, _) = replayed(&self.disk);
            for (block, content) in &homes {
                if self.logged.get(block) != Some(content) {
                    self.floating.entry(*block).or_default().push(content.clone());
                }
            }
            self.logged = homes;
        }
    }

    /// Where `ours` is not as good as what the guest's own recovery makes of this disk. The ext4 superblock may differ: the
    /// kernel writes it directly, and recovery keeps its record of errors.
    pub fn different(&self, ours: &[u8]) -> Vec<u64> {
        let expected = recovered(self.disk.clone());
        let superblocks: Vec<u64> =
            layouts(&expected.disk).iter().map(|l| (l.start.0 * 512 + 1024) / 4096).collect();
        let mut different = differences(ours, &expected.disk);
        different.retain(|b| {
            let floats = || !expected.homes.contains_key(b) && self.floating.contains_key(b);
            let version = || self.floating[b].iter().any(|v| ours[*b as usize * 4096..][..4096] == v[..]);
            !(superblocks.contains(b) || floats() && version())
        });
        different
    }

    #[track_caller]
    pub fn assert_same(&self, ours: &[u8], what: &str, step: usize) {
        let different = self.different(ours);
        assert!(
            different.is_empty(),
            "{what} at step {step}: {} blocks differ: {different:?}",
            different.len()
        );
    }
}
