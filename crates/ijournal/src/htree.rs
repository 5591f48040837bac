//! A directory's index (`Documentation/filesystems/ext4/directory.rst`, hash trees): an entry goes into the leaf that its hash belongs to,
//! and a full leaf is split. Where the index is full, too, the directory is flattened: every block becomes a leaf, and any ext4 reads it as
//! one without an index; `e2fsck -fD` makes another.

use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{crc32c, put16, put32, u16_at, u32_at};
use crate::entries::{insert, put_entry, put_free, room, slots, Added};
use crate::error::{corrupt, Error};
use crate::groups::Groups;
use crate::hash::hash;
use crate::image::{Block, Image};
use crate::leaves::Leaves;
use crate::superblock::Geometry;

/// `struct dx_root_info`, behind `.` and `..`.
const INFO: usize = 24;
const INFO_BYTES: usize = 8;
/// Where entries begin, in the root and elsewhere. The first has no hash, but how many there are and may be.
const ROOT_AT: usize = INFO + INFO_BYTES;
const NODE_AT: usize = 8;
const ENTRY: usize = 8;
/// `dx_entry.block` is a logical block in its lower 28 bits.
const LOGICAL: u32 = 0x0fff_ffff;
/// Three with LARGEDIR.
const LEVELS_MAX: u8 = 3;

/// A node on the way: its logical block, where entries begin, and which of them leads on.
struct Step {
    logical: usize,
    at: usize,
    chosen: usize,
}

fn entry(node: &Block, at: usize, i: usize) -> (u32, usize) {
    (u32_at(node, at + i * ENTRY), (u32_at(node, at + i * ENTRY + 4) & LOGICAL) as usize)
}

/// How many entries there may be, and are.
fn counts(node: &Block, at: usize) -> Result<(usize, usize), Error> {
    let (limit, count) = (usize::from(u16_at(node, at)), usize::from(u16_at(node, at + 2)));
    if count == 0 || count > limit || at + limit * ENTRY > BLOCK_BYTES {
        return corrupt(format!("a directory's index has {count} entries of {limit}"));
    }
    Ok((limit, count))
}

/// Kind of hash, and levels below the root.
fn index(leaves: &Leaves, image: &mut Image<'_>) -> Result<(u8, u8), Error> {
    let root = image.get(leaves.home(0)?)?;
    let (kind, length, levels) = (root[INFO + 4], root[INFO + 5], root[INFO + 6]);
    if usize::from(length) != INFO_BYTES || levels > LEVELS_MAX || u32_at(&root[..], INFO) != 0 {
        return corrupt(format!("directory {}'s index is damaged", leaves.ino));
    }
    Ok((kind, levels))
}

/// A node's checksum, in `struct dx_tail` behind the room for entries.
fn seal_node(leaves: &Leaves, node: &mut Block, at: usize) -> Result<(), Error> {
    let Some(seed) = leaves.seed else { return Ok(()) };
    let (limit, count) = counts(node, at)?;
    let tail = at + limit * ENTRY;
    if tail + 8 > BLOCK_BYTES {
        return corrupt("a directory's index has no room for its checksum");
    }
    let sum = crc32c(crc32c(seed, &node[..at + count * ENTRY]), &node[tail..tail + 4]);
    put32(node, tail + 4, crc32c(sum, &[0; 4]));
    Ok(())
}

/// The way to the leaf of a hash.
fn way(leaves: &Leaves, image: &mut Image<'_>, levels: u8, hash: u32) -> Result<(Vec<Step>, usize), Error> {
    let (mut way, mut logical, mut at) = (Vec::new(), 0, ROOT_AT);
    for _ in 0..=levels {
        let node = image.get(leaves.home(logical)?)?;
        let (_, count) = counts(&node, at)?;
        let chosen = (1..count).take_while(|&i| entry(&node, at, i).0 <= hash).last().unwrap_or(0);
        way.push(Step { logical, at, chosen });
        (logical, at) = (entry(&node, at, chosen).1, NODE_AT);
    }
    Ok((way, logical))
}

/// Adds an entry; `false`: the index is full, or of a kind that is not known.
pub(crate) fn add(
    leaves: &mut Leaves,
    image: &mut Image<'_>,
    geometry: &Geometry,
    groups: &mut Groups<'_>,
    added: &Added,
) -> Result<bool, Error> {
    let (kind, levels) = index(leaves, image)?;
    let hash_of = |name: &[u8]| hash(kind, geometry.unsigned_hash, geometry.hash_seed, name);
    let Some(wanted) = hash_of(&added.name) else { return Ok(false) };
    let (way, leaf) = way(leaves, image, levels, wanted)?;
    let (home, end) = (leaves.home(leaf)?, leaves.end());
    let mut block = image.get(home)?;
    if insert(&mut block, end, added)? {
        image.put(home, block)?;
        leaves.seal(image, home)?;
        return Ok(true);
    }
    let Some(step) = way.last() else { return Ok(false) };
    let node_home = leaves.home(step.logical)?;
    let mut node = image.get(node_home)?;
    let (limit, count) = counts(&node, step.at)?;
    if count == limit || leaves.homes.len() > LOGICAL as usize {
        return Ok(false);
    }
    let Some((at, upper, lower)) = halves(&block, end, &hash_of)? else { return Ok(false) };
    let split = upper[0].0;
    // The lowest bit: entries of this hash are in the leaf before, too.
    let marked = split | u32::from(at == split);

    let fresh = leaves.append(image, groups, home)?;
    let logical = (leaves.homes.len() - 1) as u32;
    let into = if wanted >= split { fresh } else { home };
    for (home, part) in [(home, lower), (fresh, upper)] {
        let mut leaf = Box::new([0; BLOCK_BYTES]);
        put_free(&mut leaf, 0, end);
        for (_, entry) in part {
            if !insert(&mut leaf, end, &entry)? {
                return corrupt("half of a leaf does not fit into one");
            }
        }
        if home == into && !insert(&mut leaf, end, added)? {
            return corrupt("a leaf has no room when it was split");
        }
        image.put(home, leaf)?;
        leaves.seal(image, home)?;
    }
    let place = step.at + (step.chosen + 1) * ENTRY;
    node.copy_within(place..step.at + count * ENTRY, place + ENTRY);
    put32(&mut node[..], place, marked);
    put32(&mut node[..], place + 4, logical);
    put16(&mut node[..], step.at + 2, count as u16 + 1);
    seal_node(leaves, &mut node, step.at)?;
    image.put(node_home, node)?;
    Ok(true)
}

/// Entries with their hashes.
type Hashed = Vec<(u32, Added)>;

/// A leaf's entries by hash, in two halves of about the same length: the last hash of the lower half, the upper, the lower.
fn halves(
    block: &Block,
    end: usize,
    hash_of: &dyn Fn(&[u8]) -> Option<u32>,
) -> Result<Option<(u32, Hashed, Hashed)>, Error> {
    let mut entries: Hashed = Vec::new();
    for slot in slots(block, end)?.iter().filter(|slot| slot.ino != 0) {
        let Some(hash) = hash_of(slot.name) else { return Ok(None) };
        let added = Added { name: slot.name.to_vec(), ino: slot.ino, file_type: slot.file_type };
        entries.push((hash, added));
    }
    entries.sort_by_key(|(hash, _)| *hash);
    let total: usize = entries.iter().map(|(_, entry)| room(entry.name.len())).sum();
    let mut taken = 0;
    let at = entries.iter().take_while(|(_, entry)| {
        taken += room(entry.name.len());
        taken <= total / 2
    });
    let at = at.count().max(1);
    if at >= entries.len() {
        return Ok(None);
    }
    let upper = entries.split_off(at);
    let last = entries[at - 1].0;
    Ok(Some((last, upper, entries)))
}

/// Makes leaves of all of an index's blocks.
pub(crate) fn flatten(leaves: &Leaves, image: &mut Image<'_>) -> Result<(), Error> {
    let (_, levels) = index(leaves, image)?;
    let (mut nodes, mut level, mut at) = (Vec::new(), vec![0], ROOT_AT);
    for _ in 0..levels {
        let mut below = Vec::new();
        for &logical in &level {
            let node = image.get(leaves.home(logical)?)?;
            let (_, count) = counts(&node, at)?;
            below.extend((0..count).map(|i| entry(&node, at, i).1));
        }
        if below.len() > leaves.homes.len() {
            return corrupt(format!("directory {}'s index is larger than it", leaves.ino));
        }
        nodes.extend_from_slice(&below);
        (level, at) = (below, NODE_AT);
    }
    let end = leaves.end();
    for logical in nodes {
        let home = leaves.home(logical)?;
        put_free(image.edit(home)?, 0, end);
        leaves.seal(image, home)?;
    }
    let home = leaves.home(0)?;
    let root = image.edit(home)?;
    // `.` keeps its length; `..` had all of the rest.
    let parent = Added { name: b"..".to_vec(), ino: u32_at(root, room(1)), file_type: root[room(1) + 7] };
    put_entry(root, room(1), room(2), &parent);
    put_free(root, room(1) + room(2), end - room(1) - room(2));
    leaves.seal(image, home)
}
