//! Every kind of ext4: what is handled agrees with debugfs block by block, what is not says why.

use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::AreaBlock;

use crate::image::{Image, MIB};

/// The layout is the one that debugfs and dumpe2fs report.
fn agrees(image: &Image) {
    let layout = image.layout();
    let inode = image.dumpe2fs("Journal inode").expect("an internal journal");
    let oracle: Vec<u64> = image
        .debugfs(&format!("blocks <{inode}>"))
        .split_whitespace()
        .map(|word| word.parse().expect("a block number"))
        .collect();
    let journal_blocks: u32 =
        image.dumpe2fs("Total journal blocks").expect("a size").parse().expect("a number");
    // debugfs lists the tree's own blocks among the others.
    let mut ours = (0..layout.journal_blocks()).map(|at| layout.home_of(AreaBlock(at)).expect("no hole").0);
    let tree: Vec<u64> =
        layout.watched.iter().filter(|w| w.what == "the journal's extent tree").map(|w| w.block.0).collect();
    assert_eq!(oracle.len(), layout.journal_blocks() as usize + tree.len());
    assert!(oracle.iter().filter(|block| !tree.contains(block)).copied().eq(ours.by_ref()));
    assert_eq!(layout.journal_blocks(), journal_blocks);
    assert_eq!(layout.blocks.to_string(), image.dumpe2fs("Block count").expect("a size"));
    let uuid = uuid::Uuid::from_bytes(layout.uuid).to_string();
    assert_eq!(Some(uuid), image.dumpe2fs("Filesystem UUID"));
    for at in [0, 1, journal_blocks / 2, journal_blocks - 1].map(AreaBlock) {
        assert_eq!(layout.area_of(layout.home_of(at).expect("inside")), Some(at));
    }
    assert_eq!(layout.home_of(AreaBlock(journal_blocks)), None);
    let first = image.read_at(layout.home_of(AreaBlock(0)).expect("a block").0 * 4096, 4096);
    let journal =
        JournalSuperblock::parse(first.as_slice().try_into().expect("a block")).expect("a superblock");
    assert_eq!((journal.maxlen(), journal.start()), (journal_blocks, None));
    assert_eq!(Some(format!("{:#010x}", journal.sequence().0)), image.dumpe2fs("Journal sequence"));
}

#[test]
fn default_whole_disk() {
    agrees(&Image::mkfs(64, &[]));
    assert_eq!(Image::empty(64 * MIB).find(), []);
}
