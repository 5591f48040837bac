//! Every kind of ext4: what is handled agrees with debugfs block by block, what is not says why.

use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::{AreaBlock, JournalError};

use crate::image::{run, Image, MIB};

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
fn handled_kinds() {
    let kinds: &[(u64, &[&str])] = &[
        (64, &[]),
        (64, &["-O", "^metadata_csum"]),
        (64, &["-O", "^64bit"]),
        (64, &["-O", "^64bit,^metadata_csum"]),
        (64, &["-O", "^metadata_csum,uninit_bg"]),
        (64, &["-O", "^metadata_csum,^64bit,uninit_bg"]),
        (64, &["-O", "metadata_csum_seed"]),
        (64, &["-O", "meta_bg,^resize_inode"]),
        (64, &["-O", "bigalloc"]),
        (64, &["-O", "bigalloc", "-C", "65536"]),
        (64, &["-O", "quota,project"]),
        (64, &["-O", "casefold", "-E", "encoding=utf8"]),
        (64, &["-O", "encrypt,verity,ea_inode,large_dir,inline_data"]),
        (64, &["-O", "orphan_file"]),
        (64, &["-O", "sparse_super2"]),
        (64, &["-O", "^sparse_super,^resize_inode"]),
        (64, &["-O", "mmp"]),
        (64, &["-O", "^flex_bg,^resize_inode"]),
        (64, &["-E", "stride=16,stripe_width=64"]),
        (64, &["-I", "128"]),
        (64, &["-I", "128", "-O", "^metadata_csum,^64bit"]),
        (64, &["-I", "1024"]),
        (64, &["-I", "4096", "-N", "64"]),
        (64, &["-g", "1024", "-J", "size=16"]),
        (64, &["-J", "size=4"]),
        (256, &["-J", "size=64"]),
        (600, &["-J", "size=256"]),
        (2200, &["-J", "size=1024"]),
        (2200, &["-J", "size=1024", "-O", "^flex_bg"]),
        (64 << 10, &["-E", "lazy_itable_init=1"]),
    ];
    for (mib, options) in kinds {
        println!("{mib} MiB, {options:?}");
        agrees(&Image::mkfs(*mib, options));
    }
    assert_eq!(Image::empty(64 * MIB).find(), []);
    assert_eq!(Image::empty(512).find(), []);
    assert_eq!(Image::empty(0).find(), []);
}

/// Every second block in use: a journal in thousands of pieces has an extent tree two levels deep.
#[test]
fn fragmented_journals_have_trees() {
    for (features, mib, depth) in [("^metadata_csum", 4, 1), ("metadata_csum", 4, 1), ("metadata_csum", 8, 2)]
    {
        let image = Image::mkfs(64, &["-O", &format!("^has_journal,{features}")]);
        let script: String = (1000..16000).step_by(2).map(|block| format!("setb {block}\n")).collect();
        image.debugfs_script(&script);
        let path = image.path().to_str().expect("a plain path");
        run("tune2fs", &["-j", "-J", &format!("size={mib}"), path]);
        let layout = image.layout();
        assert!(layout.journal.len() > 1000, "{} pieces", layout.journal.len());
        assert!(image.debugfs("ex <8>").contains(&format!(" 0/ {depth} ")), "not {depth} levels");
        agrees(&image);
    }
}

/// A journal in an ordinary inode of a later block group, as `tune2fs -j` on a mounted file system once made it.
#[test]
fn journal_inode_in_another_group() {
    for features in
        ["^resize_inode", "meta_bg,^resize_inode", "^metadata_csum,uninit_bg", "meta_bg,^resize_inode,^64bit"]
    {
        // 16 inodes in each of 256 groups; 64 descriptors in a block, or 128 of 32 bytes.
        let image = Image::mkfs(256, &["-g", "256", "-N", "4096", "-J", "size=4", "-O", features]);
        let journal = image.path().with_file_name("journal");
        image.debugfs(&format!("dump <8> {}", journal.display()));
        // debugfs leaves holes where a file is zero; a journal has none.
        let mut content = std::fs::read(&journal).expect("dumped");
        content.iter_mut().skip(5000).step_by(1000).for_each(|byte| *byte = 1);
        std::fs::write(&journal, content).expect("room");
        let mut script: String = (0..2500).map(|i| format!("write /dev/null f{i}\n")).collect();
        script.push_str(&format!("write {} journal\n", journal.display()));
        image.debugfs_script(&script);
        let number: u32 = image
            .debugfs("stat journal")
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse().ok())
            .expect("an inode number");
        assert!(number > 2048, "inode {number} is in a block of descriptors that is not the first");
        image.debugfs_write(&format!("ssv journal_inum {number}"));
        let layout = image.layout();
        let oracle = image.debugfs("blocks journal");
        let first: Vec<u64> =
            oracle.split_whitespace().take(4).map(|w| w.parse().expect("a number")).collect();
        assert_eq!(
            first,
            (0..4).map(|at| layout.home_of(AreaBlock(at)).expect("a block").0).collect::<Vec<_>>()
        );
        assert_eq!(layout.journal_blocks(), 1024);
    }
}

/// What a mount changes is not watched; the layout is the same.
#[test]
fn ordinary_use_changes_nothing() {
    for features in ["metadata_csum", "^metadata_csum"] {
        let image = Image::mkfs(64, &["-O", features]);
        let before = image.layout();
        let file = image.path().with_file_name("file");
        std::fs::write(&file, vec![1; 300_000]).expect("room");
        image.debugfs_script(&format!(
            "feature needs_recovery\nfeature large_file\nssv mnt_count 7\nssv state 2\nwrite {} a\n\
             ssv last_orphan 12\nsif <8> mtime 1700000000\n",
            file.display()
        ));
        assert_eq!(image.layout(), before);
        for watched in &before.watched {
            let block = image.read_at(watched.block.0 * 4096, 4096);
            assert!(!watched.changed_in(block.as_slice().try_into().expect("a block")));
        }
        let path = image.path().to_str().expect("a plain path");
        run("tune2fs", &["-L", "label", "-c", "7", "-m", "1", path]);
        assert_eq!(image.layout(), before);
    }
}

/// What moves or remakes the journal is seen, by what is watched and by looking again.
#[test]
fn relearning() {
    let image = Image::mkfs(64, &["-U", "11111111-2222-3333-4444-555555555555", "-J", "size=4"]);
    let path = image.path().to_str().expect("a plain path");
    let before = image.layout();
    let noticed = || {
        before.watched.iter().any(|watched| {
            let block = image.read_at(watched.block.0 * 4096, 4096);
            watched.changed_in(block.as_slice().try_into().expect("a block"))
        })
    };
    run("resize2fs", &[path, "48M"]);
    assert!(image.layout().blocks < before.blocks);
    assert!(!before.identity_changed(&image.layout()) && !noticed());

    run("tune2fs", &["-O", "^has_journal", path]);
    assert!(noticed());
    assert!(image.why().contains("without a journal"));
    run("tune2fs", &["-j", "-J", "size=8", path]);
    assert!(noticed() && before.identity_changed(&image.layout()));

    image.mkfs_at(0, 64 * MIB, &["-J", "size=4"]);
    assert!(noticed() && before.identity_changed(&image.layout()));
    image.mkfs_at(0, 64 * MIB, &["-U", "11111111-2222-3333-4444-555555555555", "-J", "size=4"]);
    assert!(!before.identity_changed(&image.layout()));

    run("tune2fs", &["-f", "-U", "11111111-2222-3333-4444-555555555556", path]);
    assert!(noticed());
    assert!(image.why().contains("another UUID"), "{}", image.why());
}

/// debugfs writes a transaction: the superblock's fields are those that it reports, and a moved tail is one that it reads.
#[test]
fn journal_superblocks() {
    for (version, v2, v3) in [("", false, false), ("-c -v 2", true, false), ("-c -v 3", false, true)] {
        let image = Image::mkfs(64, &["-J", "size=4"]);
        let block = image.path().with_file_name("block");
        std::fs::write(&block, vec![7; 4096]).expect("room");
        image.debugfs_script(&format!("jo {version}\njw -b 5000 {}\njw -b 5001 {0}\njc\n", block.display()));
        agrees_but_for_the_tail(&image, v2, v3);
    }
}

fn agrees_but_for_the_tail(image: &Image, v2: bool, v3: bool) {
    let layout = image.layout();
    let at = layout.home_of(AreaBlock(0)).expect("a block").0 * 4096;
    let read = || {
        let block = image.read_at(at, 4096);
        JournalSuperblock::parse(block.as_slice().try_into().expect("a block")).expect("a superblock")
    };
    let journal = read();
    let features = journal.features();
    assert_eq!((features.csum_v2, features.csum_v3, features.checksum), (v2, v3, false));
    assert!(features.bits64);
    assert_eq!(Some(journal.sequence().0.to_string()), sequence_of(image));
    assert_eq!(journal.start().map(|at| at.0.to_string()), image.dumpe2fs("Journal start"));
    assert_eq!(journal.uuid(), layout.uuid);
    assert_eq!(journal.errno(), 0);

    let moved = journal.with_tail(journal.sequence().next(), Some(AreaBlock(5)));
    image.write_at(at, moved.bytes());
    assert_eq!(image.dumpe2fs("Journal start").as_deref(), Some("5"));
    assert_eq!(Some(moved.sequence().0.to_string()), sequence_of(image));
    assert_eq!(image.dumpe2fs("Journal checksum").is_some(), v2 || v3);
    assert_eq!(read(), moved);
    // Back again it is the same superblock: nothing else was touched.
    assert_eq!(moved.with_tail(journal.sequence(), journal.start()), journal);
    let empty = journal.with_tail(journal.sequence(), None);
    image.write_at(at, empty.bytes());
    assert_eq!((read().start(), image.dumpe2fs("Journal start").as_deref()), (None, Some("0")));
    // debugfs refuses a superblock whose checksum is wrong, and so do we.
    if features.checksummed() {
        let mut broken = *journal.bytes();
        broken[0x58] ^= 1;
        assert!(matches!(JournalSuperblock::parse(&broken), Err(JournalError::Corrupt(_))));
        assert!(JournalSuperblock::parse(journal.bytes()).is_ok());
    }
}

fn sequence_of(image: &Image) -> Option<String> {
    let hex = image.dumpe2fs("Journal sequence")?;
    u32::from_str_radix(hex.trim_start_matches("0x"), 16).ok().map(|number| number.to_string())
}
