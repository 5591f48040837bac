//! Where two groups of disks differ in what matters, kept up to date block by block.

use std::collections::BTreeSet;
use std::sync::Arc;

use afterimage_journal::BLOCK_BYTES;

use super::plain::Plain;
use super::side::{block_of, Side, Touched};

// A page of a content is a block.
const _: () = assert!(afterimage_trace::PAGE_BYTES == BLOCK_BYTES);

/// A block of a disk, by the disk's index.
pub(super) type Place = (usize, u64);

/// What may have changed of each disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub all: bool,
    pub places: Vec<Place>,
}

impl Changed {
    pub fn add(&mut self, disk: usize, touched: &Touched) {
        self.all |= touched.all;
        self.places.extend(touched.blocks.iter().map(|block| (disk, *block)));
    }
}

fn differs(ours: &[Side], plain: &[Plain], (disk, block): Place) -> bool {
    let (ours, plain) = (&ours[disk], &plain[disk]);
    if plain.side.in_journal(block) {
        return false;
    }
    let untouched = match (ours.content.page(block), plain.side.content.page(block)) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    };
    if untouched && !ours.homes.contains_key(&block) && !plain.side.homes.contains_key(&block) {
        return false;
    }
    let found = match ours.homes.get(&block) {
        Some(home) => **home,
        None => block_of(&ours.content, block),
    };
    !plain.allows(block, &found)
}

/// Where `ours`, recovered, is not what a recovery of `plain` may leave, given where an earlier state of both differed and
/// what has changed since.
pub(super) fn differences(
    ours: &[Side],
    plain: &[Plain],
    before: &BTreeSet<Place>,
    changed: &[&Changed],
) -> BTreeSet<Place> {
    if changed.iter().any(|changed| changed.all) {
        let all = ours.iter().enumerate().flat_map(|(disk, side)| {
            (0..side.content.len().div_ceil(BLOCK_BYTES as u64)).map(move |block| (disk, block))
        });
        return all.filter(|place| differs(ours, plain, *place)).collect();
    }
    let mut found = before.clone();
    for place in changed.iter().flat_map(|changed| &changed.places) {
        if differs(ours, plain, *place) {
            found.insert(*place);
        } else {
            found.remove(place);
        }
    }
    found
}
